"""Plan with safety margins, and say what each of them costs.

A plan with margins is a plan for the *padded* profile, whose durations and sizes are those of the
profile increased by the margins. A program that does not deadlock with some sizes does not deadlock
with smaller ones, and, unless links are served first come, first served, shorter durations never
make an op start later: each start is a maximum of sums of earlier durations. So as long as reality
stays within the margins, the plan keeps the limit and the iteration takes at most the planned time.

Code that fixes in advance which op waits for which (`sim.lower`, the runtime) keeps the limit if it
does so under a limit that leaves the memory margin free. It also keeps the planned time if it uses
the padded profile; with the profile's own times another release may come first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import ceil
from operator import le
from typing import Any

from ...bounds.bounds import Bound, lower_bound
from ...errors import NoSolution, OutOfMemory
from ...op_costs import op_costs
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim.lower import lower
from ...stage_cost import RecomputeLevel, StageCost
from ...trace import Trace
from ...units import Size
from ..axes import candidate_shapes, problem_of
from ..options import SolveOptions
from ..portfolio import solve_settled
from ..reports import Hooks
from ..result import FEASIBLE, OPTIMAL, SolveResult, save_last
from .shares import ALL, Margins

PLAN, NOMINAL = (
    0.5,
    0.25,
)  # shares of the time: for the plan itself, and for the plan without any margin


def _growth(share: float) -> Fraction:
    """Return 1 + share, as a fraction of the decimals that were written."""
    return 1 + Fraction(str(share))


def _grown(share: float, value: int | None) -> Any:
    """Return a value that is larger by a share, rounded up; None stays None."""
    return None if value is None else ceil(value * _growth(share))


def padded(profile: CostProfile, margins: Margins) -> CostProfile:
    """Return the profile with every duration and size as large as the margins allow, rounded up;
    limits and messages are unchanged. Without a margin, return the profile itself.

    Raises:
        ProfileError: if a padded value is larger than a profile can hold.
    """
    if not margins:
        return profile

    def change(_: int, cost: StageCost) -> StageCost:
        longer, held, copied = (
            partial(_grown, share) for share in (margins.ops, margins.memory, margins.copies)
        )
        act = held(cost.act_bytes) or 0

        def level(old: RecomputeLevel) -> RecomputeLevel:
            return replace(
                old,
                t_ns=longer(old.t_ns),
                keep_bytes=held(old.keep_bytes),
                work_bytes=held(old.work_bytes),
                b_work_bytes=held(old.b_work_bytes),
            )

        return replace(
            cost,
            t_f_ns=longer(cost.t_f_ns),
            t_b_ns=longer(cost.t_b_ns),
            t_w_ns=longer(cost.t_w_ns),
            t_bw_ns=longer(cost.t_bw_ns),
            t_offload_ns=copied(cost.t_offload_ns),
            t_reload_ns=copied(cost.t_reload_ns),
            act_bytes=act,
            w_bytes=held(cost.w_bytes),
            kv_bytes=held(cost.kv_bytes),
            # the part that an offload leaves on the device grows, too
            offload_bytes=act - (held(cost.act_bytes - cost.offloadable) or 0),
            static_bytes=held(cost.static_bytes),
            recompute=tuple(map(level, cost.recompute)),
        )

    return profile.map_stages(change)


def with_room(limits: tuple[int, ...] | None, memory: float) -> tuple[int, ...] | None:
    """Return the limits under which held memory may still grow by that share."""
    return limits and tuple(int(limit / _growth(memory)) for limit in limits)


@dataclass(frozen=True)
class _Question:
    """The arguments of `solve` without the margins."""

    profile: CostProfile
    microbatches: int
    memory_limit: Size | Sequence[Size] | None
    options: SolveOptions

    @property
    def objective(self) -> str:
        """What counts as the time."""
        return self.options.objective or self.profile.objective

    def solve(
        self, margins: Margins, share: float, start: Schedule | str | None, hooks: Hooks
    ) -> SolveResult:
        """Find the best plan with some margins, in a share of the time."""
        options = replace(self.options, margin=None, time_limit=share * self.options.time_limit)
        profile = padded(self.profile, margins)
        return solve_settled(profile, self.microbatches, self.memory_limit, options, start, hooks)

    def replay(self, schedule: Schedule, margins: Margins) -> Trace | None:
        """Replay the schedule with reality off by these margins; None if that breaks the limits."""
        return self._keeps(schedule, padded(self.profile, margins), self.memory_limit)

    def as_profiled(self, schedule: Schedule, memory: float) -> Trace | None:
        """Replay the schedule as profiled, under limits that leave the memory margin free."""
        limits = with_room(self.profile.limits(self.memory_limit), memory)
        return self._keeps(schedule, self.profile, limits)

    def _keeps(
        self, schedule: Schedule, profile: CostProfile, limits: Size | Sequence[Size] | None
    ) -> Trace | None:
        profile = profile.for_shape(schedule.shape)
        try:
            problem = problem_of(profile, self.microbatches, limits, self.options)
        except OutOfMemory:
            return None
        return problem.keeps(schedule)

    def run_off(self, schedule: Schedule, margins: Margins) -> dict[str, Any]:
        """Run a plan that was made without margins with reality off by these margins."""
        lowered = lower(schedule, self.profile, self.profile.limits(self.memory_limit))
        worst = padded(self.profile, margins).for_shape(schedule.shape)
        durations = op_costs(lowered.schedule, worst).duration_ns
        trace = replace(lowered.replay(durations, self.objective), profile=worst)
        limits = lowered.memory_limit or trace.peak_bytes
        fits = all(peak <= most for peak, most in zip(trace.peak_bytes, limits, strict=True))
        return {"fits": fits, "ns": trace.cost_ns if fits else None}

    def best(self, plans: Sequence[Schedule], margins: Margins) -> tuple[int, Schedule]:
        """Return the plan that is fastest with reality off by these margins; of equal ones the first."""
        traces = [(self.replay(plan, margins), plan) for plan in plans]
        return min(
            ((trace.cost_ns, plan) for trace, plan in traces if trace is not None),
            key=lambda pair: pair[0],
        )

    def bound(self) -> Bound:
        """Return the closed-form bound on plans without margins, over all the numbers of chunks that may
        be chosen."""
        shapes = [self.profile]
        if self.options.chunks == "any":
            shapes = candidate_shapes(self.profile)
        found = []
        for shape in shapes:
            limits = shape.limits(self.memory_limit)
            if limits is None or all(map(le, shape.least_limits, limits)):
                goal = self.objective
                pairs = self.options.pairs
                found.append(lower_bound(shape, self.microbatches, goal, limits, pairs))
        return min(found, key=lambda bound: bound.ns)

    def of_shape(self, plan: Schedule) -> _Question:
        """Return the question for the chunks and the placement of one plan alone."""
        options = replace(self.options, chunks="own", placement="own", published=False)
        return replace(self, profile=self.profile.for_shape(plan.shape), options=options)


def solve_with_margins(
    profile: CostProfile,
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
    warm_start: Schedule | str | None,
    hooks: Hooks,
) -> SolveResult:
    """Find the plan that is fastest with reality off by all margins, and what each margin costs.

    The time limit is shared between this plan, the plan without margins and the plans without one
    of them.

    Returns:
        the plan, replayed as profiled under limits that leave the memory margin free (the limits to
        run it under), with a bound on all plans without margins; ``incumbents`` hold planned times.
        ``info["margin"]`` has, in ns, ``planned_ns`` (the time with everything off by its margin;
        ``planned_bound_ns``: its lower bound) and ``nominal_ns`` (as profiled); ``without``: the
        same for the best plan without each one of several margins, with its chunks, and without
        ``all`` of them; ``unguarded``: whether that last plan ``fits`` with everything off by its
        margin, and its time then.

    Raises: as `solve`, for the padded profile.
    """
    margins = options.margin
    assert isinstance(margins, Margins)
    began = time.monotonic()
    question = _Question(profile, microbatches, memory_limit, options)
    names = [name for name, _ in margins.percents()]
    several = len(names) > 1
    try:
        plan = question.solve(margins, PLAN, warm_start, hooks)
    except (OutOfMemory, NoSolution) as error:
        raise type(error)(f"with a margin of {margins}: {error}") from None
    assert plan.schedule is not None
    quiet = Hooks(on_wait=hooks.on_wait)
    others: dict[str, SolveResult] = {}
    interrupted = bool(plan.info["interrupted"])
    share = NOMINAL if several else 1 - PLAN
    # without a margin other shapes may be better; start from the plan if there is one
    start = None if options.chunks == "any" else plan.schedule
    wanted = [(ALL, Margins(), share, question, start)]
    if several:
        share, own = (1 - PLAN - NOMINAL) / len(names), question.of_shape(plan.schedule)
        wanted += [(name, margins.without(name), share, own, plan.schedule) for name in names]
    found = [plan.schedule]
    try:
        for name, less, share, asked, start in wanted:
            if interrupted:
                break
            if start is not None:
                alike = [known for known in found if known.shape == start.shape]
                start = asked.best(alike, less)[1]
            with suppress(OutOfMemory, NoSolution):  # none was found in so little time
                others[name] = asked.solve(less, share, start, quiet)
                found.append(others[name].schedule or plan.schedule)
                interrupted = bool(others[name].info["interrupted"])
    except KeyboardInterrupt:
        interrupted = True
    planned_ns, schedule = question.best(found, margins)
    # divided stages may be a byte larger than their share of the padded stage
    trace = question.as_profiled(schedule, margins.memory) or question.replay(schedule, Margins())
    assert trace is not None  # it keeps the limits with larger margins than these
    failures = dict(plan.info["failures"])
    if hooks.save is not None and schedule is not plan.schedule:
        save_last(schedule, hooks.save, failures)
    nominal = others.get(ALL)
    bound = question.bound()
    if nominal is not None:
        bound = Bound(nominal.lower_bound_ns, nominal.bound_name)
    report = {
        "margins": margins.to_json(),
        "memory_limit_bytes": trace.memory_limit and list(trace.memory_limit),
        "planned_ns": planned_ns,
        "planned_bound_ns": plan.lower_bound_ns,
        "planned_bound": plan.bound_name,
        "nominal_ns": trace.cost_ns,
        **_costs(question, found, margins, list(others)),
    }
    return replace(
        plan,
        status=OPTIMAL if trace.cost_ns <= bound.ns else FEASIBLE,
        schedule=trace.schedule,
        trace=trace,
        lower_bound_ns=bound.ns,
        bound_name=bound.name,
        bounds=() if nominal is None else nominal.bounds,
        seconds=time.monotonic() - began,
        info={
            **plan.info,
            "covers": (nominal or plan).info.get("covers"),
            "failures": failures,
            "interrupted": interrupted,
            "margin": report,
        },
    )


def _costs(
    question: _Question, plans: Sequence[Schedule], margins: Margins, names: Sequence[str]
) -> dict[str, Any]:
    """Return the time of the best of some plans without each margin, and without all of them."""
    without: dict[str, Any] = {}
    unguarded = None
    for name in names:
        less = Margins() if name == ALL else margins.without(name)
        planned_ns, plan = question.best(plans, less)
        trace = question.as_profiled(plan, less.memory)
        without[name] = {"planned_ns": planned_ns, "nominal_ns": trace and trace.cost_ns}
        if name == ALL:
            unguarded = question.run_off(plan, margins)
    return {"without": without, "unguarded": unguarded}
