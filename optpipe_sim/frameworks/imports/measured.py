"""From the records of all ranks to a schedule, a measured trace, and a profile of the ops' costs."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np

from ...errors import InvalidSchedule, OptPipeError
from ...ops import BW, B, F, W
from ...profile import CostProfile
from ...schedule import Schedule, Shape, validate
from ...sim import simulate
from ...sim.lower import lower
from ...stage_cost import StageCost
from ...trace import Trace
from .gaps import Gaps, gaps
from .idle import idle_of_run
from .iterations import Times, by_rank, iterations_of, length, moved, shape_of, shifts_of, together
from .kineto import RankTrace

_NO_MEMORY = "not in every trace; record with profile_memory=True"


@dataclass(frozen=True)
class Measured:
    """A real run, imported.

    Attributes:
        trace: the iteration of median time, from its first op on; its profile is `profile` without
            the host's overhead, so that its waits are those of the run.
        profile: durations of ops as a replay needs them, including the host's overhead between ops:
            means over the half of the iterations whose time is nearest the median.
        iterations_ns: the time of each iteration. `mean_ns`: the mean of those that `profile` is of.
        gaps: between ops: the host's overhead, which is part of every duration of `profile`, and the time
            of a message.
        shifted_ns: by rank, the shift of its clock, so that no message arrives before it is sent.
        unread: a sentence for each part of the files that was not imported.
    """

    trace: Trace
    profile: CostProfile
    iterations_ns: tuple[int, ...]
    mean_ns: int
    gaps: Gaps
    shifted_ns: tuple[int, ...]
    unread: tuple[str, ...]

    @property
    def replay(self) -> Trace:
        """Replay the same order with the profile."""
        return simulate(self.trace.schedule, self.profile, enforce=False)

    @property
    def replay_of_ops(self) -> Trace:
        """Replay the same order with the duration that each op had in the iteration of `trace`.

        Its distance from the run is that of the host's overhead and of messages from their means; the
        distance between the two replays comes from ops that took longer or shorter than their mean,
        as where there are more ranks than cores.
        """
        schedule = self.trace.schedule
        late = [self.gaps.before(op.stage, op.kind) for ops in schedule.flat_programs for op in ops]
        begins = self.trace.start_ns == 0  # with this op the iteration began
        own = self.trace.end_ns - self.trace.start_ns + np.where(begins, 0, late)
        free = replace(self.trace.profile, memory_limit=None)
        return lower(schedule, free).replay(own)

    def to_json(self) -> dict[str, Any]:
        makespan, replayed = self.trace.makespan_ns, self.replay.makespan_ns
        own = self.replay_of_ops.makespan_ns
        return {
            "iterations_ns": list(self.iterations_ns),
            "makespan_ns": makespan,
            "mean_ns": self.mean_ns,
            "replay_ns": replayed,
            "replay_off": round(replayed / self.mean_ns - 1, 6),
            "replay_of_ops_ns": own,
            "replay_of_ops_off": round(own / makespan - 1, 6),
            "idle_by_device_ns": idle_of_run(self.trace),
            "late_ns": self.gaps.mean,
            "shifted_ns": list(self.shifted_ns),
            "unread": list(self.unread),
        }


def read_run(traces: Sequence[RankTrace], name: str = "measured") -> Measured:
    """Read the run from its files, one per rank.

    Raises:
        OptPipeError: one line that says which rank or which op is missing or present twice.
    """
    ranks = by_rank(traces)
    shape = shape_of(ranks)
    iterations = iterations_of(ranks)
    count = len(iterations)
    shifts = shifts_of(shape, iterations)
    iterations = [
        [moved(times, by) for times, by in zip(one, shifts, strict=True)] for one in iterations
    ]
    ranks = [
        replace(one, memory=[(time + by, held) for time, held in one.memory])
        for one, by in zip(ranks, shifts, strict=True)
    ]
    lengths = [length(one) for one in iterations]
    # The first one warms up, and a checkpoint or another process makes some long: half of them count.
    steady = sorted(range(1, count) if count > 1 else range(count), key=lambda at: lengths[at])
    middle = steady[(len(steady) - 1) // 2]
    near = sorted(steady, key=lambda at: abs(lengths[at] - lengths[middle]))
    schedule = _schedule(shape, iterations[middle], name)
    kept = [iterations[at] for at in near[: (len(near) + 1) // 2]]
    between = gaps(shape, kept)
    plain = _profile(shape, kept, ranks, between.message_ns, name)
    profile = plain.map_stages(lambda stage, cost: _delayed(stage, cost, between))
    return Measured(
        _trace(schedule, plain, iterations[middle]),
        replace(profile, meta=_meta(ranks, count, between.mean)),
        tuple(lengths),
        round(fmean(map(length, kept))),
        between,
        tuple(shifts),
        tuple(_unread(ranks, iterations)),
    )


# -- schedule, trace and profile ------------------------------------------------------------------


def _schedule(shape: Shape, iteration: Sequence[Times], name: str) -> Schedule:
    programs = [sorted(times, key=lambda op: times[op][0]) for times in iteration]
    schedule = Schedule(shape, programs, meta={"name": name})
    try:
        validate(schedule)
    except InvalidSchedule as error:
        raise OptPipeError(f"the files do not hold a whole iteration: {error}") from None
    return schedule


def _trace(schedule: Schedule, profile: CostProfile, iteration: Sequence[Times]) -> Trace:
    times = {op: when for part in iteration for op, when in part.items()}
    zero = min(start for start, _ in times.values())
    rows = [times[op] for program in schedule.flat_programs for op in program]
    start, end = (np.array(rows, np.int64) - zero).T
    return Trace(
        schedule, profile.for_shape(schedule.shape), start.copy(), end.copy(), start.copy()
    )


def _profile(
    shape: Shape,
    iterations: Sequence[Sequence[Times]],
    ranks: Sequence[RankTrace],
    message_ns: int,
    name: str,
) -> CostProfile:
    lasted: dict[tuple[int, Any], list[int]] = defaultdict(list)
    for iteration in iterations:
        for times in iteration:
            for op, (start, end) in times.items():
                lasted[op.stage, op.kind].append(end - start)
    held = _held(shape, iterations, ranks)
    stages = []
    for stage in range(shape.stages):
        mean = {
            kind: max(1, round(fmean(lasted[stage, kind])))
            for kind in (F, B, W, BW)
            if (stage, kind) in lasted
        }
        costs: dict[str, Any] = {"t_f_ns": mean[F]}
        if B in mean:
            costs |= {"t_b_ns": mean[B], "t_w_ns": mean[W], "t_bw_ns": mean.get(BW)}
        else:
            costs |= {"t_b_ns": mean[BW], "t_w_ns": 0, "splits": False}
        act, w, static = held.get(stage, (0, 0, 0))
        costs |= {"act_bytes": act, "static_bytes": static}
        if costs.get("splits", True):
            costs["w_bytes"] = min(w, act)
        stages.append(StageCost(**costs))
    return CostProfile(
        name,
        shape.devices,
        tuple(stages),
        shape.chunks,
        shape.placement,
        occupancy_ns=message_ns,
        memory_unknown="" if all(one.memory for one in ranks) else _NO_MEMORY,
    )


def _delayed(stage: int, cost: StageCost, between: Gaps) -> StageCost:
    """Return a stage whose ops include the host's delay before them."""
    f, b, w, bw = (between.before(stage, kind) for kind in (F, B, W, BW))
    if not cost.splits:
        return replace(cost, t_f_ns=cost.t_f_ns + f, t_b_ns=cost.t_b_ns + bw)
    return replace(
        cost,
        t_f_ns=cost.t_f_ns + f,
        t_b_ns=cost.t_b_ns + b,
        t_w_ns=cost.t_w_ns + w,
        t_bw_ns=None if cost.t_bw_ns is None else cost.t_bw_ns + bw,
    )


