"""Recomputation: the table of what ops take and allocate, worked by hand; schedules by name."""

from __future__ import annotations

import pytest
from recompute_cases import profile

from optpipe_sim import CostProfile, Schedule, build, check, load_profile, simulate
from optpipe_sim.errors import InvalidSchedule, ProfileError
from optpipe_sim.ops import parse_op
from optpipe_sim.profile.parts import divide, merge
from optpipe_sim.reasons.explain import explain, why
from optpipe_sim.schedule import Shape
from optpipe_sim.stage_cost import RecomputeLevel, StageCost


@pytest.mark.parametrize(
    ("program", "level", "levels_of_memory", "makespan"),
    [
        # kept whole: 100 from F to B, then w
        ("F0.0 B0.0 W0.0", None, [(0, 100), (21, 50), (30, 0)], 30),
        # inside a split B: F 6 + 30, then 6; B allocates max(30, 50 - 6) = 44 and leaves w
        ("F0.0 B0.0 W0.0", "full", [(0, 36), (10, 6), (10, 50), (31, 50), (40, 0)], 40),
        ("F0.0 B0.0 W0.0", "light", [(0, 80), (10, 60), (10, 80), (22, 50), (31, 0)], 31),
        # inside BW: 6 + 30 while it runs
        ("F0.0 BW0.0", "full", [(0, 36), (10, 36), (40, 0)], 40),
        # apart: C brings back 100 - 6
        ("F0.0 C0.0 B0.0 W0.0", "full", [(0, 36), (10, 100), (31, 50), (40, 0)], 40),
        # recomputed and offloaded: copies move 60 of 100 bytes, 9.6 rounds to 10; the reload is
        # granted with its anchor, F
        (
            "F0.0 O0.0 R0.0 B0.0 W0.0",
            "light",
            [(0, 140), (10, 120), (20, 60), (30, 80), (42, 50), (51, 0)],
            51,
        ),
    ],
)
def test_memory_equals_a_hand_computed_example(
    program: str, level: str | None, levels_of_memory: list[tuple[int, int]], makespan: int
) -> None:
    recompute = {"0": level} if level else {}
    schedule = Schedule(Shape(1, 1, 1), [program.split()], recompute=recompute)
    for engine in ("simpy", "replay"):
        trace = simulate(schedule, profile(), engine=engine)
        steps = trace.memory[0]
        at = dict(zip(steps.times_ns.tolist(), steps.bytes.tolist(), strict=True))
        # of several entries at one instant the last counts
        for time, held in dict(levels_of_memory).items():
            known = max(one for one in at if one <= time)
            assert at[known] == held, (engine, time)
        assert trace.makespan_ns == makespan
    assert check(schedule, profile()) == []


def test_recomputed_time_is_shown_as_overhead() -> None:
    trace = simulate(build("1f1b:recompute=full", profile(4), 8), profile(4))
    assert trace.recompute_ns == (80, 80, 80, 80)
    assert trace.busy_ns == (320, 320, 320, 320)
    assert trace.recomputed == 32
    apart = simulate(build("1f1b:recompute=full,apart=yes", profile(4), 8), profile(4))
    assert apart.recompute_ns == trace.recompute_ns
    # apart, the recomputation of the cool-down fills idle time
    assert apart.makespan_ns < trace.makespan_ns
    assert "recomputed at level full, inside its backward" in why(
        trace, parse_op("B0.3") if trace.schedule.row(parse_op("B0.3")) >= 0 else parse_op("BW0.3")
    )
    assert "32 of 32 activations are recomputed" in explain(trace)


@pytest.mark.parametrize(
    "name",
    [
        "gpipe",
        "1f1b",
        "1f1b-i",
        "zb-h1",
        "zb-2p",
        "zb-v",
        "v-half",
        "v-min",
        "gis",
        "po-f",
        "dualpipe-v",
        "adaoffload",
    ],
)
@pytest.mark.parametrize("apart", ["no", "yes"])
def test_every_named_schedule_accepts_a_level(name: str, apart: str) -> None:
    costs = profile(4, memory_limit_bytes=2000)
    schedule = build(f"{name}:recompute=full,apart={apart}", costs, 8)
    assert check(schedule, costs) == []
    trace = simulate(schedule, costs)
    assert trace.recomputed == schedule.shape.stages * 8
    assert set(schedule.recompute.values()) == {"full"}
    plain = simulate(build(name, costs, 8), costs)
    assert max(trace.peak_bytes) < max(plain.peak_bytes)


