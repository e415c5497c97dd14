"""The variables of the MILP in Pyomo, and what they say of ops.

Names (times in units of `Model.unit_ns`):

    C        the cost
    t[op]    start of F, B, W; of O and R of what may be offloaded
    x[O]     1: this activation is offloaded (named by its O)
    y[a, b]  compute ops of one device: 1: a before b, 0: b before a
    y[a, b]  transfers that share an engine or link, in both orders: 1: both take place, a first
    z[a, q]  1: release a (end of an O, B, W) is over when allocation q (F, R) starts
    r[R, F]  1: the reload takes place and allocates no later than the F starts
    g[a, b]  1: offload a counts against the pinned host memory when offload b starts
    h[a, b]  1: the reload of a has ended by then
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ...errors import OptPipeError
from ...ops import B, O, Op, R
from .sets import Sets
from .windows import Windows


def need(module: str, package: str, more: str = "") -> Any:
    """Import an optional dependency.

    Raises:
        OptPipeError: if it is not installed; says how to install it.
    """
    try:
        return import_module(module)
    except ImportError:
        raise OptPipeError(f"{package} is not installed: pip install {package}{more}") from None


@dataclass(frozen=True)
class Model:
    """A Pyomo model and what its variables say of ops.

    Attributes:
        sets, windows: its index sets, and the time windows of its ops.
        pyomo: the model.
        unit_ns: ns in a unit of its times.
        tick_ns: the common divisor of all durations.
    """

    sets: Sets
    windows: Windows
    pyomo: Any
    unit_ns: float
    tick_ns: int

    def start(self, op: Op) -> Any:
        return self.pyomo.t[str(op)]

    def duration(self, op: Op) -> float:
        """Return the duration of an op, in the model's units; of a transfer, if it takes place."""
        return self.sets.dur(op) / self.unit_ns

    def order(self, a: Op, b: Op) -> Any:
        """Return whether (1) a runs before b, for compute ops of one device: a number or an expression."""
        sets, y = self.sets, self.pyomo.y
        if sets.options.fix:
            if sets.precedes(a, b):
                return 1
            if sets.precedes(b, a):
                return 0
        if sets.borrows(a, b):
            return self.order(a._replace(kind=B), b._replace(kind=B))
        key = str(a), str(b)
        return y[key] if key in y else 1 - y[key[1], key[0]]

    def moved(self, op: Op) -> Any:
        """Return 1 if the activation of `op` is offloaded."""
        return self.pyomo.x[str(op._replace(kind=O))]

    def released(self, a: Op, q: Op) -> Any:
        """Return 1 only if release a is over when allocation q starts."""
        z, y, key = self.pyomo.z, self.pyomo.y, (str(a), str(q))
        if key in z:
            return z[key]
        if key in y and a.kind is O:
            return y[key]
        return self.order(a, q) if q.kind is not R and a.kind is not O else 0

    def taken(self, a: Op, q: Op, here: Any) -> Any:
        """Return 1 if allocation a comes no later than allocation q, which takes place if `here` is 1."""
        if a.kind is not R and q.kind is not R:
            return self.order(a, q)
        if a.kind is R and q.kind is R:
            return self.pyomo.y[str(a), str(q)]
        back, other = (a, q) if a.kind is R else (q, a)
        key = str(back), str(other)
        overtakes: Any = 0  # precedence puts the other op first
        if key in self.pyomo.r:
            overtakes = self.pyomo.r[key]
        return overtakes if a.kind is R else here - overtakes

    @property
    def size(self) -> tuple[int, int]:
        """Return the numbers of variables and constraints as built."""
        return self._count(lambda _: True, lambda _: True)

    @property
    def reduced(self) -> tuple[int, int]:
        """Return the numbers of variables and constraints that are left once windows have fixed some."""
        return self._count(lambda one: not one.fixed, lambda one: one.active)

    def _count(self, *wanted: Any) -> tuple[int, int]:
        pyo = import_module("pyomo.environ")
        parts = (
            map(test, self.pyomo.component_data_objects(kind))
            for kind, test in zip((pyo.Var, pyo.Constraint), wanted, strict=True)
        )
        variables, rows = map(sum, parts)
        return variables, rows


def declare(model: Model, pyo: Any, upper_ns: int, lower_ns: int) -> None:
    """Declare the variables and the objective."""
    sets, m, frame, unit = model.sets, model.pyomo, model.windows, model.unit_ns

    def binaries(pairs: Iterable[tuple[Op, Op]]) -> Any:
        return pyo.Var([(str(a), str(b)) for a, b in pairs], domain=pyo.Binary)

    whole = sets.options.whole and unit == model.tick_ns
    m.C = pyo.Var(
        domain=pyo.Integers if whole else pyo.Reals,
        bounds=(lower_ns / unit if lower_ns <= upper_ns else 0, upper_ns / unit),
    )
    bounds = {str(op): (frame.early[op] / unit, frame.late[op] / unit) for op in sets.ops}
    m.t = pyo.Var(list(bounds), bounds=lambda _, op: bounds[op])
    m.x = pyo.Var([str(op) for op in sets.offloads], domain=pyo.Binary)
    m.y = binaries(sets.pairs + sets.ways)
    m.z = binaries(sets.releases)
    m.r = binaries(sets.overtakes)
    m.g = binaries(sets.pinned)
    m.h = binaries(sets.pinned)
    if sets.span and sets.mode != "all":
        m.first = pyo.Var(list(sets.devices), bounds=(0, max(frame.deadlines) / unit))
    m.least = pyo.Objective(expr=m.C)


def fix_decided(model: Model, pyo: Any) -> None:
    """Fix the binaries that the time windows decide; leave out the rows that have no others."""
    sets, m, frame = model.sets, model.pyomo, model.windows

    def never(a: Op, b: Op, lag: int) -> bool:
        """Whether b cannot start `lag` after the start of a."""
        return frame.sure[a][0] + lag > frame.sure[b][1]

    for a, b in sets.pairs:
        if never(b, a, sets.dur(b)):
            m.y[str(a), str(b)].fix(1)
        elif never(a, b, sets.dur(a)):
            m.y[str(a), str(b)].fix(0)
    for out in sets.offloads:
        if never(out, out, 0):
            m.x[str(out)].fix(0)
    for variables, pairs in ((m.y, sets.ways), (m.z, sets.releases)):
        for a, b in pairs:
            if never(a, b, sets.dur(a)):
                variables[str(a), str(b)].fix(0)
    for back, f in sets.overtakes:
        if never(back, f, 0):
            m.r[str(back), str(f)].fix(0)
    for row in m.component_data_objects(pyo.Constraint, active=True):
        if row.body.is_fixed() and row.slack() >= 0:
            row.deactivate()
