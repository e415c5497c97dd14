"""Schedules planned with one set of costs and run with another: how much exact costs save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from optpipe_sim.errors import NoSolution, OptPipeError, OutOfMemory
from optpipe_sim.names import build, parse_name
from optpipe_sim.profile import CostProfile as Profile
from optpipe_sim.schedule import Schedule
from optpipe_sim.sim import simulate_or_report
from optpipe_sim.solvers.solve import solve
from optpipe_sim.study.tasks import CostProfile, Count, Limit, Row, ScheduleNames, SolveOptions
from optpipe_sim.study.tasks.simulate import measures, refused

VERSION = 1


def run(
    profile: CostProfile,
    assumed: CostProfile,
    microbatches: Count,
    schedules: ScheduleNames,
    memory_limit: Limit = None,
    other: CostProfile | None = None,
    other_devices: list[int] | None = None,
    slower: float = 1.0,
    chunks: Count = 1,
    placement: Literal["loop", "vee"] = "loop",
    cores: Count = 1,
    options: SolveOptions = SolveOptions(time_limit=10.0),  # noqa: B008  (frozen)
) -> list[Row]:
    """Return each schedule made for the costs that are `assumed`, and made for those of `profile`, both run
    with those of `profile` (``planned_for`` says which), under one memory limit.

    Stages are cut into `chunks` per device; `optpipe` is `solve` with the time limit, and starts
    from its own plan for the assumed costs as well, so that knowing better never loses.

    Args:
        other, other_devices: devices of another kind: stages that are placed there cost what they
            cost in `other`, and compute takes `slower` times as long. Not in what is assumed.
    """
    true = profile.rechunk(chunks, placement)
    if other_devices:
        another = (profile if other is None else other).rechunk(chunks, placement)
        true = with_others(true, another.scale(compute=slower), other_devices)
    thought = assumed.rechunk(chunks, placement)
    # the profiles have these chunks and this placement by now
    options = replace(options, workers=options.workers or cores, chunks="own", placement="own")
    rows: list[Row] = []
    for name in schedules:
        is_solved = parse_name(name)[0] == "optpipe"
        planned: Schedule | None = None
        for planned_for, costs in (("assumed", thought), ("true", true)):
            row: Row = {"schedule": name, "planned_for": planned_for}
            make: Callable[..., tuple[Schedule, Row]] = _solved if is_solved else _built
            try:
                planned, more = make(name, costs, microbatches, memory_limit, planned, options)
            except (NoSolution, OutOfMemory) as error:
                rows.append({**row, **refused(error)})
                continue
            trace, reason = simulate_or_report(
                _without_links(planned) if planned_for == "assumed" else planned,
                true,
                memory_limit,
            )
            proof = more if planned_for == "true" else {}
            rows.append({**row, **measures(trace), **proof, "reason": reason})
    return rows


def with_others(profile: Profile, other: Profile, devices: Sequence[int]) -> Profile:
    """Return the profile with the costs of `other` for the stages on some devices.

    Raises:
        OptPipeError: where they are cut in different numbers of stages, or a device does not exist.
    """
    if len(other.stages) != len(profile.stages):
        raise OptPipeError(f"other: has {other.devices} devices, the profile {profile.devices}")
    for device in devices:
        if not 0 <= device < profile.devices:
            raise OptPipeError(
                f"other_devices: {device} does not exist; devices are 0 to {profile.devices - 1}"
            )
    return profile.map_stages(
        lambda at, cost: other.stages[at] if profile.placement[at] in devices else cost
    )


def _built(
    name: str, profile: Profile, microbatches: int, limit: int | None, *_: object
) -> tuple[Schedule, Row]:
    schedule = build(name, replace(profile, memory_limit=profile.limits(limit)), microbatches)
    return schedule, {}


def _solved(
    name: str,
    profile: Profile,
    microbatches: int,
    limit: int | None,
    start: Schedule | None,
    options: SolveOptions,
) -> tuple[Schedule, Row]:
    if start is None:
        return _from_nothing(profile, microbatches, limit, options)
    return _solve(profile, microbatches, limit, options, _without_links(start))


@lru_cache(maxsize=16)  # the assumed costs are the same at many points
def _from_nothing(
    profile: Profile, microbatches: int, limit: int | None, options: SolveOptions
) -> tuple[Schedule, Row]:
    return _solve(profile, microbatches, limit, options, None)


def _solve(
    profile: Profile,
    microbatches: int,
    limit: int | None,
    options: SolveOptions,
    start: Schedule | None,
) -> tuple[Schedule, Row]:
    found = solve(profile, microbatches, limit, **vars(options), warm_start=start)
    assert found.schedule is not None  # solve raises otherwise
    return found.schedule, {"lower_bound_ns": found.lower_bound_ns, "status": found.status}


def _without_links(schedule: Schedule) -> Schedule:
    """Drop the link orders: without knowledge of a shared link it serves first come, first served."""
    return schedule.replace(link_order={})
