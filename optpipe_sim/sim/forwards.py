"""Forwards alone, as in validation, scoring of rollouts and prefill: no backward follows, and nothing is held for one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..ops import BW, F, Op
from ..profile import CostProfile
from ..profile.iteration import replica_tokens
from ..schedule import Schedule
from ..trace import Trace
from . import simulate


@dataclass(frozen=True)
class ForwardPass:
    """The forwards of all microbatches, replayed without their backwards.

    Attributes:
        trace: a replay in which every device begins with all of its forwards; what comes after them is no part of the pass.
            Memory in it is static memory alone: what is held while a forward runs, profiles do not say.
        kv_bytes: of one microbatch on each device, keys and values that later slices read and that prefill hands on; 0 where
            the profile does not say.
    """

    trace: Trace
    kv_bytes: tuple[int, ...]

    @cached_property
    def _spans(self) -> list[tuple[Op, int, int]]:
        spans = self.trace.spans
        return [(one.op, one.start_ns, one.end_ns) for one in spans if one.op.kind is F]

    @property
    def makespan_ns(self) -> int:
        """When the last forward ends."""
        return max(end for _, _, end in self._spans)

    @property
    def first_ns(self) -> int:
        """When the first microbatch has left the last stage, with its last slice."""
        shape = self.trace.schedule.shape
        ends: dict[int, int] = {}
        for op, _, end in self._spans:
            if op.stage == shape.stages - 1:
                ends[op.microbatch] = max(end, ends.get(op.microbatch, 0))
        return min(ends.values())

    @property
    def busy_ns(self) -> list[int]:
        """How long each device computes."""
        shape = self.trace.schedule.shape
        busy = [0] * shape.devices
        for op, start, end in self._spans:
            busy[shape.placement[op.stage]] += end - start
        return busy

    @property
    def bubble_rate(self) -> float:
        """The share of the pass in which the busiest device waits."""
        return 1 - max(self.busy_ns) / self.makespan_ns

    @property
    def tokens_per_s(self) -> float | None:
        """The tokens of all microbatches over the time of the pass; None where the profile does not say how many."""
        tokens = replica_tokens(self.trace.profile, self.trace.schedule.shape.microbatches)
        return None if tokens is None else tokens * 1e9 / self.makespan_ns

    def to_json(self) -> dict[str, Any]:
        names = ("makespan_ns", "first_ns", "busy_ns", "bubble_rate", "tokens_per_s", "kv_bytes")
        return {name: getattr(self, name) for name in names}


def forward_pass(schedule: Schedule, profile: CostProfile) -> ForwardPass:
    """Replay the forwards of a schedule alone, in the order in which its devices run them.

    Each device runs its forwards, then all backwards in the opposite order: no forward waits for any of these, nor does a message of
    one, so that the forwards end when they would without them. Nothing is recomputed or offloaded.

    Raises:
        InvalidSchedule: where the schedule does not fit the profile.
    """
    programs = []
    for program in schedule.flat_programs:
        forwards = [op for op in program if op.kind is F]
        programs.append([*forwards, *(op._replace(kind=BW) for op in reversed(forwards))])
    alone = Schedule(schedule.shape, programs, meta=schedule.meta)
    costs = replace(profile, memory_limit=None, offload=None).for_shape(schedule.shape)
    held = [0] * schedule.shape.devices
    for device, cost in zip(schedule.shape.placement, costs.stages, strict=True):
        held[device] += sum(part.kv_bytes for part in cost.slices or (cost,))
    costs = costs.map_stages(
        lambda _, cost: replace(
            cost, act_bytes=0, w_bytes=0, kv_bytes=0, offload_bytes=0, recompute=()
        )
    )
    return ForwardPass(simulate(alone, costs, enforce=False), tuple(held))
