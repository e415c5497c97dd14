"""Inputs of commands: profiles with the limit of the command line, schedules by name or from a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import InvalidSchedule, OptPipeError, ProfileError
from ..execution import load_execution
from ..files import read_mapping
from ..frameworks.torch_csv import load_schedule
from ..names import ENTRIES, build, parse_name
from ..profile import CostProfile
from ..profile_io import load_profile
from ..schedule import Schedule
from ..sim import simulate_or_report
from ..trace import Trace
from ..trace.file_format import FORMAT as TRACE_FORMAT

EXPORTED = ("megatron", "torchtitan", "graph-trainer", "te")  # plans that `export` writes


def read_problem(arguments: argparse.Namespace) -> tuple[CostProfile, Schedule]:
    """Read the profile and the schedule of a command."""
    profile = read_profile(arguments)
    return profile, read_schedule(arguments.schedule, arguments.microbatches, profile)


def read_profile(arguments: argparse.Namespace, path: str | None = None) -> CostProfile:
    """Read the profile, or that at another path; the limit and the execution of the command line replace its own."""
    path = path or arguments.profile
    if path.split(":")[0] in ENTRIES and not Path(path).exists():
        raise ProfileError(f"{path}: is a schedule, not a profile: are the two arguments swapped?")
    profile = load_profile(path)
    execution = getattr(arguments, "execution", None)
    if execution is not None:
        with named(execution="--execution"):
            profile = replace(profile, execution=load_execution(execution))
    if getattr(arguments, "pairs", None) and not np.any(profile.pair_hidden):
        raise ProfileError(
            f"--pairs: {path} says of no pair what it hides (pair_hidden); estimate --pairs does"
        )
    limit = getattr(arguments, "memory_limit", None)
    return (
        profile
        if limit is None
        else replace(profile, memory_limit=profile.limits(limit, "--memory-limit"))
    )


def read_schedule(text: str, microbatches: int | None, profile: CostProfile | None) -> Schedule:
    """Return a schedule by name, from a file, or as a plan that was exported runs it."""
    if is_file(text):
        schedule = _exported(text, profile) or load_schedule(text)
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


def _exported(text: str, profile: CostProfile | None) -> Schedule | None:
    """Return the schedule of a plan in a framework's options, which names it; None for another file.

    Raises:
        InvalidSchedule: for a plan that does not name its schedule.
        ProfileError: without a profile to build it for.
    """
    if not text.endswith((".yaml", ".yml")):
        return None
    data = read_mapping(text)
    if data.get("format") not in EXPORTED:
        return None
    name, m = data.get("told"), data.get("microbatches")
    if not isinstance(name, str) or not isinstance(m, int) or isinstance(m, bool):
        raise InvalidSchedule(
            f"{text}: is a plan for {data['format']} without the order of its ops; give the schedule that it was"
            " exported from, or the CSV of --csv"
        )
    if profile is None:
        raise ProfileError(f"PROFILE: needed to build {name!r} of {text}")
    schedule = build(name, profile, m)
    schedule.meta.setdefault("name", name)
    return schedule


def read_trace(
    text: str, microbatches: int | None, profile: CostProfile | None, objective: str | None
) -> tuple[Trace, str | None]:
    """Return the trace in a trace file, or the replay of a schedule by name or from a file; and why it
    does not fit, if so.

    Args:
        objective: None: what the schedule was solved for, or what an iteration takes under the profile's
            execution.
    """
    data = read_mapping(text) if is_file(text) and not text.endswith(".csv") else {}
    if data.get("format") == TRACE_FORMAT:
        trace = Trace.from_json(data, text)
        return (trace if objective is None else replace(trace, objective=objective)), None
    if profile is None:
        raise ProfileError(f"PROFILE: needed to replay {text!r}; only a trace file goes without")
    schedule = read_schedule(text, microbatches, profile)
    if not is_file(text):
        schedule.meta.setdefault("name", text)
    chosen = objective or schedule.meta.get("objective")
    return simulate_or_report(schedule, profile, objective=chosen)


@contextmanager
def named(**options: str) -> Iterator[None]:
    """Name the option of the command line in errors that name an argument of a function."""
    try:
        yield
    except OptPipeError as error:
        key, _, problem = str(error).partition(": ")
        if key not in options:
            raise
        raise OptPipeError(f"{options[key]}: {problem}") from None


def is_file(text: str) -> bool:
    """Whether an argument is a schedule file (or a folder, by mistake) rather than the name of a schedule."""
    return text.endswith((".json", ".csv", ".yaml")) or bool(text and Path(text).exists())


def check_start(
    start: Schedule | str | None, path: str, profile: CostProfile, microbatches: int
) -> None:
    """Raise for a warm start of another problem.

    Raises:
        OptPipeError: names what differs.
    """
    assert isinstance(start, Schedule)
    wanted = profile.shape(microbatches)
    for name in ("devices", "chunks", "microbatches", "placement"):
        have, want = getattr(start.shape, name), getattr(wanted, name)
        if have != want:
            have, want = (list(v) if isinstance(v, tuple) else v for v in (have, want))
            raise OptPipeError(
                f"--warm-start {path}: is for {name} {have}, the problem has {name} {want}"
            )
