"""CostProfile: what each stage costs in time and memory, and what connects the devices.

Integers inside (ns, bytes); units only in the keys of files (`profile_io`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np

from .errors import InvalidSchedule, ProfileError
from .ops import BW, B, F, O, OpKind, R, W
from .shape import Shape, expand_placement
from .stage_cost import MAX_TIME_NS, StageCost, divide, merge
from .units import exact, round_half_up


@dataclass(frozen=True)
class Offload:
    """Copy engines and host links; which devices share a PCIe switch; the pinned host memory.

    `copy_engines`: ``separate`` (per device one for O, one for R) or ``shared``. `host_link`: per
    group one transfer at a time ``per_direction``, or a ``single`` one altogether (default: as the
    engines). A device in no group has a link of its own.
    """

    copy_engines: str = "separate"
    host_link: str | None = None
    host_link_groups: tuple[tuple[int, ...], ...] = ()
    host_limit_bytes: int | None = None
    devices_per_node: int | None = None

    def __post_init__(self) -> None:
        if self.copy_engines not in ("separate", "shared"):
            raise ProfileError(
                f"offload.copy_engines: expected separate or shared, got {self.copy_engines!r}"
            )
        if self.host_link is None:
            default = "per_direction" if self.copy_engines == "separate" else "single"
            object.__setattr__(self, "host_link", default)
        if self.host_link not in ("per_direction", "single"):
            raise ProfileError(
                f"offload.host_link: expected per_direction or single, got {self.host_link!r}"
            )

    def links(self, devices: int) -> tuple[tuple[int, ...], ...]:
        """The devices on each host link: the groups in their order, then the lone devices."""
        grouped = {device for group in self.host_link_groups for device in group}
        lone = tuple((device,) for device in range(devices) if device not in grouped)
        return self.host_link_groups + lone


@dataclass(frozen=True)
class CostProfile:
    """The model cut into S = devices * chunks stages, on devices joined by links.

    Attributes:
        name: what to call it.
        devices: p. `chunks`: v. `placement`: the device of each stage (``loop``, ``vee`` or a list).
        stages: one `StageCost` per stage, in model order.
        latency_ns, occupancy_ns: one hop between devices takes their sum; with ``serial`` links a
            message occupies its directed device pair for the latter.
        links: ``latency`` (any number of messages in flight) or ``serial`` (one per directed pair).
        offload: copy engines and host links; None: no offloading.
        memory_limit: bytes per device, or None.
        meta: provenance and notes; plain data, no part of the costs.

    Raises:
        ProfileError: names the key and what is wrong with it.
    """

    name: str
    devices: int
    stages: tuple[StageCost, ...]
    chunks: int = 1
    placement: tuple[int, ...] = "loop"  # type: ignore[assignment]
    latency_ns: int = 0
    occupancy_ns: int = 0
    links: str = "latency"
    offload: Offload | None = None
    memory_limit: tuple[int, ...] | None = None
    meta: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for key in ("devices", "chunks"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096:
                raise ProfileError(f"{key}: must be a whole number from 1 to 4096, got {value!r}")
        try:
            placement = expand_placement(self.placement, self.devices, self.chunks)
        except InvalidSchedule as error:
            raise ProfileError(str(error)) from None
        object.__setattr__(self, "placement", placement)
        object.__setattr__(self, "stages", tuple(self.stages))
        count = self.devices * self.chunks
        if len(self.stages) != count:
            raise ProfileError(
                f"stages: lists {len(self.stages)}, but {self.devices} devices x {self.chunks} chunks make {count}"
            )
        if self.links not in ("latency", "serial"):
            raise ProfileError(f"links: expected latency or serial, got {self.links!r}")
        for key in ("latency_ns", "occupancy_ns"):
            if not 0 <= getattr(self, key) <= MAX_TIME_NS:
                raise ProfileError(f"t_comm: must be at least 0, got {getattr(self, key)} ns")
        if self.memory_limit is not None:
            limit = tuple(self.memory_limit)
            if len(limit) != self.devices:
                raise ProfileError(
                    f"memory_limit: lists {len(limit)} devices, but there are {self.devices}"
                )
            if min(limit) < 0:
                raise ProfileError(f"memory_limit: must be at least 0, got {min(limit)}")
            object.__setattr__(self, "memory_limit", limit)
        self._check_offload()

    def _check_offload(self) -> None:
        if self.offload is None:
            return
        if any(cost.t_offload_ns is None or cost.t_reload_ns is None for cost in self.stages):
            raise ProfileError(
                "offload: give t_offload_* (or d2h_gb_per_s) and t_reload_* (or h2d_gb_per_s)"
            )
        seen: set[int] = set()
        for group in self.offload.host_link_groups:
            for device in group:
                if not 0 <= device < self.devices:
                    raise ProfileError(
                        f"offload.host_link_groups: device {device} does not exist;"
                        f" devices are 0 to {self.devices - 1}"
                    )
                if device in seen:
                    raise ProfileError(
                        f"offload.host_link_groups: groups overlap: device {device} is in more than one place"
                    )
                seen.add(device)
        node = self.offload.devices_per_node
        if node is not None and not 1 <= node <= self.devices:
            raise ProfileError(
                f"offload.devices_per_node: must be from 1 to {self.devices}, got {node}"
            )

    # -- what ops cost ----------------------------------------------------------------------------

    @property
    def t_comm_ns(self) -> int:
        """One hop between two devices, on a free link."""
        return self.latency_ns + self.occupancy_ns

    @cached_property
    def durations_ns(self) -> np.ndarray:
        """(kinds, stages) int64: how long each op kind of each stage lasts."""
        table = np.zeros((len(OpKind), len(self.stages)), np.int64)
        table[F] = [cost.t_f_ns for cost in self.stages]
        table[B] = [cost.t_b_ns for cost in self.stages]
        table[W] = [cost.t_w_ns for cost in self.stages]
        table[BW] = [cost.fused_ns for cost in self.stages]
        table[O] = [cost.t_offload_ns or 0 for cost in self.stages]
        table[R] = [cost.t_reload_ns or 0 for cost in self.stages]
        return table

    @cached_property
    def allocated_bytes(self) -> np.ndarray:
        """(kinds, stages) int64: what an op takes when it starts (R: when it is granted)."""
        table = np.zeros((len(OpKind), len(self.stages)), np.int64)
        table[F] = [cost.act_bytes for cost in self.stages]
        table[R] = [cost.offloadable for cost in self.stages]
        return table

    @cached_property
    def released_bytes(self) -> np.ndarray:
        """(kinds, stages) int64: what an op gives back when it ends."""
        table = np.zeros((len(OpKind), len(self.stages)), np.int64)
        table[B] = [cost.act_bytes - cost.w_bytes for cost in self.stages]
        table[W] = [cost.w_bytes for cost in self.stages]
        table[BW] = [cost.act_bytes for cost in self.stages]
        table[O] = [cost.offloadable for cost in self.stages]
        return table

    @cached_property
    def static_bytes(self) -> tuple[int, ...]:
        """Per device, the sum over its stages."""
        totals = [0] * self.devices
        for stage, device in enumerate(self.placement):
            totals[device] += self.stages[stage].static_bytes
        return tuple(totals)

    @cached_property
    def least_limits(self) -> tuple[int, ...]:
        """Per device, the least memory limit that any schedule can keep.

        When F(s, j) runs, the device holds its act and, of the stages before s that live there, at
        least what cannot be offloaded of microbatch j; taking one microbatch at a time through the
        pipeline needs no more.
        """
        least, rest = list(self.static_bytes), list(self.static_bytes)
        for cost, device in zip(self.stages, self.placement, strict=True):
            least[device] = max(least[device], rest[device] + cost.act_bytes)
            rest[device] += cost.act_bytes - (cost.offloadable if self.offload else 0)
        return tuple(least)

    @property
    def host_links(self) -> tuple[tuple[int, ...], ...]:
        """The devices on each host link; see `Offload.links`."""
        return (self.offload or Offload()).links(self.devices)

    def limits(self, memory_limit: int | Sequence[int] | None = None) -> tuple[int, ...] | None:
        """The limit of each device: `memory_limit` (bytes, for all or per device), else the profile's."""
        if memory_limit is None:
            return self.memory_limit
        if isinstance(memory_limit, int):
            return (memory_limit,) * self.devices
        if len(memory_limit) != self.devices:
            raise ProfileError(
                f"memory limit: {len(memory_limit)} values for {self.devices} devices"
            )
        return tuple(memory_limit)

    # -- other shapes -----------------------------------------------------------------------------

    def shape(self, microbatches: int) -> Shape:
        """The shape of a schedule with the profile's own chunks and placement."""
        return Shape(self.devices, self.chunks, microbatches, self.placement)

    def rechunk(self, chunks: int, placement: str | Sequence[int] = "loop") -> CostProfile:
        """The same model and devices with another number of chunks per device, or placement.

        Adjacent stages merge (times, act, w, offload, static add up) or a stage divides equally,
        the integer remainder to the first part. Messages stay as they are.
        """
        if not 1 <= chunks <= 4096:
            raise ProfileError(f"chunks: must be a whole number from 1 to 4096, got {chunks!r}")
        try:
            placed = expand_placement(placement, self.devices, chunks)
        except InvalidSchedule as error:
            raise ProfileError(str(error)) from None
        if chunks == self.chunks and placed == self.placement:
            return self
        shared = gcd(chunks, self.chunks)
        pieces = [part for cost in self.stages for part in divide(cost, chunks // shared)]
        size = self.chunks // shared
        stages = [merge(pieces[at : at + size]) for at in range(0, len(pieces), size)]
        return replace(self, chunks=chunks, placement=placed, stages=tuple(stages))

    def for_shape(self, shape: Shape) -> CostProfile:
        """The profile with the chunks and placement of a schedule's shape.

        Raises:
            InvalidSchedule: where the number of devices differs.
        """
        if shape.devices != self.devices:
            raise InvalidSchedule(
                f"the schedule is for {shape.devices} devices, the profile {self.name} has {self.devices}"
            )
        return self.rechunk(shape.chunks, shape.placement)

    def map_stages(self, change: Callable[[int, StageCost], StageCost]) -> CostProfile:
        """The profile with each stage's cost changed: ``change(stage, cost) -> cost``."""
        return replace(self, stages=tuple(change(at, cost) for at, cost in enumerate(self.stages)))

    def scale(
        self, compute: float = 1, comm: float = 1, copy: float = 1, memory: float = 1
    ) -> CostProfile:
        """Times of compute, messages and copies, and activation memory, multiplied."""

        def times(value: int | None, factor: float, least: int = 0) -> int | None:
            return None if value is None else max(least, round_half_up(value * exact(factor)))

        def change(_: int, cost: StageCost) -> StageCost:
            changed: dict[str, int | None] = {}
            for key, factor, least in (
                ("t_f_ns", compute, 1),
                ("t_b_ns", compute, 1),
                ("t_w_ns", compute, 0),
                ("t_bw_ns", compute, 1),
                ("t_offload_ns", copy, 0),
                ("t_reload_ns", copy, 0),
                ("act_bytes", memory, 0),
                ("w_bytes", memory, 0),
                ("offload_bytes", memory, 0),
            ):
                changed[key] = times(getattr(cost, key), factor, least)
            return replace(cost, **changed)  # type: ignore[arg-type]

        return replace(
            self.map_stages(change),
            latency_ns=round_half_up(self.latency_ns * exact(comm)),
            occupancy_ns=round_half_up(self.occupancy_ns * exact(comm)),
        )
