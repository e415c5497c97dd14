"""What an engine is to do, what it reports while it runs, what it learns from other engines, and the
callbacks of `solve`.

Every engine has one function, ``run(job, report, others)`` (`race.jobs.ROOMS` says where), which is called in
its own process. It reports ``("incumbent", (schedule, method))`` with the name of the method that found it,
``("bound", ns)``, ``("named bound", (ns, name))`` if it has several kinds of bounds, ``("infeasible", None)``
or ``("size", (variables, constraints))``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..schedule import Schedule
from .options import SolveOptions
from .problem import Problem

Report = Callable[[str, Any], None]
# the best schedule of the other engines, if one of them has improved it since the last call
Others = Callable[[], Schedule | None]


def no_report() -> None:
    """Report that no other engine has found anything."""


@dataclass(frozen=True)
class Job:
    """What an engine is to do.

    Attributes:
        start: a schedule to start from, or None.
        options: their time limit, seed and workers are those of this engine.
        bound_ns: a proven lower bound.
        chosen: for the search of a problem with treatments, the result of `starts.fixed_levels.first_starts`,
            if known. `part`: the number of this search and the total of parallel searches, which share
            these starts. `brief`: it anneals from these as they are.
    """

    problem: Problem
    start: Schedule | None
    options: SolveOptions
    bound_ns: int = 0
    chosen: Sequence[Any] = ()
    part: tuple[int, int] = (0, 1)
    brief: bool = False


@dataclass(frozen=True)
class Hooks:
    """The callbacks of `solve`, and the file for the best schedule; see there."""

    on_incumbent: Callable[[Schedule, int], None] | None = None
    watch: Callable[[Any], None] | None = None
    on_wait: Callable[[], None] = no_report
    save: str | os.PathLike[str] | None = None
