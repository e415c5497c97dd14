"""Remove useless offloads that a search has left behind, at the same cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...errors import OptPipeError
from ...ops import BW, O, R
from ...schedule import Schedule
from ..anneal.plans import pack
from ..anneal.search import Workspace
from ..problem import Problem
from ..treatments import restrict

SECONDS = 1.0


def tidy(
    problem: Problem, schedule: Schedule, seconds: float = SECONDS, tries: int | None = None
) -> Schedule:
    """Return the schedule without the offloads that can be dropped at the same cost; itself if
    there are none.

    Sets of offloads are dropped together, those that free memory for the shortest time first; a set
    that cannot be dropped is halved. Replays before and after ensure that the result is never
    worse.

    Args:
        problem: the problem that the schedule solves. `seconds`: time limit. `tries`: the most sets
            of offloads to try.
    """
    table = schedule.table
    if schedule.levels.table.any():
        return schedule  # see `treated.tidy`
    if not (table[:, 0] == O).any() or (table[:, 0] == BW).any():
        return schedule
    until = time.monotonic() + seconds
    trace = problem.replay(schedule)
    shape, out = schedule.shape, table[table[:, 0] == O].tolist()
    away = {
        (stage, unit): int(
            trace.grant_ns[schedule.row(shape.op(R, stage, unit))]
            - trace.end_ns[schedule.row(shape.op(O, stage, unit))]
        )
        for _, stage, unit in out
    }
    # nothing is recomputed: shared links are then evaluated as they are
    plain = replace(problem, profile=restrict(problem.profile, problem.treatments - {"recompute"}))
    work, span = Workspace(plain), problem.objective == "span"

    def without(dropped: set[tuple[int, int]]) -> Schedule:
        chosen = np.zeros((shape.stages, shape.units), bool)
        chosen[tuple(np.array(sorted(dropped)).T)] = True
        return schedule.without_offloads(chosen)

    def fits(dropped: set[tuple[int, int]]) -> bool:
        # the compiled evaluation never underestimates, so what it accepts is no worse
        return work.evaluate(pack(plain, without(dropped)))[span] <= trace.cost_ns

    gone: set[tuple[int, int]] = set()
    order = sorted(away, key=lambda unit: (away[unit], unit))
    todo: list[Sequence[tuple[int, int]]] = [order]
    left = float("inf") if tries is None else tries
    while todo and left > 0 and time.monotonic() < until:
        some = todo.pop()
        left -= 1
        if fits(gone | set(some)):
            gone |= set(some)
        elif len(some) > 1:
            half = len(some) // 2
            todo += [some[half:], some[:half]]  # the first half comes next
    if not gone:
        return schedule
    tidied = without(gone)
    try:
        return tidied if problem.replay(tidied).cost_ns <= trace.cost_ns else schedule
    except (
        OptPipeError
    ):  # not on shared links: without their order they serve other transfers first
        return schedule
