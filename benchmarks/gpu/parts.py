"""The parts of a long run on an untested machine: each with a time limit, its result kept on disk before the
next begins, so that another process can go on where one has crashed or hung."""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import re
import shutil
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from optpipe_sim.errors import OptPipeError
from optpipe_sim.files import write_bytes, write_text

UNDER_WAY = "the process ended while it ran"
OVERTIME_S = 40.0  # that the last part may take
LOST = 3  # exit status of a process whose device answers no more
FAILURES, HUNG = "failures.txt", "hung.txt"
_Found = TypeVar("_Found")


class Parts:
    """Runs parts one after the other; every change is written to disk at once.

    A part that raises is reported in one line, its traceback goes to `failures.txt`. A part that hangs ends the
    process at its deadline with the stacks of all threads in `hung.txt` (`crashed` moves them); one that takes the device with it
    (`alive` raises) ends the process with status `LOST`.

    Args:
        folder: of the whole run. seconds: for all parts, those of earlier processes included.
        alive: called after each part; raises where nothing works any more.
        resume: go on after an earlier process: parts that have run are not run again.
        least_s: before a part counts as hung; compiling on a new machine may take a minute or two.
    """

    def __init__(
        self,
        folder: Path,
        seconds: float,
        say: Callable[[str], None],
        alive: Callable[[], None] = lambda: None,
        resume: bool = False,
        least_s: float = 150.0,
    ) -> None:
        self.folder, self.say, self.alive, self.least_s = folder, say, alive, least_s
        self.kept = kept_in(folder)
        if not resume:
            shutil.rmtree(self.kept, ignore_errors=True)
            (folder / FAILURES).unlink(missing_ok=True)
        self.kept.mkdir(parents=True, exist_ok=True)
        state = _state(folder)
        self.ends: float = state.get("ends", time.time() + seconds)
        self.entries: list[dict[str, Any]] = []
        self.before: dict[str, dict[str, Any]] = {
            one["name"]: one for one in state.get("parts", [])
        }

    @property
    def left(self) -> float:
        """Seconds."""
        return self.ends - time.time()

    def run(self, name: str, needs: float, do: Callable[[], _Found]) -> _Found | None:
        """Run a part; returns its result, from now or from an earlier process; None where it failed, or where fewer than
        `needs` seconds are left. Past three times that (and `least_s`), or `OVERTIME_S` after the time for all, it
        counts as hung."""
        before = self.before.get(name)
        if before is not None:
            self.entries.append(before)
            path = self.kept / f"{_slug(name)}.pickle"
            return pickle.loads(path.read_bytes()) if before["problem"] is None else None
        entry: dict[str, Any] = {"name": name, "seconds": 0.0, "problem": None}
        self.entries.append(entry)
        if self.left < needs:
            entry["problem"] = (
                f"left out: {max(0.0, self.left):.0f} s were left, it takes about {needs:.0f}"
            )
            self.say(f"{name}: {entry['problem']}")
            return None
        self.say(f"{name} ({self.left:.0f} s left)")
        entry["problem"] = UNDER_WAY
        self._write()
        start, found = time.monotonic(), None
        try:
            with (self.folder / HUNG).open("w") as stacks:
                limit = min(max(self.least_s, 3 * needs), self.left + OVERTIME_S)
                faulthandler.dump_traceback_later(limit, exit=True, file=stacks)
                try:
                    found = do()
                finally:
                    faulthandler.cancel_dump_traceback_later()
            write_bytes(self.kept / f"{_slug(name)}.pickle", pickle.dumps(found))
            entry["problem"] = None
        except Exception as error:  # the rest may do
            entry["problem"] = f"{type(error).__name__}: {error}".splitlines()[0]
            _append(self.folder, name, traceback.format_exc())
            self.say(f"{name}: {entry['problem']}")
        (self.folder / HUNG).unlink(missing_ok=True)
        entry["seconds"] = round(time.monotonic() - start, 1)
        self._write()
        try:
            self.alive()
        except Exception as error:
            self._lose(name, error)
        return found

    def write(self, name: str, do: Callable[[], object]) -> None:
        """Write a file of what was found. Where that cannot be told in a file, it is noted, and no reason to measure
        no more; a folder that cannot be written to is."""
        try:
            do()
        except (OptPipeError, OSError):
            raise
        except Exception as error:
            _append(self.folder, name, traceback.format_exc())
            self.say(f"{name}: not written: {type(error).__name__}: {error}".splitlines()[0])

    def _lose(self, name: str, error: Exception) -> NoReturn:
        self.say(f"{name}: the device answers no more ({str(error).splitlines()[0:1]})")
        os._exit(LOST)  # whatever is left of it would wait for the device

    def _write(self) -> None:
        later = [one for one in self.before.values() if one not in self.entries]
        state = {"ends": self.ends, "parts": [*self.entries, *later]}
        write_text(self.kept / "state.json", json.dumps(state) + "\n")


def kept_in(folder: Path) -> Path:
    """Return where results are kept between processes."""
    return folder / "parts"


def crashed(folder: Path, how: str) -> int:
    """Note how a process ended in the part that it was in, with the stacks of one that hung; how many
    parts are over with that."""
    state = _state(folder)
    parts = state.get("parts", [])
    stacks = folder / HUNG
    for entry in parts:
        if entry["problem"] == UNDER_WAY:
            entry["problem"] = f"{UNDER_WAY}: {how}"
            if stacks.is_file():
                _append(folder, entry["name"], stacks.read_text())
    stacks.unlink(missing_ok=True)
    if state:
        write_text(kept_in(folder) / "state.json", json.dumps(state) + "\n")
    return len(parts)


def hung(folder: Path) -> bool:
    """Whether the last process was ended at the deadline of a part."""
    stacks = folder / HUNG
    return stacks.is_file() and stacks.stat().st_size > 0


def _append(folder: Path, name: str, text: str) -> None:
    with (folder / FAILURES).open("a") as file:
        file.write(f"## {name}\n{text}\n")


def _state(folder: Path) -> dict[str, Any]:
    path = kept_in(folder) / "state.json"
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _slug(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name)
