"""The constraints of the MILP, family by family; `variables` says what the variables mean."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from math import gcd
from typing import Any

from ...ops import B, F, O, Op, R, W
from .variables import Model

LARGEST = 10**6  # of a coefficient in bytes, after scaling


class Rows:
    """Adds families of rows to a model."""

    def __init__(self, model: Model, pyo: Any) -> None:
        self.model, self.pyo = model, pyo
        expressions = import_module("pyomo.core.expr")
        self.nothing = expressions.LinearExpression(constant=0)  # 0 unfolded: rows stay rows

    def add(self, name: str, rows: Iterable[Any]) -> Any:
        family = self.pyo.ConstraintList()
        self.model.pyomo.add_component(name, family)
        for row in rows:
            family.add(row)
        return family

    def after(self, name: str, cases: Iterable[tuple[Op, Op, int, Any]]) -> None:
        """(a, b, lag, holds): where `holds` is 1, b starts at least `lag` ns after the start of a;
        where it is 0, no more than the windows say anyhow."""
        model = self.model
        t, unit, frame = model.pyomo.t, model.unit_ns, model.windows
        family = self.pyo.ConstraintList()
        model.pyomo.add_component(name, family)
        for a, b, lag, holds in cases:
            m = frame.late[a] - frame.early[b] + lag
            row = family.add(t[str(b)] >= t[str(a)] + lag / unit - m / unit * (1 - holds))
            if m <= 0 and model.sets.options.drop:
                row.deactivate()  # the windows imply it


def add_rows(rows: Rows) -> None:
    """All constraints."""
    model = rows.model
    sets, m, unit = model.sets, model.pyomo, model.unit_ns
    rows.add("flow", (m.t[str(b)] >= m.t[str(a)] + lag / unit for a, b, lag in sets.flow))
    _compute(model, rows)
    _cost(model, rows)
    _copies(model, rows)
    _counted(model, rows)
    _memory(model, rows)
    _host(model, rows)
    _transitivity(model, rows)


def _compute(model: Model, rows: Rows) -> None:
    """One compute op at a time on a device."""
    sets = model.sets
    pairs = sets.pairs + sets.borrowing
    rows.after("before", ((a, b, sets.dur(a), model.order(a, b)) for a, b in pairs))
    rows.after("behind", ((b, a, sets.dur(b), 1 - model.order(a, b)) for a, b in pairs))


def _cost(model: Model, rows: Rows) -> None:
    """The makespan, or the longest span: from the first start on a device to its last end."""
    sets, m, unit = model.sets, model.pyomo, model.unit_ns

    def first(d: int) -> Any:
        if not sets.span:
            return 0
        return m.first[d] if sets.mode != "all" else m.t[str(Op(F, sets.first_stage(d), 0))]

    rows.add(
        "cost",
        (
            m.t[str(op)] + sets.dur(op) / unit - first(sets.place[op.stage]) <= m.C
            for op in sets.finals()
        ),
    )
    if sets.span and sets.mode != "all":
        forwards = ((d, op) for d in sets.devices for op in sets.of(F, sets.first_stage(d)))
        rows.add("begin", (m.first[d] <= m.t[str(op)] for d, op in forwards))


def _copies(model: Model, rows: Rows) -> None:
    """O between F and R, R before B, of no length where not offloaded; and one transfer at a time
    on a copy engine and on a host link."""
    sets, m, t, unit = model.sets, model.pyomo, model.pyomo.t, model.unit_ns

    def flow() -> Iterable[Any]:
        for out in sets.gone:
            f, back, b = (out._replace(kind=kind) for kind in (F, R, B))
            yield t[str(out)] >= t[str(f)] + sets.dur(f) / unit
            yield t[str(back)] >= t[str(out)] + sets.dur(out) / unit * m.x[str(out)]
            yield t[str(b)] >= t[str(back)] + sets.dur(back) / unit * m.x[str(out)]

    def one_first() -> Iterable[Any]:
        for a, b in sets.sharing:
            either = m.y[str(a), str(b)] + m.y[str(b), str(a)]
            yield either >= model.moved(a) + model.moved(b) - 1
            yield either <= model.moved(a)
            yield either <= model.moved(b)

    rows.add("copy_flow", flow())
    rows.add("one_first", one_first())
    rows.after("engine", ((a, b, sets.dur(a), m.y[str(a), str(b)]) for a, b in sets.ways))


def _counted(model: Model, rows: Rows) -> None:
    """What z and r mean. A release that is not counted does no harm; an allocation must count on
    one side: F at R, or R at F."""
    sets, m = model.sets, model.pyomo
    rows.after("over", ((a, q, sets.dur(a), m.z[str(a), str(q)]) for a, q in sets.releases))
    outs = ((a, q) for a, q in sets.releases if a.kind is O)
    rows.add("over_if", (m.z[str(a), str(q)] <= m.x[str(a)] for a, q in outs))
    both = [(back, f, m.r[str(back), str(f)]) for back, f in sets.overtakes]
    rows.after("overtake", ((back, f, 0, r) for back, f, r in both))
    rows.after("overtaken", ((f, back, 0, model.moved(back) - r) for back, f, r in both))
    rows.add("overtake_if", (r <= model.moved(back) for back, _, r in both))


def _memory(model: Model, rows: Rows) -> None:
    """What a device holds when an F starts, and when an R does, itself included."""
    sets, costs = model.sets, model.sets.problem.profile
    gone = set(sets.gone)

    def level(q: Op, here: Any, grain: float) -> Any:
        """The bytes held at allocation q, which takes place if `here` is 1, its own apart."""
        total = rows.nothing
        forwards = [op for s in sets.stages_of(sets.place[q.stage]) for op in sets.of(F, s)]
        for f in forwards:
            if f[1:] == q[1:]:
                continue
            cost = costs.stages[f.stage]
            b, w, out, back = (f._replace(kind=kind) for kind in (B, W, O, R))
            total += cost.act_bytes / grain * model.taken(f, q, here)
            total -= (cost.act_bytes - cost.w_bytes) / grain * model.released(b, q)
            total -= cost.w_bytes / grain * model.released(w, q)
            if out in gone:
                total += cost.offloadable / grain * model.taken(back, q, here)
                total -= cost.offloadable / grain * model.released(out, q)
        return total

    for d, room in enumerate(sets.room):
        if room is None:
            continue
        keys = ("act_bytes", "w_bytes", "offloadable")
        sizes = [getattr(costs.stages[s], key) for s in sets.stages_of(d) for key in keys]
        unit = gcd(*sizes) or 1
        grain = max(float(unit), room / LARGEST)
        most = room // unit if grain == unit else room / grain

        def own(q: Op, grain: float = grain) -> float:
            return costs.stages[q.stage].act_bytes / grain

        rows.add(f"fits_f{d}", (level(q, 1, grain) + own(q) <= most for q in sets.forwards(d)))
        backs = ((q, model.moved(q)) for s in sets.away_of(d) for q in sets.of(R, s))
        rows.add(f"fits_r{d}", (level(q, x, grain) + own(q) * x <= most * x for q, x in backs))


def _host(model: Model, rows: Rows) -> None:
    """The pinned host memory of a node when an O starts."""
    sets, m, frame, unit = model.sets, model.pyomo, model.windows, model.unit_ns
    offload, stages = sets.problem.profile.offload, sets.problem.profile.stages
    limit = (offload.host_limit_bytes if offload else None) or 0

    def counted() -> Iterable[Any]:
        """Offload a is counted at that of b, or starts after it."""
        for a, b in sets.pinned:
            big = (frame.late[b] - frame.early[a] + model.tick_ns) / unit
            apart = 2 - m.x[str(a)] - m.x[str(b)] + m.g[str(a), str(b)]
            yield m.t[str(a)] >= m.t[str(b)] + model.tick_ns / unit - big * apart

    def fits() -> Iterable[Any]:
        for outs in sets.nodes:
            size = {op: stages[op.stage].offloadable for op in outs}
            unit = gcd(*size.values())
            most = limit // unit
            for q in outs:
                held = sum(
                    size[a] / unit * (m.g[str(a), str(q)] - m.h[str(a), str(q)])
                    for a in outs
                    if a != q
                )
                yield held + size[q] / unit * m.x[str(q)] <= most * m.x[str(q)]

    backs = ((a._replace(kind=R), b, m.h[str(a), str(b)]) for a, b in sets.pinned)
    rows.after("back", ((back, b, sets.dur(back), h) for back, b, h in backs))
    rows.add("back_if", (m.h[str(a), str(b)] <= m.g[str(a), str(b)] for a, b in sets.pinned))
    rows.add("counted", counted())
    rows.add("fits_host", fits())


def _transitivity(model: Model, rows: Rows) -> None:
    """Triangle inequalities: with a before b, and b before c, a is before c."""
    sets, order = model.sets, model.order
    rows.add("triangle", (order(c, a) <= order(c, b) for a, b, c in sets.triangles))

    def cycles() -> Iterable[Any]:
        for a, b, c in sets.cycles:
            yield order(a, b) + order(b, c) - order(a, c) <= 1
            yield order(a, c) - order(a, b) - order(b, c) <= 0

    rows.add("cycle", cycles())
