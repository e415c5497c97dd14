"""Small cases worked by hand: what the semantics say, instant by instant, on both simulators."""

from __future__ import annotations

from typing import Any

import pytest
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, Shape, Trace, build, load_profile, simulate
from optpipe_sim.errors import Deadlock, InvalidSchedule, OutOfMemory
from optpipe_sim.ops import parse_op
from optpipe_sim.sim import simulate_or_report

both = pytest.mark.parametrize("engine", ["simpy", "replay"])


def profile(devices: int = 1, chunks: int = 1, **changes: Any) -> CostProfile:
    """F 2, B 3, W 1 ns, 10 bytes each; a copy lasts 4 each way."""
    data: dict[str, Any] = {
        "devices": devices,
        "chunks": chunks,
        "stages": {"t_f_ns": 2, "t_b_ns": 3, "t_w_ns": 1, "act_bytes": 10},
        "offload": {"t_offload_ns": 4, "t_reload_ns": 4},
    }
    return load_profile({**data, **changes})


def run(costs: CostProfile, programs: list[str], engine: str, **options: Any) -> Trace:
    links = {key: ops.split() for key, ops in options.pop("links", {}).items()}
    ops = [program.split() for program in programs]
    m = 1 + max(parse_op(op).microbatch for op in ops[0])
    shape = Shape(costs.devices, costs.chunks, m, costs.placement)
    return simulate(Schedule(shape, ops, links), costs, engine=engine, **options)


def at(trace: Trace, *ops: str) -> list[tuple[int, int]]:
    spans = [trace.span(parse_op(op)) for op in ops]
    return [(span.start_ns, span.end_ns) for span in spans]


@both
def test_a_hop_takes_t_comm_and_leaves_the_devices_free(engine: str) -> None:
    trace = run(
        profile(2, t_comm_ns=5),
        ["F0.0 F0.1 BW0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1"],
        engine,
    )
    assert at(trace, "F0.0", "F0.1", "F1.0", "BW1.0") == [(0, 2), (2, 4), (7, 9), (9, 13)]
    assert at(trace, "F1.1", "BW1.1", "BW0.0", "BW0.1") == [(13, 15), (15, 19), (18, 22), (24, 28)]
    assert trace.makespan_ns == 28
    assert trace.span_ns == (28, 12)
    assert trace.idle_by_device_ns[0] == {
        "fill": 0, "neighbour": 9 + 0, "communication": 5 + 2, "reload": 0, "memory": 0, "drain": 0,
    }  # fmt: skip
    assert trace.idle_by_device_ns[1]["fill"] == 7
    assert trace.idle_by_device_ns[1]["drain"] == 9


@both
def test_serial_links_carry_one_message_at_a_time(engine: str) -> None:
    costs = profile(2, links="serial", t_comm={"latency_ns": 1, "message_bytes": 5, "gb_per_s": 1})
    trace = run(costs, ["F0.0 F0.1 BW0.0 BW0.1", "F1.0 F1.1 BW1.0 BW1.1"], engine)
    # messages leave at 2 and, when the link is free, at 7; each arrives 5 + 1 later
    assert at(trace, "F1.0", "F1.1") == [(8, 10), (13, 15)]
    assert trace.messages.depart_ns.tolist()[:2] == [2, 7]


@both
def test_an_f_waits_for_memory_and_releases_come_first(engine: str) -> None:
    # two slots: F0.2 may start at the very instant at which BW0.0 ends
    trace = run(profile(), ["F0.0 F0.1 BW0.0 F0.2 BW0.1 BW0.2"], engine, memory_limit=20)
    assert at(trace, "BW0.0", "F0.2") == [(4, 8), (8, 10)]
    assert trace.peak_bytes == (20,)
    with pytest.raises(Deadlock, match=r"F0\.1 waits for memory: needs 10 B, 10 B of 15 B"):
        run(profile(), ["F0.0 F0.1 BW0.0 BW0.1"], engine, memory_limit=15)


