"""Predicted against measured traces: the parts add up, and blame falls where it belongs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from strategies import cases
from unit_profiles import unit_profile

from optpipe_sim import Schedule, build, load_profile, simulate
from optpipe_sim.errors import Deadlock, InvalidSchedule
from optpipe_sim.ops import parse_op
from optpipe_sim.plot.confirm import confirm_figure
from optpipe_sim.schedule.shape import Shape
from optpipe_sim.sim.difference import beside_copies, compare_traces
from optpipe_sim.sim.lower import lower

MS = 10**6


def slowed(lowered, extra_ns):
    """What a run would measure in which these ops take so much longer."""
    durations = lowered.graph.durations[lowered.graph.op_at].copy()
    for op, time in extra_ns.items():
        durations[lowered.schedule.row(parse_op(op))] += time
    return lowered.replay(durations)


def peaks(schedule, profile):
    return simulate(schedule, profile, enforce=False).peak_bytes, profile.least_limits


def test_no_difference() -> None:
    lowered = lower(build("zb-h1", unit_profile(4), 8), unit_profile(4))
    difference = compare_traces(lowered, lowered.replay())
    assert difference.ratio == 1
    assert difference.causes_ns == {}
    assert {row.ratio for row in difference.kinds} == {1.0}
    assert sum(row.ops for row in difference.kinds) == len(lowered.schedule)


def test_a_slow_op_on_the_critical_path_is_blamed() -> None:
    lowered = lower(build("1f1b", unit_profile(4), 8), unit_profile(4))
    difference = compare_traces(lowered, slowed(lowered, {"F0.0": 5 * MS}))
    assert difference.causes_ns == {"F": 5 * MS}
    assert difference.path[0].op == parse_op("F0.0")
    assert difference.path[0].longer_ns == 5 * MS
    assert difference.path[0].waited_for is None


def test_where_ops_ran_beside_copies_the_corrected_prediction_stands_beside_the_ratios() -> None:
    """F0.1 runs for 10 ms, beside an O for the first 4 of them: at half its speed it loses 2."""
    factors = {"stages": [{"F": {"d2h": 2.0}}], "copies": {}, "idle_ns": 10**15}
    profile = load_profile(
        {
            "name": "one",
            "devices": 1,
            "stages": {"t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 10, "act_bytes": 100, "w_bytes": 50},
            "offload": {"t_offload_ms": 4, "t_reload_ms": 8},
            "meta": {"interference": factors},
        }
    )
    program = ["F0.0", "O0.0", "F0.1", "R0.0", "B0.0", "W0.0", "B0.1", "W0.1"]
    lowered = lower(Schedule(Shape(1, 1, 2), [program]), profile)
    alone = compare_traces(lowered, lowered.replay())
    assert alone.corrected is None
    assert {row.expected_ratio for row in alone.kinds} == {None}
    found = compare_traces(lowered, lowered.replay(), concurrent=True)
    assert found.corrected is not None
    ratios = {row.kind.name: (row.ratio, row.expected_ratio) for row in found.kinds}
    assert ratios["F"] == (1.0, 1.1)  # the median of 1 and 1.2
    assert ratios["B"] == ratios["O"] == (1.0, 1.0)
    unknown = lower(lowered.schedule, replace(profile, meta={}))
    assert compare_traces(unknown, lowered.replay(), concurrent=True).corrected is None


def test_ops_beside_copies_are_told_from_the_others() -> None:
    profile = unit_profile(2, offload={"t_offload_ms": 1, "t_reload_ms": 1})
    base = build("po-h", profile, 4)
    lowered = lower(base, profile)
    expected = lowered.replay()
    copies = [span for span in expected.spans if span.op.kind.name in "OR"]
    beside = {
        str(span.op): MS
        for span in expected.spans
        if span.op.kind.name not in "OR"
        and any(
            one.device == span.device and one.start_ns < span.end_ns and span.start_ns < one.end_ns
            for one in copies
        )
    }
    assert 0 < len(beside) < len(expected.spans) - len(copies)
    measured = slowed(lowered, {})
    found = beside_copies(compare_traces(lowered, measured))
    assert found == {"alone": 1.0, "beside": 1.0}
    # ops that had a copy beside them take longer by as much as the profile says: the copy still is there
    times = measured.end_ns.copy()
    for op in beside:
        times[lowered.schedule.row(parse_op(op))] += MS
    slower = replace(measured, end_ns=times)
    assert beside_copies(compare_traces(lowered, slower))["beside"] > 1.3
    assert beside_copies(compare_traces(lowered, slower))["alone"] == 1.0
    plain = lower(build("1f1b", unit_profile(2), 4), unit_profile(2))
    assert beside_copies(compare_traces(plain, plain.replay())) == {"alone": 1.0}


def test_a_slow_op_off_the_path_first_uses_up_the_slack() -> None:
    profile = unit_profile(4)
    lowered = lower(build("zb-h1", profile, 8), profile)
    # the last device's weight passes leave gaps of 1 ms around them; a long one shows, less them
    base = lowered.replay().makespan_ns
    measured = slowed(lowered, {"W0.7": 9 * MS})
    difference = compare_traces(lowered, measured)
    assert sum(difference.causes_ns.values()) == measured.makespan_ns - base
    assert difference.causes_ns["W"] == 9 * MS


def test_late_messages_and_launches_are_told_apart() -> None:
    profile = unit_profile(2, t_comm_ms=1)
    lowered = lower(build("1f1b", profile, 1), profile)
    predicted = lowered.replay()
    late = predicted.start_ns * 2  # everything but the first op starts later than it could
    measured = replace(
        predicted, start_ns=late, end_ns=late + predicted.end_ns - predicted.start_ns, grant_ns=late
    )
    difference = compare_traces(lowered, measured)
    # F0 1, hop 1, F1 starts at 4 (2 late), BW1 at 6 (1 late), hop, BW0 at 12 (3 late)
    assert difference.causes_ns == {"message": 2 * MS + 3 * MS, "launch": 1 * MS}
    assert [str(step.op) for step in difference.path] == ["F0.0", "F1.0", "BW1.0", "BW0.0"]


@given(cases(), st.randoms(use_true_random=False))
def test_the_parts_add_up(case, random) -> None:
    profile, schedule = case
    limit = [max(peak, least) for peak, least in zip(*peaks(schedule, profile), strict=True)]
    try:
        lowered = lower(schedule, profile, limit)
    except Deadlock:  # an O of no length may end at the instant of a grant and yet wait for it
        reject()
    planned = lowered.graph.durations[lowered.graph.op_at]
    durations = np.array([max(0, time + random.randint(-time, time)) for time in planned.tolist()])
    measured = lowered.replay(durations)
    difference = compare_traces(lowered, measured)
    total = measured.makespan_ns - difference.predicted.makespan_ns
    assert sum(difference.causes_ns.values()) == total
    assert difference.slack_ns >= 0
    # replayed, nothing is later than what it waits for
    assert {step.late_ns for step in difference.path} <= {0}
    assert difference.measures()["measured_makespan_ns"] == measured.makespan_ns


def test_another_schedule_is_refused() -> None:
    profile = unit_profile(4)
    lowered = lower(build("1f1b", profile, 8), profile)
    other = lower(build("zb-h1", profile, 8), profile).replay()
    with pytest.raises(InvalidSchedule, match="another schedule"):
        compare_traces(lowered, other)


def test_the_figure_shows_both_timelines_and_the_causes() -> None:
    profile = unit_profile(4)
    lowered = lower(build("zb-h1", profile, 8), profile)
    difference = compare_traces(lowered, slowed(lowered, {"F0.0": 5 * MS, "B2.3": 2 * MS}))
    above, below = confirm_figure(difference).axes
    boxes = [len(c.get_paths()) for c in above.collections]
    # per timeline a lane for each device and a box for each op
    assert sum(boxes) == 2 * (4 + len(lowered.schedule))
    names = [label.get_text() for label in below.get_yticklabels()]
    assert names[0] == "predicted"
    assert names[-1] == "measured"
    assert len(names) == len(difference.causes_ns) + 2
    assert f"{100 * (difference.ratio - 1):+.1f} %" in above.get_title(loc="left")
