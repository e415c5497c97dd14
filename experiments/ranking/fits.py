"""Executions fitted to settings, by least squares over the grid of `optpipe_sim.costs.issuing`.

Plain schedules are blocking: all of these trainers are forks of Megatron-LM, whose plain 1F1B ends each exchange in a
synchronisation of the host, and Aceso's runs replay so. Whether iterations chain is not fitted either: sources say it. What the
schedules of a setting have in common cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache

import numpy as np

from experiments.ranking.settings import Setting
from optpipe_sim.costs.issuing import Fit, grid, log_errors
from optpipe_sim.execution import FAMILIES

IDEAL = Fit(span=False)
GRID = grid(plain=("blocking",))


@cache
def _errors(setting: Setting) -> np.ndarray:
    return log_errors(setting.runs, GRID)


# what a fit may choose from: everything, or all but one of its numbers
CHOICES: Mapping[str, Callable[[Fit], bool]] = {
    "fitted": lambda one: True,
    "overlapped": lambda one: one.interleaved == "latency",
    "unblocked": lambda one: {one.interleaved, one.split} == {"latency"},
    "no-op-time": lambda one: one.op_us == 0,
    "free-split": lambda one: one.split_factor == 1,
}


@cache
def fit(
    settings: Sequence[Setting], families: Collection[str] = FAMILIES, choice: str = "fitted"
) -> Fit:
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
