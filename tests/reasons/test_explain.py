"""Reasons: worked by hand on small cases, and adding up on random ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from strategies import cases
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, Trace, build, simulate
from optpipe_sim.errors import Deadlock, OptPipeError
from optpipe_sim.execution import load_execution, shipped_names
from optpipe_sim.ops import parse_op
from optpipe_sim.reasons.data import explain_data
from optpipe_sim.reasons.explain import Step, critical_path, explain, idle, path_parts, why
from optpipe_sim.reasons.hints import diagnoses, hints
from optpipe_sim.trace import CAUSES
from optpipe_sim.units import format_time

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


def test_a_hint_is_what_a_replay_gives() -> None:
    """With 1F1B on 4 devices half of the forwards' and backwards' wait is filled by W's."""
    profile = unit_profile(4)
    found = hints(simulate(build("1f1b", profile, 8), profile))
    assert [hint.key for hint in found] == ["schedule"]
    name = found[0].what.removeprefix("schedule ")
    other = simulate(build(name, profile, 8), profile.rechunk(2, "vee"))
    assert name == "zb-v"
    assert (found[0].time_ns, found[0].peak_bytes) == (other.makespan_ns, max(other.peak_bytes))
    assert found[0].gain == pytest.approx(1 - other.makespan_ns / (33 * MS))


@pytest.mark.parametrize("name", [name for name in shipped_names() if name != "ideal"])
def test_a_schedule_that_is_a_hint_is_issued_in_its_own_way(name: str) -> None:
    """Split backwards take longer than whole ones in most trainers, and links of chunks may not block."""
    long = unit_profile(4, t_comm_ms=1).map_stages(
        lambda _, cost: replace(
            cost, t_f_ns=20 * cost.t_f_ns, t_b_ns=20 * cost.t_b_ns, t_w_ns=20 * cost.t_w_ns
        )
    )
    profile = replace(long, execution=load_execution(name))
    (found,) = (
        hint
        for hint in hints(simulate(build("1f1b", profile, 8), profile))
        if hint.key == "schedule"
    )
    other = simulate(build(found.what.removeprefix("schedule "), profile, 8), profile)
    assert (found.time_ns, found.peak_bytes) == (other.iteration_ns, max(other.peak_bytes))


def test_the_device_with_more_work_is_named() -> None:
    """6 ms a microbatch on device 1, 3 on device 0: after F0.0 device 1 is always busy, then comes BW0.7; with
    4.5 ms on each, F0.0 takes 1.5 ms and BW0.7 3."""
    stage = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 1}
    profile = unit_profile(2, stages=[stage, {**stage, "t_f_ms": 4}])
    uneven = simulate(build("1f1b", profile, 8), profile)
    assert uneven.makespan_ns == (1 + 48 + 2) * MS
    layout = next(hint for hint in hints(uneven) if hint.key == "layout")
    assert "device 1 (it has the last stage, with the head) computes 48 ms" in layout.what
    assert "the mean is 36 ms" in layout.what
    assert layout.time_ns == (1.5 + 36 + 3) * MS
    assert layout.gain == pytest.approx(1 - 40.5 / 51)


def test_what_gains_nothing_is_no_hint() -> None:
    alone = traced(unit_profile(1), "F0.0 BW0.0 F0.1 BW0.1")
    assert hints(alone) == []
    assert "  - nothing that was tried gains" in explain(alone)
    # a fused backward that is shorter than its parts: W apart costs time
    stage = {"t_f_ms": 2, "t_b_ms": 2, "t_w_ms": 2, "t_bw_ms": 2.1, "act_bytes": 1}
    profile = unit_profile(2, stages=stage)
    trace = simulate(build("1f1b", profile, 8), profile)
    assert simulate(build("zb-h1", profile, 8), profile).makespan_ns > trace.makespan_ns
    assert not any("zb" in hint.what for hint in hints(trace))


