"""Pairs that the search makes: what they gain, when they are allowed, and that nothing else counts on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optpipe_sim import CostProfile, check, load_profile, solve
from optpipe_sim.cli import main
from optpipe_sim.errors import OptPipeError
from optpipe_sim.execution import Execution, Issue
from optpipe_sim.profile_io import save_profile
from optpipe_sim.solvers.anneal.annealer import search
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.race.identity import carried_bound, identity
from optpipe_sim.solvers.starts.published import fixed_schedules

STAGE = {"t_f_ns": 100, "t_b_ns": 120, "t_w_ns": 80, "act_bytes": 40, "w_bytes": 10}


def profile(devices: int, **more: object) -> CostProfile:
    given = {"devices": devices, "stages": {**STAGE, "layers": 2}, "pair_hidden_ns": 60, **more}
    return load_profile(given)


@pytest.mark.parametrize("limit", [None, 120])
def test_on_one_device_all_but_the_first_forward_run_in_pairs(limit: int | None) -> None:
    """m of each op less one pair's gain for each forward but the first, which has no backward to run with, as the bound knows."""
    found = solve(profile(1), 6, limit, "search", evaluations=20_000, chunks="own", published=False)
    assert found.schedule is not None
    assert found.objective_ns == 6 * 300 - 5 * 60
    assert int(found.schedule.paired.sum()) == 5
    assert check(found.schedule, profile(1), limit) == []
    assert found.lower_bound_ns == found.objective_ns


def test_pairs_beat_what_is_proven_to_be_best_without_them() -> None:
    four = profile(4, t_comm_ns=5)
    single, paired = (
        solve(four, 8, 400, "search", evaluations=60_000, chunks="own", pairs=pairs)
        for pairs in (False, True)
    )
    assert single.schedule is not None
    assert not single.schedule.has_pairs
    assert paired.schedule is not None
    assert paired.schedule.has_pairs
    assert paired.lower_bound_ns <= paired.objective_ns < single.lower_bound_ns
    assert check(paired.schedule, four, 400) == []


def test_pairs_tear_where_they_only_delay() -> None:
    """A pair that hides little makes the next stage wait for its backward."""
    problem = make_problem(profile(4, pair_hidden_ns=1), 4, pairs=True)
    starts = [each for _, each in fixed_schedules(problem) if each.has_pairs]
    assert starts
    found = search(problem, starts, evaluations=30_000)
    assert found is not None
    paired = min(problem.replay(each).cost_ns for each in starts)
    assert problem.replay(found).cost_ns < paired
    assert found.paired.sum() < min(each.paired.sum() for each in starts)


def test_the_execution_says_whether_there_are_pairs_unless_asked() -> None:
    ideal, none = profile(4), profile(4, pair_hidden_ns=0)
    with_, without = (
        replace(ideal, execution=Execution("own", {"plain": Issue(pairs=pairs)}))
        for pairs in (True, False)
    )
    assert make_problem(ideal, 4).may_pair
    assert make_problem(with_, 4).may_pair
    assert not make_problem(without, 4).may_pair
    assert make_problem(without, 4, pairs=True).may_pair
    assert not make_problem(ideal, 4, pairs=False).may_pair
    assert not make_problem(none, 4, pairs=True).may_pair


def test_what_is_cached_without_pairs_says_nothing_of_them() -> None:
    one, other = (identity(make_problem(profile(4), 4, pairs=pairs)) for pairs in (False, True))
    more = identity(make_problem(profile(4, pair_hidden_ns=90), 4))
    assert len({one.key, other.key, more.key}) == 3
    assert one.family != other.family
    assert carried_bound(one, 100, other) == carried_bound(more, 100, other) == 0
    half = identity(make_problem(profile(4), 2))
    assert carried_bound(half, 100, other) == 100 * other.time_unit_ns


def test_the_papers_program_has_no_pairs() -> None:
    with pytest.raises(OptPipeError, match="milp has no pairs: give pairs=no"):
        solve(profile(4), 4, engine="milp")


def test_the_command_line_asks_for_pairs(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.yaml"
    save_profile(profile(2), path)
    words = ["solve", str(path), "-m", "4", "--engine", "search", "--evaluations", "2000"]
    for pairs in ("yes", "no"):
        saved = tmp_path / f"{pairs}.json"
        assert main([*words, "--no-cache", "--pairs", pairs, "--save", str(saved)]) == 0
        assert ("+B" in saved.read_text()) is (pairs == "yes")
    capsys.readouterr()
    assert main([*words, "--pairs", "maybe"]) == 2
    assert "--pairs: expected yes or no, got 'maybe'" in capsys.readouterr().err
