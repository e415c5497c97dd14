"""The configuration LP: how long a device spends in each combination of what runs at the same time.

At every moment a device is in one *configuration*: its compute stream runs F, B, W or BW of one of its
stages or nothing, its O engine moves an activation of some stage or none, and so its R
engine. All that runs holds memory (F, B, BW, O and R their act_bytes, W its w_bytes, each
of another microbatch), so not all configurations are possible, and each leaves some *room* for activations
that only wait. The time is cut in three: until the first backward starts (only F, O and R run), until the
last one has ended, and the rest (only W's).

Proof. Read off a schedule how long each configuration lasts in each part, how many microbatches of each
stage are offloaded and how many have BW. These numbers satisfy the rows below, so the least T that any
numbers allow is a bound.

- Every kind of op gets its time: m F's, O and R of those offloaded, B and W of those without BW, and BW.
- Waiting: from the end of F to the start of its backward passes at least ``delay``; an activation that
  stays holds act_bytes all the while, an offloaded one what cannot be moved, O and R aside. Summed up
  that is at most the room summed over time. Room counts in whole activations: the largest sum of
  act_bytes (and of what cannot be moved) that fits beside what runs.
- The first part lasts at least until a backward can start. While the first F of it runs there is nothing to
  copy. When its last F starts, the act_bytes of all its F's fit into the capacity and what O's have
  given back.
- T is no less than the head and all three parts, nor than the head, the first two and the tail. The third
  holds no more W's than `OneDevice.after_ns`.
- On a link shared by several devices their transfers take turns, all of them after the earliest first F has
  ended (makespan only: the clocks of spans differ).

The LP is solved in floating point; its dual prices are then rounded and what they prove is worked out in
integers, so that no tolerance of the solver gets into the bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..profile import CostProfile
from ..stage_cost import StageCost
from .device import OneDevice, one_device
from .linear import Linear

NOTHING = ("", 0)
MOST_STAGES = 6  # per device; with more there are thousands of configurations
MANY = 1 << 20
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


def _lasts(cost: StageCost, kind: str) -> int:
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
            lasts = _lasts(cost, kind)
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
    copies = _lasts(cost, "O") + _lasts(cost, "R")
    rest = cost.act_bytes - cost.offloadable
    stays = delay * cost.act_bytes
    return stays, min(stays, rest * max(0, delay - copies))


def _add_device(model: Linear, device: OneDevice) -> list[int]:
    """The rows of one device, its clock and its tail; see the module. Returns what `add_ops` does."""
    every = list(configurations(device))
    fill = [
        (one, model.variable())
        for one in every
        if not any(kind in ("B", "W", "BW") for kind, _ in one.parts)
    ]
    middle = [(one, model.variable()) for one in every]
    drain = [(Configuration((("W", s),), 0), model.variable()) for s in range(len(device.stages))]
    waiting = [waits(device, s) for s in range(len(device.stages))]
    gone = add_ops(model, device, [*fill, *middle, *drain], device.microbatches, 0, waiting)
    head, first_back = int(device.releases[0, 0]), int(device.backs[-1, 0])
    before = [(variable, -1) for _, variable in (*fill, *middle)]
    after = [(variable, -1) for _, variable in drain]
    model.at_least([(0, 1), *before, *after], head)
    model.at_least([(0, 1), *before], head + int(device.tails[0, -1]))
    model.at_least(after, -device.after_ns)
    model.at_least([(variable, 1) for _, variable in fill], first_back - head)
    first = [(variable, 1) for one, variable in fill if one.parts == (("F", 0),)]
    model.at_least(first, device.costs[0].t_f_ns)
    # bytes of the F's and of the O's in the first part, per ns, both rounded to the safe side
    level = []
    for one, variable in fill:
        taken = given = 0
        for kind, s in one.parts:
            cost = device.costs[s]
            if kind == "F":
                taken = cost.act_bytes * MANY // cost.t_f_ns
            elif kind == "O":
                given = -(-cost.offloadable * MANY // max(1, _lasts(cost, "O")))
        level.append((variable, given - taken))
    timeless = any(c.offloadable and not c.t_offload_ns for c in device.costs) and device.offloads
    if not timeless:
        model.at_least(level, -device.capacity * MANY)
    return gone


def configuration_bound(
    profile: CostProfile,
    microbatches: int,
    objective: str = "flush",
    memory_limit: int | Sequence[int] | None = None,
) -> int:
    """The best that the configuration LP proves, in ns; 0 without a limit."""
    limits = profile.limits(memory_limit)
    if limits is None or _widest(profile) > MOST_STAGES:
        return 0
    devices = [
        one_device(profile, microbatches, d, objective, limits) for d in range(profile.devices)
    ]
    if any(not device.possible for device in devices):
        return 0
    alone = objective == "span" or profile.offload is None
    groups = [(d,) for d in range(profile.devices)] if alone else profile.host_links
    best = 0
    for group in groups:
        model = Linear()
        gone = [(devices[d], _add_device(model, devices[d])) for d in group]
        if len(group) > 1:
            _add_link(
                model, gone, profile.offload is not None and profile.offload.host_link == "single"
            )
        best = max(best, model.proven())
    return best


def _widest(profile: CostProfile) -> int:
    return max(profile.placement.count(d) for d in range(profile.devices))


def _add_link(model: Linear, gone: Sequence[tuple[OneDevice, list[int]]], single: bool) -> None:
    """The transfers of a link's devices take turns after the first F of them has ended."""
    start = min(int(one.releases[0, 0]) + one.costs[0].t_f_ns for one, _ in gone)
    for kinds in (("O", "R"),) if single else (("O",), ("R",)):
        taken = [
            (moves, -sum(_lasts(cost, kind) for kind in kinds))
            for one, variables in gone
            for cost, moves in zip(one.costs, variables, strict=True)
        ]
        model.at_least([(0, 1), *taken], start)
