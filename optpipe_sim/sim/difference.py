"""How a measured trace differs from the predicted one: by kind of op, and on the critical path."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidSchedule
from ..ops import TRANSFERS, Op, OpKind
from ..trace import Trace
from .interference import Interference, replay_with_interference
from .lower import Lowered


class KindRow(NamedTuple):
    """The ops of one kind and stage: predicted and measured durations.

    `predicted_ns` is a median, too, as some backwards may recompute and others not. `quartile_ns` are the
    lower and the upper quartile of the measured durations. `corrected_ns` is the median of the prediction
    corrected by interference; None if the profile has none.
    """

    kind: OpKind
    stage: int
    ops: int
    predicted_ns: int
    median_ns: float
    quartile_ns: tuple[float, float]
    corrected_ns: int | None = None

    @property
    def ratio(self) -> float:
        """Measured over predicted; 1 where both are 0, infinite where only the latter is."""
        if self.predicted_ns:
            return self.median_ns / self.predicted_ns
        return float("inf") if self.median_ns else 1.0

    @property
    def expected_ratio(self) -> float | None:
        """The ratio that the corrected prediction expects."""
        if self.corrected_ns is None or not self.predicted_ns:
            return None
        return self.corrected_ns / self.predicted_ns


class PathStep(NamedTuple):
    """One op of the measured critical path.

    `longer_ns`: how much longer it took than predicted. `late_ns`: how much later it began than
    the op it waited for allows, predicted P2P latency included; `waited_for` names that op (None for
    the first). `between`: the kind of gap, ``message``, ``copy`` or ``launch``.
    """

    op: Op
    longer_ns: int
    late_ns: int
    waited_for: Op | None
    between: str


@dataclass(frozen=True, eq=False)
class Difference:
    """A measured trace and the predicted one, of the same lowered schedule.

    `corrected`: the prediction with ops slowed down by what runs beside them, where ops did run beside each other
    and the profile has measured that. It stands beside the plain one.
    """

    lowered: Lowered
    predicted: Trace
    measured: Trace
    corrected: Trace | None = None

    @property
    def ratio(self) -> float:
        """Measured makespan over the predicted one."""
        return self.measured.makespan_ns / self.predicted.makespan_ns

    @cached_property
    def kinds(self) -> tuple[KindRow, ...]:
        """One row per kind and stage that occur, by kind, then stage."""
        table = self.measured.schedule.table
        duration_ns = self.measured.end_ns - self.measured.start_ns
        expected = self.predicted.end_ns - self.predicted.start_ns
        slower = None if self.corrected is None else self.corrected.end_ns - self.corrected.start_ns
        rows = []
        for kind, stage in np.unique(table[:, :2], axis=0).tolist():
            here = np.flatnonzero((table[:, 0] == kind) & (table[:, 1] == stage))
            low, middle, high = np.percentile(duration_ns[here], (25, 50, 75)).tolist()
            predicted = round(float(np.median(expected[here])))
            corrected = None if slower is None else round(float(np.median(slower[here])))
            rows.append(
                KindRow(OpKind(kind), stage, len(here), predicted, middle, (low, high), corrected)
            )
        return tuple(rows)

    @cached_property
    def path(self) -> tuple[PathStep, ...]:
        """The measured critical path in time order: from the last end back through the last input of each op."""
        return self._walk[0]

    @property
    def slack_ns(self) -> int:
        """The predicted makespan less the predicted length of that path."""
        return self._walk[1]

    @cached_property
    def causes_ns(self) -> dict[str, int]:
        """The parts of measured minus predicted makespan: per kind of op how much longer those on
        the measured critical path took; how late messages, copies and launches came on it; less
        the slack that the path had. The parts add up to the difference."""
        causes: Counter[str] = Counter()
        for step in self.path:
            causes[step.op.kind.name] += step.longer_ns
            causes[step.between] += step.late_ns
        causes["slack"] = -self.slack_ns
        return {cause: time for cause, time in causes.items() if time}

    @cached_property
    def _walk(self) -> tuple[tuple[PathStep, ...], int]:
        """Return the path and its predicted slack. The walk goes from event to event: the begin (even) or
        the end (odd) of a node of the graph."""
        graph, schedule, times = self.lowered.graph, self.lowered.schedule, self._event_times
        row_of = np.full(len(graph.durations), -1)
        row_of[graph.grant_at] = row_of[graph.op_at] = np.arange(len(schedule))
        steps: list[PathStep] = []
        event, planned = int(times.argmax()) | 1, 0
        row, longer, late = -1, 0, 0  # of the current op
        while True:
            node = event // 2
            if event % 2:
                if row_of[node] >= 0 and node == graph.op_at[row_of[node]]:
                    row = int(row_of[node])
                longer += int(times[event] - times[event - 1] - graph.durations[node])
                planned += int(graph.durations[node])
                event -= 1
                continue
            edges = slice(*graph.first[node : node + 2].tolist())
            came = times[graph.inputs[edges]] + graph.lags[edges]
            best = int(came.argmax()) if len(came) else -1
            late += int(times[event] - (came[best] if len(came) else 0))
            source = int(graph.inputs[edges][best]) if len(came) else -1
            before = int(row_of[source // 2]) if source >= 0 else -1
            if source < 0 or (before >= 0 and before != row):
                steps.append(self._step(row, longer, late, before))
                row, longer, late = before, 0, 0
            if source < 0:
                return tuple(reversed(steps)), self.predicted.makespan_ns - planned
            planned += int(graph.lags[edges][best])
            event = source

    def _step(self, row: int, longer_ns: int, late_ns: int, before: int) -> PathStep:
        schedule = self.lowered.schedule
        op = schedule.op(row)
        if before < 0:
            return PathStep(op, longer_ns, late_ns, None, "launch")
        waited_for = schedule.op(before)
        if schedule.devices[row] != schedule.devices[before]:
            between = "copy" if op.kind in TRANSFERS else "message"
        else:
            between = "copy" if {op.kind, waited_for.kind} & set(TRANSFERS) else "launch"
        return PathStep(op, longer_ns, late_ns, waited_for, between)

    @cached_property
    def _event_times(self) -> np.ndarray:
        """Measured begin and end of every node: ops and grants; messages of serial links,
        which are not measured, follow from their producers and the predicted link."""
        graph, measured = self.lowered.graph, self.measured
        times = np.zeros(2 * len(graph.durations), np.int64)
        times[2 * graph.grant_at] = times[2 * graph.grant_at + 1] = measured.grant_ns
        times[2 * graph.op_at], times[2 * graph.op_at + 1] = measured.start_ns, measured.end_ns
        for node in np.flatnonzero(graph.message).tolist():  # in topological order
            edges = slice(*graph.first[node : node + 2].tolist())
            begin = (times[graph.inputs[edges]] + graph.lags[edges]).max()
            times[2 * node : 2 * node + 2] = begin, begin + graph.durations[node]
        return times

    def measures(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "predicted_makespan_ns": self.predicted.makespan_ns,
            "measured_makespan_ns": self.measured.makespan_ns,
            "ratio": self.ratio,
            "corrected_makespan_ns": None if self.corrected is None else self.corrected.makespan_ns,
            "causes_ns": self.causes_ns,
            "ops": [
                {
                    "kind": row.kind.name,
                    "stage": row.stage,
                    "count": row.ops,
                    "predicted_ns": row.predicted_ns,
                    "median_ns": row.median_ns,
                    "quartiles_ns": list(row.quartile_ns),
                    "ratio": row.ratio if np.isfinite(row.ratio) else None,
                    "expected_ratio": row.expected_ratio,
                }
                for row in self.kinds
            ],
            "critical_path": [
                {
                    "op": str(step.op),
                    "longer_ns": step.longer_ns,
                    "late_ns": step.late_ns,
                    "waited_for": step.waited_for and str(step.waited_for),
                    "between": step.between,
                }
                for step in self.path
            ],
        }


def compare_traces(lowered: Lowered, measured: Trace, *, concurrent: bool = False) -> Difference:
    """Compare a measured trace with the prediction of its lowered schedule.

    Args:
        concurrent: whether copies ran beside real ops: then they slow each other down (`interference`).

    Raises:
        InvalidSchedule: where the trace is of another schedule.
    """
    if measured.schedule.flat_programs != lowered.schedule.flat_programs:
        raise InvalidSchedule("the measured trace is of another schedule than the predicted one")
    found = Interference.of(lowered.profile) if concurrent else None
    corrected = None if found is None else replay_with_interference(lowered, found)
    return Difference(lowered, lowered.replay(), measured, corrected)


def beside_copies(difference: Difference, measured: Trace | None = None) -> dict[str, float]:
    """Median ratio of measured to predicted duration of compute ops: of those that ran beside a copy on their
    device (``beside``) and of the others (``alone``). A group without ops is left out.

    Args:
        measured: another trace of the same schedule, to be used instead.
    """
    trace = measured or difference.measured
    devices, copies = trace.schedule.devices, trace.schedule.is_transfer
    took = trace.end_ns - trace.start_ns
    expected = difference.predicted.end_ns - difference.predicted.start_ns
    ratios: dict[str, list[float]] = {"alone": [], "beside": []}
    for row in np.flatnonzero(~copies & (expected > 0)).tolist():
        there = copies & (devices == devices[row])
        overlap = (trace.start_ns < trace.end_ns[row]) & (trace.end_ns > trace.start_ns[row])
        how = "beside" if (there & overlap).any() else "alone"
        ratios[how].append(float(took[row] / expected[row]))
    return {how: float(np.median(found)) for how, found in ratios.items() if found}
