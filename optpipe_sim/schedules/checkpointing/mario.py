"""Mario: every activation is recomputed by a separate op, in idle time if possible."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...op_costs import op_costs
from ...ops import BW, C, F, Op
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim import simulate
from ...trace import Trace
from ...units import Size
from ..classic import one_f_one_b_of
from ..recompute import Levels, everywhere, last_levels

ROUNDS = 6  # rounds of moving C's into idle time; most of the gain comes from the first two


class _Device(NamedTuple):
    """A device's program. For each op: its duration and the idle time before it (ns); the bytes
    held once it has started, the bytes that it allocates, and the bytes that it releases."""

    ops: list[Op]
    duration_ns: list[int]
    idle_ns: list[int]
    held: list[int]
    allocated: list[int]
    released: list[int]

    def is_due(self, at: int) -> bool:
        """Whether an op is a C whose backward waits for it."""
        op = self.ops[at]
        return (
            op.kind is C and self.ops[at + 1] == op._replace(kind=BW) and self.idle_ns[at + 1] == 0
        )


def mario(
    profile: CostProfile,
    microbatches: int,
    chunks: int | None = None,
    level: str | None = None,
    limit: Size | Sequence[Size] | None = None,
) -> Schedule:
    """Build 1F1B, or interleaved 1F1B on several chunks, with recomputation ops C that run while
    devices would idle.

    Every activation is recomputed by a C right before its backward, which runs while the gradient
    is under way, except those whose backward directly follows their forward. Then, replay by
    replay, C's that delay their backward move into earlier idle time, as long as that keeps the
    limit; and an activation that fits from its forward to its backward is kept whole. Mario also
    moves forwards into idle time; here they keep their places in 1F1B.

    At p = 4, m = 6, cells of 1 and a level that recomputes all in 1, room for three activations::

        0 F0  F1  F2  F3  C0  C1  .   .   .   .   BW0     F4  BW1     F5  C2  BW2     C3  C5  BW3     C4  BW4     BW5
        1 .   F0  F1  F2  C0  C1  C2  .   BW0     F3  BW1     F4  BW2     F5  BW3     C4  C5  BW4     BW5     .   .   .
        2 .   .   F0  F1  C0  C1  BW0     F2  BW1     F3  BW2     F4  BW3     F5  BW4     .   BW5     .   .   .   .   .
        3 .   .   .   F0  BW0     F1  BW1     F2  BW2     F3  BW3     F4  BW4     F5  BW5     .   .   .   .   .   .   .

    Args:
        profile: placed in a loop. Without levels everything is kept.
        microbatches: m, for several chunks a multiple of p.
        chunks: v; default: the profile's own.
        level: the level of recomputation; default: the fastest level that fits; without a limit, or
            if none fits, the last level of each stage. limit: bytes per device, static included;
            None: the profile's own; without one, the peak of the device that holds the most with
            each C right before its backward.

    Raises:
        InvalidSchedule: for a level that no stage has, and as 1F1B raises it.

    Source: Liu et al., Mario (PPoPP 2025): recomputation overlapped with bubbles.
    """
    base = one_f_one_b_of(profile, microbatches, chunks)
    costs = profile.for_shape(base.shape)
    limits = costs.limits(limit, "limit")
    if level is not None:
        return _placed(base, everywhere(costs, level), costs, limits).schedule
    if limits is not None:
        names = costs.level_names
        traces = [_placed(base, everywhere(costs, name), costs, limits) for name in names]
        fitting = [trace for trace in traces if _keeps(trace, limits)]
        if fitting:
            return min(fitting, key=lambda trace: trace.makespan_ns).schedule
    return _placed(base, last_levels(costs), costs, limits).schedule


def _keeps(trace: Trace, limits: Sequence[int]) -> bool:
    return all(peak <= limit for peak, limit in zip(trace.peak_bytes, limits, strict=True))


def _placed(
    base: Schedule, levels: Levels, costs: CostProfile, limits: Sequence[int] | None
) -> Trace:
    """Recompute each stage of `base` at its level, as described for `mario`."""
    best = simulate(_apart(base, levels), costs, enforce=False)
    if limits is None:
        limits = (max(best.peak_bytes),) * costs.devices
    trace = best
    for _ in range(ROUNDS):
        trace = simulate(_filled(trace, limits), costs, enforce=False)
        if trace.makespan_ns >= best.makespan_ns:
            break
        best = trace
    trace = simulate(_kept(best, limits), costs, enforce=False)
    return min(trace, best, key=lambda one: one.makespan_ns)


def _apart(base: Schedule, levels: Levels) -> Schedule:
    """Insert a C before each backward that does not directly follow its forward."""
    recompute, programs = {}, []
    for ops in base.flat_programs:
        program: list[Op] = []
        for op in ops:
            level = levels[op.stage]
            if op.kind is BW and level is not None and program[-1] != op._replace(kind=F):
                recompute[f"{op.stage}.{op.microbatch}"] = level
                program.append(op._replace(kind=C))
            program.append(op)
        programs.append(program)
    return base.replace(programs=programs, recompute=recompute)


def _devices(trace: Trace) -> list[_Device]:
    costs = op_costs(trace.schedule, trace.profile)
    found = []
    for rank, ops in enumerate(trace.schedule.flat_programs):
        rows = slice(*trace.schedule.offsets[rank : rank + 2])
        starts, ends = trace.start_ns[rows].tolist(), trace.end_ns[rows].tolist()
        allocated, released = costs.allocated_bytes[rows], costs.released_bytes[rows]
        held = np.cumsum(allocated - released) + released + trace.profile.static_bytes[rank]
        found.append(
            _Device(
                list(ops),
                costs.duration_ns[rows].tolist(),
                [start - end for start, end in zip(starts, [0, *ends], strict=False)],
                held.tolist(),
                allocated.tolist(),
                released.tolist(),
            )
        )
    return found


def _filled(trace: Trace, limits: Sequence[int]) -> Schedule:
    """Move C's that delay their backward into earlier idle time."""
    programs = [_fill(one, limit) for one, limit in zip(_devices(trace), limits, strict=True)]
    return trace.schedule.replace(programs=programs)


