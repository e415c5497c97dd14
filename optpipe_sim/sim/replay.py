"""The fast replay: the times that the engine gives, from arrays and compiled loops."""

from __future__ import annotations

import numpy as np

from ..errors import Deadlock, OptPipeError
from ..ops import O
from ..profile import CostProfile
from ..schedule import Schedule
from ..trace import Trace
from . import events
from .graph import build_graph, given_order, shared_links
from .links import link_keys

Times = tuple[np.ndarray, np.ndarray, np.ndarray]


def run_replay(schedule: Schedule, profile: CostProfile, limits: tuple[int, ...] | None) -> Times:
    """Starts, ends and grants, as `engine.run_engine` gives them, to the nanosecond.

    A longest path, as long as no limit binds and no link is served first come first served; else
    event by event.

    Raises:
        Deadlock: as the engine words it.
    """
    orders = {key: rows for key in schedule.link_order if (rows := given_order(schedule, key))}
    if set(shared_links(schedule, profile)) <= set(orders):
        graph = build_graph(schedule, profile, orders)
        times = None if graph is None else graph.times()
        if times is None:
            explain_deadlock(schedule, profile, limits)
        elif limits is None or _within(schedule, profile, times, limits):
            return times
    return run_events(schedule, profile, limits)[:3]


def run_events(
    schedule: Schedule, profile: CostProfile, limits: tuple[int, ...] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Starts, ends and grants event by event, and the places of grants and ends in the sequence
    of all happenings (what came first at one instant).

    Raises:
        Deadlock: as the engine words it.
    """
    kinds, stages = schedule.table[:, 0], schedule.table[:, 1]
    waiting, needed = schedule.edges
    order = np.argsort(waiting, kind="stable")
    first = np.zeros(len(schedule) + 1, np.int64)
    np.cumsum(np.bincount(waiting, minlength=len(schedule)), out=first[1:])
    keys = link_keys(profile)
    names = sorted(set(keys))
    number = {key: at for at, key in enumerate(names)}
    link_rows = [given_order(schedule, key) or [] for key in names]
    times = events.run_events(
        kinds,
        schedule.devices,
        schedule.offsets,
        profile.durations_ns[kinds, stages],
        profile.allocated_bytes[kinds, stages],
        profile.released_bytes[kinds, stages],
        first,
        needed[order],
        np.array(profile.static_bytes, np.int64),
        np.array(limits or (-1,) * profile.devices, np.int64),
        profile.offload is not None and profile.offload.copy_engines == "shared",
        np.array([number[key] for key in keys], np.int64).reshape(-1, 2),
        len(names),
        np.cumsum([0, *map(len, link_rows)]),
        np.array([row for rows in link_rows for row in rows], np.int64),
        profile.links == "serial",
        profile.latency_ns,
        profile.occupancy_ns,
    )
    if times[1].min() < 0:
        explain_deadlock(schedule, profile, limits)
    return times  # type: ignore[no-any-return]


def _within(
    schedule: Schedule, profile: CostProfile, times: Times, limits: tuple[int, ...]
) -> bool:
    """Whether times taken without the limit surely keep it all the same.

    Not where an offload lasts 0: it may end at the instant of a grant and yet need that grant.
    """
    if (times[1] == times[0])[schedule.table[:, 0] == O].any():
        return False
    trace = Trace(schedule, profile, *times)
    return all(peak <= limit for peak, limit in zip(trace.peak_bytes, limits, strict=True))


def explain_deadlock(
    schedule: Schedule, profile: CostProfile, limits: tuple[int, ...] | None
) -> None:
    """Have the engine say why nothing goes on."""
    from .engine import run_engine

    run_engine(schedule, profile, limits)
    raise OptPipeError(
        "internal error: the replay deadlocks where the engine does not"
    ) from Deadlock()
