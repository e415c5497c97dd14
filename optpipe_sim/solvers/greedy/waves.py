"""AdaOffload following waves, for devices with several chunks.

A microbatch passes the pipeline as a wave, forward and back, with a separate pace in every chunk;
the next microbatch follows one period later. The published V schedules are such orders: the fastest
paces give ZB-V; slower ones, with which the chunks of a device take turns, give V-Half. The greedy
follows an order as far as memory and copies allow, and handles warm-up and cool-down itself. A
search finds the paces that suit the memory limit and the copies.

Sources: Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), for building
blocks made of paces; the greedy is AdaOffload (see there).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import numpy as np

from ...errors import OptPipeError
from ...ops import B, F, OpKind, W
from ...profile import CostProfile
from ...schedule import Schedule
from ...schedules.adaoffload.runs import Order, Setting
from ...schedules.adaoffload.runs import Problem as Runs
from ..problem import Problem

SETTINGS: dict[
    str, tuple[int, ...]
] = {  # the parameters of `Setting` that matter with a given order
    "tolerance": (0, 300, 500, 700, 1000),
    "ahead": (500, 1000, 1500, 2000, 3000, 5000),
    "headroom": (1, 2, 3, 4, 6),
    "oldest": (0, 0, 0, 1),
    "keep": (0, 1),
    "reload_first": (0, 1),
    "depth": (0, 0, 700, 1000, 1500),
}
PACES = (700, 1000, 1000, 1200, 1500, 1800, 2000, 2300, 2600, 3000)
SHAPES: dict[str, tuple[int, ...]] = {
    "defer": (0, 50, 125, 250, 500, 1000, 2000),
    "window": (0, 2000, 5000, 10_000, 30_000, 10**6),
}
RANDOM_RUNS = (
    20  # runs before the first change of a good one; later, CHANGES of the runs are changes
)
CHANGES = 0.7
POOL = 8  # good ones to change, of different costs


def wave_order(profile: CostProfile, microbatches: int, waves: Mapping[str, int]) -> Order:
    """Compute when each op is due, in waves.

    Args:
        profile: with its chunks and placement; any.
        microbatches: m.
        waves: ``forward0``, ``backward0``, ...: the pace of a wave in a chunk: its time per stage,
            in thousandths of the F (the B) and the communication after it; ``defer``: how long
            after its B a W is due, in thousandths of the work on p microbatches; ``window``: see
            `Order`, in thousandths of a typical F.
    """
    durations, latency, p = profile.durations_ns, profile.t_comm_ns, profile.devices
    stages = len(profile.stages)
    period = int(np.bincount(profile.placement, durations[[F, B, W]].sum(axis=0), p).max())
    first = np.zeros((len(OpKind), stages), np.int64)
    now = 0
    for s in range(stages):
        first[F, s] = now
        now += waves[f"forward{s // p}"] * (int(durations[F, s]) + latency) // 1000
    for s in reversed(range(stages)):
        first[B, s] = now
        first[W, s] = now + int(durations[B, s]) + waves["defer"] * p * period // 1000
        now += waves[f"backward{s // p}"] * (int(durations[B, s]) + latency) // 1000
    due = first[:, :, None] + period * np.arange(microbatches, dtype=np.int64)
    return Order(due, waves["window"] * int(np.median(durations[F])) // 1000)


def wave_search(
    problem: Problem,
    over: Callable[[], bool],
    *,
    runs: int,
    seed: int = 0,
    keep: int = 2,
    found: Callable[[Schedule], None] = lambda schedule: None,
) -> list[Schedule]:
    """Find the best few schedules of up to `runs` runs of the greedy with different waves.

    Waves and settings of the greedy are drawn at random or, mostly, are one of the best with one to
    three parameters changed. Runs that would end later than the best few are stopped early.

    Args:
        over: called before every run; tells whether to stop.
        found: called with each new best schedule.
    """
    random = Random(seed)
    try:
        game = Runs(problem.profile, problem.microbatches, problem.limits)
    except OptPipeError:  # the host memory is too small for the greedy's offloads
        return []
    chunks = range(problem.shape.chunks)
    paces = {f"{way}{chunk}": PACES for way in ("forward", "backward") for chunk in chunks}
    choices = {**SETTINGS, **SHAPES, **paces}
    best: list[tuple[int, int, dict[str, int]]] = []  # cost, number of the run, parameters
    schedules: dict[int, Schedule] = {}
    for run in range(runs):
        if over():
            break
        chosen = {key: random.choice(values) for key, values in choices.items()}
        if best and run > RANDOM_RUNS and random.random() < CHANGES:
            changed = random.sample(list(choices), random.choice((1, 1, 2, 3)))
            chosen = {**random.choice(best)[2], **{key: chosen[key] for key in changed}}
        most = best[-1][0] if len(best) == POOL and problem.objective == "flush" else 2**62
        played = game.play(
            Setting(**{key: chosen[key] for key in SETTINGS}),
            most,
            wave_order(problem.profile, problem.microbatches, chosen),
        )
        if played is None:
            continue
        cost = played.cost_ns(problem.objective)
        if any(cost == entry[0] for entry in best):
            continue
        if len(best) < keep or cost < best[keep - 1][0]:
            schedules[run] = played.schedule(problem.microbatches)
            if not best or cost < best[0][0]:
                found(schedules[run])
        best = sorted([*best, (cost, run, chosen)], key=lambda entry: entry[:2])[:POOL]
    return [schedules[run] for _, run, _ in best[:keep]]
