"""The fast replay: the times that the engine gives, from arrays and compiled loops."""

from __future__ import annotations

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
    explain: bool = True,
) -> Times:
    """Return starts, ends and grants, equal to those of `engine.run_engine` to the nanosecond.

    Without a limit, and if no link is served first come, first served, they are longest paths; else they are
    computed event by event.

    Raises:
        Deadlock: worded as by the engine; without `explain`, which takes longer than the replay, it
            names no ops.
    """
    if limits is None and shared_links(schedule, profile).keys() <= schedule.link_order.keys():
        orders = {key: given_order(schedule, key) or [] for key in schedule.link_order}
        graph = build_graph(schedule, profile, orders)
        if graph is not None:
            return graph.times()
        explain_deadlock(schedule, profile, limits, explain)
    return run_events(schedule, profile, limits, explain)[:3]


def run_events(
    schedule: Schedule,
    profile: CostProfile,
    limits: tuple[int, ...] | None,
    explain: bool = True,
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
        explain_deadlock(schedule, profile, limits, explain)
    return times  # type: ignore[no-any-return]


def explain_deadlock(
    schedule: Schedule,
    profile: CostProfile,
    limits: tuple[int, ...] | None,
    explain: bool = True,
) -> None:
    """Raise the deadlock; with `explain` the engine names the ops that wait."""
    if not explain:
        raise Deadlock("deadlock")
    try:
        from .simpy_engine import run_engine
    except ModuleNotFoundError as missing:
        raise Deadlock(f"deadlock (install {missing.name} to see which ops wait)") from None
    run_engine(schedule, profile, limits)
    raise OptPipeError(
        "internal error: the replay deadlocks where the engine does not"
    ) from Deadlock()
