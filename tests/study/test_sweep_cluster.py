"""Sweeps on a Dask cluster: the results of one machine, whatever becomes of a worker."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from optpipe_sim.errors import OptPipeError
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.run import sweep
from optpipe_sim.study.tables import load_manifest, load_table

ROOT = Path(__file__).parents[2]
PROFILE = {
    "name": "tiny",
    "devices": 4,
    "stages": {"t_f_ms": 3, "t_b_ms": 4, "t_w_ms": 2, "act_mib": 2, "w_mib": 1},
    "offload": {"t_offload_ms": 2, "t_reload_ms": 2},
    "memory_limit_gib": 1,
}
SLOW = """
import os, time

VERSION = 1

def run(x: int, log: str, dies: int = -1) -> dict:
    with open(log, "a") as file:
        file.write(f"{x} {os.getpid()}\\n")
    time.sleep(0.2)
    if x == dies:
        os.kill(os.getpid(), 9)
    if x == 5:
        raise ValueError("five")
    return {"square": x * x, "pid": os.getpid()}
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task of one's own, that workers import from."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "ours").mkdir()
    (folder / "ours" / "__init__.py").touch()
    (folder / "ours" / "slow.py").write_text(SLOW)
    return folder


@pytest.fixture(scope="module")
def workers(modules: Path) -> Iterator[Any]:
    """A scheduler and two workers, each a process of one thread, which is started again where a test kills it."""
    from distributed import LocalCluster

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(modules)
        patch.setenv("PYTHONPATH", str(modules))
        with LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
        ) as cluster:
            yield cluster


