"""``solve --layers any``: the layers of each stage chosen together with the schedule."""

from __future__ import annotations

import argparse
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ....errors import NoSolution, OutOfMemory
from ....units import format_time
from ...options.fields import refuse_options
from ...options.shared import add_outputs
from ...options.solving import search_options
from .common import COMPILING, finish, needs_profile, refuse

if TYPE_CHECKING:
    from ....solvers.layers.moved import LayersResult
    from ...outputs.show import Out

# options of `solve` that concern a single layout, or another question
REFUSED = ("warm_start", "write_model", "noise", "evaluations", "log", "margin", "family")


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--layers`` and ``--save-profile``."""
    parser.add_argument(
        "--layers",
        choices=("own", "any"),
        default="own",
        help="any: choose the layers of each stage as well, by the profile's costs per layer"
        " (`estimate` writes them); default: the stages of the profile",
    )
    profile = "write the profile of the layout, which the schedule is for"
    add_outputs(parser, ("save-profile", "Q.yaml", f"with --layers any, --family: {profile}"))


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Search over layouts; print the best so far on Ctrl-C."""
    from ....solvers.layers.moved import solve_layers
    from ....solvers.treatments import restrict
    from ...inputs import read_profile
    from ...outputs.live import watching
    from ...outputs.trace import write_profile

    refuse_options(arguments, *REFUSED, why="is nothing for --layers any")
    needs_profile(arguments)
    options = search_options(arguments)
    profile = restrict(read_profile(arguments), options.treatments)
    try:
        with watching(out, "solving", arguments.time_limit) as live:
            found = solve_layers(
                profile,
                arguments.microbatches,
                watch=live,
                on_wait=lambda: out.wait(COMPILING),
                **vars(options),
            )
    except (OutOfMemory, NoSolution) as error:
        refuse(arguments, out, read_profile(arguments), error)
    trace = found.result.trace
    assert trace is not None
    trace.schedule.meta.update(
        name="optpipe",
        status=found.result.status,
        objective_ns=found.result.objective_ns,
        layers=found.counts,
    )
    files = write_profile(arguments, found.profile, "the profile with this layout")
    more = {"found_by": found.result.info["found_by"]}
    more["interrupted"] = found.result.info["interrupted"]
    answer: dict[str, Any] = {**found.measures(), **more}
    return finish(arguments, out, trace, answer, files, lambda: _show(out, found, files))


def _show(out: Out, found: LayersResult, files: dict[str, str]) -> None:
    from ...outputs.show import memory, times
    from ...outputs.solve import apart, proof
    from ...outputs.verdict import verdict

    result, given = found.result, found.given
    trace = result.trace
    assert trace is not None
    assert given.trace is not None
    out.print(verdict("the best found", trace).append(f", {apart(result)}", "not bold"))
    times(out, trace)
    out.line("proven", proof(result))
    out.line("layers per stage", runs(found.words))
    shape = trace.schedule.shape
    if shape.chunks > 1:
        name = shape.placement_name
        where = name if isinstance(name, str) else "as listed"
        out.line("shape", f"{shape.chunks} chunks per device, placed {where}")
    memory(out, trace)
    text = "the given layout is the best found"
    if found.saved > 0:
        text = f"{found.saved:.2%} less time than the best found with the given layout"
        text += f" ({runs(list(map(str, found.given_counts)))} items: {format_time(given.trace.iteration_ns)})"
        if found.surely_saved:
            text += f"; {found.surely_saved:.2%} less than any schedule of that, proven"
    out.line("saved", text)
    out.written(files)


def runs(words: list[str]) -> str:
    """Join equal neighbours: ``embedding + 6 | 14 x 5 | 4 + head``."""
    parts = [(word, len(list(same))) for word, same in groupby(words)]
    return " | ".join(f"{count} x {word}" if count > 1 else word for word, count in parts)
