"""The best plan that Megatron-LM runs, that torchtitan runs, that either could run with one option more, and the best without a framework."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from experiments.expressiveness.pairs import pairs
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.costs.advise.replay import replayed, trace_of
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.frameworks import torchtitan_search
from optpipe_sim.frameworks.megatron import best_plan as megatron
from optpipe_sim.frameworks.megatron.family import levels_of
from optpipe_sim.frameworks.torchtitan import CHECKPOINTS
from optpipe_sim.profile import CostProfile
from optpipe_sim.schedules.recompute import at_level, with_level
from optpipe_sim.sim import simulate
from optpipe_sim.solvers.axes import candidate_shapes, covers
from optpipe_sim.solvers.options import SolveOptions
from optpipe_sim.solvers.solve import solve
from optpipe_sim.solvers.steady import Draw, drawn, draws
from optpipe_sim.study.tasks import Count, Row
from optpipe_sim.trace import Trace

VERSION = 5
MOST_CHUNKS = 8  # of a published schedule in a loop
CHUNKS = 4  # of one of the searches, where stages have the layers
PATIENCE_S = 600.0  # a limit that no search reaches: they are counted in evaluations
PLAIN, INTERLEAVED = ("1f1b",), ("1f1b-i",)
SPLIT = ("zb-h1", "zb-h2")
V_SHAPED = ("zb-v", "v-half", "v-min", "dualpipe-v")
SEARCHED = {
    "torchtitan+levels": ("keep", "recompute"),
    "torchtitan+offload": ("keep", "offload"),
    "free": ("keep", "offload", "recompute"),
}
CLOSE = 0.002  # a plan so near to the bound of its cut is not searched further

Plans = dict[str, Trace | None]


def run(
    pair: str, evaluations: Count, execution: str = "ideal", costs: Count = 8, seed: int = 0
) -> Row:
    """Return the best plan of each kind for a pair, and a bound on all of them.

    Kinds: ``megatron`` and ``torchtitan`` as they are. ``megatron+X`` can run published schedules as well: ``split``, ZB-H1 and ZB-H2; ``V``, ZB-V, V-Half, V-Min
    and DualPipe-V; ``levels``, 1F1B and 1F1B-I with each level of recomputation on all stages; ``stages``, beside these AdaPipe, which recomputes other levels on
    other stages; ``order``: whatever torchtitan can. ``torchtitan+X`` may recompute
    any level of each activation (``levels``) or offload it (``offload``); ``free`` may do both. What is searched is in a V and in loops: with Megatron-LM's
    number of chunks, with that of the fastest interleaved 1F1B in torchtitan, and with `CHUNKS`; the bound covers the cuts that ``covers`` lists. All kinds have the
    same layers on the stages of a cut, dealt by what each costs.

    ``KIND_ns``: the pipeline time; None: nothing fits. ``KIND_drawn_ns``: an iteration's pipeline at `costs` that may be true as well (`solvers.steady.draws`).
    ``cpu_s``: of the pair.
    """
    began = _cpu_s()
    one = pairs()[pair]
    profile, m = one.profile(execution), one.compared
    options = SolveOptions(
        engine="search",
        evaluations=evaluations,
        seed=seed,
        workers=1,
        time_limit=PATIENCE_S,
        chunks="own",
        gap=CLOSE,
        published=False,
    )
    plans = _plans(profile, m, options)
    shapes = candidate_shapes(profile)
    least = min((lower_bound(each, m, "flush") for each in shapes), key=lambda bound: bound.ns)
    row: Row = {
        "model": one.model if isinstance(one.model, str) else one.model["name"],
        "machine": one.machine,
        "gpus": one.gpus,
        "devices": profile.devices,
        "microbatches": m,
        "published_microbatches": one.microbatches,
        "source": one.source,
        "toss_up": profile.execution.between,
        "limit_bytes": min(profile.memory_limit or ()),
        "bound_ns": least.ns,
        "proof": least.name,
        "covers": covers(shapes),
    }
    some = draws(profile, costs, seed)
    for kind, trace in plans.items():
        row[f"{kind}_ns"] = trace and trace.makespan_ns
        row[f"{kind}_peak_bytes"] = trace and max(trace.peak_bytes)
        row[f"{kind}_drawn_ns"] = trace and [_time(trace, profile, draw) for draw in some]
    for kind in ("megatron", "torchtitan", "free"):
        found = plans[kind]
        row[f"{kind}_chunks"] = found and found.schedule.shape.chunks
        row[f"{kind}_placement"] = found and str(found.schedule.shape.placement_name)
        row[f"{kind}_offloaded"] = found and bool(found.offloaded)
        row[f"{kind}_recomputed"] = found and bool(found.recomputed)
    row["cpu_s"] = round(_cpu_s() - began, 1)
    return row


def _plans(profile: CostProfile, m: int, options: SolveOptions) -> Plans:
    """Return the best plan of each kind."""
    most = profile.most_chunks or 1
    whole, *loops = (_dealt(profile, chunks) for chunks in range(1, min(MOST_CHUNKS, most) + 1))
    base = _least(*(_megatron(cut, m) for cut in (whole, *loops)))
    own = {level for level, layers in levels_of(profile) if layers is None}
    interleaved = [trace for cut in loops for trace in _by_name(INTERLEAVED, cut, m, CHECKPOINTS)]
    some = {trace.schedule.shape.chunks for trace in (base, _least(*interleaved)) if trace}
    cuts = [cut for cut in loops if cut.chunks in {*some, min(CHUNKS, most)}]
    cuts += [_dealt(profile, 2, "vee")] if most > 1 else [whole]
    shapes = {"split": (SPLIT, whole), "V": (V_SHAPED, cuts[-1])}
    more = {
        name: _least(base, *_by_name(names, shape, m, own))
        for name, (names, shape) in shapes.items()
    }
    levels = list(_by_name(PLAIN, whole, m, whole.level_names))
    levels += [trace for cut in loops for trace in _by_name(INTERLEAVED, cut, m, cut.level_names)]
    stages = levels + [
        one
        for cut in (whole, *cuts)
        if cut.shape(m).placement_name == "loop"
        for one in _by_name(("adapipe",), cut, m)
    ]
    orders = [_fitting(partial(_torchtitan, cut, m, options)) for cut in cuts] + interleaved
    orders += [
        trace
        for names, shape in shapes.values()
        for trace in _by_name(names, shape, m, CHECKPOINTS)
    ]
    order = _least(*orders)
    plans: Plans = {
        "megatron": base,
        **{f"megatron+{name}": trace for name, trace in more.items()},
        "megatron+levels": _least(base, *levels),
        "megatron+stages": _least(base, *stages),
        "megatron+order": _least(base, order),
        "torchtitan": order,
    }
    known = [trace for trace in (*plans.values(), *orders, *stages) if trace is not None]
    for kind, treatments in SEARCHED.items():
        found = [_searched(cut, m, treatments, known, options) for cut in cuts]
        known += filter(None, found)
        allowed = [trace for trace in known if _allowed(trace, treatments)]
        plans[kind] = _least(order, *allowed)
    return plans


def _dealt(profile: CostProfile, chunks: int, placement: str = "loop") -> CostProfile:
    """Return the profile with the model's layers dealt to so many chunks, and no plan to deal them otherwise: without its items."""
    return replace(profile.rechunk(chunks, placement), items=())


