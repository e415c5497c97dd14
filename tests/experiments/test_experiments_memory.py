"""The experiments on memory, microbatches and uneven devices: their tasks' rules on cases small
enough to work by hand, and that what is committed is what they give."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text
from unit_profiles import unit_profile

from experiments import mismatch
from experiments.line_names import apart
from experiments.memory_frontier import figure as memory_frontier
from experiments.memory_margin import task as margin
from optpipe_sim import build, simulate
from optpipe_sim.errors import OptPipeError
from optpipe_sim.plot.labels import schedule_label
from optpipe_sim.sim.lower import lower
from optpipe_sim.solvers.options import SolveOptions
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.figures import draw
from optpipe_sim.study.points import Point, arguments, plan
from optpipe_sim.study.tables import load_table
from optpipe_sim.study.tasks import frontier, load_task

ROOT = Path(__file__).parents[2]
OFFLOAD = {"t_offload_ms": 1, "t_reload_ms": 1}


# -- what is committed ----------------------------------------------------------------------------

# per experiment, the first points with these labels, which need no solver
QUICK: dict[str, list[dict[str, Any]]] = {
    "memory_frontier": [
        {"schedules": ["1f1b"]},
        {"schedules": ["v-min"]},
        {"schedules": ["zb-v"]},
    ],
    "memory_margin": [{"schedule": "v-half"}, {"schedule": "po:chunks=2,group=1"}],
    "microbatch_size": [
        {"schedule": "1f1b", "microbatches": 32},
        {"schedule": "zb-v", "microbatches": 16},
        {"schedule": "po:chunks=2", "memory_limit": "44GiB", "profile.estimate.microbatch": 2},
        {"schedule": "1f1b-i:chunks=2", "microbatches": 4},
    ],
    "heterogeneous": [
        {"profile.name": "slow first", "chunks": 1},
        {"profile.name": "half A100, layers moved", "chunks": 2},
    ],
}


def quick(name: str) -> list[Point]:
    points = plan(load_experiment(ROOT / "experiments" / name))
    return [
        next(point for point in points if labels.items() <= point.labels.items())
        for labels in QUICK[name]
    ]


def equal(found: Any, expected: Any) -> bool:
    """Equal, floats but for the last digits."""
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=1e-12, abs=1e-12))
    return bool(found == expected)


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_part_of_each_table_comes_out_again(name: str) -> None:
    table = load_table(ROOT / "results", name)
    for point in quick(name):
        task = load_task(point.task, source=point.source)
        parameters = dict(point.parameters)
        if isinstance(parameters.get("schedules"), list):
            # what solvers find depends on the clock
            kept = [each for each in parameters["schedules"] if not each.startswith("optpipe")]
            parameters["schedules"] = kept
        made = task.run(**arguments(task, parameters))
        labels = {key: value for key, value in point.labels.items() if value is not None}
        committed = [row for row in table if labels.items() <= row.items()]
        for row in made if isinstance(made, list) else [made]:
            row = {key: value for key, value in row.items() if value is not None}
            same = [
                other
                for other in committed
                # a measure that is newer than the table has no column in it yet
                if all(equal(other[key], value) for key, value in row.items() if key in other)
            ]
            assert same, f"{name} {labels}: no committed row equals {row}"


@pytest.mark.parametrize("name", QUICK)
def test_no_point_failed(name: str) -> None:
    rows = load_table(ROOT / "results", name)
    assert len(rows) > 20
    assert not [row["error"] for row in rows if row.get("error")]


@pytest.mark.parametrize("name", QUICK)
def test_figures_say_what_they_show(name: str) -> None:
    for figure in draw(name, ROOT / "results").values():
        texts = [text.get_text() for text in figure.findobj(Text)]
        assert any("AdaOffload" in text for text in texts)
        assert all(ax.get_xlabel() for ax in figure.axes if ax.axison)


def test_a_frontier_with_few_limits_is_drawn_too() -> None:
    rows = load_table(ROOT / "results", "memory_frontier")
    low = min(row["limit_bytes"] for row in rows if row["cost_ns"] and row["part"] == "solved")
    kept = [row for row in rows if row["part"] == "alone" or row["limit_bytes"] == low]
    figure = memory_frontier.draw(kept)
    assert "this search" in [text.get_text() for text in figure.findobj(Text)]


def test_the_frontier_keeps_its_bounds() -> None:
    """No schedule of the table is faster than what no schedule beats, at the memory that it takes."""
    rows = load_table(ROOT / "results", "memory_frontier")
    compared = 0
    for row in rows:
        if row["cost_ns"] is None:
            continue
        here = [r for r in rows if r["lower_bound_ns"]]
        for limit in {r["limit_bytes"] for r in here}:
            if row["peak_bytes"] <= limit:
                compared += 1
                bound = min(r["lower_bound_ns"] for r in here if r["limit_bytes"] == limit)
                assert row["cost_ns"] >= bound
    assert compared > 100


def test_a_margin_of_the_spread_always_holds_in_the_table() -> None:
    rows = [r for r in load_table(ROOT / "results", "memory_margin") if r["part"] == "noise"]
    guarded = [r for r in rows if r["fits"] and r["margin"] >= r["spread"]]
    assert guarded
    assert all(row["fits_share"] == 1 for row in guarded)
    assert any(row["fits_share"] < 1 for row in rows if row["margin"] == 0)


def test_who_knows_the_costs_never_loses_in_the_table() -> None:
    rows = load_table(ROOT / "results", "heterogeneous")
    solved = [row for row in rows if row["schedule"] == "optpipe"]
    assert len(solved) >= 4
    for blind, knowing in zip(solved[::2], solved[1::2], strict=True):
        assert (blind["planned_for"], knowing["planned_for"]) == ("assumed", "true")
        assert knowing["fits"]
        assert not blind["fits"] or knowing["makespan_ns"] <= blind["makespan_ns"]
        assert knowing["makespan_ns"] >= knowing["lower_bound_ns"]


# -- margin ---------------------------------------------------------------------------------------


def test_most_held_gives_back_before_it_takes() -> None:
    start, end = np.array([0, 2]), np.array([2, 3])
    ten = np.array([10, 10])
    assert margin.most_held(start, end, ten, ten) == 10
    assert margin.most_held(start, end + 1, ten, ten) == 20


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "zb-2p", "zb-v", "gis"])
def test_without_copies_an_order_has_no_memory_to_spare(name: str) -> None:
    """Whatever precedes an F on its device has ended when it starts, so that nothing more can be
    waited for."""
    rows = margin.run(unit_profile(4), 8, name, shares=[0.99, 1.0])
    by_part = {(row["part"], row["fits"]): row for row in rows if row["part"] != "anew"}
    assert by_part["least", True]["limit_bytes"] == by_part["least", True]["need_bytes"]
    assert by_part["limit", True]["share"] == 1.0
    assert ("limit", False) in by_part


def test_copies_can_be_waited_for() -> None:
    """Two activations at once without a limit, as F0.1 starts while F0.0 is being copied; one is
    enough, for twice the time of a copy more."""
    profile = unit_profile(1, offload=OFFLOAD)
    schedule = build("po:chunks=1,group=1", profile, 4)
    free = simulate(schedule, profile)
    rows = margin.run(profile, 4, "po:chunks=1,group=1", shares=[1.0])
    least = rows[-1]
    assert least["part"] == "least"
    assert least["need_bytes"] == max(free.peak_bytes)
    assert least["limit_bytes"] <= least["need_bytes"]
    slower = simulate(schedule, profile, least["limit_bytes"])
    assert least["makespan_ns"] == slower.makespan_ns >= free.makespan_ns


def test_sizes_without_spread_take_what_was_planned() -> None:
    profile = unit_profile(4, offload=OFFLOAD)
    lowered = lower(build("adaoffload:limit=250B", profile, 8), profile, 250)
    for alike in margin.ALIKE:
        peaks, times = margin.noisy_peaks(lowered, 0.0, alike, 2)
        assert peaks.tolist() == [list(lowered.replay().peak_bytes)] * 2
        assert times.tolist() == [lowered.replay().makespan_ns] * 2


@given(st.sampled_from([1, 2]), st.floats(0.01, 0.5), st.integers(150, 400), st.integers(0, 99))
def test_a_margin_of_the_spread_is_enough(
    chunks: int, spread: float, limit: int, seed: int
) -> None:
    stage = {
        "t_f_ms": 1,
        "t_b_ms": 1,
        "t_w_ms": 1,
        "act_bytes": 100,
        "w_bytes": 50,
        "static_bytes": 7,
    }
    profile = unit_profile(3, stages=stage, offload=OFFLOAD)
    rows = margin.run(
        profile, 6, f"adaoffload:chunks={chunks}", limit, margins=[0, spread], spreads=[spread],
        samples=5, seed=seed,
    )  # fmt: skip
    assert spread in {row["margin"] for row in rows}
    for row in rows:
        if row["fits"] and row["margin"] == spread:
            assert row["fits_share"] == 1
        if row["fits"]:
            assert row["excess_most"] <= spread + 1e-6 + 1 / 100


def test_all_alike_is_the_worst_by_the_whole_spread() -> None:
    """1F1B holds p = 3 activations on its first device: all of them 10 % larger are 10 % more."""
    profile = unit_profile(3)
    lowered = lower(build("1f1b", profile, 6), profile, 300)
    peaks, _ = margin.noisy_peaks(lowered, 0.1, "all", 200)
    most = peaks[:, 0].max()
    assert 327 <= most <= 330
    assert (peaks[:, 1] - peaks[:, 0] * 2 / 3 < 1).all()
    alone, _ = margin.noisy_peaks(lowered, 0.1, "activation", 200)
    assert 300 < np.quantile(alone[:, 0], 0.99) <= 330


def test_a_margin_needs_a_limit() -> None:
    with pytest.raises(OptPipeError, match="memory_limit: give one"):
        margin.run(unit_profile(2), 4, "1f1b", margins=[0.0], spreads=[0.1])


# -- mismatch -------------------------------------------------------------------------------------


def test_who_assumes_rightly_loses_nothing() -> None:
    profile = unit_profile(4, offload=OFFLOAD)
    rows = mismatch.run(profile, profile, 8, ["1f1b", "adaoffload"], 250)
    by_plan = {(row["schedule"], row["planned_for"]): row for row in rows}
    assert not by_plan["1f1b", "true"]["fits"]  # 400 bytes
    first, second = by_plan["adaoffload", "assumed"], by_plan["adaoffload", "true"]
    assert first["fits"]
    assert first["makespan_ns"] == second["makespan_ns"]


def test_a_plan_for_own_links_waits_on_shared_ones() -> None:
    """What two devices copied at once is copied in turns; who knows it copies less."""
    copies = {"t_offload_ms": 2, "t_reload_ms": 2}
    own = unit_profile(4, offload=copies)
    shared = unit_profile(4, offload={**copies, "host_link_groups": [[0, 1], [2, 3]]})
    blind, knowing = mismatch.run(shared, own, 8, ["adaoffload"], 150, chunks=2)
    alone, _ = mismatch.run(own, own, 8, ["adaoffload"], 150, chunks=2)
    assert blind["planned_for"] == "assumed"
    assert blind["offloaded"] == alone["offloaded"] > knowing["offloaded"] > 0
    assert blind["makespan_ns"] > knowing["makespan_ns"] > alone["makespan_ns"]


def test_who_knows_better_starts_from_the_blind_plan() -> None:
    own = unit_profile(4, offload={"t_offload_ms": 3, "t_reload_ms": 3})
    pairs = {"t_offload_ms": 3, "t_reload_ms": 3, "host_link_groups": [[0, 1], [2, 3]]}
    shared = unit_profile(4, offload=pairs)
    blind, knowing = mismatch.run(
        shared, own, 8, ["optpipe"], 250, options=SolveOptions(time_limit=0.5)
    )
    assert (blind["planned_for"], knowing["planned_for"]) == ("assumed", "true")
    assert knowing["lower_bound_ns"] <= knowing["makespan_ns"] <= blind["makespan_ns"]


def test_other_devices_have_their_own_costs() -> None:
    """GPipe of one microbatch on three devices, one of which takes twice as long: F, B and W of the
    last, in sequence with the others' F and B."""
    profile, other = unit_profile(3), unit_profile(3).scale(compute=2)
    mixed = mismatch.with_others(profile, other, [1])
    assert [cost.t_f_ns for cost in mixed.stages] == [10**6, 2 * 10**6, 10**6]
    row = mismatch.run(profile, profile, 1, ["zb-h1"], other_devices=[1], slower=2.0)[-1]
    # F F F B B B along the chain, 1 2 1 1 2 1, then the last W on device 0
    assert row["makespan_ns"] == 9 * 10**6
    # in a V, device 1 has stages 1 and 4
    vee = profile.rechunk(2, "vee")
    costs = mismatch.with_others(vee, other.rechunk(2, "vee"), [1]).stages
    assert [cost.t_f_ns for cost in costs] == [500_000, 10**6, 500_000, 500_000, 10**6, 500_000]


