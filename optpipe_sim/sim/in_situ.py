"""Durations measured in a run, with the delay of each op after its inputs, and a replay with these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..ops import Op
from ..trace import Trace
from .lower import Lowered


@dataclass(frozen=True, eq=False)
class InSitu:
    """Measured times of every node of a lowered schedule's graph (ops, grants, messages), in ns.

    Attributes:
        durations: how long it took. gaps: how much later it began than what it waited for allows.
    """

    durations: np.ndarray
    gaps: np.ndarray


def in_situ(lowered: Lowered, measured: Trace, arrive_ns: Mapping[Op, int]) -> InSitu:
    """Return durations and gaps of a run in which each rank ran alone.

    Args:
        arrive_ns: by op, when its message (or turn on a host link) arrived at other ranks, where ops waited
        for it.
    """
    graph, schedule = lowered.graph, lowered.schedule
    nodes = len(graph.durations)
    row = _rows(lowered)
    device = np.where(graph.message, -1, schedule.devices[row])
    times = np.zeros((nodes, 2), np.int64)
    times[graph.grant_at] = measured.grant_ns[:, None]
    times[graph.op_at, 0], times[graph.op_at, 1] = measured.start_ns, measured.end_ns
    target = np.repeat(np.arange(nodes), np.diff(graph.first))
    source = graph.inputs // 2
    came = times.ravel()[graph.inputs] + graph.lags
    let_in = np.array([arrive_ns.get(schedule.op(at), 0) for at in range(len(schedule))], np.int64)
    across = device[source] != device[target]
    came[across] = let_in[row[source[across]]]
    ready = np.zeros(nodes, np.int64)
    np.maximum.at(ready, target, came)
    durations = np.where(graph.message, graph.durations, times[:, 1] - times[:, 0])
    gaps = np.where(graph.message, 0, np.maximum(0, times[:, 0] - ready))
    return InSitu(durations, gaps)


def median_of(runs: Sequence[InSitu]) -> InSitu:
    """Return the medians, node by node."""
    return InSitu(
        np.round(np.median([run.durations for run in runs], 0)).astype(np.int64),
        np.round(np.median([run.gaps for run in runs], 0)).astype(np.int64),
    )


def compose(lowered: Lowered, found: InSitu) -> Trace:
    """Compose the trace of all ranks together from these durations and gaps."""
    graph = lowered.graph
    counts = np.diff(graph.first)
    # a node without inputs starts after its gap
    durations = found.durations + np.where(counts == 0, found.gaps, 0)
    lags = graph.lags + np.repeat(found.gaps, counts)
    times = replace(graph, lags=lags).times(durations)
    return Trace(lowered.schedule, lowered.profile, *times, memory_limit=lowered.memory_limit)


def _rows(lowered: Lowered) -> np.ndarray:
    """Return (nodes,) the row of each node's op: of a grant its R, of a message its sender."""
    graph = lowered.graph
    row = graph.row_of.copy()
    row[graph.grant_at] = np.arange(len(lowered.schedule))
    for node in np.flatnonzero(graph.message).tolist():  # in topological order
        inputs = graph.inputs[slice(*graph.first[node : node + 2].tolist())] // 2
        row[node] = next(row[at] for at in inputs.tolist() if not graph.message[at])
    return row
