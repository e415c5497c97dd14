"""What is to be solved, and how a solution becomes a schedule that anyone can replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..errors import Deadlock, OptPipeError, OutOfMemory
from ..ops import COMPUTE, Op, R
from ..profile import CostProfile
from ..schedule import Schedule, Shape
from ..sim import require_limit, simulate
from ..sim.links import link_keys
from ..trace import OBJECTIVES, Trace
from ..units import format_size


@dataclass(frozen=True)
class Problem:
    """Order m microbatches on a profile, under a memory limit, for the least cost.

    Attributes:
        profile: with the chunks and the placement that solutions are to have.
        microbatches: m.
        limits: bytes per device, or None.
        objective: ``flush`` (the makespan) or ``span`` (the longest device span).
    """

    profile: CostProfile
    microbatches: int
    limits: tuple[int, ...] | None = None
    objective: str = "flush"

    @cached_property
    def shape(self) -> Shape:
        return self.profile.shape(self.microbatches)

    @property
    def may_offload(self) -> bool:
        """Whether an offload can be part of a good solution at all."""
        return self.profile.offload is not None and self.limits is not None

    @cached_property
    def host_limit(self) -> int | None:
        """Pinned host bytes per node; None where they suffice for all activations at once."""
        offload = self.profile.offload
        if offload is None or offload.host_limit_bytes is None:
            return None
        per_node = offload.devices_per_node or self.profile.devices
        sizes = [0] * -(-self.profile.devices // per_node)
        for device, cost in zip(self.profile.placement, self.profile.stages, strict=True):
            sizes[device // per_node] += cost.offloadable
        limit = offload.host_limit_bytes
        return limit if self.microbatches * max(sizes) > limit else None

    def replay(self, schedule: Schedule) -> Trace:
        """The trace of a schedule under the problem's limits.

        Raises:
            OutOfMemory: also where it takes more pinned host memory than there is. The others: see
                `sim.simulate`.
        """
        trace = simulate(
            schedule,
            self.profile,
            self.limits,
            enforce=self.limits is not None,
            objective=self.objective,
            engine="replay",
        )
        if self.host_limit is not None and trace.host_peak_bytes > self.host_limit:
            raise OutOfMemory(
                f"offload.host_limit: {format_size(trace.host_peak_bytes)} of pinned host memory on"
                f" one node, but only {format_size(self.host_limit)} are allowed"
            )
        return trace

    def keeps(self, schedule: Schedule) -> Trace | None:
        """The replay of a schedule under the limits, the host's included; None where it breaks one."""
        try:
            return self.replay(schedule)
        except (Deadlock, OutOfMemory):
            return None


def make_problem(
    profile: CostProfile,
    microbatches: int,
    memory_limit: int | Sequence[int] | None = None,
    objective: str = "flush",
) -> Problem:
    """A problem that has a solution as far as memory goes.

    Raises:
        OutOfMemory: where the limit is below what one microbatch needs; names the least limit.
        OptPipeError: for an unknown objective or a number of microbatches below 1.
    """
    if objective not in OBJECTIVES:
        raise OptPipeError(f"objective: expected flush or span, got {objective!r}")
    limits = profile.limits(memory_limit)
    problem = Problem(profile, microbatches, limits, objective)
    problem.shape  # noqa: B018  (checks m)
    if limits is not None:
        require_limit(profile, limits)
    return problem


def schedule_from_times(problem: Problem, starts_ns: Mapping[Op, int]) -> Schedule:
    """The schedule of a feasible timing: ops by start time, shared links as they were served.

    With plain (latency) links its replay is no later than the timing, op by op, and keeps the
    limit. Where two ops start together the shorter goes first, so that what lasts no time comes
    before what needs it.
    """
    costs = problem.profile
    timed = sorted(
        (start, start + int(costs.durations_ns[op.kind, op.stage]), op.kind, op)
        for op, start in starts_ns.items()
    )
    programs: list[list[Op]] = [[] for _ in range(costs.devices)]
    links: dict[str, list[Op]] = {}
    keys = link_keys(costs)
    for *_, op in timed:
        device = costs.placement[op.stage]
        programs[device].append(op)
        if op.kind not in COMPUTE:
            links.setdefault(keys[2 * device + (op.kind is R)], []).append(op)
    return Schedule(problem.shape, programs, links)
