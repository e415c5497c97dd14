"""Periodic start schedules for the search.

If devices share a link, annealing single microbatches does not find which device should offload
which activation: a move pays only if it is made in every period. So the periodic pattern itself is
annealed; its cost is that of the replay of all its microbatches.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...ops import BW, B, F, O, R, W
from ...schedule import Schedule
from ..problem import Problem
from . import pattern_loop
from .annealer import WEIGHT, Workspace
from .loop import seed_random
from .plans import pack, unpack
from .times import NEVER

# With one or two microbatches per period a link is poorly shared; more enlarge the search space.
PER_PERIOD = 3
STEPS = 20_000  # evaluations per pattern
CHUNK = 500  # evaluations between two checks of the clock
HOT, COLD = 2.0, 0.02  # temperatures, in typical op durations
STRETCH = (1.0, 1.1, 1.2, 1.5, 2.0, 4.0, 8.0, 16.0)  # initial period, relative to the least one


def pattern_start(
    problem: Problem,
    like: Schedule,
    over: Callable[[], bool],
    *,
    steps: int = STEPS,
    seed: int = 0,
) -> Schedule | None:
    """Find the best schedule by annealing a pattern; None if no initial pattern fits.

    Args:
        like: a schedule of the problem's shape.
        over: called regularly; tells whether to stop. `steps`: the most evaluations.
    """
    work = Workspace(problem)
    plan = pack(problem, like)
    plan.mode[:] = 0  # a pattern has B and W apart
    for stretch in STRETCH:
        times, offloaded, period = _first(problem, stretch)
        pattern_loop.write(times, offloaded, period, work.costs, plan)
        if work.evaluate(plan)[0] < NEVER:
            break
    else:
        return None
    best, cost = plan.copy(), int(NEVER)
    typical = float(np.median(problem.profile.durations_ns[:BW]))
    heat = typical * HOT * (COLD / HOT) ** (np.arange(steps) / max(1, steps))
    weight = WEIGHT / (3 * problem.shape.stages * problem.microbatches)
    seed_random(seed)
    for at in range(0, steps, CHUNK):
        if over():
            break
        cost, period = pattern_loop.anneal_pattern(
            times,
            offloaded,
            period,
            work.costs,
            work.links,
            work.times,
            plan,
            best,
            cost,
            heat[at : at + CHUNK],
            problem.objective == "span",
            weight,
            typical,
        )
    return unpack(problem, best, "pattern")


def _first(problem: Problem, stretch: float) -> tuple[np.ndarray, np.ndarray, int]:
    """Make the initial pattern: evenly spaced microbatches, each as fast as possible, everything
    offloaded that can be."""
    profile = problem.profile
    durations, latency, stages = profile.durations_ns, profile.t_comm_ns, problem.shape.stages
    k = min(PER_PERIOD, problem.microbatches)
    work = np.zeros(profile.devices)
    np.add.at(work, list(profile.placement), durations[[F, B, W]].sum(axis=0))
    period = int(work.max() * k * stretch)
    times = np.zeros((len(durations), stages, k), np.int64)
    offloaded = np.zeros((stages, k), np.bool_)
    for i in range(k):
        now = i * period // k
        for s in range(stages):
            times[F, s, i], times[O, s, i] = now, now + 1
            now += int(durations[F, s]) + latency
        for s in reversed(range(stages)):
            times[B, s, i], times[W, s, i] = now, now + 1
            times[R, s, i] = max(times[O, s, i] + 1, now - int(durations[R, s]))
            now += int(durations[B, s]) + latency
            offloaded[s, i] = now - times[F, s, i] > durations[O, s] + durations[R, s]
    return times, offloaded, period
