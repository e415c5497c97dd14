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

from ...op_table import KEEP, apart, inside
from ...ops import BW, B, C, F, O, OpKind, R, W
from .best_first import FULL, make_room, search
from .layered import make_layers, search_layers
from .moves import COUNTS, LAYERS, MOVES, PLACES, Case
from .node import FIELDS, NEVER, NONE
from .problem import OneDevice

ROOM = 300_000  # nodes of a few layers; then more are merged
ENDS = 6  # ends of F's distinguished per stage and level; more stay on the device only where memory is ample


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
    duration, takes, gives = _costs(problem, levels)
    held = int((takes[:, F] - gives[:, F])[duration[:, F] >= 0].min())
    keep = min(m, ENDS, problem.capacity // held if held else m)
    drains = [(one.level, one.extra_ns, one.weights_ns) for one in problem.drains]
    case = Case(
        duration,
        takes,
        gives,
        duration[:, B] - np.repeat(duration[::levels, B], levels),
        np.array(problem.delay, np.int64),
        stages,
        levels,
        m,
        problem.capacity,
        problem.exclusive,
        keep,
        goal_ns,
        problem.last.in_all,
        problem.last.lost,
        np.ascontiguousarray(problem.earliest),
        np.ascontiguousarray(problem.later),
        np.array(drains, np.int64),
        problem.after_ns,
        prices,
    )
    columns = FIELDS + stages * (COUNTS + levels * (PLACES + keep))
    return case, columns, stages * levels * MOVES


def _costs(problem: OneDevice, levels: int) -> np.ndarray:
    """Return (3, stages * levels, kinds) the durations of ops, the bytes that they allocate and those that they
    release; see `moves.Case`."""
    kinds = np.arange(len(OpKind))
    found = np.full((3, len(problem.costs), levels, len(kinds)), NONE, np.int64)
    for s, cost in enumerate(problem.costs):
        for level in range(1 + len(cost.recompute)):
            treatment = np.where(kinds == C, apart(level), inside(level) if level else KEEP)
            found[:, s, level] = [array[kinds, s, treatment] for array in problem.table[:3]]
            duration, takes, _ = found[:, s, level]
            if duration[BW] >= duration[B] + duration[W] and takes[BW] >= takes[B]:
                duration[BW] = NONE
            if not problem.offloads or not takes[R]:
                duration[[O, R]] = NONE
            duration[W if level else C] = NONE
    return found.reshape(3, -1, len(kinds))
