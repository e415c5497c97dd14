"""Robust schedules: the least mean, or quantile, of the cost over samples of scattered durations.

Candidates are the incumbents of the deterministic race, AdaOffload's schedules, the published ones,
and those of problems with slower copies, messages or devices. Each is lowered (its memory grants
wait for releases, not for points in time) and replayed on the same samples. The best one is then
improved op by op as long as that helps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from ..codes import O
from ..errors import OptPipeError
from ..option_fields import listing, parameters_of
from ..processes.signals import ctrl_c_later
from ..profile import CostProfile
from ..schedule import Schedule
from ..schedule.fused import fuse
from ..schedules import ADAOFFLOAD
from ..sim.lower import lower
from ..sim.scenarios import (
    Noise,
    Scenarios,
    draw_scenarios,
    replay_scenarios,
    require_samples,
    scenario_bounds,
)
from ..trace import Trace
from .anneal.annealer import Workspace, search
from .anneal.edits import set_offload, shift
from .anneal.plans import Plan, pack, unpack
from .anneal.times import NEVER, fill_slots
from .margins.plan import padded, with_room
from .margins.shares import Margins, as_margins
from .options import SolveOptions
from .problem import Problem, make_problem
from .race.compiling import compile_engines
from .reports import no_report
from .result import FEASIBLE, SolveResult, save_last
from .solve import solve
from .starts.adaoffload_runs import greedy_search
from .starts.published import fixed_schedules
from .treatments import restrict

NOMINAL, PADDED = 0.35, 0.25  # shares of the time: the deterministic race, the searches with slack
TUNING = 96  # samples for comparing candidates; only the best few are replayed on the others
BAND = 0.1  # share of the samples, on either side of a quantile
FINALISTS = 4
# Slower problems, tried in turn, to find schedules with slack in different places.
PADDINGS: tuple[dict[str, float], ...] = ({"copy": 1.15}, {"comm": 2.0}, {"copy": 1.4, "comm": 1.5})
REACH, AHEAD = 8, (1, 2, 4, 8, 16)  # of a move: slots along the program; ops before its B


@dataclass(frozen=True)
class RobustResult:
    """The schedule with the least measure that was found, and the distribution of its cost.

    Attributes:
        schedule, trace: the schedule and its replay with the profile's own durations.
        quantile: which quantile is the measure; None: the mean.
        costs_ns: (samples,) its cost in each sample. `nominal_costs_ns`: the cost of the
            deterministic optimum on the same samples.
        nominal: the deterministic result.
        lower_bound_ns: a lower bound on the measure of any schedule on these samples.
        found_by: the kind of candidate it is. `tried`: how many candidates were compared.
        seconds: wall time. `interrupted`: whether Ctrl-C ended it; the incumbent is kept.
        failures: errors on the way, as in the ``info`` of `SolveResult`.
    """

    schedule: Schedule
    trace: Trace
    noise: Noise
    quantile: float | None
    costs_ns: np.ndarray
    nominal: SolveResult
    nominal_costs_ns: np.ndarray
    lower_bound_ns: int
    found_by: str
    tried: int
    seconds: float
    interrupted: bool = False
    failures: dict[str, str] = field(default_factory=dict)
    bound_name: str = field(default="work, sample by sample")
    status: str = field(default=FEASIBLE)
    engine: str = field(default="robust")

    @property
    def objective_ns(self) -> int:
        """The measure: mean or quantile of the cost over the samples."""
        return measure(self.costs_ns, self.quantile)

    @property
    def nominal_objective_ns(self) -> int:
        """The measure of the deterministic optimum; at least `objective_ns`."""
        return measure(self.nominal_costs_ns, self.quantile)

    @property
    def gap(self) -> float:
        """(objective - lower bound) / lower bound."""
        return (self.objective_ns - self.lower_bound_ns) / max(1, self.lower_bound_ns)

    def measures(self) -> dict[str, Any]:
        """Return the result as plain data: the keys of `SolveResult.measures` and the distribution."""
        parts = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
        return {
            **self.trace.measures(),
            "status": self.status,
            "engine": self.engine,
            "objective_ns": self.objective_ns,
            "lower_bound_ns": self.lower_bound_ns,
            "bound": self.bound_name,
            "gap": self.gap,
            "seconds": self.seconds,
            "measure": "mean" if self.quantile is None else f"quantile {self.quantile:g}",
            "samples": len(self.costs_ns),
            "mean_ns": measure(self.costs_ns, None),
            "quantiles_ns": {f"{part:g}": measure(self.costs_ns, part) for part in parts},
            "nominal_objective_ns": self.nominal_objective_ns,
            "found_by": self.found_by,
            "tried": self.tried,
            "interrupted": self.interrupted,
        }


def measure(costs_ns: np.ndarray, quantile: float | None) -> int:
    """Return the rounded mean of some costs, or the quantile: the least cost that this share of
    them does not exceed."""
    if quantile is None:
        return round(float(costs_ns.mean()))
    return int(np.quantile(costs_ns, quantile, method="inverted_cdf"))


@listing(parameters_of(SolveOptions, without=["evaluations", "per_stage"]))
def solve_robust(
    profile: CostProfile,
    microbatches: int,
    memory_limit: int | Sequence[int] | None = None,
    *,
    noise: Noise,
    samples: int = 400,
    quantile: float | None = None,
    time_limit: float = 30.0,
    warm_start: Schedule | str | None = None,
    on_incumbent: Callable[[Schedule, int], None] | None = None,
    watch: Callable[[Any], None] | None = None,
    on_wait: Callable[[], None] = no_report,
    save: str | os.PathLike[str] | None = None,
    **options: Any,
) -> RobustResult:
    """Find the schedule with the least mean (or quantile) cost when durations scatter.

    Never worse, in that measure and on these samples, than the deterministic optimum's schedule.

    Args:
        noise: how durations scatter around their means in the profile.
        samples: how many samples of all durations the measure is taken over; the search itself uses
            others, so that only the choice between the best few is fitted to these.
        quantile: None: the mean; 0.9: the time that nine of ten iterations do not exceed.
        warm_start: as for `solve`.
        on_incumbent: called with each incumbent and its cost with the profile's own durations, in
            ns. `watch, on_wait`: as for `solve`.
        save: a file that always holds the best schedule so far.
        options: the other options of `solve` (`SolveOptions`), for the deterministic race; without
            ``evaluations``, ``per_stage`` and ``chunks=any``, which are not supported with noise.
            With a ``margin`` sizes are padded and durations scatter around the padded ones; only
            ``trace`` is as profiled, with room for the margin.

    Raises:
        OptPipeError: for a quantile outside 0 to 1, and as `solve` does.
    """
    profiled, settings = _settled(
        profile, SolveOptions(time_limit=time_limit, **{"chunks": "own", **options})
    )
    margins = as_margins(settings.margin) or Margins()
    profile = padded(profiled, margins)
    settings = replace(settings, margin=None)
    objective, seed = settings.objective or profile.objective, settings.seed
    if quantile is not None and not 0 <= quantile <= 1:
        raise OptPipeError(f"quantile: must be from 0 to 1, got {quantile}")
    require_samples(profile, microbatches, samples)
    problem = make_problem(profile, microbatches, memory_limit, objective, pairs=settings.pairs)
    compile_engines(problem, on_wait)
    began = time.monotonic()
    seen: list[Schedule] = []

    def found(schedule: Schedule, cost: int) -> None:
        seen.append(schedule)
        if on_incumbent is not None:
            on_incumbent(schedule, cost)

    nominal = solve(
        profile,
        microbatches,
        memory_limit,
        **vars(replace(settings, time_limit=NOMINAL * time_limit)),
        warm_start=warm_start,
        on_incumbent=found,
        watch=watch,
        on_wait=on_wait,
        save=save,
    )
    assert nominal.schedule is not None
    entries, tried, interrupted = _search(
        problem, noise, quantile, nominal, seen, began + time_limit, time_limit, seed
    )
    try:
        with ctrl_c_later():  # at least a moment, or there is no result
            judges = draw_scenarios(profile, microbatches, noise, samples, seed + 1)
            final = _Field(problem, judges, quantile)
            final.offer(nominal.schedule, "deterministic")  # the first of equal ones
            nominal_costs = final.best[0].costs_ns
            for entry in entries[:FINALISTS]:
                final.offer(entry.schedule, entry.name)
            bound_ns = measure(scenario_bounds(profile, judges, objective), quantile)
    except KeyboardInterrupt:
        interrupted = True
    chosen = final.best[0]
    limits = with_room(problem.limits, margins.memory)
    trace = replace(problem, profile=profiled, limits=limits).replay(chosen.schedule)
    failures = dict(nominal.info["failures"])
    if save is not None:
        save_last(chosen.schedule, save, failures)
    if on_incumbent is not None and chosen.name != "deterministic":
        on_incumbent(chosen.schedule, trace.cost_ns)
    return RobustResult(
        chosen.schedule,
        trace,
        noise,
        quantile,
        chosen.costs_ns,
        nominal,
        nominal_costs,
        bound_ns,
        chosen.name,
        tried,
        time.monotonic() - began,
        interrupted,
        failures,
    )


def _search(
    problem: Problem,
    noise: Noise,
    quantile: float | None,
    nominal: SolveResult,
    seen: list[Schedule],
    until: float,
    time_limit: float,
    seed: int,
) -> tuple[list[_Entry], int, bool]:
    """Compare candidates on samples of their own, and improve the best one, to the time `until`;
    returns the best few, how many were tried, and whether Ctrl-C ended it."""
    assert nominal.schedule is not None
    interrupted, kept = bool(nominal.info["interrupted"]), None
    try:
        tuning = draw_scenarios(problem.profile, problem.microbatches, noise, TUNING, seed)
        kept = _Field(problem, tuning, quantile, _smooth)
        kept.offer(nominal.schedule, "deterministic")
        for name, schedule in _candidates(problem, nominal, seen, time_limit, seed):
            if interrupted or time.monotonic() > until - 0.1 * time_limit:
                break
            kept.offer(schedule, name)
        if problem.host_limit is None and not interrupted:
            _improve(problem, kept, until, seed)
    except KeyboardInterrupt:
        interrupted = True
    return ([], 0, interrupted) if kept is None else (kept.best, kept.tried, interrupted)


def _settled(profile: CostProfile, options: SolveOptions) -> tuple[CostProfile, SolveOptions]:
    """Return the profile with the options' chunks, placement and treatments, and the other options.

    Raises:
        OptPipeError: for options not supported with noise.
    """
    for name, value in (("evaluations", None), ("per_stage", False)):
        if getattr(options, name) != value:
            raise OptPipeError(f"{name}: not with noise")
    if options.chunks == "any":
        raise OptPipeError("chunks: any is not with noise; give a number, or own")
    if options.slices not in ("own", 1):
        raise OptPipeError("slices: not with noise, which is of whole sequences")
    profile = options.rechunked(restrict(profile.with_slices(1), options.treatments))
    return profile, replace(options, chunks="own", placement="own", treatments=None)


def _smooth(costs_ns: np.ndarray, quantile: float | None) -> int:
    """Return the measure; a quantile is smoothed to the mean of the costs around it. With few samples a
    quantile depends on a single one, and fitting a schedule to that one does not help on others."""
    if quantile is None:
        return measure(costs_ns, None)
    size = len(costs_ns)
    low = round(max(0.0, min(quantile - BAND, 1 - 2 * BAND)) * size)
    high = round(min(1.0, max(quantile + BAND, 2 * BAND)) * size)
    return round(float(np.sort(costs_ns)[low : max(high, low + 1)].mean()))


@dataclass(frozen=True)
class _Entry:
    measure_ns: int
    costs_ns: np.ndarray
    schedule: Schedule
    name: str


class _Field:
    """The best few schedules so far, by their measure on some scenarios (samples of durations)."""

    def __init__(
        self,
        problem: Problem,
        scenarios: Scenarios,
        quantile: float | None,
        how: Callable[[np.ndarray, float | None], int] = measure,
    ) -> None:
        self.problem, self.scenarios, self.quantile = problem, scenarios, quantile
        self.measure = how
        self.best: list[_Entry] = []
        self.tried = 0

    def offer(self, schedule: Schedule, name: str) -> int | None:
        """Keep a schedule if it is among the best; returns its measure, None if it does not fit."""
        schedule = fuse(schedule, self.problem.profile)
        try:
            lowered = lower(schedule, self.problem.profile, self.problem.limits)
            if self.problem.host_limit is not None:
                self.problem.replay(schedule)  # lowering does not check this
        except OptPipeError:
            return None
        costs = replay_scenarios(lowered, self.scenarios, self.problem.objective)
        found = self.measure(costs, self.quantile)
        self.tried += 1
        if all(found != entry.measure_ns for entry in self.best):
            best = [*self.best, _Entry(found, costs, schedule, name)]
            self.best = sorted(best, key=lambda entry: entry.measure_ns)[:FINALISTS]
        return found


def _candidates(
    problem: Problem, nominal: SolveResult, seen: list[Schedule], time_limit: float, seed: int
) -> Iterator[tuple[str, Schedule]]:
    """Yield schedules that may be robust, the most likely first."""
    assert nominal.schedule is not None
    for schedule in reversed(seen[-20:]):
        yield "incumbent", schedule
    ends = time.monotonic() + 0.1 * time_limit
    settings = greedy_search(problem, lambda: time.monotonic() > ends, runs=300, seed=seed, keep=12)
    for schedule in settings:
        yield ADAOFFLOAD, schedule
    for name, schedule in fixed_schedules(problem):
        yield name, schedule
    if problem.host_limit is not None:
        return
    share = PADDED * time_limit / len(PADDINGS)
    for padding in PADDINGS:
        slower = replace(problem, profile=problem.profile.scale(**padding))
        found = search(slower, [nominal.schedule, *settings[:2]], time_limit=share, seed=seed)
        if found is not None:
            yield "with slack", found


def _improve(problem: Problem, entries: _Field, until: float, seed: int) -> None:
    """Change single ops of the best schedule; keep each change that improves the measure."""
    random, work = Random(seed), Workspace(problem)
    start = entries.best[0]
    plan, best = pack(problem, start.schedule), start.measure_ns
    # a BW may be a B and a W here, whose measure may differ
    again = entries.offer(unpack(problem, plan, "robust"), "improved")
    best = min(best, again) if again is not None else best
    nominal = work.evaluate(plan)[0]
    while time.monotonic() < until:
        changed = plan.copy()
        if not _move(changed, work, problem, random):
            continue
        # skip schedules that deadlock or are much slower even without noise
        makespan = work.evaluate(changed)[0]
        if makespan >= NEVER or makespan > 1.02 * nominal:
            continue
        found = entries.offer(unpack(problem, changed, "robust"), "improved")
        if found is not None and found <= best:
            plan, best, nominal = changed, found, min(nominal, makespan)


def _move(plan: Plan, work: Workspace, problem: Problem, random: Random) -> bool:
    """Move one op, or offload or keep one activation; returns whether that was possible."""
    costs, times = work.costs, work.times
    fill_slots(plan, times)
    device = random.randrange(len(plan.length))
    size = int(plan.length[device])
    at = random.randrange(size)
    if problem.may_offload and random.random() < 0.2:
        unit = int(plan.prog[device, at]) & (1 << costs.high) - 1
        if not problem.profile.stages[unit >> costs.low].offloadable:
            return False
        offloaded = times.slot[unit | O << costs.high] >= 0
        set_offload(plan, costs, times, unit, not offloaded, random.choice(AHEAD))
        return True
    stop = min(size - 1, max(0, at + random.choice((-1, 1)) * random.randint(1, REACH)))
    return bool(shift(plan, costs, times, device, at, stop) != at)
