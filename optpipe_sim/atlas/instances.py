"""Instances as files: a folder per profile, with ``profile.yaml``, ``records.json``, and a compressed
text per schedule."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import OptPipeError, hint_for
from ..files import MOST_BYTES, read_bytes, read_mapping, write_together
from ..profile import CostProfile
from ..profile_io import load_profile
from ..schedule import Schedule
from ..units import parse_size

LIBRARY = Path(__file__).parent / "library"
FORMAT, VERSION = "optpipe-atlas", 1
PROFILE, RECORDS, SCHEDULE = "profile.yaml", "records.json", ".schedule.xz"


@dataclass(frozen=True)
class Record:
    """The best that is known, and where it comes from.

    Attributes:
        ns: the makespan of a schedule, or a time that no schedule can beat.
        how: the method that found the schedule, or the name of the bound's proof (docs/bounds.md).
        by: who ran it, or the program and its version.
        commit: of the code that ran, with a ``+`` where it was changed; empty: unknown.
        date: the day, as ``2026-11-27``.
        seconds: of the whole run that it comes from; None: unknown.
        seed: of that run; None: none, or unknown.
    """

    ns: int
    how: str
    by: str
    commit: str = ""
    date: str = ""
    seconds: float | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Instance:
    """A profile, microbatches and a memory limit, with what is known about them.

    Attributes:
        name: ``PROFILE@LIMIT``, as in ``llama3-8b-h100-p8@24GiB``.
        folder: of its profile. `model`: what the profile is of. `source`: where the profile is from.
        devices, chunks, microbatches: p, v and m. `limit_bytes`: the memory limit of every device.
        best: the fastest schedule known; None where none is known. `bound`: the best bound proven.
    """

    name: str
    folder: Path
    model: str
    source: str
    devices: int
    chunks: int
    microbatches: int
    limit_bytes: int
    best: Record | None = None
    bound: Record | None = None

    @property
    def profile_name(self) -> str:
        return self.name.partition("@")[0]

    @property
    def limit(self) -> str:
        """The limit as in the name."""
        return self.name.partition("@")[2]

    @property
    def gap(self) -> float | None:
        """(best - bound) / bound; None where either is unknown."""
        if self.best is None or self.bound is None:
            return None
        return (self.best.ns - self.bound.ns) / max(1, self.bound.ns)

    def load_profile(self) -> CostProfile:
        """Return the profile, with the instance's memory limit.

        Raises:
            OptPipeError: one line that names the file and what is wrong.
        """
        profile = load_profile(self.folder / PROFILE)
        return replace(profile, memory_limit=(self.limit_bytes,) * profile.devices)

    @property
    def schedule_path(self) -> Path:
        return self.folder / f"{self.limit}{SCHEDULE}"

    def load_schedule(self, profile: CostProfile | None = None) -> Schedule:
        """Return the best schedule known.

        Args:
            profile: the instance's, if it has been loaded.

        Raises:
            OptPipeError: where there is none, or the file is damaged.
        """
        if self.best is None:
            raise OptPipeError(f"{self.name}: no schedule is known")
        shape = (profile or self.load_profile()).shape(self.microbatches)
        path = self.schedule_path
        try:
            text = lzma.decompress(read_bytes(path, MOST_BYTES)).decode()
        except (lzma.LZMAError, UnicodeDecodeError) as error:
            raise OptPipeError(f"{path}: is damaged: {error}") from None
        try:
            return Schedule.from_text(shape, text)
        except (OptPipeError, json.JSONDecodeError) as error:
            raise OptPipeError(f"{path}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return the instance as plain data, with its gap."""
        return {
            "name": self.name,
            "profile": self.profile_name,
            "model": self.model,
            "source": self.source,
            "devices": self.devices,
            "chunks": self.chunks,
            "microbatches": self.microbatches,
            "limit_bytes": self.limit_bytes,
            "best": self.best and asdict(self.best),
            "bound": self.bound and asdict(self.bound),
            "gap": self.gap,
        }


