"""The problem that engines solve, and how a solution becomes a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..bounds.bounds import Bound, lower_bound
from ..errors import Deadlock, OptPipeError, OutOfMemory
from ..op_costs import op_costs
from ..ops import COMPUTE, Op, Pair, R
from ..profile import CostProfile
from ..schedule import Levels, Schedule, Shape
from ..schedule.fused import fuse
from ..sim import require_limit, simulate
from ..sim.host_links import link_keys
from ..trace import OBJECTIVES, Trace
from ..units import Size, format_size
from .treatments import require_alike, restrict, treatments_of

REPLAY_S = 2e-6  # per compute op, with the checks and measures (128 devices, 1024 microbatches)


@dataclass(frozen=True)
class Problem:
    """Schedule m microbatches on a profile, under a memory limit, at the least cost.

    Attributes:
        profile: with the chunks and the placement of the solutions.
        microbatches: m.
        limits: bytes per device, or None.
        objective: ``flush`` (the makespan) or ``span`` (the longest device span).
        per_stage: all microbatches of a stage must have the same treatment.
        without_pairs: a forward and a backward could run as one op, but no solution has that, and bounds are
            of such schedules.
    """

    profile: CostProfile
    microbatches: int
    limits: tuple[int, ...] | None = None
    objective: str = "flush"
    per_stage: bool = False
    without_pairs: bool = False

    @cached_property
    def treatments(self) -> frozenset[str]:
        """The treatments that the profile has costs for (see `optpipe_sim.solvers.treatments`)."""
        return treatments_of(self.profile)

    @property
    def may_recompute(self) -> bool:
        """Whether recomputing can be part of a good solution at all."""
        return "recompute" in self.treatments and self.limits is not None

    @property
    def may_pair(self) -> bool:
        """Whether a forward and a backward may run as one op: pairs hide something."""
        return bool(np.any(self.profile.pair_hidden))

    @property
    def decides(self) -> bool:
        """Whether what fits plain microbatches, offloaded whole or not, does not do: activations may be
        recomputed, ops may be pairs, sequences are cut into slices, or microbatches differ."""
        several = self.may_recompute or self.may_pair or self.shape.slices > 1
        return several or not self.profile.alike

    @cached_property
    def shape(self) -> Shape:
        return self.profile.shape(self.microbatches)

    @cached_property
    def lower_bound(self) -> Bound:
        """The best closed-form bound."""
        return lower_bound(
            self.profile, self.microbatches, self.objective, self.limits, self.may_pair
        )

    @property
    def may_offload(self) -> bool:
        """Whether an offload can be part of a good solution at all."""
        return self.profile.offload is not None and self.limits is not None

    @cached_property
    def host_limit(self) -> int | None:
        """Pinned host bytes per node; None if they suffice for all activations at once."""
        offload = self.profile.offload
        limit = None if offload is None else offload.pinned_limit_bytes
        if limit is None:
            return None
        per_node = self.profile.devices_per_node
        sizes = [0] * self.profile.nodes
        for device, cost in zip(self.profile.placement, self.profile.stages, strict=True):
            sizes[device // per_node] += cost.offloadable
        most = sum(size for _, size in self.profile.factors) or self.microbatches
        return limit if most * max(sizes) > limit else None

    @property
    def replay_s(self) -> float:
        """About how long a replay takes, in s: what ends in one has to leave time for it."""
        return REPLAY_S * 3 * self.shape.activations

    def replay(self, schedule: Schedule) -> Trace:
        """Replay a schedule under the problem's limits. Backwards are fused on stages that do not
        split them, so the trace's own `schedule` is the one to use afterwards.

        Raises:
            OutOfMemory: also if it needs more pinned host memory than the limit allows.
            InvalidSchedule: also if activations of a stage have different treatments despite
                `per_stage`. The others: see `sim.simulate`.
        """
        if self.per_stage:
            require_alike(schedule)
        trace = simulate(
            fuse(schedule, self.profile),
            self.profile,
            self.limits,
            enforce=self.limits is not None,
            objective=self.objective,
        )
        if self.host_limit is not None and trace.host_peak_bytes > self.host_limit:
            assert self.profile.offload is not None
            key = "nvme.staging" if self.profile.offload.writes_behind else "host_limit"
            raise OutOfMemory(
                f"offload.{key}: {format_size(trace.host_peak_bytes)} of pinned host memory on"
                f" one node, but only {format_size(self.host_limit)} are allowed"
            )
        return trace

    def keeps(self, schedule: Schedule) -> Trace | None:
        """Replay a schedule under the limits, the host's included; None if it breaks one of them."""
        try:
            return self.replay(schedule)
        except (Deadlock, OutOfMemory):
            return None