@both
def test_b_keeps_w_bytes_until_w(engine: str) -> None:
    costs = profile(
        stages={
            "t_f_ns": 2,
            "t_b_ns": 3,
            "t_w_ns": 1,
            "act_bytes": 10,
            "w_bytes": 4,
            "static_bytes": 7,
        }
    )
    trace = run(costs, ["F0.0 B0.0 F0.1 B0.1 W0.0 W0.1"], engine)
    steps = trace.memory[0]
    assert list(zip(steps.times_ns.tolist(), steps.bytes.tolist(), strict=True)) == [
        (0, 17), (5, 21), (10, 15), (11, 11), (12, 7),
    ]  # fmt: skip
    assert trace.peak_bytes == (21,)


@both
def test_a_reload_is_granted_when_its_anchor_starts(engine: str) -> None:
    trace = run(profile(), ["F0.0 O0.0 F0.1 R0.0 BW0.1 BW0.0"], engine)
    reload = trace.span(parse_op("R0.0"))
    assert at(trace, "O0.0") == [(2, 6)]
    assert (reload.grant_ns, reload.start_ns, reload.end_ns) == (
        2,
        6,
        10,
    )  # anchor F0.1 starts at 2
    assert at(trace, "BW0.0") == [(10, 14)]
    # F0.0, then F0.1 and the grant of R0.0 while F0.0 is still there: 30 bytes
    assert trace.peak_bytes == (30,)
    assert trace.host_peak_bytes == 10
    assert trace.idle_ns["reload"] == 2


@both
def test_grants_come_in_program_order(engine: str) -> None:
    # R0.0 cannot be granted before BW0.1 ends; F0.2 behind it waits although it would fit
    programs = ["F0.0 O0.0 F0.1 R0.0 BW0.1 F0.2 BW0.0 BW0.2"]
    free = run(profile(), programs, engine)
    trace = run(profile(), programs, engine, memory_limit=20)
    assert trace.span(parse_op("R0.0")).grant_ns == 6  # O0.0 ends then
    assert at(free, "F0.2") == at(trace, "F0.2") == [(8, 10)]
    tight = run(profile(), ["F0.0 O0.0 F0.1 R0.0 BW0.1 BW0.0"], engine, memory_limit=10)
    # one slot: F0.1 starts when O0.0 ends, R0.0 is granted when BW0.1 ends
    assert at(tight, "F0.1", "BW0.1", "R0.0", "BW0.0") == [(6, 8), (8, 12), (12, 16), (16, 20)]
    assert tight.peak_bytes == (10,)
    assert tight.idle_ns == {
        "fill": 0, "neighbour": 0, "communication": 0, "reload": 4, "memory": 4, "drain": 0,
    }  # fmt: skip


TWO = ["F0.0 O0.0 F0.1 O0.1 R0.0 R0.1 BW0.0 BW0.1", "F1.0 O1.0 F1.1 O1.1 R1.0 R1.1 BW1.0 BW1.1"]


def grouped(**offload: Any) -> CostProfile:
    copies = {"t_offload_ns": 4, "t_reload_ns": 4, "host_link_groups": [[0, 1]], **offload}
    return profile(2, offload=copies)


@both
def test_a_shared_link_serves_first_come_first_served(engine: str) -> None:
    trace = run(grouped(), TWO, engine)
    # O0.0 comes at 2 and goes; O0.1 heads its queue from 2 on, so it comes at 4 when F0.1 ends;
    # O1.0 comes at 4 too: the lower rank goes first
    assert at(trace, "O0.0", "O0.1", "O1.0", "O1.1") == [(2, 6), (6, 10), (10, 14), (14, 18)]
    # R0.0 is granted when F0.1 starts and comes when O0.0 has ended, at 6
    assert at(trace, "R0.0", "R0.1", "R1.0", "R1.1") == [(6, 10), (10, 14), (14, 18), (18, 22)]


