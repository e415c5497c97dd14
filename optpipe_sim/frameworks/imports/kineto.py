"""Kineto traces (torch.profiler) of a pipeline run, one file per rank: when each op ran.

An op is a range with its name: ``F3.7`` (our runtime, or ``torch.profiler.record_function`` in any
training loop), or ``PP:3F7`` (torch.distributed.pipelining, where I is our B and B our BW). On a
GPU the range on its compute stream is used, which Kineto calls gpu_user_annotation; on a CPU the
range itself. Ranges of torch.distributed.pipelining wait for messages inside, so of these only the
part from the first operator to the last is used.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidSchedule, OptPipeError
from ...files import read_bytes
from ...ops import BW, B, F, Op, OpKind, W, parse_op

MOST_BYTES = 2**31  # of a trace
MOST_US = 2**52  # of a time
_TORCH = re.compile(r"PP:(\d+)([FIWB])(\d+)")
_FROM_TORCH: Mapping[str, OpKind] = {"F": F, "I": B, "W": W, "B": BW}
_MESSAGES = re.compile(r"(gloo|nccl|mpi|c10d)\b|record_param_comms")
_OTHER = re.compile(r"PP:|[CORFBW]+\d+\.\d+$")
_SINGLE = re.compile(r"(Forward|Backward) \d+")
_SEND = re.compile(r"PP:(\d+)SEND_F")
_KINDS = (F, B, W, BW)


@dataclass(frozen=True)
class Range:
    """An op of one rank: when it ran, in ns of the rank's wall clock."""

    op: Op
    start_ns: int
    end_ns: int


@dataclass
class RankTrace:
    """The contents of the file of one rank.

    Attributes:
        rank: the rank; None if the file does not contain it.
        ranges: its ops, by start.
        memory: (ns, bytes) of the device's allocator after each change, by time.
        unread: how many ranges of pipelines have no op here, by kind.
        source: the file.
        world: how many ranks the run had; None if the file does not say it.
        outside: the share of the kernels' time on the compute stream that is in no op.
        sends_from: the last stage whose output torch's pipelining sent; None if it sent none.
    """

    rank: int | None
    ranges: list[Range]
    memory: list[tuple[int, int]]
    unread: Counter[str]
    source: str
    world: int | None = None
    sends_from: int | None = None
    outside: float = 0.0


