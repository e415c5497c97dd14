"""The variables of the MILP in Pyomo, and their relation to the ops.

Names (times in units of `Model.unit_ns`):

    C            the cost
    t[op]        start of F, B, W; of C if there are choices; of O and R of what may be offloaded
    x[O]         1: this activation is offloaded (named by its O); only without choices
    u[F, choice] 1: this activation (named by its F) has this `choices.Choice`
    y[a, b]      compute ops of one device: 1: a before b, 0: b before a
    y[a, b]      transfers that share an engine or link, in both orders: 1: both take place, a first
    z[a, q]      1: release a (end of an O, F, B, W) is over when allocation q (F, R, C, B) starts
    r[R, q]      1: the reload takes place and allocates no later than q (F, C, B) starts
    l[F, q]      bytes that an activation with choices (named by its F) holds at allocation q
    g[a, b]      1: offload a counts against the pinned host memory when offload b starts
    h[a, b]      1: the reload of a has ended by then
    n[a, b]      bytes of pinned memory that an offload with choices holds when b starts
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ...errors import OptPipeError
from ...ops import B, F, O, Op, R
from .choices import Choice
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


@dataclass
class Model:
    """A Pyomo model and the mapping from its variables to ops.

    Attributes:
        sets, windows: its index sets, and the time windows of its ops.
        pyomo: the model.
        unit_ns: ns in a unit of its times.
        tick_ns: the common divisor of all durations.
        floors: per variable l, its lower bounds.
    """

    sets: Sets
    windows: Windows
    pyomo: Any
    unit_ns: float
    tick_ns: int
    floors: list[tuple[Any, list[Any]]] = field(default_factory=list)

    def hold(self, f: Op, q: Op, least: Iterable[Any], grain: float) -> Iterator[Any]:
        """Make rows: activation f holds at least each of `least`, in bytes, at allocation q."""
        held, floors = self.pyomo.l[str(f), str(q)], [one / grain for one in least]
        self.floors.append((held, floors))
        for floor in floors:
            yield held >= floor

    def order(self, a: Op, b: Op) -> Any:
        """Return whether (1) a runs before b, for compute ops of one device: a number or an expression."""
        sets, y = self.sets, self.pyomo.y
        if sets.options.fix:
            if sets.precedes(a, b):
                return 1
            if sets.precedes(b, a):
                return 0
        if sets._borrows(a, b):
            return self.order(a._replace(kind=B), b._replace(kind=B))
        key = str(a), str(b)
        return y[key] if key in y else 1 - y[key[1], key[0]]

    def released(self, a: Op, q: Op) -> Any:
        """Return 1 only if release a is over when allocation q starts."""
        z, y, key = self.pyomo.z, self.pyomo.y, (str(a), str(q))
        if key in z:
            return z[key]
        if key in y and a.kind is O:
            return y[key]
        return self.order(a, q) if q.kind is not R and a.kind is not O else 0

    def chosen(self, op: Op, value: Callable[[Choice], float]) -> Any:
        """Return the value of the choice for the activation of `op`: a number or an expression."""
        worth = [(one, value(one)) for one in self.sets.choices_of(op)]
        if len({amount for _, amount in worth}) == 1:
            return worth[0][1]
        name, u = str(op._replace(kind=F)), self.pyomo.u
        return sum(amount * u[name, one.name] for one, amount in worth if amount)

    def duration(self, op: Op) -> Any:
        """Return the duration of an op in ns, of a transfer if it takes place: a number or an expression."""
        if not self.sets.choices_of(op):
            return self.sets.dur(op)
        return self.chosen(op, lambda one: one.durations[op.kind])

    def moved(self, op: Op) -> Any:
        """Return 1 if the activation of `op` is offloaded."""
        if self.sets.choices_of(op):
            return self.chosen(op, lambda one: int(one.moved))
        return self.pyomo.x[str(op._replace(kind=O))]

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
        pyo = import_module("pyomo.environ")
        return (
            sum(len(var) for var in self.pyomo.component_objects(pyo.Var)),
            sum(len(rows) for rows in self.pyomo.component_objects(pyo.Constraint)),
        )


def add_variables(model: Model, pyo: Any, upper_ns: int, lower_ns: int) -> None:
    """Declare the variables and the objective."""
    sets, m, frame, unit = model.sets, model.pyomo, model.windows, model.unit_ns

    def named(pairs: Iterable[tuple[Op, Op]]) -> list[tuple[str, str]]:
        return [(str(a), str(b)) for a, b in pairs]

    whole = sets.options.whole and unit == model.tick_ns
    m.C = pyo.Var(
        domain=pyo.Integers if whole else pyo.Reals,
        bounds=(lower_ns / unit if lower_ns <= upper_ns else 0, upper_ns / unit),
    )
    bounds = {str(op): (frame.early[op] / unit, frame.late[op] / unit) for op in sets.ops}
    m.t = pyo.Var(list(bounds), bounds=lambda _, op: bounds[op])
    m.x = pyo.Var([str(op) for op in sets.offloads if not sets.choices_of(op)], domain=pyo.Binary)
    ways = [(str(op), one.name) for op in sets.treated for one in sets.choices_of(op)]
    m.u = pyo.Var(ways, domain=pyo.Binary)
    m.y = pyo.Var(named(sets.pairs + sets.ways), domain=pyo.Binary)
    m.z = pyo.Var(named(sets.releases), domain=pyo.Binary)
    m.r = pyo.Var(named(sets.overtakes), domain=pyo.Binary)
    m.l = pyo.Var(named(sets.holdings), domain=pyo.NonNegativeReals)
    m.g = pyo.Var(named(sets.pinned), domain=pyo.Binary)
    m.h = pyo.Var(named(sets.pinned), domain=pyo.Binary)
    sized = [(a, b) for a, b in sets.pinned if sets.choices_of(a)]
    m.n = pyo.Var(named(sized), domain=pyo.NonNegativeReals)
    if sets.span and sets.mode != "all":
        m.first = pyo.Var(list(sets.devices), bounds=(0, max(frame.deadlines) / unit))
    m.least = pyo.Objective(expr=m.C)


def fix_decided(model: Model) -> None:
    """Fix the binaries that the time windows decide."""
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
        if not never(out, out, 0):
            continue
        if not sets.choices_of(out):
            m.x[str(out)].fix(0)
        for one in sets.choices_of(out):
            if one.moved:
                m.u[str(out._replace(kind=F)), one.name].fix(0)
    for a, b in sets.ways:
        if never(a, b, sets.dur(a)):
            m.y[str(a), str(b)].fix(0)
    for a, q in sets.releases:
        if never(a, q, sets.dur(a)):
            m.z[str(a), str(q)].fix(0)
    for back, f in sets.overtakes:
        if never(back, f, 0):
            m.r[str(back), str(f)].fix(0)
