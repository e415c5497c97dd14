"""Hints: alternatives to a plan, each replayed before it is named; what gains nothing is no hint. And
diagnoses: what a plan would take if something cost nothing that no option changes, as messages do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import OptPipeError
from ..ops import C
from ..profile import CostProfile
from ..schedule import Schedule
from ..schedules import USUAL, build, names_in
from ..sim import simulate
from ..stage_cost import StageCost
from ..trace import Trace
from ..units import format_size, format_time

LEAST = 0.005  # shares of the time; the costs of a profile are no better known
MANY_OPS = 200_000  # a replay of more takes half a second: nothing is tried
LIMITS = "What limits this plan: each limit lifted, in a replay of its own"
NONE = "nothing that was tried gains 0.5% or more"


class Hint(NamedTuple):
    """An alternative and what its replay gives.

    Attributes:
        what: the change, to be read after "with". key: what is changed; of each key one hint is given.
        gain: the share of the time that it saves.
        time_ns, peak_bytes: of the alternative, the peak on the fullest device.
        between: by how much such a difference may be off, in four cases of five; None: not known.
    """

    what: str
    key: str
    gain: float
    time_ns: float
    peak_bytes: int
    between: float | None = None

    @property
    def is_toss_up(self) -> bool:
        """Whether it may in reality gain nothing."""
        return self.between is not None and self.gain <= self.between

    def __str__(self) -> str:
        change = f"{-self.gain:+.1%}"
        if self.is_toss_up:
            change += f", a toss-up: such differences are ±{self.between:.1%} off"
        return (
            f"{self.what}: {format_time(self.time_ns)} ({change}), peak"
            f" {format_size(self.peak_bytes)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; one of ``hints`` in ``explain --json`` and ``evaluate --json``."""
        off = self.between
        interval = None if off is None else [self.gain - off, self.gain + off]
        return {
            **self._asdict(),
            "time_ns": round(self.time_ns),
            "gain_interval": interval,
            "toss_up": self.is_toss_up,
        }


class Alternative(NamedTuple):
    """A change and a function that replays it: its time, its peak, and whether it fits."""

    what: str
    key: str
    replayed: Callable[[], tuple[float, int, bool]]


def best_hints(
    now_ns: float,
    alternatives: Iterable[Alternative],
    over: Callable[[], bool] = lambda: False,
    between: Callable[[str], float | None] = lambda key: None,
) -> list[Hint]:
    """Replay alternatives, and return for each key the best of those that fit and gain at least `LEAST`,
    the largest gain first.

    Args:
        now_ns: the time without any of them. over: tells whether the time is up. between: by how much a difference may be
            off where what the key names is changed.
    """
    found: dict[str, Hint] = {}
    for what, key, replayed in alternatives:
        if over():
            break
        with suppress(OptPipeError):
            time_ns, peak, fits = replayed()
            hint = Hint(what, key, 1 - time_ns / now_ns, time_ns, peak, between(key))
            if fits and hint.gain >= LEAST and (key not in found or hint.gain > found[key].gain):
                found[key] = hint
    return sorted(found.values(), key=lambda hint: -hint.gain)


def hints(trace: Trace) -> list[Hint]:
    """Return what would shorten an iteration of a replayed schedule: other orders, fewer recomputations
    and copies, and equal stages; none for very long schedules. A schedule made for a framework
    (``family`` of its `meta`) gets only orders that this has."""
    return _hints(trace, _alternatives(trace), trace.profile.execution_notes["between"])


def diagnoses(trace: Trace) -> list[Hint]:
    """Return what an iteration would take if messages took no time, copies half of it, or memory were
    free, where that makes a difference: no options, but what the time goes into."""
    return _hints(trace, _free_of(trace))


def _hints(
    trace: Trace, alternatives: Iterator[Alternative], between: float | None = None
) -> list[Hint]:
    if len(trace.schedule) > MANY_OPS or not trace.cost_ns:
        return []
    now_ns: float = trace.iteration_ns
    if trace.fits:  # of a measured trace, what its profile gives
        with suppress(OptPipeError):
            now_ns = _again(trace, trace.schedule)[0]
    return best_hints(now_ns, alternatives, between=lambda _: between)


