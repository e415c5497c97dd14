"""A trace as columns of small integers: what the page's figures draw, and what its hovers say."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ..op_costs import op_costs
from ..ops import BW, B, Op, OpKind
from ..reasons.explain import Gap, gaps
from ..reasons.reasons import Reasons, critical_path, last_reason
from ..trace import CAUSES, Trace

# Where a box lies: ``device * ROWS + row``. The first rows are the kinds of ops, by their codes; page.js
# says how high each row is, in a device that is unfolded and in one that is folded.
ROWS = 16
INSIDE, COMPUTE_LANE, OFFLOAD_LANE, RELOAD_LANE, MEMORY_LANE = range(len(OpKind), len(OpKind) + 5)
REASONS = (
    "start",
    "stream",
    "sending",
    "input",
    "neighbour",
    "communication",
    "reload",
    "memory",
    "anchor",
    "engine",
    "link",
)

Columns = dict[str, np.ndarray]


class TraceColumns:
    """The columns of one trace; times in ns, sizes in bytes, ops as rows of ``schedule.table``."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def ops(self) -> Columns:
        """One row per op: its times, its place, its colour (``look``), its stage and microbatch, the
        op that it waited for (``by``, -1: nothing) and how (``reason``, a place in `REASONS`),
        the time its device stood idle before it, the time that nothing explains (``slack``), and the
        row of `sizes` that has its bytes."""
        trace = self.trace
        schedule, shape = trace.schedule, trace.schedule.shape
        kinds, stages, microbatches = schedule.table.T
        reasons = Reasons(trace)
        last = [last_reason(reasons, op) for program in schedule.programs for op in program]
        until = np.array([reason.until_ns for reason in last])
        waited = np.sum(list(trace.waits_ns.values()), axis=0)
        return {
            "start": narrow(trace.start_ns),
            "end": narrow(trace.end_ns),
            "place": narrow(schedule.devices * ROWS + kinds),
            "look": narrow(kinds * shape.chunks + np.array(shape.chunk_of)[stages]),
            "stage": narrow(stages),
            "microbatch": narrow(microbatches),
            "by": narrow([self._row(reason.by) for reason in last]),
            "reason": narrow([REASONS.index(reason.cause) for reason in last]),
            "idle": narrow(waited),
            "slack": narrow(np.maximum(0, trace.start_ns - until)),
            "size": narrow(self._sizes[1]),
        }

    @property
    def sizes(self) -> list[list[int]]:
        """Pairs of bytes: what an op allocates, and what it releases."""
        pairs: list[list[int]] = self._sizes[0].tolist()
        return pairs

    @cached_property
    def _sizes(self) -> tuple[np.ndarray, np.ndarray]:
        costs = op_costs(self.trace.schedule, self.trace.profile)
        pairs = np.stack((costs.allocated_bytes, costs.released_bytes), axis=1)
        unique, which = np.unique(pairs, axis=0, return_inverse=True)
        return unique, which.reshape(-1)

    @cached_property
    def idle(self) -> list[Gap]:
        """The idle intervals of all devices, the longest first: the rows of `gaps`."""
        return gaps(self.trace)

    @cached_property
    def gaps(self) -> Columns:
        """One row per idle interval: its times, its place, its cause (a place in `trace.CAUSES`), the op
        that comes after it and the one it waits for (-1: none)."""
        found = self.idle
        return {
            "start": narrow([gap.start_ns for gap in found]),
            "end": narrow([gap.end_ns for gap in found]),
            "place": narrow([gap.device * ROWS + COMPUTE_LANE for gap in found]),
            "cause": narrow([CAUSES.index(gap.cause) for gap in found]),
            "op": narrow([self._row(gap.op) for gap in found]),
            "by": narrow([self._row(gap.by) for gap in found]),
        }

    @cached_property
    def inside(self) -> Columns:
        """The part of each backward that is a recomputation inside it."""
        trace = self.trace
        kinds, stages, _ = trace.schedule.table.T
        planned = op_costs(trace.schedule, trace.profile).duration_ns
        again = planned - trace.profile.durations_ns[kinds, stages]
        rows = np.flatnonzero(np.isin(kinds, (B, BW)) & (again > 0))
        took = trace.end_ns[rows] - trace.start_ns[rows]
        share = np.rint(took * (again[rows] / planned[rows])).astype(np.int64)
        return {
            "start": narrow(trace.start_ns[rows]),
            "end": narrow(trace.start_ns[rows] + share),
            "place": narrow(trace.schedule.devices[rows] * ROWS + INSIDE),
        }

    @cached_property
    def messages(self) -> Columns:
        """One row per message between devices: departure, arrival, and the places of both ops."""
        found, ops = self.trace.messages, self.ops
        return {
            "depart": narrow(found.depart_ns),
            "arrive": narrow(found.arrive_ns),
            "sender": ops["place"][found.producer],
            "receiver": ops["place"][found.consumer],
        }

    def memory(self, device: int) -> Columns:
        """The bytes that a device holds, as steps up to the end of the iteration."""
        steps, end = self.trace.memory[device], self.trace.makespan_ns
        return {
            "time": narrow(np.append(steps.times_ns, end)),
            "bytes": narrow(np.append(steps.bytes, steps.bytes[-1])),
        }

    @cached_property
    def critical(self) -> list[int]:
        """The rows of the critical path, the last op first."""
        return list(dict.fromkeys(self._row(step.op) for step in critical_path(self.trace)))

    @property
    def levels(self) -> list[int]:
        """By activation (stage after stage), its level of recomputation; 0: kept whole."""
        levels: list[int] = self.trace.schedule.levels.table.ravel().tolist()
        return levels if any(levels) else []

    def _row(self, op: Op | None) -> int:
        return -1 if op is None else self.trace.schedule.row(op)


def narrow(values: Any) -> np.ndarray:
    """Whole numbers in the smallest type that a browser's arrays have and that holds them; those
    beyond 32 bits as floats, which are exact up to 2^53."""
    array = np.asarray(values, np.int64)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for kind in (np.uint8, np.uint16, np.int16, np.uint32, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array.astype(np.float64)
