"""A trace as columns of small integers and of texts: what the page's figures draw and say."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ..op_costs import op_costs
from ..ops import BW, B, Op
from ..reasons.explain import Gap, gaps
from ..reasons.reasons import Reason, Reasons, critical_path, last_reason
from ..trace import CAUSES, Trace
from ..trace.steps import Steps
from .layout import COMPUTE, INSIDE, Layout, Place, curve
from .texts import gap_texts, life_texts, memory_texts, op_texts

Columns = dict[str, Any]  # of arrays, and of lists of texts


class TraceColumns:
    """The columns of one trace; times in ns, heights as in `layout`, ops as rows of ``schedule.table``."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.layout = trace, Layout.of(trace)

    @cached_property
    def ops(self) -> Columns:
        """One row per op: its box and the middle height of it, its colour (``look``), the op that it waited for
        (``by``, -1: nothing), where an arrow from that one begins (``since``, ``before``), its activation
        (a place in `lives`), and texts."""
        trace = self.trace
        schedule, shape = trace.schedule, trace.schedule.shape
        kinds, stages, units = schedule.table.T
        top, bottom = self.layout.ops(kinds, schedule.devices)
        start, end, level = trace.start_ns, trace.end_ns, (top + bottom) // 2
        by = np.array([self._row(reason.by) for reason in self.reasons])
        return {
            "start": narrow(start),
            "end": narrow(end),
            "top": narrow(top),
            "bottom": narrow(bottom),
            "level": narrow(level),
            "look": narrow(kinds * shape.chunks + np.array(shape.chunk_of)[stages]),
            "by": narrow(by),
            # a reload's anchor has only begun when the reload does
            "since": narrow(np.where(by < 0, start, np.minimum(end[by], start))),
            "before": narrow(np.where(by < 0, level, level[by])),
            "life": narrow(stages.astype(np.int64) * shape.units + units),
            **op_texts(trace, self.reasons),
        }

    @cached_property
    def lives(self) -> dict[str, list[str]]:
        """Of each activation, stage after stage, what becomes of it."""
        return life_texts(self.trace)

    @cached_property
    def reasons(self) -> list[Reason]:
        """What each op waited for last."""
        reasons = Reasons(self.trace)
        return [last_reason(reasons, op) for ops in self.trace.schedule.programs for op in ops]

    @cached_property
    def idle(self) -> list[Gap]:
        """The idle intervals of all devices, the longest first: the rows of `gaps`."""
        return gaps(self.trace)

    @cached_property
    def gaps(self) -> Columns:
        """One row per idle interval: its box, its device, its cause (a place in `trace.CAUSES`), the op that
        it waits for (-1: none), from when to when both are in sight, and texts."""
        found = self.idle
        devices = np.array([gap.device for gap in found], np.int64)
        top, bottom = self.layout.within(COMPUTE, devices)
        start = np.array([gap.start_ns for gap in found], np.int64)
        end = np.array([gap.end_ns for gap in found], np.int64)
        by = np.array([self._row(gap.by) for gap in found], np.int64)
        return {
            "start": narrow(start),
            "end": narrow(end),
            "top": narrow(top),
            "bottom": narrow(bottom),
            "level": narrow((top + bottom) // 2),
            "device": narrow(devices),
            "cause_at": narrow([CAUSES.index(gap.cause) for gap in found]),
            "by": narrow(by),
            "from": narrow(np.where(by < 0, start, np.minimum(start, self.trace.start_ns[by]))),
            "to": narrow(np.where(by < 0, end, np.maximum(end, self.trace.end_ns[by]))),
            **gap_texts(self.trace, found),
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
        top, bottom = self.layout.within(INSIDE, trace.schedule.devices[rows])
        return {
            "start": narrow(trace.start_ns[rows]),
            "end": narrow(trace.start_ns[rows] + share),
            "top": narrow(top),
            "bottom": narrow(bottom),
        }

    @cached_property
    def messages(self) -> Columns:
        """One row per message between devices: departure, arrival, and the heights of both ops."""
        found, ops = self.trace.messages, self.ops
        return {
            "depart": narrow(found.depart_ns),
            "arrive": narrow(found.arrive_ns),
            "sender": ops["level"][found.producer],
            "receiver": ops["level"][found.consumer],
        }

    def memory(self, steps: Steps, place: Place, scale_bytes: int) -> Columns:
        """The bytes that a device or a host holds, as steps up to the end of the iteration."""
        end = self.trace.makespan_ns
        texts = memory_texts(steps, end)
        return {
            "start": narrow(np.append(steps.times_ns, end)),
            "level": curve(place, np.append(steps.bytes, steps.bytes[-1]), scale_bytes),
            **{name: [*found, found[-1]] for name, found in texts.items()},
        }

    @cached_property
    def critical(self) -> list[int]:
        """The rows of the critical path, the last op first."""
        return list(dict.fromkeys(self._row(step.op) for step in critical_path(self.trace)))

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
