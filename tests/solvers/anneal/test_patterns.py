"""Starts that repeat: that they keep the limit, are written out right, and repeat for a seed."""

from __future__ import annotations

from typing import Any

from optpipe_sim import CostProfile, check, load_profile
from optpipe_sim.ops import F, O
from optpipe_sim.schedules.adaoffload.adaoffload import adaoffload
from optpipe_sim.solvers.anneal.patterns import PER_PERIOD, pattern_start
from optpipe_sim.solvers.options import SolveOptions
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.reports import Job
from optpipe_sim.solvers.search import run


def paired(slots: int, **offload: Any) -> CostProfile:
    """Four devices, two to a link that carries one copy at a time; 20 ns F, 22 B, 18 W."""
    stages = {"t_f_ns": 20, "t_b_ns": 22, "t_w_ns": 18, "act_bytes": 200, "w_bytes": 100}
    links = {"host_link_groups": [[0, 1], [2, 3]], "host_link": "single"}
    return load_profile(
        {
            "devices": 4,
            "stages": stages,
            "t_comm_ns": 2,
            "offload": {"t_offload_ns": 28, "t_reload_ns": 28, **links, **offload},
            "memory_limit_bytes": 200 * slots,
        }
    )


def test_a_pattern_keeps_the_limit_and_repeats() -> None:
    problem = make_problem(paired(2), 10)
    like = adaoffload(problem.profile, 10, problem.limits)
    first = pattern_start(problem, like, lambda: False, steps=0)
    found = pattern_start(problem, like, lambda: False, steps=2000, seed=1)
    assert first is not None
    assert found is not None
    assert pattern_start(problem, like, lambda: True) == first
    trace = problem.replay(found)
    assert max(trace.peak_bytes) <= 400
    assert trace.cost_ns < problem.replay(first).cost_ns
    assert pattern_start(problem, like, lambda: False, steps=2000, seed=1) == found
    for s, program in enumerate(found.programs):
        away = {op.microbatch for op in program if op.kind is O}
        assert away == {j for j in range(10) if j % PER_PERIOD in away}
        assert [op.microbatch for op in program if op.kind is F] == list(range(10)), s


def test_few_microbatches_are_fewer_per_period() -> None:
    """Numbers of microbatches have as many bits as these need: a third one per period would write past the programs."""
    for m in (1, 2):
        problem = make_problem(paired(2), m)
        like = adaoffload(problem.profile, m, problem.limits)
        found = pattern_start(problem, like, lambda: False, steps=50)
        assert found is not None
        assert check(found, problem.profile) == []


def test_a_search_with_shared_links_starts_from_a_pattern() -> None:
    problem = make_problem(paired(2), 10)
    names: list[str] = []

    def report(what: str, value: Any) -> None:
        assert what == "incumbent"
        names.append(value[0].meta.get("name", ""))

    options = SolveOptions(engine="search", time_limit=10, evaluations=500)
    run(Job(problem, None, options), report)
    assert "pattern" in names
    names.clear()
    alone = make_problem(paired(2, host_link_groups=[], host_link="per_direction"), 10)
    run(Job(alone, None, options), report)
    assert "pattern" not in names
