"""How a trainer issues the work, from the command line."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.execution import IDEAL, load_execution, shipped_names
from optpipe_sim.frameworks.nearest import replay_unlimited
from optpipe_sim.frameworks.torchtitan_search import _with_layers_moved
from optpipe_sim.profile_io import save_profile

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(command_line):
    stages = {"t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 8, "act_mib": 100, "w_mib": 40}
    profile = load_profile(
        {"devices": 4, "stages": stages, "t_comm_ms": 0.5, "memory_limit_gib": 2, "name": "p"}
    )
    save_profile(profile, "p.yaml")
    return command_line


def test_the_shipped_executions_are_listed_with_sources_and_errors(here) -> None:
    answer = here("executions --json").json
    names = [one["name"] for one in answer["executions"]]
    assert names == ["ideal", *shipped_names()]
    for one in answer["executions"][1:]:
        assert one["source"]
        assert one["fitted_to"]
        assert 0 < one["error"]["between"] < 0.2
    text = here("executions --sources").out
    assert "blocking" in text
    assert "arXiv 2401.10241" in text
    assert here("executions nothing-like-it").code == 1


def test_an_answer_under_an_execution_has_its_interval(here) -> None:
    ideal = here("simulate p.yaml --schedule 1f1b -m 8 --json").json
    assert ideal["iteration_interval_ns"] is None
    issued = here("simulate p.yaml --schedule 1f1b -m 8 --execution megatron-lm --json").json
    assert issued["iteration_ns"] > ideal["iteration_ns"]
    assert ideal["iteration_interval_ns"] is None
    low, high = issued["iteration_interval_ns"]
    assert low < issued["iteration_ns"] < high
    low, high = issued["iteration_interval_ns"]
    common = load_execution("megatron-lm").common
    assert (low + high) / 2 == pytest.approx(issued["iteration_ns"], rel=1e-6)
    assert high / issued["iteration_ns"] == pytest.approx(1 + common)
    assert (
        "in four of five runs as megatron-lm issues them"
        in here("simulate p.yaml --schedule 1f1b -m 8 --execution megatron-lm").out
    )


def test_compare_marks_what_is_a_toss_up(here) -> None:
    rows = here("compare p.yaml -m 8 --schedules 1f1b,zb-h1,zb-h2,gpipe --json").json["rows"]
    fastest = min(row["iteration_ns"] for row in rows if row["fits"])
    between = load_execution("ideal").between
    for row in rows:
        difference = row["iteration_ns"] / fastest - 1
        if row["difference_interval"] is None:
            assert difference == 0
            continue
        assert row["difference_interval"] == pytest.approx(
            [difference - between, difference + between]
        )
        assert row["toss_up"] is (row["fits"] and difference <= between)
    assert any(row["toss_up"] for row in rows)
    assert "≈ a toss-up with the fastest" in here("compare p.yaml -m 8 --schedules zb-h1,zb-h2").out


def test_an_execution_that_nothing_judges_makes_no_difference_surer(here) -> None:
    Path("mine.yaml").write_text("families: {plain: {op_us: 100}}\n")
    line = "compare p.yaml -m 8 --schedules zb-h1,zb-h2 --execution mine.yaml"
    first, second = here(f"{line} --json").json["rows"]
    longer = second["iteration_ns"] / first["iteration_ns"] - 1
    off = IDEAL.between
    assert second["difference_interval"] == pytest.approx([longer - off, longer + off])
    assert second["toss_up"] == (longer <= off)
    if second["toss_up"]:
        assert "Differences replayed as ideal were within ±5.4%" in here(line).out


def test_tables_say_by_what_times_may_be_off(here) -> None:
    off = (
        "measured ones are 0.94 to 1.06 times these in four of five runs as megatron-lm issues them"
    )
    for line in (
        "compare p.yaml -m 8 --schedules 1f1b,zb-h1",
        "frontier p.yaml -m 8 --limits 1GiB --engine adaoffload --time-limit 1",
    ):
        assert off in here(f"{line} --execution megatron-lm").out
        assert "measured ones are" not in here(line).out


def test_tables_say_so_of_plans_that_offload_too(here) -> None:
    costs = {
        "devices": 4,
        "stages": {"t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 8, "act_mib": 100, "w_mib": 40},
    }
    doubt = {"interval": [0.98, 1.02], "interval_offloading": [0.9, 1.2]}
    offload = {"t_offload_ms": 1, "t_reload_ms": 1}
    save_profile(load_profile({**costs, "offload": offload, "meta": {"doubt": doubt}}), "p.yaml")
    kept = "measured ones are 0.98 to 1.02 times these in four of five runs like it"
    moved = f"{kept}, 0.90 to 1.20 times where activations are offloaded"
    without = here("compare p.yaml -m 8 --schedules 1f1b,zb-h1").out
    assert kept in without
    assert moved not in without
    assert moved in here("compare p.yaml -m 8 --schedules 1f1b,po-f").out


def test_what_noise_costs_is_told_with_the_error_of_the_replay(here) -> None:
    line = "solve p.yaml -m 4 --noise 5% --samples 20 --time-limit 2 --execution megatron-lm --no-cache"
    text = here(line).out
    assert "in four of five runs as megatron-lm issues them" in text
    assert "in reality a toss-up: such differences are ±4.0% off" in text


def test_iterations_that_chain_count_by_their_span(here) -> None:
    rows = here("compare p.yaml -m 8 --schedules 1f1b,zb-h2 --execution zero-bubble-a100 --json")
    for row in rows.json["rows"]:
        if row["schedule"] == "1f1b":
            assert row["cost_ns"] == row["makespan_ns"]
        else:
            assert row["cost_ns"] < row["makespan_ns"]
    saved = here(
        "solve p.yaml -m 8 --time-limit 1 --chunks 1 --execution zero-bubble-a100 --save s.json --json"
    )
    again = here("simulate p.yaml --schedule s.json --execution zero-bubble-a100 --json").json
    assert again["cost_ns"] == saved.json["objective_ns"]
    assert saved.json["lower_bound_ns"] <= saved.json["objective_ns"]


def test_an_unknown_execution_is_one_line(here) -> None:
    answer = here("simulate p.yaml --schedule 1f1b -m 8 --execution megatron")
    assert answer.code == 2
    assert (
        "--execution: 'megatron' is neither a file nor one that ships; did you mean megatron-lm"
        in answer.err
    )


def test_the_error_of_the_ideal_is_that_of_the_table() -> None:
    from experiments.ranking.summary import by_way, half_width, line
    from optpipe_sim.study.tables import load_table

    rows = by_way(load_table(ROOT / "results", "ranking"))["ideal", ""]
    assert IDEAL.between == pytest.approx(half_width(line(rows).errors), abs=5e-4)


def test_estimates_take_an_execution(here) -> None:
    run = "--model llama3-8b --machine h100 --seq 8192"
    here(f"estimate {run} --devices 4 --save e.yaml")
    assert load_profile("e.yaml").execution == load_execution("megatron-lm")
    ideal = here(f"evaluate {run} --gpus 4 --pp 4 -m 16 --execution ideal --json").json
    issued = here(f"evaluate {run} --gpus 4 --pp 4 -m 16 --json").json
    assert (ideal["execution"], issued["execution"]) == ("ideal", "megatron-lm")
    assert issued["iteration_ns"] > ideal["iteration_ns"]
    # an estimate is as uncertain as runs that were compared, and as what the execution adds to it
    error = load_profile("e.yaml").meta["doubt"]["interval"]
    wanted = [ideal["iteration_ns"] * factor for factor in error]
    assert ideal["iteration_interval_ns"] == pytest.approx(wanted, rel=1e-6)
    common = load_execution("megatron-lm").common
    factors = [min(1 - common, error[0]), max(1 + common, error[1])]
    wanted = [issued["iteration_ns"] * factor for factor in factors]
    assert issued["iteration_interval_ns"] == pytest.approx(wanted, rel=1e-6)


def test_frontier_marks_published_schedules_that_are_a_toss_up(here) -> None:
    line = "frontier p.yaml -m 8 --limits 1GiB,2GiB --time-limit 3 --no-cache"
    points = here(f"{line} --json").json["points"]
    for point in points:
        ratio = point["fixed_iteration_ns"] / point["iteration_ns"]
        assert point["fixed_toss_up"] == (abs(ratio - 1) <= IDEAL.between)
    # another search may find a little more or less
    ratios = [point["fixed_iteration_ns"] / point["iteration_ns"] for point in points]
    if any(abs(ratio - 1) < IDEAL.between / 2 for ratio in ratios):
        assert "≈: in reality a toss-up" in here(line).out


LAYERS = [
    {"name": "embedding", "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_mib": 10, "w_mib": 4},
    {"name": "layer", "count": 6, "t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 8, "act_mib": 100, "w_mib": 40},
    {"name": "head", "t_f_ms": 12, "t_b_ms": 12, "t_w_ms": 9, "act_mib": 100, "w_mib": 40},
]  # fmt: skip


@pytest.mark.parametrize(
    "search", ["--family megatron", "--family torchtitan", "--layers any"], ids=str
)
def test_a_layout_is_saved_as_it_was_before_it_was_issued(here, search: str) -> None:
    """Other schedules on the saved stages are issued as their own families are, and have their errors."""
    stages = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_mib": 1}
    given = load_profile(
        {
            "devices": 2,
            "stages": stages,
            "items": LAYERS,
            "t_comm_ms": 3,
            "execution": "zero-bubble-a100",
        }
    ).with_layout([4, 4])
    save_profile(given, "given.yaml")
    words = f"solve given.yaml -m 4 --time-limit 0.5 {search} --no-cache --save q.json --save-profile q.yaml --json"
    told = here(words).json
    saved = load_profile("q.yaml")
    assert saved.execution == given.execution
    again = here("simulate q.yaml --schedule q.json --json").json
    for key in ("iteration_ns", "iteration_interval_ns"):
        assert again[key] == told[key]
    counts = [cost.layers for cost in saved.stages]
    same = given.with_layout(counts, saved.chunks, saved.placement)
    for name in ("1f1b", "zb-h1"):
        row = here(f"simulate q.yaml --schedule {name} -m 4 --json").json
        assert row["iteration_ns"] == simulate(build(name, same, 4), same).iteration_ns


def test_layers_that_are_moved_for_torchtitan_cost_what_backwards_apart_do() -> None:
    half = {"plain": {"split": 1.5}}
    given = load_profile(
        {
            "devices": 2,
            "stages": {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_mib": 1},
            "items": LAYERS,
            "execution": {"name": "apart", "families": half, "error": {"between": 0.03}},
        }
    ).with_layout([6, 2])
    trace = replay_unlimited(build("zb-h1", given, 4), given)
    moved = _with_layers_moved(trace, given, time.monotonic() + 2)
    counts = [cost.layers for cost in moved.profile.stages]
    assert counts != [6, 2]
    alone = simulate(moved.schedule, given.with_layout(counts), enforce=False)
    assert moved.iteration_ns == alone.iteration_ns
    assert moved.profile.execution_notes["name"] == "apart"


def test_a_plan_that_fills_an_estimated_memory_names_the_margin(here) -> None:
    given = load_profile("p.yaml")
    save_profile(replace(given, meta={"doubt": {"interval": [0.9, 1.2]}}), "estimated.yaml")
    told = "estimated peaks are 2.5% off in the median: --margin memory=5%"
    solve = "-m 8 --time-limit 1 --engine adaoffload --no-cache --memory-limit"
    assert told in here(f"solve estimated.yaml {solve} 405MiB").out
    assert told not in here(f"solve estimated.yaml {solve} 500GiB").out
    assert told not in here(f"solve estimated.yaml {solve} 405MiB --margin memory=1%").out
    assert told not in here(f"solve p.yaml {solve} 405MiB").out
