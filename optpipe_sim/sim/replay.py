"""The fast replay: the times that the engine gives, from arrays and compiled loops."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..errors import Deadlock, OptPipeError
from ..op_costs import edges, op_costs
from ..profile import CostProfile
from ..schedule import Schedule
from . import events
from .event_state import Ops, World
from .graph import build_graph, given_order, shared_links
from .host_links import link_keys

Times = tuple[np.ndarray, np.ndarray, np.ndarray]


def run_replay(
    schedule: Schedule,
    profile: CostProfile,
    limits: tuple[int, ...] | None,
) -> Times:
    """Return starts, ends and grants, equal to those of `engine.run_engine` to the nanosecond.

    Without a limit, and if no link is served first come, first served, they are longest paths; else they are
    computed event by event.

    Raises:
        Deadlock: worded as by the engine.
    """
    if limits is None and shared_links(schedule, profile).keys() <= schedule.link_order.keys():
        orders = {key: given_order(schedule, key) or [] for key in schedule.link_order}
        graph = build_graph(schedule, profile, orders)
        if graph is not None:
            return graph.times()
        raise deadlock(schedule, profile, limits)
    return run_events(schedule, profile, limits)[:3]


def run_events(
    schedule: Schedule,
    profile: CostProfile,
    limits: tuple[int, ...] | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return starts, ends and grants, computed event by event, and the positions of grants and ends in the
    sequence of all events (for the order within one instant).

    Raises:
        Deadlock: worded as by the engine.
    """
    costs = op_costs(schedule, profile)
    waiting, needed = edges(schedule, profile)
    order = np.argsort(waiting, kind="stable")
    first = np.zeros(len(schedule) + 1, np.int64)
    np.cumsum(np.bincount(waiting, minlength=len(schedule)), out=first[1:])
    keys = link_keys(profile)
    names = sorted(set(keys))
    number = {key: at for at, key in enumerate(names)}
    link_rows = [given_order(schedule, key) or [] for key in names]
    times = events.run_events(
        Ops(
            schedule.table[:, 0],
            schedule.devices,
            schedule.offsets,
            *costs,
            schedule.second,
            first,
            needed[order],
        ),
        World(
            np.array(profile.static_bytes, np.int64),
            np.array(limits or (-1,) * profile.devices, np.int64),
            profile.shares_copy_engine,
            np.array([number[key] for key in keys], np.int64).reshape(-1, 2),
            np.cumsum([0, *map(len, link_rows)]),
            np.array([row for rows in link_rows for row in rows], np.int64),
            profile.serial_links,
            profile.latency_ns,
            profile.occupancy_ns,
            profile.sending_ns,
        ),
    )
    if times[1].min() < 0:
        raise deadlock(schedule, profile, limits)
    return times  # type: ignore[no-any-return]


def deadlock(schedule: Schedule, profile: CostProfile, limits: tuple[int, ...] | None) -> Deadlock:
    """Return the error of a replay that cannot continue; the engine says which ops wait, when it is read."""
    return Deadlock(partial(_who_waits, schedule, profile, limits))


def _who_waits(schedule: Schedule, profile: CostProfile, limits: tuple[int, ...] | None) -> str:
    """Return the ops that wait, as the engine names them."""
    try:
        from .simpy_engine import run_engine
    except ModuleNotFoundError as missing:
        return f"deadlock (install {missing.name} to see which ops wait)"
    try:
        run_engine(schedule, profile, limits)
    except Deadlock as stuck:
        return str(stuck)
    raise OptPipeError("internal error: the replay deadlocks where the engine does not")
