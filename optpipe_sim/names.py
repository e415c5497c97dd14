"""Every schedule by name: the published patterns, and ``optpipe``, which is searched for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .errors import InvalidSchedule, NoSolution
from .profile import CostProfile
from .schedule import Schedule
from .schedules import REGISTRY, Entry
from .schedules import build as build_pattern
from .schedules import parse_name as parse_entry
from .units import parse_size


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidSchedule(f"optpipe: time={text} is no number of seconds") from None


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise InvalidSchedule(f"tuned={text}: expected yes or no")
    return text == "yes"


def _workers(text: str) -> int:
    if not 1 <= int(text) <= 1024:
        raise InvalidSchedule(f"optpipe: workers={text}: must be from 1 to 1024")
    return int(text)


def _chunks(text: str) -> int | str:
    return text if text in ("any", "own") else int(text)


OPTPIPE = Entry(
    __name__,
    "optpipe",
    {
        "engine": str,
        "time": _seconds,
        "seed": int,
        "workers": _workers,
        "solver": str,
        "objective": str,
        "limit": parse_size,
        "chunks": _chunks,
        "placement": str,
    },
)
TUNED = ("gis", "po")  # what may be asked for with the best of its options
ENTRIES: Mapping[str, Entry] = {
    name: replace(entry, options={**entry.options, "tuned": _yes}) if name in TUNED else entry
    for name, entry in {**REGISTRY, "optpipe": OPTPIPE}.items()
}


def parse_name(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of ``gis:group=6`` or ``optpipe:engine=cpsat,time=10``.

    Raises:
        InvalidSchedule: for an unknown name or option, or a value that is not of its kind.
    """
    return parse_entry(text, ENTRIES)


def build(name: str, profile: CostProfile, microbatches: int, **options: Any) -> Schedule:
    """The schedule `name` (``zb-h1``, ``gis:group=6``, ``optpipe:time=10``) for a profile and m
    microbatches; options may follow the name or be given as keywords.

    See `schedules.build` for the published ones and `optpipe` for the one that is searched for;
    ``gis:tuned=yes`` and ``po:tuned=yes`` are the fastest of these that fit the profile's limit.
    """
    base, given = parse_name(name)
    if "tuned" in given:
        return _tuned(name, profile, microbatches, {**given, **options})
    if base != "optpipe":
        return build_pattern(name, profile, microbatches, **options)
    for key in options:
        if key not in OPTPIPE.options:
            known = ", ".join(OPTPIPE.options)
            raise InvalidSchedule(f"optpipe: unknown option {key!r}; known are {known}")
    schedule = optpipe(profile, microbatches, **{**given, **options})
    schedule.meta["name"] = name
    return schedule


def _tuned(
    name: str, profile: CostProfile, microbatches: int, options: Mapping[str, Any]
) -> Schedule:
    """The fastest of ``gis`` or ``po`` that fits the profile's limit, whatever chunks, group and
    offloaded chunks that takes; they are part of its name.

    Raises:
        InvalidSchedule: for options beside. NoSolution: where none fits.
    """
    from .solvers.fixed import best_tuned

    base, rest = parse_name(name)[0], {key: v for key, v in options.items() if key != "tuned"}
    if not options["tuned"]:
        return build_pattern(base, profile, microbatches, **rest)
    if rest:
        raise InvalidSchedule(f"{name}: tuned chooses {', '.join(rest)} itself; leave it out")
    found = best_tuned(base, profile, microbatches, profile.memory_limit)
    if found is None:
        raise NoSolution(f"{name}: no chunks, groups and offloads fit the memory limit")
    return found[1].schedule.replace(meta={"name": found[0]})


def optpipe(
    profile: CostProfile,
    microbatches: int,
    *,
    engine: str = "auto",
    time: float = 60.0,
    seed: int = 0,
    workers: int | None = None,
    solver: str = "highs",
    objective: str = "flush",
    limit: int | None = None,
    chunks: int | str = "own",
    placement: str | None = None,
) -> Schedule:
    """The best schedule that `solve` finds in `time` seconds, with what it proved in its ``meta``
    (``status, objective, lower_bound_ns, bound, found_by``).

    Args:
        limit: bytes per device; None: the profile's own.
        chunks: ``own`` (as the profile has them), a number, or ``any``: as the profile or as the
            published schedules have them, whatever is best (`solvers.shapes.solve_any`).
        placement: ``loop`` or ``vee``, where chunks are given.

    Raises:
        OutOfMemory, NoSolution, OptPipeError: as `solve`.
    """
    from .solvers.shapes import solver_for  # compiled code comes with it

    door, profile = solver_for(profile, chunks, placement)
    found = door(
        profile,
        microbatches,
        limit,
        engine=engine,
        time_limit=time,
        objective=objective,
        seed=seed,
        workers=workers,
        solver=solver,
    )
    assert found.schedule is not None  # solve raises otherwise
    meta = {
        **found.schedule.meta,
        "status": found.status,
        "objective": objective,
        "lower_bound_ns": found.lower_bound_ns,
        "bound": found.bound_name,
        "found_by": found.info["found_by"],
        **({"interrupted": True} if found.info.get("interrupted") else {}),  # by Ctrl-C
    }
    return found.schedule.replace(meta=meta)
