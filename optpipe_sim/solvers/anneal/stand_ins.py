"""Shared host links: problems that stand for one whose devices share links.

The fast compiled evaluations, of what a move affects, handle one device at a time, and so only
model links that belong to one device. A program contains no times, though: a program found for a problem
with other links is also one of the real problem, and its replay there decides its cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...ops import O
from ...profile import CostProfile, Offload
from ...schedule import Schedule
from ...stage_cost import StageCost
from ..problem import Problem
from ..reports import Others
from ..treatments import restrict


def stand_ins(problem: Problem) -> Iterator[Problem]:
    """Return the problem without copies, in which no link is shared; and the problem in which each
    device has its own link, slowed down to a fair share of the real one."""
    if not problem.per_stage:
        kept = restrict(problem.profile, problem.treatments - {"offload"})
        if all(
            least <= limit
            for least, limit in zip(kept.least_limits, problem.limits or (), strict=True)
        ):
            yield replace(problem, profile=kept)
    yield replace(problem, profile=shared_out(problem.profile))


def shared_out(profile: CostProfile) -> CostProfile:
    """Return the profile in which each device has its own link, as fast as its fair share of the
    shared one."""
    offload = profile.offload
    assert offload is not None
    ways = 2 if (offload.host_link, offload.copy_engines) == ("single", "separate") else 1
    users = {device: ways * len(link) for link in profile.host_links for device in link}

    def slower(stage: int, cost: StageCost) -> StageCost:
        factor = users[profile.placement[stage]]
        out, back = cost.t_offload_ns, cost.t_reload_ns
        return replace(
            cost,
            t_offload_ns=None if out is None else factor * out,
            t_reload_ns=None if back is None else factor * back,
        )

    alone = Offload(
        offload.copy_engines, None, (), offload.host_limit_bytes, offload.devices_per_node
    )
    return replace(profile.map_stages(slower), offload=alone)


def moved_to(problem: Problem, schedules: Iterable[Schedule]) -> list[Schedule]:
    """Convert schedules to a problem: without copies if it has none. The service order on links is
    dropped and left to the replay."""
    return [
        schedule.replace(link_order={})
        for schedule in schedules
        if problem.may_offload or not _copies(schedule)
    ]


def others_for(problem: Problem, others: Others) -> Others:
    """Wrap `others` so that its schedules are converted to the problem."""

    def take() -> Schedule | None:
        schedule = others()
        return None if schedule is None else next(iter(moved_to(problem, [schedule])), None)

    return take


def _copies(schedule: Schedule) -> bool:
    return bool((schedule.table[:, 0] == O).any())
