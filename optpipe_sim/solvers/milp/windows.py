"""Windows: the earliest and latest start of each op in schedules that cost at most an upper bound."""

from __future__ import annotations

from typing import NamedTuple

from ...ops import B, F, O, Op, R
from .sets import KINDS, Sets


class Windows(NamedTuple):
    """Earliest and latest starts in ns. For a transfer, `early` and `late` hold whether or not it
    takes place (if not, O and R are instants between F and B); `sure` holds if it does."""

    early: dict[Op, int]
    late: dict[Op, int]
    sure: dict[Op, tuple[int, int]]
    deadlines: list[int]


def serial_ns(sets: Sets) -> int:
    """Return the time of all ops and messages one after the other. No optimal schedule takes longer, as
    each of its ops starts at 0 or when something that it waits for ends."""
    costs = sets.problem.profile
    latencies = 2 * sum(costs.messages_ns)
    per_microbatch = sum(
        max(sets.durations[kind][s], int(costs.durations_ns[kind, s]))
        for kind in (*KINDS, O, R)
        for s in sets.stages
    )
    return sets.m * (per_microbatch + latencies)


def windows(sets: Sets, upper_ns: int) -> Windows:
    """Compute the windows from data flow and from the other work of the op's device before and after it."""
    masks = {
        (kind, s): sum(1 << sets.bit[op] for op in sets.of(kind, s))
        for s in sets.stages
        for kind in KINDS
    }

    def load(ops: int, d: int) -> int:
        return sum(
            (ops & masks[kind, s]).bit_count() * sets.durations[kind][s]
            for s in sets.stages_of(d)
            for kind in KINDS
        )

    before = dict.fromkeys(sets.ops, 0)
    early = dict.fromkeys(sets.ops, 0)
    first = [0] * len(sets.devices)
    for d in sets.devices:  # a device waits at least for the first microbatch to arrive
        for s in range(sets.first_stage(d)):
            first[d] += sets.durations[F][s] + sets.problem.profile.message_ns(s, s + 1)
    for op in sets.sorted_ops:
        d = sets.place[op.stage]
        early[op] = max(early[op], first[d] + load(before[op], d))
        for later, lag in sets.successors[op]:
            before[later] |= before[op] | (1 << sets.bit[op])
            early[later] = max(early[later], early[op] + lag)
    deadlines = [upper_ns] * len(sets.devices)
    if sets.span:
        horizon = serial_ns(sets)
        deadlines = [first[d] + upper_ns if sets.prompt else horizon for d in sets.devices]
    late: dict[Op, int] = {}
    for op in reversed(sets.sorted_ops):
        d = sets.place[op.stage]
        rest = (sets.dur(op) if op.kind in KINDS else 0) + load(sets.after[op], d)
        late[op] = min([deadlines[d] - rest, *(late[b] - lag for b, lag in sets.successors[op])])
    if sets.span and sets.prompt:
        for d in sets.devices:
            late[Op(F, sets.first_stage(d), 0)] = first[d]
    sure = {op: (early[op], late[op]) for op in sets.ops}
    for out in sets.offloads:
        forward, back, then = (out._replace(kind=kind) for kind in (F, R, B))
        soon, limit = early[forward] + sets.dur(forward), late[then] - sets.dur(back)
        sure[out] = (soon, limit - sets.dur(out))
        sure[back] = (soon + sets.dur(out), limit)
    return Windows(early, late, sure, deadlines)
