"""Configurations: the sets of ops that a device can run concurrently within its memory.

At every moment a device is in one *configuration*: its compute stream runs F, B, W, BW or C of one of its
stages or nothing, its O engine moves an activation of some stage or none, and so does its
R engine. All that runs holds memory (F, B, BW, C, O and R their act_bytes, or what a level of recomputation
keeps and works on, W its w_bytes, each of another microbatch), so not all configurations are possible, and
each leaves some *room* for activations that only wait. Room counts in whole activations: the largest sum
of what activations that wait can hold that fits beside what runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import NamedTuple

from ..op_table import KEEP, apart, inside
from ..ops import OpKind
from .device.problem import OneDevice
from .linear import Linear
from .relief import kept_bytes


class Part(NamedTuple):
    """A running op: its kind, its stage on the device, and the level of recomputation that applies
    to it (from 1; 0: kept whole, or already recomputed by a C)."""

    kind: str
    stage: int
    level: int = 0


NOTHING = Part("", 0)
MANY_SUMS = 5000  # the most configurations that are enumerated with levels of recomputation


@dataclass(frozen=True)
class Configuration:
    """Ops that run at the same time, and the bytes left for waiting activations."""

    parts: tuple[Part, ...]
    room: int


def configurations(device: OneDevice) -> Iterator[Configuration]:
    """Return the configurations that fit the device's memory."""
    stages = range(len(device.stages))
    copies = [s for s in stages if device.offloads and device.costs[s].offloadable]
    sizes = {size for cost in device.costs for size in kept_bytes(cost)}
    for s in copies:
        cost = device.costs[s]
        sizes |= {size - min(size, cost.offloadable) for size in kept_bytes(cost)}
    leveled = any(cost.recompute for cost in device.costs)

    @cache
    def reach(room: int) -> int:
        many = prod(room // size + 1 for size in sizes if size) > MANY_SUMS
        return room if leveled and many else _reach(sizes, room)

    computes = [NOTHING, *(Part(kind, s) for s in stages for kind in ("F", "B", "W", "BW"))]
    levels = {s: range(1, len(device.costs[s].recompute) + 1) for s in stages}
    kinds = ("F", "B", "BW", "C")
    computes += [Part(kind, s, level) for s in stages for level in levels[s] for kind in kinds]
    outs, backs = (
        [
            NOTHING,
            *(Part(kind, s) for s in copies),
            *(Part(kind, s, level) for s in copies for level in levels[s]),
        ]
        for kind in ("O", "R")
    )
    for compute in computes:
        for out in outs:
            for back in backs:
                if device.exclusive and out.kind and back.kind:
                    continue
                parts = tuple(part for part in (compute, out, back) if part.kind)
                room = device.capacity - sum(held_bytes(device, part) for part in parts)
                if room >= 0:
                    yield Configuration(parts, reach(room))


def _entry(part: Part) -> tuple[int, int, int]:
    """Return where an op stands in `OneDevice.table`."""
    treatment = KEEP
    if part.level:
        treatment = apart(part.level) if part.kind == "C" else inside(part.level)
    return OpKind[part.kind], part.stage, treatment


def duration_ns(device: OneDevice, part: Part) -> int:
    """Return the duration of an op."""
    return int(device.table.duration_ns[_entry(part)])


def net_bytes(device: OneDevice, part: Part) -> int:
    """Return the change of a device's held bytes from before an op to after it."""
    at = _entry(part)
    return int(device.table.allocated_bytes[at] - device.table.released_bytes[at])


def held_bytes(device: OneDevice, part: Part) -> int:
    """Return the bytes that a microbatch holds while an op of it runs."""
    cost = device.costs[part.stage]
    keep = kept_bytes(cost)[part.level]
    if part.kind in ("O", "R"):  # what is kept lies on either side of the copy
        return keep
    before = {"F": 0, "W": cost.w_bytes}.get(part.kind, keep)
    return before + int(device.table.allocated_bytes[_entry(part)])


def _reach(sizes: Iterable[int], room: int) -> int:
    """Return the largest sum of sizes (each any number of times) within `room`; or `room` itself,
    if finding it would take long."""
    wanted = [size for size in sizes if 0 < size <= room]
    if not wanted:
        return 0
    if len(wanted) == 1:
        return room // wanted[0] * wanted[0]
    sums = {0}
    for size in wanted:
        sums = {one + n * size for one in sums for n in range((room - one) // size + 1)}
        if len(sums) > 2000:
            return room
    return max(sums)


def add_ops(
    model: Linear,
    device: OneDevice,
    uses: Sequence[tuple[Configuration, int]],
    coming: int,
    hosted: int,
    waiting: Sequence[tuple[int, int]],
) -> list[int]:
    """Add the rows of ops and of waiting; `uses`: configurations and the variables of their times.

    `coming`: microbatches per stage with all ops left to run; `hosted`: those whose activation is
    already on the host; `waiting`: see `waits`. Six rows per stage (F, B, W, BW, O, R), then the row of
    waiting. Returns, per stage, the variable of how many are offloaded.
    """
    held, offload_counts = 0, []
    room = [(variable, one.room) for one, variable in uses]
    both = coming + hosted
    for s, cost in enumerate(device.costs):
        moves = model.variable(coming if device.offloads and cost.offloadable else 0)
        fused = model.variable(both if cost.fused_ns < cost.t_b_ns + cost.t_w_ns else 0)
        offload_counts.append(moves)
        for kind, count, variable, each in (
            ("F", coming, fused, 0),
            ("B", both, fused, 1),
            ("W", both, fused, 1),
            ("BW", 0, fused, -1),
            ("O", 0, moves, -1),
            ("R", hosted, moves, -1),
        ):
            duration = duration_ns(device, Part(kind, s))
            terms = [(used, 1) for one, used in uses if Part(kind, s) in one.parts]
            model.at_least([*terms, (variable, each * duration)], count * duration)
        stays, leaves = waiting[s]
        held += coming * stays
        room.append((moves, stays - leaves))
    model.at_least(room, held)
    return offload_counts


def waits(device: OneDevice, s: int, level: int = 0) -> tuple[int, int]:
    """Return the least byte-ns that an activation holds while it waits for its backward: if it
    stays, and if it is offloaded (without O and R); with the bytes that a level of recomputation
    keeps, recomputed inside."""
    cost, delay = device.costs[s], device.delay[s]
    copies = sum(duration_ns(device, Part(kind, s, level)) for kind in ("O", "R"))
    keep = kept_bytes(cost)[level]
    rest = keep - min(cost.offloadable, keep)
    stays = delay * keep
    return stays, min(stays, rest * max(0, delay - copies))


def empty(device: OneDevice) -> int:
    """Return the byte-ns of room that nothing can fill: while the j-th F runs, or the j-th backward but the last
    ones (the last itself aside), there are no more than j activations on the device."""
    act = max(cost.act_bytes for cost in device.costs)
    if not act:
        return 0
    total, every = 0, list(configurations(device))
    for kinds, first in ((("F",), 1), (("B", "BW"), 2)):
        ops = (Part(kind, s) for s in range(len(device.stages)) for kind in kinds)
        duration = min(duration_ns(device, part) for part in ops)
        least = min(
            one.room + sum(device.costs[part.stage].act_bytes for part in one.parts)
            for one in every
            if any(part.kind in kinds for part in one.parts)
        )
        for count in range(first, device.microbatches * len(device.stages) + 1):
            total += max(0, least - count * act) * duration
    return total