def test_what_does_not_fit_is_no_hint() -> None:
    """ZB-V needs as much memory as 1F1B, ZB-H2 twice as much: with less than either neither is one."""
    profile = unit_profile(4)
    tight = replace(profile, memory_limit=(350,) * 4)
    trace = simulate(build("adaoffload", tight, 8), tight)
    for hint in hints(trace):
        assert hint.peak_bytes <= 350


def test_a_plan_for_a_framework_gets_its_orders_only() -> None:
    profile = unit_profile(4)
    schedule = build("1f1b", profile, 8)
    assert [hint.what for hint in hints(simulate(schedule, profile))] == ["schedule zb-v"]
    schedule.meta["family"] = "megatron"
    # 2 chunks: (2 x 8 + 3) x 1.5 ms of 33
    (hint,) = hints(simulate(schedule, profile))
    assert (hint.what, hint.time_ns) == ("schedule 1f1b-i", 28.5 * MS)


def test_what_no_option_changes_is_a_diagnosis() -> None:
    profile = unit_profile(4, t_comm_ms=1)
    trace = simulate(build("1f1b", profile, 8), profile)
    assert not {hint.key for hint in hints(trace)} & {"messages", "copies", "memory"}
    (found,) = diagnoses(trace)
    free = simulate(build("1f1b", unit_profile(4), 8), unit_profile(4))
    assert (found.key, found.time_ns) == ("messages", free.makespan_ns)
    assert f"  - if messages took no time: 33 ms ({-found.gain:+.1%})" in explain(trace)


def test_hints_are_in_times_of_an_iteration() -> None:
    beside = {"optimizer_ms": 10.0, "overhead": 0.5}
    profile = replace(unit_profile(4), meta={"iteration": beside})
    (found,) = hints(simulate(build("1f1b", profile, 8), profile))
    other = simulate(build("zb-v", profile, 8), profile)
    # 1F1B: 33 / (1 - 0.5) + 10 ms
    assert found.time_ns == 2 * other.makespan_ns + 10 * MS
    assert found.gain == pytest.approx(1 - found.time_ns / (76 * MS))


def test_an_iteration_is_told_with_its_interval_and_as_the_trainer_counts_it() -> None:
    long = unit_profile(4).scale(20)
    profile = replace(long, execution=load_execution("zero-bubble-a100"))
    trace = simulate(build("zb-h2", profile, 8), profile)
    assert trace.iteration_ns == max(trace.span_ns) < trace.makespan_ns
    low, high = map(format_time, trace.iteration_interval_ns)
    told = explain(trace)
    assert told.startswith(
        f"One iteration takes {format_time(trace.iteration_ns)} ({low} to {high} in four of five runs as zero-bubble-a100"
        f" issues them), its pipeline {format_time(trace.makespan_ns)} (iterations chain"
    )
    assert explain_data(trace)["iteration_interval_ns"] == list(trace.iteration_interval_ns)


def test_the_report() -> None:
    text = explain(two_stages())
    assert text.startswith(
        "One iteration takes 10 ms; its bubble is 40.0%.\n"
        "Devices idle 40.0% of it: 0.0% by imbalance (less work than the busiest device), 40.0% by the order"
        " (pipeline bubble).\n"
        "The busiest device is 0: it computes 6 ms and idles 4 ms.\n"
    )
    assert "  neighbour        3.5 ms   17.5% of their time  for an op of another device\n" in text
    assert "     3.5 ms  neighbour: device 0: idle from 2 ms to 5.5 ms: BW0.0 waits; BW1.0" in text
    assert "  compute on device 1         4 ms   40.0%\n" in text
    assert max(map(len, text.splitlines())) < 200
    loose = replace(two_stages(), fits=False, memory_limit=(100, 100))
    assert explain(loose).startswith(
        "It does not fit: these are the times without the memory limit."
    )


@given(case=cases(levels=True, slices=True, differ=True, pairs=True))
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


