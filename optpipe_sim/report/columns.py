"""A trace as columns of small integers and of texts, which the page's figures draw and show."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from bokeh.core.properties import field, value
from bokeh.core.serialization import Serializable, Serializer
from bokeh.models import Dodge, LinearInterpolator
from bokeh.transform import transform

from ..ops import BW, B, Op
from ..reasons.explain import Gap, gaps
from ..reasons.reasons import Reason, Reasons, critical_path, last_reason
from ..trace import CAUSES, Trace
from ..trace.boxes import heights
from ..trace.steps import Steps
from .lane_layout import COMPUTE, INSIDE, ROWS, LaneLayout, Place, curve
from .texts import gap_texts, life_texts, memory_texts, op_texts

LETTER, BESIDE = 6.2, 3  # pixels of a name: of each letter, and beside them
SHOWN = 4  # times the length of what a click on idle time leads to is in sight
Columns = dict[str, Any]  # of arrays, and of lists of texts


class TraceColumns:
    """The columns of one trace; times in ns, heights as in `lane_layout`, ops as rows of ``schedule.table``."""

    def __init__(self, trace: Trace, moves: bool = False) -> None:
        """The columns of a trace; `moves`: its times may be shifted (by `shift`)."""
        self.trace, self.layout, self.moves = trace, LaneLayout.of(trace), moves
        self.shift = Dodge(value=0)

    def moved(self, name: str) -> Any:
        """Return a column of times, for a glyph."""
        return transform(name, self.shift) if self.moves else field(name)

    def at(self, time_ns: int) -> Any:
        """Return one time, for a glyph."""
        return value(time_ns, transform=self.shift) if self.moves else value(time_ns)

    @cached_property
    def ops(self) -> Columns:
        """One row per op: its box and the middle height of it, its colour (``look``), the op that it waited for
        (``by``, -1: nothing), where an arrow from that one begins (``since``, ``before``), its activation
        (a place in `lives`), and texts."""
        trace = self.trace
        schedule, shape = trace.schedule, trace.schedule.shape
        kinds, stages, units = schedule.table.T
        above = schedule.devices * self.layout.height
        top, bottom = (above + edge for edge in heights(schedule, ROWS, COMPUTE))
        start, end, level = trace.start_ns, trace.end_ns, (top + bottom) // 2
        by = np.array([self._row(reason.by) for reason in self.reasons])
        texts = op_texts(trace, self.reasons)
        return {
            "start": whole(start),
            "end": whole(end),
            "top": whole(top),
            "bottom": whole(bottom),
            "level": whole(level),
            "room": _room(texts["name"], np.where(schedule.is_transfer, 0, end - start)),
            "look": whole(kinds * shape.chunks + np.array(shape.chunk_of)[stages]),
            "by": whole(by),
            # a reload's anchor has only begun when the reload does
            "since": whole(np.where(by < 0, start, np.minimum(end[by], start))),
            "before": whole(np.where(by < 0, level, level[by])),
            "life": whole(stages.astype(np.int64) * shape.units + units),
            **texts,
        }

    @cached_property
    def lives(self) -> dict[str, list[str]]:
        """What becomes of each activation, by stage, in texts."""
        return life_texts(self.trace)

    @cached_property
    def reasons(self) -> list[Reason]:
        """What each op waited for last."""
        reasons = Reasons(self.trace)
        return [last_reason(reasons, op) for ops in self.trace.schedule.flat_programs for op in ops]

    @cached_property
    def idle(self) -> list[Gap]:
        """The idle intervals of all devices, the longest first: the rows of `gaps`."""
        return gaps(self.trace)

    @cached_property
    def gaps(self) -> Columns:
        """One row per idle interval: its box, its device, its cause (an index of `trace.CAUSES`), the op that the
        device waits for (-1: none), the part of the time axis that shows both, and texts."""
        found = self.idle
        devices = np.array([gap.device for gap in found], np.int64)
        top, bottom = self.layout.within(COMPUTE, devices)
        start = np.array([gap.start_ns for gap in found], np.int64)
        end = np.array([gap.end_ns for gap in found], np.int64)
        by = np.array([self._row(gap.by) for gap in found], np.int64)
        first = np.where(by < 0, start, np.minimum(start, self.trace.start_ns[by]))
        last = np.where(by < 0, end, np.maximum(end, self.trace.end_ns[by]))
        first, last = _around(first, last, self.trace.makespan_ns)
        texts = gap_texts(self.trace, found)
        return {
            "start": whole(start),
            "end": whole(end),
            "top": whole(top),
            "bottom": whole(bottom),
            "level": whole((top + bottom) // 2),
            "device": whole(devices),
            "cause_at": whole([CAUSES.index(gap.cause) for gap in found]),
            "by": whole(by),
            "room": _room(texts["name"], end - start),
            "from": whole(first),
            "to": whole(last),
            **texts,
        }

    @cached_property
    def inside(self) -> Columns:
        """The part of each backward in which it recomputes."""
        trace = self.trace
        took = trace.recomputing_ns
        rows = np.flatnonzero(np.isin(trace.schedule.table[:, 0], (B, BW)) & (took > 0))
        top, bottom = self.layout.within(INSIDE, trace.schedule.devices[rows])
        return {
            "start": whole(trace.start_ns[rows]),
            "end": whole(trace.start_ns[rows] + took[rows]),
            "top": whole(top),
            "bottom": whole(bottom),
        }

    @cached_property
    def messages(self) -> Columns:
        """One row per message between devices: departure, arrival, and the heights of both ops."""
        found, ops = self.trace.messages, self.ops
        return {
            "depart": whole(found.depart_ns),
            "arrive": whole(found.arrive_ns),
            "sender": ops["level"][found.producer],
            "receiver": ops["level"][found.consumer],
        }

    def memory(self, steps: Steps, place: Place, scale_bytes: int) -> Columns:
        """Return the bytes that a device or a host holds, as steps up to the end of the iteration."""
        texts = memory_texts(steps, self.trace.makespan_ns)
        drawn = steps.until(self.trace.makespan_ns)
        return {
            "start": whole(drawn.times_ns),
            "level": curve(place, drawn.bytes, scale_bytes),
            **{name: [*found, found[-1]] for name, found in texts.items()},
        }

    @cached_property
    def critical(self) -> list[int]:
        """The rows of the critical path, from the last op to the first."""
        return list(dict.fromkeys(self._row(step.op) for step in critical_path(self.trace)))

    def _row(self, op: Op | None) -> int:
        return -1 if op is None else self.trace.schedule.row(op)


class Drawing(NamedTuple):
    """A figure of lanes while it is drawn; `places`: where heights of the layout are, now that some devices are
    folded."""

    plot: Any
    columns: TraceColumns
    places: LinearInterpolator

    def height(self, name: str) -> Any:
        """Return a column of heights, for a glyph."""
        return transform(name, self.places)

    def whole(self) -> dict[str, Any]:
        """Return the beginning and the end of the iteration, for a glyph."""
        end = self.columns.trace.makespan_ns
        return {"start": self.columns.at(0), "end": self.columns.at(end)}


def _around(first: np.ndarray, last: np.ndarray, end_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return intervals of the time axis, each widened by its own length on both sides, within the axis and a little
    more."""
    room = np.maximum(SHOWN * (last - first), end_ns // 200)
    start = np.maximum(-end_ns // 50, (first + last - room) // 2)
    return start, np.minimum(end_ns + end_ns // 50, start + room)


def _room(names: list[str], took_ns: np.ndarray) -> np.ndarray:
    """Return, by box, the largest number of ns per pixel at which its name fits into it."""
    needed = LETTER * np.array([len(name) for name in names], np.float64) + BESIDE
    return (took_ns / needed).astype(np.float32)


class Whole(np.ndarray, Serializable):  # type: ignore[misc]  # Bokeh has no types
    """Whole numbers, which a page holds as steps, from 0 to the first and from each to the next: times, rows and
    heights go up by the same few steps over and over, which compress to a tenth of the numbers."""

    def to_serializable(self, serializer: Serializer) -> Any:
        """Return what page.js adds up again."""
        return {"type": "steps", "steps": np.diff(self, prepend=0).tolist()}


def whole(values: Any) -> np.ndarray:
    """Return a column of whole numbers, up to 2^53, which a browser's numbers hold exactly."""
    return np.asarray(values, np.int64).view(Whole)
