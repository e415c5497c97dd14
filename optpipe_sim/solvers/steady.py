"""Plans that stay good when costs are off: what each of several plans loses to the best of them, draw by draw.

The difference between two plans is less certain than the search that found it (docs/how-true.md). Where
it is a toss-up, the plan to run is one that loses little whatever turns out to be true, leaves memory,
and is plain.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import exp
from statistics import fmean
from typing import Any, NamedTuple

from ..errors import OptPipeError
from ..execution import IDEAL, Execution, load_execution, shipped_names
from ..profile import CostProfile
from ..sim import simulate
from ..stage_cost import StageCost, multiplied
from ..trace import Trace
from ..units import exact
from .plain import PlainPlan, plain_plans, plainest

DRAWS, FEWEST_DRAWS = 48, 8
MOST_OPS = 4_000_000  # of all plans in all draws
MOST_PLANS = 6  # beside the best
ALIKE = 0.005  # mean regrets that differ by less are the same
SPARE = 0.03  # of a limit: who leaves so much has memory left
# How far costs are off, by the standard deviation of the logarithm of a factor. `LAYERS`: of an eighth of the model against the
# rest, as a few per cent between equal stages are usual. `COPIES`: PCIe links of one kind are given with 21 to 50 GB/s.
# `MESSAGES`, `OVERHEAD`: the fits of the executions that ship differ by as much. Assumed, not fitted.
LAYERS, COPIES, MESSAGES, OVERHEAD = 0.02, 0.4, 0.4, 0.4
QUANTILE = 1.2816  # standard deviations that hold four of five values
PAIRS = 8  # of errors of the replay, in each draw
PARTS = 64  # of the model, from the first layer to the last, each with a factor of its own


class Draw(NamedTuple):
    """Costs that may be true: the execution, factors of the times of copies and messages, and of compute
    along the model."""

    execution: Execution
    copies: Fraction
    messages: Fraction
    along: tuple[float, ...]

    def at(self, stage: int, stages: int) -> Fraction:
        """Return the factor of the times of a stage."""
        first, last = stage * PARTS // stages, max(1, (stage + 1) * PARTS // stages)
        return exact(round(fmean(self.along[min(first, last - 1) : last]), 4))


class Standing(NamedTuple):
    """How a plan stands among others when costs are off.

    Attributes:
        plan: its name and its replay at the given costs.
        regret: how much longer it takes than the fastest of the plans, the mean over the draws of costs and of the replay's
            errors; `worst`: the most in any.
        first: the share of these in which no other is faster.
    """

    plan: PlainPlan
    regret: float
    worst: float
    first: float

    def to_json(self, best: Trace) -> dict[str, Any]:
        """Return it as plain data beside the best plan."""
        return {
            **self.plan.to_json(best),
            "regret": self.regret,
            "worst_regret": self.worst,
            "first": self.first,
        }


def draws(profile: CostProfile, count: int, seed: int = 0) -> list[Draw]:
    """Draw costs that may be true in the place of a profile's: its execution with other times per op and
    message, or, where it is ideal, one that ships; other rates of copies and messages; and stages that
    differ. The same seed gives the same draws."""
    chance = random.Random(seed)
    kinds = [IDEAL, *map(load_execution, shipped_names())]

    def factor(sigma: float) -> Fraction:
        return exact(round(chance.lognormvariate(0, sigma), 4))

    found = []
    for _ in range(count):
        execution = chance.choice(kinds) if profile.execution == IDEAL else profile.execution
        more = factor(OVERHEAD)
        families = {
            name: replace(
                issue,
                op_ns=round(issue.op_ns * more),
                message_ns=round(issue.message_ns * more),
                split=1 + (issue.split - 1) * more,
            )
            for name, issue in execution.families.items()
        }
        sigma = (
            LAYERS * (PARTS / 8) ** 0.5
        )  # of a part, so that an eighth of the model has `LAYERS`
        along = tuple(chance.lognormvariate(0, sigma) for _ in range(PARTS))
        found.append(
            Draw(replace(execution, families=families), factor(COPIES), factor(MESSAGES), along)
        )
    return found


def drawn(profile: CostProfile, draw: Draw) -> CostProfile:
    """Return a profile, divided as a plan is, with the costs of a draw."""
    stages = len(profile.stages)
    own = [draw.at(stage, stages) for stage in range(stages)]

    def changed(at: int, cost: StageCost) -> StageCost:
        return multiplied(cost, own[at], draw.copies, Fraction(1), least_ns=1)

    return replace(
        profile.map_stages(changed),
        latency_ns=round(profile.latency_ns * draw.messages),
        occupancy_ns=round(profile.occupancy_ns * draw.messages),
        execution=draw.execution,
    )


def standings(
    plans: Sequence[PlainPlan],
    profiles: Sequence[CostProfile],
    seed: int = 0,
    between: float = 0.0,
) -> tuple[list[Standing], int]:
    """Return how each of some plans stands when costs are off, and the replay, and in how many draws they were compared.

    Args:
        profiles: of each plan. All have the same execution; what is drawn is the same for all plans.
        between: what four of five errors of the difference between two plans are within.
    """
    ops = sum(len(plan.trace.schedule) for plan in plans)
    some = draws(profiles[0], min(DRAWS, max(FEWEST_DRAWS, MOST_OPS // ops)), seed)
    # plans of one profile and shape have the same costs in a draw
    keys = [
        (id(profile), plan.trace.schedule.shape)
        for plan, profile in zip(plans, profiles, strict=True)
    ]
    own = {key: profile.for_shape(key[1]) for key, profile in zip(keys, profiles, strict=True)}
    lost: list[list[float]] = [[] for _ in plans]
    chance = random.Random(seed)
    for draw in some:
        errors = _errors(chance, len(plans), between)
        costs = {key: drawn(profile, draw) for key, profile in own.items()}
        times = [_time(plan, costs[key]) for plan, key in zip(plans, keys, strict=True)]
        for error in errors:
            true = [time * factor for time, factor in zip(times, error, strict=True)]
            least = min(true)
            for regrets, time in zip(lost, true, strict=True):
                regrets.append(0.0 if time == least else time / least - 1)
    found = [
        Standing(plan, fmean(each), max(each), sum(one == 0 for one in each) / len(each))
        for plan, each in zip(plans, lost, strict=True)
    ]
    return found, len(some)


def _errors(chance: random.Random, plans: int, between: float) -> list[list[float]]:
    """Draw factors of the times of plans, each as likely as its inverse, so that the mean of a difference stays."""
    if not between:
        return [[1.0] * plans]
    sigma = between / QUANTILE / 2**0.5
    found = [[chance.gauss(0, sigma) for _ in range(plans)] for _ in range(PAIRS)]
    return [[exp(sign * error) for error in one] for one in found for sign in (1, -1)]


def _time(plan: PlainPlan, profile: CostProfile) -> float:
    """Return the time of an iteration of a plan at other costs, in ns."""
    try:
        return simulate(plan.trace.schedule, profile, plan.trace.memory_limit).iteration_ns
    except OptPipeError:  # an op waits for memory that another order of the ends never releases
        return float("inf")


class Beside(NamedTuple):
    """What stands beside the best plan.

    Attributes:
        plainest: see `plain.plainest`. best: how the best plan stands when costs are off. steady: how
            the plan to run does; it may be the best. `plans`: how many were compared, `draws`: at how
            many costs that may be true.
    """

    plainest: PlainPlan | None
    best: Standing
    steady: Standing
    plans: int
    draws: int

    def to_json(self, best: Trace) -> dict[str, Any]:
        """Return it as plain data: keys of ``solve --json``."""
        steady = self.steady.to_json(best) | {
            "regret_of_best": self.best.regret,
            "plans": self.plans,
            "draws": self.draws,
        }
        return {"plainest": self.plainest and self.plainest.to_json(best), "steady": steady}


def beside(
    profile: CostProfile,
    best: Trace,
    name: str,
    names: Sequence[str] | None = None,
    chunks: int | None = None,
) -> Beside:
    """Compare the best plan with plain ones whose difference to it is a toss-up.

    Args:
        name: of the best plan. names, chunks: only these schedules in its place, with so many chunks per device;
            None: all.
    """
    limits = best.memory_limit or profile.memory_limit
    m = best.schedule.shape.microbatches
    plain = list(plain_plans(profile, m, limits, best.objective, names, chunks))
    most = best.iteration_ns * (1 + toss_up(best))
    near = [
        one
        for one in plain
        if one.trace.iteration_ns <= most and one.trace.schedule != best.schedule
    ]
    near.sort(key=lambda one: one.trace.iteration_ns)
    own = PlainPlan(len(plain) * 2 + 2, name, best)
    compared = [own, *near[:MOST_PLANS]]
    found, count = standings(compared, [profile] * len(compared), between=toss_up(best))
    steady = steadiest(found, limits)
    return Beside(plainest(plain, best), found[0], steady, len(found), count)


def toss_up(trace: Trace) -> float:
    """Return by how much two plans may differ, as a share, that are as likely the one as the other to be
    faster."""
    return trace.profile.execution_notes["between"] or IDEAL.between or 0.0


def steadiest(found: Sequence[Standing], limits: Sequence[int] | None = None) -> Standing:
    """Return the plan to run: of those with the least mean regret (within `ALIKE`) one that leaves
    `SPARE` of the limit, or else the most; of these the plainest, then the one with the least regret."""
    least = min(one.regret for one in found)
    alike = [one for one in found if one.regret <= least + ALIKE]
    wanted = min(SPARE, max(_left(one, limits) for one in alike))
    roomy = [one for one in alike if _left(one, limits) >= wanted]
    return min(roomy, key=lambda one: (one.plan.rank, one.regret))


def _left(one: Standing, limits: Sequence[int] | None) -> float:
    """Return the share of its limit that the fullest device leaves; 1 without a limit."""
    peaks = one.plan.trace.peak_bytes
    return min(
        (1 - peak / limit for peak, limit in zip(peaks, limits or (), strict=False)), default=1.0
    )
