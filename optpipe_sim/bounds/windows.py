"""Windows: when the n-th F and the n-th backward of each stage start, in schedules that cost less than a goal.

The one-device problem (`device`) replaces the other devices by times that no schedule can beat. Given a goal they
can be replaced by more: a schedule below the goal has to start the n-th F of s in a window, from the
earliest that the stages before can feed it to the latest from which the rest can still be done in time. Each
device then narrows its own windows and propagates them:

- Shave: if a device has no schedule below the goal in which its n-th F starts at t or later (the search
  of `device.best_first` says so), then it starts sooner; likewise for too early, and for backwards.
- Propagate: the n-th F of s + 1 starts no sooner than the n-th F of s has ended and the P2P latency is
  over, whichever microbatches those are; and the n-th F of s ends the P2P latency before the latest
  start of the n-th F of s + 1. Backwards likewise, the other way.

When a window is empty, or a device is left without a schedule, there is none below the goal: the goal is
a lower bound. That is how conflicts between devices count, which no bound of a
single device sees. Where nothing more can be shaved, the windows hold for every schedule below the
goal: an exact solver can start from them (`cpsat.order`).

Proof: by induction over the steps. Take a schedule below the goal. On each stage it has an n-th F and an
n-th B; that they lie in the windows so far is what the device's problem with those windows assumes
(windows are releases and tails of that problem; its search allows whatever is no worse, see
`device.best_first`), so the schedule is among those it covers, and what it excludes the schedule does not
do. Propagation only counts: n F's of s + 1 have begun only after n F's of s.

For makespans only; spans of two devices have no common time origin.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..codes import B, F
from ..ops import MESSAGES
from ..profile import CostProfile
from ..stage_cost import StageCost
from .chains import back_ns
from .device.device_bound import device_bound
from .device.prices import prices
from .device.problem import OneDevice, one_device

NODES = 4_000  # nodes per search; a search that needs more shaves nothing
FINEST = 8  # windows are shaved in steps of the shortest op by this at least


class Windows(NamedTuple):
    """The earliest and the latest starts, in arrays that are narrowed in place.

    Attributes:
        earliest, latest: (2, stages, m) ns, of the n-th F and of the n-th backward.
    """

    earliest: np.ndarray
    latest: np.ndarray

    @property
    def empty(self) -> bool:
        return bool((self.earliest > self.latest).any())

    @property
    def slack_ns(self) -> int:
        """The total width of all windows."""
        return int((self.latest - self.earliest).sum())

    def copy(self) -> Windows:
        return Windows(*(ends.copy() for ends in self))


class OutOfTime(Exception):
    """The clock ran out; the windows so far hold."""


class Pipeline:
    """All devices of a pipeline, with the data for narrowing their windows."""

    def __init__(self, profile: CostProfile, microbatches: int, limits: Sequence[int]) -> None:
        self.profile, self.microbatches = profile, microbatches
        self.devices = [
            one_device(profile, microbatches, d, "flush", limits) for d in range(profile.devices)
        ]
        self.prices = [prices(one) if one.possible else None for one in self.devices]
        # (2, stages) of F's and of backwards
        self.duration = np.array([[c.t_f_ns, back_ns(c)] for c in profile.stages], np.int64).T
        self.longest = np.array([_longest_back_ns(cost) for cost in profile.stages])
        self.latency = np.array(profile.messages_ns, np.int64)
        self.step = max(1, int(self.duration.min()) // FINEST)
        self.searches = 0

    def widest(self, goal_ns: int) -> Windows:
        """Return the windows that the devices' own problems give."""
        windows = Windows(*np.zeros((2, *self.duration.shape, self.microbatches), np.int64))
        for one in self.devices:
            rows = list(one.stages)
            windows.earliest[:, rows] = one.earliest
            windows.latest[:, rows] = goal_ns - 1 - one.later - self.duration[:, rows, None]
        return windows

    def hand_on(self, windows: Windows) -> None:
        """Propagate from stage to stage, and from each op to the next of its kind."""
        order, stages = np.arange(self.microbatches), range(len(self.latency) + 1)
        early, late = np.maximum.accumulate, np.minimum.accumulate
        for kind in (F, B):
            earliest, latest, duration = (
                windows.earliest[kind],
                windows.latest[kind],
                self.duration[kind],
            )
            step, behind = MESSAGES[kind], duration[:, None] * order
            for s in stages[::-step]:
                if s + step in stages:
                    message = self.latency[min(s, s + step)]
                    least = earliest[s + step] + duration[s + step] + message
                    earliest[s] = np.maximum(earliest[s], least)
                earliest[s] = early(earliest[s] - behind[s]) + behind[s]
            for s in stages[::step]:
                if s - step in stages:
                    most = latest[s - step] - self.latency[min(s, s - step)] - duration[s]
                    latest[s] = np.minimum(latest[s], most)
                latest[s] = late((latest[s] - behind[s])[::-1])[::-1] + behind[s]

    def narrow(self, goal_ns: int, until: float = float("inf")) -> Windows | None:
        """Return the windows of all schedules that cost less than `goal_ns`; None: there is no such schedule.

        Stops at `until` (of `time.monotonic`) with what it has; the windows are valid, but may be wide.
        """
        narrowing = _Narrowing(self, goal_ns, until)
        try:
            return narrowing.windows if narrowing.run() else None
        except OutOfTime:
            return narrowing.windows


