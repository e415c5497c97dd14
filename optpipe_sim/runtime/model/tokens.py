"""What the training run learns from: text that a Markov chain writes, or the bytes of a file.

A batch depends on the seed and the step alone, so that every rank draws the same one, and a run
that goes on after a stop sees what it would have seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...errors import OptPipeError

BRANCHES = 4  # tokens that may follow a token
WEIGHTS = (0.55, 0.25, 0.15, 0.05)  # how often each of them does


@dataclass(frozen=True)
class Tokens:
    """A source of tokens below `vocab`.

    Attributes:
        text: what to learn, byte by byte; None: a Markov chain in which each token has four
            possible successors, drawn with `seed`.
    """

    vocab: int
    seed: int = 0
    text: bytes | None = None

    def __post_init__(self) -> None:
        if self.text is not None and max(self.text, default=0) >= self.vocab:
            raise OptPipeError(
                f"vocab: {self.vocab} is too few for this text; 256 holds every byte there is"
            )
        if self.text is None and self.vocab < BRANCHES:
            raise OptPipeError(f"vocab: a Markov chain needs at least {BRANCHES}, got {self.vocab}")

    @property
    def floor(self) -> float | None:
        """The loss that knowing the source would give: its entropy in nats; None where unknown."""
        return -sum(p * math.log(p) for p in WEIGHTS) if self.text is None else None

    def batch(
        self, step: int, microbatches: int, microbatch: int, seq: int
    ) -> tuple[Tensor, Tensor]:
        """Return tokens, and the tokens that follow them, (microbatches, microbatch, seq) each.

        Raises:
            OptPipeError: where the text is shorter than one sequence.
        """
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + 2 * step + 1)
        rows = microbatches * microbatch
        if self.text is None:
            found = self._walk(rows, seq + 1, generator)
        else:
            if len(self.text) < seq + 2:
                raise OptPipeError(f"text: {len(self.text)} bytes, but a sequence needs {seq + 2}")
            starts = torch.randint(len(self.text) - seq, (rows, 1), generator=generator)
            found = self._bytes[starts + torch.arange(seq + 1)]
        found = found.reshape(microbatches, microbatch, seq + 1)
        return found[..., :-1].contiguous(), found[..., 1:].contiguous()

    def _walk(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        weights = torch.tensor(WEIGHTS)
        taken = torch.multinomial(weights.expand(rows, -1), length, True, generator=generator)
        at = torch.randint(self.vocab, (rows,), generator=generator)
        found = torch.empty(rows, length, dtype=torch.int64)
        for column in range(length):
            found[:, column] = at
            at = self._successors[at, taken[:, column]]
        return found

    @cached_property
    def _successors(self) -> Tensor:
        """(vocab, branches): which tokens may follow which."""
        generator = torch.Generator().manual_seed(2 * self.seed)
        draws = torch.rand(self.vocab, self.vocab, generator=generator)
        return draws.argsort(1)[:, :BRANCHES]

    @cached_property
    def _bytes(self) -> Tensor:
        return torch.tensor(list(self.text or b""), dtype=torch.int64)
