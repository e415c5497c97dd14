"""Configurations: what a device can be at at the same time, within its memory.

At every moment a device is in one *configuration*: its compute stream runs F, B, W or BW of one of its
stages or nothing, its O engine moves an activation of some stage or none, and so its R
engine. All that runs holds memory (F, B, BW, O and R their act_bytes, W its w_bytes, each
of another microbatch), so not all configurations are possible, and each leaves some *room* for activations
that only wait. Room counts in whole activations: the largest sum of act_bytes (and of what cannot
be moved) that fits beside what runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..stage_cost import StageCost
from .device import OneDevice
from .linear import Linear

NOTHING = ("", 0)
Part = tuple[str, int]


@dataclass(frozen=True)
class Configuration:
    """What runs at the same time, as (kind, stage index), and the bytes left for what waits."""

    parts: tuple[Part, ...]
    room: int

    def has(self, kind: str, s: int) -> bool:
        return (kind, s) in self.parts


def configurations(device: OneDevice) -> Iterator[Configuration]:
    """Those that fit into the device's memory."""
    stages = range(len(device.stages))
    copies = [s for s in stages if device.offloads and device.costs[s].offloadable]
    rest = [cost.act_bytes - cost.offloadable for cost in device.costs]
    sizes = {cost.act_bytes for cost in device.costs} | {rest[s] for s in copies}
    computes = [NOTHING, *((kind, s) for s in stages for kind in ("F", "B", "W", "BW"))]
    for compute in computes:
        for out in [NOTHING, *(("O", s) for s in copies)]:
            for back in [NOTHING, *(("R", s) for s in copies)]:
                if device.exclusive and out[0] and back[0]:
                    continue
                parts = tuple(part for part in (compute, out, back) if part[0])
                room = device.capacity - sum(_held(device, part) for part in parts)
                if room >= 0:
                    yield Configuration(parts, _reach(sizes, room))


def _held(device: OneDevice, part: Part) -> int:
    cost = device.costs[part[1]]
    return cost.w_bytes if part[0] == "W" else cost.act_bytes


def lasts_ns(cost: StageCost, kind: str) -> int:
    return {
        "F": cost.t_f_ns,
        "B": cost.t_b_ns,
        "W": cost.t_w_ns,
        "BW": cost.fused_ns,
        "O": cost.t_offload_ns or 0,
        "R": cost.t_reload_ns or 0,
    }[kind]


def _reach(sizes: Iterable[int], room: int) -> int:
    """The largest sum of sizes (each as often as wanted) within `room`; or `room`, where that would be
    long to find out."""
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
    """The rows of ops and of waiting; `uses`: configurations and the variables of their times.

    `coming` microbatches per stage with all their ops, `hosted` whose activation is on the host
    already; `waiting`: see `waits`. Six rows per stage (F, B, W, BW, O, R), then the row of waiting. Returns, per stage, the
    variable of how many are offloaded.
    """
    held, gone = 0, []
    room = [(variable, one.room) for one, variable in uses]
    both = coming + hosted
    for s, cost in enumerate(device.costs):
        moves = model.variable(coming if device.offloads and cost.offloadable else 0)
        fused = model.variable(both if cost.fused_ns < cost.t_b_ns + cost.t_w_ns else 0)
        gone.append(moves)
        for kind, count, variable, each in (
            ("F", coming, fused, 0),
            ("B", both, fused, 1),
            ("W", both, fused, 1),
            ("BW", 0, fused, -1),
            ("O", 0, moves, -1),
            ("R", hosted, moves, -1),
        ):
            lasts = lasts_ns(cost, kind)
            terms = [(used, 1) for one, used in uses if (kind, s) in one.parts]
            model.at_least([*terms, (variable, each * lasts)], count * lasts)
        stays, leaves = waiting[s]
        held += coming * stays
        room.append((moves, stays - leaves))
    model.at_least(room, held)
    return gone


def waits(device: OneDevice, s: int) -> tuple[int, int]:
    """The byte-ns that an activation waits for its backward at least: if it stays, and if it is
    offloaded (beside O and R)."""
    cost, delay = device.costs[s], device.delay[s]
    copies = lasts_ns(cost, "O") + lasts_ns(cost, "R")
    rest = cost.act_bytes - cost.offloadable
    stays = delay * cost.act_bytes
    return stays, min(stays, rest * max(0, delay - copies))


def empty(device: OneDevice) -> int:
    """Byte-ns of room that nothing can fill: while the j-th F runs, or the j-th backward but the last
    ones (the last itself aside), there are no more than j activations on the device."""
    act = max(cost.act_bytes for cost in device.costs)
    if not act:
        return 0
    total = 0
    for kinds, first in ((("F",), 1), (("B", "BW"), 2)):
        lasts = min(lasts_ns(cost, kind) for cost in device.costs for kind in kinds)
        least = min(
            one.room + sum(device.costs[i].act_bytes for _, i in one.parts)
            for one in configurations(device)
            if any(kind in kinds for kind, _ in one.parts)
        )
        for count in range(first, device.microbatches * len(device.stages) + 1):
            total += max(0, least - count * act) * lasts
    return total
