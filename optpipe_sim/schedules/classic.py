"""GPipe, 1F1B and interleaved 1F1B: the backward is one fused op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from ..errors import InvalidSchedule
from ..ops import BW, F
from ..profile import CostProfile
from ..schedule import Schedule, rows_of
from . import default_chunks

AnyOp = TypeVar("AnyOp")


def gpipe(profile: CostProfile, microbatches: int) -> Schedule:
    """Run all forwards, then all backwards; one chunk per device, any m.

    Bubble fraction (p-1)/(m+p-1) at equal stages without communication; every device holds all m
    activations. At p = 4, m = 4::

        0 F0  F1  F2  F3  .   .   .   .   .   .   .   .   .   BW0     BW1     BW2     BW3
        1 .   F0  F1  F2  F3  .   .   .   .   .   .   BW0     BW1     BW2     BW3     .   .
        2 .   .   F0  F1  F2  F3  .   .   .   BW0     BW1     BW2     BW3     .   .   .   .
        3 .   .   .   F0  F1  F2  F3  BW0     BW1     BW2     BW3     .   .   .   .   .   .

    Source: Huang et al., GPipe (arXiv 1811.06965), figure 2; backwards here in forward order.
    """
    costs = profile.rechunk(1)
    units = np.arange(microbatches)
    tables = [
        np.concatenate([rows_of(kind, rank, units) for kind in (F, BW)])
        for rank in range(costs.devices)
    ]
    return Schedule.from_tables(costs.shape(microbatches), tables)


def one_f_one_b(profile: CostProfile, microbatches: int) -> Schedule:
    """Run forwards and backwards in turn after a short warm-up; one chunk per device, any m.

    Rank r starts with min(p-r-1, m) forwards, so it never holds more than min(p-r, m) activations;
    the bubble is GPipe's. At p = 4, m = 6::

        0 F0  F1  F2  F3  .   .   .   .   .   .   BW0     F4  BW1     F5  BW2     .   BW3     .   BW4     .   BW5
        1 .   F0  F1  F2  .   .   .   .   BW0     F3  BW1     F4  BW2     F5  BW3     .   BW4     .   BW5     .   .
        2 .   .   F0  F1  .   .   BW0     F2  BW1     F3  BW2     F4  BW3     F5  BW4     .   BW5     .   .   .   .
        3 .   .   .   F0  BW0     F1  BW1     F2  BW2     F3  BW3     F4  BW4     F5  BW5     .   .   .   .   .   .

    Source: Narayanan et al., PipeDream-Flush (arXiv 2006.09503); Megatron-LM (arXiv 2104.04473),
    figure 4.
    """
    costs = profile.rechunk(1)
    units = np.arange(microbatches)
    tables = []
    for rank in range(costs.devices):
        warm_up = min(costs.devices - rank - 1, microbatches)
        both = np.concatenate([rows_of(kind, rank, units) for kind in (F, BW)])
        tables.append(both[in_turn(microbatches, warm_up)])
    return Schedule.from_tables(costs.shape(microbatches), tables)


def one_f_one_b_of(
    profile: CostProfile, microbatches: int, chunks: int | None, group: int | None = None
) -> Schedule:
    """Build 1F1B on the given number of chunks (by default the profile's); with several chunks it
    is interleaved in groups of `group` microbatches.

    Raises:
        InvalidSchedule: for a group with one chunk, and as `interleaved_1f1b` raises it.
    """
    chunks = profile.chunks if chunks is None else chunks
    if group is not None and chunks == 1:
        raise InvalidSchedule(f"group={group}: one chunk has no groups; leave it out")
    if chunks == 1:
        return one_f_one_b(profile, microbatches)
    return interleaved_1f1b(profile, microbatches, chunks, group)


def interleaved_1f1b(
    profile: CostProfile,
    microbatches: int,
    chunks: int | None = None,
    group: int | None = None,
    pairs: bool = False,
) -> Schedule:
    """Run 1F1B on v chunks per device in a loop (1F1B-I): 1/v of the bubble, v times the messages.

    Microbatches advance in groups of g (the last group has what is left) through chunk after chunk.
    Rank r starts with min(2(p-r-1) + (v-1)g, mv) forwards. With one chunk it still warms up twice as long as 1F1B.
    At p = 4, m = 8, v = 2 (lower case: the second chunk)::

        0 F0  F1  F2  F3  f0  f1  f2  f3  .   .   .   .   .   .   bw0     .   bw1     .   bw2     .   bw3     BW0     BW1     BW2     BW3
        1 .   F0  F1  F2  F3  f0  f1  f2  f3  .   .   .   bw0     .   bw1     .   bw2     .   bw3     BW0     BW1     BW2     BW3     .   .
        2 .   .   F0  F1  F2  F3  f0  f1  f2  .   bw0     f3  bw1     .   bw2     .   bw3     BW0     BW1     BW2     BW3     .   .   .   .
        3 .   .   .   F0  F1  F2  F3  f0  bw0     f1  bw1     f2  bw2     f3  bw3     BW0     BW1     BW2     BW3     .   .   .   .   .   .

    Args:
        profile: re-chunked to `chunks` per device, placement ``loop``.
        microbatches: m; with groups of p a multiple of p.
        chunks: v; default: the profile's own where it has more than one, else 2.
        group: g, from p to m; m mod g is 0 or at least p. Default: p.
        pairs: each forward after the warm-up is one op with the backward beside it, as Megatron-LM's combined 1F1B runs them
            (``--overlap-moe-expert-parallel-comm``), so that it hides the exchange of experts' tokens. A rank then starts with one forward
            more, or a backward would need the forward of its own pair.

    Raises:
        InvalidSchedule: if p does not divide m, or if Megatron-LM does not accept `group`.

    Source: Narayanan et al., Megatron-LM (arXiv 2104.04473), section 2.2 and figure 4; groups:
    Megatron-LM, megatron/core/pipeline_parallel/schedules.py (commit d98e8a6).
    """
    costs = profile.rechunk(default_chunks(profile, chunks))
    tables, paired = [], []
    for forwards, backwards, warm_up in interleaved_passes(costs, microbatches, group, pairs):
        order = in_turn(len(forwards), warm_up)
        tables.append(np.concatenate((forwards, backwards))[order])
        paired.append((order >= warm_up) & (order < len(forwards)) & pairs)
    return Schedule.from_tables(costs.shape(microbatches), tables, np.concatenate(paired))


class Passes(NamedTuple):
    """What a rank of interleaved 1F1B runs: its forwards and its backwards (ops, 3) in their order, and how many forwards
    come before the first backward."""

    forwards: np.ndarray
    backwards: np.ndarray
    warm_up: int


def interleaved_passes(
    costs: CostProfile, microbatches: int, group: int | None, pairs: bool
) -> list[Passes]:
    """Return the passes of each rank; for a profile that is already divided into its chunks. The arguments and
    what is raised: see `interleaved_1f1b`."""
    p, chunks, total = costs.devices, costs.chunks, microbatches * costs.chunks
    group = p if group is None else group
    if group == p and microbatches % p:
        fewer, more = microbatches // p * p, -(-microbatches // p) * p
        fitting = f"{fewer} or {more}" if fewer else f"{more}"
        raise InvalidSchedule(
            f"1f1b-i: microbatches must be a multiple of the devices, {p};"
            f" got {microbatches}, take {fitting}"
        )
    if not p <= group <= microbatches or 0 < microbatches % group < p:
        raise InvalidSchedule(
            f"1f1b-i: group={group}: expected a number from {p} (the devices) to {microbatches} (the"
            f" microbatches) that leaves none of them over, or at least {p}"
        )
    chunk, unit = np.array(grouped_turns(microbatches, chunks, group)).T
    return [
        Passes(
            rows_of(F, chunk * p + rank, unit),
            rows_of(BW, (chunks - 1 - chunk) * p + rank, unit),
            min(2 * (p - rank - 1) + (chunks - 1) * group + pairs, total),
        )
        for rank in range(p)
    ]


def grouped_turns(units: int, chunks: int, group: int) -> list[tuple[int, int]]:
    """Yield (chunk, unit) in the order in which groups of units go through chunk after chunk."""
    return [
        (chunk, unit)
        for first in range(0, units, group)
        for chunk in range(chunks)
        for unit in range(first, min(first + group, units))
    ]


def in_turn(forwards: int, warm_up: int) -> np.ndarray:
    """Return the order of a rank with so many forwards and as many backwards, numbered behind them: `warm_up`
    forwards, then a forward and a backward in turn, then the rest of the backwards."""
    at = np.arange(forwards)
    order = np.empty(2 * forwards, np.int64)
    order[np.maximum(at, 2 * at - warm_up)] = at
    order[np.minimum(warm_up + 2 * at + 1, forwards + at)] = forwards + at
    return order


def one_by_one(forwards: Sequence[AnyOp], backwards: Sequence[AnyOp], warm_up: int) -> list[AnyOp]:
    """Return as many forwards and backwards in the order of `in_turn`."""
    both = [*forwards, *backwards]
    return [both[at] for at in in_turn(len(forwards), warm_up)]
