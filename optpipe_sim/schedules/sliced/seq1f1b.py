"""Seq1F1B and related schedules: 1F1B whose units are slices of the sequence."""

from __future__ import annotations

from ...ops import BW, B, W
from ...profile import CostProfile
from ...schedule import Schedule
from .. import default_chunks
from ..classic import one_by_one
from ..zero_bubble import with_weights_behind
from .orders import filled_with_weights, interleaved


def seq1f1b(profile: CostProfile, microbatches: int) -> Schedule:
    """Run 1F1B over slices: the bubble of n times as many microbatches, at about 1/n of the memory.

    Rank r starts with p-r-1 + n-1 forwards, so it never holds more than p-r + n-1 slices. With
    equal slices and free messages it takes (n m + p - 1)(F + B), F and B of a slice, of which
    (p - 1) / (n m + p - 1) is bubble. With one slice it is 1F1B.

    At p = 4, m = 2, n = 2::

        0 F0/0  F0/1  F1/0  F1/1  .     .     .     .     .     .     .     BW0/1       .     BW0/0       .     BW1/1       BW1/0
        1 .     F0/0  F0/1  F1/0  F1/1  .     .     .     .     BW0/1       .     BW0/0       .     BW1/1       BW1/0       .     .
        2 .     .     F0/0  F0/1  F1/0  .     .     BW0/1       F1/1  BW0/0       .     BW1/1       BW1/0       .     .     .     .
        3 .     .     .     F0/0  F0/1  BW0/1       F1/0  BW0/0       F1/1  BW1/1       BW1/0       .     .     .     .     .     .

    Source: Sun et al., Seq1F1B (arXiv 2406.03488), section 3 and figure 2.
    """
    return _one_f_one_b(profile.rechunk(1), microbatches, "seq1f1b")


def seq1f1b_i(profile: CostProfile, microbatches: int, chunks: int | None = None) -> Schedule:
    """Run interleaved 1F1B over slices; see `seq1f1b` and `classic.interleaved_1f1b`.

    Args:
        chunks: v; default: the profile's own where it has more than one, else 2.

    Raises:
        InvalidSchedule: if groups of p units would cut microbatches; see `orders.interleaved`.

    At p = 4, m = 2, n = 2, v = 2::

        0 F0/0  F0/1  F1/0  F1/1  f0/0  f0/1  f1/0  f1/1  .     .     .     .     .     .     .     bw0/1       .     bw0/0       .     bw1/1       bw1/0       BW0/1       BW0/0       BW1/1       BW1/0
        1 .     F0/0  F0/1  F1/0  F1/1  f0/0  f0/1  f1/0  f1/1  .     .     .     .     bw0/1       .     bw0/0       .     bw1/1       bw1/0       BW0/1       BW0/0       BW1/1       BW1/0       .     .
        2 .     .     F0/0  F0/1  F1/0  F1/1  f0/0  f0/1  f1/0  f1/1  .     bw0/1       .     bw0/0       .     bw1/1       bw1/0       BW0/1       BW0/0       BW1/1       BW1/0       .     .     .     .
        3 .     .     .     F0/0  F0/1  F1/0  F1/1  f0/0  f0/1  bw0/1       f1/0  bw0/0       f1/1  bw1/1       bw1/0       BW0/1       BW0/0       BW1/1       BW1/0       .     .     .     .     .     .

    Source: Sun et al., Seq1F1B (arXiv 2406.03488), section 3.3.
    """
    costs = profile.rechunk(default_chunks(profile, chunks))
    return _one_f_one_b(costs, microbatches, "seq1f1b-i")


def slimpipe(profile: CostProfile, microbatches: int, chunks: int | None = None) -> Schedule:
    """Build SlimPipe: 1F1B over uniform slices whose attention is balanced between the devices.

    Its order is that of Seq1F1B (interleaved with `chunks`). It differs in its costs: by exchanging
    context, devices share the attention of early and late slices, so that slices of equal length
    take equal time. `exchange.with_context_exchange` makes a profile with these costs; a replay
    with ever longer slices shows the order without the exchange.

    At p = 4, m = 2, n = 2::

        0 F0/0  F0/1  F1/0  F1/1  .     .     .     .     .     .     .     BW0/1       .     BW0/0       .     BW1/1       BW1/0
        1 .     F0/0  F0/1  F1/0  F1/1  .     .     .     .     BW0/1       .     BW0/0       .     BW1/1       BW1/0       .     .
        2 .     .     F0/0  F0/1  F1/0  .     .     BW0/1       F1/1  BW0/0       .     BW1/1       BW1/0       .     .     .     .
        3 .     .     .     F0/0  F0/1  BW0/1       F1/0  BW0/0       F1/1  BW1/1       BW1/0       .     .     .     .     .     .

    Source: Li et al., SlimPipe (arXiv 2504.14519), sections 3 and 4.
    """
    costs = profile.rechunk(1 if chunks is None else chunks)
    return _one_f_one_b(costs, microbatches, "slimpipe")


