"""``optpipe-sim solve --noise``: the best schedule when durations vary."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from rich.text import Text

from ....errors import NoSolution, OptPipeError, OutOfMemory
from ....profile import CostProfile
from ....profile.iteration import iteration_ns
from ....sim.scenarios import Noise
from ....solvers.options import SolveOptions
from ....solvers.robust import RobustResult, solve_robust
from ....units import counted, format_size, format_time
from ...options.fields import refuse_options
from ...outputs import show
from ...outputs.live import watching
from ...outputs.show import Out
from .common import finish, refuse


def run(
    arguments: argparse.Namespace,
    out: Out,
    profile: CostProfile,
    files: dict[str, str],
    options: SolveOptions,
    **hooks: Any,
) -> int:
    """Search for the schedule with the least mean, or quantile, of its time over samples.

    Args:
        hooks: what `solve` saves and reports, in its form.
    """
    unlike = ("log", "warm_start", "evaluations", "per_stage")
    refuse_options(arguments, *unlike, why="not with --noise")
    if arguments.chunks == "any":
        raise OptPipeError("--chunks any: not with --noise; give a number")
    samples = {} if arguments.samples is None else {"samples": arguments.samples}
    noise = Noise(**{"op": 0.0, **arguments.noise})
    with watching(out, "solving without noise first", arguments.time_limit) as watch:
        try:
            result = solve_robust(
                profile,
                arguments.microbatches,
                noise=noise,
                quantile=arguments.quantile,
                **{**vars(options), **hooks, **samples, "watch": watch},
            )
        except (OutOfMemory, NoSolution) as error:
            refuse(arguments, out, profile, error)
    result.schedule.meta.update(name="optpipe, robust", objective=result.trace.objective)
    objective_ns = round(iteration_ns(profile, result.objective_ns))
    answer = {
        **result.measures(),
        "noise": arguments.noise,
        "objective_iteration_ns": objective_ns,
    }
    if arguments.margin is not None:
        answer["margin"] = {"margins": arguments.margin.to_json()}
    shown = partial(_show, out, arguments, profile, result, files)
    return finish(arguments, out, result.trace, answer, files, shown)


def _show(
    out: Out,
    arguments: argparse.Namespace,
    profile: CostProfile,
    result: RobustResult,
    files: dict[str, str],
) -> None:
    # of a pipeline's time, and so of its mean and its quantiles
    whole = partial(iteration_ns, profile)
    objective_ns, nominal_ns = whole(result.objective_ns), whole(result.nominal_objective_ns)
    scatter = ", ".join(f"{name} {share:.0%}" for name, share in arguments.noise.items())
    samples = counted(len(result.costs_ns), "sample")
    out.print(_answer(result, objective_ns))
    out.print("on", show.headline(profile, arguments.microbatches))
    if arguments.margin is not None:
        scatter += f", around what a margin of {arguments.margin} allows"
    out.print(f"durations scatter: {scatter}; {samples}", style="dim")
    if result.interrupted:
        out.print("interrupted: the best so far", style="yellow")
    out.print()
    what = "mean time" if result.quantile is None else f"{result.quantile:.0%} quantile"
    time = Text(format_time(objective_ns), "bold")
    out.line(what, time.append(f", by {result.found_by} of {result.tried} candidates", "dim"))
    more = nominal_ns / objective_ns - 1
    gain = f" ({more:.2%} more{profile.toss_up_text(more)})"
    out.line("best without noise", f"{format_time(nominal_ns)}{gain}")
    bound = show.bound_text(result.lower_bound_ns, result.trace)
    out.line("proven", f"at most {result.gap:.2%} above {bound} ({result.bound_name})")
    spread = result.measures()["quantiles_ns"]
    out.line(
        "10% .. 50% .. 90%",
        " .. ".join(format_time(whole(spread[p])) for p in ("0.1", "0.5", "0.9")),
    )
    nominal = (format_time(result.trace.iteration_ns), result.trace.expected_text)
    out.line("as profiled", ", ".join(filter(None, nominal)))
    out.line("peak memory", show.peak_text(result.trace))
    show.order(out, result.trace)
    if result.trace.offloaded:
        host = format_size(result.trace.host_peak_bytes)
        out.line("offloaded", f"{result.trace.offloaded}; host memory peaks at {host}")
    show.failed(out, result.failures)
    out.written(files)
    if not arguments.save:
        out.next("keep it with --save robust.json, draw it with --gantt gantt.png")


def _answer(result: RobustResult, objective_ns: float) -> Text:
    """Return the first line: the measure of an iteration's time, and the peak."""
    what = "in the mean" if result.quantile is None else f"at the {result.quantile:.0%} quantile"
    text = f"the best found: {format_time(objective_ns)} per iteration {what}, peak {result.trace.peak_text}"
    return Text(text, "bold")
