"""``solve --layers any``: the layers of each stage chosen together with the schedule."""

from __future__ import annotations

import argparse
from itertools import groupby
from typing import Any

from ....errors import NoSolution, OutOfMemory
from ....solvers.layers.moved import LayersResult, solve_layers
from ....solvers.treatments import restrict
from ....units import format_time
from ...inputs import read_profile
from ...options.fields import refuse_options
from ...options.solving import search_options
from ...outputs.live import watching
from ...outputs.show import Out, memory, order, times
from ...outputs.solve import apart, placed, proof
from ...outputs.verdict import verdict
from ...outputs.write import write_profile
from .common import finish, needs_profile, refuse

# options of `solve` that concern a single layout, or another question
REFUSED = ("warm_start", "write_model", "noise", "evaluations", "log", "margin", "family")


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Search over layouts; print the best so far on Ctrl-C."""
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
                on_wait=out.compiling,
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
        out.line("shape", f"{shape.chunks} chunks per device, placed {placed(shape)}")
    memory(out, trace)
    order(out, trace)
    text = "the given layout is the best found"
    if found.saved > 0:
        text = f"{found.saved:.2%} less time than the best found with the given layout"
        text += f" ({runs(list(map(str, found.given_counts)))} items: {format_time(given.trace.iteration_ns)})"
        text += trace.profile.toss_up_text(found.saved)
        if found.surely_saved:
            text += f"; {found.surely_saved:.2%} less than any schedule of that, proven"
    out.line("saved", text)
    out.written(files)


def runs(words: list[str]) -> str:
    """Join equal neighbours: ``embedding + 6 | 14 x 5 | 4 + head``."""
    parts = [(word, len(list(same))) for word, same in groupby(words)]
    return " | ".join(f"{count} x {word}" if count > 1 else word for word, count in parts)
