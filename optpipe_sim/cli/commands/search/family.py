"""``solve --family``: the best plan that a framework can run, compared with the best of all."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence
from typing import Any

from ....errors import NoSolution, OptPipeError, OutOfMemory
from ....frameworks import torchtitan, torchtitan_search
from ....frameworks.megatron import best_plan
from ....frameworks.megatron.family import plan_of
from ....profile import CostProfile
from ....schedules import names_in
from ....solvers.layers.moved import solve_layers
from ....solvers.result import SolveResult
from ....solvers.solve import solve
from ....solvers.steady import Beside
from ....solvers.treatments import restrict
from ....trace import Trace
from ....units import format_time
from ...inputs import read_profile
from ...options.fields import as_given, refuse_options
from ...options.solving import search_options
from ...outputs.live import watching
from ...outputs.show import Out, bound_text, environment, memory, order, times
from ...outputs.solve import show_beside
from ...outputs.verdict import verdict
from ...outputs.write import write_profile
from .common import NOTHING_BESIDE, finish, needs_profile, plain_beside, refuse

LEAST_S = 1.0  # for the search without the family
# options of `solve` that choose how to search, or another question
REFUSED = ("warm_start", "write_model", "noise", "evaluations", "placement", "log", "margin")


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Find the best of the family in half of the time, solve without it for the rest, and compare both."""
    refuse_options(arguments, *REFUSED, why="is nothing for --family")
    if arguments.family == "megatron" and arguments.pairs is not None:
        raise OptPipeError(
            "--pairs: is nothing for --family megatron, whose plans pair where the costs were estimated so"
            " (estimate --pairs)"
        )
    profile = read_profile(arguments)
    began = time.monotonic()
    try:
        trace, found, plan = _BEST[arguments.family](arguments, out, profile)
    except (OutOfMemory, NoSolution) as error:
        refuse(arguments, out, profile, error)
    if found.get("moved", False):
        needs_profile(arguments)
    left = max(LEAST_S, arguments.time_limit - (time.monotonic() - began))
    free = _free(arguments, out, restrict(profile, arguments.treatments), left)
    trace.schedule.meta.update(
        name=found["told"], objective=trace.objective, family=arguments.family
    )
    bound = free.lower_bound_ns if free is not None else None
    cost = trace.cost_ns
    free_iteration_ns = free and free.trace and min(free.trace.iteration_ns, trace.iteration_ns)
    answer = {
        "schedule": found["told"],
        "family": arguments.family,
        **trace.measures(),
        **found,
        "objective_ns": cost,
        "lower_bound_ns": bound,
        "gap": None if not bound else cost / bound - 1,
        # a plan of the family is one that the search without it may have, too
        "free_ns": None if free is None else min(free.objective_ns, cost),
        "free_iteration_ns": free_iteration_ns,
        "slower_than_free": trace.iteration_ns / free_iteration_ns - 1
        if free_iteration_ns
        else None,
        **plan,
    }
    chunks = _chunks(arguments, profile)
    plain = plain_beside(
        restrict(profile, arguments.treatments),
        trace,
        names_in(arguments.family),
        None if chunks is None else chunks[0],
    )
    answer |= plain.to_json(trace) if plain is not None else NOTHING_BESIDE
    files = write_profile(arguments, trace.given_stages, "the profile with this layout")
    return finish(
        arguments,
        out,
        trace,
        answer,
        files,
        lambda: _show(out, arguments, trace, answer, files, plain),
        waits=False,
    )


_Best = tuple["Trace", dict[str, Any], dict[str, Any]]


def _megatron(arguments: argparse.Namespace, out: Out, profile: CostProfile) -> _Best:
    """Replay Megatron-LM's family."""
    with out.progress("replaying") as progress:
        found = best_plan.best(
            profile,
            arguments.microbatches,
            chunks=_chunks(arguments, profile),
            offload=_may(arguments, "offload"),
            recompute=_may(arguments, "recompute"),
            objective=arguments.objective,
            seconds=arguments.time_limit / 2,
            on_progress=lambda tried: progress(f"{tried} plans", 0, 1),
        )
    try:
        plan, notes = plan_of(found.choice, found.trace.profile, arguments.microbatches)
    except OptPipeError as error:  # the profile does not say its layers
        return found.trace, found.to_json(), _no_plan(error)
    return (
        found.trace,
        found.to_json(),
        {
            "options": plan.options(),
            "environment": plan.environment(),
            "command": plan.command(),
            "notes": list(notes),
        },
    )


