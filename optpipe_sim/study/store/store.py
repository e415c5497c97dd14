"""Finished points, each in a small file of its own, kept the moment it is finished.

Files are written beside their place and renamed, so a process that is killed leaves whole files, and
any number of processes and sweeps may share the folder. A file that does not read (a disk that was
full, a machine that lost power) counts as not there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import OptPipeError
from ...files import write_text
from ..tasks import Row

STALE_S = 3600  # age of a temporary file whose writer must be dead


@dataclass(frozen=True)
class Record:
    """What became of a point: its rows, or the error in one line; how long it took; when; how busy
    the machine was when it began (the load of the last minute); with which commit; how much CPU time it had, s,
    which is less than it took on a machine that is too busy."""

    rows: list[Row]
    error: str | None
    seconds: float
    date: str
    load: float | None = None
    commit: str | None = None
    cpu_s: float | None = None


@dataclass(frozen=True)
class Store:
    """A folder of finished points, by their keys."""

    folder: Path

    def put(self, key: str, record: Record) -> None:
        """Keep a point.

        Raises:
            OptPipeError: where that cannot be written: a full disk, a folder without permission.
        """
        write_text(self._path(key), json.dumps({"key": key, **asdict(record)}) + "\n")

    def get(self, key: str) -> Record | None:
        """Return a finished point; None where there is none, or its file is not whole."""
        return self._read(key)[0]

    def find(self, keys: Iterable[str]) -> tuple[dict[str, Record], int]:
        """Return those of the points that are finished, and how many files were not whole."""
        found, broken = {}, 0
        for key in keys:
            record, damaged = self._read(key)
            broken += damaged
            if record is not None:
                found[key] = record
        return found, broken

    def tidy(self) -> None:
        """Remove what writers that were killed have left."""
        for path in self.folder.glob("[0-9a-f][0-9a-f]/.*"):
            try:
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()
            except OSError:  # another process was faster
                continue

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def _read(self, key: str) -> tuple[Record | None, bool]:
        try:
            text = self._path(key).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None, False
        except OSError as error:
            raise OptPipeError(f"{self._path(key)}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            return None, True
        try:
            data = json.loads(text)
            if data.pop("key") != key:
                return None, True
            return Record(**data), False
        except (ValueError, TypeError, KeyError, AttributeError):
            return None, True
