"""Schedules made for the profiled durations and run with others: the loss against the best in
hindsight, and how much of it replanning recovers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from experiments.mismatch import with_others
from optpipe_sim.errors import NoSolution, OptPipeError, OutOfMemory
from optpipe_sim.names import build, parse_name
from optpipe_sim.profile import CostProfile as Profile
from optpipe_sim.schedule import Schedule
from optpipe_sim.sim import simulate_or_report
from optpipe_sim.sim.lower import lower
from optpipe_sim.sim.scenarios import Noise, Scenarios, draw_scenarios, factors, replay_scenarios
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.robust import solve_robust
from optpipe_sim.solvers.solve import solve
from optpipe_sim.solvers.starts.adaoffload_runs import greedy_search
from optpipe_sim.solvers.starts.published import fixed_schedules
from optpipe_sim.study.tasks import CostProfile, Count, Limit, Row, ScheduleNames, Seconds
from optpipe_sim.study.tasks.simulate import refused

VERSION = 2
POOL = 40  # runs of the greedy that are kept to choose from in hindsight


def run(
    profile: CostProfile,
    microbatches: Count,
    schedules: ScheduleNames,
    kind: Literal["op", "device", "straggler", "copy"],
    level: float,
    memory_limit: Limit = None,
    samples: Count = 3,
    chunks: Count = 2,
    placement: Literal["loop", "vee"] = "loop",
    evaluations: Count = 400_000,
    time_limit: Seconds = 3.0,
    seed: int = 0,
    cores: Count = 1,
) -> list[Row]:
    """Each schedule is made for the profile, lowered, so that it keeps the limit in any case,
    and run with durations that are off by `level` (0.1: 10 %).

    `kind`: ``op`` (each compute op and copy independently in every iteration: log-normal with this
    sigma), ``device`` (all compute of a device by one factor, permanently: log-normal), ``straggler`` (one
    device's compute slower: as many of them as `samples`, spread evenly) or ``copy`` (all copies
    slower). Permanent changes can be planned for: each schedule is built again, and `optpipe`
    (`chunks` per device, `placement`; the plan takes so many `evaluations`) solves again from its plan
    with as many evaluations. Changes in every iteration cannot; for these `optpipe` plans for the
    distribution instead (`solve_robust`, three times as long).

    The reference in hindsight, ``reference_ns``, is the best of all these in each sample; with
    ``op``, the best of some dozens of schedules, chosen in each sample. ``loss`` and
    ``replanned_loss``: by how much the plan, and the new one, exceed it in the mean over the samples
    (with ``op``: of the means); ``loss_most``: in the worst sample.
    """
    limits = profile.limits(memory_limit)
    world = World(
        replace(profile, memory_limit=limits), microbatches, chunks, placement, evaluations, seed
    )
    plans: dict[str, Schedule | OptPipeError] = {}
    for name in schedules:
        try:
            plans[name] = _plan(world, name)
        except (NoSolution, OutOfMemory) as error:
            plans[name] = error
    made = {name: plan for name, plan in plans.items() if isinstance(plan, Schedule)}
    if kind == "op":
        able = _scattered(world, made, level, samples, time_limit, cores)
    else:
        able = _changed(world, made, kind, level, samples)
    return [
        {"schedule": name, **(refused(plan) if isinstance(plan, OptPipeError) else able[name])}
        for name, plan in plans.items()
    ]


class World(NamedTuple):
    """The profile as planned for, its limit included, and how `optpipe` plans."""

    profile: Profile
    microbatches: int
    chunks: int
    placement: Literal["loop", "vee"]
    evaluations: int
    seed: int

    @property
    def searched(self) -> Profile:
        """The profile in the chunks that `optpipe` plans."""
        return self.profile.rechunk(self.chunks, self.placement)


@lru_cache(maxsize=64)  # the same plans at every point of an experiment
def _plan(world: World, name: str) -> Schedule:
    """The schedule for the profile as it is.

    Raises:
        OutOfMemory, NoSolution: where it does not fit the limit.
    """
    profile, m = world.profile, world.microbatches
    if _solved(name):
        return _optimum(world)[0]
    schedule = build(name, profile, m)
    _, reason = simulate_or_report(schedule, profile)
    if reason is not None:
        raise NoSolution(reason)
    return schedule


@lru_cache(maxsize=4)
def _optimum(world: World) -> tuple[Schedule, tuple[Schedule, ...]]:
    """Return the search's plan, which depends on no clock, and its incumbents."""
    seen: list[Schedule] = []
    found = solve(
        world.searched, world.microbatches, engine="search",
        evaluations=world.evaluations, time_limit=600, seed=world.seed, workers=1,
        on_incumbent=lambda schedule, _: seen.append(schedule),
    )  # fmt: skip
    assert found.schedule is not None  # solve raises otherwise
    return found.schedule, tuple(seen)


def _solved(name: str) -> bool:
    return parse_name(name)[0] == "optpipe"


# -- permanent changes ----------------------------------------------------------------------------


def _changed(
    world: World, plans: dict[str, Schedule], kind: str, level: float, samples: int
) -> dict[str, Row]:
    """Run the plans with permanently changed durations, and replan."""
    settings = list(changes(kind, level, world.profile.devices, samples, world.seed))
    planned = {
        name: [_run(world, plan, *each) for each in settings] for name, plan in plans.items()
    }
    again = {
        name: [_again(world, name, plan, *each) for each in settings]
        for name, plan in plans.items()
    }
    best = [min(times) for times in zip(*planned.values(), *again.values(), strict=True)]
    rows = {}
    for name, plan in plans.items():
        losses = np.array(planned[name]) / best - 1
        rows[name] = {
            **_nominal(world, plan),
            "samples": len(settings),
            "cost_ns": _mean(planned[name]),
            "replanned_ns": _mean(again[name]),
            "reference_ns": _mean(best),
            "loss": float(losses.mean()),
            "loss_most": float(losses.max()),
            "replanned_loss": float((np.array(again[name]) / best - 1).mean()),
        }
    return rows


