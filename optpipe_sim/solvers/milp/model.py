"""The reconstructed MILP in Pyomo: our reading of OptPipe's program (arXiv 2510.05186).

`variables` declares its variables; `constraints` has one function per constraint of docs/milp.md.
"""

from __future__ import annotations

from itertools import pairwise
from math import comb, gcd

from ..problem import Problem
from .constraints import CONSTRAINTS, Implied
from .options import MilpOptions
from .sets import Sets
from .variables import Model, declare, fix_decided, need
from .windows import serial_ns, windows

# ticks in the horizon, beyond which the numbers in the model would differ too much in scale
FINEST = 10**5
FEW = 4  # microbatches of the largest model that is built to know the size of larger ones


def build_model(sets: Sets, upper_ns: int, lower_ns: int = 0) -> Model:
    """Build the MILP for schedules that cost at most `upper_ns`; no schedule costs less than `lower_ns`."""
    pyo = need("pyomo.environ", "pyomo")
    frame = windows(sets, upper_ns)
    tick = gcd(
        sets.problem.profile.t_comm_ns, *(ns for own in sets.durations.values() for ns in own)
    )
    unit = max(float(tick), max(frame.deadlines) / FINEST)
    model = Model(sets, frame, pyo.ConcreteModel("optpipe"), unit, tick)
    declare(model, pyo, upper_ns, lower_ns)
    for rule in CONSTRAINTS:
        family = pyo.ConstraintList()
        model.pyomo.add_component(rule.__name__, family)
        for row in rule(model):
            if isinstance(row, Implied):
                family.add(row.expression).deactivate()
            else:
                family.add(row)
    if sets.options.fix:
        fix_decided(model, pyo)
    return model


def model_size(problem: Problem, options: MilpOptions | None = None) -> tuple[int, int]:
    """Return the numbers of variables and constraints of a problem's MILP, before time windows fix
    some.

    Constraints are about up to three microbatches, so the numbers are polynomials of degree 3 in
    m: Pyomo counts small models, with the memory limits of the large one, and Newton's differences
    extend the series.
    """
    sizes = []
    for m in range(1, min(FEW, problem.microbatches) + 1):
        sets = Sets(problem, options or MilpOptions(), m)
        sizes.append(build_model(sets, serial_ns(sets)).size)
    variables, rows = (
        _extended(list(series), problem.microbatches) for series in zip(*sizes, strict=True)
    )
    return variables, rows


def _extended(series: list[int], m: int) -> int:
    """Return the m-th number of a series that is a polynomial in m, given its first ones (m = 1, 2, ...), by
    Newton's forward differences."""
    value = 0
    for degree in range(len(series)):
        value += series[0] * comb(m - 1, degree)
        series = [b - a for a, b in pairwise(series)]
    return value
