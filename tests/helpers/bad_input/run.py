"""Run rows of bad input one after the other in this process, and say as JSON what came of each.

Started by `test_bad_input` with the rows on stdin: the command line runs in a folder of its own, with
a limit on address space and an alarm, so that a row that hangs or fills memory fails alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch  # noqa: F401  (not counted as work of the commands that need it)

from optpipe_sim.cli import main

MOST_S = 20  # of CPU time, before a row is given up
WAITING_S = 120  # of wall-clock time: one that waits for something takes no CPU time, nor does one on a busy machine
COMPILING_S = 600  # both, for the good commands, which may have to compile first
ROOM = 4 * 2**30  # of address space, above what is in use after the first command


def run(row: dict, most_s: int = MOST_S, waiting_s: int = WAITING_S) -> dict:
    """What one row gives: exit status, stdout, stderr, seconds of CPU."""
    out, err = io.StringIO(), io.StringIO()
    before = set(os.listdir())
    _write(row["files"])
    signal.setitimer(signal.ITIMER_PROF, most_s)
    signal.alarm(waiting_s)
    began = time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(row["argv"])
    except BaseException:
        code = -1
        err.write(traceback.format_exc())
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    spent = time.process_time() - began
    for name in set(os.listdir()) - before:
        shutil.rmtree(name) if os.path.isdir(name) and not os.path.islink(name) else os.unlink(name)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"code": code, "out": out.getvalue(), "err": err.getvalue(), "s": spent, "peak": peak}


def _write(files: dict) -> None:
    for name, content in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        kind, _, rest = content.partition(":")
        if kind == "@link":
            path.symlink_to(rest)
        elif kind == "@sparse":
            with path.open("wb") as stream:
                stream.truncate(int(rest))
        elif kind == "@folder":
            path.mkdir()
        elif kind == "@hex":
            path.write_bytes(bytes.fromhex(rest))
        else:
            path.write_text(content)


class Late(BaseException):
    """A command is still at work when its time is over; nothing but `run` catches it."""


def _late(*_: object) -> None:
    raise Late


def _start(task: dict) -> list[dict]:
    for clock in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(clock, _late)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["OPTPIPE_SIM_CACHE"] = f"{folder}/cache"
        _write(task["always"])
        first = [
            run({"argv": argv, "files": {}}, COMPILING_S, COMPILING_S) for argv in task["good"]
        ]
        wrong = [(answer["code"], answer["err"]) for answer in first if answer["code"]]
        assert not wrong, wrong
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, resource.RLIM_INFINITY))
        answers = [*first[-1:], *(run(row) for row in task["rows"])]
        os.chdir("/")
    return answers


if __name__ == "__main__":
    found = _start(json.load(sys.stdin))
    json.dump(found, sys.stdout)
