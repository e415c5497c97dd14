"""The best known lower bound of a problem: from closed forms, an earlier solve, the cache, or a
search of a few seconds."""

from __future__ import annotations

from ..bounds.bounds import Bound
from ..schedule import Schedule
from .problem import Problem
from .race.bounds import best_bound
from .race.cache import open_cache
from .race.identity import identity


def note(problem: Problem, schedule: Schedule, bound_ns: int, name: str) -> None:
    """Record in a schedule's notes the proven bound, the key of its problem and the unit of time
    (problems that differ only in the unit have the same key)."""
    wanted = identity(problem)
    schedule.meta.update(
        problem=wanted.key,
        time_unit_ns=wanted.time_unit_ns,
        objective=problem.objective,
        lower_bound_ns=bound_ns,
        bound=name,
    )


def known_bound(problem: Problem, schedule: Schedule, cost_ns: int, seconds: float) -> Bound:
    """Return the best known bound on the cost of any schedule of a problem, searching briefly for a
    better one.

    Args:
        schedule, cost_ns: a schedule that fits, and its cost. Its notes (see `note`) are used if
            they are about this very problem. A recorded bound above this cost is wrong and is
            ignored.
        seconds: time to search for a better bound, unless a known one equals the cost.
    """
    cache = open_cache()
    known = [
        problem.lower_bound,
        Bound(*cache.bound_ns(problem)),
    ]
    entry = cache.get(problem)
    if entry is not None:
        known.append(Bound(entry.bound * entry.problem.time_unit_ns, entry.bound_name))
    notes, wanted = schedule.meta, identity(problem)
    claim = notes.get("lower_bound_ns")
    same = notes.get("problem"), notes.get("time_unit_ns")
    if isinstance(claim, int) and same == (wanted.key, wanted.time_unit_ns):
        known.append(Bound(claim, str(notes.get("bound"))))
    best = max((bound for bound in known if bound.ns <= cost_ns), key=lambda bound: bound.ns)
    if best.ns < cost_ns:
        found = [best]
        best_bound(problem, seconds, cost_ns, lambda ns, name: found.append(Bound(ns, name)))
        best = max(found, key=lambda bound: bound.ns)
    return best
