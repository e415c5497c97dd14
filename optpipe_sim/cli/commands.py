"""What each command does: load, call the library, show. Returns the exit status."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSchedule, NoSolution, OptPipeError, OutOfMemory, ProfileError
from ..names import build, parse_name
from ..profile import CostProfile
from ..profile_io import load_profile
from ..schedule import Schedule
from . import advise, confirm, estimate, figures, frontier, show, solve, sweep, train
from . import profile as profiling
from .show import Out

if TYPE_CHECKING:
    from ..analyse.bounds import Bound
    from ..trace import Trace

DONE, NO = 0, 1
BOUND_S = 3.0  # for `explain --solution` to look for a better bound
PICTURES = (".png", ".svg", ".pdf")


def run(arguments: argparse.Namespace) -> int:
    """Do what the arguments ask for."""
    for option in ("gantt", "chart", "figure"):
        _check_picture(option, getattr(arguments, option, None))
    written = (
        "gantt",
        "chart",
        "figure",
        "trace",
        "save_trace",
        "save",
        "save_profile",
        "write_model",
    )
    for option in (*written, "out", "log", "csv"):
        _check_writable(option, getattr(arguments, option, None))
    out = Out(json=arguments.json, quiet=arguments.quiet)
    return _COMMANDS[arguments.command](arguments, out)


def simulate(arguments: argparse.Namespace, out: Out) -> int:
    """Replay one schedule under the limit."""
    from ..sim import simulate_or_report

    profile = _profile(arguments)
    try:
        schedule = _schedule(arguments.schedule, arguments.microbatches, profile)
    except (OutOfMemory, NoSolution) as error:  # a schedule that plans for a limit nothing can keep
        out.result({"schedule": arguments.schedule, "fits": False, "reason": str(error)})
        raise
    trace, reason = simulate_or_report(schedule, profile, objective=arguments.objective)
    files = _write_trace(arguments, trace)
    out.result(
        {
            "schedule": arguments.schedule,
            **trace.measures(),
            "chunks": schedule.shape.chunks,
            "reason": reason,
            "files": files,
        }
    )
    show.simulated(out, arguments, trace, reason, files)
    return DONE if trace.fits else NO


def compare(arguments: argparse.Namespace, out: Out) -> int:
    """Replay many schedules, set them side by side, and draw the best."""
    from ..study.compare import compare_all

    profile = _profile(arguments)
    wanted: list[str | Schedule] | None = None
    if arguments.schedules is not None:
        wanted = [
            _named(Schedule.load(name), name) if _is_file(name) else name
            for name in arguments.schedules
        ]
    with out.progress("comparing") as progress:
        result = compare_all(
            profile,
            arguments.microbatches,
            wanted,
            objective=arguments.objective,
            time_limit=arguments.time_limit,
            progress=progress,
        )
        files = _write_trace(arguments, result.rows[0].trace, progress)
        if arguments.chart:
            from ..plot.compare import save_compare_chart

            progress("drawing the comparison", 1, 1)
            rows = [row.to_json() for row in result.rows]
            save_compare_chart(rows, arguments.chart, profile.memory_limit)
            files[arguments.chart] = "time and peak memory of every schedule"
    out.result(
        {
            "profile": profile.name,
            "microbatches": arguments.microbatches,
            "objective": arguments.objective,
            "memory_limit_bytes": profile.memory_limit and list(profile.memory_limit),
            "baseline": {
                "schedule": "1f1b",
                "cost_ns": result.baseline.cost_ns,
                "fits": result.baseline.fits,
            },
            "rows": [row.to_json() for row in result.rows],
            "refused": result.refused,
            "files": files,
        }
    )
    show.compared(out, arguments, profile, result, files)
    return DONE


def check(arguments: argparse.Namespace, out: Out) -> int:
    """Check a schedule without the simulator."""
    from ..analyse.check import check as problems_of

    profile = _profile(arguments)
    schedule = _schedule(arguments.schedule, arguments.microbatches, profile)
    problems = problems_of(schedule, profile)
    out.result({"valid": not problems, "problems": problems})
    show.checked(out, arguments, profile, problems)
    return NO if problems else DONE


def explain(arguments: argparse.Namespace, out: Out) -> int:
    """Say in sentences why devices wait, or why one op does."""
    from ..analyse.explain import explain as explained
    from ..analyse.explain import why
    from ..ops import parse_op
    from ..sim import simulate_or_report

    op = parse_op(arguments.op) if arguments.op else None
    profile = _profile(arguments)
    schedule = _schedule(arguments.schedule, arguments.microbatches, profile)
    objective = arguments.objective or schedule.meta.get("objective", "flush")
    trace, reason = simulate_or_report(schedule, profile, objective=objective)
    answer: dict[str, Any] = {"schedule": arguments.schedule, "op": op and str(op)}
    text = why(trace, op) if op else explained(trace)
    files: dict[str, str] = {}
    if arguments.solution or arguments.chart:
        from ..analyse.solution import analyse_solution, explain_solution

        bound = _bound(schedule, trace, out)
        solution = explain_solution(trace, bound)
        text = f"{text.rstrip()}\n\n{solution}" if op else solution
        found = analyse_solution(trace, bound)
        answer["solution"] = found.to_json()
        if arguments.chart:
            from ..plot.solution import save_solution_chart

            save_solution_chart(found, arguments.chart)
            files[arguments.chart] = "idle time, and how much of it is forced"
    out.result({**answer, "text": text, "fits": trace.fits, "reason": reason, "files": files})
    show.explained(out, text, reason)
    show.written(out, files)
    return DONE if trace.fits else NO


def _bound(schedule: Schedule, trace: Trace, out: Out) -> Bound:
    """The best bound that is known for a replayed schedule, or found in a few seconds."""
    from ..analyse.bounds import lower_bound
    from ..solve.known import known_bound
    from ..solve.problem import make_problem

    m = schedule.shape.microbatches
    if not trace.fits:  # no schedule of the problem
        return lower_bound(trace.profile, m, trace.objective)
    problem = make_problem(trace.profile, m, trace.memory_limit, trace.objective)
    with out.progress("looking for a better bound"):
        return known_bound(problem, schedule, trace.cost_ns, BOUND_S)


def export(arguments: argparse.Namespace, out: Out) -> int:
    """Write a schedule for torch, or its trace for Perfetto."""
    profile = _profile(arguments) if arguments.profile else None
    if profile is None and arguments.format == "perfetto":
        raise OptPipeError("PROFILE: perfetto needs the profile as well: export SCHEDULE PROFILE")
    schedule = _schedule(arguments.schedule, arguments.microbatches, profile)
    stem = Path(arguments.schedule.replace(":", "-")).stem
    if arguments.format == "torch-csv":
        from ..export.torch_csv import save_torch_csv

        path = arguments.out or f"{stem}.csv"
        save_torch_csv(schedule, path)
    else:
        from ..export.chrome_trace import save_chrome_trace
        from ..sim import simulate as replay

        assert profile is not None
        path = arguments.out or f"{stem}.trace.json"
        save_chrome_trace(replay(schedule, profile), path)
    out.result({"schedule": arguments.schedule, "format": arguments.format, "path": str(path)})
    show.exported(out, arguments.format, path)
    return DONE


def versions(arguments: argparse.Namespace, out: Out) -> int:
    """The versions of the package and of what it runs on."""
    import platform

    from ..study.versions import SOLVERS
    from ..study.versions import versions as versions_of

    others = ("simpy", "pyyaml", "matplotlib", "rich", "joblib", "pyarrow", "distributed", "torch")
    installed = versions_of((*SOLVERS, *others))
    found = {
        "optpipe-sim": installed.pop("optpipe_sim"),
        "python": installed.pop("python"),
        "platform": platform.platform(),
        **installed,
    }
    out.result(found)
    show.versions(out, found)
    return DONE


_COMMANDS: dict[str, Callable[[argparse.Namespace, Out], int]] = {
    "simulate": simulate,
    "compare": compare,
    "check": check,
    "explain": explain,
    "estimate": estimate.run,
    "advise": advise.run,
    "profile": profiling.run,
    "confirm": confirm.run,
    "train": train.run,
    "sweep": sweep.run,
    "figures": figures.run,
    "export": export,
    "versions": versions,
    "solve": solve.run,
    "frontier": frontier.run,
    "cache": solve.run_cache,
}

# -- inputs and outputs ---------------------------------------------------------------------------


def _profile(arguments: argparse.Namespace) -> CostProfile:
    """The profile, with the limit of the command line in the place of its own."""
    profile = load_profile(arguments.profile)
    limit = getattr(arguments, "memory_limit", None)
    return profile if limit is None else replace(profile, memory_limit=profile.limits(limit))


def _is_file(text: str) -> bool:
    return text.endswith(".json") or Path(text).is_file()


def _named(schedule: Schedule, path: str) -> Schedule:
    schedule.meta["name"] = path
    return schedule


def _schedule(text: str, microbatches: int | None, profile: CostProfile | None) -> Schedule:
    """The schedule that a name or a file stands for."""
    if _is_file(text):
        schedule = Schedule.load(text)
        m = schedule.shape.microbatches
        if microbatches not in (None, m):
            raise InvalidSchedule(
                f"-m {microbatches}: {text} is for {m} microbatches; leave -m out or give {m}"
            )
        return schedule
    if profile is None:
        raise ProfileError(f"PROFILE: needed to build {text!r}; only a schedule file goes without")
    if microbatches is None:
        # an unknown name is the likelier mistake than a forgotten -m
        parse_name(text)
        raise InvalidSchedule(f"-m: give the number of microbatches to build {text!r} for")
    return build(text, profile, microbatches)


def _check_picture(option: str, path: str | None) -> None:
    if path and Path(path).suffix.lower() not in PICTURES:
        raise OptPipeError(f"--{option} {path}: the name must end in {', '.join(PICTURES)}")


def _check_writable(option: str, path: str | None) -> None:
    """Refuse a path that cannot be written before the work, not after it."""
    if path is None:
        return
    target = Path(path)
    parent = next((above for above in target.absolute().parents if above.exists()), None)
    problem = None
    if target.is_dir() or path.endswith(os.sep):
        problem = "is a directory; name a file in it"
    elif parent is not None and not parent.is_dir():
        problem = f"cannot be written: {parent} is not a directory"
    elif parent is not None and not os.access(parent, os.W_OK):
        problem = f"cannot be written: no permission to write in {parent}"
    if problem:
        raise OptPipeError(f"--{option.replace('_', '-')} {path}: {problem}")


def _write_trace(
    arguments: argparse.Namespace, trace: Trace, progress: show.Progress | None = None
) -> dict[str, str]:
    """The files asked for of one trace, each with what it holds."""
    files: dict[str, str] = {}
    if arguments.save:
        trace.schedule.save(arguments.save)
        files[arguments.save] = "the schedule"
    if arguments.gantt:
        from ..plot.overview import save_overview

        if progress:
            progress("drawing the Gantt chart", 1, 1)
        save_overview(trace, arguments.gantt)
        files[arguments.gantt] = "Gantt chart and memory curves"
    if arguments.trace:
        from ..export.chrome_trace import save_chrome_trace

        if progress:
            progress("writing the trace", 1, 1)
        save_chrome_trace(trace, arguments.trace)
        files[arguments.trace] = "trace; open it at https://ui.perfetto.dev"
    return files