def _held(
    shape: Shape, iterations: Sequence[Sequence[Times]], ranks: Sequence[RankTrace]
) -> dict[int, tuple[int, int, int]]:
    """Return, by stage, from changes of the allocator: the bytes that an F leaves, the bytes that a
    W releases, and, on the first stage of each device, the bytes before the first op."""
    found: dict[int, tuple[int, int, int]] = {}
    for rank, trace in enumerate(ranks):
        if not trace.memory:
            continue
        instants, totals = zip(*trace.memory, strict=True)

        def at(
            time: int, instants: Sequence[int] = instants, totals: Sequence[int] = totals
        ) -> int:
            before = bisect_right(instants, time) - 1
            return int(totals[max(before, 0)])

        changes: dict[tuple[int, Any], list[int]] = defaultdict(list)
        for iteration in iterations:
            for op, (start, end) in iteration[rank].items():
                changes[op.stage, op.kind].append(at(end) - at(start))
        static = at(min(start for start, _ in iterations[0][rank].values()))
        for stage in shape.stages_of(rank):
            act = max(0, round(median(changes[stage, F])))
            w = max(0, -round(median(changes.get((stage, W), [0]))))
            found[stage] = act, w, max(0, static) if stage == shape.stages_of(rank)[0] else 0
    return found


def _meta(ranks: Sequence[RankTrace], count: int, late: int) -> dict[str, Any]:
    return {
        "source": f"optpipe-sim import: {len(ranks)} Kineto traces, {count} iterations",
        "provenance": {
            "t_f, t_b, t_w": f"measured: means, {late} ns of the host's time between ops included",
            "t_comm": "measured: the mean of those that delayed their receiver",
            "act, w, static": "measured: changes of the allocator"
            if any(one.memory for one in ranks)
            else "not in the traces",
        },
    }


def _unread(ranks: Sequence[RankTrace], iterations: Sequence[Sequence[Times]]) -> list[str]:
    notes = []
    if not all(one.memory for one in ranks):
        notes.append(f"memory: {_NO_MEMORY}")
    other = sum((one.unread for one in ranks), Counter())
    if other:
        kinds = ", ".join(f"{kind} ({number})" for kind, number in sorted(other.items()))
        notes.append(f"ranges without an op here: {kinds}")
    notes += together(ranks)
    for rank, trace in enumerate(ranks):
        if trace.outside > 0.05:
            notes.append(
                f"rank {rank}: {trace.outside:.0%} of the kernels' time is in no op's range; run backwards"
                " with torch.autograd.set_multithreading_enabled(False), so that they are in theirs"
            )
    world = max((one.world or 0 for one in ranks), default=0)
    if world > len(ranks):
        notes.append(
            f"ranks: {world - len(ranks)} of the run's {world}; the others are one pipeline"
        )
    more = sum(len(one.ranges) for one in ranks) - sum(
        map(len, (t for one in iterations for t in one))
    )
    if more:
        notes.append(f"{more} ops of iterations that are not whole")
    notes.append("recomputation, offloads and limits: a trace does not distinguish them from ops")
    return notes
