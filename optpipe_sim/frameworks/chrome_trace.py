"""A trace for Perfetto (ui.perfetto.dev) and chrome://tracing: Chrome's JSON trace event format.

A process per device with a thread per engine, one slice per op, counters of the bytes held, and
arrows for the messages between devices; pinned host memory is a process of its own per node.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_text
from ..ops import COMPUTE, O, OpKind
from ..trace import Trace
from ..trace.steps import Steps
from ..units import format_size

COMPUTE_THREAD, OFFLOAD_THREAD, RELOAD_THREAD = range(3)
_Event = dict[str, Any]


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """Convert a trace to a mapping in Chrome's trace event format (times in µs, exact to the ns).

    Process d is device d with the threads compute, offload and reload (one thread for both copies
    if the engine is shared). A slice's arguments are op, stage, microbatch, chunk, and how long its
    device waited right before it, by cause. Counters are in bytes.
    """
    events = [*_processes(trace), *_slices(trace), *_counters(trace), *_arrows(trace)]
    shape = trace.schedule.shape
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "schedule": trace.schedule.name,
            "profile": trace.profile.name,
            "devices": shape.devices,
            "chunks": shape.chunks,
            "microbatches": shape.microbatches,
            **trace.measures(),
        },
    }


def save_chrome_trace(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write `chrome_trace` as JSON, whole or not at all."""
    return write_text(path, json.dumps(chrome_trace(trace), separators=(",", ":")) + "\n")


def microseconds(time_ns: int) -> int | float:
    """Convert ns to a number in µs that gives `time_ns` back, whether its thousandfold is rounded
    or truncated."""
    whole, rest = divmod(time_ns, 1000)
    if not rest:
        return whole
    value = time_ns / 1000
    return value if int(value * 1000) == time_ns else math.nextafter(value, math.inf)


def _thread(trace: Trace, kind: OpKind) -> int:
    """Return the thread of an op: engines are threads, and a shared copy engine is one thread."""
    if kind in COMPUTE:
        return COMPUTE_THREAD
    shared = trace.profile.shares_copy_engine
    return OFFLOAD_THREAD if kind is O or shared else RELOAD_THREAD


def _processes(trace: Trace) -> Iterator[_Event]:
    """Names and order of processes and threads."""

    def named(pid: int, name: str, label: str) -> Iterator[_Event]:
        for key, value in (("name", name), ("labels", label)):
            yield {"ph": "M", "pid": pid, "name": f"process_{key}", "args": {key: value}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}

    threads = {COMPUTE_THREAD: "compute"}
    offload = trace.profile.offload
    if trace.offloaded and offload is not None:
        if offload.copy_engines == "shared":
            threads[OFFLOAD_THREAD] = "copies"
        else:
            threads |= {OFFLOAD_THREAD: "offload", RELOAD_THREAD: "reload"}
    for device in range(trace.profile.devices):
        label = f"peak {format_size(trace.peak_bytes[device])}"
        if trace.memory_limit is not None:
            label += f" of {format_size(trace.memory_limit[device])}"
        yield from named(device, f"device {device}", label)
        for tid, name in threads.items():
            key = {"ph": "M", "pid": device, "tid": tid}
            yield {**key, "name": "thread_name", "args": {"name": name}}
            yield {**key, "name": "thread_sort_index", "args": {"sort_index": tid}}
    for node, steps in enumerate(trace.pinned):
        peak = f"peak {format_size(steps.peak)} pinned"
        yield from named(trace.profile.devices + node, f"host of node {node}", peak)


def _slices(trace: Trace) -> Iterator[_Event]:
    """Yield one complete event ("X") per op."""
    shape = trace.schedule.shape
    chunk = shape.chunk_of
    waits: list[dict[str, int | float]] = [{} for _ in trace.spans]
    for cause, waited in trace.waits_ns.items():
        for row in np.flatnonzero(waited).tolist():
            waits[row][cause] = microseconds(int(waited[row]))
    for (op, device, start, end, _), waited_us in zip(trace.spans, waits, strict=True):
        args: dict[str, Any] = {
            "op": str(op),
            "stage": op.stage,
            "microbatch": op.microbatch,
            **({} if op.slice is None else {"slice": op.slice}),
            "chunk": chunk[op.stage],
        }
        level = int(trace.schedule.levels.table[op.stage, shape.unit(op)])
        if level:
            args["recompute"] = trace.schedule.levels.names[level - 1]
        if waited_us:
            args["waited_us"] = waited_us
        yield {
            "ph": "X",
            "pid": device,
            "tid": _thread(trace, op.kind),
            "ts": microseconds(start),
            "dur": microseconds(end - start),
            "name": str(op),
            "cat": op.kind.name,
            "args": args,
        }


def _counters(trace: Trace) -> Iterator[_Event]:
    """Bytes held per device, `static` included, and pinned per node."""

    def counter(pid: int, name: str, steps: Steps) -> Iterator[_Event]:
        for time, held in zip(steps.times_ns.tolist(), steps.bytes.tolist(), strict=True):
            yield {
                "ph": "C",
                "pid": pid,
                "ts": microseconds(time),
                "name": name,
                "args": {"bytes": held},
            }

    for device, steps in enumerate(trace.memory):
        yield from counter(device, "memory held", steps)
    for node, steps in enumerate(trace.pinned):
        yield from counter(trace.profile.devices + node, "pinned host memory", steps)


def _arrows(trace: Trace) -> Iterator[_Event]:
    """Yield a flow from producer to consumer for each message between devices."""
    spans = trace.spans
    messages = trace.messages
    for at, (producer, consumer) in enumerate(
        zip(messages.producer.tolist(), messages.consumer.tolist(), strict=True)
    ):
        key = {"cat": "message", "name": "message", "id": at}
        source, target = spans[producer], spans[consumer]
        # An arrow binds to the slice around its instant; the last ns is still within the producer.
        yield {
            **key,
            "ph": "s",
            "pid": source.device,
            "tid": COMPUTE_THREAD,
            "ts": microseconds(source.end_ns - 1),
        }
        yield {
            **key,
            "ph": "f",
            "bp": "e",
            "pid": target.device,
            "tid": COMPUTE_THREAD,
            "ts": microseconds(target.start_ns),
        }
