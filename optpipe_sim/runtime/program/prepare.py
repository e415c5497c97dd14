"""From a schedule to programs that ranks can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import OptPipeError
from ...ops import O
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim.lower import Lowered, lower
from ..model.recompute import level_of
from .program import Program, linear_programs


@dataclass(frozen=True, eq=False)
class Prepared:
    """A schedule that a rank is ready to run."""

    lowered: Lowered
    programs: tuple[Program, ...]

    @property
    def schedule(self) -> Schedule:
        """As it is issued."""
        return self.lowered.schedule


def prepare(schedule: Schedule, profile: CostProfile, limit: Any = None) -> Prepared:
    """Return the programs of a schedule, one per rank. The halves of pairs run one after the other.

    Lowering checks the schedule; what holds of the programs then is said in `program`.

    Raises:
        OptPipeError: where it is not sound, does not keep the limit, offloads to drives, or recomputes at a
            level that the runtime does not have.
    """
    check_tier(schedule, profile)
    schedule = schedule.parted()
    for name in schedule.levels.names:
        level_of(name)
    lowered = lower(schedule, profile, limit)
    return Prepared(lowered, linear_programs(lowered))


def check_whole(schedule: Schedule, whose: str) -> None:
    """Refuse slices of sequences, where `whose` run takes whole ones.

    Raises:
        OptPipeError: says what runs slices.
    """
    if schedule.shape.slices > 1:
        raise OptPipeError(
            f"slices: the schedule cuts sequences into {schedule.shape.slices}; {whose} take whole sequences"
            " (PipelineStep runs slices of one's own modules, `optpipe-sim confirm` those of a named model)"
        )


def check_tier(schedule: Schedule, profile: CostProfile) -> None:
    """Refuse offloads to drives, as the runtime has host memory only.

    Raises:
        OptPipeError: says what to do instead.
    """
    drives = profile.offload is not None and profile.offload.nvme is not None
    if drives and any(op.kind is O for program in schedule.flat_programs for op in program):
        raise OptPipeError(
            f"profile {profile.name}: offload.nvme: the schedule offloads to NVMe drives, the runtime to host"
            " memory only; take a profile without nvme, or a schedule without offloads"
        )