@both
def test_a_single_link_serves_both_directions(engine: str) -> None:
    trace = run(grouped(host_link="single"), TWO, engine)
    order = sorted(
        (span.start_ns, str(span.op)) for span in trace.spans if span.op.kind.name in "OR"
    )
    assert [start for start, _ in order] == list(range(2, 34, 4))
    # at 6 wait: O0.1 and O1.0 (since 4), R0.0 (since 6)
    assert [op for _, op in order][:4] == ["O0.0", "O0.1", "O1.0", "R0.0"]


@both
def test_a_given_link_order_is_kept(engine: str) -> None:
    trace = run(grouped(), TWO, engine, links={"0/O": "O1.0 O0.0 O1.1 O0.1"})
    assert at(trace, "O1.0", "O0.0", "O1.1", "O0.1") == [(4, 8), (8, 12), (12, 16), (16, 20)]


@both
def test_the_first_in_line_holds_the_link_while_its_engine_is_busy(engine: str) -> None:
    # one copy engine per device, one link per direction; stage 0 lives on device 1
    stage = {"t_b_ns": 3, "t_w_ns": 1, "act_bytes": 10}
    costs = profile(
        2,
        placement=[1, 0],
        stages=[{"t_f_ns": 5, **stage}, {"t_f_ns": 2, **stage}],
        offload={
            "t_offload_ns": 4, "t_reload_ns": 4, "copy_engines": "shared",
            "host_link": "per_direction", "host_link_groups": [[0, 1]],
        },
    )  # fmt: skip
    trace = run(
        costs,
        [
            "F1.0 O1.0 F1.1 O1.1 R1.0 F1.2 F1.3 BW1.0 R1.1 BW1.1 BW1.2 BW1.3",
            "F0.0 O0.0 F0.1 F0.2 F0.3 R0.0 BW0.0 BW0.1 BW0.2 BW0.3",
        ],
        engine,
    )
    assert at(trace, "O0.0", "O1.0", "O1.1") == [(5, 9), (9, 13), (13, 17)]
    # R1.0 comes at 13, when O1.1 starts and O1.0 has ended; its engine is busy until 17.
    # R0.0 comes at 15, with its anchor F0.3, and stands behind it though its own engine is free.
    assert at(trace, "R1.0", "R0.0", "R1.1") == [(17, 21), (21, 25), (25, 29)]


@both
def test_a_lone_device_has_a_link_of_its_own(engine: str) -> None:
    costs = profile(offload={"t_offload_ns": 4, "t_reload_ns": 4, "host_link": "single"})
    trace = run(costs, ["F0.0 O0.0 F0.1 O0.1 R0.0 R0.1 BW0.0 BW0.1"], engine)
    assert at(trace, "O0.0", "O0.1", "R0.0", "R0.1") == [(2, 6), (6, 10), (10, 14), (14, 18)]


@both
def test_zero_lengths_pass_within_one_instant(engine: str) -> None:
    costs = profile(
        stages={"t_f_ns": 1, "t_b_ns": 1, "t_w_ns": 0, "act_bytes": 10, "w_bytes": 10},
        offload={"t_offload_ns": 0, "t_reload_ns": 0},
    )
    trace = run(costs, ["F0.0 O0.0 F0.1 B0.1 W0.1 R0.0 B0.0 W0.0"], engine, memory_limit=10)
    assert at(trace, "O0.0", "F0.1", "W0.1", "R0.0", "B0.0") == [
        (1, 1),
        (1, 2),
        (3, 3),
        (3, 3),
        (3, 4),
    ]
    assert trace.peak_bytes == (10,)


@both
def test_deadlocks_name_who_waits_for_what(engine: str) -> None:
    with pytest.raises(Deadlock, match=r"device 0: BW0\.0 waits for F0\.0"):
        run(profile(), ["BW0.0 F0.0"], engine)
    with pytest.raises(Deadlock, match=r"device 1: BW1\.1 waits for F1\.1"):
        run(profile(2), ["F0.0 F0.1 BW0.0 BW0.1", "F1.0 BW1.1 F1.1 BW1.0"], engine)
    with pytest.raises(Deadlock, match=r"waits for its turn on the link after O0\.1"):
        run(grouped(), TWO, engine, links={"0/O": "O0.1 O0.0 O1.0 O1.1"})


