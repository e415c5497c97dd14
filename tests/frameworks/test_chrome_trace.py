"""Perfetto traces say what the trace says."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from export_cases import offloading
from hypothesis import given
from hypothesis import strategies as st
from unit_profiles import unit_profile

from optpipe_sim import Trace, build, simulate
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks.chrome_trace import chrome_trace, microseconds, save_chrome_trace


def events(trace: Trace, phase: str) -> list[dict[str, Any]]:
    data = json.loads(json.dumps(chrome_trace(trace)))
    return [event for event in data["traceEvents"] if event["ph"] == phase]


def ns(time_us: float) -> int:
    """Nanoseconds as a reader gets them that cuts off; one that rounds must agree."""
    assert int(time_us * 1000) == round(time_us * 1000)
    return int(time_us * 1000)


@given(st.integers(0, 2**50))
def test_microseconds_give_every_nanosecond_back(time_ns: int) -> None:
    assert ns(json.loads(json.dumps(microseconds(time_ns)))) == time_ns


def test_slices_are_the_spans() -> None:
    trace = offloading()
    threads = {"compute": 0, "offload": 1, "reload": 2}
    engine = {"O": "offload", "R": "reload"}
    expected = [
        (str(s.op), s.device, threads[engine.get(s.op.kind.name, "compute")], s.start_ns, s.end_ns)
        for s in trace.spans
    ]
    slices = events(trace, "X")
    assert [
        (e["name"], e["pid"], e["tid"], ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in slices
    ] == expected
    by_name = {event["name"]: event for event in slices}
    assert (
        by_name["F2.1"]["args"].items()
        >= {
            "op": "F2.1",
            "stage": 2,
            "microbatch": 1,
            "chunk": 1,
        }.items()
    )


@pytest.mark.parametrize("engines", ["separate", "shared"])
def test_slices_of_a_thread_never_overlap(engines: str) -> None:
    trace = offloading(copy_engines=engines)
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events(trace, "X"):
        begin = ns(event["ts"])
        lanes[event["pid"], event["tid"]].append((begin, begin + ns(event["dur"])))
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events(trace, "M")
        if event["name"] == "thread_name"
    }
    assert set(lanes) <= set(names)
    copies = ["copies"] if engines == "shared" else ["offload", "reload"]
    assert [names[0, tid] for tid in range(len(copies) + 1)] == ["compute", *copies]
    for slices in lanes.values():
        slices.sort()
        for (_, end), (begin, _) in pairwise(slices):
            assert end <= begin


def test_counters_are_the_memory() -> None:
    trace = offloading()
    held: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for event in events(trace, "C"):
        held[event["pid"], event["name"]].append((ns(event["ts"]), event["args"]["bytes"]))
    for device, steps in enumerate(trace.memory):
        counter = held[device, "memory held"]
        assert counter == list(zip(steps.times_ns.tolist(), steps.bytes.tolist(), strict=True))
        assert max(value for _, value in counter) == trace.peak_bytes[device]
    host = held[trace.profile.devices, "pinned host memory"]
    assert max(value for _, value in host) == trace.host_peak_bytes == 100


def test_waits_name_their_cause() -> None:
    trace = offloading()
    waited: dict[str, int] = defaultdict(int)
    for event in events(trace, "X"):
        for cause, time in event["args"].get("waited_us", {}).items():
            waited[cause] += ns(time)
    idle = {cause: time for cause, time in trace.idle_ns.items() if time and cause != "drain"}
    assert waited == idle
    assert idle["memory"] > 0


def test_arrows_join_producers_and_consumers() -> None:
    trace = offloading()
    starts, ends = ({e["id"]: e for e in events(trace, phase)} for phase in "sf")
    assert set(starts) == set(ends) == set(range(len(trace.messages.producer)))
    assert len(starts) == 12  # 3 hops forward and 3 back, of 2 microbatches
    slices = events(trace, "X")

    def enclosing(event: dict[str, Any]) -> str:
        (found,) = [
            e["name"]
            for e in slices
            if (e["pid"], e["tid"]) == (event["pid"], event["tid"])
            and ns(e["ts"]) <= ns(event["ts"]) < ns(e["ts"]) + ns(e["dur"])
        ]
        return found

    for at, (producer, consumer) in enumerate(
        zip(trace.messages.producer, trace.messages.consumer, strict=True)
    ):
        assert enclosing(starts[at]) == str(trace.schedule.op(producer))
        assert enclosing(ends[at]) == str(trace.schedule.op(consumer))
        assert ends[at]["bp"] == "e"


def test_processes_are_devices_in_order() -> None:
    trace = offloading()
    names = {e["pid"]: e["args"]["name"] for e in events(trace, "M") if e["name"] == "process_name"}
    assert names == {0: "device 0", 1: "device 1", 2: "host of node 0"}
    plain = simulate(build("1f1b", unit_profile(4), 4), unit_profile(4))
    assert {e["tid"] for e in events(plain, "X")} == {0}
    assert {e["pid"] for e in events(plain, "C")} == set(range(4))


def test_saved_trace_is_the_trace(tmp_path: Path) -> None:
    trace = offloading()
    path = save_chrome_trace(trace, tmp_path / "trace.json")
    data = json.loads(path.read_text())
    assert data == json.loads(json.dumps(chrome_trace(trace)))
    assert data["otherData"]["schedule"] == "odd"
    assert data["otherData"]["makespan_ns"] == trace.makespan_ns
    with pytest.raises(OptPipeError, match="cannot be written"):
        save_chrome_trace(trace, path / "below" / "a" / "file.json")


def test_waits_add_up_to_the_idle_time() -> None:
    """`Trace.waits_ns`, which the slices show, is all the idle time but the drain."""
    trace = offloading()
    for device, rows in enumerate(trace.compute_rows):
        waited = sum(int(wait[rows].sum()) for wait in trace.waits_ns.values())
        idle = trace.makespan_ns - trace.busy_ns[device]
        assert waited + trace.idle_by_device_ns[device]["drain"] == idle