def changes(
    kind: str, level: float, devices: int, samples: int, seed: int
) -> Iterator[tuple[tuple[float, ...], float]]:
    """Return, per sample, the factors of each device's compute and of all copies."""
    if kind == "copy":
        yield (1.0,) * devices, 1 + level
        return
    for sample in range(samples):
        if kind == "device":
            random = np.random.default_rng([seed, sample])
            yield tuple(factors(random, level, (devices,)).tolist()), 1.0
        else:
            slow = round(sample * (devices - 1) / max(1, samples - 1))
            yield tuple(1 + level * (device == slow) for device in range(devices)), 1.0


def slower(profile: Profile, compute: Sequence[float], copy: float) -> Profile:
    """Scale the compute of each device, and all copies, of the profile."""
    changed = profile.scale(copy=copy)
    for device, factor in enumerate(compute):
        if factor != 1:
            changed = with_others(changed, changed.scale(compute=factor), [device])
    return changed


def _run(world: World, plan: Schedule, compute: Sequence[float], copy: float) -> int:
    """Run a plan with other durations."""
    lowered = lower(plan, world.profile)
    kinds, stages = lowered.schedule.table[:, 0], lowered.schedule.table[:, 1]
    true = slower(lowered.profile, compute, copy)
    return lowered.replay(true.durations_ns[kinds, stages]).cost_ns


def _again(world: World, name: str, plan: Schedule, compute: Sequence[float], copy: float) -> int:
    """Build the same schedule for these durations; never slower than the plan."""
    planned = _run(world, plan, compute, copy)
    true = slower(world.profile.for_shape(plan.shape), compute, copy)
    if _solved(name):
        found = solve(
            true, world.microbatches, engine="search", evaluations=world.evaluations, time_limit=600,
            seed=world.seed, workers=1, warm_start=plan,
        )  # fmt: skip
        return min(planned, found.objective_ns)
    trace, reason = simulate_or_report(build(name, true, world.microbatches), true)
    return planned if reason is not None else min(planned, trace.cost_ns)


# -- changes in every iteration -------------------------------------------------------------------


def _scattered(
    world: World,
    plans: dict[str, Schedule],
    level: float,
    samples: int,
    time_limit: float,
    cores: int,
) -> dict[str, Row]:
    """Run the plans with durations that change in every iteration; the reference is the best schedule of each sample."""
    noise = Noise(op=level, copy=level)
    shaped = {plan.shape: world.profile.for_shape(plan.shape) for plan in plans.values()}
    drawn = {
        shape: draw_scenarios(profile, world.microbatches, noise, samples, world.seed)
        for shape, profile in shaped.items()
    }

    def times(schedule: Schedule, scenarios: Scenarios) -> np.ndarray:
        return replay_scenarios(lower(schedule, world.profile), scenarios)

    costs = {name: times(plan, drawn[plan.shape]) for name, plan in plans.items()}
    again = {
        name: _for_scatter(world, noise, time_limit, cores)
        for name in plans
        if _solved(name) and level
    }
    anew = {name: times(found, drawn[found.shape]) for name, found in again.items()}
    hindsight = dict.fromkeys(drawn, np.full(samples, np.inf))
    for name, plan in plans.items():
        both = [costs[name], *([anew[name]] if name in anew else [])]
        hindsight[plan.shape] = np.minimum.reduce([hindsight[plan.shape], *both])
    for name, plan in plans.items():
        if _solved(name):
            for other in _pool(world):
                found = times(other, drawn[plan.shape])
                hindsight[plan.shape] = np.minimum(hindsight[plan.shape], found)
    best = min(hindsight.values(), key=lambda each: float(each.mean()))
    rows = {}
    for name, plan in plans.items():
        after = anew.get(name, costs[name])
        rows[name] = {
            **_nominal(world, plan),
            "samples": samples,
            "cost_ns": _mean(costs[name]),
            "replanned_ns": _mean(after),
            "reference_ns": _mean(best),
            "loss": float(costs[name].mean() / best.mean() - 1),
            "loss_most": None,
            "replanned_loss": float(after.mean() / best.mean() - 1),
        }
    return rows


def _for_scatter(world: World, noise: Noise, time_limit: float, cores: int) -> Schedule:
    """The search's schedule with the least mean time."""
    found = solve_robust(
        world.searched, world.microbatches, noise=noise, seed=world.seed,
        time_limit=3 * time_limit, workers=cores, warm_start=_optimum(world)[0],
    )  # fmt: skip
    return found.schedule


@lru_cache(maxsize=4)
def _pool(world: World) -> tuple[Schedule, ...]:
    """Return different good schedules of the search's shape."""
    problem = make_problem(world.searched, world.microbatches)
    found = list(_optimum(world)[1])
    found += greedy_search(problem, lambda: False, runs=300, seed=world.seed, keep=POOL)
    for _, schedule in fixed_schedules(problem):
        if simulate_or_report(schedule, problem.profile)[1] is None:
            found.append(schedule)
    return tuple(found)


def _nominal(world: World, plan: Schedule) -> Row:
    trace = lower(plan, world.profile).replay()
    return {
        "fits": True,
        "chunks": plan.shape.chunks,
        "nominal_ns": trace.cost_ns,
        "peak_bytes": max(trace.peak_bytes),
        "offloaded": trace.offloaded,
    }


def _mean(times: Sequence[int] | np.ndarray) -> int:
    return round(float(np.mean(times)))