def blocks(devices: int = 2, **changes: object) -> CostProfile:
    """Stages of four layers, of which one, two or four can be recomputed."""
    levels = [
        {"name": f"k{count}", "t_ns": 2 * count, "keep_bytes": 80 - 20 * count, "layers": count}
        for count in (1, 2, 4)
    ]
    levels[-1]["name"] = "full"
    stages = {"t_f_ns": 8, "t_b_ns": 8, "t_w_ns": 8, "act_bytes": 80, "w_bytes": 40, "layers": 4}
    data = {"name": "blocks", "devices": devices, "stages": {**stages, "recompute": levels}}
    return load_profile({**data, **changes})


@pytest.mark.parametrize(
    ("name", "level", "extra_ns", "keep_bytes"),
    [
        ("1f1b:recompute=full,layers=1", "k1", 2, 60),
        ("1f1b:recompute=full,layers=2", "k2", 4, 40),
        ("1f1b:recompute=full,layers=4", "full", 8, 0),
        ("1f1b:recompute=full,layers=9", "full", 8, 0),
        # chunks of two layers: one of them is half of what two of four are
        ("1f1b-i:chunks=2,recompute=full,layers=1", "k2", 2, 20),
        ("1f1b-i:chunks=2,recompute=full,layers=2", "full", 4, 0),
    ],
)
def test_block_recomputation_of_the_first_layers(
    name: str, level: str, extra_ns: int, keep_bytes: int
) -> None:
    profile = blocks()
    schedule = build(name, profile, 4)
    assert check(schedule, profile) == []
    assert set(schedule.recompute.values()) == {level}
    assert len(schedule.recompute) == schedule.shape.stages
    chosen = profile.for_shape(schedule.shape).stages[0].level(level)
    assert chosen is not None
    assert (chosen.t_ns, chosen.keep_bytes) == (extra_ns, keep_bytes)
    trace = simulate(schedule, profile)
    assert trace.recompute_ns == (4 * schedule.shape.chunks * extra_ns,) * 2
    plain = simulate(build(name.partition(":")[0], profile, 4), profile)
    assert trace.makespan_ns > plain.makespan_ns


def test_layers_that_no_level_recomputes_are_named() -> None:
    with pytest.raises(
        InvalidSchedule,
        match=r"layers=3: stage 0 of 2 has no level that recomputes this many layers;"
        r" it has k1 \(1 layer\), k2 \(2 layers\), full \(4 layers\)",
    ):
        build("1f1b:recompute=full,layers=3", blocks(), 2)
    with pytest.raises(InvalidSchedule, match="it has none that says its layers"):
        build("1f1b:recompute=full,layers=3", profile(), 2)
    with pytest.raises(InvalidSchedule, match="layers: must be at least 1, got 0"):
        build("1f1b:recompute=full,layers=0", blocks(), 2)
    with pytest.raises(InvalidSchedule, match="layers=2 says how to recompute; give recompute="):
        build("1f1b:layers=2", blocks(), 2)


def test_layers_of_a_level_divide_and_merge_with_their_stage() -> None:
    (cost,) = set(blocks().stages)
    halves = divide(cost, 2)
    assert [level.layers for level in halves[0].recompute] == [None, 1, 2]
    assert [level.layers for level in merge([cost, cost]).recompute] == [2, 4, 8]
    assert [level.layers for level in merge(halves).recompute] == [None, 2, 4]


