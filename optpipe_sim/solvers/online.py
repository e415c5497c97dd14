"""A solver in a background process, which can be queried and stopped.

    with SolverProcess(profile, microbatches=24, memory_limit=40 * 2**30) as solver:
        ... # other work schedule = solver.best() # the best so far

It reports in two files of its folder, each written atomically: ``best.json``, a schedule file, and
``state.json``. So the caller need not read messages, a solver that is killed leaves its incumbent,
and a solver ends when its caller dies.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import NoSolution, OptPipeError, OutOfMemory
from ..files import write_mapping, write_text
from ..option_fields import listing, parameters_of
from ..processes.fresh import how_it_ended, kill, last_line, start_python
from ..processes.signals import leave_with_parent
from ..profile import CostProfile
from ..profile_io import load_profile, save_profile
from ..schedule import Schedule
from .options import SolveOptions
from .race.race import Race
from .result import status_of
from .solve import solve

BEST, STATE, LOG = "best.json", "state.json", "log.txt"
TASK, PROFILE, START = "task.json", "profile.json", "start.json"
PATIENCE_S = 5.0  # how long a solver may take to stop before it is killed
PLAIN = (bool, int, float, str, type(None))


class SolverProcess:
    """`solve`, running in the background.

    Args:
        profile, microbatches, memory_limit: as for `solve`.
        folder: where its files are written; kept. None: a temporary folder, removed with this
            object.
        warm_start: a schedule to start from; ``none``: engines start without one.
        options: the other arguments of `solve` that are plain data (``engine``, ``time_limit``,
            ``objective``, ``seed``, ``workers``, ``cache`` ...).

    Raises:
        OptPipeError: for options that are not plain data, or a folder that cannot be written.
    """

    @listing(parameters_of(SolveOptions))
    def __init__(
        self,
        profile: CostProfile,
        microbatches: int,
        memory_limit: int | Sequence[int] | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        warm_start: Schedule | str | None = None,
        **options: Any,
    ) -> None:
        if "save" in options:
            raise OptPipeError(f"save: its own {BEST} holds the best; give a folder to keep it")
        for name, value in options.items():
            if not isinstance(value, PLAIN):
                raise OptPipeError(f"{name}: must be plain data, got {type(value).__name__}")
        own = None if folder is not None else tempfile.mkdtemp(prefix="optpipe-solver-")
        self.folder = Path(folder if own is None else own)  # type: ignore[arg-type]
        limit: Any = memory_limit
        if memory_limit is not None:  # numpy's numbers are not plain data
            each = isinstance(memory_limit, Sequence | np.ndarray)
            limit = [int(size) for size in memory_limit] if each else int(memory_limit)  # type: ignore
        save_profile(profile, self.folder / PROFILE)
        for old in (BEST, STATE, START):
            (self.folder / old).unlink(missing_ok=True)
        task = {"microbatches": int(microbatches), "memory_limit": limit, **options}
        if isinstance(warm_start, Schedule):
            warm_start.save(self.folder / START)
        elif warm_start is not None:
            task["warm_start"] = warm_start
        write_mapping(self.folder / TASK, task)
        self._process = _start(self.folder)
        self._finalizer = weakref.finalize(self, _end, self._process, own)
        self._seen: tuple[int, Schedule] | None = None

    def __enter__(self) -> SolverProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it is still running."""
        return self._process.poll() is None

    def best(self) -> Schedule | None:
        """Return the best schedule so far, or None."""
        path = self.folder / BEST
        try:
            version = path.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, Schedule.load(path))
        return self._seen[1]

    def bound(self) -> int:
        """Return the best proven lower bound so far, in ns; 0 before there is one."""
        return int(self.state().get("lower_bound_ns", 0))

    def state(self) -> dict[str, Any]:
        """Return the state that it last reported: ``status`` (``running``, then that of `SolveResult`, or
        ``failed``), ``seconds, objective_ns, lower_bound_ns, bound, found_by``, and, if it
        failed, ``error``, one line. Empty before its first report."""
        running = self.running  # before reading, else its last report could be missed
        try:
            data: dict[str, Any] = json.loads((self.folder / STATE).read_text())
        except FileNotFoundError:
            data = {}
        if not running and data.get("status", "running") == "running":
            data |= {"status": "failed", "error": self._last_words()}
        return data

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is done, at most `seconds`; returns whether it is done."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> Schedule | None:
        """Stop it, by force if necessary, and return the best schedule it found."""
        _halt(self._process)
        return self.best()

    def _last_words(self) -> str:
        """Return why a solver ended without a report."""
        code = self._process.returncode
        if code is not None and code < 0:
            return how_it_ended(code)
        return last_line((self.folder / LOG).read_bytes()) or how_it_ended(code)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the solver process; a message on its stdin stops it."""
    with (folder / LOG).open("wb") as log:
        return start_python(__name__, (folder, os.getpid()), log, stdin=subprocess.PIPE)


def _halt(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None and not process.stdin.closed:
        with suppress(BrokenPipeError):  # it has ended
            # a message, as stdin does not close while another child of the caller has it open
            process.stdin.write(b"stop")
            process.stdin.close()
    kill([process], PATIENCE_S)


def _end(process: subprocess.Popen[bytes], own_folder: str | None) -> None:
    """Clean up when the object is deleted, or Python ends."""
    _halt(process)
    if own_folder is not None:
        shutil.rmtree(own_folder, ignore_errors=True)


# -- in the process -------------------------------------------------------------------------------


class _Reporter:
    """Write the state of a race, when it has changed and every few seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.last, self.when = folder, (-1, -1), 0.0

    def __call__(self, race: Race) -> None:
        now = (race.cost_ns, race.bound_ns)
        if now == self.last and time.monotonic() < self.when + 2:
            return
        self.last, self.when = now, time.monotonic()
        self.write(
            status="running",
            seconds=race.seconds,
            objective_ns=None if race.best is None else race.cost_ns,
            lower_bound_ns=race.bound_ns,
            bound=race.bound_name,
            found_by=race.engine,
        )

    def write(self, **state: Any) -> None:
        with suppress(OptPipeError):  # a full disk may have room later
            write_text(self.folder / STATE, json.dumps(state) + "\n")


def main(folder: Path, caller: int) -> None:
    """Solve the task in a folder, for as long as its caller lives."""
    # a background job may have started it with the signal ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    leave_with_parent(
        caller,
        lambda: os.kill(os.getpid(), signal.SIGINT),
        lambda seconds: bool(select.select([0], [], [], seconds)[0]),
    )
    report = _Reporter(folder)
    state: dict[str, Any] = {}
    try:
        task = json.loads((folder / TASK).read_text())
        if (folder / START).exists():
            task["warm_start"] = Schedule.load(folder / START)
        profile = load_profile(folder / PROFILE)
        result = solve(profile, **task, watch=report, save=folder / BEST)
        keys = ("status", "seconds", "objective_ns", "lower_bound_ns", "bound")
        measures = result.measures()
        state = {key: measures[key] for key in keys} | {"found_by": result.info["found_by"]}
    except KeyboardInterrupt:
        state = {"status": "unknown", "error": "stopped before a schedule was found"}
    except (OutOfMemory, NoSolution) as error:
        state = {"status": status_of(error), "error": str(error)}
    except (OptPipeError, TypeError) as error:  # TypeError: an option that solve does not have
        state = {"status": "failed", "error": str(error)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it has ended
    report.write(**state)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
