"""A schedule as a graph whose longest paths are its times.

Exact where no decision depends on times: no memory limit binds, and every shared link has a given order.
`lower` brings every other case into this form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..op_costs import edges, op_costs
from ..ops import O, R
from ..profile import CostProfile
from ..schedule import Schedule
from . import paths
from .host_links import link_keys


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in topological order: the ops, the grants of R's, the messages on serial links.

    Attributes:
        first, inputs, lags: incoming edges, see `paths.sort_graph`.
        durations: (nodes,) ns.
        op_at, grant_at: (ops,) where the op of each row, and its grant, stand in that order.
        row_of: (nodes,) the row of the op, -1 for other nodes.
        message: (nodes,) True for messages.
    """

    first: np.ndarray
    inputs: np.ndarray
    lags: np.ndarray
    durations: np.ndarray
    op_at: np.ndarray
    grant_at: np.ndarray
    row_of: np.ndarray
    message: np.ndarray

    def times(
        self, durations: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return starts, ends and grants per row, for these durations of the nodes (default: the costs)."""
        times = np.empty(2 * len(self.durations), np.int64)
        durations = self.durations if durations is None else durations
        paths.longest_path(self.first, self.inputs, self.lags, durations, times)
        at = 2 * self.op_at
        return times[at], times[at + 1], times[2 * self.grant_at]


def build_graph(
    schedule: Schedule,
    profile: CostProfile,
    link_order: Mapping[str, Sequence[int]],
    waits: tuple[np.ndarray, np.ndarray] | None = None,
) -> Graph | None:
    """Build the graph of a schedule; None if it has a cycle (a deadlock).

    Args:
        link_order: rows of transfers per link key, for the links that several queues share.
        waits: rows whose grant waits, and rows whose end they wait for.
    """
    kinds = schedule.table[:, 0]
    size = len(kinds)
    costs = op_costs(schedule, profile)
    waiting, needed = edges(schedule, profile)
    across = schedule.devices[waiting] != schedule.devices[needed]
    sending = np.zeros(size, np.int64)
    sending[needed[across]] = profile.sending_ns
    # a pair is the node of its F; the backward's message leaves when the F's has been sent
    later = np.where(schedule.second, np.roll(sending, 1), 0)
    sending[:-1] += np.where(schedule.second, sending, 0)[1:]
    one = np.arange(size) - schedule.second
    source, at_end, target, lag, reloads = paths.program_edges(
        np.where(schedule.second, -1, kinds),
        costs.asks,
        sending,
        schedule.offsets,
        profile.shares_copy_engine,
    )
    grant_node = one.copy()
    grant_node[kinds == R] = size + np.arange(reloads)
    sources, ends, targets = [source], [at_end], [target]
    lags = [lag]

    def add(source: np.ndarray, target: np.ndarray, lag: int | np.ndarray = 0) -> None:
        sources.append(source)
        ends.append(np.ones(len(source), np.int64))
        targets.append(target)
        lags.append(np.full(len(source), lag, np.int64))

    # on one compute stream the program order implies edges that point forwards
    implied = ~across & (needed < waiting) & (kinds[needed] < O) & (kinds[waiting] < O)
    add(one[needed[~across & ~implied]], waiting[~across & ~implied])
    for rows in link_order.values():
        add(np.asarray(rows[:-1], np.int64), np.asarray(rows[1:], np.int64))
    if waits is not None:
        add(one[waits[1]], grant_node[waits[0]])
    waiting, needed = waiting[across], needed[across]
    messages = 0
    if profile.serial_links:
        messages = len(needed)
        pair = schedule.devices[needed] * profile.devices + schedule.devices[waiting]
        order = np.lexsort((needed, pair))
        node = size + reloads + np.arange(messages)
        follows = pair[order][1:] == pair[order][:-1]
        add(one[needed[order]], node)
        add(node[:-1][follows], node[1:][follows])
        add(node, waiting[order], profile.latency_ns)
    else:
        add(one[needed], waiting, profile.t_comm_ns + later[needed])
    durations = np.zeros(size + reloads + messages, np.int64)
    durations[:size] = np.where(schedule.second, 0, costs.duration_ns)
    durations[size + reloads :] = profile.occupancy_ns
    parts = (np.concatenate(part) for part in (sources, ends, targets, lags))
    order, first, inputs, lag = paths.sort_graph(len(durations), *parts)
    if len(order) < len(durations):
        return None
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return Graph(
        first,
        inputs,
        lag,
        durations[order],
        position[one],
        position[grant_node],
        np.where(order < size, order, -1),
        order >= size + reloads,
    )


def shared_links(schedule: Schedule, profile: CostProfile) -> dict[str, list[int]]:
    """Return, per link key, the rows of the transfers on it, for the links that several queues share."""
    kinds = schedule.table[:, 0]
    rows = np.flatnonzero((kinds == O) | (kinds == R))
    if not len(rows):
        return {}
    keys = link_keys(profile)
    reload = kinds[rows] == R
    way = 2 * schedule.devices[rows] + reload
    queue = 2 * schedule.devices[rows] if profile.shares_copy_engine else way
    number = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    link = np.array([number[key] for key in keys])[way]
    found = {}
    for key, at in number.items():
        here = link == at
        used = queue[here]
        if len(used) and (used != used[0]).any():
            found[key] = rows[here].tolist()
    return found


def given_order(schedule: Schedule, key: str) -> list[int] | None:
    """Return the rows of a link in the order that the schedule gives for it, or None."""
    ops = schedule.link_order.get(key)
    return None if ops is None else [schedule.row(op) for op in ops]
