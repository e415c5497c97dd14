"""PipeOffload: the official code's peaks, the bubble, copies on every kind of engine and link."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Op, Schedule, build, check, load_profile, simulate
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.ops import F, O, R
from optpipe_sim.schedule import validate

# d = 8, unit costs, k = 1: peak chunk activations by v and the number of chunks offloaded
OFFICIAL_PEAK = {(4, 0): 23, (4, 1): 15, (4, 2): 9, (8, 0): 39, (8, 1): 31, (8, 4): 13, (8, 8): 6}
PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7]]
SETTINGS: list[dict[str, Any]] = [
    {"copy_engines": "separate"},
    {"copy_engines": "shared"},
    {"copy_engines": "separate", "host_link_groups": PAIRS},
    {"copy_engines": "shared", "host_link_groups": PAIRS},
    {"copy_engines": "shared", "host_link": "per_direction", "host_link_groups": PAIRS},
    {"copy_engines": "separate", "host_link": "single", "host_link_groups": [[0, 1, 2]]},
]


def profile_of(chunks: int, copy_ms: float = 1.5, **offload: Any) -> CostProfile:
    stages = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 100}
    times = {"t_offload_ms": copy_ms, "t_reload_ms": copy_ms}
    return unit_profile(8, chunks, stages=stages, offload={**times, **offload})


@pytest.mark.parametrize("engines", ["separate", "shared"])
@pytest.mark.parametrize(("chunks", "offloaded"), OFFICIAL_PEAK)
def test_official_peaks_and_bubble_below_1f1b(chunks: int, offloaded: int, engines: str) -> None:
    profile = profile_of(chunks, copy_engines=engines)
    schedule = build("po", profile, 32, offloaded=offloaded)
    trace = simulate(schedule, profile)
    assert max(trace.peak_bytes) <= 100 * OFFICIAL_PEAK[chunks, offloaded]
    assert schedule.meta["dropped"] == 0
    assert trace.makespan_ns - max(trace.busy_ns) < 7 * chunks * 3 * 1_000_000


@pytest.mark.parametrize("offload", SETTINGS)
@pytest.mark.parametrize("name", ["po", "po-h", "po-f"])
def test_copies_cost_no_time(name: str, offload: dict[str, Any]) -> None:
    """The plan delays nothing that computes: as long as without offloading, on any links; and the
    schedule goes through under its own peak."""
    profile = profile_of(4, **offload)
    schedule = build(name, profile, 12)
    trace = simulate(schedule, profile)
    kept = simulate(build("po", profile, 12, offloaded=0), profile)
    assert trace.makespan_ns <= kept.makespan_ns
    assert max(trace.peak_bytes) < max(kept.peak_bytes)
    assert trace.offloaded > 0
    again = simulate(schedule, profile, trace.peak_bytes)
    assert again.makespan_ns == trace.makespan_ns


def test_first_chunks_go() -> None:
    profile = profile_of(4)
    for name, count in (("po-h", 2), ("po-f", 4), ("po:offloaded=1", 1), ("po:offloaded=0", 0)):
        schedule = build(name, profile, 16)
        assert {op.stage // 8 for op in ops_of(schedule, O)} == set(range(count))
    assert build("po-h:chunks=3", profile, 16) == build("po", profile, 16, chunks=3, offloaded=2)


def test_default_offloads_what_the_engines_carry() -> None:
    """k = 1: all chunks; k = 2: half of them; with an engine per direction twice as many."""
    for copy_ms, engines, chunks in ((1.5, "shared", 4), (3, "shared", 2), (3, "separate", 4)):
        profile = profile_of(4, copy_ms, copy_engines=engines)
        assert build("po", profile, 16) == build("po", profile, 16, offloaded=chunks)


def test_short_lived_activations_stay() -> None:
    """Longer than three round trips from the end of F to one B before B, or it stays."""
    profile = profile_of(4)
    schedule = build("po-f", profile, 16)
    trace = simulate(build("po", profile, 16, offloaded=0), profile)
    gone = {op[1:] for op in ops_of(schedule, O)}
    for forward in ops_of(schedule, F):
        back = trace.span(Op(forward.kind.B, *forward[1:]))
        life = back.start_ns - 1_000_000 - trace.span(forward).end_ns
        assert (forward[1:] in gone) == (life > 3 * 3_000_000)


def test_where_copies_are_too_slow_some_are_dropped_and_counted() -> None:
    profile = profile_of(4, copy_ms=6, copy_engines="shared")
    schedule = build("po-f", profile, 16)
    trace = simulate(schedule, profile)
    assert schedule.meta["dropped"] > 0
    assert trace.offloaded > 0
    kept = simulate(build("po", profile, 16, offloaded=0), profile)
    assert trace.makespan_ns <= kept.makespan_ns
    assert max(trace.peak_bytes) < max(kept.peak_bytes)


def test_offload_stands_behind_its_forward() -> None:
    programs = build("po-h", profile_of(4), 8).programs
    assert any(op.kind is O for program in programs for op in program)
    for program in programs:
        for at, op in enumerate(program):
            if op.kind is O:
                before = next(other for other in reversed(program[:at]) if other.kind not in (O, R))
                assert before == op._replace(kind=F)


def test_link_order_only_where_links_are_shared() -> None:
    assert build("po-h", profile_of(2), 8).link_order == {}
    order = build("po-h", profile_of(2, host_link_groups=[[0, 1]]), 8).link_order
    assert set(order) == {"0/O", "0/R"}
    assert {op.stage % 8 for op in order["0/O"]} == {0, 1}


def ops_of(schedule: Schedule, kind: Any) -> list[Op]:
    return [op for program in schedule.programs for op in program if op.kind is kind]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_uneven_costs_run_through(data: st.DataObject) -> None:
    p, chunks = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    short, copy = st.integers(1, 40), st.integers(0, 60)
    count = p * chunks
    stages = [
        {"t_f_us": f, "t_b_us": b, "t_w_us": w, "act_bytes": a, "w_bytes": a // 2}
        for f, b, w, a in (data.draw(st.tuples(short, short, copy, short)) for _ in range(count))
    ]
    several = st.lists(copy, min_size=count, max_size=count)
    devices = data.draw(st.permutations(range(p)))
    cut = data.draw(st.integers(0, p))
    profile = load_profile(
        {
            "devices": p,
            "chunks": chunks,
            "stages": stages,
            "t_comm_us": data.draw(copy),
            "offload": {
                "t_offload_us": data.draw(several),
                "t_reload_us": data.draw(several),
                "copy_engines": data.draw(st.sampled_from(["separate", "shared"])),
                "host_link": data.draw(st.sampled_from(["per_direction", "single"])),
                "host_link_groups": [list(devices[:cut])],
            },
        }
    )
    m, group = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    options = {"chunks": chunks, "group": group}
    schedule = build("po", profile, m, offloaded=data.draw(st.integers(0, chunks)), **options)
    validate(schedule)
    trace = simulate(schedule, profile)
    kept = simulate(build("po", profile, m, offloaded=0, **options), profile)
    assert trace.makespan_ns <= kept.makespan_ns
    assert simulate(schedule, profile, trace.peak_bytes).makespan_ns == trace.makespan_ns


def test_an_offload_waits_for_a_reload_on_a_link_of_ones_own() -> None:
    stage = {"t_f_us": 1, "t_b_us": 1, "t_w_us": 0, "act_bytes": 1}
    copies = {
        f"t_{kind}_us": [0, 0, 0, us] + 6 * [0] for kind, us in (("offload", 5), ("reload", 18))
    }
    offload = {**copies, "host_link": "single"}
    profile = load_profile(
        {"devices": 5, "chunks": 2, "stages": stage, "t_comm_us": 10, "offload": offload}
    )
    away, kept = (
        simulate(build("po", profile, 6, chunks=2, group=1, offloaded=count), profile)
        for count in (1, 0)
    )
    assert away.offloaded > 0
    assert away.makespan_ns == kept.makespan_ns


@pytest.mark.parametrize("name", ["po", "po-h", "po-f"])
def test_needs_an_offload_section(name: str) -> None:
    with pytest.raises(InvalidSchedule, match="has no offload section"):
        build(name, unit_profile(4, 2), 8)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"offloaded": 5}, "offloaded: must be from 0 to 4, .* got 5"),
        ({"offloaded": -1}, "offloaded: must be from 0 to 4, .* got -1"),
        ({"group": 0}, "group: must be at least 1"),
        ({"chunks": 0}, "chunks: must be at least 1"),
    ],
)
def test_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(InvalidSchedule, match=said):
        build("po", profile_of(4), 8, **options)


SELECTIVE = {"name": "selective", "t_ns": 1, "keep_bytes": 60, "work_bytes": 20}


def recomputing(engines: str) -> CostProfile:
    """Copies of 16 each way take longer than F, B and W of 30 where one engine serves both; of the
    60 % that selective recomputation keeps, copies of 10 take less."""
    stages = {"t_f_ns": 10, "t_b_ns": 11, "t_w_ns": 9, "act_bytes": 100, "w_bytes": 50}
    offload = {"t_offload_ns": 16, "t_reload_ns": 16, "copy_engines": engines}
    return load_profile(
        {
            "name": "recomputing",
            "devices": 4,
            "chunks": 4,
            "stages": {**stages, "recompute": [SELECTIVE]},
            "t_comm_ns": 1,
            "offload": offload,
        }
    )


def test_selective_recomputation_lets_more_chunks_be_offloaded() -> None:
    """PipeOffload, section 3.1: dropping what is cheap to recompute shrinks the copies."""
    profile = recomputing("shared")
    assert build("po", profile, 16).programs == build("po:offloaded=3", profile, 16).programs
    selective = build("po:recompute=selective", profile, 16)
    assert selective.programs == build("po:offloaded=4,recompute=selective", profile, 16).programs


@pytest.mark.parametrize("engines", ["separate", "shared"])
@pytest.mark.parametrize("apart", ["no", "yes"])
def test_with_selective_recomputation_copies_move_what_stays(engines: str, apart: str) -> None:
    profile, microbatches = recomputing(engines), 16
    plain = simulate(build("po-f", profile, microbatches), profile)
    schedule = build(f"po-f:recompute=selective,apart={apart}", profile, microbatches)
    assert check(schedule, profile) == []
    trace = simulate(schedule, profile)
    spans = {str(span.op): (span.start_ns, span.end_ns) for span in trace.spans}
    assert trace.offloaded
    assert schedule.meta["dropped"] == 0
    for op, (start, end) in spans.items():
        if op[0] in "OR":
            assert end - start == 10  # 16 * 60 %, rounded
        if op[0] == "R":
            assert spans["B" + op[1:]][0] >= end
            assert apart == "no" or spans["C" + op[1:]][0] >= end
    # one more per op and round, and while the pipeline fills
    rounds = profile.chunks * (microbatches + profile.devices)
    assert plain.makespan_ns < trace.makespan_ns <= plain.makespan_ns + rounds
    # what is kept is 60 %; beside it one stage recomputes, in 20 or apart in 40
    extra = 40 if apart == "yes" else 20
    assert max(trace.peak_bytes) <= 0.6 * max(plain.peak_bytes) + extra
    limited = simulate(schedule, profile, trace.peak_bytes)
    assert limited.makespan_ns == trace.makespan_ns
