"""``solve --family``: the best plan that a framework can run, compared with the best of all."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ....errors import NoSolution, OptPipeError, OutOfMemory
from ...options.search import search_options
from .common import COMPILING, finish

if TYPE_CHECKING:
    from ....frameworks.megatron.search import Found
    from ....profile import CostProfile
    from ....solvers.result import SolveResult
    from ...outputs.show import Out

FAMILIES = ("megatron",)
# options of `solve` that choose how to search, or another question
REFUSED = ("warm_start", "write_model", "noise", "evaluations", "placement", "log", "margin")


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--family``."""
    parser.add_argument(
        "--family",
        choices=FAMILIES,
        help="the best plan that this framework can run, compared with the best of all, ending in"
        " the options to paste",
    )


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Replay the family, solve without it for the rest of the time, and compare both."""
    from ....frameworks.megatron.search import best
    from ....solvers.treatments import restrict
    from ...inputs import read_profile

    for name in REFUSED:
        if getattr(arguments, name, None):
            option = name.replace("_", "-")
            raise OptPipeError(f"--{option}: is nothing for --family, which replays all it has")
    kinds = arguments.treatments or ("keep", "offload", "recompute")
    profile = read_profile(arguments)
    chunks = [arguments.chunks] if isinstance(arguments.chunks, int) else None
    if arguments.chunks == "profile":
        chunks = [profile.chunks]
    with out.progress("replaying") as progress:
        found = best(
            profile,
            arguments.microbatches,
            chunks=chunks,
            offload="offload" in kinds,
            recompute="recompute" in kinds,
            objective=arguments.objective,
            on_progress=lambda tried: progress(f"{tried} plans", 0, 1),
        )
    free = _free(arguments, out, restrict(profile, arguments.treatments))
    trace = found.trace
    trace.schedule.meta.update(name=found.choice.name, objective=arguments.objective)
    plan = _plan(found, profile, arguments.microbatches)
    bound = free.lower_bound_ns if free is not None else None
    cost = trace.cost_ns
    answer = {
        "schedule": found.choice.name,
        "family": arguments.family,
        **trace.measures(),
        **found.to_json(),
        "objective_ns": cost,
        "lower_bound_ns": bound,
        "gap": None if not bound else cost / bound - 1,
        "free_ns": None if free is None else free.objective_ns,
        "slower_than_free": None
        if free is None or not free.objective_ns
        else cost / free.objective_ns - 1,
        **plan,
    }
    files = {}
    if arguments.save:
        trace.schedule.save(arguments.save)
        files[arguments.save] = "the schedule"
    return finish(arguments, out, trace, answer, files, lambda: _tell(out, answer, files))


def _free(arguments: argparse.Namespace, out: Out, profile: CostProfile) -> SolveResult | None:
    """The best there is, and its bound; None where there is none."""
    from ....solvers.solve import solve
    from ...outputs.live import watching

    options = search_options(arguments, chunks="any")
    try:
        with watching(out, "solving without the family", arguments.time_limit) as live:
            return solve(
                profile,
                arguments.microbatches,
                **vars(options),
                watch=live,
                on_wait=lambda: out.wait(COMPILING),
            )
    except (OutOfMemory, NoSolution):
        return None


def _plan(found: Found, profile: CostProfile, microbatches: int) -> dict[str, Any]:
    """The options to paste; why there are none, where the profile does not say enough."""
    from ....frameworks.megatron.family import plan_of

    try:
        plan, notes = plan_of(found.choice, profile, microbatches)
    except OptPipeError as error:
        return {"options": None, "environment": {}, "command": None, "notes": [str(error)]}
    return {
        "options": plan.options(),
        "environment": plan.environment(),
        "command": plan.command(),
        "notes": list(notes),
    }


def _tell(out: Out, answer: dict[str, Any], files: dict[str, str]) -> None:
    from ....units import format_size, format_time
    from ...outputs.show import line, written

    line(out, "best of the family", answer["told"])
    line(out, "time", format_time(answer["objective_ns"]))
    line(out, "peak", format_size(max(answer["peak_bytes"])))
    line(out, "replayed", f"{answer['tried']} plans, of which {answer['fitting']} fit")
    if answer["free_ns"] is not None:
        slower = f"{answer['slower_than_free']:+.1%}"
        line(out, "free of the family", f"{format_time(answer['free_ns'])} (this one: {slower})")
    if answer["lower_bound_ns"]:
        bound = format_time(answer["lower_bound_ns"])
        line(out, "bound", f"{bound}, for any schedule (this one: {answer['gap']:+.1%})")
    for note in answer["notes"]:
        line(out, "note", note)
    if answer["command"]:
        out.print(answer["command"], soft_wrap=True)
    written(out, files)