def make_problem(
    profile: CostProfile,
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None = None,
    objective: str | None = None,
    *,
    treatments: Iterable[str] | None = None,
    per_stage: bool = False,
    pairs: bool | None = None,
) -> Problem:
    """Make a problem whose memory limits admit a solution, with the costs of the profile's execution.

    Args:
        objective: ``flush`` or ``span``; None: what an iteration takes under the execution.
        treatments: the allowed treatments of an activation, out of ``keep, offload, recompute``;
            None: all that the profile has. The others are removed from the problem's profile.
        per_stage: all microbatches of a stage must have the same treatment.
        pairs: whether a forward and a backward may run as one op; None: where the execution has that,
            or, where it is ideal, where the profile says what pairs hide. Where not, the problem's
            profile has no `pair_hidden`.

    Raises:
        OutOfMemory: if the limit is below what one microbatch needs; names the least limit.
        OptPipeError: for an unknown objective or treatment, or a number of microbatches below 1.
    """
    profile = restrict(profile, treatments)
    splits = any(cost.splits for cost in profile.stages)
    objective = objective or profile.objective
    without_pairs = leaves_pairs_out(profile, pairs)
    profile = profile.issued(splits)
    if without_pairs:
        profile = replace(profile, pair_hidden=0)
    if objective not in OBJECTIVES:
        raise OptPipeError(f"objective: expected flush or span, got {objective!r}")
    profile.require_microbatches(microbatches)
    limits = profile.limits(memory_limit)
    problem = Problem(profile, microbatches, limits, objective, per_stage, without_pairs)
    problem.shape  # noqa: B018  (checks m)
    if limits is not None:
        require_limit(profile, limits)
    return problem


def leaves_pairs_out(profile: CostProfile, pairs: bool | None) -> bool:
    """Return whether pairs of a profile hide something that plans may not use; `pairs`: see `make_problem`."""
    if pairs is None:
        pairs = profile.may_pair(any(cost.splits for cost in profile.stages))
    return not pairs and bool(np.any(profile.pair_hidden))


def in_order_of_time(trace: Trace) -> Schedule:
    """Return the schedule with each device's ops in the order in which they started; its replay is no later."""
    schedule = trace.schedule
    order = np.lexsort((np.arange(len(schedule)), trace.start_ns, schedule.devices))
    return schedule.replace(table=schedule.table[order], paired=schedule.paired[order])


def schedule_from_times(
    problem: Problem,
    starts_ns: Mapping[Op, int],
    recompute: Levels | None = None,
    pairs: Mapping[Op, Op] | None = None,
) -> Schedule:
    """Make the schedule of a feasible timing: ops in order of start time, shared links in the order
    of service.

    With plain (latency) links its replay is no later than the timing, op by op, and keeps the limit. Of
    two ops that start together the shorter goes first, so that an op of zero duration precedes the ops
    that depend on it. `recompute`: the levels of recomputation, if any; `pairs`: the backward of each
    forward that is one op with it.
    """
    pairs = pairs or {}
    behind = set(pairs.values())
    costs, place = problem.profile, problem.profile.placement
    programs: list[list[Op]] = [[] for _ in range(costs.devices)]
    for op in starts_ns:
        programs[place[op.stage]].append(op)
    unsorted = Schedule(problem.shape, programs, recompute=recompute)
    durations = op_costs(unsorted, costs).duration_ns.tolist()
    timed = sorted(
        (starts_ns[op], starts_ns[op] + duration, op.kind, op)
        for op, duration in zip((op for ops in programs for op in ops), durations, strict=True)
    )
    entries: list[list[Op | Pair]] = [[] for _ in range(costs.devices)]
    links: dict[str, list[Op]] = {}
    keys = link_keys(costs)
    for *_, op in timed:
        device = place[op.stage]
        if op not in behind:
            entries[device].append(Pair(op, pairs[op]) if op in pairs else op)
        if op.kind not in COMPUTE:
            links.setdefault(keys[2 * device + (op.kind is R)], []).append(op)
    return Schedule(problem.shape, entries, links, recompute=recompute)
