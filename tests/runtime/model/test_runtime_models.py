"""Models cut into stages: their weights, their layers, their attention."""

from __future__ import annotations

import pytest
import torch
from stage_cases import (
    GPT,
    LLAMA,
    MODELS,
    SEQ,
    batch,
)

from optpipe_sim.costs.models import parameters
from optpipe_sim.errors import OptPipeError
from optpipe_sim.runtime.model.decoder import build_stage, layer_counts


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_stages_hold_the_weights_of_the_whole_model_however_it_is_cut(model) -> None:
    whole = dict(build_stage(model, 0, 1, seq=SEQ, seed=7).named_parameters())
    assert sum(p.numel() for p in whole.values()) == parameters(model)
    for stages in (2, 5):
        found = {}
        for s in range(stages):
            found |= dict(build_stage(model, s, stages, seq=SEQ, seed=7).named_parameters())
        if model.tied:
            assert torch.equal(found.pop("head.weight"), found["tokens.weight"])
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], whole[name]) for name in whole)
    other = build_stage(model, 0, 1, seq=SEQ, seed=8)
    assert not torch.equal(other.tokens.weight, whole["tokens.weight"])
    assert torch.get_default_dtype() is torch.float32


def test_layers_are_balanced_or_as_given() -> None:
    assert sum(layer_counts(LLAMA, 3, seq=SEQ)) == 4
    assert layer_counts(LLAMA, 2, seq=SEQ, layers=[1, 3]) == [1, 3]
    with pytest.raises(OptPipeError, match="layers: expected 2 numbers that add up to 4"):
        layer_counts(LLAMA, 2, seq=SEQ, layers=[1, 2])
    with pytest.raises(OptPipeError, match="stages: 9 "):
        build_stage(LLAMA, 0, 9, seq=SEQ)
    with pytest.raises(OptPipeError, match="gpt has positions for 16"):
        build_stage(GPT, 0, 1, seq=SEQ + 1)


def test_the_future_does_not_reach_the_past() -> None:
    tokens = batch(1)[0][0]
    for model in (GPT, LLAMA):
        whole = build_stage(model, 0, 1, seq=SEQ)
        later = tokens.clone()
        later[:, -1] = (later[:, -1] + 1) % model.vocab
        one, two = whole(tokens), whole(later)
        assert torch.equal(one[:, :-1], two[:, :-1])
        assert not torch.equal(one[:, -1], two[:, -1])