def test_devices_that_do_not_exist_are_refused() -> None:
    with pytest.raises(OptPipeError, match="other_devices: 3 does not exist; devices are 0 to 2"):
        mismatch.with_others(unit_profile(3), unit_profile(3), [3])
    with pytest.raises(OptPipeError, match="other: has 2 devices, the profile 3"):
        mismatch.with_others(unit_profile(3), unit_profile(2), [0])


# -- frontier -------------------------------------------------------------------------------------


def test_a_family_is_the_fastest_that_fits() -> None:
    """1F1B and ZB-H1 hold 4 activations of 100 bytes, GPipe 8."""
    rows = frontier.run(unit_profile(4), 8, [300, 400, 800], ["gpipe", "1f1b", "zb-h1"])
    alone = {row["schedule"]: row for row in rows if row["part"] == "alone"}
    assert {name: row["peak_bytes"] for name, row in alone.items()} == {
        "gpipe": 800, "1f1b": 400, "zb-h1": 400,
    }  # fmt: skip
    under = {row["limit_bytes"]: row for row in rows if row["part"] == "family"}
    assert under[300]["schedule"] is None
    assert under[400]["schedule"] == under[800]["schedule"] == "zb-h1"
    assert under[400]["cost_ns"] == alone["zb-h1"]["cost_ns"] < alone["1f1b"]["cost_ns"]


