"""The points of an experiment: everything is resolved and checked before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, get_args

from ..errors import OptPipeError
from ..files import plain
from ..names import build
from ..profile import CostProfile
from ..profile_io import load_profile, profile_to_json
from ..sim import simulate
from ..units import exact, format_size
from .experiment import Experiment
from .profiles import changed, profile_of
from .tasks import Row, Task
from .values import kind_of, value_of


@dataclass(frozen=True)
class Point:
    """One call of a task.

    Attributes:
        key: a digest of the task, its version and the parameters, contents of profiles included:
            equal for equal work.
        parameters: what the task gets, as plain data.
        labels: the columns that distinguish this point from the others of its table.
        source: the source of the task, if the experiment brings its own.
    """

    task: str
    key: str
    parameters: Mapping[str, Any]
    labels: Row
    source: str = ""


def plan(experiment: Experiment) -> list[Point]:
    """Return the points of an experiment in its order; duplicates count once.

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
    """Make the arguments of a point's function: profiles are loaded, options are one object."""
    return task.collected(
        {
            key: _loaded(json.dumps(value)) if _is_profile(task.kinds[key], value) else value
            for key, value in parameters.items()
        }
    )


def _is_profile(kind: Any, value: Any) -> bool:
    """Whether a value of this annotation is a profile (optional for some tasks)."""
    return kind is CostProfile or (value is not None and CostProfile in get_args(kind))


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
                self._profile(key, value)
                if _is_profile(kind, value)
                else value_of(key, value, kind)
            )
        self.task.collected(values)  # else the options are invalid
        labels: Row = {}
        for key, value in given.items():
            kind = self.task.kinds.get(key)
            labels[key] = values[key].name if _is_profile(kind, value) else plain(value)
            if kind is not None and kind_of(kind) == "limit":
                values[key] = self._limit(key, values)
                labels[f"{key}_bytes"] = values[key]
        parameters = {
            key: plain(profile_to_json(value)) if isinstance(value, CostProfile) else value
            for key, value in values.items()
        }
        text = json.dumps([self.task.name, self.task.version, parameters], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        return Point(self.task.name, digest, parameters, labels, self.task.source)

    def _profile(self, key: str, value: Any) -> CostProfile:
        text = json.dumps(value, default=str)
        if text not in self.profiles:
            try:
                self.profiles[text] = profile_of(value, self.folder)
            except OptPipeError as error:
                raise OptPipeError(f"{key}: {error}") from None
        return self.profiles[text]

    def _limit(self, key: str, values: Mapping[str, Any]) -> int | None:
        """Return bytes per device: an absolute limit is unchanged; ``0.5x 1f1b`` means the static
        bytes plus half of what 1F1B holds in addition without a limit, on the device where it
        holds the most; ``1.5x 1f1b or device`` is capped at the profile's own limit.

        Raises:
            OptPipeError: for a limit above the profile's own, the memory of its device.
        """
        limit: int | tuple[Decimal, str, bool] | None = values[key]
        profile = values.get("profile")
        device = (
            min(profile.memory_limit or (2**62,)) if isinstance(profile, CostProfile) else 2**62
        )
        if limit is None:
            return None
        if isinstance(limit, int):
            found, capped = limit, False
        else:
            found, capped = self._relative(key, values, *limit[:2]), limit[2]
        if found > device and not capped:
            raise OptPipeError(
                f"{key}: {format_size(found)} is more than the {format_size(device)} that a device of"
                f" the profile has; write a lower limit, or '1.5x 1f1b or device'"
            )
        return min(found, device)

    def _relative(self, key: str, values: Mapping[str, Any], share: Decimal, name: str) -> int:
        """Return the static bytes plus a share of what a schedule holds in addition."""
        profile, m = values.get("profile"), values.get("microbatches")
        if not isinstance(profile, CostProfile) or not isinstance(m, int):
            raise OptPipeError(f"{key}: a share of {name} needs profile and microbatches as well")
        at = (json.dumps(profile_to_json(profile), default=str), m, name)
        if at not in self.held:
            try:
                trace = simulate(build(name, profile, m), profile, enforce=False)
            except OptPipeError as error:
                raise OptPipeError(f"{key}: {error}") from None
            peaks, static = trace.peak_bytes, trace.profile.static_bytes
            self.held[at] = max(zip(peaks, static, strict=True))
        peak, fixed = self.held[at]
        return fixed + int(exact(share) * (peak - fixed))


def _nest(given: Mapping[str, Any]) -> dict[str, Any]:
    """Set dotted keys inside the values that they name: ``profile.offload.t_offload_ms``."""
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
        # a null is kept if it removes a key of a file
        nested[root] = changed(start, value, keep_null="file" in start or "estimate" in start)
    return nested