def _again(
    trace: Trace, schedule: Schedule, profile: CostProfile | None = None, limited: bool = True
) -> tuple[float, int, bool]:
    """Replay another schedule, or on another profile, under the limit of a trace: the time of an iteration, the
    peak, and whether it fits."""
    limits = trace.memory_limit if limited else None
    other = simulate(
        schedule,
        (profile or trace.profile).for_shape(schedule.shape),
        limits,
        enforce=limits is not None,
        objective=trace.objective,
    )
    return other.iteration_ns, max(other.peak_bytes), other.fits


def _as_issued(trace: Trace, name: str, microbatches: int) -> tuple[float, int, bool]:
    """Replay a schedule by name on the costs as given, which it is issued on in its own way."""
    given = trace.unissued
    usual = given.issue(trace.schedule.issued_split).objective
    other = simulate(
        build(name, given, microbatches),
        given,
        trace.memory_limit,
        enforce=trace.memory_limit is not None,
        objective=None if trace.objective == usual else trace.objective,
    )
    return other.iteration_ns, max(other.peak_bytes), other.fits


def _alternatives(trace: Trace) -> Iterator[Alternative]:
    schedule, profile, shape = trace.schedule, trace.profile, trace.schedule.shape

    again = partial(_again, trace)
    busy = trace.busy_ns
    worst, mean = int(np.argmax(busy)), sum(busy) / len(busy)
    if busy[worst] > mean:
        last = " (it has the last stage, with the head)" if worst == profile.placement[-1] else ""
        yield Alternative(
            f"layers moved so that all devices have equal work: device {worst}{last} computes"
            f" {format_time(busy[worst])}, the mean is {format_time(round(mean))}",
            "layout",
            lambda: again(schedule, _balanced(profile, busy)),
        )
    if shape.slices == 1 and shape.devices > 1:
        m = shape.microbatches
        known = names_in(schedule.meta.get("family"))
        for name in USUAL:
            if name == schedule.meta.get("name") or name not in known:
                continue
            yield Alternative(f"schedule {name}", "schedule", partial(_as_issued, trace, name, m))
    if trace.recomputed:
        kept = schedule.table[:, 0] != C
        yield Alternative(
            "nothing recomputed", "recompute", lambda: again(schedule.only(kept, recompute=None))
        )
    if trace.offloaded:
        every = np.ones((shape.stages, shape.units), bool)
        yield Alternative(
            "nothing offloaded", "offload", lambda: again(schedule.without_offloads(every))
        )


def _free_of(trace: Trace) -> Iterator[Alternative]:
    schedule, profile, idle = trace.schedule, trace.profile, trace.idle_ns
    again = partial(_again, trace)
    if idle["memory"] and trace.memory_limit is not None:
        yield Alternative(
            "if nothing waited for memory", "memory", lambda: again(schedule, limited=False)
        )
    if idle["communication"]:
        free = replace(profile, latency_ns=0, occupancy_ns=0)
        yield Alternative("if messages took no time", "messages", lambda: again(schedule, free))
    if idle["reload"]:
        fast = profile.scale(copy=0.5)
        yield Alternative(
            "if copies took half of their time", "copies", lambda: again(schedule, fast)
        )


def _balanced(profile: CostProfile, busy: tuple[int, ...]) -> CostProfile:
    """Return the profile with the compute times of each device's stages scaled to the mean work."""
    mean = sum(busy) / len(busy)

    def scaled(stage: int, cost: StageCost) -> StageCost:
        factor = mean / max(1, busy[profile.placement[stage]])
        fused = cost.t_bw_ns
        return replace(
            cost,
            t_f_ns=max(1, round(cost.t_f_ns * factor)),
            t_b_ns=max(1, round(cost.t_b_ns * factor)),
            t_w_ns=round(cost.t_w_ns * factor),
            t_bw_ns=None if fused is None else max(1, round(fused * factor)),
        )

    return profile.map_stages(scaled)
