"""The ends of a device's work: what it idles before its first backward and after its last forward.

The proofs are in `bounds.fill_and_drain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..profile import CostProfile
from ..stage_cost import StageCost
from .chains import back_ns, knapsack


def waits_of_one(
    profile: CostProfile, s: int, microbatches: int, capacity: int, head: int, first_back: int
) -> list[int]:
    """t - x of `fill_and_drain` for a device with one stage, for n = 1, 2 ... forwards before the first
    backward, as many as memory admits."""
    cost = profile.stages[s]
    moved = cost.offloadable if profile.offload else 0
    forwards, offloads = [0], [0]  # ends of the n-th F and O, counted from the first F's start
    waits: list[int] = []
    for n in range(1, microbatches + 1):
        start = forwards[-1]
        over = n * cost.act_bytes - capacity
        if over > 0:
            needed = -(-over // moved) if moved else n
            if needed >= n:
                break  # it waits for a B
            while len(offloads) <= needed:
                at = len(offloads)
                offloads.append(max(offloads[-1], forwards[at]) + (cost.t_offload_ns or 0))
            start = max(start, offloads[needed])
        forwards.append(start + cost.t_f_ns)
        waits.append(max(first_back, head + forwards[-1]) - n * cost.t_f_ns)
    return waits


def wait_of_many(
    profile: CostProfile,
    stages: Sequence[int],
    microbatches: int,
    capacity: int,
    head: int,
    first_back: int,
) -> int:
    """t - x of `fill_and_drain` for a device with several stages."""
    costs = [profile.stages[s] for s in stages]
    filled = first_back - head
    if profile.offload:
        moves = [
            (cost.offloadable * microbatches, (cost.t_offload_ns or 0) * microbatches)
            for cost in costs
        ]
        capacity += knapsack(moves, max(0, filled - costs[0].t_f_ns))
    forwards = [(cost.t_f_ns * microbatches, cost.act_bytes * microbatches) for cost in costs]
    return first_back - min(filled, knapsack(forwards, capacity))


class LastForward(NamedTuple):
    """What a device idles at least after the end of its last forward, in ns.

    `before` that microbatch's backward can start, whatever its backwards take; and `in_all`, until the
    makespan, less what it works beyond m times its least work (B and W where BW is shorter)."""

    before: int
    in_all: int


def after_last_forward(
    cost: StageCost,
    microbatches: int,
    capacity: int,
    delay: int,
    tail: int,
    pending: int,
    moved: int,
) -> LastForward:
    """The idle time after the last forward of a device with one stage.

    Args:
        capacity: bytes for activations. `moved`: bytes of one that can go to the host.
        delay: ns from the end of a forward to the start of its backward, at least.
        tail: ns from the end of the last backward to the makespan, at least.
        pending: ns of W's after the last backward, at most.
    """
    if capacity < cost.act_bytes:
        return LastForward(0, 0)
    split = cost.t_b_ns + cost.t_w_ns
    least, most = min(split, cost.fused_ns), max(split, cost.fused_ns)

    def work(window: int, each: int) -> int:
        """What the others' backwards can last within so long a time, if one lasts as given."""
        held = _held_work(cost, microbatches - 1, capacity - cost.act_bytes, each)
        if not moved:
            return held
        starts = (
            cost.t_f_ns + window - n * (cost.t_reload_ns or 0) for n in range(1, microbatches)
        )
        return held + sum(min(each, max(0, start)) for start in starts)

    before = max(0, delay - work(delay, least)) + max(0, tail - pending)
    window = delay + back_ns(cost) + tail
    return LastForward(
        max(0, delay - work(delay, most)), max(before, window - work(window, least) - least)
    )


def _held_work(cost: StageCost, others: int, room: int, each: int) -> int:
    """What the backwards (each so long) and pending W's of other microbatches last that fit."""
    stay = min(others, room // cost.act_bytes) if cost.act_bytes else others
    best = 0
    for count in range(stay + 1):
        weights = others - count
        if cost.w_bytes:
            weights = min(weights, (room - count * cost.act_bytes) // cost.w_bytes)
        best = max(best, count * each + weights * cost.t_w_ns)
    return best
