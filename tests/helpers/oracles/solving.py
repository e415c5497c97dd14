"""What every result of a solver has to keep, and an engine that does nothing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from optpipe_sim import CostProfile, simulate
from optpipe_sim.checker.check import check, check_trace
from optpipe_sim.solvers.result import SolveResult


def verify(result: SolveResult, profile: CostProfile, limit: Any, objective: str = "flush") -> None:
    """The schedule keeps the limit and costs what is said; bound and incumbents are in order."""
    assert result.schedule is not None
    profile = profile.for_shape(result.schedule.shape)
    assert check(result.schedule, profile, limit) == []
    trace = simulate(result.schedule, profile, limit, objective=objective)
    assert check_trace(trace) == []
    assert trace.cost_ns == result.objective_ns >= result.lower_bound_ns
    assert result.status == ("optimal" if result.gap == 0 else "feasible")
    costs = [cost for _, cost in result.incumbents]
    assert all(more > less for more, less in pairwise(costs))
    assert costs[-1] >= result.objective_ns


def sleeps(*_: Any) -> None:
    import time

    time.sleep(60)
