"""``simulate``: replay one schedule under a memory limit."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ....errors import NoSolution, OutOfMemory
from ....units import format_size, format_time
from ...options.fields import refuse_options
from ...options.shared import (
    add_outputs,
    add_pictures,
    add_profile,
    add_schedule_problem,
)
from ...options.solving import add_objective
from ...status import DONE, NO
from ..examples import PROFILE

if TYPE_CHECKING:
    from ....profile import CostProfile
    from ....schedule import Schedule
    from ....trace import Trace
    from ...outputs.show import Out

EXAMPLE = f"optpipe-sim simulate {PROFILE} --schedule zb-h1 -m 24 --gantt gantt.png"
# options that ask for more than forwards have
NOT_FORWARD = ("objective", "memory_limit", "save", "window_from", "window_to", "trace", "report")
SUMMARY = "replay one schedule and print its times and memory"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `simulate`."""
    add_profile(parser)
    parser.add_argument(
        "--schedule",
        required=True,
        metavar="NAME_OR_FILE",
        help="a schedule by name, options after a colon (gis:group=6), or a schedule file (.json,"
        " or torch's .csv)",
    )
    parser.add_argument(
        "--forward-only",
        action="store_true",
        help="replay its forwards alone, as in validation, when rollouts are scored, or in prefill: how long does such a pass take,"
        " when does the first microbatch come out, and how large are its keys and values?",
    )
    add_schedule_problem(parser)
    add_objective(parser)
    parser.add_argument(
        "--engine",
        choices=("replay", "simpy"),
        default="replay",
        help="the compiled replay, or the discrete-event simulator; both give the same times",
    )
    add_pictures(parser, "the", "the schedule, its memory and why it waits")
    add_outputs(parser, ("save", "S.json", "write the schedule"))


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Replay one schedule under the limit."""
    from ....sim import simulate_or_report
    from ...inputs import read_problem
    from ...outputs.verdict import would_fit
    from ...outputs.write import write_trace, write_trace_page

    try:
        profile, schedule = read_problem(arguments)
    except (OutOfMemory, NoSolution) as error:  # it plans for a limit that no schedule can keep
        out.result({"schedule": arguments.schedule, "fits": False, "reason": str(error)})
        raise
    if arguments.forward_only:
        return _forwards(arguments, out, schedule, profile)
    trace, reason = simulate_or_report(
        schedule, profile, objective=arguments.objective, engine=arguments.engine
    )
    files = write_trace(arguments, trace) | write_trace_page(arguments, trace)
    fitting = would_fit(arguments.schedule, trace)
    out.result(
        {
            "schedule": arguments.schedule,
            **trace.measures(),
            "chunks": schedule.shape.chunks,
            "reason": reason,
            "would_fit": fitting,
            "files": files,
        }
    )
    _show(out, arguments, trace, fitting, files)
    return DONE if trace.fits else NO


def _forwards(
    arguments: argparse.Namespace, out: Out, schedule: Schedule, profile: CostProfile
) -> int:
    """Replay and print the forwards alone."""
    from ....sim.forwards import forward_pass
    from ...outputs import show

    refuse_options(arguments, *NOT_FORWARD, why="is nothing for --forward-only")
    found = forward_pass(schedule, profile)
    files = {}
    if arguments.gantt:
        from ....plot.picture import lanes_until
        from ....plot.style import save

        save(lanes_until(found.trace, found.makespan_ns), arguments.gantt)
        files[arguments.gantt] = "Gantt chart of the forwards"
    out.result(
        {
            "schedule": arguments.schedule,
            "forward_only": True,
            **found.to_json(),
            "chunks": schedule.shape.chunks,
            "files": files,
        }
    )
    shape, total = schedule.shape, format_time(found.makespan_ns)
    out.print(f"{arguments.schedule}, forwards alone: {total} per pass", style="bold")
    out.print("on", show.headline(found.trace.profile, shape.microbatches))
    out.print()
    out.line("first result", f"after {format_time(found.first_ns)}")
    each = format_time(round((found.makespan_ns - found.first_ns) / max(1, shape.microbatches - 1)))
    if shape.microbatches > 1:
        out.line("then", f"{each} per microbatch, on average")
    out.line("bubble", f"{found.bubble_rate:.1%} of the busiest device's time")
    if found.tokens_per_s:
        out.line("tokens", f"{found.tokens_per_s:,.0f} per second, of one replica")
    if any(found.kv_bytes):
        most = max(found.kv_bytes)
        at = found.kv_bytes.index(most)
        out.line("keys, values", f"{format_size(most)} per microbatch on device {at}, at most")
    out.line("memory", "beside these and weights not counted: no forward keeps more for a backward")
    out.written(files)
    return DONE


def _show(
    out: Out,
    arguments: argparse.Namespace,
    trace: Trace,
    fitting: list[str],
    files: dict[str, str],
) -> None:
    """One schedule's measures."""
    from rich.text import Text

    from ...outputs import show
    from ...outputs.verdict import show_verdict

    profile, shape = trace.profile, trace.schedule.shape
    show_verdict(out, arguments.schedule, trace, fitting)
    out.print("on", show.headline(profile, shape.microbatches))
    out.print()
    show.times(out, trace)
    total = trace.makespan_ns * shape.devices
    shares = sorted(
        ((ns / total, cause) for cause, ns in trace.idle_ns.items() if ns), reverse=True
    )
    parts = ", ".join(f"{cause} {share:.1%}" for share, cause in shares)
    out.line("idle", f"{sum(share for share, _ in shares):.1%} of device time: {parts or 'none'}")
    show.memory(out, trace)
    if trace.offloaded:
        show.offloaded(out, trace)
    if not trace.fits:
        out.line("fits", Text("✗ no; the figures are those without the limit", "bold red"))
    elif trace.memory_limit is not None:
        out.line("fits", Text("✓ yes", "green"))
    out.written(files)
    if not arguments.gantt:
        out.next("draw it with --gantt gantt.png, or look into it with --trace trace.json")
