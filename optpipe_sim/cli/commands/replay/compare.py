"""``compare``: replay many schedules, compare them, and draw the best."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...options.fields import same
from ...options.kinds import names
from ...options.shared import (
    add_family,
    add_outputs,
    add_pictures,
    add_problem,
)
from ...options.solving import add_objective, add_of_solve
from ...status import DONE, NO
from ..examples import PROFILE

if TYPE_CHECKING:
    from ....profile import CostProfile
    from ....schedule import Schedule
    from ....study.compare import Comparison
    from ...outputs.show import Out, Progress

EXAMPLE = f"optpipe-sim compare {PROFILE} -m 24 --memory-limit 40GiB"
SUMMARY = "replay many schedules and compare them"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `compare`."""
    add_problem(parser)
    parser.add_argument(
        "--schedules",
        metavar="A,B,C",
        type=names,
        help="names (with options: gis:group=6) or files, comma between them; default: every one",
    )
    add_objective(parser)
    add_of_solve(
        parser,
        "time_limit",
        "treatments",
        "per_stage",
        time_limit="seconds for each schedule that is found by a search (optpipe; default: 10)",
        treatments="what may be done with activations until their backward: some of keep,offload,recompute;"
        " with recompute, every schedule with each level of recomputation (default: all that the profile has, and a level where a"
        " schedule does not fit without one)",
        per_stage="only schedules that treat all activations of a stage alike, as frameworks require",
    )
    parser.set_defaults(time_limit=10.0)
    add_family(
        parser,
        "only schedules that this framework can run, without any op that waits for memory; default: its"
        " whole family, with a row for each kind",
    )
    add_pictures(parser, "the best", "every schedule by time and memory, with their lanes")
    add_outputs(
        parser,
        ("chart", "F.png", "draw time and peak memory of every schedule"),
        ("save", "S.json", "write the best schedule"),
    )


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Replay many schedules, compare them, and draw the best."""
    from ....frameworks.torch_csv import load_schedule
    from ....schedules import PLAIN
    from ....study.compare import compare_all
    from ...inputs import is_file, read_profile
    from ...outputs.compare import show_comparison

    profile = read_profile(arguments)
    wanted: list[str | Schedule] | None = None
    if arguments.schedules is not None:
        wanted = [
            _named(load_schedule(name), name) if is_file(name) else name
            for name in arguments.schedules
        ]
    with out.progress("comparing") as progress:
        result = compare_all(
            profile,
            arguments.microbatches,
            wanted,
            progress=progress,
            **same(arguments, "objective", "time_limit", "treatments", "family", "per_stage"),
        )
    files: dict[str, str] = {}
    try:
        with out.progress("drawing") as progress:
            _write(arguments, profile, result, files, progress)
    finally:  # the answer is given even if a file cannot be written
        out.result(
            {
                "profile": profile.name,
                "microbatches": arguments.microbatches,
                "objective": arguments.objective or profile.objective,
                "family": arguments.family,
                "per_stage": arguments.per_stage,
                "replayed": result.replayed,
                "memory_limit_bytes": profile.memory_limit and list(profile.memory_limit),
                "baseline": {
                    "schedule": PLAIN,
                    "cost_ns": result.baseline.cost_ns,
                    "fits": result.baseline.fits,
                },
                "rows": [row.to_json() for row in result.rows],
                "refused": result.refused,
                "interrupted": result.interrupted,
                "left_out": list(result.left_out),
                "files": files,
            }
        )
        show_comparison(out, arguments, profile, result, files)
    return DONE if result.rows[0].trace.fits else NO


def _write(
    arguments: argparse.Namespace,
    profile: CostProfile,
    result: Comparison,
    files: dict[str, str],
    progress: Progress,
) -> None:
    """Write the requested files, and note each in `files`."""
    from ...outputs.write import write_figure, write_page, write_trace

    files |= write_trace(arguments, result.rows[0].trace, progress)
    if arguments.chart:
        progress("drawing the comparison", 1, 1)
    files |= write_figure(
        arguments.chart,
        lambda plot: plot.compare_chart(
            [row.to_json() for row in result.shown], profile.memory_limit
        ),
        "time and peak memory of every schedule",
    )
    files |= write_page(arguments, lambda page, command: page.of_comparison(result, command))


def _named(schedule: Schedule, path: str) -> Schedule:
    schedule.meta["name"] = path
    return schedule
