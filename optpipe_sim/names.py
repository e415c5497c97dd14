"""Every schedule by name: the published patterns, and ``optpipe``, which is searched for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import InvalidSchedule
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


def _chunks(text: str) -> int | str:
    return text if text in ("any", "own") else int(text)


OPTPIPE = Entry(
    __name__,
    "optpipe",
    {
        "engine": str,
        "time": _seconds,
        "seed": int,
        "workers": int,
        "solver": str,
        "objective": str,
        "limit": parse_size,
        "chunks": _chunks,
        "placement": str,
    },
)
ENTRIES: Mapping[str, Entry] = {**REGISTRY, "optpipe": OPTPIPE}


def parse_name(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of ``gis:group=6`` or ``optpipe:engine=cpsat,time=10``.

    Raises:
        InvalidSchedule: for an unknown name or option, or a value that is not of its kind.
    """
    return parse_entry(text, ENTRIES)


def build(name: str, profile: CostProfile, microbatches: int, **options: Any) -> Schedule:
    """The schedule `name` (``zb-h1``, ``gis:group=6``, ``optpipe:time=10``) for a profile and m
    microbatches; options may follow the name or be given as keywords.

    See `schedules.build` for the published ones and `optpipe` for the one that is searched for.
    """
    base, given = parse_name(name)
    if base != "optpipe":
        return build_pattern(name, profile, microbatches, **options)
    for key in options:
        if key not in OPTPIPE.options:
            known = ", ".join(OPTPIPE.options)
            raise InvalidSchedule(f"optpipe: unknown option {key!r}; known are {known}")
    schedule = optpipe(profile, microbatches, **{**given, **options})
    schedule.meta["name"] = name
    return schedule


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
            published schedules have them, whatever is best (`solve.shapes.solve_any`).
        placement: ``loop`` or ``vee``, where chunks are given.

    Raises:
        OutOfMemory, NoSolution, OptPipeError: as `solve`.
    """
    from .solve.shapes import door_for  # compiled code comes with it

    door, profile = door_for(profile, chunks, placement)
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
    }
    return found.schedule.replace(meta=meta)
