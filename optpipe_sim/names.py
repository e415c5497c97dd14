"""Every schedule by name: the published patterns, and ``optpipe``, which is searched for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Parameter
from typing import Any

from .errors import InvalidSchedule, NoSolution, OptPipeError, require
from .option_fields import listing, parameters_of
from .profile import CostProfile
from .schedule import Schedule
from .schedules import COMMON, GROUPED, GROUPED_OFFLOADED, REGISTRY, Entry
from .schedules import build as build_pattern
from .schedules import parse_name as parse_entry
from .solvers.options import KINDS, SolveOptions, parse_option
from .units import Size, written_size


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise InvalidSchedule(f"tuned={text}: expected yes or no")
    return text == "yes"


def _option(name: str) -> Callable[[str], Any]:
    """Read an option of `solve` from a schedule's name."""

    def read(text: str) -> Any:
        try:
            return parse_option(name, text)
        except OptPipeError as error:
            raise InvalidSchedule(f"optpipe: {error}") from None

    return read


# Every option of `solve`, the time limit also as ``time``; several treatments as ``keep+offload``.
OPTPIPE = Entry(
    __name__,
    "optpipe",
    {
        "time": _option("time_limit"),
        "limit": written_size,
        **{name: _option(name) for name in KINDS},
    },
)
TUNED = (GROUPED, GROUPED_OFFLOADED)  # names that take ``tuned``: the best of their options
ENTRIES: Mapping[str, Entry] = {
    name: replace(entry, options={**entry.options, "tuned": _yes}) if name in TUNED else entry
    for name, entry in {**REGISTRY, "optpipe": OPTPIPE}.items()
}


def parse_name(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of ``gis:group=6`` or ``optpipe:engine=cpsat,time=10``.

    Raises:
        InvalidSchedule: for an unknown name or option, or a value that is not of its kind.
    """
    return parse_entry(text, ENTRIES)


# Every option of any schedule; those of `solve` are more than a completion should list.
_OPTIONS = dict.fromkeys(
    option for name in REGISTRY for option in (*ENTRIES[name].options, *COMMON)
)


@listing(Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in _OPTIONS)
def build(name: str, profile: CostProfile, microbatches: int, **options: Any) -> Schedule:
    """Return the schedule `name` (``zb-h1``, ``gis:group=6``, ``optpipe:time=10``) for a profile and m
    microbatches; options may follow the name or be given as keywords (None: not given).

    See `schedules.build` for the published ones and `optpipe` for the searched one;
    ``gis:tuned=yes`` and ``po:tuned=yes`` are the fastest of these that fit the profile's limit.
    """
    require("name", name, str, "as in build('1f1b', profile, microbatches)")
    require("profile", profile, CostProfile, "read one with load_profile(PATH)")
    options = {key: value for key, value in options.items() if value is not None}
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
    """Build the fastest ``gis`` or ``po`` that fits the profile's limit, over all chunks, groups and
    offloaded chunks; its name has the chosen values.

    Raises:
        InvalidSchedule: for further options. NoSolution: where none fits.
    """
    from .solvers.fixed import best_rule

    base, rest = parse_name(name)[0], {key: v for key, v in options.items() if key != "tuned"}
    if not options["tuned"]:
        return build_pattern(base, profile, microbatches, **rest)
    if rest:
        raise InvalidSchedule(f"{name}: tuned chooses {', '.join(rest)} itself; leave it out")
    found = best_rule(profile.with_slices(1), microbatches, profile.memory_limit, families=(base,))
    if found is None:
        raise NoSolution(f"{name}: no chunks, groups and offloads fit the memory limit")
    return found.trace.schedule.replace(meta={"name": found.name})


@listing(parameters_of(SolveOptions))
def optpipe(
    profile: CostProfile,
    microbatches: int,
    *,
    limit: Size | None = None,
    time: float | None = None,
    **options: Any,
) -> Schedule:
    """Return the best schedule that `solve` finds, with what it proved in its ``meta``
    (``status, objective, lower_bound_ns, bound, found_by``).

    Args:
        limit: bytes per device; None: the profile's own.
        time: seconds in all, the same as ``time_limit``; default: 60.
        options: the options of `solve` (`solvers.options.SolveOptions`).

    Raises:
        OutOfMemory, NoSolution, OptPipeError: as `solve`.
    """
    from .solvers.solve import solve  # compiled code comes with it

    if time is not None:
        options["time_limit"] = time
    found = solve(profile, microbatches, limit, **options)
    assert found.schedule is not None  # solve raises otherwise
    assert found.trace is not None
    meta = {
        **found.schedule.meta,
        "status": found.status,
        "objective": found.trace.objective,
        "lower_bound_ns": found.lower_bound_ns,
        "bound": found.bound_name,
        "found_by": found.info["found_by"],
        **({"margin": found.info["margin"]} if "margin" in found.info else {}),
        **({"interrupted": True} if found.info.get("interrupted") else {}),  # by Ctrl-C
    }
    return found.schedule.replace(meta=meta)
