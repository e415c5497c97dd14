"""From a schedule to programs that ranks can run, lowered and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import OptPipeError
from ...op_costs import moves_of_keys
from ...ops import O
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim.lower import Lowered, lower
from ..model.recompute import level_of
from .program import Program, linear_programs
from .soundness import check_programs


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
    """Lower and check a schedule for modules of a user's own.

    Raises:
        OptPipeError: where it is not sound, does not keep the limit, runs slices of sequences, offloads to
            drives, or recomputes at a level that the runtime does not have.
    """
    if schedule.shape.slices > 1:
        raise OptPipeError(
            f"slices: the schedule cuts sequences into {schedule.shape.slices}; modules of one's own and"
            " training runs take whole sequences (`optpipe-sim confirm` runs slices of a named model)"
        )
    check_tier(schedule, profile)
    for name in schedule.levels.names:
        level_of(name)
    lowered = lower(schedule, profile, limit)
    programs = linear_programs(lowered)
    check_programs(programs, lowered.schedule)
    return Prepared(lowered, programs)


def check_tier(schedule: Schedule, profile: CostProfile) -> None:
    """Refuse offloads to drives, as the runtime has host memory only, and of keys and values that backward
    passes of later slices read, as it keeps these on the device.

    Raises:
        OptPipeError: says what to do instead.
    """
    drives = profile.offload is not None and profile.offload.nvme is not None
    if drives and any(op.kind is O for program in schedule.programs for op in program):
        raise OptPipeError(
            f"profile {profile.name}: offload.nvme: the schedule offloads to NVMe drives, the runtime to host"
            " memory only; take a profile without nvme, or a schedule without offloads"
        )
    shape = schedule.shape
    moving = moves_of_keys(schedule, profile)[0] if shape.slices > 1 else ()
    for op in (schedule.op(int(row)) for row in moving):
        if op.slice != shape.slices - 1:  # nothing reads those of the last slice
            raise OptPipeError(
                f"{op}: it offloads keys and values, which the backward passes of later slices read; put it"
                f" before F{op.stage}.{op.microbatch}/{shape.slices - 1}, and it leaves them on the device"
            )
