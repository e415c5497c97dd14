"""Profiles that give a fused backward alone: what runs on them, what says what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from solving import verify
from strategies import profiles
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, build, check, compare, load_profile, simulate, solve
from optpipe_sim.checker.check import check_trace
from optpipe_sim.errors import InvalidSchedule, OptPipeError, ProfileError
from optpipe_sim.names import ENTRIES
from optpipe_sim.profile.parts import divide, merge
from optpipe_sim.profile_io import profile_to_json
from optpipe_sim.schedule.fused import as_split, fuse
from optpipe_sim.sim.scenarios import Noise
from optpipe_sim.solvers.robust import solve_robust
from optpipe_sim.stage_cost import StageCost

STAGE = {"t_f_ms": 10, "t_bw_ms": 21, "act_mib": 100, "static_mib": 50, "layers": 4}
DATA: dict[str, Any] = {
    "name": "whole",
    "devices": 4,
    "stages": STAGE,
    "t_comm_ms": 1,
    "offload": {"t_offload_ms": 8, "t_reload_ms": 8},
}
NEED_NO_SPLIT = {
    "gpipe", "1f1b", "1f1b-i", "gis", "gis-h", "po", "po-h", "po-f", "megatron-offload", "adapipe", "mario",
    "megatron-partial", "kimi-k2", "chronos", "adaoffload", "adaoffload-r", "seq1f1b", "seq1f1b-i", "slimpipe", "sppo",
}  # fmt: skip


def whole_stages(profile: CostProfile, seed: int, all_of_them: bool = False) -> CostProfile:
    """The profile with the backward of some stages, one at least, as one."""
    random = Random(seed)
    chosen = {random.randrange(len(profile.stages))}

    def change(at: int, cost: StageCost) -> StageCost:
        if not (all_of_them or at in chosen or random.random() < 0.5):
            return cost
        fused = {"t_b_ns": cost.fused_ns, "t_w_ns": 0, "t_bw_ns": None, "w_bytes": 0}
        return replace(cost, **fused, splits=False)

    changed = profile.map_stages(change)
    limit = changed.memory_limit
    least = changed.least_limits
    return replace(changed, memory_limit=limit and tuple(map(max, limit, least)))


def kinds_at_whole_stages(schedule: Schedule, profile: CostProfile) -> set[str]:
    stages = profile.for_shape(schedule.shape).stages
    return {
        op.kind.name
        for program in schedule.programs
        for op in program
        if not stages[op.stage].splits
    }


@given(profiles(levels=True), st.integers(0, 99))
def test_round_trip(profile: CostProfile, seed: int) -> None:
    whole = whole_stages(profile, seed)
    again = load_profile(profile_to_json(whole))
    assert again == whole
    assert [cost.splits for cost in again.stages] == [cost.splits for cost in whole.stages]


def test_file_says_the_backward_as_one(tmp_path: Path) -> None:
    profile = load_profile(DATA)
    (cost,) = set(profile.stages)
    assert (cost.t_b_ns, cost.t_w_ns, cost.w_bytes, cost.splits) == (21_000_000, 0, 0, False)
    entry = profile_to_json(profile)["stages"]
    assert entry["t_bw_ns"] == 21_000_000
    assert not {"t_b_ns", "t_w_ns", "w_bytes"} & set(entry)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"t_b_ms": 10}, "stages.t_w_ms: missing"),
        ({"t_w_ms": 10}, "stages.t_b_ms: missing"),
        ({"t_bw_ms": None}, "stages.t_b_ms: missing"),
        ({"w_mib": 50}, "stages.w_mib: is held from B to W: give t_b_ms and t_w_ms"),
        ({"w_gib": 1}, "stages.w_gib: is held from B to W: give t_b_ms and t_w_ms"),
        (
            {"recompute": [{"name": "full", "t_ms": 1, "keep_mib": 1, "b_work_mib": 2}]},
            "stages.recompute[0].b_work: is of B alone",
        ),
    ],
)
def test_what_is_half_a_split_is_one_line(changes: dict[str, Any], sentence: str) -> None:
    stage = {key: value for key, value in {**STAGE, **changes}.items() if value is not None}
    with pytest.raises(ProfileError) as caught:
        load_profile({**DATA, "stages": stage})
    assert sentence in str(caught.value)


def test_schedules_that_need_no_split_run_and_the_others_say_what_is_missing() -> None:
    profile = load_profile(DATA)
    for name in ENTRIES.keys() - {"optpipe"}:
        if name not in NEED_NO_SPLIT:
            with pytest.raises(InvalidSchedule) as caught:
                build(name, profile, 8)
            assert str(caught.value) == (
                f"{name}: runs B and W apart, and the profile whole has them only as one (t_bw):"
                " it needs stages.t_b_ms and stages.t_w_ms"
            )
            continue
        schedule = build(name, profile, 8)
        assert kinds_at_whole_stages(schedule, profile) <= {"F", "BW", "O", "R"}
        assert check(schedule, profile) == []
        trace = simulate(schedule, profile)
        assert trace == replace(simulate(schedule, profile, engine="simpy"))
        assert check_trace(trace) == []
    names = {row.schedule for row in compare(profile, 8, sorted(ENTRIES.keys() - {"optpipe"}))}
    assert names == NEED_NO_SPLIT


def test_one_whole_stage_is_named() -> None:
    stages = [{"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_mib": 1}] * 3
    profile = load_profile({**DATA, "stages": [*stages, STAGE], "offload": None})
    with pytest.raises(InvalidSchedule, match=r"it needs stages\[3\]\.t_b_ms and stages\[3\]"):
        build("zb-h1", profile, 8)


def test_a_split_is_refused_by_both_judges() -> None:
    split = unit_profile(4)
    schedule = build("zb-h1", split, 4)
    whole = whole_stages(split, 0, all_of_them=True)
    with pytest.raises(InvalidSchedule, match="runs B and W apart"):
        simulate(schedule, whole)
    problems = check(schedule, whole)
    assert len(problems) == 4
    assert "device 0: B0.0 is a part of a backward of which the profile" in problems[0]
    assert check_trace(replace(simulate(schedule, split), profile=whole))[:4] == problems


@given(
    profiles(max_devices=3, max_chunks=2),
    st.integers(0, 99),
    st.sampled_from(["zb-h1", "zb-v", "gis", "po", "1f1b"]),
)
def test_nothing_is_slower_or_larger_for_being_fused(
    profile: CostProfile, seed: int, name: str
) -> None:
    whole = whole_stages(replace(profile, memory_limit=None), seed)
    try:
        schedule = build(name, as_split(whole), whole.devices * 2)
    except OptPipeError:  # it offloads, and the profile does not
        reject()
    fused, costs = fuse(schedule, whole), whole.for_shape(schedule.shape)
    assert not {"B", "W"} & kinds_at_whole_stages(fused, whole)
    before = simulate(schedule, as_split(costs))
    apart = whole.links == "latency" and not (whole.shares_copy_engine or whole.shares_host_link)
    if (
        apart and len(whole.host_links) == whole.devices
    ):  # first come, first served has its anomalies
        after = simulate(fused, whole, before.peak_bytes)
        assert after.makespan_ns <= before.makespan_ns
    if not before.offloaded:  # an R that came after a W may now be granted while the BW runs
        peaks = simulate(fused, whole).peak_bytes
        assert all(new <= old for new, old in zip(peaks, before.peak_bytes, strict=True))


@settings(max_examples=8)
@given(
    profiles(max_devices=3, max_chunks=1, offload=False),
    st.integers(0, 99),
    st.sampled_from(["search", "cpsat", "milp", "auto"]),
)
def test_solve_gives_whole_backwards_and_proves_the_same(
    profile: CostProfile, seed: int, engine: str
) -> None:
    whole = whole_stages(profile, seed)
    found = solve(whole, 2, engine=engine, time_limit=3, workers=1, chunks="own")
    assert found.schedule is not None
    assert not {"B", "W"} & kinds_at_whole_stages(found.schedule, whole)
    verify(found, whole, None)
    split = solve(as_split(whole), 2, engine="cpsat", time_limit=3, workers=1)
    if split.status == "optimal" and found.status == "optimal":
        assert split.objective_ns == found.objective_ns
    assert found.lower_bound_ns <= split.objective_ns
    assert split.lower_bound_ns <= found.objective_ns


def test_solve_with_offloads_recomputation_shapes_and_noise(tmp_path: Path) -> None:
    level = {"name": "full", "t_ms": 10, "keep_mib": 10}
    profile = load_profile({**DATA, "stages": {**STAGE, "recompute": [level]}})
    limit = 260 * 2**20
    seen: list[Schedule] = []
    found = solve(
        profile, 6, limit, time_limit=1, workers=1, save=tmp_path / "s.json",
        on_incumbent=lambda schedule, _: seen.append(schedule),
    )  # fmt: skip
    verify(found, profile, limit)
    assert Schedule.load(tmp_path / "s.json") == found.schedule
    shaped = solve(profile, 6, limit, time_limit=1, workers=1, chunks="any")
    robust = solve_robust(profile, 6, limit, noise=Noise(op=0.1), samples=20, time_limit=1)
    for schedule in (*seen, found.schedule, shaped.schedule, robust.schedule):
        assert not {"B", "W"} & kinds_at_whole_stages(schedule, profile)
    assert check(robust.schedule, profile, limit) == []


def test_merged_and_divided_stages_stay_whole() -> None:
    (cost,) = set(load_profile(DATA).stages)
    parts = divide(cost, 4)
    assert not any(part.splits for part in parts)
    assert merge(parts) == cost
    split = StageCost(1, 2, 3, 10, 5)
    mixed = merge([split, cost])
    assert (mixed.splits, mixed.t_b_ns, mixed.t_w_ns, mixed.w_bytes) == (False, 21_000_005, 0, 0)
