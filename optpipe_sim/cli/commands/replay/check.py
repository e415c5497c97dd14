"""``check``: check a schedule without the simulator."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ....errors import OptPipeError
from ....units import counted
from ...options.shared import add_profile, add_schedule, add_schedule_problem
from ...status import DONE, NO
from ..examples import OFFLOADING

if TYPE_CHECKING:
    from ....profile import CostProfile
    from ....schedule import Schedule
    from ....trace import Trace
    from ...outputs.show import Out

EXAMPLE = f"optpipe-sim check best.json {OFFLOADING} --memory-limit 24GiB"
SUMMARY = "check a schedule, independently of the simulator"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `check`."""
    add_schedule(parser)
    add_profile(parser)
    add_schedule_problem(parser)


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Check a schedule without the simulator."""
    from ....checker.check import check as problems_of
    from ...inputs import read_problem
    from ...outputs.verdict import show_verdict, would_fit

    profile, schedule = read_problem(arguments)
    problems = problems_of(schedule, profile)
    trace = _beyond_the_limit(schedule, profile) if problems else None
    fitting = [] if trace is None else would_fit(arguments.schedule, trace)
    answer: dict[str, Any] = {"valid": not problems, "problems": problems}
    out.result(answer if trace is None else {**answer, "would_fit": fitting})
    if trace is not None:
        show_verdict(out, arguments.schedule, trace, fitting)
    _show(out, arguments, profile, problems, trace)
    return NO if problems else DONE


def _beyond_the_limit(schedule: Schedule, profile: CostProfile) -> Trace | None:
    """Return the replay without the limit where the simulator finds nothing wrong but the memory."""
    from ....sim import simulate_or_report

    try:
        trace, _ = simulate_or_report(schedule, profile)
    except OptPipeError:
        return None
    return None if trace.fits else trace


def _show(
    out: Out,
    arguments: argparse.Namespace,
    profile: CostProfile,
    problems: list[str],
    trace: Trace | None,
) -> None:
    """Print that the schedule is valid, or that it is not, and every problem."""
    from ...outputs import show

    if not problems:
        limit = "" if profile.memory_limit is None else f" under {show.limit_text(profile)}"
        out.print(f"✓ {arguments.schedule} is valid on {profile.name}{limit}", style="green")
    elif trace is None:
        number = counted(len(problems), "problem")
        text = f"✗ {arguments.schedule} is not valid on {profile.name}: {number}"
        out.text(text, style="bold red")
    for problem in problems:
        out.text(f"✗ {problem}")
