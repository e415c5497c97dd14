"""The time that a device loses before its first backward and after its last forward.

Where a stage has levels of recomputation, time is lost to waiting or to recomputing; each bound here
says which of the two it counts. The proofs are in `bounds.fill_and_drain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from ..ops import O
from ..profile import CostProfile
from ..stage_cost import StageCost
from .chains import Drain, back_ns, knapsack, least_drains
from .relaxed import relaxed_cost
from .relief import copy_rate, least_ns, steps


def waits_of_one(
    profile: CostProfile, s: int, microbatches: int, capacity: int, head: int, first_back: int
) -> list[int]:
    """t - x of `fill_and_drain` for a device with one stage, for n = 1, 2 ... forwards before the first
    backward, as many as memory admits; time to recompute is not counted."""
    cost = relaxed_cost(profile.stages[s])
    moved = cost.offloadable if profile.offload else 0
    forwards, offloads = [0], [0]  # ends of the n-th F and O, counted from the first F's start
    waits: list[int] = []
    for n in range(1, microbatches + 1):
        start = forwards[-1]
        over = n * cost.act_bytes - capacity
        if over > 0:
            needed = -(-over // moved) if moved else n
            if needed >= n:
                break  # it has to wait for a B
            while len(offloads) <= needed:
                at = len(offloads)
                offloads.append(max(offloads[-1], forwards[at]) + (cost.t_offload_ns or 0))
            start = max(start, offloads[needed])
        forwards.append(start + cost.t_f_ns)
        waits.append(max(first_back, head + forwards[-1]) - n * cost.t_f_ns)
    return waits


def relief_of_one(
    profile: CostProfile, s: int, waits: Sequence[int], capacity: int, head: int
) -> list[int]:
    """Return the same `waits`, and the time to recompute what does not fit when the first backward starts."""
    cost = profile.stages[s]
    if not cost.recompute:
        return list(waits)
    rate = copy_rate(cost, O) if profile.offload else Fraction(0)
    relief = steps(cost)
    lost: list[int] = []
    for n, wait in enumerate(waits, 1):
        begun = wait + n * cost.t_f_ns - head - cost.t_f_ns  # since the first F has ended
        need = Fraction(n * cost.act_bytes - capacity) - (rate or 0) * max(0, begun)
        more = least_ns(need, [(step, n) for step in relief], rate)
        if more is None:
            break
        lost.append(wait + ceil(more))
    return lost


def wait_of_many(
    profile: CostProfile,
    stages: Sequence[int],
    microbatches: int,
    capacity: int,
    head: int,
    first_back: int,
) -> int:
    """t - x of `fill_and_drain` for a device with several stages, with the time to recompute what does
    not fit when the first backward could start."""
    costs = [profile.stages[s] for s in stages]
    filled = first_back - head
    moved = 0
    rate: Fraction | None = Fraction(0)
    copying = max(0, filled - costs[0].t_f_ns)
    if profile.offload:
        moves = [
            (cost.offloadable * microbatches, (cost.t_offload_ns or 0) * microbatches)
            for cost in costs
        ]
        moved = knapsack(moves, copying)
        rate = copy_rate(costs[0], O)
    forwards = [item for cost in costs for item in _forwards(cost, microbatches)]
    most = knapsack(forwards, capacity + moved)
    if rate is not None and all(_alike(cost, costs[0]) for cost in costs):
        room = capacity + int(rate * copying)
        most = min(most, _whole_forwards(costs[0], microbatches * len(stages), room))
    return first_back - min(filled, most)


def _alike(cost: StageCost, other: StageCost) -> bool:
    """Whether the activations of two stages are alike up to the first backward."""
    return all(
        getattr(cost, name) == getattr(other, name)
        for name in ("t_f_ns", "act_bytes", "offloadable", "t_offload_ns", "recompute")
    )


def _whole_forwards(cost: StageCost, count: int, room: int) -> int:
    """Return the most F time, less the time to recompute, of `count` activations of one size at most,
    each of which is there in one piece.

    Proof. When the last op before the first backward that allocates starts, an F or a C, its activation
    holds ``cost.least_running_bytes`` at least; let it count as F with no time to recompute. Any other
    at level l keeps w and is worth v = F - t_l. Let v1 and w1 belong to the level that is worth most per
    byte. One that keeps w >= w1 is worth at most ``v1 + r (w - w1)``, a lighter one at most ``r w``, for
    the least such r, which is at most v1 / w1. So z that keep w1 or more, and others, are worth at most
    ``z v1 + r (room - z w1)``, which grows with z, and z is at most ``room / w1``, rounded down.
    """
    room -= cost.least_running_bytes
    levels = [(cost.t_f_ns, cost.act_bytes)]
    levels += [(cost.t_f_ns - level.t_ns, level.keep_bytes) for level in cost.recompute]
    if room < 0 or not all(size for _, size in levels):
        return cost.t_f_ns * (count if room >= 0 else 1)
    worth, size = max(levels, key=lambda level: Fraction(*level))
    rates = [Fraction(v, w) for v, w in levels if w < size]
    rates += [Fraction(v - worth, w - size) for v, w in levels if w > size]
    whole = min(count - 1, room // size)
    rest = max([Fraction(0), *rates]) * (room - whole * size)
    return cost.t_f_ns + min((count - 1) * cost.t_f_ns, whole * worth + int(rest))


def _forwards(cost: StageCost, microbatches: int) -> list[tuple[int, int]]:
    """F time less the time to recompute, and bytes: first with what the most thorough level keeps, then
    what each level less adds to that. Items are in order of falling time per byte."""
    if not cost.recompute:
        return [(cost.t_f_ns * microbatches, cost.act_bytes * microbatches)]
    every = steps(cost)
    size = cost.act_bytes - sum(step.saved_bytes for step in every)
    time = cost.t_f_ns - sum(step.cost_ns for step in every)
    items = [(time, size), *((step.cost_ns, step.saved_bytes) for step in reversed(every))]
    # a first item that is worth less per byte than the next is merged with it
    while len(items) > 1 and items[0][0] * items[1][1] <= items[1][0] * items[0][1]:
        (time, size), (more, bytes_) = items[:2]
        items[:2] = [(time + more, size + bytes_)]
    return [(time * microbatches, size * microbatches) for time, size in items if time > 0]


class LastForward(NamedTuple):
    """The least idle time of a device after the end of its last forward, in ns.

    `before` that microbatch's backward can start, whatever its backwards take; and `in_all`, until the
    makespan, less what it works beyond m times its least work (B and W where BW is shorter). Where
    recomputing fills the time it does not idle: `lost` is what it idles or recomputes in all."""

    before: int
    in_all: int
    lost: int


def after_last_forward(
    cost: StageCost,
    microbatches: int,
    capacity: int,
    delay: int,
    tail: int,
    drains: Sequence[Drain],
    offloads: bool,
) -> LastForward:
    """Return the idle time after the last forward of a device with one stage.

    Args:
        capacity: bytes for activations. `offloads`: whether they can go to the host.
        delay: ns from the end of a forward to the start of its backward, at least.
        tail: ns from the end of the last backward to the makespan, at least.
        drains: see `chains.pending_w_ways`.
    """
    again = max([0, *(level.t_ns for level in cost.recompute)])
    drained, lost = least_drains(tail, drains)
    small = relaxed_cost(cost)
    if capacity < small.act_bytes:
        return LastForward(0, 0, 0)
    split = cost.t_b_ns + cost.t_w_ns
    least, most = min(split, cost.fused_ns), max(split, cost.fused_ns)
    room = capacity - small.act_bytes
    moved = small.offloadable if offloads else 0

    def work(window: int, each: int) -> int:
        """Return the time that the others' backwards can take within a given time, if one takes as long
        as given."""
        held = _held_work(small, microbatches - 1, room, each)
        if not moved:
            return held
        starts = (
            cost.t_f_ns + window - n * (small.t_reload_ns or 0) for n in range(1, microbatches)
        )
        return held + sum(min(each, max(0, start)) for start in starts)

    before = max(0, delay - work(delay, least + again)) + drained
    window = delay + back_ns(cost) + tail
    in_all = max(before, window - work(window, least + again) - least - again)
    if cost.recompute:
        lost += _lost(cost, microbatches - 1, room, delay, 0 if moved else None)
    else:
        lost = in_all
    return LastForward(max(0, delay - work(delay, most + again)), in_all, max(in_all, lost))


def _held_work(cost: StageCost, others: int, room: int, each: int) -> int:
    """Return the total time of the backwards (each as long as given) and pending W's of other
    microbatches that fit."""
    stay = min(others, room // cost.act_bytes) if cost.act_bytes else others
    best = 0
    for count in range(stay + 1):
        weights = others - count
        if cost.w_bytes:
            weights = min(weights, (room - count * cost.act_bytes) // cost.w_bytes)
        best = max(best, count * each + weights * cost.t_w_ns)
    return best


def _lost(cost: StageCost, others: int, room: int, delay: int, reloads: int | None) -> int:
    """Return the least part of `delay` that a device idles or recomputes, if it has `room` for other
    microbatches; 0 where these can come from the host."""
    if reloads is not None:
        return 0
    relief = steps(cost)
    each = cost.work_ns - cost.t_f_ns
    kept = relaxed_cost(cost)
    best = delay
    for count in range(others + 1):
        left = room - count * kept.act_bytes
        if left < 0:
            break
        weights = others - count
        if cost.w_bytes:
            weights = min(weights, left // kept.w_bytes if kept.w_bytes else weights)
        idle = delay - count * each - weights * cost.t_w_ns
        again = least_ns(
            count * cost.act_bytes - room, [(step, count) for step in relief], Fraction(0)
        )
        assert again is not None  # the most thorough level fits
        best = min(best, max(0, idle, ceil(again)))
    return best