def read_library(folder: str | os.PathLike[str] = LIBRARY) -> list[Instance]:
    """Return the instances of a library, by profile and limit.

    Raises:
        OptPipeError: one line that names the file and what is wrong; if it is no library.
    """
    if not Path(folder).is_dir():
        raise OptPipeError(f"{folder}: no such folder; a library has a folder per profile")
    return [
        one for path in sorted(Path(folder).glob(f"*/{RECORDS}")) for one in _of_folder(path.parent)
    ]


def read_instance(name: str, folder: str | os.PathLike[str] = LIBRARY) -> Instance:
    """Return an instance by its name.

    Raises:
        OptPipeError: where there is none of that name, with the nearest.
    """
    home = Path(folder) / name.partition("@")[0]
    known = list(_of_folder(home)) if (home / RECORDS).exists() else []
    for one in known:
        if one.name == name:
            return one
    names = [one.name for one in known or read_library(folder)]
    if not names:
        raise OptPipeError(f"{folder}: has no instances")
    if known:
        raise OptPipeError(f"{name}: not in the atlas; its limits there: {', '.join(names)}")
    raise OptPipeError(f"{name}: not in the atlas; {hint_for(name, names)}")


def _of_folder(folder: Path) -> Iterator[Instance]:
    path = folder / RECORDS
    data = read_mapping(path)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise OptPipeError(f"{path}: format: expected {FORMAT} {VERSION}")
    try:
        common = {
            key: data[key] for key in ("model", "source", "devices", "chunks", "microbatches")
        }
        for limit, known in data["instances"].items():
            yield Instance(
                f"{folder.name}@{limit}",
                folder,
                **common,
                limit_bytes=parse_size(limit),
                best=_record(known.get("best")),
                bound=_record(known.get("bound")),
            )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise OptPipeError(f"{path}: is damaged: {type(error).__name__}: {error}") from None
    except OptPipeError as error:
        raise OptPipeError(f"{path}: {error}") from None


def _record(data: Mapping[str, Any] | None) -> Record | None:
    if data is None:
        return None
    record = Record(**data)
    if isinstance(record.ns, bool) or not isinstance(record.ns, int) or record.ns < 0:
        raise ValueError(f"ns: expected a whole number of ns, got {record.ns!r}")
    seconds = None if record.seconds is None else float(record.seconds)
    return replace(record, seconds=seconds)


def write_instance(instance: Instance, schedule: Schedule | None = None) -> list[Path]:
    """Write what is known about an instance into its profile's folder, the others there unchanged.

    Args:
        schedule: the schedule of `instance.best`, where it is new.

    Raises:
        OptPipeError: where a file cannot be written; those of before are then still there.
    """
    path = instance.folder / RECORDS
    others = list(_of_folder(instance.folder)) if path.exists() else []
    every = [one for one in others if one.name != instance.name] + [instance]
    contents: dict[str | os.PathLike[str], bytes] = {path: _records_text(every).encode()}
    if schedule is not None:
        text = schedule.replace(meta={}).to_text().encode()
        contents[instance.schedule_path] = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
    write_together(contents)
    return [Path(one) for one in contents]


def _records_text(instances: list[Instance]) -> str:
    first = instances[0]
    data = {
        "format": FORMAT,
        "version": VERSION,
        "model": first.model,
        "source": first.source,
        "devices": first.devices,
        "chunks": first.chunks,
        "microbatches": first.microbatches,
        "instances": {
            one.limit: {
                "best": one.best and _bare(one.best),
                "bound": one.bound and _bare(one.bound),
            }
            for one in sorted(instances, key=lambda one: -one.limit_bytes)
        },
    }
    return json.dumps(data, indent=1) + "\n"


def _bare(record: Record) -> dict[str, Any]:
    return {key: value for key, value in asdict(record).items() if value not in (None, "")}
