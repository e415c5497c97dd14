"""The constraints of the MILP: a function for each one of docs/milp.md. `variables` names the variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from math import gcd
from typing import Any, NamedTuple

from ...ops import B, F, O, Op, R, W
from .variables import Model

LARGEST = 10**6  # limit of a coefficient in bytes, after scaling

Rule = Callable[[Model], Iterable[Any]]
CONSTRAINTS: list[Rule] = []  # in the order of the page


class Implied(NamedTuple):
    """A row that the time windows imply: it is stated, but not handed to a solver."""

    expression: Any


def constraint(rule: Rule) -> Rule:
    CONSTRAINTS.append(rule)
    return rule


def _if(model: Model, cases: Iterable[tuple[Op, Op, Any]], from_end: bool = True) -> Iterator[Any]:
    """Yield rows for cases (a, b, holds): if `holds` is 1, b starts no sooner than a ends (or,
    without `from_end`, starts); if it is 0, the row only restates the windows."""
    frame, unit = model.windows, model.unit_ns
    for a, b, holds in cases:
        lag = model.sets.dur(a) if from_end else 0
        m = frame.late[a] - frame.early[b] + lag
        row = model.start(b) >= model.start(a) + lag / unit - m / unit * (1 - holds)
        yield Implied(row) if m <= 0 and model.sets.options.drop else row


@constraint
def data_flow(model: Model) -> Iterator[Any]:
    """An op starts when its inputs have arrived; ops of one kind and stage in microbatch order
    where that loses nothing."""
    for a, b, latency in model.sets.flow:
        yield model.start(b) >= model.start(a) + (model.sets.dur(a) + latency) / model.unit_ns


@constraint
def per_stage(model: Model) -> Iterator[Any]:
    """With `per_stage` the activations of a stage are all offloaded or all kept."""
    for s in model.sets.offloadable if model.sets.problem.per_stage else ():
        first, *others = model.sets.of(O, s)
        for out in others:
            yield model.moved(out) == model.moved(first)


@constraint
def one_op_at_a_time(model: Model) -> Iterator[Any]:
    """A device runs one compute op at a time."""
    pairs = model.sets.pairs + model.sets.borrowing
    yield from _if(model, ((a, b, model.order(a, b)) for a, b in pairs))
    yield from _if(model, ((b, a, 1 - model.order(a, b)) for a, b in pairs))


@constraint
def cost(model: Model) -> Iterator[Any]:
    """The makespan, or the longest span: from the first start on a device to its last end."""
    sets, m = model.sets, model.pyomo

    def first(d: int) -> Any:
        if not sets.span:
            return 0
        return m.first[d] if sets.mode != "all" else model.start(Op(F, sets.first_stage(d), 0))

    for op in sets.finals():
        yield model.start(op) + model.duration(op) - first(sets.place[op.stage]) <= m.C
    if sets.span and sets.mode != "all":
        for d in sets.devices:
            for op in sets.of(F, sets.first_stage(d)):
                yield m.first[d] <= model.start(op)


@constraint
def copy_flow(model: Model) -> Iterator[Any]:
    """O between F and R, R before B; of zero duration if the activation is kept."""
    t = model.start
    for out in model.sets.offloads:
        f, back, b = (out._replace(kind=kind) for kind in (F, R, B))
        yield t(out) >= t(f) + model.duration(f)
        yield t(back) >= t(out) + model.duration(out) * model.moved(out)
        yield t(b) >= t(back) + model.duration(back) * model.moved(back)


@constraint
def one_copy_first(model: Model) -> Iterator[Any]:
    """Of two transfers that share an engine or link and take place, one is first."""
    y = model.pyomo.y
    for a, b in model.sets.sharing:
        either = y[str(a), str(b)] + y[str(b), str(a)]
        yield either >= model.moved(a) + model.moved(b) - 1
        yield either <= model.moved(a)
        yield either <= model.moved(b)


@constraint
def one_copy_at_a_time(model: Model) -> Iterator[Any]:
    """A copy engine and a host link carry one transfer at a time."""
    yield from _if(model, ((a, b, model.pyomo.y[str(a), str(b)]) for a, b in model.sets.ways))


@constraint
def released(model: Model) -> Iterator[Any]:
    """A release counts at an allocation only if it is over by then. Not counting it is safe."""
    sets, z = model.sets, model.pyomo.z
    yield from _if(model, ((a, q, z[str(a), str(q)]) for a, q in sets.releases))
    for a, q in sets.releases:
        if a.kind is O:
            yield z[str(a), str(q)] <= model.moved(a)


@constraint
def reload_or_forward_first(model: Model) -> Iterator[Any]:
    """An F and a reload that takes place: one allocates first, and counts at the other."""
    sets = model.sets
    both = [(back, q, model.pyomo.r[str(back), str(q)]) for back, q in sets.overtakes]
    yield from _if(model, both, from_end=False)
    yield from _if(model, ((q, back, model.moved(back) - r) for back, q, r in both), from_end=False)
    for back, _, r in both:
        yield r <= model.moved(back)


@constraint
def memory(model: Model) -> Iterator[Any]:
    """When an F allocates, and when an R does, a device holds at most what its limit leaves: the
    activation that allocates and what the others hold by then."""
    sets, costs = model.sets, model.sets.problem.profile
    nothing = import_module("pyomo.core.expr").LinearExpression(constant=0)  # a row stays a row
    offloads = set(sets.offloads)

    def held(f: Op, q: Op, here: Any, grain: float) -> Any:
        """Return the bytes that an activation holds at allocation q."""
        size = costs.stages[f.stage]
        b, w, out, back = (f._replace(kind=kind) for kind in (B, W, O, R))
        total = size.act_bytes / grain * model.taken(f, q, here)
        total -= (size.act_bytes - size.w_bytes) / grain * model.released(b, q)
        total -= size.w_bytes / grain * model.released(w, q)
        if out in offloads:
            total += size.offloadable / grain * model.taken(back, q, here)
            total -= size.offloadable / grain * model.released(out, q)
        return total

    for d, room in enumerate(sets.room):
        if room is None:
            continue
        stages = [costs.stages[s] for s in sets.stages_of(d)]
        unit = gcd(*(n for one in stages for n in (one.act_bytes, one.w_bytes, one.offloadable)))
        grain = max(float(unit or 1), room / LARGEST)
        most = room // unit if grain == unit else room / grain
        asks = [(q, 1) for q in sets.forwards(d)]
        for q, here in [*asks, *((q, model.moved(q)) for q in sets.reloads(d))]:
            total = nothing + costs.stages[q.stage].act_bytes / grain * here
            for f in sets.forwards(d):
                if f[1:] != q[1:]:
                    total += held(f, q, here, grain)
            yield total <= most * here


@constraint
def host_memory(model: Model) -> Iterator[Any]:
    """When an O starts, a node's pinned memory holds what other offloads have there: those that
    started no later and whose reloads have not ended."""
    sets, m, frame, unit = model.sets, model.pyomo, model.windows, model.unit_ns
    offload, stages = sets.problem.profile.offload, sets.problem.profile.stages
    limit = (offload.host_limit_bytes if offload else None) or 0
    yield from _if(model, ((a._replace(kind=R), b, m.h[str(a), str(b)]) for a, b in sets.pinned))
    for a, b in sets.pinned:
        yield m.h[str(a), str(b)] <= m.g[str(a), str(b)]
    for a, b in sets.pinned:  # a is counted at b, or starts after it
        big = (frame.late[b] - frame.early[a] + model.tick_ns) / unit
        apart = 2 - model.moved(a) - model.moved(b) + m.g[str(a), str(b)]
        yield model.start(a) >= model.start(b) + model.tick_ns / unit - big * apart
    for outs in sets.nodes:
        grain = gcd(*(stages[out.stage].offloadable for out in outs))
        size = {out: stages[out.stage].offloadable / grain for out in outs}
        for q in outs:
            counted = ((a, m.g[str(a), str(q)] - m.h[str(a), str(q)]) for a in outs if a != q)
            held = size[q] * model.moved(q) + sum(size[a] * there for a, there in counted)
            yield held <= limit // grain * model.moved(q)


@constraint
def transitive(model: Model) -> Iterator[Any]:
    """With a before b, and b before c, a is before c."""
    order = model.order
    for a, b, c in model.sets.triangles:
        yield order(c, a) <= order(c, b)
    for a, b, c in model.sets.cycles:
        yield order(a, b) + order(b, c) - order(a, c) <= 1
        yield order(a, c) - order(a, b) - order(b, c) <= 0
