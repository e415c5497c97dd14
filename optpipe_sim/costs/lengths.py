"""Microbatches of sequences of different lengths: what each costs beside one of the usual length.

Most of the work of a layer grows with the tokens, attention with the square of each sequence: a
microbatch packed from two halves costs less than one whole sequence. Both shares follow from the
estimate at two lengths.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from ..errors import OptPipeError
from ..files import read_rows
from ..units import exact

DIGITS = 4  # of factors: microbatches that differ by less count as alike


class Factors(NamedTuple):
    """A factor per microbatch: of compute times, and of sizes; see `CostProfile`."""

    time: tuple[Fraction, ...]
    size: tuple[Fraction, ...]


def read_lengths(path: str | os.PathLike[str]) -> list[tuple[int, ...]]:
    """Read the lengths, in tokens, of the sequences of each microbatch.

    A text has a line per microbatch, with a number per sequence that is packed into it; JSON a list of
    numbers or of lists of them. A line that begins with ``#`` is a comment.

    Raises:
        OptPipeError: one line with the file, the line and what is expected.
    """
    rows = [one if isinstance(one, list) else [one] for one in read_rows(path)]
    if not rows:
        raise OptPipeError(f"{path}: no lengths; a line per microbatch, such as 4096 2048 2048")
    return [
        tuple(_length(value, f"{path}: microbatch {at}") for value in row)
        for at, row in enumerate(rows)
    ]


def _length(value: Any, where: str) -> int:
    tokens = int(value) if isinstance(value, str) and value.isdigit() else value
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= 10**9:
        raise OptPipeError(f"{where}: expected tokens of a sequence, from 1 to 10^9, got {value!r}")
    return tokens


def length_factors(
    microbatches: Sequence[Sequence[int]], seq: int, count: int, work_ns: Callable[[int], float]
) -> Factors:
    """Return the factors of microbatches beside one of `count` sequences of `seq` tokens.

    Args:
        microbatches: the lengths of the sequences in each.
        work_ns: the compute time of the model for one sequence of so many tokens; asked for two lengths.

    Raises:
        OptPipeError: for an empty microbatch.
    """
    empty = next((at for at, one in enumerate(microbatches) if not one), None)
    if empty is not None:
        raise OptPipeError(f"lengths: microbatch {empty} has no sequences")
    half = max(1, seq // 2)
    whole, part = work_ns(seq), work_ns(half)
    # work = a l + b l^2
    square = max(0.0, (whole / seq - part / half) / (seq - half)) if seq > half else 0.0
    linear = whole / seq - square * seq
    usual = count * whole

    def work(lengths: Sequence[int]) -> float:
        return sum(linear * one + square * one * one for one in lengths)

    def rounded(factor: float) -> Fraction:
        return exact(max(10**-DIGITS, round(factor, DIGITS)))

    return Factors(
        tuple(rounded(work(one) / usual) for one in microbatches),
        tuple(rounded(sum(one) / (count * seq)) for one in microbatches),
    )