def _megatron(cut: CostProfile, m: int) -> Trace | None:
    return _fitting(lambda: megatron.best(cut, m, chunks=[cut.chunks], seconds=PATIENCE_S).trace)


def _torchtitan(cut: CostProfile, m: int, options: SolveOptions) -> Trace:
    return torchtitan_search.best(cut, m, replace(options, published=True)).trace


def _by_name(
    names: Iterable[str], profile: CostProfile, m: int, levels: Iterable[str | None] = (None,)
) -> Iterator[Trace]:
    """Yield the replays of published schedules that fit, with all stages at one of the levels."""
    for level in levels:
        try:
            own = profile if level is None else at_level(profile, level)
        except InvalidSchedule:  # the profile has no such level
            continue
        for name in names:
            with suppress(OptPipeError):
                schedule = replayed(own, m, name)[1].schedule
                if level is not None:
                    schedule = with_level(schedule, profile, level, apart=False)
                trace = trace_of(schedule, profile, enforce=False)
                if trace.fits:
                    yield trace


def _searched(
    cut: CostProfile, m: int, treatments: tuple[str, ...], known: list[Trace], options: SolveOptions
) -> Trace | None:
    """Return the best schedule of a search in a cut that starts from the best one known."""
    shape = cut.shape(m)
    start = _least(
        *(one for one in known if one.schedule.shape == shape and _allowed(one, treatments))
    )
    given = {**vars(options), "treatments": treatments}
    return _fitting(
        lambda: solve(cut, m, **given, warm_start=None if start is None else start.schedule).trace
    )


def _allowed(trace: Trace, treatments: tuple[str, ...]) -> bool:
    return ("offload" in treatments or not trace.offloaded) and (
        "recompute" in treatments or not trace.recomputed
    )


def _fitting(make: Callable[[], Trace | None]) -> Trace | None:
    """Return what is made; None where nothing fits."""
    with suppress(OptPipeError):
        return make()
    return None


def _least(*traces: Trace | None) -> Trace | None:
    return min(filter(None, traces), key=lambda trace: trace.makespan_ns, default=None)


def _time(trace: Trace, profile: CostProfile, draw: Draw) -> int | None:
    """Return the pipeline time of an iteration of a plan at drawn costs; None where an op waits forever for memory."""
    costs = drawn(profile.for_shape(trace.schedule.shape), draw)
    with suppress(OptPipeError):
        return simulate(trace.schedule, costs).cost_ns
    return None


def _cpu_s() -> float:
    """Return the CPU time of this process and of those that it has waited for, in s."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