@both
def test_limits_nothing_can_keep_name_the_least(engine: str) -> None:
    with pytest.raises(OutOfMemory, match=r"device 0: .* the least limit that works is 10B"):
        run(profile(), ["F0.0 BW0.0"], engine, memory_limit=9)


def test_no_limit_is_enforced_when_asked_not_to() -> None:
    costs = profile(memory_limit_bytes=10)
    schedule = Schedule(costs.shape(2), [["F0.0", "F0.1", "BW0.0", "BW0.1"]])
    assert simulate(schedule, costs, enforce=False).peak_bytes == (20,)
    trace, reason = simulate_or_report(schedule, costs)
    assert not trace.fits
    assert trace.peak_bytes == (20,)
    assert reason is not None
    # the memory is the cause, and comes first
    assert reason.startswith(
        "does not fit: 20 B on device 0, 10 B above the limit of 10 B; it fits"
    )
    assert "with a limit of 20B (deadlock at 2 ns with 1 of 4 ops done: device 0: F0.1" in reason
    trace, reason = simulate_or_report(schedule, costs, 20)
    assert trace.fits
    assert reason is None


@both
def test_a_deadlock_for_memory_says_what_fits(engine: str) -> None:
    level = {"name": "full", "t_ms": 1, "keep_bytes": 2, "work_bytes": 1}
    costs = profile(
        2, stages={"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 10, "recompute": [level]}
    )
    # 1F1B: 20 bytes on device 0; each recomputed 4 and one at work, in (m + 1) x 4 ms
    with pytest.raises(Deadlock) as stuck:
        simulate(build("1f1b", costs, 4), costs, 15, engine=engine)
    said = "does not fit: 20 B on device 0, 5 B above the limit of 15 B; it fits with a limit of 20B, or with recompute=full (20 ms, "
    assert str(stuck.value).startswith(said)
    assert simulate(build("1f1b:recompute=full", costs, 4), costs, 15).makespan_ns == 20_000_000
    # where no limit helps, it is a deadlock and nothing else
    order = [["F0.0", "F0.1", "BW0.0", "BW0.1"], ["F1.0", "BW1.1", "F1.1", "BW1.0"]]
    with pytest.raises(Deadlock, match=r"^deadlock at "):
        simulate(Schedule(costs.shape(2), order), costs, 1000, engine=engine)


def test_simulate_refuses_what_does_not_belong_together() -> None:
    costs = unit_profile(2)
    with pytest.raises(InvalidSchedule, match="3 devices, the profile unit has 2"):
        simulate(Schedule(Shape(3, 1, 1), [[f"F{s}.0", f"BW{s}.0"] for s in range(3)]), costs)
    offloading = Schedule(Shape(2, 1, 1), [["F0.0", "O0.0", "R0.0", "BW0.0"], ["F1.0", "BW1.0"]])
    with pytest.raises(InvalidSchedule, match="no offload section"):
        simulate(offloading, costs)
    with pytest.raises(InvalidSchedule, match="engine: expected replay or simpy"):
        simulate(
            Schedule(Shape(2, 1, 1), [["F0.0", "BW0.0"], ["F1.0", "BW1.0"]]), costs, engine="x"
        )
    for links, problem in (
        ({"7/O": ["O0.0"]}, "no such link"),
        ({"0/O": []}, r"O0\.0 is missing"),
        ({"0/O": ["O0.0", "O1.0"]}, r"O1\.0 is no transfer of this link"),
        ({"0/O": ["O0.0", "O0.0"]}, "listed twice"),
    ):
        with pytest.raises(InvalidSchedule, match=problem):
            simulate(offloading.replace(link_order=links), profile(2))
