"""Search over waves for AdaOffload, on devices with several chunks: the paces that suit the memory
limit and the copies (see `schedules.adaoffload.waves`)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ...errors import OptPipeError
from ...schedule import Schedule
from ...schedules.adaoffload.runs import Problem as Runs
from ...schedules.adaoffload.runs import Setting
from ...schedules.adaoffload.waves import Wave, wave_order
from ..problem import Problem

# the parameters of `Setting` that matter with a given order
SETTINGS: dict[str, tuple[int, ...]] = {
    "tolerance": (0, 300, 500, 700, 1000),
    "ahead": (500, 1000, 1500, 2000, 3000, 5000),
    "headroom": (1, 2, 3, 4, 6, 12, 24),
    "oldest": (0, 0, 0, 1),
    "keep": (0, 1),
    "reload_first": (0, 1),
    "depth": (0, 0, 700, 1000, 1500),
}
PACES = (700, 1000, 1000, 1200, 1500, 1800, 2000, 2300, 2600, 3000)
SHAPES: dict[str, tuple[int, ...]] = {
    "defer": (0, 50, 125, 250, 500, 1000, 2000),
    "window": (0, 2000, 5000, 10_000, 30_000, 10**6),
    "late": (0, 0, 125, 250, 500, 750, 1000),
}
# Tried first, in the order of their marginal gain: a greedy cover of 100 waves, found in 5 s each, and of AdaOffload's own
# settings and waves over 176 problems (2 to 4 chunks, in a loop or a V, 4 to 24 devices, a quarter to most of 1F1B's
# memory, whole and selectively recomputed activations, cheap and expensive copies). The first eight are 1.8 % above
# the best of all on average, all of these 0.6 %. Ten chosen on one half of 116 problems are 2.8 to 3.7 % above the best
# on the other. (AdaOffload itself keeps its own: on profiles with flash attention these are no better.)
KNOWN = tuple(
    Wave(*values)
    for values in (
        (1500, 1000, 1000, 1800, 125, 10000, 500, 1500, 3, 0, 0, 1, 0, 125),
        (1000, 2300, 2600, 3000, 500, 1000000, 700, 3000, 3, 0, 0, 0, 0, 750),
        (1000, 700, 1200, 700, 50, 5000, 0, 1500, 1, 0, 1, 0, 700, 250),
        (3000, 2600, 2600, 3000, 2000, 1000000, 1000, 5000, 24, 0, 0, 0, 0, 0),
        (1000, 700, 1800, 1000, 125, 2000, 300, 1500, 2, 0, 0, 1, 700, 1000),
        (2300, 2000, 2300, 2300, 500, 10000, 1000, 2000, 12, 0, 0, 0, 0, 0),
        (1200, 1000, 1500, 1000, 1000, 30000, 700, 2000, 3, 0, 0, 1, 0, 500),
        (1500, 700, 3000, 1000, 2000, 10000, 0, 1500, 2, 0, 1, 0, 0, 250),
        (700, 700, 2600, 1000, 500, 5000, 300, 1000, 3, 0, 1, 1, 0, 750),
        (3000, 1500, 3000, 2600, 0, 30000, 300, 5000, 24, 0, 0, 0, 0, 500),
        (1000, 1500, 700, 2600, 0, 2000, 700, 1500, 24, 0, 0, 0, 1500, 0),
        (2300, 3000, 1800, 3000, 125, 1000000, 700, 1500, 6, 0, 0, 0, 0, 750),
        (700, 1200, 1000, 1200, 500, 5000, 500, 1500, 1, 0, 1, 1, 0, 500),
        (1800, 700, 2000, 1000, 500, 5000, 700, 2000, 2, 0, 1, 0, 0, 125),
        (700, 700, 700, 700, 250, 0, 500, 1500, 12, 0, 0, 0, 0, 250),
        (1200, 1000, 2300, 700, 1000, 10000, 300, 3000, 3, 0, 1, 0, 1000, 500),
        (1800, 3000, 1000, 3000, 1000, 1000000, 1000, 3000, 12, 0, 0, 0, 0, 0),
        (1500, 700, 2600, 2600, 0, 5000, 300, 1500, 2, 0, 1, 0, 1500, 250),
        (2000, 1200, 2000, 1200, 250, 30000, 700, 2000, 2, 0, 1, 0, 1500, 500),
        (2000, 3000, 3000, 2000, 50, 30000, 300, 3000, 6, 0, 0, 0, 0, 750),
    )
)
# further runs before the first change of a good one; later, CHANGES of the runs are changes
RANDOM_RUNS = 20
CHANGES = 0.7
POOL = 8  # good ones to change, of different costs


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

    The first are `KNOWN`. Then waves and settings of the greedy are drawn at random or, mostly, are one of the
    best with one to three parameters changed. Runs that would end later than the best few are stopped early.

    Args:
        over: called before every run; tells whether to stop.
        found: called with each new best schedule.
    """
    random = Random(seed)
    try:
        runs_of = Runs(problem.profile, problem.microbatches, problem.limits)
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
        if run < len(KNOWN):
            chosen |= KNOWN[run].parameters(problem.shape.chunks)
        elif best and run > len(KNOWN) + RANDOM_RUNS and random.random() < CHANGES:
            changed = random.sample(list(choices), random.choice((1, 1, 2, 3)))
            chosen = {**random.choice(best)[2], **{key: chosen[key] for key in changed}}
        most = best[-1][0] if len(best) == POOL and problem.objective == "flush" else 2**62
        played = runs_of.play(
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
