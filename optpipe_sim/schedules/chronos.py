"""ChronosPipe, as its aim is described: every microbatch goes straight through all chunks, so that the deep ones hold little."""

from __future__ import annotations

import numpy as np

from ..errors import InvalidSchedule
from ..ops import BW, F
from ..profile import CostProfile
from ..schedule import Schedule, levels_by_stage, rows_of
from . import default_chunks
from .recompute import Levels, everywhere, last_levels

# the unit of the pattern: a forward takes one slot, a backward two
BACK = 2
TURN = 1 + BACK


def chronos(
    profile: CostProfile,
    microbatches: int,
    chunks: int | None = None,
    recomputed: int = 0,
    level: str | None = None,
) -> Schedule:
    """Let each microbatch pass chunk after chunk, forward and back, as soon as the order allows, and start the next one as soon as a
    device can have done one chunk after another for it: reconstructed.

    Interleaved 1F1B makes a microbatch wait for a group of others before each next chunk; here it does not, so that the activation of a deep
    chunk, whose backward is near, is held for a short time only. With many devices rank 0 holds (v + 1) / (2 v) of what 1F1B holds
    (three quarters with two chunks, two thirds with three) at about 1F1B's bubble. The activations of the first chunks are held longest:
    with `recomputed` of them recomputed (Chronos-Recomp) most of what is left is short-lived. At p = 4, m = 6, v = 2
    (lower case: the second chunk)::

        0 F0  F1  .   .   f0  F2  f1  F3  .   .   .   .   .   .   bw0     f2  F4  .   .   bw1     f3  BW0     F5  bw2     f4  BW1     .   bw3     f5  BW2     .   bw4     .   BW3     .   bw5     BW4     .   .   .   .   BW5
        1 .   F0  F1  .   .   f0  F2  f1  .   .   .   .   bw0     F3  .   .   f2  bw1     F4  BW0     f3  bw2     F5  BW1     f4  bw3     .   BW2     f5  bw4     .   BW3     .   bw5     BW4     .   .   .   .   BW5     .   .
        2 .   .   F0  F1  .   .   f0  F2  .   .   bw0     f1  .   .   F3  bw1     f2  BW0     F4  bw2     f3  BW1     F5  bw3     f4  BW2     .   bw4     f5  BW3     .   bw5     BW4     .   .   .   .   BW5     .   .   .   .
        3 .   .   .   F0  F1  .   .   f0  bw0     F2  .   .   f1  bw1     F3  BW0     f2  bw2     F4  BW1     f3  bw3     F5  BW2     f4  bw4     BW3     .   f5  bw5     BW4     .   .   .   .   BW5     .   .   .   .   .   .

    Args:
        profile: re-chunked to `chunks` per device, placement ``loop``.
        microbatches: any number.
        chunks: v; default: the profile's own where it has more than one, else 2.
        recomputed: of how many chunks, from the first on, backwards recompute the activations.
        level: the level at which they do; default: the last of each stage.

    Raises:
        InvalidSchedule: for `recomputed` outside 0 to v, and a level that no stage has.

    Source: Lin et al., ChronosPipe (arXiv 2503.03182). Its abstract says what is sought (activations that live as short as the model lets them, the
    shallow ones recomputed); its body was not available to us, so that the order of the ops and the two figures above are ours.
    Chronos-Offload, of weights and optimizer states, is no part of a schedule here.
    """
    costs = profile.rechunk(default_chunks(profile, chunks))
    shape = costs.shape(microbatches)
    if not 0 <= recomputed <= shape.chunks:
        raise InvalidSchedule(
            f"recomputed: expected a number of chunks from 0 to {shape.chunks}, got {recomputed}"
        )
    forwards, backwards = _slots(costs.devices, shape.chunks)
    units = np.arange(microbatches)
    period = TURN * shape.chunks * units  # of one microbatch after the one before
    tables = []
    for rank, stages in enumerate(map(shape.stages_of, range(costs.devices))):
        slots = [at + rank + period for at in forwards]
        slots += [at + BACK * (costs.devices - 1 - rank) + period for at in backwards]
        table = [rows_of(kind, stage, units) for kind in (F, BW) for stage in stages]
        tables.append(np.concatenate(table)[np.argsort(np.concatenate(slots))])
    schedule = Schedule.from_tables(shape, tables)
    levels = _first(costs, recomputed, level)
    return schedule.replace(recompute=levels_by_stage(shape, levels)) if recomputed else schedule


def _slots(devices: int, chunks: int) -> tuple[list[int], list[int]]:
    """Return the first slot of the forward of each chunk on the first device, and of its backward on the last device.

    A device has a turn of a forward and a backward for each chunk, whose forwards begin at multiples of a turn and whose backwards
    right behind, as seen from the first device. Each chunk begins as soon as the one before it is through and a turn is free.
    """
    forwards = _free_turns(0, devices, chunks)
    over = forwards[-1] + devices  # the last forward has ended
    aligned = over + (devices - over) % TURN  # right behind a forward of the last device
    backwards = _free_turns(aligned, BACK * devices, chunks)  # the last chunk's first
    return forwards, backwards[::-1]


def _free_turns(first: int, through: int, chunks: int) -> list[int]:
    """Return when chunks begin that each take `through` slots: a whole number of turns apart, no two in the same turn of a period."""
    begun = [first]
    while len(begun) < chunks:
        at = begun[-1] + -(-through // TURN) * TURN
        while any((at - one) // TURN % chunks == 0 for one in begun):
            at += TURN
        begun.append(at)
    return begun


def _first(costs: CostProfile, recomputed: int, level: str | None) -> Levels:
    """Return the level of each stage: those of the first chunks are recomputed."""
    own = last_levels(costs) if level is None else everywhere(costs, level)
    return [one if stage < recomputed * costs.devices else None for stage, one in enumerate(own)]
