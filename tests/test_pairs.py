"""Pairs: a forward and a backward that run as one op."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from strategies import cases, that_fits

from optpipe_sim import Schedule, build, check, compare, load_profile, simulate, solve
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.errors import Deadlock, InvalidSchedule
from optpipe_sim.frameworks.megatron.family import choices, nearest
from optpipe_sim.frameworks.torch_csv import from_torch_csv, torch_csv
from optpipe_sim.ops import Pair
from optpipe_sim.reasons.reasons import Reasons
from optpipe_sim.report.columns import TraceColumns
from optpipe_sim.schedules.recompute import taken_apart

STAGE = {"t_f_ns": 100, "t_b_ns": 120, "t_w_ns": 80, "act_bytes": 40, "w_bytes": 10}


def _profile(**more: object):
    return load_profile({"devices": 2, "stages": STAGE, **more})


@pytest.mark.parametrize(("devices", "hidden"), [(2, 0), (2, 3), (4, 2), (4, 4), (8, 2)])
def test_the_published_bubble_of_dualpipe_v(devices: int, hidden: int) -> None:
    """(PP/2 - 1)(F&B + B - 3W) with PP/2 devices, B being the whole backward (DeepSeek-AI, DualPipe, README)."""
    f, b, w = 4, 4, 2
    profile = load_profile(
        {
            "devices": devices,
            "stages": {"t_f_ns": 2 * f, "t_b_ns": 2 * b, "t_w_ns": 2 * w, "act_bytes": 2},
            "pair_hidden_ns": 2 * hidden,
        }
    )
    schedule = build("dualpipe-v:pairs=yes", profile, 4 * devices)
    trace = simulate(schedule, profile)
    both = f + b + w - hidden
    assert trace.makespan_ns - min(trace.busy_ns) == (devices - 1) * (both + b + w - 3 * w)
    assert check(schedule, profile) == []
    by_default = build("dualpipe-v", profile, 4 * devices)
    assert by_default.has_pairs is (hidden > 0)


def test_pairs_hide_what_the_profile_says_of_their_stages() -> None:
    hidden = [[0, 1000], [30, 20]]
    profile = _profile(pair_hidden_ns=hidden, t_comm_ns=7)
    schedule = build("1f1b-i:chunks=1,pairs=yes", profile, 4)
    trace = simulate(schedule, profile)
    pair = next(one for one in schedule.programs[1] if isinstance(one, Pair))
    assert str(pair) == "F1.1+BW1.0"
    span, other = trace.span(pair.forward), trace.span(pair.backward)
    assert (span.start_ns, span.end_ns) == (other.start_ns, other.end_ns)
    assert span.end_ns - span.start_ns == 100 + 200 - 20
    # one number for all stages is at most the shorter op
    most = _profile(pair_hidden_ns=1000)
    span = simulate(schedule, most).span(pair.forward)
    assert span.end_ns - span.start_ns == 200
    # half as long stages hide half as much
    assert most.rechunk(2).pair_hidden == 500
    assert profile.rechunk(2).pair_hidden[3][0] == 15


def test_messages_of_a_pair_leave_one_after_the_other() -> None:
    profile = _profile(t_comm_ns=7, links="blocking")
    rows = [["F0.0", "F0.1+BW0.0", "BW0.1"], ["F1.0", "BW1.0", "F1.1", "BW1.1"]]
    schedule = Schedule(profile.shape(2), rows)
    for engine in ("replay", "simpy"):
        trace = simulate(schedule, profile, engine=engine)
        starts = {str(span.op): span.start_ns for span in trace.spans}
        assert starts["F0.1"] == starts["BW0.0"] == 107 + 100 + 200 + 7
        assert starts["F1.1"] == 414 + 300 + 7


def test_a_pair_that_needs_itself_never_starts() -> None:
    profile = _profile()
    rows = [["F0.0", "BW0.0"], ["F1.0+BW1.0"]]
    schedule = Schedule(profile.shape(1), rows)
    for engine in ("replay", "simpy"):
        with pytest.raises(Deadlock, match=r"F1\.0 waits for F1\.0"):
            simulate(schedule, profile, engine=engine)
    assert "circle" in check(schedule, profile)[0]


@pytest.mark.parametrize(
    "text", ["BW0.0+F0.1", "F0.0+F0.1", "F0.0+W0.0", "F0.0+B0.1+B0.2", "F0.0+"]
)
def test_what_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"is not (a pair|an op)"):
        Schedule(_profile().shape(2), [[text], []])


def test_pairs_in_files_and_in_torchs_csv() -> None:
    profile = _profile(pair_hidden_ns=20)
    schedule = build("1f1b-i:pairs=yes", profile, 4)
    assert schedule.has_pairs
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert Schedule.from_text(schedule.shape, schedule.to_text()) == schedule
    text = torch_csv(schedule)
    assert "(0F3;2B0)OVERLAP_F_B" in text
    assert from_torch_csv(text).programs == schedule.programs
    with pytest.raises(InvalidSchedule, match="is a pair, which recomputation apart cannot"):
        taken_apart(schedule)


def test_combined_1f1b_warms_up_with_one_more_forward() -> None:
    """Megatron-LM adds one to the warm-up with --overlap-moe-expert-parallel-comm."""
    profile = load_profile({"devices": 4, "stages": {**STAGE, "act_bytes": 10}})
    with_pairs, without = (
        build(f"1f1b-i:chunks=2,pairs={pairs}", profile, 8) for pairs in ("yes", "no")
    )
    for one, other in zip(with_pairs.flat_programs, without.flat_programs, strict=True):
        before = [[op.kind.name for op in each].index("BW") for each in (one, other)]
        assert before[0] == before[1] + 1
    peaks = [max(simulate(each, profile).peak_bytes) for each in (with_pairs, without)]
    assert peaks[0] == peaks[1] + 5  # one activation of a chunk more


@given(case=cases(levels=True, slices=True, differ=True, pairs=True))
def test_bounds_with_pairs_hold(case) -> None:
    profile, schedule = case
    trace = simulate(schedule, profile, enforce=False)
    free = replace(profile, memory_limit=None)
    pairs, m = schedule.has_pairs, schedule.shape.microbatches
    for objective in ("flush", "span"):
        for limit in (None, list(trace.peak_bytes)):
            bound = lower_bound(free, m, objective, limit, pairs).ns
            assert bound <= replace(trace, objective=objective).cost_ns


def test_forwards_before_the_first_backward_hide_nothing() -> None:
    """Device 0 of four waits 4 F + 3 B for its first backward, 14: 7 forwards fill that time, and the 9 others may hide 1 each. With
    memory for 4 activations only 4 forwards run before it."""
    stage = {"t_f_ns": 2, "t_b_ns": 2, "t_w_ns": 2, "act_bytes": 1, "w_bytes": 1}
    profile = load_profile({"devices": 4, "stages": stage, "pair_hidden_ns": 1})
    assert lower_bound(profile, 16, pairs=True) == (6 * 16 - (16 - 7), "fill and drain")
    tight = lower_bound(profile, 16, memory_limit=4, pairs=True)
    assert tight == (14 - 4 * 2 + 6 * 16 - (16 - 4), "fill and drain")


@pytest.mark.parametrize(("ranks", "chunks", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 12), (8, 2, 16)])
def test_megatrons_plan_with_and_without_overlap_has_megatrons_warm_up(
    ranks: int, chunks: int, m: int
) -> None:
    """get_pp_rank_microbatches of megatron/core/pipeline_parallel/schedules.py: 2 (p - r - 1) + (v - 1) g, one more with
    --overlap-moe-expert-parallel-comm."""
    for work in ({"exchange": "plain"}, {"exchange": "overlapped"}, {"pairs": "delayed-w"}):
        profile = load_profile(
            {
                "devices": ranks,
                "chunks": chunks,
                "stages": {**STAGE, "layers": 1},
                "meta": {"work": work, "model": {"kind": "experts"}},
            }
        )
        overlapped = work != {"exchange": "plain"}
        choice = next(choices(profile, m, chunks))
        schedule = choice.build(profile, m)
        assert schedule.has_pairs is overlapped
        for rank, program in enumerate(schedule.flat_programs):
            group = choice.group or ranks
            warm_up = 2 * (ranks - rank - 1) + (chunks - 1) * group + overlapped
            kinds = [op.kind.name for op in program]
            # the first backward follows the warm-up and the forward that is run with it
            assert kinds.index("BW") == min(warm_up + 1, m * chunks)
        # with the exchange hidden in every op, what runs without pairs is another order than Megatron-LM's, and said to be
        plain = build(f"1f1b-i:chunks={chunks}", profile, m)
        _, instead = nearest(plain, profile)
        assert bool(instead.lost) is (work == {"exchange": "overlapped"})


def test_the_halves_of_a_pair_are_drawn_above_one_another_and_explained_alike() -> None:
    profile = _profile(pair_hidden_ns=20, t_comm_ns=7)
    trace = simulate(build("dualpipe-v", profile, 4), profile)
    row = int(trace.schedule.paired.argmax())
    columns = TraceColumns(trace).ops
    assert columns["bottom"][row] == columns["top"][row + 1]
    assert columns["top"][row] < columns["bottom"][row] < columns["bottom"][row + 1]
    reasons = Reasons(trace)
    forward, back = trace.schedule.op(row), trace.schedule.op(row + 1)
    assert reasons.of_start(back) == reasons.of_start(forward)
    assert forward not in [reason.by for reason in reasons.of_start(back)]
    assert sum(trace.busy_ns) < sum((trace.end_ns - trace.start_ns).tolist())


def test_no_bound_is_beaten_by_pairs_that_the_trainer_has() -> None:
    stage = {"t_f_ms": 10, "t_b_ms": 12, "t_w_ms": 8, "act_bytes": 40, "w_bytes": 10}
    data = {"devices": 2, "chunks": 2, "stages": stage, "pair_hidden_ms": 6}
    profile = load_profile({**data, "execution": "megatron-lm"})
    paired = simulate(build("1f1b-i:pairs=yes", profile, 8), profile)
    assert paired.schedule.has_pairs
    own = {"engine": "search", "chunks": "own", "evaluations": 2000}
    found = solve(profile, 8, **own)
    assert found.trace.schedule.has_pairs
    assert found.lower_bound_ns <= found.objective_ns <= paired.cost_ns
    assert found.info["covers"] == "2 chunks per device in a loop"
    assert lower_bound(profile, 8).ns <= found.lower_bound_ns
    # who leaves pairs out is told that the bound does, too
    apart = solve(profile, 8, pairs=False, **own)
    assert not apart.trace.schedule.has_pairs
    assert apart.info["covers"] == "2 chunks per device in a loop (without pairs)"
    without = load_profile({**data, "execution": "zero-bubble-a100"})
    assert solve(without, 8, **own).info["covers"] == apart.info["covers"]
    names = ["1f1b-i", "1f1b-i:pairs=yes", "optpipe:engine=search,pairs=no,evaluations=500"]
    rows = compare(profile, 8, names)
    assert {row.schedule for row in rows} == set(names)
    assert max(row.bound.ns for row in rows) <= min(row.trace.cost_ns for row in rows)


@given(case=cases(levels=True, slices=True, differ=True, pairs=True))
def test_pairs_run_one_op_after_the_other_wherever_they_run_as_one(case) -> None:
    profile, schedule = case
    profile, trace = that_fits(profile, schedule)
    parted = schedule.parted()
    assert not parted.has_pairs
    assert parted.flat_programs == schedule.flat_programs
    assert parted.meta.get("parted", 0) == schedule.paired.sum()
    after = simulate(parted, profile)  # no deadlock
    for peak, limit in zip(after.peak_bytes, profile.memory_limit or after.peak_bytes, strict=True):
        assert peak <= limit
    assert trace.schedule.shape == after.schedule.shape