def read_kineto(path: str | os.PathLike[str]) -> RankTrace:
    """Read the trace of one rank, as JSON or gzipped JSON.

    Raises:
        OptPipeError: if the file is not a trace or contains no op; one line that names it.
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
        raise OptPipeError(f"{path}: no op: {_expected(complete)}")
    if cut := next((one.op for one in ranges if one.op.slice is not None), None):
        raise OptPipeError(f"{path}: {cut}: runs whose sequences are cut into slices are not read")
    info = data.get("distributedInfo")
    rank, world = [
        value if isinstance(info, dict) and isinstance(value := info.get(key), int) else None
        for key in ("rank", "world_size")
    ]
    sends = [found[1] for event in complete if (found := _SEND.match(str(event.get("name"))))]
    return RankTrace(
        rank,
        ranges,
        sorted(_memory(events, base)),
        unread,
        str(path),
        world if world and world > 0 else None,
        max(map(int, sends), default=None),
        _outside(complete, base, ranges),
    )


def _expected(events: list[dict[str, Any]]) -> str:
    """Say what to add to a run whose trace has no op."""
    text = "expected ranges such as F3.7 (torch.profiler.record_function) or PP:3F7 (torch.distributed.pipelining)"
    single = next((e["name"] for e in events if _SINGLE.fullmatch(str(e.get("name")))), None)
    if single is not None:
        text += f"; {single!r}, as ScheduleGPipe has it, does not say the stage"
    return text + (
        "; torch's ScheduleGPipe and Schedule1F1B write none: wrap forward_one_chunk and backward_one_chunk of the"
        " stage in record_function(f'PP:{stage}F{microbatch}') and PP:{stage}B{microbatch}"
    )


def _load(path: str | os.PathLike[str]) -> dict[str, Any]:
    raw = read_bytes(path, MOST_BYTES)
    try:
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        data = json.loads(raw)
    except (ValueError, OSError, EOFError, zlib.error, RecursionError):
        raise OptPipeError(f"{path}: is not JSON, plain or gzipped") from None
    if not isinstance(data, dict):
        raise OptPipeError(f"{path}: expected a mapping with traceEvents")
    return data


def _timed(event: Mapping[str, Any]) -> bool:
    times = event.get("ts"), event.get("dur")
    return all(isinstance(time, int | float) and abs(time) < MOST_US for time in times)


def _ns(event: Mapping[str, Any], base: int) -> tuple[int, int]:
    start = base + round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def _op(name: str) -> Op | None:
    if found := _TORCH.fullmatch(name):
        return Op(_FROM_TORCH[found[2]], int(found[1]), int(found[3]))
    if not re.match(r"[FBWCOR]+\d", name):
        return None
    try:
        op = parse_op(name)
    except InvalidSchedule:
        return None
    return op if op.kind in _KINDS else None


def _ranges(events: list[dict[str, Any]], base: int, unread: Counter[str]) -> Iterator[Range]:
    """Return the ops: those on the device if there are any, else those of the host."""
    by_category: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_category.setdefault(str(event.get("cat")), []).append(event)
    on_device = [e for e in by_category.get("gpu_user_annotation", ()) if _op(str(e.get("name")))]
    marked = by_category.get("user_annotation", [])
    for event in marked:
        name = str(event.get("name"))
        if _OTHER.match(name) and _op(name) is None:
            unread[re.sub(r"\d+", "", name.removeprefix("PP:")).rstrip(".")] += 1
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


def _outside(events: list[dict[str, Any]], base: int, ranges: list[Range]) -> float:
    """Return the share of the kernels' time between the first op and the last that is in none, on the
    stream that has most of it: what autograd launches from a thread of its own is in no range."""
    on_stream: dict[Any, list[tuple[int, int]]] = {}
    for event in events:
        if event.get("cat") == "kernel":
            on_stream.setdefault(event.get("tid"), []).append(_ns(event, base))
    if not on_stream:
        return 0.0
    starts = [one.start_ns for one in ranges]
    inside = total = 0
    for start, end in max(on_stream.values(), key=lambda each: sum(b - a for a, b in each)):
        if starts[0] <= start < ranges[-1].end_ns:
            total += end - start
            if start < ranges[bisect_right(starts, start) - 1].end_ns:
                inside += end - start
    return 1 - inside / total if total else 0.0


class _Operators:
    """Operators by thread without messages: the work of a range of torch's besides waiting."""

    def __init__(self, events: list[dict[str, Any]], base: int) -> None:
        self.by_thread: dict[Any, list[tuple[int, int]]] = {}
        for event in events:
            if not _MESSAGES.match(str(event.get("name"))):
                self.by_thread.setdefault(event.get("tid"), []).append(_ns(event, base))
        for found in self.by_thread.values():
            found.sort()

    def extent(self, thread: Any, start: int, end: int) -> tuple[int, int]:
        """Return the extent from the first operator inside to the end of the last; the range itself
        if there are none."""
        found = self.by_thread.get(thread, [])
        first, last = bisect_left(found, (start, 0)), bisect_right(found, (end, 0))
        if first >= last:
            return start, end
        return found[first][0], min(end, max(stop for _, stop in found[first:last]))


def _memory(events: list[Any], base: int) -> Iterator[tuple[int, int]]:
    """Return total bytes after each change: of the GPU if there is one, else of the CPU."""
    found: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if not isinstance(event, dict) or event.get("name") != "[memory]":
            continue
        facts = event.get("args")
        if isinstance(facts, dict) and isinstance(event.get("ts"), int | float):
            total, device = facts.get("Total Allocated"), facts.get("Device Type", 0)
            if isinstance(total, int) and isinstance(device, int):
                found.setdefault(device, []).append((base + round(event["ts"] * 1000), total))
    yield from found.get(1, found.get(0, []))
