"""Reasons: worked by hand on small cases, and adding up on random ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from strategies import cases
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, Trace, simulate
from optpipe_sim.errors import Deadlock, OptPipeError
from optpipe_sim.ops import parse_op
from optpipe_sim.reasons.explain import Step, critical_path, explain, hints, idle, path_parts, why
from optpipe_sim.trace import CAUSES

MS = 1_000_000


def traced(
    profile: CostProfile, *lines: str, limit: int | None = None, m: int = 2, **parts: object
) -> Trace:
    schedule = Schedule(profile.shape(m), [line.split() for line in lines], **parts)  # type: ignore[arg-type]
    return simulate(schedule, profile, limit)


def steps(trace: Trace) -> list[tuple[str, float, float, str, float]]:
    """The critical path in order of time, in ms."""
    return [
        (str(step.op), step.start_ns / MS, step.until_ns / MS, step.cause, step.lag_ns / MS)
        for step in reversed(critical_path(trace))
    ]


def two_stages(**changes: object) -> Trace:
    """GPipe on two devices, half a millisecond between them."""
    profile = unit_profile(2, t_comm_us=500, **changes)
    return traced(profile, "F0.0 F0.1 BW0.0 BW0.1", "F1.0 F1.1 BW1.0 BW1.1")


def test_critical_path_over_messages() -> None:
    assert steps(two_stages()) == [
        ("F0.0", 0, 1, "start", 0),
        ("F1.0", 1.5, 2.5, "communication", 0.5),
        ("F1.1", 2.5, 3.5, "stream", 0),
        ("BW1.0", 3.5, 5.5, "stream", 0),
        ("BW0.0", 6, 8, "communication", 0.5),
        ("BW0.1", 8, 10, "stream", 0),
    ]
    assert path_parts(two_stages()) == {
        "compute on device 0": 5 * MS,
        "compute on device 1": 4 * MS,
        "messages": 1 * MS,
    }


def test_gaps_by_cause() -> None:
    trace = two_stages()
    gaps = [(g.start_ns / MS, g.end_ns / MS, g.cause, str(g.op), str(g.by)) for g in idle(trace, 0)]
    assert gaps == [
        (2, 5.5, "neighbour", "BW0.0", "BW1.0"),
        (5.5, 6, "communication", "BW0.0", "BW1.0"),
    ]
    fill, drain = idle(trace, 1)
    assert (fill.cause, fill.length_ns, str(fill.by)) == ("fill", 1.5 * MS, "F0.0")
    assert (drain.cause, drain.length_ns, drain.op, str(drain.by)) == (
        "drain",
        2.5 * MS,
        None,
        "BW0.1",
    )
    assert fill.text == (
        "device 1: idle from 0 ns to 1.5 ms: F1.0 is its first op, and the message of F0.0 (device 0)"
        " arrives at 1.5 ms, 500 us after the op has ended"
    )
    assert drain.text.endswith("its last op is done, BW0.1 on device 0 is not")
    with pytest.raises(OptPipeError, match="device 2 does not exist; devices are 0 to 1"):
        idle(trace, 2)


COPIES = {"t_offload_ms": 3, "t_reload_ms": 2}


def one_device(limit: int | None, *ops: str, **offload: object) -> Trace:
    return traced(unit_profile(1, offload={**COPIES, **offload}), " ".join(ops), limit=limit)


def test_waiting_for_memory_and_for_a_reload() -> None:
    trace = one_device(100, "F0.0 O0.0 F0.1 BW0.1 R0.0 BW0.0")
    assert steps(trace) == [
        ("F0.0", 0, 1, "start", 0),
        ("O0.0", 1, 4, "input", 0),
        ("F0.1", 4, 5, "memory", 0),
        ("BW0.1", 5, 7, "stream", 0),
        ("R0.0", 7, 9, "memory", 0),
        ("BW0.0", 9, 11, "reload", 0),
    ]
    memory, reload = idle(trace, 0)
    assert (memory.cause, memory.start_ns, memory.end_ns, str(memory.by)) == (
        "memory",
        MS,
        4 * MS,
        "O0.0",
    )
    assert (reload.cause, reload.start_ns, reload.end_ns, str(reload.by)) == (
        "reload",
        7 * MS,
        9 * MS,
        "R0.0",
    )
    assert why(trace, parse_op("F0.1")) == (
        "F0.1 starts at 4 ms on device 0: its 100 B fit under the limit of 100 B only when O0.0 ends"
        " at 4 ms. Before that, the compute stream is busy with F0.0 until 1 ms."
    )
    assert why(trace, parse_op("F0.0")) == (
        "F0.0 starts at 0 ns on device 0: nothing keeps it from the start."
    )
    assert "its activation comes back with R0.0, which ends at 9 ms" in why(
        trace, parse_op("BW0.0")
    )
    with pytest.raises(OptPipeError, match=r"F0\.7 is not in this schedule"):
        why(trace, parse_op("F0.7"))


def test_a_reload_behind_its_offload_or_its_anchor() -> None:
    loose = one_device(None, "F0.0 O0.0 F0.1 BW0.1 R0.0 BW0.0")
    assert steps(loose)[-3:] == [
        ("O0.0", 1, 4, "input", 0),
        ("R0.0", 4, 6, "input", 0),
        ("BW0.0", 6, 8, "reload", 0),
    ]
    quick = one_device(None, "F0.0 O0.0 F0.1 BW0.1 R0.0 BW0.0", t_offload_ms=0.25)
    assert why(quick, parse_op("R0.0")) == (
        "R0.0 starts at 2 ms on device 0: a reload is granted when the compute op before it, BW0.1,"
        " starts, at 2 ms. Before that, it needs O0.0 (device 0), which ends at 1.25 ms."
    )


def test_engines_and_links() -> None:
    ops = ("F0.0 O0.0 F0.1 O0.1 R0.0 BW0.0 R0.1 BW0.1",)
    engine = one_device(None, *ops)
    assert "the copy engine is busy with O0.0 until 4 ms" in why(engine, parse_op("O0.1"))
    link = one_device(None, *ops, host_link="single")
    assert "host link 0/OR is busy with O0.1 (device 0) until 7 ms" in why(link, parse_op("R0.0"))
    profile = unit_profile(2, offload={**COPIES, "host_link_groups": [[0, 1]]})
    apart = traced(profile, "F0.0 O0.0 R0.0 BW0.0", "F1.0 O1.0 R1.0 BW1.0", m=1)
    assert why(apart, parse_op("O1.0")) == (
        "O1.0 starts at 4 ms on device 1: host link 0/O is busy with O0.0 (device 0) until 4 ms."
        " Before that, it needs F1.0 (device 1), which ends at 2 ms."
    )
    assert ("O1.0", 4, 7, "link", 0) in steps(apart)


def test_a_plan_that_could_be_quicker_has_slack() -> None:
    trace = two_stages()
    late = replace(
        trace,
        start_ns=trace.start_ns + 3 * MS,
        end_ns=trace.end_ns + 3 * MS,
        grant_ns=trace.grant_ns + 3 * MS,
    )
    assert critical_path(late)[-1] == Step(
        parse_op("F0.0"), 0, 3 * MS, 4 * MS, "slack", None, 3 * MS
    )
    assert path_parts(late)["slack"] == 3 * MS
    assert why(late, parse_op("F0.0")) == (
        "F0.0 starts at 3 ms on device 0, though nothing keeps it from starting at 0 ns."
    )


def test_hints_follow_from_the_numbers() -> None:
    many = hints(two_stages())
    assert many == [
        "more microbatches than 2: filling and draining cost 20.0% of the devices' time and do not grow"
        " with their number",
        "W apart from B, to fill the waits: waiting for other devices to compute costs 17.5% of the"
        " devices' time",
        "faster links or fewer messages: waiting for messages costs 2.5% of the devices' time",
    ]
    memory = hints(one_device(100, "F0.0 O0.0 F0.1 BW0.1 R0.0 BW0.0"))
    assert memory[0] == (
        "more memory, or more offloading (1 of 2 activations are): waiting for memory costs 27.3% of"
        " the devices' time"
    )
    assert memory[1].startswith("reloads earlier in the programs, or fewer of them")
    alone = traced(unit_profile(1), "F0.0 BW0.0 F0.1 BW0.1")
    assert hints(alone) == ["nothing: no cause of idle time is worth the trouble"]
    stage = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 1}
    uneven = traced(
        unit_profile(2, stages=[stage, {**stage, "t_f_ms": 4}], memory_limit_bytes=9),
        "F0.0 F0.1 BW0.0 BW0.1",
        "F1.0 F1.1 BW1.0 BW1.1",
    )
    assert "stages of more equal length: device 1 computes 12 ms, device 0 only 6 ms" in hints(
        uneven
    )
    assert (
        "a schedule with more microbatches in flight: at most 22% of the limit is in use"
        in hints(uneven)
    )


def test_the_report() -> None:
    text = explain(two_stages())
    assert text.startswith(
        "One iteration takes 10 ms; its bubble is 40.0% (40.0% of the longest device span).\n"
        "The busiest device is 0: it computes 6 ms and idles 4 ms.\n"
    )
    assert "  neighbour        3.5 ms   17.5% of their time\n" in text
    assert "     3.5 ms  neighbour: device 0: idle from 2 ms to 5.5 ms: BW0.0 waits; BW1.0" in text
    assert "  compute on device 1         4 ms   40.0%\n" in text
    assert max(map(len, text.splitlines())) < 200
    loose = replace(two_stages(), fits=False, memory_limit=(100, 100))
    assert explain(loose).startswith(
        "It does not fit: these are the times without the memory limit."
    )


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_parts_add_up(case: tuple[CostProfile, Schedule]) -> None:
    profile, schedule = case
    for enforce in (False, True):
        try:
            trace = simulate(schedule, profile, enforce=enforce)
        except Deadlock:
            continue
        path = critical_path(trace)
        assert path[0].until_ns == trace.makespan_ns
        for step, before in pairwise(path):
            assert step.start_ns - step.lag_ns == before.until_ns
            assert step.by == before.op
        assert (path[-1].start_ns, path[-1].lag_ns, path[-1].cause) == (0, 0, "start")
        assert all(step.cause != "slack" for step in path)
        assert sum(path_parts(trace).values()) == trace.makespan_ns
        for device in range(profile.devices):
            gaps = idle(trace, device)
            total = dict.fromkeys(CAUSES, 0)
            for gap in gaps:
                total[gap.cause] += gap.length_ns
            assert total == trace.idle_by_device_ns[device]
            assert all(a.end_ns <= b.start_ns for a, b in pairwise(gaps))
        for span in trace.spans:
            sentence = why(trace, span.op)
            assert sentence.startswith(f"{span.op} starts at ")
            assert "though nothing" not in sentence
        assert explain(trace)
