"""Kineto traces (torch.profiler) of a pipeline run, one file per rank: which op ran when.

An op is a range of its own name: ``F3.7`` (our runtime, or ``torch.profiler.record_function`` in anyone's
loop), or ``PP:3F7`` (torch.distributed.pipelining, where I is our B and B our BW). On a GPU the range on
its compute stream counts, which Kineto calls gpu_user_annotation; on a CPU the range itself, and of
torch's, which wait for messages within their ranges, the part from their first operator to their last.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidSchedule, OptPipeError
from ...files import read_bytes
from ...ops import BW, B, F, Op, OpKind, W, parse_op

MOST_BYTES = 2**31  # of a trace
_TORCH = re.compile(r"PP:(\d+)([FIWB])(\d+)")
_FROM_TORCH: Mapping[str, OpKind] = {"F": F, "I": B, "W": W, "B": BW}
_MESSAGES = re.compile(r"(gloo|nccl|mpi|c10d)\b|record_param_comms")
_OTHER = re.compile(r"PP:")


@dataclass(frozen=True)
class Range:
    """An op of one rank: when it ran, in ns of the rank's wall clock."""

    op: Op
    start_ns: int
    end_ns: int


@dataclass
class RankTrace:
    """What the file of one rank says.

    Attributes:
        rank: which one; None where the file does not say.
        ranges: its ops, by start.
        memory: (ns, bytes) of the device's allocator after each change, by time.
        unread: how many ranges of torch's pipelining there are that are no op here, by kind.
        source: the file.
    """

    rank: int | None
    ranges: list[Range]
    memory: list[tuple[int, int]]
    unread: Counter[str]
    source: str


def read_kineto(path: str | os.PathLike[str]) -> RankTrace:
    """The trace of one rank, as JSON or gzipped JSON.

    Raises:
        OptPipeError: one line that names the file: no trace, or no op in it.
    """
    data = _load(path)
    events = data.get("traceEvents")
    if not isinstance(events, list):
        raise OptPipeError(f"{path}: traceEvents: missing; expected a trace of torch.profiler")
    base = data.get("baseTimeNanoseconds", 0)
    base = base if isinstance(base, int) else 0
    complete = [e for e in events if isinstance(e, dict) and e.get("ph") == "X" and _timed(e)]
    unread: Counter[str] = Counter()
    ranges = sorted(_ranges(complete, base, unread), key=lambda one: one.start_ns)
    if not ranges:
        raise OptPipeError(
            f"{path}: no op: expected ranges such as F3.7 (torch.profiler.record_function) or PP:3F7"
            " (torch.distributed.pipelining)"
        )
    info = data.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return RankTrace(
        rank if isinstance(rank, int) else None,
        ranges,
        sorted(_memory(events, base)),
        unread,
        str(path),
    )


def _load(path: str | os.PathLike[str]) -> dict[str, Any]:
    raw = read_bytes(path, MOST_BYTES)
    try:
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        data = json.loads(raw)
    except (ValueError, OSError, EOFError, zlib.error, RecursionError):
        raise OptPipeError(f"{path}: is no JSON, plain or gzipped") from None
    if not isinstance(data, dict):
        raise OptPipeError(f"{path}: expected a mapping with traceEvents")
    return data


def _timed(event: Mapping[str, Any]) -> bool:
    return isinstance(event.get("ts"), int | float) and isinstance(event.get("dur"), int | float)


def _ns(event: Mapping[str, Any], base: int) -> tuple[int, int]:
    start = base + round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def _op(name: str) -> Op | None:
    if found := _TORCH.fullmatch(name):
        return Op(_FROM_TORCH[found[2]], int(found[1]), int(found[3]))
    if not re.match(r"[FBWCOR]+\d", name):
        return None
    try:
        return parse_op(name)
    except InvalidSchedule:
        return None


def _ranges(events: list[dict[str, Any]], base: int, unread: Counter[str]) -> Iterator[Range]:
    """The ops: those on the device where there are any, else those of the host."""
    by_category: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_category.setdefault(str(event.get("cat")), []).append(event)
    on_device = [e for e in by_category.get("gpu_user_annotation", ()) if _op(str(e.get("name")))]
    marked = by_category.get("user_annotation", [])
    for event in marked:
        name = str(event.get("name"))
        if _OTHER.match(name) and _op(name) is None:
            unread[re.sub(r"\d+", "", name.removeprefix("PP:"))] += 1
    if on_device:
        streams = Counter(e.get("tid") for e in on_device)
        compute = streams.most_common(1)[0][0]
        chosen, operators = [e for e in on_device if e.get("tid") == compute], []
    else:
        chosen, operators = marked, by_category.get("cpu_op", [])
    inside = _Operators(operators, base)
    for event in chosen:
        op = _op(str(event.get("name")))
        if op is None:
            continue
        start, end = _ns(event, base)
        if operators and str(event["name"]).startswith("PP:"):
            start, end = inside.extent(event.get("tid"), start, end)
        yield Range(op, start, end)


class _Operators:
    """Operators by thread, messages left out: what a range of torch's does besides waiting."""

    def __init__(self, events: list[dict[str, Any]], base: int) -> None:
        self.by_thread: dict[Any, list[tuple[int, int]]] = {}
        for event in events:
            if not _MESSAGES.match(str(event.get("name"))):
                self.by_thread.setdefault(event.get("tid"), []).append(_ns(event, base))
        for found in self.by_thread.values():
            found.sort()

    def extent(self, thread: Any, start: int, end: int) -> tuple[int, int]:
        """From the first operator within to the end of the last; the range itself without any."""
        from bisect import bisect_left, bisect_right

        found = self.by_thread.get(thread, [])
        first, last = bisect_left(found, (start, 0)), bisect_right(found, (end, 0))
        if first >= last:
            return start, end
        return found[first][0], min(end, max(stop for _, stop in found[first:last]))


def _memory(events: list[Any], base: int) -> Iterator[tuple[int, int]]:
    """Total bytes after each change: of the GPU where there is one, else of the CPU."""
    found: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if not isinstance(event, dict) or event.get("name") != "[memory]":
            continue
        told = event.get("args")
        if isinstance(told, dict) and isinstance(event.get("ts"), int | float):
            total, device = told.get("Total Allocated"), told.get("Device Type", 0)
            if isinstance(total, int) and isinstance(device, int):
                found.setdefault(device, []).append((base + round(event["ts"] * 1000), total))
    yield from found.get(1, found.get(0, []))
