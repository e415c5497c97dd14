"""The checker: the problems of a schedule, or of a trace, one sentence each.

It shares no code with the simulator (`optpipe_sim.sim`) or the measures of a trace, so that its verdict is
independent: whether a schedule completes is decided by the plain replay of `stepped`, whether given times are
valid by the rules written out in `times`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import InvalidSchedule, ProfileError, require
from ..ops import TRANSFERS
from ..profile import CostProfile
from ..schedule import Schedule
from ..stage_cost import StageCost
from ..units import Size, format_sizes, format_time
from .costs import parts_of
from .ops import circle, completeness, level_problems, link_problems, split_problems
from .stepped import static, step_through
from .times import check_times, host_problems

__all__ = ["check", "check_trace"]

check_trace = check_times


def check(
    schedule: Schedule, profile: CostProfile, memory_limit: Size | Sequence[Size] | None = None
) -> list[str]:
    """Return the problems of a schedule under a profile, one sentence each; empty if it is valid.

    Checked in this order: the number of devices and chunks; missing, doubled and misplaced ops; link
    orders; orders that deadlock whatever the memory; limits that no schedule can keep; whether the
    replay completes under the memory limit, and stays within the pinned memory of the host. Checks that
    depend on an earlier problem are left out.

    Args:
        memory_limit: bytes, for all devices or per device; None: the profile's own.

    Raises:
        ProfileError: if `memory_limit` is a list of the wrong length.
    """
    return timed(schedule, profile, memory_limit)[0]


def timed(
    schedule: Schedule, profile: CostProfile, memory_limit: Size | Sequence[Size] | None = None
) -> tuple[list[str], int]:
    """Return the problems that `check` finds, and the makespan in ns by the checker's own replay, 0
    where there are problems.

    Raises:
        ProfileError: as `check`.
    """
    require("schedule", schedule, Schedule, "make one with build(NAME, profile, microbatches)")
    require("profile", profile, CostProfile, "read one with load_profile(PATH)")
    try:
        profile = profile.for_shape(schedule.shape)
        profile = profile.issued(schedule.issued_split)
    except (InvalidSchedule, ProfileError) as error:
        return [str(error)], 0
    problems = completeness(schedule) + level_problems(schedule, profile)
    problems += split_problems(schedule, profile)
    if profile.offload is None:
        transfer = next(
            (op for ops in schedule.flat_programs for op in ops if op.kind in TRANSFERS), None
        )
        if transfer is not None:
            device = schedule.shape.placement[transfer.stage]
            problems.append(
                f"device {device}: {transfer} is a transfer, but the profile {profile.name} has no"
                " offload section"
            )
    problems = problems or link_problems(schedule, profile)
    problems = problems or circle(schedule, profile)
    limits = profile.limits(memory_limit)
    if limits is not None:
        problems += _too_small(profile, limits)
    if problems:
        return problems, 0
    times = step_through(schedule, profile, limits)
    if times.stuck:
        done, size = len(times.end_ns), sum(map(len, schedule.flat_programs))
        more = f"; and {len(times.stuck) - 4} more" if len(times.stuck) > 4 else ""
        return [
            f"the programs get stuck at {format_time(times.last_ns)} with {done} of {size} ops done: "
            + "; ".join(times.stuck[:4])
            + more
        ], 0
    problems = host_problems(schedule, profile, times.start_ns, times.end_ns)
    return problems, 0 if problems else max(times.end_ns.values(), default=0)


def _kept_and_work(cost: StageCost) -> Iterator[tuple[int, int]]:
    """Yield, per level of recomputation, the bytes kept after F and the most held in addition."""
    for level in cost.recompute:
        dropped = cost.act_bytes - level.keep_bytes
        yield level.keep_bytes, dropped if level.work_bytes is None else level.work_bytes


def _too_small(profile: CostProfile, limits: Sequence[int]) -> list[str]:
    """Return the limits below the need of one microbatch passing through the stages of a device."""
    problems = []
    for device, limit in enumerate(limits):
        least = max(_least(profile, device, factors) for factors in range(len(profile.classes)))
        if limit < least:
            stated, needed = format_sizes(limit, least)
            problems.append(
                f"device {device}: the memory limit of {stated} is below the {needed} that"
                " one microbatch needs"
            )
    return problems


def _least(profile: CostProfile, device: int, factors: int) -> int:
    """Return what one microbatch of a class needs on a device, while it passes through its stages."""
    least = static(profile, device)
    stays = [least] * profile.slices  # of the stages before, of the slices up to each
    for stage, owner in enumerate(profile.placement):
        if owner != device:
            continue
        before = so_far = 0
        for at, part in enumerate(parts_of(profile, stage, profile.classes[factors])):
            movable = (part.offload_bytes or 0) if profile.offload is not None else 0
            running, waiting, unread = part.act_bytes, part.act_bytes, part.act_bytes
            for kept, work in [(part.act_bytes, 0), *_kept_and_work(part)]:
                running = min(running, kept + work)
                waiting = min(waiting, max(kept - movable, 0))
                unread = min(unread, max(kept - movable, part.kv_bytes))
            least = max(least, stays[at] + before + running)
            before += unread  # its keys and values stay until the last slice has read them
            so_far += waiting
            stays[at] += so_far
    return least
