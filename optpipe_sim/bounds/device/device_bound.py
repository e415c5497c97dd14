"""The best-first bound: the cheapest schedule of one device, whatever the others do.

Proof that it bounds. Take any schedule and look at device d alone. In the order in which its ops start, let
each start as early as the rest of `OneDevice` lets it; by induction none starts later
than it did. So some order of ops reaches a cost no greater than the schedule's, and the search
goes through all orders, except those that another of no greater cost replaces:

- Microbatches of a stage are alike, so those that stay on the device all along leave it in the order in which
  they came, those reloaded likewise (else exchange the two from the moment when both are in the same place).
- Of those on the device the newest is offloaded: exchanged with an older one the older one is ready
  sooner. (What has been on the host is taken to be ready when it is back: a relaxation.)
- The backward takes a reloaded activation rather than one that stayed, if there is one: the other one can
  still do whatever it could have.
- A compute op that starts when a W, or the backward of a reloaded activation (or of one that stayed, while none is
  reloaded), could have ended already may run after it: that only releases memory.
- Two nodes with the same counts: the one that is no later in anything makes the other needless.

Where activations may be recomputed, the level of each is in the state: an F runs at one of the levels, a backward
recomputes inside, or a C makes the activation whole before it. Of the exchange arguments these hold then:

- Microbatches that wait in the same place at the same level are alike: the oldest is the first to have
  its backward, the newest to be offloaded, and a reloaded one goes before one that stayed.
- C takes the oldest, and those that stay at the level lose their newest: that is no less than what any
  choice leaves (a relaxation).
- A compute op that starts when a W could have ended already may run after it. (Not so for backwards:
  their durations depend on the level.)
- Of two nodes with the same counts, in each place at each level, the one that is no later in anything
  makes the other needless: what is held when all that runs has ended is the same.

Nodes are taken in the order of what they cost at least (work left and weight gradients that fit behind
the last backward, as it was run; what recomputes the activations that wait at a level; the prices of
`bounds.lp`, where there are no levels; the tails of what has run), so that the cost of the next one
bounds all schedules whenever the search stops.
"""

from __future__ import annotations

import numpy as np

from ...op_table import inside
from ...ops import BW, B, F, O, R, W
from .best_first import FULL, make_room, search
from .layered import make_layers, search_layers
from .moves import COLUMNS, COUNTS, FA, FR, LAYERS, MOVES, PLACES, Case
from .node import FIELDS, NEVER, NONE
from .problem import OneDevice

ROOM = 300_000  # nodes of a few layers; then more are merged
KEEP = 6  # ends of F's distinguished per stage and level; more stay on the device only where memory is ample


def device_bound(
    problem: OneDevice,
    prices: np.ndarray | None = None,
    nodes: int = 100_000,
    goal_ns: int = NEVER,
) -> tuple[int, bool]:
    """Return a lower bound on the cost of every schedule, from one of its devices.

    Args:
        prices: (sets, stages, 10), from `prices.prices`; None: without.
        nodes: room for the search; it stops when that is full.
        goal_ns: the search stops at this bound.

    Returns:
        (bound in ns, whether more nodes cannot improve it).
    """
    if not problem.possible:
        return 0, True
    case, columns, moves = _compiled(problem, prices, goal_ns)
    bound, _, end = search(case, make_room(nodes, columns, moves))
    return int(bound), end != FULL


def layered_bound(
    problem: OneDevice,
    prices: np.ndarray | None = None,
    width: int = 16,
    goal_ns: int = NEVER,
    most: int = 1 << 40,
) -> tuple[int, bool]:
    """Return what `device_bound` does, by the search of `layered`.

    Args:
        width: the most nodes with the same counts; the more, the better the bound, and the longer it takes.
        most: how many nodes it makes at most; one that is stopped by this proves little.

    Returns:
        (bound in ns, whether a greater width cannot improve it).
    """
    if not problem.possible:
        return 0, True
    case, columns, moves = _compiled(problem, prices, goal_ns)
    layers = LAYERS * case.stages * case.microbatches
    room = make_layers(min(most, ROOM), columns, moves, layers)
    bound, _, final = search_layers(case, room, width, most)
    if bound == NEVER:
        return 0, True  # no order of ops goes through
    return int(bound), bool(final) or bound == goal_ns


def _compiled(problem: OneDevice, prices: np.ndarray | None, goal_ns: int) -> tuple[Case, int, int]:
    """Return the problem as the compiled searches take it, the length of a node and the number of moves."""
    stages, m = len(problem.stages), problem.microbatches
    levels = 1 + max(len(cost.recompute) for cost in problem.costs)
    if prices is None or levels > 1:
        prices = np.zeros((0, stages, 10), np.int64)
    costs = _costs(problem, levels)
    held = min(one[FA] - one[FR] for one in costs if one[0] >= 0)
    keep = min(m, KEEP, problem.capacity // int(held) if held else m)
    drains = [(one.level, one.extra_ns, one.weights_ns) for one in problem.drains]
    case = Case(
        costs,
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
        problem.after_ns,
        prices,
    )
    columns = FIELDS + stages * (COUNTS + levels * (PLACES + keep))
    return case, columns, stages * levels * MOVES


def _costs(problem: OneDevice, levels: int) -> np.ndarray:
    """(stages * levels, COLUMNS), see `moves`."""
    duration, allocated, released, _ = problem.table
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
                time[F],
                time[B],
                time[W],
                time[BW] if fuses else NONE,
                again,
                time[O],
                time[R],
                more[F],
                less[F],
                more[B],
                less[B],
                more[BW],
                less[BW],
                cost.act_bytes - keep,
                more[R] if problem.offloads else 0,
                cost.w_bytes,
                problem.delay[s],
                again,
            )
    return rows