def seq_zb(profile: CostProfile, microbatches: int) -> Schedule:
    """Run ZB-H1 over slices: B and W are split, rank r's W runs r slices behind its B.

    Rank r starts with p-r + n-1 forwards; with one slice it is ZB-H1. The warm-up is Seq1F1B's,
    the delay ZB-H1's.

    At p = 4, m = 2, n = 2::

        0 F0/0 F0/1 F1/0 F1/1 .    .    .    .    B0/1 W0/1 B0/0 W0/0 B1/1 W1/1 B1/0 W1/0
        1 .    F0/0 F0/1 F1/0 F1/1 .    .    B0/1 .    B0/0 W0/1 B1/1 W0/0 B1/0 W1/1 W1/0
        2 .    .    F0/0 F0/1 F1/0 .    B0/1 F1/1 B0/0 .    B1/1 W0/1 B1/0 W0/0 W1/1 W1/0
        3 .    .    .    F0/0 F0/1 B0/1 F1/0 B0/0 F1/1 B1/1 B1/0 W0/1 W0/0 W1/1 W1/0 .

    Source: Sun et al., Seq1F1B (arXiv 2406.03488), section 3.2; Qi et al. (arXiv 2401.10241).
    """
    costs = profile.rechunk(1)
    shape = costs.shape(microbatches)
    programs = []
    for rank in range(costs.devices):
        forwards, backwards, warm_up = interleaved(shape, rank, "seq-zb", B)
        weights = [back._replace(kind=W) for back in backwards]
        first = min(warm_up + 1, shape.units)
        programs.append(list(with_weights_behind(forwards, backwards, weights, first, rank)))
    return Schedule(shape, programs)


def mepipe(profile: CostProfile, microbatches: int, chunks: int | None = None) -> Schedule:
    """Build MEPipe: interleaved 1F1B over slices, with W's as fillers wherever a device would wait.

    The paper divides W further, into single GEMMs; here the W of a slice of a chunk is the smallest
    unit. Where the paper leaves the choice open, a W starts when the device would idle for at least
    as long, or for an unknown time; the remaining W's come at the end.

    Args:
        chunks: v; default: the profile's own.

    Raises:
        InvalidSchedule: if groups of p units would cut microbatches; see `orders.interleaved`.

    At p = 4, m = 2, n = 2::

        0 F0/0 F0/1 F1/0 F1/1 .    .    .    .    B0/1 W0/1 B0/0 W0/0 B1/1 B1/0 W1/1 W1/0
        1 .    F0/0 F0/1 F1/0 F1/1 .    .    B0/1 W0/1 B0/0 W0/0 B1/1 B1/0 W1/1 W1/0 .
        2 .    .    F0/0 F0/1 F1/0 .    B0/1 F1/1 B0/0 W0/1 B1/1 B1/0 W0/0 W1/1 W1/0 .
        3 .    .    .    F0/0 F0/1 B0/1 F1/0 B0/0 F1/1 B1/1 B1/0 W0/1 W0/0 W1/1 W1/0 .

    Source: Sun et al., MEPipe (EuroSys 2025), sections 4 and 5.
    """
    costs = profile.rechunk(profile.chunks if chunks is None else chunks)
    shape = costs.shape(microbatches)
    programs = []
    for rank in range(costs.devices):
        forwards, backwards, warm_up = interleaved(shape, rank, "mepipe", B)
        programs.append(list(one_by_one(forwards, backwards, warm_up)))
    return filled_with_weights(shape, costs, programs)


def _one_f_one_b(costs: CostProfile, microbatches: int, name: str) -> Schedule:
    shape = costs.shape(microbatches)
    programs = []
    for rank in range(costs.devices):
        forwards, backwards, warm_up = interleaved(shape, rank, name, BW)
        programs.append(list(one_by_one(forwards, backwards, warm_up)))
    return Schedule(shape, programs)
