"""``report``: one HTML page that shows why a schedule is slow, and what another one does better."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ....errors import OptPipeError
from ...options.shared import (
    add_objective_of_schedule,
    add_outputs,
    add_profile,
    add_schedule,
    add_schedule_problem,
)
from ...status import DONE, NO
from ..examples import PROFILE

if TYPE_CHECKING:
    from ....trace import Trace
    from ...outputs.show import Out

EXAMPLE = f"optpipe-sim report zb-h1 {PROFILE} -m 24 --against 1f1b -o zb-h1.html"
SUMMARY = "write a page that shows why a schedule is slow, and what another does better"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `report`."""
    add_schedule(parser)
    add_profile(parser, nargs="?", help="profile (YAML or JSON); a trace file has its own")
    parser.add_argument(
        "--against",
        dest="other_files",
        nargs="+",
        metavar=("OTHER", "PROFILE"),
        help="a second schedule, or a measured trace (confirm --save-trace), and its profile if"
        " that differs",
    )
    add_outputs(parser, ("-o --report", "F.html", "the page, which works offline"), required=True)
    add_objective_of_schedule(parser)
    add_schedule_problem(parser)


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Replay one schedule, or two, and write the page."""
    from ...inputs import is_file
    from ...outputs.verdict import show_verdict
    from ...outputs.verdict import would_fit as fitting
    from ...outputs.write import write_page

    trace, reason = _replay(arguments, arguments.schedule, arguments.profile)
    against: Trace | None = None
    if arguments.other_files:
        name, *profile = arguments.other_files
        if len(profile) > 1:
            raise OptPipeError(f"--against: takes OTHER and PROFILE, not {profile[1]!r} as well")
        if arguments.microbatches is None and not is_file(name):
            arguments.microbatches = trace.schedule.shape.microbatches
        against, other = _replay(arguments, name, profile[0] if profile else arguments.profile)
        reason = reason or other
    files = write_page(arguments, lambda page, command: page.of(trace, against, command))
    replayed = {arguments.schedule: trace}
    if against is not None:
        replayed.setdefault(arguments.other_files[0], against)
    would_fit = {name: fitting(name, each) for name, each in replayed.items() if not each.fits}
    fits = trace.fits and (against is None or against.fits)
    out.result(
        {
            "schedule": arguments.schedule,
            **trace.measures(),
            "against": against and {"schedule": arguments.other_files[0], **against.measures()},
            "fits": fits,
            "reason": reason,
            "would_fit": would_fit,
            "files": files,
        }
    )
    for name, each in replayed.items():
        show_verdict(out, name, each, would_fit.get(name, []))
        if not each.fits:
            out.line("the page", "shows its times without the limit")
    out.written(files)
    return DONE if fits else NO


def _replay(
    arguments: argparse.Namespace, name: str, profile_path: str | None
) -> tuple[Trace, str | None]:
    from ...inputs import read_profile, read_trace

    profile = None if profile_path is None else read_profile(arguments, profile_path)
    return read_trace(name, arguments.microbatches, profile, arguments.objective)
