"""Robust solves, solvers in the background and their processes, while limits bind and workers hang."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from background import hard, until
from search_cases import uniform
from solving import sleeps
from unit_profiles import unit_profile

from optpipe_sim import Schedule, solve
from optpipe_sim.errors import OptPipeError
from optpipe_sim.sim.scenarios import Noise, draw_scenarios
from optpipe_sim.solvers.anneal.offloading import offload_everything
from optpipe_sim.solvers.online import SolverProcess
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.race.race import Race, run_race
from optpipe_sim.solvers.robust import _Field, solve_robust


def test_robust_keeps_the_host_limit_and_saves_what_it_returns(tmp_path: Path) -> None:
    profile = uniform(4, 16)
    assert profile.offload is not None
    tight = replace(profile, offload=replace(profile.offload, host_limit_bytes=600))
    problem = make_problem(tight, 8, 200)
    free = solve(profile, 8, 200, "adaoffload")
    assert free.schedule is not None
    assert free.trace is not None
    assert free.trace.host_peak_bytes > 600
    field = _Field(problem, draw_scenarios(tight, 8, Noise(0.2), 5, 0), None)
    assert field.offer(free.schedule, "too much for the host") is None
    path = tmp_path / "robust.json"
    found = solve_robust(
        tight, 8, 200, noise=Noise(0.2), samples=50, quantile=0.9, time_limit=3, save=path
    )
    assert found.trace.host_peak_bytes <= 600
    assert Schedule.load(path).programs == found.schedule.programs


def test_it_stops_though_a_child_of_the_caller_has_its_stdin(monkeypatch: Any) -> None:
    monkeypatch.setattr("optpipe_sim.solvers.online.PATIENCE_S", 30.0)
    solver = SolverProcess(hard(), 12, np.int64(250), time_limit=120, warm_start="none")
    until(solver.best)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    try:
        solver.stop()
        assert solver.state()["status"] == "feasible"
    finally:
        child.kill()
        child.join()


def test_its_own_file_is_its_own() -> None:
    with pytest.raises(OptPipeError, match=r"save: its own best\.json"):
        SolverProcess(unit_profile(3), 4, save="here.json")


def test_ctrl_c_while_processes_are_made_leaves_none(monkeypatch: Any) -> None:
    context = multiprocessing.get_context("fork")
    made: list[Any] = []
    start = context.Process.start

    def start_and_interrupt(self: Any) -> None:
        start(self)
        made.append(self)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(context.Process, "start", start_and_interrupt)
    race = Race(make_problem(uniform(4, 16), 8, 200))
    with pytest.raises(KeyboardInterrupt):
        run_race(race, [("slow", sleeps), ("slower", sleeps)], until=30.0)
    assert len(made) == 2
    assert not any(process.is_alive() for process in made)


TOGETHER = """
import os, pathlib, sys, time
from optpipe_sim.processes.workers import run_all

def waits(folder):
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(120)

try:
    run_all([waits, waits], sys.argv[1])
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "interrupted\n"), (signal.SIGKILL, "")]
)
def test_processes_that_run_together_end_with_the_caller(
    tmp_path: Path, number: int, said: str
) -> None:
    """As while the engines are compiled: a terminal sends Ctrl-C to all of them, a kill to one."""
    caller = subprocess.Popen(
        [sys.executable, "-c", TOGETHER, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until(lambda: len(os.listdir(tmp_path)) == 2)
    (os.killpg if number == signal.SIGINT else os.kill)(caller.pid, number)
    assert caller.communicate(timeout=60) == (said, "")  # once no process has its pipes any more


def _deaf(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)


def test_an_engine_that_will_not_end_is_killed() -> None:
    race = Race(make_problem(uniform(4, 16), 8, 200))
    began = time.monotonic()
    run_race(race, [("deaf", _deaf)], until=1.0)
    assert time.monotonic() - began < 20
    assert race.failures == {}


def _reads_nothing(*_: Any) -> None:
    time.sleep(3)


def _reports_often(problem: Any, report: Any, _: Any) -> None:
    """Ever better schedules, more than a pipe holds."""
    shape = problem.shape
    for depth in range(40):
        report("incumbent", (offload_everything(problem, depth % shape.stages), "often"))
        time.sleep(0.02)


def test_a_worker_that_reads_no_messages_keeps_no_other_waiting() -> None:
    race = Race(make_problem(uniform(16, 1), 64, None))
    threads = threading.active_count()
    often = partial(_reports_often, race.problem)
    run_race(race, [("silent", _reads_nothing), ("reports", often)], until=20.0)
    assert race.best is not None
    assert threading.active_count() <= threads
