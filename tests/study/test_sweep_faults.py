"""Sweeps that are killed, interrupted, or run out of disk: nothing finished is lost."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from optpipe_sim.study.store.locks import LOST_S
from optpipe_sim.study.store.locks import Running as Running_
from optpipe_sim.study.tables import (
    load_table,
)

ROOT = Path(__file__).parents[2]
# a task of one's own: logs each call, and fails, dies or sleeps where its parameters say so
ODD = """
import os, time

VERSION = 1

def run(x: int, log: str, wait: float = 0.0, dies: int = -1) -> dict:
    with open(log, "a") as file:
        file.write(f"{x}\\n")
    time.sleep(wait)
    if x == dies:
        os.kill(os.getpid(), 9)
    if x == 5:
        raise ValueError("five\\nis bad")
    return {"square": x * x}
"""


class Running:
    """`sweep` in a process of its own, with a task of one's own."""

    def __init__(self, folder: Path, *options: str, limit_bytes: int = 0, **values: object) -> None:
        (folder / "mine").mkdir(exist_ok=True)
        (folder / "mine" / "__init__.py").touch()
        (folder / "mine" / "odd.py").write_text(ODD)
        self.log = folder / "log.txt"
        data = {"name": "odd", "question": "?", "run": "mine.odd", "minutes": 1}
        grid = {"x": list(range(12)), "log": str(self.log), **values}
        (folder / "odd.yaml").write_text(yaml.safe_dump({**data, "grid": grid}))

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if limit_bytes:  # no file may grow beyond: what a full disk is like
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

        self.process = subprocess.Popen(
            [sys.executable, "-m", "optpipe_sim", "sweep", "odd.yaml", "--jobs", "2", *options],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
                # Python would put half of a module's bytecode beside it where that has not been compiled yet
                **({"PYTHONDONTWRITEBYTECODE": "1"} if limit_bytes else {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=prepare,
        )
        self.store = folder / "results" / ".points"

    def finished(self) -> int:
        return len(list(self.store.glob("*/*.json")))

    def until(self, points: int) -> None:
        ends = time.monotonic() + 30
        while self.finished() < points:
            assert time.monotonic() < ends
            assert self.process.poll() is None
            time.sleep(0.01)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        assert "Traceback" not in err
        return self.process.returncode, out, err

    def calls(self) -> list[int]:
        return sorted(map(int, self.log.read_text().split()))


def test_kill_9_loses_no_finished_point(tmp_path) -> None:
    running = Running(tmp_path, wait=0.2)
    running.until(3)
    running.process.kill()
    running.process.communicate(timeout=60)  # its workers end with it, and close its pipes
    kept = running.finished()
    assert 3 <= kept < 12
    assert not (tmp_path / "results" / "odd.parquet").exists()
    before = running.calls()
    code, out, _ = Running(tmp_path, wait=0.2).end()
    assert f"12 points: {12 - kept} ran, {kept} reused, 1 failed" in out
    assert code == 1
    assert len(running.calls()) == len(before) + 12 - kept
    assert [row["square"] for row in load_table(tmp_path / "results", "odd")] == [
        None if x == 5 else x * x for x in range(12)
    ]


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(tmp_path) -> None:
    running = Running(tmp_path, wait=0.2)
    running.until(3)
    os.killpg(running.process.pid, signal.SIGINT)
    code, out, err = running.end()
    assert (code, out) == (130, "")
    assert "of 12 points of odd are finished and kept; the same command goes on from there" in err
    assert err.count("\n") == 1
    assert running.finished() >= 3


def test_a_point_that_fails_or_kills_its_process_does_not_stop_the_others(tmp_path) -> None:
    code, out, _ = Running(tmp_path, dies=3).end()
    assert code == 1
    assert "12 points: 12 ran, 0 reused, 2 failed" in out
    rows = load_table(tmp_path / "results", "odd")
    assert [row["x"] for row in rows] == list(range(12))
    assert [row["square"] for row in rows if row["error"] is None] == [
        x * x for x in range(12) if x not in (3, 5)
    ]
    assert "its process died" in rows[3]["error"]
    assert rows[5]["error"] == "ValueError: five is bad"
    again = Running(tmp_path, "--json", dies=3)
    found = json.loads(again.end()[1])
    assert (found["ran"], found["reused"], found["failed"]) == (0, 12, 2)
    calls = again.calls()
    found = json.loads(Running(tmp_path, "--json", "--retry-failed", dies=3).end()[1])
    assert (found["ran"], found["reused"], found["failed"]) == (2, 10, 2)
    assert set(again.calls()[len(calls) :]) <= set(range(12))
    assert found["experiments"][0]["errors"][1]["error"] == "ValueError: five is bad"


def test_a_full_disk_is_one_line(tmp_path) -> None:
    code, out, err = Running(tmp_path, limit_bytes=64).end()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "cannot be written: File too large" in err
    assert "results/.points/" in err
    code, out, _ = Running(tmp_path).end()
    assert "12 ran, 0 reused" in out


def test_two_sweeps_at_once_share_the_points(tmp_path) -> None:
    first = Running(tmp_path, "--json", wait=0.3)
    second = Running(tmp_path, "--json", wait=0.3)
    found = [json.loads(one.end()[1]) for one in (first, second)]
    assert [one["failed"] for one in found] == [1, 1]
    assert sum(one["ran"] for one in found) == 12
    assert all(one["ran"] + one["reused"] == 12 for one in found)
    assert first.calls() == list(range(12))  # each point once
    rows = load_table(tmp_path / "results", "odd")
    assert [row["square"] for row in rows] == [None if x == 5 else x * x for x in range(12)]
    assert not list(first.store.glob("*/*.lock"))
    assert not list((first.store / ".running").glob("*"))


def test_a_sweep_that_waits_says_so_and_takes_over_from_one_that_is_killed(tmp_path) -> None:
    first = Running(tmp_path, wait=1.5)
    ends = time.monotonic() + 30
    while len(list(first.store.glob("*/*.lock"))) < 2:
        assert time.monotonic() < ends
        time.sleep(0.02)
    second = Running(tmp_path, wait=1.5)
    time.sleep(0.5)
    first.process.kill()
    first.process.communicate(timeout=60)
    code, out, _ = second.end()
    assert code == 1
    assert "12 points: " in out
    assert set(second.calls()) == set(range(12))
    assert not list(second.store.glob("*/*.lock"))


def test_locks_of_a_sweep_that_has_gone_are_free(tmp_path) -> None:
    with Running_(tmp_path) as ours, Running_(tmp_path) as theirs:
        assert theirs.take("aa1")
        assert not ours.take("aa1")
        assert not ours.free("aa1")
        assert theirs.take("aa1")  # of a process of the same sweep that died
        theirs.release("aa1")
        assert ours.free("aa1")
        assert ours.take("aa1")
        ours.release("aa1")
        # killed: its process is no more
        path = tmp_path / ".running" / theirs.owner
        assert theirs.take("aa2")
        path.write_text(path.read_text().replace(str(os.getpid()), "999999999"))
        assert ours.take("aa2")
    with Running_(tmp_path) as ours, Running_(tmp_path) as theirs:
        # on another machine, and not heard of for longer than a minute
        path = tmp_path / ".running" / theirs.owner
        path.write_text(json.dumps({"host": "elsewhere", "pid": 1}))
        assert theirs.take("aa3")
        assert not ours.take("aa3")
        old = time.time() - LOST_S - 10
        os.utime(path, (old, old))
        assert ours.take("aa3")
    # an unsigned lock is being written, or is what a killed process left
    with Running_(tmp_path) as ours:
        lock = tmp_path / "aa" / "aa4.lock"
        lock.touch()
        assert not ours.take("aa4")
        os.utime(lock, (old, old))
        assert ours.take("aa4")
