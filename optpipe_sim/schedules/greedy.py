"""Programs that grow op by op, with the clock and the memory of each device; the basis of the
automatic zero-bubble schedules.

Ops are appended in an order in which their inputs are known, so the times equal those of the replay
(with latency links). All compute ops share one stream, so memory depends on the order alone: a
limit that holds here holds with any durations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from ..errors import OutOfMemory
from ..ops import B, F, OpKind, W
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import Size, as_limit, format_size, size_above

_F, _B, _W = int(F), int(B), int(W)


class LastW(IntEnum):
    """What to do with a wait that is too short for another whole W: leave it idle, append a W if
    the device cannot afford to idle, or always append one. A W here delays the next op."""

    NEVER = 0
    PAST_SLACK = 1
    ALWAYS = 2


class Growing:
    """A schedule under construction.

    Args:
        costs: with the schedule's chunks and placement.
        microbatches: m.
        limits: bytes per device; only `room` and `make_room` check them. expected_idle: the idle
            time (ns) that some device will have in any case.

    Attributes, per device: `free_at` (ns, end of its last op), `held` (bytes), `idle` (ns, since
    its first op), `pending` (the (stage, microbatch) with a B but no W yet). `ends` by kind (F, B)
    and stage: the end of each op so far. `most_idle`: the largest of `idle`.
    """

    def __init__(
        self,
        costs: CostProfile,
        microbatches: int,
        limits: Sequence[int],
        expected_idle: int = 0,
    ) -> None:
        self.costs, self.microbatches, self.limits = costs, microbatches, limits
        self.devices, self.stages = costs.devices, len(costs.stages)
        self.home = costs.placement
        self.free_at = [0] * self.devices
        self.held = list(costs.static_bytes)
        self.idle = [0] * self.devices
        self.most_idle = 0
        self.expected_idle = expected_idle
        # plain (kind, stage, microbatch), as most of these programs are discarded
        self.programs: list[list[tuple[int, int, int]]] = [[] for _ in range(self.devices)]
        self.pending: list[deque[tuple[int, int]]] = [deque() for _ in range(self.devices)]
        self.ends: list[list[list[int]]] = [[[] for _ in range(self.stages)] for _ in (F, B)]
        self.first_start: list[int | None] = [None] * self.devices
        self._act = [cost.act_bytes for cost in costs.stages]
        self._w = [cost.w_bytes for cost in costs.stages]
        self._duration_ns = costs.durations_ns[[F, B]].tolist()
        self._w_ns = [cost.t_w_ns for cost in costs.stages]
        device, latency = self.home, costs.t_comm_ns
        # latency of the edge from each stage to the next one
        self._latency = [
            latency if device[stage] != device[stage + 1] else 0 for stage in range(self.stages - 1)
        ]

    def count(self, kind: OpKind, stage: int) -> int:
        """Return how many microbatches have an op of this kind on this stage."""
        return len(self.ends[kind][stage])

    def exists(self, kind: OpKind, stage: int) -> bool:
        """Whether there is a next op of this kind on this stage and all its inputs have been appended."""
        at = len(self.ends[kind][stage])
        if kind == F:
            if stage:
                return at < len(self.ends[F][stage - 1])
            return at < self.microbatches
        if stage < self.stages - 1:
            return at < len(self.ends[B][stage + 1])
        return at < len(self.ends[F][stage])

    def arrival(self, kind: OpKind, stage: int) -> int:
        """Return when the input of the next op of this kind arrives (its producers must have been
        appended)."""
        ends = self.ends[kind]
        at = len(ends[stage])
        if kind == F:
            return ends[stage - 1][at] + self._latency[stage - 1] if stage else 0
        own = self.ends[F][stage][at]
        if stage == self.stages - 1:
            return own
        return max(own, ends[stage + 1][at] + self._latency[stage])

    def put(self, kind: OpKind, stage: int) -> None:
        """Append the next op of this kind."""
        device, ends = self.home[stage], self.ends[kind][stage]
        start = self.arrival(kind, stage)
        free = self.free_at[device]
        if self.first_start[device] is None:
            self.first_start[device] = start
        elif start > free:
            self.idle[device] += start - free
            self.most_idle = max(self.most_idle, self.idle[device])
        if start < free:
            start = free
        at, end = len(ends), start + self._duration_ns[kind][stage]
        self.free_at[device] = end
        ends.append(end)
        if kind == F:
            self.programs[device].append((_F, stage, at))
            self.held[device] += self._act[stage]
        else:
            self.programs[device].append((_B, stage, at))
            self.held[device] -= self._act[stage] - self._w[stage]
            self.pending[device].append((stage, at))

    def put_w(self, device: int) -> None:
        """Append the W that has waited longest."""
        stage, at = self.pending[device].popleft()
        self.programs[device].append((_W, stage, at))
        self.free_at[device] += self._w_ns[stage]
        self.held[device] -= self._w[stage]

    def fill(self, device: int, until: int, last: LastW) -> None:
        """Fill a device's wait for an op whose input arrives at `until` with W's: whole ones while
        they fit, then according to `last`."""
        pending = self.pending[device]
        while pending and self.free_at[device] + self._w_ns[pending[0][0]] <= until:
            self.put_w(device)
        gap = until - self.free_at[device]
        if not pending or gap <= 0 or last == LastW.NEVER:
            return
        if last == LastW.ALWAYS or gap > self.slack(device):
            self.put_w(device)

    def slack(self, device: int) -> int:
        """Return how much longer this device may idle without becoming the most idle one (ns)."""
        return max(self.most_idle, self.expected_idle) - self.idle[device]

    def room(self, device: int, size: int) -> bool:
        """Whether `size` more bytes could be held after all pending W's."""
        left = self.limits[device] - self.held[device]
        return size <= left or size <= left + sum(
            self._w[stage] for stage, _ in self.pending[device]
        )

    def make_room(self, device: int, size: int) -> bool:
        """Append as few W's as necessary to hold `size` more bytes; False (and none appended) if
        that is impossible."""
        if not self.room(device, size):
            return False
        while self.held[device] + size > self.limits[device]:
            self.put_w(device)
        return True

    def finish(self) -> None:
        """Append the rest of the W's."""
        for device in range(self.devices):
            while self.pending[device]:
                self.put_w(device)

    @property
    def longest_span(self) -> int:
        """The longest device span: from the first start of a device to its last end, in ns."""
        return max(
            free - (start or 0) for free, start in zip(self.free_at, self.first_start, strict=True)
        )

    def schedule(self) -> Schedule:
        """Return the programs as a schedule."""
        shape = self.costs.shape(self.microbatches)
        rows = [op for program in self.programs for op in program]
        offsets = np.cumsum([0, *map(len, self.programs)])
        return Schedule.from_table(shape, np.array(rows), offsets)


def device_limits(costs: CostProfile, limit: Size | None, activations: int) -> list[int]:
    """Return the bytes that each device may hold: `limit` (static included), else `activations` of
    its largest stage in addition to its static bytes.

    Raises:
        OutOfMemory: if one microbatch alone needs more; names the device and the least limit.
    """
    costs.require_memory("memory limit")
    largest, least = [0] * costs.devices, list(costs.static_bytes)
    for device, cost in zip(costs.placement, costs.stages, strict=True):
        largest[device] = max(largest[device], cost.act_bytes)
        least[device] += cost.act_bytes
    if limit is None:
        return [
            max(needed, static + activations * size)
            for needed, static, size in zip(least, costs.static_bytes, largest, strict=True)
        ]
    limit = as_limit("limit", limit, costs.tiny)
    worst = max(range(costs.devices), key=least.__getitem__)
    if limit < least[worst]:
        raise OutOfMemory(
            f"device {worst}: a limit of {format_size(limit)} does not hold one microbatch without"
            f" offloading; the least limit that works is {size_above(least[worst])}"
        )
    return [limit] * costs.devices