def _fill(device: _Device, limit: int) -> list[Op]:
    """Fill each idle time, from the first on, with the next C's that fit."""
    ops, held = device.ops, np.array(device.held)
    places = {op: at for at, op in enumerate(ops)}
    moved: dict[int, int] = {}  # moves: from index, to before which index
    due = [at for at in range(len(ops)) if device.is_due(at)]
    forward = {at: places[ops[at]._replace(kind=F)] for at in due}
    shortest = min((device.duration_ns[at] for at in due), default=0)
    for gap, idle in enumerate(device.idle_ns):
        if idle < shortest:
            continue
        most, seen = 0, gap  # the most that is held between the gap and the op `seen`
        for at in due[bisect_right(due, gap) :]:
            if at in moved or forward[at] >= gap or device.duration_ns[at] > idle:
                continue
            size = device.allocated[at]
            most, seen = max(most, int(held[seen:at].max())), at
            if most + size > limit:
                break  # so does any later C
            moved[at] = gap
            idle -= device.duration_ns[at]
            most += size
            held[gap:at] += size
            if idle < shortest:
                break
    before: list[list[Op]] = [[] for _ in ops]
    for source, to in moved.items():
        before[to].append(ops[source])
    program: list[Op] = []
    for at, op in enumerate(ops):
        program += before[at]
        if at not in moved:
            program.append(op)
    return program


def _kept(trace: Trace, limits: Sequence[int]) -> Schedule:
    """Keep every activation whole that fits from its forward to its C."""
    recompute, programs = {}, []
    names, table = trace.schedule.levels
    for device, limit in zip(_devices(trace), limits, strict=True):
        held, dropped = list(device.held), set()
        places = {op: at for at, op in enumerate(device.ops)}
        for at, op in enumerate(device.ops):
            if not device.is_due(at):
                continue
            size, begin = device.allocated[at], places[op._replace(kind=F)]
            after = (
                held[begin] - device.released[begin] + size
            )  # its C needs no working memory in addition
            if max([after, *(one + size for one in held[begin + 1 : at])]) <= limit:
                dropped.add(at)
                held[begin:at] = [after, *(one + size for one in held[begin + 1 : at])]
        program = [op for at, op in enumerate(device.ops) if at not in dropped]
        for op in program:
            if op.kind is C:
                level = names[table[op.stage, op.microbatch] - 1]
                recompute[f"{op.stage}.{op.microbatch}"] = level
        programs.append(program)
    return trace.schedule.replace(programs=programs, recompute=recompute)