def _torchtitan(arguments: argparse.Namespace, out: Out, profile: CostProfile) -> _Best:
    """Search among what torchtitan runs, for half of the time."""
    half = arguments.time_limit / 2
    shape = {} if arguments.chunks == "profile" else {"chunks": arguments.chunks or "any"}
    options = search_options(arguments, time_limit=half, **shape)
    with watching(out, "solving for torchtitan", half) as live:
        found = torchtitan_search.best(
            profile,
            arguments.microbatches,
            options,
            recompute=_may(arguments, "recompute"),
            watch=live,
        )
    schedule, shaped = found.trace.schedule, found.trace.profile
    named = torchtitan.has_name(schedule, shaped)
    try:
        config = torchtitan.options(schedule, shaped, None if named else CSV)
    except OptPipeError as error:
        return found.trace, found.to_json(), _no_plan(error)
    notes = [torchtitan.SELECTIVE] if found.level == "selective" else []
    notes += torchtitan.issue_notes(shaped.execution_notes["name"])
    notes += torchtitan.length_notes(shaped)
    if not named:
        notes.append(f"{CSV} is written by: export S.json PROFILE --format torchtitan --csv {CSV}")
    plan = {"options": config, "environment": {}, "command": torchtitan.command(config)}
    return found.trace, found.to_json(), {**plan, "notes": notes}


_BEST = {"megatron": _megatron, "torchtitan": _torchtitan}
CSV = "order.csv"


def _no_plan(error: OptPipeError) -> dict[str, Any]:
    return {"options": None, "environment": {}, "command": None, "notes": [str(error)]}


def _may(arguments: argparse.Namespace, treatment: str) -> bool:
    return arguments.treatments is None or treatment in arguments.treatments


def _chunks(arguments: argparse.Namespace, profile: CostProfile) -> Sequence[int] | None:
    if arguments.chunks == "profile":
        return [profile.chunks]
    return [arguments.chunks] if isinstance(arguments.chunks, int) else None


def _free(
    arguments: argparse.Namespace, out: Out, profile: CostProfile, seconds: float
) -> SolveResult | None:
    """Solve without the family, with any layout where the family had one; None if nothing fits."""
    options = search_options(arguments, chunks="any", time_limit=seconds)
    m = arguments.microbatches
    try:
        with watching(out, "solving without the family", seconds) as live:
            hooks: dict[str, Any] = {"watch": live, "on_wait": out.compiling}
            if profile.items:
                return solve_layers(profile, m, **vars(options), **hooks).result
            return solve(profile, m, **vars(options), **hooks)
    except (OutOfMemory, NoSolution):
        return None


def _show(
    out: Out,
    arguments: argparse.Namespace,
    trace: Trace,
    answer: dict[str, Any],
    files: dict[str, str],
    plain: Beside | None,
) -> None:
    out.text(verdict(answer["told"], trace))
    out.line("best of the family", answer["told"])
    times(out, trace)
    memory(out, trace)
    order(out, trace, waits=False)
    out.line("replayed", f"{answer['tried']} plans, of which {answer['fitting']} fit")
    if answer.get("partial"):
        faster = f"{answer['partial_ns'] / trace.cost_ns - 1:+.1%}"
        text = f"{answer['partial']}: {faster} time, by a field of its configuration that has no option"
        out.line("partial checkpoints", text)
    if answer["free_iteration_ns"] is not None:
        slower = answer["slower_than_free"]
        free = f"{format_time(answer['free_iteration_ns'])} (this one: {slower:+.1%}"
        free += trace.profile.toss_up_text(slower) if slower else ": nothing faster was found"
        out.line("free of the family", f"{free})")
    if answer["lower_bound_ns"]:
        bound = bound_text(answer["lower_bound_ns"], trace)
        out.line("bound", f"{bound}, for any schedule (this one: {answer['gap']:+.1%})")
    if plain is not None:
        show_beside(out, plain, trace)
    for note in answer["notes"]:
        out.line("note", note)
    if answer["command"]:
        environment(out, answer["environment"])
        out.text(answer["command"])
    out.written(files)
    # the options above are those of the fastest plan, which may not be the one to run
    if (
        plain is not None
        and plain.steady.plan.trace is not trace
        and answer["family"] == "megatron"
    ):
        run = (
            f"{plain.steady.plan.name} {shlex.quote(arguments.profile)} -m {arguments.microbatches}"
        )
        limit = as_given(arguments, "memory_limit")
        out.next(f"export {run}{limit} --format megatron", code=True)
