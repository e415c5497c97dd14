"""A solver in the background: asked, stopped, killed, and outlived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from background import hard, until
from unit_profiles import unit_profile

from optpipe_sim import Schedule, build, check, simulate
from optpipe_sim.errors import OptPipeError
from optpipe_sim.solvers.online import SolverProcess


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def test_it_can_be_polled_and_stopped_while_it_works() -> None:
    with SolverProcess(hard(), 12, 250, time_limit=120) as solver:
        assert solver.bound() >= 0
        until(solver.best)
        assert solver.running
        early = solver.best()
        until(lambda: solver.bound() > 0)
        assert solver.state()["status"] == "running"
    assert not solver.running
    late, state = solver.best(), solver.state()
    assert early is not None
    assert late is not None
    costs = [simulate(each, hard(), 250).cost_ns for each in (late, early)]
    assert costs[0] <= costs[1]
    assert (state["status"], state["objective_ns"]) == ("feasible", costs[0])
    assert 0 < solver.bound() <= costs[0]
    assert check(late, hard(), 250) == []


def test_it_ends_by_itself_when_the_best_is_proven() -> None:
    folder_of = None
    with SolverProcess(unit_profile(2), 2, time_limit=60, engine="adaoffload") as solver:
        assert solver.wait(40)
        assert solver.state()["status"] == "optimal"
        assert solver.bound() == solver.state()["objective_ns"]
        folder_of = solver.folder
    assert folder_of.exists()
    del solver
    assert not folder_of.exists()


def test_killed_it_leaves_the_best_it_found_and_no_process(tmp_path: Path) -> None:
    solver = SolverProcess(hard(), 12, 250, time_limit=120, folder=tmp_path)
    until(solver.best)
    until(lambda: children(solver.pid))
    engines = children(solver.pid)
    os.kill(solver.pid, signal.SIGKILL)
    until(lambda: not solver.running)
    until(lambda: not any(map(alive, engines)))
    left = Schedule.load(tmp_path / "best.json")
    assert check(left, hard(), 250) == []
    assert solver.stop() == left
    assert (solver.state()["status"], solver.state()["error"]) == ("failed", "killed by SIGKILL")


def test_it_ends_with_a_killed_caller(tmp_path: Path) -> None:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]);"
        "from test_online import *;"
        "solver = SolverProcess(hard(), 12, 250, time_limit=120, folder=sys.argv[2]);"
        "print(solver.pid, flush=True); time.sleep(100)"
    )
    line = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        until((tmp_path / "best.json").exists)
        assert alive(pid)
        caller.kill()
        until(lambda: not alive(pid))
    assert check(Schedule.load(tmp_path / "best.json"), hard(), 250) == []


def test_it_reports_what_it_cannot_solve(tmp_path: Path) -> None:
    for options, status, error in (
        ({"memory_limit": 10}, "infeasible", "the least limit that works is 100B"),
        ({"engine": "magic"}, "failed", "engine: expected one of"),
        ({"magic": 1}, "failed", "unexpected keyword argument 'magic'"),
    ):
        solver = SolverProcess(unit_profile(3), 4, folder=tmp_path, **options)
        assert solver.wait(40)
        assert solver.state()["status"] == status
        assert error in solver.state()["error"]
        assert solver.best() is None
    with pytest.raises(OptPipeError, match="watch: must be plain data"):
        SolverProcess(unit_profile(3), 4, watch=print)


def test_it_starts_from_the_given_schedule() -> None:
    profile = unit_profile(4)
    start = build("zb-h2", profile, 8)
    solver = SolverProcess(profile, 8, warm_start=start, engine="adaoffload")
    assert solver.wait(40)
    best = solver.stop()
    assert best is not None
    assert simulate(best, profile).cost_ns <= simulate(start, profile).cost_ns
