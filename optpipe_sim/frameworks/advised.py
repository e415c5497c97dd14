"""Advice in the options of a framework: what it may choose from, its best plan, and what the family costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..bounds.bounds import lower_bound
from ..costs.advise.replay import profile_of, replayed
from ..costs.advise.rows import Advice, Row
from ..costs.advise.space import Choice
from ..costs.layout import MARK
from ..costs.provenance import iteration_ns
from ..errors import InvalidSchedule, OptPipeError
from ..files import write_text
from ..schedules import MEGATRON_OFFLOAD, PAIRED, names_in, parse_name
from ..sim import simulate
from ..solvers.layers.bound import layout_bound
from ..solvers.solve import solve
from ..trace import Trace
from ..units import format_size, format_time
from . import seq1f1b, torchtitan
from .megatron.best_plan import Found, best
from .megatron.family import plan_for, plan_of
from .megatron.launch import script
from .megatron.options import Plan

SCRIPTS = 3  # plans that get one
# of the time limit, at most, for splits where a family is searched around the best of them
SPLITS = 0.5
LAYOUTS = 0.7  # of what is left then: for other layouts and options; the rest searches the same split without the family
NEAR = 0.05  # how much slower, as a share, a configuration may be to be searched around as well
FREE_S = 8.0  # to search the same split without the family, at most
MOST_OPS = 200_000  # schedules with more ops are reported as they are


def restrictions(family: str | None, given: dict[str, Any], experts: bool) -> dict[str, Any]:
    """Return what `advise` may choose from in a family for a model with `experts` or without; what the user
    gave as options stays.

    Raises:
        OptPipeError: for slices of sequences, which neither family has.
    """
    if family is not None and given.get("slices", 1) != 1:
        raise OptPipeError(f"slices: {family} runs whole sequences; leave out --slices or --family")
    usual: dict[str, Any] = {}
    if family == "megatron":  # its distributed optimizer is ZeRO 1
        usual = {"schedules": names_in(family), "zero": (1,)}
        if given.get("pairs", "none") != "none":  # then it runs them, and no full recomputation
            usual |= {"schedules": (PAIRED,), "recompute": ("none", "norms")}
        if not experts:  # it has no module for the level norms then
            usual["recompute"] = ("none", "full")
    elif family == "torchtitan":
        usual = {"schedules": names_in(family), "recompute": ("none", "full")}
    named = {key: given[key] for key in ("recompute", "schedules", "zero", "slices")}
    return {key: usual.get(key) if value is None else value for key, value in named.items()}


def share_of_splits(family: str | None) -> float:
    """Return the share of the time limit that `advise` has for splits."""
    return SPLITS if family == "megatron" else 1.0


def plan_in(
    family: str, found: Advice, seconds: float, given: dict[str, Any]
) -> tuple[dict[str, Any], Row]:
    """Return the options of the best row, or of a better plan that is near one of the fastest
    configurations, how far from the best of its split that is, and the plan as a row.

    Args:
        seconds: how long to search for a better one. `given`: the user's options.

    Raises:
        OptPipeError: if the framework cannot express it.
    """
    if family == "torchtitan":
        return _torchtitan(found.rows[0]), found.rows[0]
    return _megatron(found, seconds, given["recompute"] is not None)


def with_row(found: Advice, told: Row, interrupted: bool = False) -> Advice:
    """Return the advice with a plan in the place of its split's row; `interrupted`: Ctrl-C has ended the
    search for it."""
    others = (row for row in found.rows if row.choice.split != told.choice.split)
    rows = sorted([told, *others], key=lambda row: row.key)
    rows = rows[: len(found.rows)]
    return replace(found, rows=tuple(rows), interrupted=found.interrupted or interrupted)


def told_to(family: str | None, trace: Trace) -> None:
    """Raise where a framework has no options for a replayed schedule and what its profile assumes.

    Raises:
        OptPipeError: says what it has none for.
    """
    schedule, profile = trace.schedule, trace.profile
    if family == "megatron":
        plan_for(schedule, profile)
    elif family == "torchtitan":
        named = torchtitan.has_name(schedule, profile)
        torchtitan.options(schedule, profile, None if named else "order.csv")


def write_scripts(folder: str, found: Advice, told: Row) -> tuple[dict[str, str], list[str]]:
    """Write a script for the plan that was told and for each further row, up to `SCRIPTS`; return their
    names with what they are, and a sentence for each row that Megatron-LM has no options for."""
    files, notes = {}, []
    for at, row in enumerate([told, *found.rows[1:]][:SCRIPTS], 1):
        what = f"{row.schedule} on {row.choice}, recompute {row.choice.recompute}"
        try:
            plan, _ = plan_for(row.trace.schedule, row.profile)
        except OptPipeError as error:
            notes.append(f"no script for {what}: {error}")
            continue
        time = f"{format_time(round(row.iteration_ns))} per iteration"
        said = f"plan {at}: {what}; predicted: {time}, {format_size(row.peak_bytes)}"
        path = str(Path(folder) / f"{at}-{str(row.choice).replace(' ', '-').replace(',', '')}.sh")
        write_text(path, script(plan, row.profile, [said]))
        files[path] = f"starts plan {at}: {time}"
    return files, notes


def plan_over_slices(found: Advice) -> dict[str, Any]:
    """Return the best row over slices in the options of Seq1F1B's fork of Megatron-LM; where it has none for
    it, why, and the options of the fastest configuration replayed that it has. Empty for whole sequences."""
    row = found.rows[0]
    if row.choice.slices == 1:
        return {}
    try:
        told, notes = seq1f1b.options(row.trace.schedule, row.profile)
        return {
            "options": told,
            "command": seq1f1b.command(told),
            "notes": [f"to run it: {seq1f1b.NAMED}", *notes],
        }
    except InvalidSchedule as error:
        why = f"no framework can be told this plan; {seq1f1b.NAMED} cannot: {error}"
    own = [one for one in found.points if one.fits and one.schedule in seq1f1b.ORDERS.values()]
    for point in sorted(own, key=lambda one: one.iteration_ns):
        profile = profile_of(found.question, point.choice)
        _, trace = replayed(profile, point.choice.microbatches, point.schedule)
        try:
            told, notes = seq1f1b.options(trace.schedule, profile)
        except InvalidSchedule:
            continue
        slower = point.iteration_ns / row.iteration_ns - 1
        nearest = f"it can run {point.schedule} on {point.choice}, {slower:.1%} slower"
        return {"options": told, "command": seq1f1b.command(told), "notes": [why, nearest, *notes]}
    return {"options": {}, "command": "", "notes": [why]}


def _torchtitan(row: Row) -> dict[str, Any]:
    schedule = row.trace.schedule
    csv = None if torchtitan.has_name(schedule, row.profile) else "order.csv"
    config = torchtitan.options(schedule, row.profile, csv)
    notes = [] if csv is None else [f"{csv}: export --format torchtitan --csv writes the order"]
    notes += torchtitan.issue_notes(row.profile.execution_notes["name"])
    return {"options": config, "command": torchtitan.command(config), "notes": notes}


def _megatron(found: Advice, seconds: float, fixed: bool) -> tuple[dict[str, Any], Row]:
    """Return the plan of the best row or a better one: with the first layers of chunks recomputed,
    activations offloaded, or other layers on the stages of one of the fastest configurations. `fixed`:
    what is recomputed stays as it is."""
    until = time.monotonic() + seconds
    row, interrupted = found.rows[0], found.interrupted
    if row.choice.pp > 1 and seconds > 0:
        try:
            for other in _near(found, time.monotonic() + LAYOUTS * seconds, fixed):
                row = min(row, other, key=lambda one: one.key)
        except KeyboardInterrupt:  # what there is by now is the answer
            interrupted = True
    plan, notes = plan_for(row.trace.schedule, row.profile)
    answer = {
        "told": row.schedule,
        "told_iteration_ns": round(row.iteration_ns),
        "told_mfu": row.mfu,
        "told_mfu_causal": row.mfu_causal,
        "told_peak_bytes": row.peak_bytes,
        "told_layers": _layers(plan),
        "options": plan.options(),
        "environment": plan.environment(),
        "command": plan.command(),
        "notes": list(notes),
    }
    if row.choice.pp > 1 and not interrupted:
        try:
            answer |= _free(found, row, until, fixed)
        except KeyboardInterrupt:
            interrupted = True
    return {**answer, "interrupted": interrupted}, row


def _near(found: Advice, until: float, fixed: bool) -> Iterator[Row]:
    """Yield the best plan of the family around each of the fastest configurations that fit, as a row."""
    question = found.question
    offload = "offload" in question.treatments
    offload &= MEGATRON_OFFLOAD in [parse_name(name)[0] for name in question.names]
    choices = _fastest(found, fixed)
    for at, choice in enumerate(choices):
        share = (until - time.monotonic()) / (len(choices) - at)
        if share <= 0:
            return
        profile = profile_of(question, choice, levels=not fixed)
        recompute, m = "recompute" in question.treatments, choice.microbatches
        try:
            other = best(
                profile,
                m,
                chunks=[choice.chunks],
                offload=offload,
                recompute=recompute,
                seconds=share,
            )
            plan, _ = plan_of(other.choice, other.trace.profile, m)
        except OptPipeError:  # none fits, or none has options
            continue
        yield _told(found, choice, other, _layers(plan), fixed)


def _layers(plan: Plan) -> list[int | str]:
    """Return the layers of each stage as `estimate` takes them: with an m behind the number where those
    that predict further tokens are, if not on the stage of the loss."""
    return [
        f"{part.layers}{MARK}" if part.mtp and not part.loss else part.layers for part in plan.parts
    ]


def _fastest(found: Advice, fixed: bool) -> list[Choice]:
    """Return the configurations that are at most `NEAR` slower than the fastest that fits, which comes
    first, one for all recomputations unless what is recomputed is `fixed`."""
    most = (1 + NEAR) * found.rows[0].iteration_ns
    points = sorted(
        (p for p in found.points if p.fits and p.iteration_ns <= most), key=lambda p: p[:2]
    )
    asked = [found.rows[0].choice, *(point.choice for point in points)]
    if not fixed:
        asked = [replace(choice, recompute="none") for choice in asked]
    small = (c for c in asked if 3 * c.pp * c.chunks * c.microbatches <= MOST_OPS and c.pp > 1)
    return list(dict.fromkeys(small))


def _told(
    found: Advice, choice: Choice, other: Found, layers: Sequence[int | str], fixed: bool
) -> Row:
    """Return a plan of the family as a row, its costs estimated for the layers on its stages."""
    profile = profile_of(found.question, choice, levels=not fixed, layers=layers)
    schedule = other.choice.build(profile, choice.microbatches)
    trace = simulate(schedule, profile)
    least = lower_bound(profile, choice.microbatches, pairs=True)
    bound = iteration_ns(profile, least.ns)
    return replace(
        found.rows[0],
        choice=choice,
        schedule=other.choice.name,
        profile=profile,
        trace=trace,
        bound_ns=bound,
    )


def _free(found: Advice, told: Row, until: float, fixed: bool) -> dict[str, Any]:
    """Return the best that a short search finds on the same split and chunks without the family, and a
    bound for every schedule and layout of these; empty where there is no time."""
    left = until - time.monotonic()
    if left <= 0 or len(told.trace.schedule) > MOST_OPS:
        return {}
    question, m = found.question, told.choice.microbatches
    choice = told.choice if fixed else replace(told.choice, recompute="none")
    profile = profile_of(question, choice, levels=not fixed)
    try:
        free = solve(
            profile,
            m,
            engine="search",
            time_limit=min(FREE_S, left),
            seed=question.seed,
            published=False,
            chunks="own",
            treatments=question.treatments,
            per_stage=question.per_stage,
        )
    except OptPipeError:
        return {}
    bound, _ = layout_bound(profile, m, "flush", profile.memory_limit, 1.0)
    best = min(told.iteration_ns, iteration_ns(profile, free.objective_ns))
    return {
        "free_ns": round(best),
        "slower_than_free": told.iteration_ns / best - 1,
        "layout_bound_ns": round(iteration_ns(profile, bound.ns)),
        "layout_bound_by": bound.name,
    }