def test_a_pair_is_named_as_one_op_with_what_pairs_hide() -> None:
    """On the second device a pair of F (1) and BW (2) hides half a millisecond, so that it takes 2.5; on the first, the pair waits for
    the backward's input."""
    profile = replace(unit_profile(2), pair_hidden=MS // 2)
    trace = traced(
        profile,
        "F0.0 F0.1 F0.2+BW0.0 BW0.1 BW0.2",
        "F1.0 BW1.0 F1.1 F1.2+BW1.1 BW1.2",
        m=3,
    )
    (gap, *_) = [each for each in idle(trace, 0) if each.cause == "neighbour"]
    assert "F0.2+BW0.0 waits; BW1.0 (device 1) ends only" in gap.text
    for op in ("F0.2", "BW0.0"):
        assert f"{op} starts at 4 ms on device 0, in the one op F0.2+BW0.0" in why(
            trace, parse_op(op)
        )
    text = explain(trace)
    # two pairs of 3 ms, 0.5 ms of each hidden
    assert "2 of 6 forwards are one op with a backward; these take 5 ms in all, 16.7% less" in text
    assert "one op" not in explain(two_stages())


def test_what_follows_a_pair_waits_until_both_its_messages_are_sent() -> None:
    """On blocking links of 1 ms. The pair of device 1 runs from 8 to 11 ms, as BW2.0 (5 to 7) arrives at 8; then its F is sent, until
    12, and its BW until 13. The pair of device 2, from 15 to 18 ms, has only its BW to send, until 19."""
    profile = unit_profile(3, t_comm_us=1000, links="blocking")
    trace = traced(
        profile,
        "F0.0 F0.1 F0.2 BW0.0 BW0.1 BW0.2",
        "F1.0 F1.1+BW1.0 F1.2 BW1.1 BW1.2",
        "F2.0 BW2.0 F2.1 F2.2+BW2.1 BW2.2",
        m=3,
    )
    for op, device, until, sent in (("F1.2", 1, 13, "BW1.0"), ("BW2.2", 2, 19, "BW2.1")):
        said = f"the device sends the message of {sent} until {until} ms"
        assert why(trace, parse_op(op)).startswith(
            f"{op} starts at {until} ms on device {device}: {said}."
        )
        (gap,) = [gap for gap in idle(trace, device) if gap.op == parse_op(op)]
        assert (gap.cause, gap.end_ns) == ("communication", until * MS)
        assert gap.text.endswith(f"{op} waits; {said}")
    assert all(cause != "slack" for _, _, _, cause, _ in steps(trace))


def test_a_pair_waits_for_both_neighbours_before_it_waits_for_messages() -> None:
    """As waits are divided: device 1 is free from 6 ms on; its pair's F0.1 ends at 8 and arrives at 9, its BW2.0 ends at 10 and arrives
    at 11. What passes between 8 and 9 ms is no wait for a message."""
    profile = unit_profile(3, t_comm_us=1000)
    slow = replace(profile.stages[0], t_f_ns=4 * MS)
    trace = traced(
        replace(profile, stages=(slow, *profile.stages[1:])),
        "F0.0 F0.1 BW0.0 BW0.1",
        "F1.0 F1.1+BW1.0 BW1.1",
        "F2.0 BW2.0 F2.1 BW2.1",
    )
    gaps = [gap for gap in idle(trace, 1) if gap.op == parse_op("F1.1")]
    assert [(g.start_ns / MS, g.end_ns / MS, g.cause, str(g.by)) for g in gaps] == [
        (6, 8, "neighbour", "F0.1"),
        (8, 10, "neighbour", "BW2.0"),
        (10, 11, "communication", "BW2.0"),
    ]
    waits = {
        cause: ns[trace.schedule.row(parse_op("F1.1"))] for cause, ns in trace.waits_ns.items()
    }
    assert (waits["neighbour"], waits["communication"]) == (4 * MS, 1 * MS)
