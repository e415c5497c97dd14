"""The constraints of the MILP, family by family; `variables` defines the variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from math import gcd
from typing import Any

from ...ops import B, C, F, O, Op, OpKind, R, W
from .choices import Choice
from .variables import Model

LARGEST = 10**6  # limit of a coefficient in bytes, after scaling


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

    def after(self, name: str, cases: Iterable[tuple[Op, Op, Any]], from_end: bool = True) -> None:
        """Add rows for cases (a, b, holds): if `holds` is 1, b starts no sooner than a ends (or,
        without `from_end`, starts); if it is 0, the row only restates the windows."""
        model = self.model
        sets, t, unit, frame = model.sets, model.pyomo.t, model.unit_ns, model.windows
        family = self.pyo.ConstraintList()
        model.pyomo.add_component(name, family)
        for a, b, holds in cases:
            lag, most = (model.duration(a), sets.longest(a)) if from_end else (0, 0)
            m = frame.late[a] - frame.early[b] + most
            row = family.add(t[str(b)] >= t[str(a)] + lag / unit - m / unit * (1 - holds))
            if m <= 0 and sets.options.drop:
                row.deactivate()  # the windows imply it


def add_rows(rows: Rows) -> None:
    """Add all constraints."""
    model = rows.model
    sets, m, unit = model.sets, model.pyomo, model.unit_ns
    rows.add(
        "flow",
        (
            m.t[str(b)] >= m.t[str(a)] + (model.duration(a) + latency) / unit
            for a, b, latency in sets.flow
        ),
    )
    _choices(model, rows)
    _compute(model, rows)
    _cost(model, rows)
    _copies(model, rows)
    _counted(model, rows)
    _memory(model, rows)
    _host(model, rows)
    _transitivity(model, rows)


def _choices(model: Model, rows: Rows) -> None:
    """Each activation has one choice, with per_stage the same for a whole stage; and the W of a BW
    has zero duration at its end."""
    sets, m, unit, frame = model.sets, model.pyomo, model.unit_ns, model.windows
    alike = range(1, sets.m) if sets.problem.per_stage else ()

    def one_way(f: Op, choice: Choice) -> Any:
        return model.chosen(f, lambda other: int(other.same_treatment(choice)))

    def at_end() -> Iterable[Any]:
        for f in sets.treated:
            if sets.fusible(f.stage):
                b, w = f._replace(kind=B), f._replace(kind=W)
                big = (frame.late[w] - frame.early[b]) / unit
                apart = 1 - model.chosen(f, lambda one: int(one.fused))
                yield m.t[str(w)] <= m.t[str(b)] + model.duration(b) / unit + big * apart

    rows.add(
        "one_choice",
        (sum(m.u[str(f), one.name] for one in sets.choices_of(f)) == 1 for f in sets.treated),
    )
    rows.add(
        "alike",
        (
            one_way(Op(F, s, j), choice) == one_way(Op(F, s, 0), choice)
            for s, choices in sets.choices.items()
            for choice in choices
            if not choice.fused
            for j in alike
        ),
    )
    rows.add(
        "alike_moved",
        (
            model.moved(Op(O, s, j)) == model.moved(Op(O, s, 0))
            for s in sets.offloadable
            if s not in sets.choices
            for j in alike
        ),
    )
    rows.add("at_end", at_end())


def _compute(model: Model, rows: Rows) -> None:
    """One compute op at a time on a device."""
    sets = model.sets
    pairs = sets.pairs + sets.borrowing
    rows.after("before", ((a, b, model.order(a, b)) for a, b in pairs))
    rows.after("behind", ((b, a, 1 - model.order(a, b)) for a, b in pairs))


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
            m.t[str(op)] + model.duration(op) / unit - first(sets.place[op.stage]) <= m.C
            for op in sets.finals()
        ),
    )
    if sets.span and sets.mode != "all":
        forwards = ((d, op) for d in sets.devices for op in sets.of(F, sets.first_stage(d)))
        rows.add("begin", (m.first[d] <= m.t[str(op)] for d, op in forwards))


def _copies(model: Model, rows: Rows) -> None:
    """O between F and R, R before C or B, of zero duration if not offloaded; and one transfer at a
    time on a copy engine and on a host link."""
    sets, m, t, unit = model.sets, model.pyomo, model.pyomo.t, model.unit_ns

    def copy_time(op: Op) -> Any:
        if sets.choices_of(op):
            return model.duration(op) / unit
        return sets.dur(op) / unit * model.moved(op)

    def flow() -> Iterable[Any]:
        for out in sets.offloads:
            f, back = out._replace(kind=F), out._replace(kind=R)
            yield t[str(out)] >= t[str(f)] + sets.dur(f) / unit
            yield t[str(back)] >= t[str(out)] + copy_time(out)
            yield t[str(sets.after_reload(out))] >= t[str(back)] + copy_time(back)

    def one_first() -> Iterable[Any]:
        for a, b in sets.sharing:
            either = m.y[str(a), str(b)] + m.y[str(b), str(a)]
            yield either >= model.moved(a) + model.moved(b) - 1
            yield either <= model.moved(a)
            yield either <= model.moved(b)

    rows.add("copy_flow", flow())
    rows.add("one_first", one_first())
    rows.after("engine", ((a, b, m.y[str(a), str(b)]) for a, b in sets.ways))


def _counted(model: Model, rows: Rows) -> None:
    """Define z and r. Not counting a release is safe; an allocation must count on one side: another
    op's at R, or R's at that op."""
    sets, m = model.sets, model.pyomo
    rows.after("over", ((a, q, m.z[str(a), str(q)]) for a, q in sets.releases))
    outs = ((a, q) for a, q in sets.releases if a.kind is O)
    rows.add("over_if", (m.z[str(a), str(q)] <= model.moved(a) for a, q in outs))
    both = [(back, q, m.r[str(back), str(q)]) for back, q in sets.overtakes]
    rows.after("overtake", both, from_end=False)
    behind = ((q, back, model.moved(back) - r) for back, q, r in both)
    rows.after("overtaken", behind, from_end=False)
    rows.add("overtake_if", (r <= model.moved(back) for back, _, r in both))


def _memory(model: Model, rows: Rows) -> None:
    """Limit the memory of a device when a compute op allocates, and when an R does, their own
    memory included."""
    sets, costs = model.sets, model.sets.problem.profile
    offloads = set(sets.offloads)
    for d, room in enumerate(sets.room):
        if room is None:
            continue
        unit = gcd(*sets.sizes(d)) or 1
        grain = max(float(unit), room / LARGEST)
        most = room // unit if grain == unit else room / grain
        activations = sets.forwards(d)

        def kept(f: Op, q: Op, here: Any, grain: float = grain) -> Any:
            """Return the bytes that an activation without choices holds at allocation q."""
            cost = costs.stages[f.stage]
            b, w, out, back = (f._replace(kind=kind) for kind in (B, W, O, R))
            total = cost.act_bytes / grain * model.taken(f, q, here)
            total -= (cost.act_bytes - cost.w_bytes) / grain * model.released(b, q)
            total -= cost.w_bytes / grain * model.released(w, q)
            if out in offloads:
                total += cost.offloadable / grain * model.taken(back, q, here)
                total -= cost.offloadable / grain * model.released(out, q)
            return total

        def level(
            q: Op,
            here: Any,
            grain: float = grain,
            activations: list[Op] = activations,
            kept: Callable[[Op, Op, Any], Any] = kept,
        ) -> Any:
            """Return the bytes held at allocation q, which takes place if `here` is 1."""
            total = rows.nothing + _own(model, q, here) / grain
            for f in activations:
                if f[1:] != q[1:]:
                    chosen = f.stage in sets.choices
                    total += model.pyomo.l[str(f), str(q)] if chosen else kept(f, q, here)
            return total

        backs = [(q, model.moved(q)) for q in sets.backs(d)]
        asks = [(q, 1) for q in sets.takers(d)] + backs
        rows.add(
            f"held{d}",
            (
                row
                for q, here in asks
                for f in activations
                if f.stage in sets.choices and f[1:] != q[1:]
                for row in model.hold(f, q, _held(model, f, q, here), grain)
            ),
        )
        rows.add(f"fits{d}", (level(q, 1) <= most for q in sets.takers(d)))
        rows.add(f"fits_r{d}", (level(q, x) <= most * x for q, x in backs))


def _own(model: Model, q: Op, here: Any) -> Any:
    """Return the bytes that the activation of an allocation holds when it takes place."""
    act = model.sets.problem.profile.stages[q.stage].act_bytes
    if not model.sets.choices_of(q):
        return act * here
    held: dict[OpKind, Callable[[Choice], float]] = {
        F: lambda one: one.entering,
        C: lambda one: act * one.apart,
        B: lambda one: one.back,
        R: lambda one: one.keep * one.moved,
    }
    return model.chosen(q, held[q.kind])


def _held(model: Model, f: Op, q: Op, here: Any) -> Iterable[Any]:
    """Lower bounds on the bytes that an activation with choices (that of F `f`) holds at allocation
    q, one per state; at most 0 in the other states."""
    sets, costs = model.sets, model.sets.problem.profile
    cost, most = costs.stages[f.stage], sets.largest(f.stage)
    b, w, again, out, back = (f._replace(kind=kind) for kind in (B, W, C, O, R))
    entered, begun = model.taken(f, q, here), model.taken(b, q, here)
    keep = model.chosen(f, lambda one: one.keep)
    waits = most * (1 - entered + begun)  # 0 between F and B

    if f.stage in sets.offloadable:
        moving = model.chosen(f, lambda one: one.moved_bytes)
        on_host = model.released(out, q) - model.taken(back, q, here)
        largest = max(one.moved_bytes for one in sets.choices_of(f))
        yield keep - moving - waits
        yield keep - largest * on_host - waits
    else:
        yield keep - waits
    apart = model.chosen(f, lambda one: int(one.apart))
    act = cost.act_bytes
    yield act * (apart + model.taken(again, q, here) - begun - 1)
    yield cost.w_bytes * (begun - model.released(w, q))
    if q.kind is R:  # R may start while an op runs
        entering = model.chosen(f, lambda one: one.entering)
        yield entering - most * (1 - entered + model.released(f, q))
        held = model.chosen(f, lambda one: one.back)
        yield held - most * (1 - begun + model.released(b, q))


def _host(model: Model, rows: Rows) -> None:
    """Limit the pinned host memory of a node when an O starts."""
    sets, m, frame, unit = model.sets, model.pyomo, model.windows, model.unit_ns
    offload, stages = sets.problem.profile.offload, sets.problem.profile.stages
    limit = (offload.host_limit_bytes if offload else None) or 0

    def counted() -> Iterable[Any]:
        """Offload a is counted at that of b, or starts after it."""
        for a, b in sets.pinned:
            big = (frame.late[b] - frame.early[a] + model.tick_ns) / unit
            apart = 2 - model.moved(a) - model.moved(b) + m.g[str(a), str(b)]
            yield m.t[str(a)] >= m.t[str(b)] + model.tick_ns / unit - big * apart

    def taken(a: Op, q: Op) -> Any:
        """Return the bytes of offload a that count when offload q starts."""
        counts = m.g[str(a), str(q)] - m.h[str(a), str(q)]
        return m.n[str(a), str(q)] if sets.choices_of(a) else stages[a.stage].offloadable * counts

    def own(q: Op) -> Any:
        if sets.choices_of(q):
            return model.chosen(q, lambda one: one.moved_bytes)
        return stages[q.stage].offloadable * m.x[str(q)]

    def sized() -> Iterable[Any]:
        for a, q in sets.pinned:
            if sets.choices_of(a):
                counts = m.g[str(a), str(q)] - m.h[str(a), str(q)]
                yield m.n[str(a), str(q)] >= own(a) - stages[a.stage].offloadable * (1 - counts)

    def fits() -> Iterable[Any]:
        for outs in sets.nodes:
            unit = gcd(*(size for op in outs for size in sets.pinned_sizes(op)))
            for q in outs:
                held = sum(taken(a, q) for a in outs if a != q)
                yield (held + own(q)) / unit <= limit // unit * model.moved(q)

    backs = ((a._replace(kind=R), b, m.h[str(a), str(b)]) for a, b in sets.pinned)
    rows.after("back", backs)
    rows.add("back_if", (m.h[str(a), str(b)] <= m.g[str(a), str(b)] for a, b in sets.pinned))
    rows.add("counted", counted())
    rows.add("pinned", sized())
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
