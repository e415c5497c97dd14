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

Nodes are taken in the order of what they cost at least (work left and weight gradients
that fit behind the last backward; the prices of `bounds.lp`; the tails of what has run), so that the cost of
the next one bounds all schedules whenever the search stops.
"""

from __future__ import annotations

import numpy as np

from .best_first import FIELDS, FULL, NEVER, NONE, make_room
from .core import LAYERS, MOVES, WIDE, Case, search, search_layers
from .layers import Compiled, make_layers
from .levels import compiled_with_levels
from .problem import OneDevice

ROOM = 300_000  # nodes of a few layers; then more are merged
KEEP = 6  # ends of F's distinguished per stage; more stay on the device only where memory is ample


def device_bound(
    problem: OneDevice,
    prices: np.ndarray | None = None,
    nodes: int = 100_000,
    goal_ns: int = NEVER,
) -> tuple[int, bool]:
    """Return a lower bound on the cost of every schedule, from one of its devices.

    Args:
        prices: (sets, stages, 10), from `bounds.lp.prices`; None: without.
        nodes: room for the search; it stops when that is full.
        goal_ns: the search stops at this bound.

    Returns:
        (bound in ns, whether more nodes cannot improve it).
    """
    if not problem.possible:
        return 0, True
    one = _compiled(problem, prices, goal_ns)
    bound, _, end = one.best_first(one.case, make_room(nodes, one.columns, one.moves))
    return int(bound), end != FULL


def layered_bound(
    problem: OneDevice,
    prices: np.ndarray | None = None,
    width: int = 16,
    goal_ns: int = NEVER,
    most: int = 1 << 40,
) -> tuple[int, bool]:
    """Return what `device_bound` does, by the search of `layers`.

    Args:
        width: the most nodes with the same counts; the more, the better the bound, and the longer it takes.
        most: how many nodes it makes at most; one that is stopped by this proves little.

    Returns:
        (bound in ns, whether a greater width cannot improve it).
    """
    if not problem.possible:
        return 0, True
    one = _compiled(problem, prices, goal_ns)
    room = make_layers(min(most, ROOM), one.columns, one.moves, one.layers)
    bound, _, final = one.layered(one.case, room, width, most)
    if bound == NEVER:
        return 0, True  # no order of ops goes through
    return int(bound), bool(final) or bound == goal_ns


def _compiled(problem: OneDevice, prices: np.ndarray | None, goal_ns: int) -> Compiled:
    if any(cost.recompute for cost in problem.costs):
        return compiled_with_levels(problem, goal_ns)
    stages, m = len(problem.stages), problem.microbatches
    most = [m if not c.act_bytes else problem.capacity // c.act_bytes for c in problem.costs]
    keep = min(m, KEEP, max(most))
    costs = np.array(
        [
            (
                cost.t_f_ns,
                cost.t_b_ns,
                cost.t_w_ns,
                cost.fused_ns if cost.fused_ns < cost.t_b_ns + cost.t_w_ns else NONE,
                cost.t_offload_ns or 0,
                cost.t_reload_ns or 0,
                cost.act_bytes,
                cost.w_bytes,
                cost.offloadable if problem.offloads else 0,
                delay,
            )
            for cost, delay in zip(problem.costs, problem.delay, strict=True)
        ],
        np.int64,
    )
    case = Case(
        costs,
        m,
        problem.capacity,
        problem.exclusive,
        keep,
        goal_ns,
        problem.after_ns,
        problem.last.lost,
        problem.releases,
        problem.backs,
        problem.tails,
        problem.follows,
        np.zeros((0, stages, 10), np.int64) if prices is None else prices,
    )
    columns, moves = FIELDS + stages * (WIDE + keep), stages * MOVES
    return Compiled(case, columns, moves, LAYERS * stages * m, search, search_layers)
