"""Executions fitted to settings: what a trainer's ops and messages cost beside their kernels, by least squares over a grid.

A fit has four numbers: whether messages block the sender in interleaved schedules, and in those with B and W apart; what every op
takes beside its kernels; how much longer B and W take apart than the costs say. Plain schedules are blocking: all of these
trainers are forks of Megatron-LM, whose plain 1F1B ends each exchange in a synchronisation of the host, and Aceso's runs
replay so. Whether iterations chain is not fitted either: sources say it. What the schedules of a setting have in common cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

from experiments.ranking.settings import Run, Setting
from optpipe_sim.execution import FAMILIES, Issue
from optpipe_sim.execution import Execution as Issued
from optpipe_sim.profile.iteration import iteration_ns
from optpipe_sim.sim import simulate

LINKS = ("latency", "blocking")
OPS_US = (0, 100, 200, 300, 500, 700, 1000)
SPLITS = (1.0, 1.01, 1.02, 1.03, 1.04, 1.06, 1.08)


class Execution(NamedTuple):
    """How a trainer issues the work: the kind of links by family, what an op takes beside its kernels (us), by how much B and
    W take longer apart, and whether iterations that chain are counted by their span."""

    plain: str = "latency"
    interleaved: str = "latency"
    split: str = "latency"
    op_us: int = 0
    split_factor: float = 1.0
    span: bool = True

    def links(self, family: str) -> str:
        """Return the kind of links of a family of schedules."""
        return {"plain": self.plain, "interleaved": self.interleaved}.get(family, self.split)


IDEAL = Execution(span=False)
# the nearest to ideal first: of equally good fits the first is taken
GRID = tuple(
    Execution("blocking", interleaved, split, op_us, factor)
    for op_us, factor, interleaved, split in product(OPS_US, SPLITS, LINKS, LINKS)
)


def predicted(run: Run, execution: Execution) -> float:
    """Return how long an iteration of a run takes under an execution, in ns."""
    factor = execution.split_factor if run.family.startswith("split") else 1.0
    chained = run.chained and execution.span
    return _times(run, execution.links(run.family), execution.op_us, factor)[chained]


@cache
def _times(run: Run, links: str, op_us: int, split: float) -> tuple[float, float]:
    """Return the iteration's time with a flush, and where iterations chain."""
    issue = Issue(links, 1000 * op_us, split=Fraction(str(split)))
    profile = replace(run.profile, execution=Issued("", {run.family: issue}))
    trace = simulate(run.schedule, profile, enforce=False, explain=False)
    flush, span = trace.makespan_ns, max(trace.span_ns)
    return iteration_ns(run.profile, flush), iteration_ns(run.profile, span)


@cache
def _errors(setting: Setting) -> np.ndarray:
    """Return (runs, executions of the grid): the logarithm of predicted over measured time."""
    return np.log([[predicted(run, one) / run.time for one in GRID] for run in setting.runs])


# what a fit may choose from: everything, or all but one of its numbers
CHOICES: Mapping[str, Callable[[Execution], bool]] = {
    "fitted": lambda one: True,
    "overlapped": lambda one: one.interleaved == "latency",
    "unblocked": lambda one: {one.interleaved, one.split} == {"latency"},
    "no-op-time": lambda one: one.op_us == 0,
    "free-split": lambda one: one.split_factor == 1,
}


@cache
def fit(
    settings: Sequence[Setting], families: Collection[str] = FAMILIES, choice: str = "fitted"
) -> Execution:
    """Return the execution of the grid under which the errors within settings differ least, settings alike.

    Args:
        families: of the runs that are used. choice: of `CHOICES`.
    """
    losses: list[np.ndarray] = []
    for setting in settings:
        used = [at for at, run in enumerate(setting.runs) if run.family in families]
        if len(used) > 1:
            losses.append(_errors(setting)[used].var(axis=0, ddof=1))
    loss = np.array(losses).mean(axis=0).round(12)
    return GRID[min(filter(lambda at: CHOICES[choice](GRID[at]), range(len(GRID))), key=loss.item)]
