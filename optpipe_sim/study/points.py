"""From an experiment to its points: everything resolved and checked before anything runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ..errors import OptPipeError
from ..files import plain, read_mapping
from ..names import build, parse_name
from ..profile import CostProfile
from ..profile_io import load_profile, profile_to_json
from ..sim import simulate
from ..units import BYTE_UNITS, TIME_UNITS, exact, parse_size
from .experiment import Experiment
from .tasks import Row, Task

RELATIVE = re.compile(r"(\d+(?:\.\d+)?)\s*x\s+(\S+)")
# keys of a profile that say the same in another way
_SAME = {"d2h_gb_per_s": "t_offload", "h2d_gb_per_s": "t_reload"}


@dataclass(frozen=True)
class Point:
    """One call of a task.

    Attributes:
        key: a digest of the task, its version and the parameters, contents of profiles included:
            equal for equal work.
        parameters: what the task gets, as plain data.
        labels: the columns that tell this point from the others of its table.
    """

    task: str
    key: str
    parameters: Mapping[str, Any]
    labels: Row


def plan(experiment: Experiment) -> list[Point]:
    """The points of an experiment in its order; what is said twice is one point.

    Raises:
        OptPipeError: one line that names the file, the key, what is wrong and what would be right.
    """
    points: dict[str, Point] = {}
    resolver = _Resolver(experiment)
    for where, given in experiment.settings():
        try:
            point = resolver.point(given)
        except OptPipeError as error:
            message = str(error)
            key = message.split(":")[0].split("[")[0]
            at = "base" if key in experiment.base else where
            raise OptPipeError(f"{experiment.path}: {at}.{message}") from None
        points.setdefault(point.key + json.dumps(point.labels), point)
    return list(points.values())


def arguments(task: Task, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a point as its function takes them: profiles loaded."""
    return {
        key: _loaded(json.dumps(value)) if task.kinds[key] is CostProfile else value
        for key, value in parameters.items()
    }


@lru_cache(maxsize=256)
def _loaded(text: str) -> CostProfile:
    return load_profile(json.loads(text))


