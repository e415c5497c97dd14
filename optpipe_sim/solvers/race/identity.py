"""The identity of a problem: its numbers without their units, so that equal problems have equal
keys.

Times are counted in units of their greatest common divisor, and so is memory; limits are taken less
the static bytes; what cannot matter (more room than all activations take, copy engines that no op
needs) is left out. So profiles in ms and in s, or with more static bytes and a limit higher by as
much, are the same problem, and share their schedules.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, log
from typing import Any

import numpy as np

from ...ops import BW, B, F, O, R, W
from ...profile import CostProfile
from ..problem import Problem

_SHARED = ("placement", "objective", "slices", "factors", "pairs")
COMPUTE_TIMES = ("f", "b", "w", "bw", "comm", "hidden")


@dataclass(frozen=True)
class Identity:
    """A problem without its units.

    Attributes:
        data: plain data; equal for equal problems. ``times`` per kind and ``sizes`` per kind (both
            per stage, in `time_unit_ns` and in the gcd of all sizes), ``room`` per device in units
            of size (None: as much as all activations take), ``m`` and what else matters.
        time_unit_ns: the unit of the times and costs in ``data``.
    """

    data: dict[str, Any]
    time_unit_ns: int

    @cached_property
    def key(self) -> str:
        """The digest of the whole problem."""
        return _digest(self.data)

    @cached_property
    def family(self) -> str:
        """The digest of what two problems must share so that schedules can be adapted."""
        return _digest([self.data[key] for key in _SHARED if key in self.data])


def identity(problem: Problem) -> Identity:
    """Compute the identity of a problem."""
    costs, m = problem.profile, problem.microbatches
    room = _room(problem)
    bounded = any(size is not None for size in room)
    offload = costs.offload if bounded else None
    durations = costs.durations_ns
    times = {
        name: [int(t) for t in durations[kind]]
        for name, kind in (("f", F), ("b", B), ("w", W), ("bw", BW), ("o", O), ("r", R))
        if offload is not None or kind not in (O, R)
    }
    times["comm"] = [costs.latency_ns, costs.occupancy_ns]
    if problem.may_pair:
        hidden = np.indices((len(costs.stages),) * 2).reshape(2, -1)
        times["hidden"] = [int(t) for t in costs.hidden_ns(*hidden)]
    levels = _levels(costs) if bounded and costs.has_levels else []
    unit = gcd(*(t for row in times.values() for t in row))
    if costs.slices > 1 or not costs.alike:
        unit = gcd(unit, *(int(t) for t in costs.part_tables.duration_ns.ravel()))
    elif levels:  # copies at a level of recomputation have their own times
        unit = gcd(unit, *(int(t) for t in costs.op_table.duration_ns.ravel()))
    data: dict[str, Any] = {
        "placement": [costs.devices, *costs.placement],
        "objective": problem.objective,
        "m": m,
        "links": costs.links if costs.occupancy_ns else "latency",
        "times": {name: [t // unit for t in row] for name, row in times.items()},
    }
    if problem.may_pair:
        data["pairs"] = True
    if costs.slices > 1:
        durations, *rest = costs.part_tables
        tables = [durations // unit, *rest]
        data["slices"] = [costs.slices, _digest([table.tolist() for table in tables])]
    if not costs.alike:
        data["factors"] = [[str(time), str(size)] for time, size in costs.factors]
    if bounded:
        sizes = {
            "act": [cost.act_bytes for cost in costs.stages],
            "w": [cost.w_bytes for cost in costs.stages],
            "o": [cost.offloadable if offload else 0 for cost in costs.stages],
        }
        part = gcd(
            *(size for row in sizes.values() for size in row),
            *(size for stage in levels for _, *held in stage for size in held),
        )
        data["sizes"] = {name: [size // part for size in row] for name, row in sizes.items()}
        if levels and costs.overhead_ns:
            data["overhead"] = str(Fraction(costs.overhead_ns, unit))  # of recomputation apart
        if levels:
            data["levels"] = [
                [[t // unit, *(size // part for size in held)] for t, *held in stage]
                for stage in levels
            ]
        if problem.per_stage and (problem.may_recompute or problem.may_offload):
            data["per_stage"] = True
        data["room"] = [None if size is None else size // part for size in room]
        if offload is not None:
            host = offload.host_limit_bytes
            data["engines"] = {
                "copy": offload.copy_engines,
                "link": offload.host_link,
                "groups": [list(group) for group in offload.host_link_groups],  # number them
                "host": None if host is None else host // part,
                "node": None if host is None else offload.devices_per_node,
            }
            if offload.nvme is not None and offload.writes_behind:
                drives = offload.nvme
                data["behind"] = [
                    drives.write_bytes_per_s,
                    drives.staging_bytes,
                    offload.devices_per_node,
                    unit,
                    part,
                ]
    return Identity(data, unit)


def _levels(costs: CostProfile) -> list[list[tuple[int, ...]]]:
    """Per stage and level: its time, the bytes it keeps, and its working memory in F and BW, and in B."""
    return [
        [
            (
                level.t_ns,
                level.keep_bytes,
                level.working_bytes(cost.act_bytes),
                level.b_working_bytes(cost.act_bytes, cost.w_bytes),
            )
            for level in cost.recompute
        ]
        for cost in costs.stages
    ]


def _room(problem: Problem) -> list[int | None]:
    """Per device, the bytes for activations; None if all activations fit."""
    costs = problem.profile
    limits = problem.limits
    if limits is None:
        return [None] * costs.devices
    room: list[int | None] = []
    for device, (limit, static) in enumerate(zip(limits, costs.static_bytes, strict=True)):
        most = max((size for _, size in costs.classes), default=1)
        every = -int(-most * problem.microbatches // 1) * sum(
            costs.stages[stage].act_bytes for stage in problem.shape.stages_of(device)
        )
        room.append(None if limit - static >= every else limit - static)
    return room


def carried_bound(source: Identity, bound: int, target: Identity) -> int:
    """Return the bound in ns that a bound of one problem (in its time units) proves for another; 0
    if none.

    More microbatches or less memory never lower the cost: a schedule of the harder problem, without
    some of its microbatches, is a schedule of the easier one. A problem without any limit bounds
    every problem with the same compute times.
    """
    ours, theirs = target.data, source.data
    if theirs["m"] > ours["m"] or any(
        theirs.get(key) != ours.get(key) for key in (*_SHARED, "links")
    ):
        return 0
    if "room" not in theirs:
        scale = _ratio(
            [t for name in COMPUTE_TIMES for t in theirs["times"].get(name, ())],
            [t for name in COMPUTE_TIMES for t in ours["times"].get(name, ())],
        )
        return 0 if scale is None else -int(-bound * scale * target.time_unit_ns // 1)
    alike = all(
        theirs.get(key) == ours.get(key)
        for key in ("times", "sizes", "engines", "behind", "levels", "overhead", "per_stage")
    )
    if not alike or "room" not in ours or not _at_least(theirs["room"], ours["room"]):
        return 0
    return bound * target.time_unit_ns


def _ratio(from_: Sequence[int], to: Sequence[int]) -> Fraction | None:
    """Return the factor from the first numbers to the second; None if there is no common factor."""
    scale = Fraction(to[0], from_[0])  # the first is a forward, which takes time
    return scale if all(scale * a == b for a, b in zip(from_, to, strict=True)) else None


def _at_least(more: Sequence[int | None], less: Sequence[int | None]) -> bool:
    return all(a is None or (b is not None and a >= b) for a, b in zip(more, less, strict=True))


def distance(one: Identity, other: Identity) -> float:
    """Return the distance of two problems of one family: 0 if equal, about 1 if some number is
    twice or half as large."""
    parts: list[float] = [2 * abs(log(one.data["m"] / other.data["m"]))]
    for row, scale in (("times", "f"), ("sizes", "act")):
        a, b = one.data.get(row, {}), other.data.get(row, {})
        for name in a.keys() & b.keys():
            mean_a = sum(a[scale]) or 1
            mean_b = sum(b[scale]) or 1
            unlike = [
                abs(x / mean_a - y / mean_b) * len(a[scale])
                for x, y in zip(a[name], b[name], strict=True)
            ]
            parts.append(sum(unlike) / len(unlike))
    rooms = [_slots(part) for part in (one, other)]
    parts.append(abs(log(rooms[0] / rooms[1])))
    parts.append(0.5 if one.data.get("engines") != other.data.get("engines") else 0.0)
    return float(sum(parts))


def _slots(part: Identity) -> float:
    """Return approximately how many activations of each stage a device has room for."""
    m = float(part.data["m"])
    if "room" not in part.data:
        return m
    act: float = sum(part.data["sizes"]["act"]) / len(part.data["room"])
    rooms = [m if size is None else size / max(act, 1) for size in part.data["room"]]
    return max(1e-3, float(sum(rooms)) / len(rooms))


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]
