"""GIS and PipeOffload with F's earlier and W's later than published, as the search for starts finds them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, build, load_profile
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.race.race import Race
from optpipe_sim.solvers.race.rules import STRETCHED, rules_of, run_rules
from optpipe_sim.solvers.starts.variants import Way, stretched_variants, ways_of

STAGES = {"t_f_ms": 10, "t_b_ms": 12, "t_w_ms": 9, "act_bytes": 100, "w_bytes": 100}
LEVEL = {"name": "full", "t_ms": 10, "keep_bytes": 10, "work_bytes": 40, "b_work_bytes": 90}


def profile_of(v: int = 2, **given: object) -> CostProfile:
    return unit_profile(4, v, stages={**STAGES, **given})


def found(problem: Problem, way: Way | None = None) -> list[tuple[str, int]]:
    """Names and costs in the order found; every schedule keeps the limit, and is what its name builds."""
    each = []
    for name, schedule in stretched_variants(problem, way, lambda: float("inf")):
        trace = problem.replay(schedule)
        assert schedule == build(name, problem.profile, problem.microbatches), name
        each.append((name, trace.cost_ns))
    assert all(after < before for (_, before), (_, after) in pairwise(each))
    return each


@pytest.mark.parametrize("v", [2, 3])
def test_the_bubble_of_zb_h1_in_the_memory_of_gis(v: int) -> None:
    problem = make_problem(profile_of(v), 16, 100 * 4 * v)
    name, cost = found(problem)[-1]
    assert cost <= (16 * v * 31 + 3 * (10 + 12 - 9)) * 10**6
    assert "late=" in name


def test_more_memory_is_used_to_run_ahead() -> None:
    ample, gis = (make_problem(profile_of(), 16, 100 * size) for size in (14, 8))
    assert found(ample)[-1][1] < found(gis)[-1][1]
    assert ",early=" in found(ample)[-1][0]


def test_every_way_to_recompute_and_copies() -> None:
    profile = load_profile(
        {
            "name": "copies",
            "devices": 4,
            "chunks": 2,
            "stages": {**STAGES, "recompute": [LEVEL]},
            "offload": {"t_offload_ms": 15, "t_reload_ms": 15},
        }
    )
    problem = make_problem(profile, 12, 500)
    names = [name for way in ways_of(problem) for name, _ in found(problem, way)]
    assert any(name.startswith("po:") and "late=" in name for name in names)
    assert any(name.endswith("recompute=full,apart=yes") for name in names)


def test_nothing_without_time_nor_above_the_cost_to_beat() -> None:
    problem = make_problem(profile_of(), 8, 800)
    assert not list(stretched_variants(problem, None, lambda: float("inf"), lambda: True))
    assert not list(stretched_variants(problem, None, lambda: 0))


@pytest.mark.parametrize("processes", [1, 2])
def test_only_published_rules_count_as_untried(processes: int) -> None:
    race = Race(make_problem(profile_of(), 8, 800))
    rules = rules_of([race.problem], [0])
    published = [rule for rule in rules if rule.tier < STRETCHED]
    assert published == rules[: len(published)]
    assert len(published) < len(rules)
    assert run_rules([race], rules[len(published) :], lambda: False, processes) == 0
    assert "late=" in race.engine
    if processes == 1:
        # AdaOffload is ours
        assert run_rules([race], rules, lambda: True, processes) == len(published) - 1
