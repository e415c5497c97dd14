"""The differences between a schedule and what a framework runs instead, and the cost of each.

A framework runs the nearest schedule that its options can express. A few steps lead from the
original to that schedule, each of which removes one feature; a replay after each step gives the
value of that feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import Deadlock, OptPipeError
from ..ops import C, O, W
from ..profile import CostProfile
from ..schedule import Schedule
from ..sim import simulate, simulate_or_report
from ..trace import Trace
from ..units import counted, format_size, format_time
from .losses import OFFLOADS


@dataclass(frozen=True)
class Step:
    """One feature that a framework's options cannot express.

    Attributes:
        name: ``apart``, ``levels``, ``offloads``, ``pairs``, ``split`` or ``order``.
        thing: the feature in words. `count`: the number of affected ops or activations.
        makespan_ns, peak_bytes: after removing it (and the features of earlier steps), without a
            limit; None if the remaining schedule deadlocks.
        slower: the makespan over that before this step, less 1.
    """

    name: str
    thing: str
    count: int
    makespan_ns: int | None
    peak_bytes: int | None
    slower: float | None

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Nearest:
    """A schedule, and the schedule that a framework runs instead.

    Attributes:
        name: the schedule that the framework runs, in words or as a schedule name.
        before: the replay of the schedule under the limit. after: the replay of the framework's
            schedule, in which no op waits for memory (`replay_unlimited`).
        lost: the steps from one to the other; empty if the framework can run the schedule exactly.
        notes: what the replay does not model.
    """

    name: str
    before: Trace
    after: Trace
    lost: tuple[Step, ...]
    notes: tuple[str, ...] = ()

    @property
    def schedule(self) -> Schedule:
        """The schedule that the framework runs."""
        return self.after.schedule

    @property
    def slower(self) -> float:
        """The makespan of the framework's schedule over that of the original, less 1."""
        return self.after.makespan_ns / self.before.makespan_ns - 1

    def to_json(self) -> dict[str, Any]:
        return {
            "told": self.name,
            "before": _measures(self.before),
            "after": _measures(self.after),
            "slower": round(self.slower, 6),
            "lost": [step.to_json() for step in self.lost],
            "notes": list(self.notes),
        }

    def in_words(self) -> str:
        """Return the losses, as ``12 backwards in two and its order``."""
        return " and ".join(step.thing for step in self.lost)

    def cost(self) -> str:
        """Return the cost of the losses in time per iteration and memory, in a sentence."""
        before, after = self.before.iteration_ns, self.after.iteration_ns
        text = f"{self.name} takes {format_time(after)} (before: {format_time(before)},"
        slower = after / before - 1
        text += f" {slower:+.1%}), peak {format_size(max(self.after.peak_bytes))}"
        text += "" if self.after.fits else ", and does not fit the memory"
        return text + (self.before.profile.toss_up_text(slower) if self.lost else "")


def _measures(trace: Trace) -> dict[str, Any]:
    return {
        "schedule": trace.schedule.name,
        "iteration_ns": trace.iteration_ns,
        "makespan_ns": trace.makespan_ns,
        "peak_bytes": list(trace.peak_bytes),
        "fits": trace.fits,
    }


def compare(
    schedule: Schedule,
    nearest: Schedule,
    name: str,
    profile: CostProfile,
    notes: tuple[str, ...] = (),
) -> Nearest:
    """Compare `schedule` with the schedule that a framework runs instead."""
    before, _ = simulate_or_report(schedule, profile)
    after = replay_unlimited(nearest, profile)
    steps = () if schedule == nearest else tuple(_steps(schedule, nearest, profile))
    return Nearest(name, before, after, steps, notes)


def replay_unlimited(schedule: Schedule, profile: CostProfile) -> Trace:
    """Replay a schedule as frameworks run it: no op waits for memory."""
    trace = simulate(schedule, profile, enforce=False)
    limits = trace.profile.memory_limit
    fits = limits is None or all(
        peak <= limit for peak, limit in zip(trace.peak_bytes, limits, strict=True)
    )
    return replace(trace, memory_limit=limits, fits=fits)


def _steps(schedule: Schedule, nearest: Schedule, profile: CostProfile) -> Iterator[Step]:
    last = simulate(schedule, profile, enforce=False).makespan_ns
    for name, thing, count, left in _stripped(schedule, nearest):
        try:
            trace = simulate(left, profile, enforce=False)
        except Deadlock:
            yield Step(name, thing, count, None, None, None)
            continue
        now = trace.makespan_ns
        yield Step(name, thing, count, now, max(trace.peak_bytes), round(now / last - 1, 6))
        last = now


def _stripped(schedule: Schedule, nearest: Schedule) -> Iterator[tuple[str, str, int, Schedule]]:
    """Yield the steps: name, words, count, and the schedule after each; the last one is `nearest`."""
    left = schedule
    kinds = schedule.table[:, 0]
    if count := int((kinds == C).sum()):
        left = left.only(left.table[:, 0] != C)
        yield "apart", counted(count, "recomputation apart from its backward"), count, left
    if count := _other_levels(left, nearest):
        try:
            left = left.replace(recompute=nearest.recompute)
        except OptPipeError:  # another shape
            left = left.replace(recompute={})
        text = counted(
            count, "activation at a level of its own", "activations at levels of their own"
        )
        yield "levels", text, count, left
    offloaded, theirs = (
        {(op.stage, op.microbatch) for ops in one.flat_programs for op in ops if op.kind is O}
        for one in (left, nearest)
    )
    if offloaded and offloaded != theirs:
        left = OFFLOADS.strip(left)
        yield "offloads", counted(len(offloaded), "offload"), len(offloaded), left
    splits = bool((left.table[:, 0] == W).any())
    if left.has_pairs and (splits or not nearest.has_pairs):  # also pairs with a B alone
        count = int(left.paired.sum())
        left = left.parted()
        yield "pairs", counted(count, "pair as one op", "pairs as one op"), count, left
    if (count := int((kinds == W).sum())) and not (nearest.table[:, 0] == W).any():
        left = left.fused(np.ones(len(left), bool))
        yield "split", counted(count, "backward in two", "backwards in two"), count, left
    if left != nearest:
        other = left.shape.placement != nearest.shape.placement
        text = "its placement and order" if other else "its order"
        yield "order", text, len(nearest), nearest


def _other_levels(schedule: Schedule, nearest: Schedule) -> int:
    """Count the activations that are recomputed at another level, or not recomputed."""
    ours, theirs = (
        np.array([["", *one.levels.names][level] for level in one.levels.table.ravel()])
        for one in (schedule, nearest)
    )
    return int((ours != theirs).sum())
