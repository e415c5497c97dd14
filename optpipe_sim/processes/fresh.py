"""Start fresh Pythons that run a module of this package, end processes, and report how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO


def start_python(
    module: str,
    arguments: Sequence[object],
    log: IO[bytes],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a fresh Python that runs a module of this package; its stderr goes to `log`.

    It runs in a session of its own, so that only the caller receives Ctrl-C.
    """
    paths = filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")))
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdin=stdin,
        stdout=stdout,
        stderr=log,
        pass_fds=tuple(pass_fds),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
        start_new_session=True,
    )


def kill(processes: Sequence[subprocess.Popen[bytes]], after_s: float = 0.0) -> None:
    """Kill the processes that have not ended within some seconds."""
    for process in processes:
        if after_s > 0:
            with suppress(subprocess.TimeoutExpired):
                process.wait(after_s)
        process.kill()
    for process in processes:
        process.wait()


def how_it_ended(code: int | None) -> str:
    """Describe an exit status: ``killed by SIGKILL``, ``exit status 3``."""
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"


def last_line(log: bytes) -> str:
    """Return the last line of a log that is not empty, or an empty text."""
    lines = log.decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")
