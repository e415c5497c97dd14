"""Solved schedules on disk, looked up by the identity of the problem.

One file per problem: the best schedule known and the best bound. Processes may share the folder:
files are written atomically and each holds its own checksum. The least recently used entries are
dropped when the folder grows too large.

What stands in the folder is untrusted: it is read, adapted and replayed within `_or_none` alone, so
that an entry that fails in any way is as good as none, and no solve can end with its error.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from ...errors import OptPipeError
from ...files import user_cache, write_bytes
from ...schedule import Schedule
from ...version import __version__
from ..problem import Problem
from .adapt import adapt, without_transfers
from .identity import Identity, carried_bound, distance, identity
from .race import Race

FORMAT = 1
FOLDER, SIZE = "OPTPIPE_SIM_CACHE", "OPTPIPE_SIM_CACHE_MIB"
DEFAULT_MIB = 256
LARGEST = 500_000  # ops; writing more takes seconds, and reading them again does
MOST_LOOKED_AT = 200  # entries of a family
FAR = 2.0  # beyond this distance a schedule is not worth starting from
STALE_S = 3600  # age at which the writer of a temporary file must be dead
_ENDING = ".entry"
P = ParamSpec("P")
T = TypeVar("T")


class Entry(NamedTuple):
    """The best known schedule and bound of a problem. `bound` in the time units of `problem`;
    `seconds`: the longest time of a single run on it."""

    problem: Identity
    schedule: Schedule
    bound: int
    bound_name: str
    seconds: float


@dataclass(frozen=True)
class Cache:
    """A folder of solved problems.

    Attributes:
        folder: by default ``$OPTPIPE_SIM_CACHE``, else ``optpipe_sim`` in the user's cache folder.
        most_bytes: by default ``$OPTPIPE_SIM_CACHE_MIB`` MiB, else 256.
    """

    folder: Path
    most_bytes: int

    def get(self, problem: Problem) -> Entry | None:
        """Return the entry of exactly this problem, unless its bound and its schedule contradict
        each other."""
        wanted = identity(problem)
        path = self._path(wanted)
        entry = _or_none(_entry_of, path, problem, wanted)
        if entry is not None:
            _touch(path)
        return entry

    def near(self, problem: Problem, most: int = 3) -> list[Entry]:
        """Return the entries of the most similar other problems, the nearest first; none for
        problems over slices, whose schedules are never adapted."""
        if problem.shape.slices > 1:
            return []
        wanted = identity(problem)
        found = []
        for path, head in self._others(wanted):
            far = _or_none(distance, Identity(head["problem"], 1), wanted)
            if far is not None and far <= FAR:
                found.append((far, path.name, path))
        entries = []
        for *_, path in sorted(found)[:most]:
            entry = _or_none(_read, path)
            if entry is not None:
                _touch(path)
                entries.append(entry)
        return entries

    def bound_ns(self, problem: Problem) -> tuple[int, str]:
        """Return the best bound that other problems prove for this one, in ns, and its name."""
        wanted = identity(problem)
        best = (0, "")
        for _, head in self._others(wanted):
            source = Identity(head["problem"], 1)
            bound = _or_none(carried_bound, source, head["bound"], wanted)
            if bound:
                best = max(best, (bound, head["bound_name"]))
        return best

    def _others(self, wanted: Identity) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the files and headers of the other problems of a family."""
        for path in self._family(wanted):
            head = _or_none(_head, path)
            if head is not None and head["problem"] != wanted.data:
                yield path, head

    def put(
        self, problem: Problem, schedule: Schedule, bound_ns: int, bound_name: str, seconds: float
    ) -> None:
        """Store a schedule and a bound, unless better ones are stored. A folder that cannot be
        written is ignored, and so is a schedule of more than `LARGEST` ops."""
        if len(schedule) > LARGEST:
            return
        wanted = identity(problem)
        bound = -(-bound_ns // wanted.time_unit_ns)
        if "engines" not in wanted.data:
            schedule = without_transfers(schedule)
        known = self.get(problem)
        if known is not None:
            if problem.replay(known.schedule).cost_ns <= problem.replay(schedule).cost_ns:
                schedule = known.schedule
            if known.bound >= bound:
                bound, bound_name = known.bound, known.bound_name
            seconds = max(seconds, known.seconds)
            if known == (wanted, schedule, bound, bound_name, seconds):
                return
        head = {
            "format": [FORMAT, __version__],
            "problem": wanted.data,
            "bound": bound,
            "bound_name": bound_name,
            "seconds": seconds,
        }
        content = zlib.compress(json.dumps(schedule.to_json()).encode())
        body = json.dumps(head).encode() + b"\n" + content
        path = self._path(wanted)
        if os.path.lexists(path) and not path.is_file():  # to write into a pipe would take forever
            return
        try:
            write_bytes(path, _checksum(body) + b"\n" + body)
            self._evict()
        except (OptPipeError, OSError):
            pass

    def clear(self) -> int:
        """Delete all entries; returns how many there were."""
        files = [path for path, _ in self._files()]
        for path in files:
            path.unlink(missing_ok=True)
        return sum(path.name.endswith(_ENDING) for path in files)

    def info(self) -> dict[str, Any]:
        """Return the folder, its number of problems, its size and its limit in bytes."""
        files = list(self._files())
        return {
            "folder": str(self.folder),
            "problems": sum(path.name.endswith(_ENDING) for path, _ in files),
            "bytes": sum(status.st_size for _, status in files),
            "most_bytes": self.most_bytes,
        }

    def _path(self, wanted: Identity) -> Path:
        return self.folder / wanted.family / f"{wanted.key}{_ENDING}"

    def _family(self, wanted: Identity) -> list[Path]:
        """Return the files of a family, the most recently used first."""
        folder = self.folder / wanted.family
        files = [(path, status) for path, status in _files_in(folder) if path.suffix == _ENDING]
        files.sort(key=lambda file: -file[1].st_mtime_ns)
        return [path for path, _ in files[:MOST_LOOKED_AT]]

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        try:
            folders = [entry.path for entry in os.scandir(self.folder) if entry.is_dir()]
        except OSError:
            return
        for folder in folders:
            yield from _files_in(Path(folder))

    def _evict(self) -> None:
        """Drop the least recently used files until the rest is small enough, and files of dead writers."""
        files = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
        total = sum(status.st_size for _, status in files)
        for path, status in files:
            stale = path.suffix != _ENDING and time.time() - status.st_mtime > STALE_S
            if stale or (total > self.most_bytes and path.suffix == _ENDING):
                path.unlink(missing_ok=True)
                total -= status.st_size


def open_cache(folder: str | os.PathLike[str] | None = None, mib: int | None = None) -> Cache:
    """Open the cache in a folder; see `Cache` for the defaults. Nothing is created before the first
    use.

    Raises:
        OptPipeError: if the size in the environment is not a number.
    """
    where = folder or os.environ.get(FOLDER) or user_cache() / "optpipe_sim"
    text = os.environ.get(SIZE, str(DEFAULT_MIB))
    if not text.isdigit():
        raise OptPipeError(f"{SIZE}: must be a whole number of MiB, got {text!r}")
    return Cache(Path(where), (int(text) if mib is None else mib) << 20)


# -- use by solve ----------------------------------------------------------------------


def recall(race: Race, cache: Cache) -> Entry | None:
    """Start a race from the cached schedule of the problem itself, else from those of the most
    similar ones."""
    problem = race.problem
    entry = cache.get(problem)
    if entry is not None:
        race.offer(entry.schedule, "cache")
        race.prove(entry.bound * entry.problem.time_unit_ns, entry.bound_name)
    else:
        for near in cache.near(problem):
            adapted = _or_none(adapt, problem, near.schedule)
            if adapted is not None:
                race.offer(adapted, "cache, adapted")
    bound_ns, name = cache.bound_ns(problem)
    if bound_ns <= race.cost_ns:  # else the cached bound contradicts a schedule that fits
        race.prove(bound_ns, name)
    return entry


def remember(race: Race, cache: Cache) -> None:
    """Store the result of a race."""
    if race.best is not None:
        cache.put(race.problem, race.best, race.bound_ns, race.bound_name, race.seconds)


# -- files ----------------------------------------------------------------------------------------


def _or_none(use: Callable[P, T | None], *args: P.args, **options: P.kwargs) -> T | None:
    """Return the result of reading or using an entry, or None if that fails.

    An entry is untrusted: another program or version may have written it, for another problem. So any
    error in `use` is the entry's; nothing else may run in here, as its errors would be hidden.
    """
    try:
        return use(*args, **options)
    except Exception:
        return None


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _head(path: Path) -> dict[str, Any] | None:
    """Read a file without unpacking its schedule; None if it is damaged, of another version or of
    another problem than its name says.

    Raises:
        OSError, ValueError, ...: if it is missing or nothing that this package wrote.
    """
    if not path.is_file():  # to read a pipe would take forever
        return None
    checksum, _, body = path.read_bytes().partition(b"\n")
    if checksum != _checksum(body):
        return None
    line, _, content = body.partition(b"\n")
    head = json.loads(line)
    if head["format"] != [FORMAT, __version__]:
        return None
    kinds = {"problem": dict, "bound": int, "bound_name": str, "seconds": int | float}
    right = all(isinstance(head[key], kind) for key, kind in kinds.items())
    if not right or head["bound"] < 0 or Identity(head["problem"], 1).key != path.stem:
        return None
    return {**head, "content": content}


def _read(path: Path) -> Entry | None:
    """Read a whole file; None and errors as for `_head`."""
    head = _head(path)
    if head is None:
        return None
    schedule = Schedule.from_json(json.loads(zlib.decompress(head["content"])))
    problem = Identity(head["problem"], 1)
    return Entry(problem, schedule, head["bound"], head["bound_name"], head["seconds"])


def _entry_of(path: Path, problem: Problem, wanted: Identity) -> Entry | None:
    """Read the entry of a problem; None if it is another problem's, or if its schedule costs less
    than its bound.

    Raises:
        OptPipeError: if the schedule does not fit; and as `_head`.
    """
    entry = _read(path)
    if entry is None or (entry.problem.data, entry.schedule.shape) != (wanted.data, problem.shape):
        return None
    cost = problem.replay(entry.schedule).cost_ns
    return None if entry.bound * wanted.time_unit_ns > cost else entry._replace(problem=wanted)


def _files_in(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_file():
                yield Path(entry.path), entry.stat()
        except OSError:  # another process was faster
            continue


def _touch(path: Path) -> None:
    """Mark a file as recently used."""
    with suppress(OSError):
        os.utime(path)