class _Narrowing:
    """One run for one goal."""

    def __init__(self, pipeline: Pipeline, goal_ns: int, until: float) -> None:
        self.pipeline, self.goal, self.until = pipeline, goal_ns, until
        self.windows = pipeline.widest(goal_ns)

    def run(self) -> bool:
        """Narrow until nothing changes; return whether schedules below the goal may be left."""
        pipe, waiting = self.pipeline, list(range(len(self.pipeline.devices)))
        pipe.hand_on(self.windows)
        if self.windows.empty:
            return False
        while waiting:
            device = waiting.pop(0)
            before = self.windows.copy()
            if not pipe.devices[device].possible:
                continue
            if self.excluded(device, self.windows) or not self.shave_all(device):
                return False
            pipe.hand_on(self.windows)
            if self.windows.empty:
                return False
            for other in range(len(pipe.devices)):
                if other not in waiting and other != device and self.changed(other, before):
                    waiting.append(other)
        return True

    def changed(self, device: int, before: Windows) -> bool:
        rows = list(self.pipeline.devices[device].stages)
        pairs = zip(self.windows, before, strict=True)
        return any((now[:, rows] != then[:, rows]).any() for now, then in pairs)

    def excluded(self, device: int, windows: Windows) -> bool:
        """Whether the device has no schedule below the goal in these windows."""
        if time.monotonic() >= self.until:
            raise OutOfTime
        pipe = self.pipeline
        pipe.searches += 1
        problem = self.problem(pipe.devices[device], windows)
        bound, _ = device_bound(problem, pipe.prices[device], NODES, self.goal)
        return bound >= self.goal

    def problem(self, one: OneDevice, windows: Windows) -> OneDevice:
        pipe, rows = self.pipeline, list(one.stages)
        left = self.goal - 1 - windows.latest
        later = left[:, rows] - np.array([pipe.duration[F, rows], pipe.longest[rows]])[..., None]
        for row, s in enumerate(rows):
            if s:  # it ends before the latest start of the next backward, and the P2P latency
                later[B, row] = np.maximum(later[B, row], left[B, s - 1] + pipe.latency[s - 1])
        return replace(one, earliest=windows.earliest[:, rows], later=np.maximum(one.later, later))

    def shave_all(self, device: int) -> bool:
        """Narrow both ends of every window of a device; return whether any schedule is left."""
        for s in self.pipeline.devices[device].stages:
            for n in range(self.pipeline.microbatches):
                for kind in (F, B):
                    for late in (True, False):
                        self.shave(device, s, n, kind, late)
                        if self.windows.empty:
                            return False
        return True

    def shave(self, device: int, s: int, n: int, kind: int, late: bool) -> None:
        """Cut off one end of a window, in steps that double while they succeed and then halve."""
        step, grows = self.pipeline.step, True
        while True:
            earliest, latest = self.windows.earliest[kind], self.windows.latest[kind]
            first, last = int(earliest[s, n]), int(latest[s, n])
            if first > last:
                return
            trial = self.windows.copy()
            # what is to be excluded: that it starts in the last (or first) `step` of the window
            if late:
                _raise(trial.earliest[kind], s, n, max(first, last - step + 1))
            else:
                _lower(trial.latest[kind], s, n, min(last, first + step - 1))
            if self.excluded(device, trial):
                if late:
                    _lower(latest, s, n, last - step)
                else:
                    _raise(earliest, s, n, first + step)
                step = 2 * step if grows else step
            else:
                grows = False
                step //= 2
                if step < self.pipeline.step:
                    return


def _longest_back_ns(cost: StageCost) -> int:
    """Return the longest duration of a backward, which may be a BW or recompute inside."""
    if cost.recompute:
        return max(cost.t_b_ns, cost.fused_ns) + max(level.t_ns for level in cost.recompute)
    fuses = cost.fused_ns < cost.t_b_ns + cost.t_w_ns
    return max(cost.t_b_ns, cost.fused_ns) if fuses else cost.t_b_ns


def _raise(earliest: np.ndarray, s: int, n: int, least: int) -> None:
    """Require that the n-th op and those after it start at `least` or later."""
    earliest[s, n:] = np.maximum(earliest[s, n:], least)


def _lower(latest: np.ndarray, s: int, n: int, most: int) -> None:
    """Require that the n-th op and those before it start by `most`."""
    latest[s, : n + 1] = np.minimum(latest[s, : n + 1], most)
