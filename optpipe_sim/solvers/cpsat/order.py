"""The order of microbatches: what may be assumed of it without losing the optimum.

Microbatches are alike, so a schedule can be relabelled. Look at one stage and two of its
microbatches x, y: the times of their F's, B's, W's, O's and R's. Exclusive engines and the bytes
held depend on those times and not on the microbatch, so times may be reassigned as long as each
microbatch gets F, O, R, B, W in this order, and each stage its input in time.

**Sorted is optimal if it is possible.** Give x the earlier F and the earlier B (with its W), y the
later ones, at every stage. Data flow holds: at each stage the earlier of two F's follows the
earlier of the two of the stage before, the later the later, and so back for B. F before B holds
too. Only copies can prevent the exchange. Let u have the earlier F and the later B, and i the F and
B in between.

- Neither offloaded: nothing to do. Only i: u takes over its O and R, which lie within its own
  [F, B] and, R having ended before the earlier B, within the new one.
- Both: let x take the earlier O and the earlier R and y the later ones. The R that ended before the
  earlier B bounds the earlier R, the later R ended before the later B; the earlier O follows the
  earlier F, the later O follows O of i, which follows the later F; the k-th R follows the k-th O.
- Only u: if its R ends before B of i starts, x keeps the copy; if its O starts after F of i ends, y
  takes it. **Blocked** is what is left: O of u starts before F of i ends and R of u ends after B of
  i starts, that is, i runs its F and B on the device while u is on the host.

Each such exchange of an inverted pair lowers the number of inversions, counted over the F's and B's
of all stages. So some optimal schedule has, for every pair x < y, one of two: all F's and B's (and
W's, which follow the order of B's) of x before those of y at all stages; or a stage at which the
pair is blocked. Among pairs of the first kind that are both offloaded at a stage, O's and R's keep
the order as well (deal them out sorted; again inversions fall).

It follows that without offloading **first in, first out** loses nothing. With offloading it can: a
microbatch parked on the host while others overtake it saves them their copies, which pays if copies
are slow and memory is scarce (a few per cent in three of a hundred random small problems). So the
proof has two parts: ``fifo`` (all pairs sorted) and ``passing`` (each pair sorted or blocked, at
least one not sorted). No schedule is better than the better of the two.

**Ranks** are a relaxation: F, B and W number k of each stage, counted in time, in place of those of
a microbatch; O number k, and R for the B number r. Each k-th event needs k of what it waits for, so
every schedule satisfies the constraints below; the bytes held are the same. The relaxation loses
that an offloaded activation belongs to the same microbatch at all stages. It is small and fast, and
its bound holds for every schedule.

**Windows** (``windows``) do not constrain the order itself, but when the n-th F and the n-th B of
each stage start in every schedule that costs less than the incumbent (`bounds.windows`). Each
microbatch takes one place at each stage, and so one window. That leaves few orders if memory is
scarce, and covers all of them, so it is tried before ``passing`` (makespans only).

For the objective ``span`` the same holds, since a device may delay its first op in this model: the
times of all ops stay the same.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np

from ...bounds.windows import Windows
from ...ops import B, F, O, Op, OpKind, R, W
from .model import Model, copy, may_move

FIFO, PASSING, FREE, RANKS, WINDOWS = "fifo", "passing", "free", "ranks", "windows"
SORTED = (FIFO, RANKS)


def order(model: Model, kind: str) -> None:
    """Constrain the order of microbatches: ``fifo``, ``passing`` (see above), or else only the F's
    of stage 0 in order, which merely labels the microbatches."""
    if kind in SORTED:
        _first_in_first_out(model)
        return
    for i, j in pairwise(model.microbatches):
        _after(model, Op(F, 0, i), Op(F, 0, j))
    if kind == PASSING:
        pairs = combinations(model.microbatches, 2)
        model.cp.add_bool_or([~_sorted_or_blocked(model, x, y) for x, y in pairs])


def _after(model: Model, first: Op, second: Op, *literals: Any) -> None:
    model.cp.add(model.start[second] >= model.end[first]).only_enforce_if(*literals)


def _first_in_first_out(model: Model) -> None:
    """Order every kind at every stage. Absent copies keep a place of zero duration in the chain, so
    that one chain links all that are present."""
    for s in model.stages:
        for i, j in pairwise(model.microbatches):
            for kind in (F, B, W):
                if kind is W and (s, i) in model.fused:
                    continue  # W's that are absent would break the chain
                _after(model, Op(kind, s, i), Op(kind, s, j))
            for kind in (O, R):
                first, second = Op(kind, s, i), Op(kind, s, j)
                if first in model.present:
                    duration = model.duration_of(kind, s) * model.present[first]
                    model.cp.add(model.start[second] >= model.start[first] + duration)


def ranked_transfers(model: Model) -> None:
    """Add O's and R's by rank, in place of `model.transfers`: if n activations are offloaded at a
    stage, these are O number 0 to n - 1, and R's for the last n B's: the R's from any one on are
    as many as the B's that they serve, all of which come after it."""
    cp, m = model.cp, model.problem.microbatches
    for s in filter(lambda s: may_move(model.problem, s), model.stages):
        more_than = [cp.new_bool_var(f"more than {n} at {s}") for n in range(m)]
        for fewer, more in pairwise(more_than):
            cp.add_implication(more, fewer)
        for k, there in enumerate(more_than):
            out, reload = Op(O, s, k), Op(R, s, m - 1 - k)
            copy(model, out, there)
            copy(model, reload, there)
            _after(model, Op(F, s, k), out, there)
            _after(model, reload, Op(B, s, m - 1 - k), there)
        for r in model.microbatches:
            for k in range(r + 1):
                # with n > m - 1 - r + k copies, R for B number r has at least k O's before it
                _after(model, Op(O, s, k), Op(R, s, r), more_than[m - 1 - r + k])