@pytest.fixture
def cluster(workers: Any, modules: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The cluster of this file, with both of its workers."""
    monkeypatch.syspath_prepend(modules)
    monkeypatch.setenv("PYTHONPATH", str(modules))
    workers.wait_for_workers(2, timeout=60)
    return workers


def experiment(folder: Path, **changes: Any) -> Path:
    data = {"name": "trial", "question": "?", "minutes": 1, **changes}
    path = folder / "trial.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def test_solvers_and_replays_give_what_they_give_here(cluster, tmp_path) -> None:
    base = {"profile": PROFILE, "microbatches": 8}
    grid = {"schedule": ["1f1b", "zb-h1", "adaoffload"], "memory_limit": ["8MiB", "6MiB"]}
    path = experiment(tmp_path, run="simulate", base=base, grid=grid)
    for folder, address in (("here", None), ("there", cluster.scheduler_address)):
        done = sweep(load_experiment(path), tmp_path / folder, cluster=address)
        assert (done.ran, done.failed) == (6, 0)
    here, there = ((tmp_path / at / "trial.csv").read_text() for at in ("here", "there"))
    assert here == there
    # engines of `auto` are processes, which what runs in a Dask worker may not start by itself
    path = experiment(
        tmp_path,
        run="solve",
        base={**base, "time_limit": 2},
        grid={"memory_limit": ["5MiB", "6MiB"]},
    )
    done = sweep(load_experiment(path), tmp_path / "there", cluster=cluster.scheduler_address)
    assert done.failed == 0
    assert all(row["fits"] for row in load_table(tmp_path / "there", "trial"))


def test_a_worker_that_is_killed_on_the_way_costs_nothing(cluster, tmp_path) -> None:
    log = tmp_path / "log.txt"
    path = experiment(
        tmp_path, run="ours.slow", base={"log": str(log)}, grid={"x": list(range(16))}
    )
    killed = []

    def progress(finished: int, total: int, failed: int) -> None:
        if finished >= 3 and not killed:
            pid = log.read_text().split()[-1]
            os.kill(int(pid), 9)
            killed.append(int(pid))

    done = sweep(
        load_experiment(path),
        tmp_path / "out",
        cluster=cluster.scheduler_address,
        progress=progress,
    )
    assert (done.points, done.ran, done.failed) == (16, 16, 1)
    rows = load_table(tmp_path / "out", "trial")
    assert [row["square"] for row in rows] == [None if x == 5 else x * x for x in range(16)]
    assert rows[5]["error"] == "ValueError: five"
    assert len({row["pid"] for row in rows if row["pid"]}) >= 2
    calls = [int(line.split()[0]) for line in log.read_text().splitlines()]
    assert set(calls) == set(range(16))
    assert load_manifest(tmp_path / "out", "trial")["jobs"] == "cluster"
    again = sweep(load_experiment(path), tmp_path / "out")  # what the cluster found is known here
    assert (again.ran, again.reused) == (0, 16)


def test_a_point_that_kills_every_worker_fails_alone(cluster, tmp_path) -> None:
    log = str(tmp_path / "log.txt")
    path = experiment(
        tmp_path, run="ours.slow", base={"log": log, "dies": 2}, grid={"x": [0, 1, 2, 3]}
    )
    done = sweep(load_experiment(path), tmp_path / "out", cluster=cluster.scheduler_address)
    assert [(labels["x"], why) for labels, why in done.errors] == [
        (2, "its process died (killed, or out of memory)")
    ]
    assert [row["square"] for row in load_table(tmp_path / "out", "trial")] == [0, 1, None, 9]


def test_clusters_that_are_none_are_refused_in_one_line(command_line, tmp_path) -> None:
    grid = {"schedule": ["1f1b", "zb-h1"]}
    experiment(tmp_path, run="simulate", base={"profile": PROFILE, "microbatches": 8}, grid=grid)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        unused = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    for address, complaint in (
        (unused, "cannot be reached: Connection refused"),
        ("here", "is no address; write tcp://HOST:PORT"),
        ("tcp://127.0.0.1:port", "is no address; write tcp://HOST:PORT"),
    ):
        refused = command_line(f"sweep trial.yaml --cluster {address}")
        assert (refused.code, f"--cluster {address}: {complaint}" in refused.complaint) == (2, True)


def test_a_cluster_without_workers_is_refused(command_line, tmp_path) -> None:
    from distributed import LocalCluster

    grid = {"schedule": ["1f1b", "zb-h1"]}
    experiment(tmp_path, run="simulate", base={"profile": PROFILE, "microbatches": 8}, grid=grid)
    with LocalCluster(n_workers=0, dashboard_address=None, silence_logs=logging.CRITICAL) as empty:
        refused = command_line(f"sweep trial.yaml --cluster {empty.scheduler_address}")
    assert "has no workers; start dask worker tcp://" in refused.complaint


@pytest.fixture
def alone(modules: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The address of a scheduler with one worker, each a process that is not restarted."""
    monkeypatch.syspath_prepend(modules)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(modules), str(ROOT)])}
    options: Any = {
        "env": environment,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    dask = [sys.executable, "-m", "dask"]
    started = [
        subprocess.Popen([*dask, "scheduler", "--port", str(port), "--no-dashboard"], **options),
        subprocess.Popen([*dask, "worker", address, "--nthreads", "1", "--no-nanny"], **options),
    ]
    try:
        _until(lambda: _answers(port))
        _until(lambda: _workers(address) > 0)
        yield address, environment, *started
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_workers_that_have_all_gone_are_said_and_waited_for(alone, tmp_path, monkeypatch) -> None:
    address, _, _, worker = alone
    monkeypatch.setattr("optpipe_sim.study.cluster.LOOK_S", 0.2)
    monkeypatch.setattr("optpipe_sim.study.cluster.WORKERS_S", 1.0)
    base = {"log": str(tmp_path / "log.txt")}
    path = experiment(tmp_path, run="ours.slow", base=base, grid={"x": list(range(20, 80))})
    notices: list[str] = []

    def progress(finished: int, total: int, failed: int) -> None:
        if finished >= 3:
            worker.kill()

    with pytest.raises(OptPipeError, match="all workers have gone, and none came back; ") as error:
        sweep(
            load_experiment(path),
            tmp_path / "out",
            cluster=address,
            progress=progress,
            notice=notices.append,
        )
    assert "points are finished and kept" in str(error.value)
    assert "\n" not in str(error.value)
    assert len(notices) == 1
    assert "waiting 1 s for dask worker tcp://" in notices[0]
    assert not list((tmp_path / "out" / ".points").glob("*/*.lock"))


def test_a_scheduler_that_is_killed_is_one_line(alone, tmp_path) -> None:
    address, environment, scheduler, _ = alone
    base = {"log": str(tmp_path / "log.txt")}
    path = experiment(tmp_path, run="ours.slow", base=base, grid={"x": list(range(20, 120))})
    command = [sys.executable, "-m", "optpipe_sim", "sweep", str(path), "--cluster", address]
    running = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    _until(lambda: len(list((tmp_path / "results" / ".points").glob("*/*.json"))) >= 2)
    scheduler.kill()
    _, answer = running.communicate(timeout=60)
    assert running.returncode == 2
    assert answer.count("\n") == 1
    assert f"--cluster {address}: the scheduler" in answer
    assert "points are finished and kept, the same command goes on from there" in answer


def _until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def _workers(address: str) -> int:
    from distributed import Client

    with Client(address, timeout=10, set_as_default=False) as client:
        return len(client.nthreads())
