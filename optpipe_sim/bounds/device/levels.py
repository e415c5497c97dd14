"""The best-first bound for a device whose activations may be recomputed.

As `search`, with an activation's level in the state: an F runs at one of the levels, a backward recomputes
inside, or a C makes the activation whole before it. Of the exchange arguments there these hold here:

- Microbatches that wait in the same place at the same level are alike: the oldest is the first to have
  its backward, the newest to be offloaded, and a reloaded one goes before one that stayed.
- C takes the oldest, and those that stay at the level lose their newest: that is no less than what any
  choice leaves (a relaxation).
- A compute op that starts when a W could have ended already may run after it. (Not so for backwards:
  their durations depend on the level.)
- Of two nodes with the same counts, in each place at each level, the one that is no later in anything
  makes the other needless: what is held when all that runs has ended is the same.

The estimate adds to the remaining work the recomputation of the activations that wait at a level.
After the last backward the W's run that fit beside it, as it was run: one that recomputes leaves room
for more of them, and takes longer.
"""

from __future__ import annotations

import numpy as np

from ...op_table import inside, make_table
from ...ops import BW, B, F, O, R, W
from .best_first import FIELDS, NONE
from .layers import Compiled
from .levels_core import (
    COLUMNS,
    COUNTS,
    LAYERS,
    MOVES,
    PLACES,
    Case,
    search_levels,
    search_levels_in_layers,
)
from .problem import OneDevice

KEEP = 6  # ends of F's distinguished per stage and level


def compiled_with_levels(problem: OneDevice, goal_ns: int) -> Compiled:
    """Return the problem of a device whose activations may be recomputed, for the compiled searches."""
    stages, m = len(problem.stages), problem.microbatches
    levels = 1 + max(len(cost.recompute) for cost in problem.costs)
    keep = min(m, KEEP)
    drains = [(one.level, one.extra_ns, one.weights_ns) for one in problem.drains]
    case = Case(
        _costs(problem, levels),
        stages,
        levels,
        m,
        problem.capacity,
        problem.exclusive,
        keep,
        goal_ns,
        problem.last.in_all,
        problem.last.lost,
        problem.releases,
        problem.backs,
        problem.tails,
        problem.follows,
        np.array(drains, np.int64),
    )
    columns = FIELDS + stages * (COUNTS + levels * (PLACES + keep))
    moves, layers = stages * levels * MOVES, LAYERS * stages * m
    return Compiled(case, columns, moves, layers, search_levels, search_levels_in_layers)


def _costs(problem: OneDevice, levels: int) -> np.ndarray:
    """(stages * levels, COLUMNS), see `levels_core`."""
    duration, allocated, released, _ = make_table(problem.costs)
    rows = np.full((len(problem.costs) * levels, COLUMNS), NONE, np.int64)
    for s, cost in enumerate(problem.costs):
        for level in range(1 + len(cost.recompute)):
            way = inside(level) if level else 0
            time, more, less = duration[:, s, way], allocated[:, s, way], released[:, s, way]
            again = cost.recompute[level - 1].t_ns if level else 0
            smaller = level and more[BW] < more[B]
            fuses = cost.fused_ns < cost.t_b_ns + cost.t_w_ns or smaller
            keep = int(more[F] - less[F])
            rows[s * levels + level] = (
                time[F], time[B], time[W], time[BW] if fuses else NONE, again, time[O], time[R],
                more[F], less[F], more[B], less[B], more[BW], less[BW], cost.act_bytes - keep,
                more[R] if problem.offloads else 0, cost.w_bytes, problem.delay[s], again,
            )  # fmt: skip
    return rows
