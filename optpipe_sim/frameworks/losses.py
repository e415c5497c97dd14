"""The features of a schedule that a format cannot express, and the cost of leaving them out.

An export is refused unless the format can express all of the schedule, or the rest is left out by
name. The exported schedule then differs, with another makespan and another peak memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import InvalidSchedule, OptPipeError
from ..ops import BW, B, C, F, O, R
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import counted, format_size, format_time


@dataclass(frozen=True)
class Loss:
    """One feature that a format cannot express.

    Attributes:
        name: how users leave it out: ``--without-NAME``, ``without=[NAME]``.
        thing: one of them, in words.
        count: how many of them a schedule has.
        strip: the schedule without them.
    """

    name: str
    thing: str
    count: Callable[[Schedule], int]
    strip: Callable[[Schedule], Schedule]


def _without_offloads(schedule: Schedule) -> Schedule:
    # link orders only concern offloads and reloads
    return schedule.only(~schedule.is_transfer, link_order={})


def _recomputed(schedule: Schedule) -> int:
    """Count the activations that have a level, or a C."""
    apart = schedule.table[schedule.table[:, 0] == C]
    recomputed = schedule.levels.table > 0
    recomputed[apart[:, 1], apart[:, 2]] = True
    return int(recomputed.sum())


def _without_recomputation(schedule: Schedule) -> Schedule:
    return schedule.only(schedule.table[:, 0] != C, recompute={})


OFFLOADS = Loss(
    "offloads",
    "offload",
    lambda schedule: int((schedule.table[:, 0] == O).sum()),
    _without_offloads,
)
RECOMPUTATION = Loss(
    "recomputation",
    "recomputed activation",
    _recomputed,
    _without_recomputation,
)
CANNOT_SAY: Mapping[str, tuple[Loss, ...]] = {
    "torch-csv": (OFFLOADS, RECOMPUTATION),
    "perfetto": (),
}


def losses_of(schedule: Schedule, format: str) -> dict[Loss, int]:
    """Return the features of a schedule that `format` cannot express, and their numbers."""
    counts = {loss: loss.count(schedule) for loss in CANNOT_SAY[format]}
    return {loss: count for loss, count in counts.items() if count}


def in_words(losses: Mapping[Loss, int]) -> str:
    """Format losses as ``699 offloads``, with an "and" between several kinds."""
    return " and ".join(counted(count, loss.thing) for loss, count in losses.items())


def leave_out(schedule: Schedule, format: str, without: Collection[str] = ()) -> Schedule:
    """Return the schedule that `format` can express: the same one, or without the features in
    `without`.

    Raises:
        OptPipeError: for features that the format cannot express and that were not left out; for an
            unknown name.
    """
    known = [loss.name for loss in CANNOT_SAY[format]]
    for name in without:
        if name not in known:
            raise OptPipeError(
                f"without: {name!r} is nothing that {format} leaves out; known are"
                f" {', '.join(known) or 'none'}"
            )
    losses = losses_of(schedule, format)
    refused = {loss: count for loss, count in losses.items() if loss.name not in without}
    if refused:
        names = [loss.name for loss in refused]
        raise InvalidSchedule(
            f"{format} cannot express {in_words(refused)}; without={names} leaves them out,"
            " which takes more memory"
        )
    for loss in losses:
        schedule = loss.strip(schedule)
    return schedule


@dataclass(frozen=True)
class Cost:
    """A schedule and its exported version, replayed with the same profile.

    Attributes:
        peak_bytes, makespan_ns: of the exported schedule, without a memory limit. full_peak_bytes,
            full_makespan_ns: of the original schedule, under the limit.
        memory_limit: bytes per device, or None.
        iteration_ns, full_iteration_ns: the time of an iteration of the two, gradients and update included.
    """

    peak_bytes: tuple[int, ...]
    makespan_ns: int
    full_peak_bytes: tuple[int, ...]
    full_makespan_ns: int
    memory_limit: tuple[int, ...] | None
    iteration_ns: int
    full_iteration_ns: int

    @property
    def above(self) -> tuple[int, ...]:
        """The devices whose peak is above their limit, the worst first."""
        if self.memory_limit is None:
            return ()
        over = {
            device: peak / max(limit, 1)
            for device, (peak, limit) in enumerate(
                zip(self.peak_bytes, self.memory_limit, strict=True)
            )
            if peak > limit
        }
        return tuple(sorted(over, key=lambda device: -over[device]))

    def to_json(self) -> dict[str, Any]:
        return {
            "peak_bytes": list(self.peak_bytes),
            "iteration_ns": self.iteration_ns,
            "makespan_ns": self.makespan_ns,
            "full_peak_bytes": list(self.full_peak_bytes),
            "full_iteration_ns": self.full_iteration_ns,
            "full_makespan_ns": self.full_makespan_ns,
            "memory_limit_bytes": self.memory_limit and list(self.memory_limit),
            "fits": None if self.memory_limit is None else not self.above,
        }

    def __str__(self) -> str:
        """Return the peak against the limit, and the time, in one line."""
        device = self.above[0] if self.above else int(np.argmax(self.peak_bytes))
        text = f"device {device} peaks at {format_size(self.peak_bytes[device])}"
        if self.memory_limit is not None:
            text += f" of its {format_size(self.memory_limit[device])}"
        text += f" (before: {format_size(self.full_peak_bytes[device])})"
        if len(self.above) > 1:
            text += f" and {len(self.above)} of {len(self.peak_bytes)} devices exceed their limits"
        now, before = format_time(self.iteration_ns), format_time(self.full_iteration_ns)
        return f"{text}; an iteration takes {now} (before: {before})"


def cost_of(schedule: Schedule, exported: Schedule, profile: CostProfile) -> Cost:
    """Replay both with the costs and the limit of `profile`.

    Raises:
        OptPipeError: as `sim.simulate`, if one of them cannot be replayed.
    """
    from ..sim import simulate, simulate_or_report

    full, _ = simulate_or_report(schedule, profile)
    left = simulate(exported, profile, enforce=False)
    return Cost(
        left.peak_bytes,
        left.makespan_ns,
        full.peak_bytes,
        full.makespan_ns,
        profile.for_shape(schedule.shape).memory_limit,
        left.iteration_ns,
        full.iteration_ns,
    )


def most_held(schedule: Schedule) -> tuple[int, ...]:
    """Return, per device, the most activations that it holds in the order of its program. It needs
    no profile; an activation counts until its offload in the program.
    """
    change = np.zeros(len(schedule.table), np.int64)
    for kind, step in ((F, 1), (R, 1), (B, -1), (BW, -1), (O, -1)):
        change[schedule.table[:, 0] == kind] = step
    return tuple(
        int(np.cumsum(change[first:last]).max(initial=0))
        for first, last in pairwise(schedule.offsets.tolist())
    )
