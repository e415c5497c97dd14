"""The plainest plan beside a searched one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unit_profiles import unit_profile

from optpipe_sim import build, save_profile, simulate, solve
from optpipe_sim.cli import main
from optpipe_sim.solvers.plain import WITHIN, plain_plans, plainest

MS = 10**6
STAGE = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50}


def test_they_come_in_order_and_fit_without_waiting() -> None:
    level = {"name": "full", "t_ms": 1, "keep_bytes": 10}
    profile = unit_profile(4, stages={**STAGE, "layers": 2, "recompute": [level]})
    found = list(plain_plans(profile, 8, (400,) * 4))
    assert [one.name for one in found[:2]] == ["1f1b", "1f1b:recompute=full"]
    assert [one.rank for one in found] == sorted(one.rank for one in found)
    for one in found:
        free = simulate(build(one.name, profile, 8), profile, enforce=False)
        assert one.trace.makespan_ns == free.makespan_ns
        assert max(free.peak_bytes) <= 400
    # 1F1B holds four whole activations on the first device; with less it would have to wait for memory
    tight = [one.name for one in plain_plans(profile, 8, (390,) * 4)]
    assert "1f1b" not in tight
    assert "1f1b:recompute=full" in tight
    assert [one.name for one in plain_plans(profile, 8, (50,) * 4)] == []
    # only those with as many chunks as are asked for
    two = list(plain_plans(profile, 8, None, chunks=2))
    assert {one.trace.schedule.shape.chunks for one in two} == {2}
    assert "1f1b-i:chunks=2" in [one.name for one in two]


def test_within_one_per_cent_the_plainest_else_the_fastest() -> None:
    profile = unit_profile(4, stages={**STAGE, "layers": 1})
    best = solve(profile, 8, engine="adaoffload", chunks="own", cache=False, time_limit=2).trace
    assert best is not None
    one = plainest(list(plain_plans(profile, 8, None)), best)
    assert one is not None
    # 1F1B takes (8 + 3) x 3 ms; of one layer per stage nothing is interleaved, and zero-bubble orders are closer
    assert one.name == "zb-h1"
    every = {found.name: found.trace for found in plain_plans(profile, 8, None)}
    assert every["1f1b"].makespan_ns == 33 * MS
    assert one.trace.makespan_ns == min(trace.makespan_ns for trace in every.values())
    # with many microbatches 1F1B is within one per cent of any
    many = 400
    best = simulate(build("zb-h2", profile, many), profile)
    one = plainest(list(plain_plans(profile, many, None)), best)
    assert one is not None
    assert one.name == "1f1b"
    assert one.trace.iteration_ns <= best.iteration_ns * (1 + WITHIN)
    assert (
        plainest(list(plain_plans(profile, 8, None)), every["1f1b"]) is None
    )  # there is nothing plainer to name


def test_solve_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = unit_profile(4, stages={**STAGE, "layers": 2})
    save_profile(profile, str(tmp_path / "p.yaml"))
    words = ["solve", str(tmp_path / "p.yaml"), "-m", "8", "--time-limit", "2", "--no-cache"]
    for more in ([], ["--family", "megatron"]):
        assert main([*words, *more, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        told = answer["plainest"]
        if told is None:  # the plan is one of them
            assert more
            continue
        again = simulate(build(told["schedule"], profile, 8), profile)
        assert (told["iteration_ns"], told["peak_bytes"]) == (
            again.iteration_ns,
            max(again.peak_bytes),
        )
        assert told["slower"] == pytest.approx(again.iteration_ns / answer["iteration_ns"] - 1)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "  plainest            " in said
