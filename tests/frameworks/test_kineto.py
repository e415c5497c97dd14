"""Kineto traces read back: made from replays, so that every time is known."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Trace, build, simulate
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks.imports.idle import CAUSES, idle_of_run
from optpipe_sim.frameworks.imports.kineto import read_kineto
from optpipe_sim.frameworks.imports.measured import Measured, read_run
from optpipe_sim.ops import BW, COMPUTE, B, F, Op, W
from optpipe_sim.sim.lower import lower

BASE_NS = 1_790_857_026_000_000_000
TORCH = {F: "F", B: "I", W: "W", BW: "B"}


def kineto(
    trace: Trace,
    rank: int,
    *,
    iterations: int = 1,
    shift_ns: int = 0,
    named: Callable[[Op], str] = str,
    category: str = "user_annotation",
    lost: tuple[int, int] = (0, 0),
    **more: Any,
) -> dict[str, Any]:
    """What torch.profiler would write of one rank of a replay; `lost`: ops at both ends that it missed."""
    events = []
    for at in range(iterations):
        for op, device, start, end, _ in trace.spans:
            if device == rank and op.kind in COMPUTE:
                began = start + at * 2 * trace.makespan_ns + 5_000_000 + shift_ns
                event = {"ph": "X", "cat": category, "name": named(op), "pid": 1, "tid": 7}
                events.append({**event, "ts": began / 1000, "dur": (end - start) / 1000})
    events = events[lost[0] : len(events) - lost[1]]
    info = {"rank": rank, "world_size": trace.profile.devices}
    return {
        "traceEvents": events,
        "baseTimeNanoseconds": BASE_NS,
        "distributedInfo": info,
        **more,
    }


def read(folder: Path, traces: list[dict[str, Any]]) -> Measured:
    paths = []
    for at, data in enumerate(traces):
        paths.append(folder / f"trace{at}.json")
        paths[-1].write_text(json.dumps(data))
    return read_run([read_kineto(path) for path in paths])


def profile_of(devices: int, chunks: int = 1) -> CostProfile:
    stages = [
        {
            "t_f_us": 1000 + 37 * at,
            "t_b_us": 1100 + 11 * at,
            "t_w_us": 900 - 13 * at,
            "act_bytes": 0,
        }
        for at in range(devices * chunks)
    ]
    return unit_profile(devices, chunks, stages=stages, t_comm_us=50)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "zb-v", "1f1b-i", "zb-h2"])
@pytest.mark.parametrize("devices", [2, 4])
def test_a_replay_comes_back(tmp_path: Path, name: str, devices: int) -> None:
    profile = profile_of(devices, 2 if name in ("zb-v", "1f1b-i") else 1)
    trace = simulate(build(name, profile, 2 * devices), profile)
    found = read(tmp_path, [kineto(trace, rank) for rank in range(devices)])
    assert found.trace.schedule.shape == trace.schedule.shape
    assert found.trace.schedule.programs == trace.schedule.programs
    assert found.trace.start_ns.tolist() == trace.start_ns.tolist()
    assert found.trace.end_ns.tolist() == trace.end_ns.tolist()
    assert idle_of_run(found.trace) == idle_of_run(trace)
    assert found.replay.makespan_ns == trace.makespan_ns
    assert found.profile.t_comm_ns == 50_000
    assert found.gaps.mean == 0
    shaped = profile.for_shape(trace.schedule.shape)
    for ours, theirs in zip(found.profile.stages, shaped.stages, strict=True):
        assert ours.t_f_ns == theirs.t_f_ns
        assert ours.fused_ns == theirs.fused_ns


def test_files_in_any_order_gzipped_and_with_iterations(tmp_path: Path) -> None:
    profile = profile_of(3)
    trace = simulate(build("1f1b", profile, 5), profile)
    paths = []
    for rank in (2, 0, 1):
        paths.append(tmp_path / f"{rank}.json.gz")
        paths[-1].write_bytes(gzip.compress(json.dumps(kineto(trace, rank, iterations=3)).encode()))
    found = read_run([read_kineto(path) for path in paths])
    assert found.iterations_ns == (trace.makespan_ns,) * 3
    assert found.trace.start_ns.tolist() == trace.start_ns.tolist()
    assert found.replay.makespan_ns == trace.makespan_ns


def test_idle_adds_up_and_tells_waiting_from_transfer(tmp_path: Path) -> None:
    profile = profile_of(4)
    trace = simulate(build("1f1b", profile, 6), profile)
    for device, idle in enumerate(idle_of_run(trace)):
        assert tuple(idle) == CAUSES
        assert sum(idle.values()) == trace.makespan_ns - trace.busy_ns[device]
        theirs = trace.idle_by_device_ns[device]
        assert (idle["waiting"], idle["transfer"]) == (theirs["neighbour"], theirs["communication"])
        assert idle["host"] == 0
    late = 7_000  # between all ops of a rank
    slow = Trace(
        trace.schedule, trace.profile, trace.start_ns + late, trace.end_ns, trace.start_ns + late
    )
    # an op that starts later than it could has the host to blame, or is part of its message
    grown = [sum(idle.values()) for idle in idle_of_run(slow)]
    assert grown == [sum(idle.values()) + 6 * 2 * late for idle in idle_of_run(trace)]
    assert sum(idle["host"] for idle in idle_of_run(slow)) > 0
    found = read(tmp_path, [kineto(slow, rank) for rank in range(4)])
    assert found.gaps.mean == late
    assert found.replay.makespan_ns == pytest.approx(slow.makespan_ns, rel=0.01)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_ops_that_scatter_are_replayed_as_they_were(tmp_path: Path, name: str) -> None:
    """As with more ranks than cores: ops take from 60 to 140 % of their mean, and the host delays them
    seldom but long, so that a median would see nothing of it."""
    profile = profile_of(4)
    schedule = build(name, profile, 8)
    random = np.random.default_rng(7)
    lowered = lower(schedule, profile)
    factor = random.uniform(0.6, 1.4, len(schedule))
    stalls = np.where(random.uniform(size=len(schedule)) < 0.2, 400_000, 0)
    plain = simulate(schedule, profile)
    took = np.round((plain.end_ns - plain.start_ns) * factor).astype(np.int64)
    run = lowered.replay(took + stalls)
    run = replace(run, start_ns=run.start_ns + stalls)  # an op began after its stall
    found = read(tmp_path, [kineto(run, rank) for rank in range(4)])
    assert found.gaps.mean == pytest.approx(80_000, rel=0.3)
    assert found.replay_of_ops.makespan_ns == pytest.approx(run.makespan_ns, rel=0.03)
    assert found.to_json()["replay_of_ops_off"] == pytest.approx(0, abs=0.03)


def test_clocks_are_set_by_the_messages(tmp_path: Path) -> None:
    profile = profile_of(4)
    trace = simulate(build("1f1b", profile, 6), profile)
    skews = (0, 3_000_000, -4_000_000, 10_000_000)
    traces = [kineto(trace, rank, shift_ns=skew) for rank, skew in enumerate(skews)]
    found = read(tmp_path, traces)
    assert found.shifted_ns == (0, -3_000_000, 4_000_000, -10_000_000)
    assert found.trace.start_ns.tolist() == trace.start_ns.tolist()


def test_torchs_own_ranges_and_where_they_wait(tmp_path: Path) -> None:
    """torch waits for messages within its ranges; its operators say when it computed."""
    profile = profile_of(2)
    trace = simulate(build("zb-h1", profile, 4), profile)
    traces = []
    for rank in range(2):
        data = kineto(trace, rank, named=lambda op: f"PP:{op.stage}{TORCH[op.kind]}{op.microbatch}")
        for event in list(data["traceEvents"]):
            data["traceEvents"].append({**event, "cat": "cpu_op", "name": "aten::mm"})
            early = 20.0
            event["ts"] -= early
            event["dur"] += early
        wait = {"ph": "X", "cat": "user_annotation", "name": "PP:0SEND_F1", "tid": 7}
        data["traceEvents"].append({**wait, "ts": 1.0, "dur": 1.0})
        traces.append(data)
    found = read(tmp_path, traces)
    assert found.trace.start_ns.tolist() == trace.start_ns.tolist()
    assert found.trace.schedule.programs == trace.schedule.programs
    assert "SEND_F (2)" in "".join(found.unread)


def test_on_a_gpu_the_device_counts(tmp_path: Path) -> None:
    profile = profile_of(2)
    trace = simulate(build("1f1b", profile, 4), profile)
    traces = []
    for rank in range(2):
        data = kineto(trace, rank, category="gpu_user_annotation")
        host = kineto(trace, rank, shift_ns=-900_000)["traceEvents"]
        traces.append({**data, "traceEvents": [*host, *data["traceEvents"]]})
    found = read(tmp_path, traces)
    assert found.trace.start_ns.tolist() == trace.start_ns.tolist()


def test_memory_is_what_the_allocator_says(tmp_path: Path) -> None:
    profile = profile_of(2)
    trace = simulate(build("zb-h1", profile, 4), profile)
    traces = []
    for rank in range(2):
        data, held = kineto(trace, rank), 5000
        for event in sorted(data["traceEvents"], key=lambda one: one["ts"]):
            held += {"F": 100, "B": -60, "W": -40}[event["name"][0]]
            arguments = {"Total Allocated": held, "Device Type": 0}
            when = event["ts"] + event["dur"] / 2
            data["traceEvents"].append(
                {"ph": "i", "name": "[memory]", "ts": when, "args": arguments}
            )
        start = {"ph": "i", "name": "[memory]", "ts": 0}
        data["traceEvents"].append({**start, "args": {"Total Allocated": 5000, "Device Type": 0}})
        traces.append(data)
    found = read(tmp_path, traces)
    for cost in found.profile.stages:
        assert (cost.act_bytes, cost.w_bytes, cost.static_bytes) == (100, 40, 5000)
    assert found.trace.peak_bytes == (5200, 5140)
    assert not any("memory" in sentence for sentence in found.unread)


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    profile = profile_of(2)
    trace = simulate(build("1f1b", profile, 4), profile)
    one, two = (kineto(trace, rank) for rank in range(2))
    with pytest.raises(OptPipeError, match=r"is of rank 0, as .*trace0.json is"):
        read(tmp_path, [one, one])
    with pytest.raises(OptPipeError, match="stage 0 is in no file, on 1 ranks: is the file of a"):
        read(tmp_path, [two])
    nameless = {**one, "traceEvents": [{**e, "name": "x"} for e in one["traceEvents"]]}
    with pytest.raises(OptPipeError, match=r"trace0.json: no op: expected ranges such as F3.7"):
        read(tmp_path, [nameless, two])
    part = {**one, "traceEvents": one["traceEvents"][:-1]}
    with pytest.raises(OptPipeError, match="do not hold a whole iteration"):
        read(tmp_path, [part, two])
    (tmp_path / "x.json").write_text("[")
    with pytest.raises(OptPipeError, match=r"x\.json: is not JSON"):
        read_kineto(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(OptPipeError, match="traceEvents: missing"):
        read_kineto(tmp_path / "x.json")


# -- recorded otherwise ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "zb-v", "1f1b-i"])
def test_recording_may_begin_and_end_within_an_iteration(tmp_path: Path, name: str) -> None:
    """Whole iterations are found, and the same ones on all ranks, wherever recording began."""
    profile = profile_of(4, 2 if name in ("zb-v", "1f1b-i") else 1)
    trace = simulate(build(name, profile, 8), profile)
    ops = [len(program) for program in trace.schedule.programs]
    for lost in (((3, 0), (0, 0), (0, 0), (0, 0)), ((0, 0), (0, 5), (5, 0), (ops[3], 1)),
                 ((1, 2), (ops[1] + 2, 1), (2, 1), (4, 4))):  # fmt: skip
        parts = [kineto(trace, rank, iterations=5, lost=lost[rank]) for rank in range(4)]
        found = read(tmp_path, parts)
        assert found.iterations_ns == (trace.makespan_ns,) * len(found.iterations_ns)
        assert len(found.iterations_ns) in (2, 3, 4)
        assert found.shifted_ns == (0, 0, 0, 0)
        assert found.trace.schedule.programs == trace.schedule.programs
        assert found.trace.start_ns.tolist() == trace.start_ns.tolist()
        assert any("of iterations that are not whole" in text for text in found.unread)


def test_files_without_ranks_are_ordered_by_their_stages(tmp_path: Path) -> None:
    """As of old versions; a shell puts rank 10 before rank 2."""
    profile = profile_of(3)
    trace = simulate(build("1f1b", profile, 6), profile)
    parts = [kineto(trace, rank, distributedInfo=None) for rank in (2, 0, 1)]
    found = read(tmp_path, parts)
    assert found.trace.start_ns.tolist() == trace.start_ns.tolist()
    assert found.trace.schedule.programs == trace.schedule.programs
    with pytest.raises(
        OptPipeError, match=r"trace1\.json: does not say its rank, as other files do"
    ):
        read(tmp_path, [kineto(trace, 0), kineto(trace, 1, distributedInfo={})])


def test_clocks_and_memory_go_together(tmp_path: Path) -> None:
    profile = profile_of(2)
    trace = simulate(build("1f1b", profile, 4), profile)
    late = 2_000_000
    parts = [kineto(trace, rank, shift_ns=late * rank) for rank in range(2)]
    for data in parts:
        for event in list(data["traceEvents"]):
            arguments = {"Total Allocated": 10**6 * len(data["traceEvents"]), "Device Type": 0}
            change = {"ph": "i", "name": "[memory]", "ts": event["ts"] + 10, "args": arguments}
            data["traceEvents"].append(change)
    found = read(tmp_path, parts)
    assert found.shifted_ns == (0, -late)
    assert [cost.act_bytes for cost in found.profile.stages] == [10**6] * 2


def test_what_a_trace_cannot_say_is_said(tmp_path: Path) -> None:
    profile = profile_of(2)
    trace = simulate(build("1f1b", profile, 4), profile)
    parts = [kineto(trace, rank, category="gpu_user_annotation") for rank in range(2)]
    for data in parts:
        data["distributedInfo"]["world_size"] = 8
        for event in list(data["traceEvents"]):  # backwards of another thread are in no range
            kernel = {**event, "cat": "kernel", "name": "gemm"}
            if event["name"].startswith("B"):
                kernel["ts"] += event["dur"]
            data["traceEvents"].append(kernel)
        other = {
            "ph": "X",
            "cat": "user_annotation",
            "name": "C0.1",
            "tid": 7,
            "ts": 1.0,
            "dur": 1.0,
        }
        data["traceEvents"].append(other)
        data["traceEvents"].append({**other, "name": "F0.0", "dur": float("nan")})
    found = read(tmp_path, parts)
    text = " ".join(found.unread)
    assert "of the kernels' time is in no op's range; run backwards with torch.autograd" in text
    assert "ranks: 6 of the run's 8" in text
    assert "ranges without an op here: C (2)" in text
    slow = kineto(trace, 0)
    for event in slow["traceEvents"]:
        event["dur"] *= 1.5
    text = " ".join(read(tmp_path, [slow, kineto(trace, 1)]).unread)
    assert "overlap: on rank 0 ops run at the same time for" in text


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    profile = profile_of(4)
    trace = simulate(build("1f1b", profile, 8), profile)
    parts = [kineto(trace, rank, iterations=3) for rank in range(4)]
    with pytest.raises(OptPipeError, match="a run of 4 ranks, on 3 ranks: is the file of a rank"):
        read(tmp_path, parts[:3])
    for data in parts[:2]:
        data["distributedInfo"]["world_size"] = 2
    send = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "PP:1SEND_F0",
        "tid": 7,
        "ts": 1.0,
        "dur": 1.0,
    }
    parts[1]["traceEvents"].append(send)
    with pytest.raises(
        OptPipeError, match="stage 1 sends its output to a stage that is in no file"
    ):
        read(tmp_path, parts[:2])
    other = simulate(build("gpipe", profile, 8), profile)
    mixed = [kineto(trace, 0), *(kineto(other, rank) for rank in (1, 2, 3))]
    with pytest.raises(
        OptPipeError, match="ranks 0 and 1: messages arrive before they are sent in bo"
    ):
        read(tmp_path, mixed)
    lost = kineto(trace, 1, iterations=2)
    del lost["traceEvents"][20], lost["traceEvents"][9]
    with pytest.raises(
        OptPipeError, match=r"trace1\.json: its 30 ranges are not iterations of the same 16"
    ):
        read(
            tmp_path,
            [kineto(trace, rank, iterations=2) if rank != 1 else lost for rank in range(4)],
        )
    cut = kineto(trace, 0, named=lambda op: f"{op}/0")
    with pytest.raises(OptPipeError, match=r"F0\.0/0: runs whose sequences are cut into slices"):
        read(tmp_path, [cut])


@pytest.mark.parametrize("name", ["Forward 3", "aten::mm"])
def test_a_trace_of_torchs_single_stage_schedules_says_what_to_add(
    tmp_path: Path, name: str
) -> None:
    """GPipe names the microbatch alone, 1F1B nothing."""
    event = {"ph": "X", "cat": "user_annotation", "name": name, "ts": 1.0, "dur": 2.0}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    with pytest.raises(OptPipeError, match="wrap forward_one_chunk and backward_one_chunk") as told:
        read_kineto(path)
    assert ("'Forward 3', as ScheduleGPipe has it" in str(told.value)) == (name == "Forward 3")
