"""Which of several plans loses least where costs are off."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, build, load_execution, save_profile, simulate
from optpipe_sim.cli import main
from optpipe_sim.execution import IDEAL, Execution, Issue
from optpipe_sim.solvers.plain import PlainPlan
from optpipe_sim.solvers.steady import (
    ALIKE,
    PARTS,
    SPARE,
    Draw,
    Standing,
    beside,
    drawn,
    draws,
    standings,
    steadiest,
)

STAGE = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50, "layers": 2}


def _plan(profile: CostProfile, name: str, rank: int = 0) -> PlainPlan:
    return PlainPlan(rank, name, simulate(build(name, profile, 8), profile))


def test_a_draw_in_which_nothing_is_off_changes_nothing() -> None:
    profile = unit_profile(4, stages=STAGE, t_comm_ms=0.1)
    same = Draw(IDEAL, Fraction(1), Fraction(1), (1.0,) * PARTS)
    assert drawn(profile, same) == replace(profile, items=())


def test_stages_of_every_division_are_parts_of_the_same_model() -> None:
    draw = draws(unit_profile(4), 1)[0]
    assert len({draw.at(stage, 4) for stage in range(4)}) == 4
    for stages in (1, 3, 8, 32):
        for stage in range(stages):
            halves = draw.at(2 * stage, 2 * stages), draw.at(2 * stage + 1, 2 * stages)
            assert float(draw.at(stage, stages)) == pytest.approx(float(sum(halves) / 2), abs=0.03)
    # as many stages as parts, and more: each has the factor of its part
    assert [float(draw.at(at, PARTS)) for at in range(PARTS)] == pytest.approx(draw.along, abs=1e-4)
    assert draw.at(0, 4 * PARTS) == draw.at(3, 4 * PARTS) == draw.at(0, PARTS)
    assert draw.at(4 * PARTS - 1, 4 * PARTS) == draw.at(PARTS - 1, PARTS)


def test_draws_are_of_the_execution_and_repeat() -> None:
    ideal = unit_profile(4)
    some = draws(ideal, 40)
    assert some == draws(ideal, 40) != draws(ideal, 40, seed=1)
    assert len({draw.execution.name for draw in some}) == 6
    own = replace(ideal, execution=load_execution("megatron-lm"))
    assert {draw.execution.name for draw in draws(own, 40)} == {"megatron-lm"}
    assert len({draw.execution.families["plain"].op_ns for draw in draws(own, 40)}) > 20


def test_regrets_are_those_of_replays() -> None:
    profile = unit_profile(4, stages=STAGE, t_comm_ms=0.05)
    # of what every op takes in addition, an interleaved schedule pays twice as much
    slow = Execution("slow", {"plain": Issue(op_ns=1_000_000)})
    profile = replace(profile, execution=slow)
    plans = [_plan(profile, "1f1b"), _plan(profile, "1f1b-i:chunks=2")]
    found, count = standings(plans, [profile] * 2)
    times = [
        [
            simulate(
                plan.trace.schedule, drawn(profile.for_shape(plan.trace.schedule.shape), draw)
            ).iteration_ns
            for plan in plans
        ]
        for draw in draws(profile, count)
    ]
    for at, one in enumerate(found):
        regrets = [each[at] / min(each) - 1 for each in times]
        assert one.regret == pytest.approx(sum(regrets) / count)
        assert one.worst == pytest.approx(max(regrets))
        assert one.first == sum(regret == 0 for regret in regrets) / count
    assert found[0].first > 0.8 > 0.2 > found[1].first


def test_the_error_of_the_replay_is_in_the_regrets_and_takes_no_side() -> None:
    """Of two plans 2 % apart, whose difference may be 4 % off, neither is surely the faster; the mean of their difference
    stays."""
    profile = unit_profile(4, stages=STAGE)
    plans = [_plan(profile, "1f1b"), _plan(profile, "zb-h1")]
    sure, count = standings(plans, [profile] * 2)
    apart, again = standings(plans, [profile] * 2, between=0.3)
    assert count == again
    (least, most), (fast, slow) = (
        sorted(one.regret for one in sure),
        sorted(one.regret for one in apart),
    )
    assert least < fast
    assert slow - fast == pytest.approx(most - least, abs=0.03)
    assert all(0 < one.first < 1 for one in apart)


def test_of_plans_alike_the_one_with_memory_left_and_then_the_plainest() -> None:
    profile = unit_profile(4, stages=STAGE)
    plan = _plan(profile, "1f1b")
    peak = max(plan.trace.peak_bytes)

    def standing(rank: int, regret: float) -> Standing:
        return Standing(plan._replace(rank=rank), regret, 0.1, 0.5)

    fancy, plain = standing(9, 0.001), standing(1, 0.001 + 0.9 * ALIKE)
    far = standing(0, 0.001 + 1.1 * ALIKE)
    assert steadiest([fancy, plain, far], None) == plain
    more = replace(plan.trace, profile=profile)
    full = Standing(PlainPlan(0, "full", more), 0.001, 0.1, 0.5)
    roomy = Standing(_plan(profile, "zb-h1", 5), 0.002, 0.1, 0.5)
    limit = (peak,) * 4
    assert steadiest([full, roomy], (10 * peak,) * 4) == full
    # ZB-H1 holds no less than 1F1B here: both leave nothing, and the plainer one is taken
    assert steadiest([full, roomy], limit) in (full, roomy)
    assert 0 < SPARE < 1


def test_solve_names_the_plan_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = unit_profile(4, stages=STAGE)
    save_profile(profile, str(tmp_path / "p.yaml"))
    words = ["solve", str(tmp_path / "p.yaml"), "-m", "8", "--time-limit", "2", "--no-cache"]
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    told = answer["steady"]
    assert 0 <= told["regret"] <= told["worst_regret"]
    assert told["regret"] <= told["regret_of_best"] + ALIKE
    assert told["plans"] > 1
    for one in (told, answer["plainest"]):
        longer = one["iteration_ns"] / answer["iteration_ns"] - 1
        off = IDEAL.between
        assert one["difference_interval"] == pytest.approx([longer - off, longer + off])
        assert one["toss_up"] == (longer <= off)
    assert told["draws"] == 48
    if told["schedule"] != "this plan":
        again = simulate(build(told["schedule"], profile, 8), profile)
        assert told["iteration_ns"] == again.iteration_ns
    assert main(words) == 0
    assert "  to run              " in capsys.readouterr().out


def test_nothing_is_said_where_nothing_is_beside_it() -> None:
    profile = unit_profile(4, stages=STAGE)
    best = simulate(build("1f1b", profile, 8), profile)
    alone = beside(profile, best, "this plan", names=["1f1b"])
    assert (alone.plans, alone.best.regret, alone.plainest) == (1, 0.0, None)
