"""Training text: by a Markov chain, or from a file."""

from __future__ import annotations

import pytest
import torch

from optpipe_sim.errors import OptPipeError
from optpipe_sim.runtime.model.tokens import Tokens


def test_markov_text_has_its_stated_entropy() -> None:
    tokens = Tokens(24, seed=5)
    inputs, targets = tokens.batch(3, 4, 64, 32)
    assert inputs.shape == targets.shape == (4, 64, 32)
    assert (inputs[..., 1:] == targets[..., :-1]).all()
    counts = torch.zeros(24, 24)
    counts.index_put_((inputs.flatten(), targets.flatten()), torch.ones(inputs.numel()), True)
    assert (counts > 0).sum() == 24 * 4
    share = counts / counts.sum(1, keepdim=True)
    found = -(counts * share.clamp_min(1e-9).log()).sum() / counts.sum()
    assert float(found) == pytest.approx(tokens.floor, rel=0.03)
    assert torch.equal(inputs, Tokens(24, seed=5).batch(3, 4, 64, 32)[0])
    assert not torch.equal(inputs, tokens.batch(4, 4, 64, 32)[0])


def test_text_of_a_file_is_read_byte_by_byte() -> None:
    text = bytes(range(100))
    inputs, targets = Tokens(256, text=text).batch(0, 2, 3, 8)
    assert (targets == inputs + 1).all()
    with pytest.raises(OptPipeError, match="256 holds every byte"):
        Tokens(50, text=text)
    with pytest.raises(OptPipeError, match="a sequence needs 202"):
        Tokens(256, text=text).batch(0, 1, 1, 200)
