"""``check``: check a schedule without the simulator."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...options.shared import add_profile, add_schedule, add_schedule_problem
from ...status import DONE, NO
from ..examples import OFFLOADING

if TYPE_CHECKING:
    from ....profile import CostProfile
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
    from ...inputs import read_profile, read_schedule

    profile = read_profile(arguments)
    schedule = read_schedule(arguments.schedule, arguments.microbatches, profile)
    problems = problems_of(schedule, profile)
    out.result({"valid": not problems, "problems": problems})
    _show(out, arguments, profile, problems)
    return NO if problems else DONE


def _show(
    out: Out, arguments: argparse.Namespace, profile: CostProfile, problems: list[str]
) -> None:
    """Print that the schedule is valid, or every problem."""
    from rich.text import Text

    from ...outputs import show

    if not problems:
        limit = "" if profile.memory_limit is None else f" under {show.limit_text(profile)}"
        out.print(Text(f"✓ {arguments.schedule} is valid on {profile.name}{limit}", "green"))
    for problem in problems:
        out.print(Text(f"✗ {problem}"), soft_wrap=True)
