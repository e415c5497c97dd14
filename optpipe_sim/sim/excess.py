"""Why a schedule that deadlocks under a limit does not fit: by how much, and what would make it fit."""

from __future__ import annotations

from ..errors import Deadlock
from ..profile import CostProfile
from ..schedule import Schedule
from ..trace import Trace
from ..units import format_size, format_time, size_above
from .replay import run_replay


def deadlocked(
    stuck: Deadlock,
    schedule: Schedule,
    profile: CostProfile,
    limits: tuple[int, ...],
    objective: str,
) -> str:
    """Return by how much a schedule exceeds its limits and what would fit, and in brackets who waits; just that where it deadlocks
    under any limit."""
    above = excess(schedule, profile, limits, objective)
    return f"{above} ({stuck})" if above else str(stuck)


def excess(
    schedule: Schedule, profile: CostProfile, limits: tuple[int, ...], objective: str
) -> str | None:
    """Return by how much a schedule exceeds the limits under which it deadlocks, the limit that it
    needs, and the level of recomputation with which it is fastest and fits, as replayed. None where it
    deadlocks under any limit."""
    try:
        trace = _replay(schedule, profile, None, objective)
    except Deadlock:
        return None
    peaks = trace.peak_bytes
    text = f"does not fit: {held_above(peaks, limits)}; it fits with a limit of {size_above(max(peaks))}"
    lighter = []
    levels = profile.level_names
    for name in () if schedule.recompute else levels:
        stages = {str(at): name for at, cost in enumerate(profile.stages) if cost.level(name)}
        try:
            again = _replay(schedule.replace(recompute=stages), profile, limits, objective)
        except Deadlock:
            continue
        lighter.append((again.iteration_ns, name, max(again.peak_bytes)))
    if lighter:
        time, name, peak = min(lighter)
        text += f", or with recompute={name} ({format_time(time)}, {format_size(peak)})"
    return text


def held_above(peaks: tuple[int, ...], limits: tuple[int, ...]) -> str:
    """Return the peak that is furthest above its limit, and by how much."""
    worst = max(range(len(peaks)), key=lambda device: peaks[device] - limits[device])
    peak, limit = peaks[worst], limits[worst]
    above = format_size(peak - limit)
    return f"{format_size(peak)} on device {worst}, {above} above the limit of {format_size(limit)}"


def _replay(
    schedule: Schedule, profile: CostProfile, limits: tuple[int, ...] | None, objective: str
) -> Trace:
    times = run_replay(schedule, profile, limits)
    return Trace(schedule, profile, *times, limits, objective)
