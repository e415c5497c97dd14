"""The checker of traces: silent on what the engine does, and a sentence on whatever is changed in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from checker_cases import PROGRAMS, edited, offloading, programs
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, Trace, simulate
from optpipe_sim.checker.check import check_trace
from optpipe_sim.ops import O, R, parse_op

MS = 1_000_000


def traced(limit: int | None = 150, **changes: object) -> Trace:
    return simulate(programs(*PROGRAMS), offloading(t_comm_us=500, **changes), limit)


def moved(trace: Trace, op: str, by: int, **parts: int) -> Trace:
    """The trace with one op's start, end and grant moved by so many ns; `parts` move one of them."""
    row = trace.schedule.row(parse_op(op))
    shifts = {key: parts.get(key, 0 if parts else by) for key in ("start_ns", "end_ns", "grant_ns")}
    arrays = {key: getattr(trace, key).copy() for key in shifts}
    for key, shift in shifts.items():
        arrays[key][row] += shift
    return replace(trace, **arrays)


def test_the_engines_trace_is_lawful() -> None:
    trace = traced()
    assert check_trace(trace, asap=True) == []
    starts = {str(span.op): span.start_ns / MS for span in trace.spans}
    # by hand: 150 bytes hold one activation and a half; messages take half a millisecond
    assert starts == {
        "F0.0": 0,
        "O0.0": 1,
        "F0.1": 2,
        "B0.1": 9,
        "W0.1": 10,
        "R0.0": 10,
        "BW0.0": 11,
        "F1.0": 1.5,
        "BW1.0": 2.5,
        "F1.1": 4.5,
        "O1.1": 5.5,
        "R1.1": 6.5,
        "B1.1": 7.5,
        "W1.1": 8.5,
    }