def take_places(model: Model, windows: Windows) -> None:
    """Make every F and every backward start in the window of its place among those of its stage."""
    pairs = (
        (F, windows.earliest_f, windows.latest_f),
        (B, windows.earliest_b, windows.latest_b),
    )
    for s in model.stages:
        for kind, earliest, latest in pairs:
            first, last = -(-earliest[s] // model.unit_ns), latest[s] // model.unit_ns
            _one_place_each(model, kind, s, first, last)


def _one_place_each(
    model: Model, kind: OpKind, s: int, first: np.ndarray, last: np.ndarray
) -> None:
    cp, order = model.cp, model.microbatches
    takes: dict[tuple[int, int], Any] = {}
    for j in order:
        start = model.start[Op(kind, s, j)]
        places = [j] if kind is F and s == 0 else order
        for n in places:
            literal = takes[j, n] = cp.new_bool_var(f"{kind.name}{s}.{j} is number {n}")
            cp.add(start >= int(first[n])).only_enforce_if(literal)
            cp.add(start <= int(last[n])).only_enforce_if(literal)
        cp.add_exactly_one([takes[j, n] for n in places])
    if len(takes) > len(order):
        for n in order:
            cp.add_exactly_one([takes[j, n] for j in order])


def _sorted_or_blocked(model: Model, x: int, y: int) -> Any:
    """Return the literal that x precedes y everywhere; if it is false the pair is blocked somewhere."""
    cp = model.cp
    before = cp.new_bool_var(f"{x} before {y}")
    ways = [before]
    for s in model.stages:
        for kind in (F, B):
            _after(model, Op(kind, s, x), Op(kind, s, y), before)
        if (s, x) not in model.fused:
            _after(model, Op(W, s, x), Op(W, s, y), before)
        if (s, x) not in model.moved:
            continue
        for kind in (O, R):
            both = (before, model.moved[s, x], model.moved[s, y])
            _after(model, Op(kind, s, x), Op(kind, s, y), *both)
        ways += [_blocked(model, s, x, y)] + ([_blocked(model, s, y, x)] if s else [])
    cp.add_bool_or(ways)
    return before


def _blocked(model: Model, s: int, outer: int, inner: int) -> Any:
    """Return a literal that implies: at stage s `inner` runs F to B while `outer` is on the host."""
    cp = model.cp
    blocked = cp.new_bool_var(f"{inner} passes {outer} at {s}")
    cp.add_implication(blocked, model.moved[s, outer])
    cp.add_implication(blocked, ~model.moved[s, inner])
    _after(model, Op(F, s, outer), Op(F, s, inner), blocked)
    _after(model, Op(B, s, inner), Op(B, s, outer), blocked)
    offload_start, reload_end = model.start[Op(O, s, outer)], model.end[Op(R, s, outer)]
    cp.add(offload_start < model.end[Op(F, s, inner)]).only_enforce_if(blocked)
    cp.add(reload_end > model.start[Op(B, s, inner)]).only_enforce_if(blocked)
    return blocked
