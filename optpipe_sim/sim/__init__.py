"""Replay a schedule against a profile: the SimPy engine, and the fast replay that equals it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..errors import Deadlock, InvalidSchedule, OutOfMemory, require
from ..profile import CostProfile
from ..schedule import Schedule, validate
from ..schedule.fused import require_known
from ..trace import Trace
from ..units import Size, counted, format_sizes, size_above
from .host_links import check_link_order


def simulate(
    schedule: Schedule,
    profile: CostProfile,
    memory_limit: Size | Sequence[Size] | None = None,
    *,
    enforce: bool = True,
    objective: str | None = None,
    engine: str = "replay",
) -> Trace:
    """Replay `schedule` with the costs of `profile`; every op starts as early as possible.

    Args:
        schedule: any schedule; the profile is re-chunked to its shape, and issued as its execution says.
        memory_limit: bytes per device (one number, or one per device); None: the profile's own.
        enforce: False replays without the limit, and reports the peak.
        objective: what ``trace.cost_ns`` counts: ``flush`` or ``span``; None: what an iteration takes
            under the profile's execution, ``flush`` where that is ideal.
        engine: ``replay`` (compiled) or ``simpy`` (the discrete-event simulator; the same times, to
            the nanosecond).

    Raises:
        InvalidSchedule: where ops are missing, doubled or misplaced, or do not fit the profile.
        OutOfMemory: where the limit is below what any schedule of this shape needs.
        Deadlock: where the program cannot continue: first by how much it exceeds the limit and what
            would fit, if it continues without the limit; then the ops that wait.
    """
    require("schedule", schedule, Schedule, "make one with build(NAME, profile, microbatches)")
    require("profile", profile, CostProfile, "read one with load_profile(PATH)")
    validate(schedule)
    require_known(schedule, profile)
    given = profile
    profile = profile.for_shape(schedule.shape)
    splits = schedule.issued_split
    objective = objective or profile.issue(splits).objective
    profile = profile.issued(splits)
    if profile.offload is None and schedule.is_transfer.any():
        raise InvalidSchedule(
            f"the schedule offloads, but the profile {profile.name} has no offload section"
        )
    check_link_order(schedule, profile)
    limits = profile.limits(memory_limit) if enforce else None
    if limits is not None:
        require_limit(profile, limits)
    if engine not in ("simpy", "replay"):
        raise InvalidSchedule(f"engine: expected replay or simpy, got {engine!r}")
    try:
        if engine == "simpy":
            from .simpy_engine import run_engine

            times = run_engine(schedule, profile, limits)
        else:
            from .replay import run_replay

            times = run_replay(schedule, profile, limits)
    except Deadlock as stuck:
        if limits is None:
            raise
        from .excess import deadlocked

        raise Deadlock(partial(deadlocked, stuck, schedule, profile, limits, objective)) from None
    return Trace(schedule, profile, *times, limits, objective, given=given)


def simulate_or_report(
    schedule: Schedule,
    profile: CostProfile,
    memory_limit: Size | Sequence[Size] | None = None,
    **options: str | None,
) -> tuple[Trace, str | None]:
    """`simulate` under the limit; if that deadlocks, replay without it and return the trace, marked
    ``fits = False``, with the reason in one line."""
    from dataclasses import replace

    try:
        return simulate(schedule, profile, memory_limit, **options), None  # type: ignore[arg-type]
    except (Deadlock, OutOfMemory) as error:
        if profile.limits(memory_limit) is None:
            raise
        trace = simulate(schedule, profile, enforce=False, **options)  # type: ignore[arg-type]
        limits = profile.limits(memory_limit)
        return replace(trace, memory_limit=limits, fits=False), str(error)


def require_limit(profile: CostProfile, limits: Sequence[int]) -> None:
    """Refuse limits that no schedule with these chunks and this placement can keep.

    Raises:
        OutOfMemory: names the device and the least limit.
    """
    for device, (least, limit) in enumerate(zip(profile.least_limits, limits, strict=True)):
        if limit < least:
            shape = f"{counted(profile.chunks, 'chunk')} per device"
            stated, _ = format_sizes(limit, least)
            known = "the least limit that works is"
            if profile.slices > 1 and profile.chunks > 1:
                known = "no limit works below"  # which order of slices needs least is not known
            raise OutOfMemory(
                f"does not fit: device {device}: the limit of {stated} is below what one microbatch"
                f" needs; {known} {size_above(least)}, with {shape}"
            )