def test_a_level_that_is_missing_is_named() -> None:
    with pytest.raises(
        InvalidSchedule,
        match=r"recompute=ful: the profile small has no such level; it has light, full",
    ):
        build("1f1b:recompute=ful", profile(), 2)
    with pytest.raises(
        InvalidSchedule, match="apart=yes says how to recompute; give recompute=LEVEL"
    ):
        build("1f1b:apart=yes", profile(), 2)
    with pytest.raises(
        InvalidSchedule, match="stage 0 has no level 'all' in the profile small; it has light, full"
    ):
        simulate(build("1f1b", profile(), 2).replace(recompute={"0": "all"}), profile())
    program = [["F0.0", "C0.0", "B0.0", "W0.0"]]
    with pytest.raises(InvalidSchedule, match=r"C0\.0 recomputes what is kept whole"):
        simulate(Schedule(Shape(1, 1, 1), program), profile())
    assert "no level is given" in check(Schedule(Shape(1, 1, 1), program), profile())[0]


@pytest.mark.parametrize(
    ("level", "problem"),
    [
        ({"name": "x", "t_ns": 1}, r"stages.recompute\[0\].keep_mib: missing"),
        ({"name": "x", "keep_bytes": 1}, r"stages.recompute\[0\].t_ms: missing"),
        ({"name": "x", "t_ns": 1, "keep_bytes": 101}, "101 B is more than act_bytes, 100 B"),
        ({"name": "x", "t_ns": 0, "keep_bytes": 1}, r"t_ns: must be above 0"),
        ({"t_ns": 1, "keep_bytes": 1}, "name: expected a text"),
        ({"name": "x", "t_ns": 1, "keep_bytes": 1, "w": 3}, r"recompute\[0\].w: unknown key"),
    ],
)
def test_bad_levels_are_refused_by_name(level: dict[str, object], problem: str) -> None:
    stage = {"t_f_ns": 1, "t_b_ns": 1, "t_w_ns": 1, "act_bytes": 100, "recompute": [level]}
    with pytest.raises(ProfileError, match=problem):
        load_profile({"devices": 1, "stages": stage})


def test_levels_merge_by_name_and_divide() -> None:
    two = StageCost(10, 11, 9, 100, 50, recompute=(RecomputeLevel("full", 10, 6, 30),))
    plain = StageCost(10, 11, 9, 100, 50)
    merged = merge([two, two])
    assert merged.recompute == (RecomputeLevel("full", 20, 12, 30),)
    # a stage without that name is kept whole
    assert merge([two, plain]).recompute == (RecomputeLevel("full", 10, 106, 30),)
    first, second = divide(merge([two, two]), 2)
    assert first.recompute == second.recompute == two.recompute
    # working bytes of a part are at most what it drops
    assert divide(two, 10)[5].recompute == (RecomputeLevel("full", 1, 0, 10),)


def test_the_level_of_one_activation_takes_precedence() -> None:
    shape = Shape(1, 1, 2)
    program = [["F0.0", "F0.1", "BW0.0", "BW0.1"]]
    schedule = Schedule(shape, program, recompute={"0.1": "light", "0": "full"})
    assert schedule.recompute == {"0.0": "full", "0.1": "light"}
    assert Schedule.from_json(schedule.to_json()) == schedule
    trace = simulate(schedule, profile())
    assert (trace.span(parse_op("BW0.0")).end_ns, trace.makespan_ns) == (50, 71)


def test_blocking_links_keep_the_sender_busy() -> None:
    costs = load_profile(
        {
            "name": "b",
            "devices": 2,
            "links": "blocking",
            "t_comm_ns": 5,
            "stages": {"t_f_ns": 10, "t_b_ns": 10, "t_w_ns": 0, "act_bytes": 1},
        }
    )
    trace = simulate(build("1f1b", costs, 2), costs)
    # device 0: F 0-10, sends until 15, F 15-25, sends until 30; device 1 gets the first at 15
    assert [span.start_ns for span in trace.spans if span.device == 0][:2] == [0, 15]
    assert trace.span(parse_op("F1.0")).start_ns == 15
    assert trace.idle_by_device_ns[0]["communication"] >= 5
    assert check(build("1f1b", costs, 2), costs) == []
