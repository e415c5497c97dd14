"""Which sweep computes which point, for sweeps that share a folder of finished points.

A running sweep keeps a file ``.running/ID`` and touches it every few seconds; each point that it
computes has a file ``KEY.lock`` with that ID. A lock whose sweep has ended (its file is missing,
its process has exited, or it was not touched for a minute) is free. Machines may share the folder:
ages are differences of times set by the same file system. If two sweeps take a free lock at the
same instant, the point may be computed twice, which is harmless.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import OptPipeError
from ...processes.signals import is_running

TOUCH_S = 5.0  # how often a running sweep touches its file
RUNNING = ".running"
LOST_S = 60.0  # without a touch for this long it counts as ended


@dataclass(frozen=True)
class Locks:
    """The locks of a folder as one sweep, `owner`, sees them."""

    folder: Path
    owner: str

    def take(self, key: str) -> bool:
        """Lock a point; False if another running sweep has it."""
        path = self._path(key)
        for _ in range(2):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                holder = self._holder(path)
                if holder == self.owner:  # a lock of a process of ours that died
                    return True
                if holder is not None and (
                    self._runs(holder, path) or not self._clear(path, holder)
                ):
                    return False
                continue
            except OSError as error:
                raise OptPipeError(f"{path}: cannot be written: {error.strerror}") from None
            with os.fdopen(handle, "w") as file:
                file.write(self.owner)
            return True
        return False

    def release(self, key: str) -> None:
        """Unlock a point."""
        self._path(key).unlink(missing_ok=True)

    def free(self, key: str) -> bool:
        """Whether no other running sweep has locked the point."""
        path = self._path(key)
        holder = self._holder(path)
        return holder is None or holder == self.owner or not self._runs(holder, path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.lock"

    def _holder(self, path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8")
        except OSError:
            return None

    def _clear(self, path: Path, holder: str) -> bool:
        """Remove the lock of a sweep that has ended; False if another sweep was faster."""
        aside = path.with_suffix(f".{self.owner}")
        with suppress(OSError):
            path.rename(aside)
            if self._holder(aside) != holder:  # it is the lock of the other sweep
                aside.rename(path)
                return False
            aside.unlink()
        return True

    def _runs(self, holder: str, path: Path) -> bool:
        """Whether the sweep that holds a lock is running; a lock without an ID is just being written."""
        return self.runs(holder) if holder else self._age(path) < LOST_S

    def runs(self, owner: str) -> bool:
        """Whether a sweep is running, as far as this machine knows."""
        path = self.folder / RUNNING / owner
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if self._age(path) > LOST_S:
                return False
            return bool(found["host"] != _host() or is_running(int(found["pid"])))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _age(self, path: Path) -> float:
        """Return how long before our own last touch a file was written or touched, in seconds."""
        try:
            ours = (self.folder / RUNNING / self.owner).stat().st_mtime
            return ours - path.stat().st_mtime
        except OSError:
            return 0.0


@dataclass
class Running:
    """Mark this sweep as running for the duration of the block; returns its `locks`."""

    folder: Path
    locks: Locks = field(init=False)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Locks:
        owner = uuid.uuid4().hex
        self.locks = Locks(self.folder, owner)
        self._path = self.folder / RUNNING / owner
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"host": _host(), "pid": os.getpid()}))
        except OSError as error:
            raise OptPipeError(f"{self._path}: cannot be written: {error.strerror}") from None
        self._thread = threading.Thread(target=self._touch, daemon=True)
        self._thread.start()
        return self.locks

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with suppress(OSError):
            for path in self._path.parent.glob("*"):  # files of sweeps that were killed
                if not self.locks.runs(path.name):
                    path.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)

    def _touch(self) -> None:
        while not self._stop.wait(TOUCH_S):
            with suppress(OSError):
                os.utime(self._path)


def _host() -> str:
    """This machine and the processes it sees, as a digest: no name of it is kept."""
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{socket.gethostname()} {space}".encode()).hexdigest()[:16]
