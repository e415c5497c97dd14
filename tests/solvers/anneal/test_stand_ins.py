"""Shared host links in the searches: what stands for them, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest
from recompute_cases import profile as uniform

from optpipe_sim import check, solve
from optpipe_sim.ops import O
from optpipe_sim.solvers.anneal.stand_ins import moved_to, shared_out, stand_ins
from optpipe_sim.solvers.problem import make_problem

PAIRS = {"host_link_groups": [[0, 1], [2, 3]]}


@pytest.mark.parametrize(
    ("wiring", "factor"),
    [(PAIRS, 2), ({"host_link": "single"}, 2), ({**PAIRS, "host_link": "single"}, 4),
     ({"copy_engines": "shared"}, 1)],
)  # fmt: skip
def test_a_fair_share_of_a_link(wiring: dict[str, object], factor: int) -> None:
    profile = uniform(4, offload={"t_offload_ns": 16, "t_reload_ns": 14, **wiring})
    alone = shared_out(profile)
    assert {cost.t_offload_ns for cost in alone.stages} == {factor * 16}
    assert {cost.t_reload_ns for cost in alone.stages} == {factor * 14}
    assert all(len(link) == 1 for link in alone.host_links)
    assert alone.offload is not None
    assert profile.offload is not None
    assert alone.offload.copy_engines == profile.offload.copy_engines


def test_nothing_is_copied_where_there_are_no_copies() -> None:
    profile = uniform(4, offload={"t_offload_ns": 16, "t_reload_ns": 16, **PAIRS})
    problem = make_problem(profile, 8, 200)
    bare, shared = stand_ins(problem)
    assert not bare.may_offload
    assert shared.may_offload
    assert bare.limits == shared.limits == problem.limits
    found = solve(profile, 8, 200, engine="search", evaluations=20_000, seed=1)
    assert found.schedule is not None
    assert bool(moved_to(bare, [found.schedule])) is not (found.schedule.table[:, 0] == O).any()
    assert moved_to(shared, [found.schedule])[0].programs == found.schedule.programs


def test_activations_are_treated_one_by_one_where_links_are_shared() -> None:
    # one level per stage, which is what the plain searches choose, gives 302
    profile = uniform(4, offload={"t_offload_ns": 16, "t_reload_ns": 16, **PAIRS})
    found = solve(profile, 8, 200, engine="search", evaluations=100_000, seed=2)
    assert found.schedule is not None
    assert check(found.schedule, profile, 200) == []
    assert (found.schedule.table[:, 0] == O).any()
    assert any("." in key for key in found.schedule.recompute)  # of single microbatches
    assert found.objective_ns < 302


def test_offloading_alone_is_first_searched_with_links_of_their_own() -> None:
    # with shared links only, as many evaluations give 627
    pairs = {"host_link_groups": [[at, at + 1] for at in range(0, 8, 2)]}
    profile = uniform(8, offload={"t_offload_ns": 16, "t_reload_ns": 16, **pairs})
    options: dict[str, Any] = {"treatments": ["keep", "offload"], "engine": "search"}
    found = solve(profile, 16, 400, evaluations=2000, seed=1, **options)
    assert check(found.schedule, profile, 400) == []
    assert found.objective_ns < 622