class _Resolver:
    """Resolves the parameters of an experiment's points; each distinct value once."""

    def __init__(self, experiment: Experiment) -> None:
        self.task, self.folder = experiment.task, experiment.path.parent
        self.profiles: dict[str, CostProfile] = {}
        self.held: dict[tuple[str, int, str], tuple[int, int]] = {}

    def point(self, given: Mapping[str, Any]) -> Point:
        nested = _nest(given)
        for key in self.task.needed:
            if key not in nested:
                raise OptPipeError(f"{key}: missing; {self.task.name} needs it")
        values: dict[str, Any] = {}
        for key, value in nested.items():
            kind = self.task.kinds[key]
            values[key] = (
                self._profile(key, value) if kind is CostProfile else _value(key, value, kind)
            )
        labels: Row = {}
        for key, value in given.items():
            kind = self.task.kinds.get(key)
            labels[key] = values[key].name if kind is CostProfile else plain(value)
            if kind is not None and _kind(kind) == "limit":
                values[key] = self._limit(key, values)
                labels[f"{key}_bytes"] = values[key]
        parameters = {
            key: plain(profile_to_json(value)) if isinstance(value, CostProfile) else value
            for key, value in values.items()
        }
        text = json.dumps([self.task.name, self.task.version, parameters], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        return Point(self.task.name, digest, parameters, labels)

    def _profile(self, key: str, value: Any) -> CostProfile:
        text = json.dumps(value, default=str)
        if text not in self.profiles:
            try:
                self.profiles[text] = profile_of(value, self.folder)
            except OptPipeError as error:
                raise OptPipeError(f"{key}: {error}") from None
        return self.profiles[text]

    def _limit(self, key: str, values: Mapping[str, Any]) -> int | None:
        """Bytes per device: an absolute limit as it is; ``0.5x 1f1b`` is what is static and half of
        what 1F1B holds beyond that, on the device where it holds most, without a limit."""
        limit: int | tuple[Decimal, str] | None = values[key]
        if not isinstance(limit, tuple):
            return limit
        share, name = limit
        profile, m = values.get("profile"), values.get("microbatches")
        if not isinstance(profile, CostProfile) or not isinstance(m, int):
            raise OptPipeError(f"{key}: a share of {name} needs profile and microbatches as well")
        at = (json.dumps(profile_to_json(profile), default=str), m, name)
        if at not in self.held:
            try:
                trace = simulate(build(name, profile, m), profile, enforce=False, engine="replay")
            except OptPipeError as error:
                raise OptPipeError(f"{key}: {error}") from None
            peaks, static = trace.peak_bytes, trace.profile.static_bytes
            self.held[at] = max(zip(peaks, static, strict=True))
        peak, fixed = self.held[at]
        return fixed + int(exact(share) * (peak - fixed))


def _nest(given: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys set inside of what they name: ``profile.offload.t_offload_ms``."""
    nested = {key: value for key, value in given.items() if "." not in key}
    for key, value in given.items():
        root, *inner = key.split(".")
        if not inner:
            continue
        start = nested.get(root)
        if isinstance(start, str):
            start = {"file": start}
        if not isinstance(start, dict):
            raise OptPipeError(f"{key}: there is no {root} to change; give it in the base")
        for name in reversed(inner):
            value = {name: value}
        # a null is kept where it is to take away what a file says
        nested[root] = _changed(start, value, keep_null="file" in start or "estimate" in start)
    return nested


# -- values ---------------------------------------------------------------------------------------


def _kind(annotation: Any) -> str:
    """The word in ``Annotated[..., word]``."""
    return str(get_args(annotation)[1]) if get_origin(annotation) is Annotated else ""


def _value(key: str, value: Any, annotation: Any) -> Any:
    """A value of a parameter, as plain data, or one line that says what would be right."""
    try:
        return _parse(value, annotation)
    except (OptPipeError, ValueError) as error:
        raise OptPipeError(f"{key}: {error}") from None


def _parse(value: Any, annotation: Any) -> Any:
    kind = _kind(annotation)
    if kind:
        return _NOTATIONS[kind](value)
    origin = get_origin(annotation)
    if origin is Literal:
        if value in get_args(annotation) and type(value) in map(type, get_args(annotation)):
            return value
        choices = ", ".join(map(str, get_args(annotation)))
        raise ValueError(f"expected one of {choices}, got {plain(value)!r}")
    if origin in (Union, UnionType):
        problems = []
        for choice in get_args(annotation):
            try:
                return _parse(value, choice)
            except (OptPipeError, ValueError) as error:
                problems.append(str(error))
        raise ValueError("; or ".join(problems))
    if origin is list or annotation is list:
        if not isinstance(value, list):
            raise ValueError(f"expected a list, got {plain(value)!r}")
        inner = get_args(annotation) or (Any,)
        return [_parse(item, inner[0]) for item in value]
    if annotation is float and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return float(value)
    types = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if annotation in types and type(value) is not annotation:
        raise ValueError(f"expected {types[annotation]}, got {plain(value)!r}")
    if annotation in (None, NoneType) and value is not None:
        raise ValueError(f"expected null, got {plain(value)!r}")
    return plain(value)


def _limit(value: Any) -> Any:
    found = RELATIVE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found:
        parse_name(found[2])
        return Decimal(found[1]), found[2]
    return None if value is None else _size(value)


def _size(value: Any) -> int:
    if isinstance(value, str | int) and not isinstance(value, bool):
        return parse_size(value)
    raise ValueError(f"{plain(value)!r} is not a size: write 40GiB, 512MiB, 200B or plain bytes")


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"must be a whole number of at least 1, got {plain(value)!r}")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not value > 0:
        raise ValueError(f"must be a number of seconds above 0, got {plain(value)!r}")
    return float(value)


def _schedule(value: Any) -> str:
    parse_name(str(value))
    return str(value)


def _schedules(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected a list of schedules, got {plain(value)!r}")
    return [_schedule(name) for name in value]


_NOTATIONS = {
    "limit": _limit,
    "size": _size,
    "count": _count,
    "seconds": _seconds,
    "schedule": _schedule,
    "schedules": _schedules,
}


# -- profiles -------------------------------------------------------------------------------------


def profile_of(value: Any, folder: Path) -> CostProfile:
    """A profile as an experiment gives it: a file (relative to the experiment's folder), a mapping
    of the file format, or ``{file: ...}`` or ``{estimate: {model, machine, devices, ...}}`` with
    keys of the format beside it that take the place of those there.

    Raises:
        OptPipeError: one line with what is wrong.
    """
    if isinstance(value, str):
        value = {"file": value}
    if not isinstance(value, dict):
        raise OptPipeError(f"expected a file or a mapping, got {plain(value)!r}")
    changes = dict(value)
    if "file" in value and "estimate" in value:
        raise OptPipeError("give file or estimate, not both")
    if "file" in value:
        path = folder / str(changes.pop("file"))
        data = read_mapping(path)
        data.setdefault("name", path.stem)
        start = path.as_posix()
    elif "estimate" in value:
        data = _estimated(changes.pop("estimate"))
        start = "estimate"
    else:
        return load_profile(value)
    try:
        return load_profile(_changed(data, changes))
    except OptPipeError as error:
        raise OptPipeError(f"{start}: {error}") from None


def _estimated(given: Any) -> dict[str, Any]:
    from ..costs import estimate  # the costs' tables are not needed otherwise

    if not isinstance(given, dict):
        raise OptPipeError("estimate: expected model, machine, devices and so on")
    try:
        return profile_to_json(estimate(**plain(given)))
    except TypeError as error:
        what = (
            str(error)
            .removeprefix("estimate() ")
            .replace("got an unexpected keyword argument", "unknown key")
        )
        raise OptPipeError(f"estimate: {what}") from None


def _stem(key: str) -> str:
    """A key without its unit; what says the same in another way has the same stem."""
    if key in _SAME:
        return _SAME[key]
    units = (*TIME_UNITS, *BYTE_UNITS)
    return next((key.removesuffix(unit) for unit in units if key.endswith(unit)), key)


def _changed(data: Any, changes: Mapping[str, Any], keep_null: bool = False) -> Any:
    """A mapping with some keys replaced, whatever their unit; null takes a key away (or stays, for
    a later change); in a list of mappings (stages) the change is made in each."""
    if isinstance(data, list):
        return [_changed(entry, changes, keep_null) for entry in data]
    made = dict(data)
    for key, value in changes.items():
        old = made.get(key)
        for name in [name for name in made if _stem(str(name)) == _stem(key)]:
            del made[name]
        if isinstance(value, dict) and isinstance(old, dict | list):
            made[key] = _changed(old, value, keep_null)
        elif value is not None or keep_null:
            made[key] = value
    return made
