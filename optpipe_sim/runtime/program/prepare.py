"""From a schedule to programs that ranks can run, lowered and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import OptPipeError
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
        OptPipeError: where it is not sound, does not keep the limit, runs slices of sequences, or recomputes
            at a level that the runtime does not have.
    """
    if schedule.shape.slices > 1:
        raise OptPipeError(
            f"slices: the schedule cuts sequences into {schedule.shape.slices}; modules of one's own and"
            " training runs take whole sequences (`optpipe-sim confirm` runs slices of a named model)"
        )
    for name in schedule.levels.names:
        level_of(name)
    lowered = lower(schedule, profile, limit)
    programs = linear_programs(lowered)
    check_programs(programs, lowered.schedule)
    return Prepared(lowered, programs)