CHANGES: list[tuple[str, Callable[[Trace], Trace], str]] = [
    ("duration", lambda t: moved(t, "F1.0", 0, end_ns=5), "device 1: F1.0 at 1.5 ms lasts 1.00001 ms, by the profile 1 ms"),
    ("before 0", lambda t: moved(t, "F0.0", -7), "device 0: F0.0 starts at -7 ns, before time 0"),
    ("message", lambda t: moved(t, "F1.0", -1), "device 1: F1.0 starts at 1.499999 ms, before the message of F0.0 arrives at 1.5 ms"),
    ("input", lambda t: moved(t, "O0.0", -1), "device 0: O0.0 starts at 999.999 us, before F0.0 ends at 1 ms"),
    ("stream", lambda t: moved(t, "BW1.0", -1), "device 1: BW1.0 starts at 2.499999 ms, while F1.0 is on the compute stream until 2.5 ms"),
    ("program", lambda t: moved(t, "F1.1", -3 * MS), "device 1: F1.1 starts at 1.5 ms, before BW1.0, which stands before it in the program"),
    ("grant of F", lambda t: moved(t, "F0.1", 0, grant_ns=-1), "device 0: F0.1 is granted at 1.999999 ms, but starts at 2 ms"),
    ("anchor", lambda t: moved(t, "R1.1", 0, grant_ns=-3 * MS), "before F1.1, which precedes it, starts"),
    ("start before grant", lambda t: moved(t, "R0.0", 0, grant_ns=10 * MS), "before it is granted at"),
    ("grant order", lambda t: moved(t, "F0.1", 9 * MS), "device 0: R0.0 is granted at "),
    ("memory", lambda t: moved(t, "F0.1", -1), "device 0: F0.1 raises memory to 200 B at 2 ms, above the limit of 150 B"),
    ("reload memory", lambda t: moved(t, "R0.0", 0, grant_ns=-1 * MS), "device 0: R0.0 raises memory to 200 B"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_unlawful_times(change: Callable[[Trace], Trace], sentence: str) -> None:
    problems = check_trace(change(traced()))
    assert any(sentence in problem for problem in problems), problems


@pytest.mark.parametrize("op", ["F0.0", "F0.1", "O0.0", "R1.1", "B0.1", "BW0.0", "BW1.0", "O1.1"])
def test_late_starts_are_reported_only_on_request(op: str) -> None:
    """A trace that is moved as a whole from some op on stays lawful, but is not as soon as possible."""
    trace = traced()
    row = trace.schedule.row(parse_op(op))
    since = trace.start_ns[row]
    late = trace.start_ns >= since
    shifted = replace(
        trace,
        start_ns=trace.start_ns + 10 * late,
        end_ns=trace.end_ns + 10 * late,
        grant_ns=trace.grant_ns + 10 * (trace.grant_ns >= since),
    )
    assert check_trace(shifted) == []
    strict = check_trace(shifted, asap=True)
    device = trace.span(parse_op(op)).device
    assert any(
        problem.startswith(f"device {device}: {op} ") and "could have at" in problem
        for problem in strict
    ), strict


def two_copies(**offload: object) -> Trace:
    """Both devices offload at the same time, if the links let them."""
    schedule = programs("F0.0 O0.0 F0.1 R0.0 BW0.0 BW0.1", "F1.0 O1.0 F1.1 R1.0 BW1.0 BW1.1")
    return simulate(schedule, offloading(offload={"t_offload_ms": 3, **offload}))


def test_engines_and_links_carry_one_transfer_at_a_time() -> None:
    grouped = two_copies(host_link_groups=[[0, 1]])
    assert check_trace(grouped, asap=True) == []
    (problem,) = check_trace(moved(grouped, "O1.0", -1))
    assert problem == (
        "device 1: O1.0 starts at 3.999999 ms, while O0.0 is on host link 0/O until 4 ms"
    )
    apart = two_copies()
    assert apart.span(parse_op("O1.0")).start_ns == 2 * MS
    as_one = replace(apart, profile=grouped.profile)
    assert any("O1.0" in p and "on host link 0/O" in p for p in check_trace(as_one))
    assert check_trace(replace(grouped, profile=apart.profile)) == []
    late = check_trace(replace(grouped, profile=apart.profile), asap=True)
    assert late[0] == "device 1: O1.0 starts at 4 ms, but could have at 2 ms"


def test_a_lone_devices_single_link_is_one_for_both_directions() -> None:
    shape = unit_profile(1).shape(2)
    schedule = Schedule(shape, [["F0.0", "O0.0", "F0.1", "R0.0", "O0.1", "BW0.0", "R0.1", "BW0.1"]])
    copies = {"t_offload_ms": 3, "t_reload_ms": 3}
    free = simulate(schedule, unit_profile(1, offload=copies))
    assert check_trace(free, asap=True) == []
    single = unit_profile(1, offload={**copies, "host_link": "single"})
    assert any(
        "host link 0/OR" in problem for problem in check_trace(replace(free, profile=single))
    )
    shared = unit_profile(
        1, offload={**copies, "copy_engines": "shared", "host_link": "per_direction"}
    )
    assert any(
        "on the copy engine" in problem for problem in check_trace(replace(free, profile=shared))
    )
    for profile in (single, shared):
        assert check_trace(simulate(schedule, profile), asap=True) == []


def test_link_order_and_first_come_first_served() -> None:
    order = {"0/O": [parse_op("O1.0"), parse_op("O0.0")]}
    free = two_copies(host_link_groups=[[0, 1]])
    held = simulate(free.schedule.replace(link_order=order), free.profile)
    assert check_trace(held, asap=True) == []
    (problem,) = check_trace(replace(free, schedule=held.schedule))
    assert problem.startswith(
        "device 0: O0.0 starts at 1 ms, before O1.0, which stands before it in link order"
    )
    unordered = check_trace(replace(held, schedule=free.schedule), asap=True)
    assert check_trace(replace(held, schedule=free.schedule)) == []
    assert any(
        "O0.0 comes to host link 0/O at 1 ms, before O1.0 at 2 ms, but is served after it" in p
        for p in unordered
    )


def test_serial_links_carry_one_message_at_a_time() -> None:
    schedule = programs("F0.0 F0.1 BW0.0 BW0.1", "F1.0 F1.1 BW1.0 BW1.1")
    serial = simulate(schedule, offloading(t_comm_ms=3, links="serial"))
    assert check_trace(serial, asap=True) == []
    free = simulate(schedule, offloading(t_comm_ms=3))
    assert serial.span(parse_op("F1.1")).start_ns == 7 * MS
    assert (
        "device 1: F1.1 starts at 5 ms, before the message of F0.1 arrives at 7 ms"
        in check_trace(replace(free, profile=serial.profile))
    )


def test_traces_of_what_is_no_schedule() -> None:
    trace = traced()
    broken = replace(trace, schedule=edited("F0.1", "F0.0"))
    assert check_trace(broken)[0] == "device 0: F0.0 is in the programs 2 times"
    assert "no offload section" in check_trace(replace(trace, profile=unit_profile(2)))[0]
    assert "other devices" in check_trace(replace(trace, profile=unit_profile(2, 2)))[0]
    loose = simulate(programs(*PROGRAMS), offloading(), enforce=False)
    assert check_trace(replace(loose, memory_limit=(100, 100), fits=False)) == []
    assert any("raises memory" in p for p in check_trace(replace(loose, memory_limit=(100, 100))))


@given(
    case=cases(max_devices=3, max_chunks=2, levels=True, slices=True, differ=True, pairs=True),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_any_op_moved_earlier_is_caught(
    case: tuple[CostProfile, Schedule], data: st.DataObject
) -> None:
    """A replay is as soon as possible: nothing can start earlier by itself."""
    profile, schedule = case
    trace = simulate(schedule, profile, enforce=False)
    row = data.draw(st.integers(0, len(schedule) - 1))
    op = schedule.op(row)
    by = data.draw(st.integers(1, 3))
    change = {} if op.kind is not R else {"start_ns": -by, "end_ns": -by}
    # a transfer may jump the line where it is free for an instant, which only `asap` minds
    problems = check_trace(moved(trace, str(op), -by, **change), asap=op.kind in (O, R))
    assert problems
    if op.kind not in (O, R) and profile.links == "latency":
        assert any(str(op) in problem for problem in problems)