def test_what_plans_for_a_limit_gets_it() -> None:
    rows = frontier.run(unit_profile(4), 8, [200, 400], ["zb-1p"])
    assert [row["part"] for row in rows] == ["family", "family"]
    low, high = rows
    assert low["peak_bytes"] <= 200 < high["peak_bytes"] <= 400
    assert low["cost_ns"] > high["cost_ns"]


def test_what_is_solved_has_its_bound() -> None:
    rows = frontier.run(
        unit_profile(2), 4, [50, 200], chunks=1, options=SolveOptions(time_limit=1.0)
    )
    nothing, best = rows
    assert nothing["status"] == "infeasible"
    assert nothing["least_limit_bytes"] == 100
    # m (F + B + W), and one F before the last device can start
    assert best["cost_ns"] == best["lower_bound_ns"] == 13 * 10**6


# -- names beside lines ---------------------------------------------------------------------------


def test_names_keep_apart() -> None:
    assert apart([0, 10, 20], 5) == [0, 10, 20]
    assert apart([0, 0], 5) == [-2.5, 2.5]
    assert apart([10, 0, 1], 4) == [10, -1.5, 2.5]
    assert apart([], 4) == []


@given(st.lists(st.floats(0, 100), max_size=12))
def test_names_stay_in_order_and_apart(places: list[float]) -> None:
    made = apart(places, 3)
    pairs = sorted(zip(places, made, strict=True))
    for (before, first), (after, second) in pairwise(pairs):
        assert abs(second - first) >= 3 - 1e-9
        assert before == after or second > first
    if places:
        assert np.mean(made) == pytest.approx(np.mean(places), abs=1e-6)


def test_schedules_are_named_as_in_papers() -> None:
    assert schedule_label("po:chunks=3,group=4") == "PipeOffload, v = 3"
    assert schedule_label("optpipe:chunks=any,time=7") == "this search"
    assert schedule_label("1f1b-i") == "1F1B-I"
