"""The reconstructed MILP in Pyomo: our reading of OptPipe's model (arXiv 2510.05186).

`variables` declares its variables, `rows` its constraints, family by family. M is as small as the
time windows allow, row by row (`windows`).
"""

from __future__ import annotations

from math import gcd

from .rows import Rows, add_rows
from .sets import Sets
from .variables import Model, add_variables, fix_decided, need
from .windows import windows

FINEST = (
    10**5
)  # ticks in the horizon, beyond which the numbers in the model would differ too much in scale


def build_model(sets: Sets, upper_ns: int, lower_ns: int = 0) -> Model:
    """Build the MILP for schedules that cost at most `upper_ns`; no schedule costs less than `lower_ns`."""
    pyo = need("pyomo.environ", "pyomo")
    frame = windows(sets, upper_ns)
    costs = sets.problem.profile
    tick = gcd(costs.t_comm_ns, *sets.every_duration)
    unit = max(float(tick), max(frame.deadlines) / FINEST)
    model = Model(sets, frame, pyo.ConcreteModel("optpipe"), unit, tick)
    add_variables(model, pyo, upper_ns, lower_ns)
    add_rows(Rows(model, pyo))
    if sets.options.fix:
        fix_decided(model)
    return model
