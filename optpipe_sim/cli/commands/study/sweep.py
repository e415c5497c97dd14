"""``sweep``: run experiments, and print where their results are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...options.fields import same
from ...options.kinds import MOST_PROCESSES, count_to, seconds
from ...status import DONE, INTERRUPTED, NO

if TYPE_CHECKING:
    from ....study.experiment import Experiment
    from ....study.run import Progress, Sweep
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim sweep experiments/schedules_sweep"
SUMMARY = "run an experiment on all cores or a cluster; what is finished is not run again"
SHOWN = 5  # failed points that are named


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `sweep`."""
    parser.add_argument(
        "experiments",
        metavar="EXPERIMENT",
        nargs="+",
        help="what to run: a folder with an experiment.yaml, or a YAML file: a task, a base, a grid",
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=count_to(MOST_PROCESSES),
        help="points in parallel (default: the number of cores over the cores of one point)",
    )
    parser.add_argument(
        "--cluster", metavar="tcp://HOST:PORT", help="run on the workers of this Dask scheduler"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--resume", action="store_true", help="run unfinished points (default; may be left out)"
    )
    group.add_argument("--fresh", action="store_true", help="run everything again")
    group.add_argument(
        "--retry-failed",
        action="store_true",
        help="run failed points as well as unfinished ones",
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="with the experiment's quick values, results in out/fast unless --out is given",
    )
    parser.add_argument(
        "--under",
        metavar="MINUTES",
        type=seconds,
        help="only the shortest experiments, as many as fit into this many minutes in total",
    )
    parser.add_argument(
        "--out", dest="results", metavar="DIR", help="where results go (default: results)"
    )


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Read all experiments, then run one after the other."""
    from ....study.experiment import load_experiment
    from ....study.points import plan
    from ....study.run import sweep

    results = arguments.results or ("out/fast" if arguments.fast else "results")
    read = [load_experiment(path, arguments.fast) for path in arguments.experiments]
    chosen, left_out = (read, []) if arguments.under is None else _shortest(read, arguments.under)
    for experiment in chosen:
        plan(experiment)  # all of them are valid before the first one runs
    done = []
    for experiment in chosen:
        with _watching(out, experiment.name) as progress:
            counter = _Counter(progress)
            stopped = False
            try:
                done.append(
                    sweep(
                        experiment,
                        results,
                        progress=counter,
                        notice=lambda text: print(f"optpipe-sim: {text}", file=sys.stderr),
                        **same(arguments, "jobs", "cluster", "fresh", "retry_failed"),
                    )
                )
            except KeyboardInterrupt:
                stopped = True
        if stopped:
            print(
                f"optpipe-sim: interrupted: {counter.finished} of {counter.total} points of"
                f" {experiment.name} are finished and kept; the same command"
                f"{' without --fresh' if arguments.fresh else ''} goes on from there",
                file=sys.stderr,
            )
            return INTERRUPTED
        if not out.json:
            _show(out, done[-1])
    out.result(
        {
            "experiments": [_facts(one) for one in done],
            **{key: sum(getattr(one, key) for one in done) for key in ("ran", "reused", "failed")},
            "files": [str(path) for one in done for path in one.files],
            "left_out": [one.name for one in left_out],
        }
    )
    for one in left_out:
        out.hint(f"left out: {one.name}, which takes {one.minutes:g} minutes")
    return NO if any(one.failed for one in done) else DONE


def _shortest(
    experiments: list[Experiment], minutes: float
) -> tuple[list[Experiment], list[Experiment]]:
    """Return the shortest experiments that fit into the given minutes together, and the others."""
    chosen: list[Experiment] = []
    left_out: list[Experiment] = []
    spent = 0.0
    for one in sorted(experiments, key=lambda one: one.minutes):
        spent += one.minutes
        (chosen if spent <= minutes else left_out).append(one)
    return chosen, left_out


class _Counter:
    """Forwards progress and remembers the last report."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.finished, self.total = progress, 0, 0

    def __call__(self, finished: int, total: int, failed: int) -> None:
        self.finished, self.total = finished, total
        self.progress(finished, total, failed)


@contextmanager
def _watching(out: Out, name: str) -> Iterator[Progress]:
    """Show a bar on stderr with the time left; nothing if stderr is not a terminal."""
    if out.json or out.quiet or not sys.stderr.isatty():
        yield lambda finished, total, failed: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(name),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[red]{task.fields[failed]}"),
    )
    with Progress(
        *columns, console=Console(stderr=True), transient=True, speed_estimate_period=3600
    ) as bar:

        def show(finished: int, total: int, failed: int) -> None:
            summary = f"{failed} failed" if failed else ""
            if not bar.tasks:  # stored points say nothing about the time left
                bar.add_task(name, completed=finished, total=total, failed=summary)
            bar.update(bar.task_ids[0], completed=finished, failed=summary)

        yield show


def _facts(done: Sweep) -> dict[str, object]:
    return {
        "name": done.name,
        "points": done.points,
        "ran": done.ran,
        "reused": done.reused,
        "failed": done.failed,
        "seconds": round(done.seconds, 3),
        "files": [str(path) for path in done.files],
        "errors": [{"point": labels, "error": error} for labels, error in done.errors],
    }


def _show(out: Out, done: Sweep) -> None:
    from rich.text import Text

    summary = f"{done.points} points: {done.ran} ran, {done.reused} reused, {done.failed} failed"
    out.text(Text(done.name, "bold"), Text(f"{summary}; {done.seconds:.1f} s"))
    if done.broken:
        noun = "file was" if done.broken == 1 else "files were"
        out.hint(f"{done.broken} kept {noun} not whole and ran again", style="yellow")
    for labels, error in done.errors[:SHOWN]:
        point = ", ".join(f"{key} {value}" for key, value in labels.items())
        out.text(f"✗ {point}: {error}", style="red")
    if done.failed:
        more = len(done.errors) - SHOWN
        hint = "run them again with --retry-failed"
        out.hint(f"{f'and {more} more; ' if more > 0 else ''}{hint}", style="dim")
    for path in done.files:
        out.text(f"  {path}")
