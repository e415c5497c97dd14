"""Offloads as calls of TransformerEngine's manual control, rank by rank.

`get_cpu_offload_context(..., manual_synchronization=True)` returns a controller with three calls
per layer: start_offload_layer, release_activation_forward_gpu_memory, start_reload_layer, in that
order. Layers are numbered in the order of their forwards: under a pipeline schedule, over all layer
forwards of a rank in one iteration, across chunks and microbatches. Offloads and reloads share one
stream. Source: TransformerEngine d0067d0, transformer_engine/pytorch/cpu_offload.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import Deadlock, InvalidSchedule, OutOfMemory
from ..ops import F, O, Op, R
from ..profile import CostProfile
from ..schedule import Schedule
from ..sim import simulate_or_report
from ..sim.lower import Lowered, lower
from .nearest import Nearest, Step, replay_unlimited
from .parts import parts_of

OFFLOAD = "start_offload_layer"
RELEASE = "release_activation_forward_gpu_memory"
RELOAD = "start_reload_layer"
NOTES = (
    "the trainer itself implements the order and the recomputation; these calls go between its ops",
    "all tensors of a layer move except parameters and those below 262,144 elements; the replay"
    " moves the profile's offload bytes",
)


class Call(NamedTuple):
    """A call of the controller, for consecutive layers."""

    name: str
    layers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.layers))})"


def one_stream(profile: CostProfile) -> CostProfile:
    """Return the profile with TransformerEngine's copies: one stream for both directions."""
    if profile.offload is None:
        raise InvalidSchedule(f"the profile {profile.name} has no offload section")
    return replace(
        profile, offload=replace(profile.offload, copy_engines="shared", host_link="single")
    )


def nearest(schedule: Schedule, profile: CostProfile) -> Nearest:
    """Compare the schedule with all copies of a device on one stream to itself.

    Raises:
        Deadlock: if the copies deadlock in program order.
    """
    bare = schedule.replace(link_order={})
    before, _ = simulate_or_report(schedule, profile)
    shared = one_stream(profile)
    after = replay_unlimited(bare, shared)
    limits = after.profile.memory_limit
    if not after.fits and limits is not None:
        after, _ = simulate_or_report(bare, shared)  # releases may wait, as in `release`
    lost: tuple[Step, ...] = ()
    if not profile.shares_copy_engine:
        held, free = (
            replay_unlimited(bare, shared).makespan_ns,
            replay_unlimited(bare, profile).makespan_ns,
        )
        copies = int(schedule.is_transfer.sum())
        peak = max(after.peak_bytes)
        lost = (
            Step(
                "engines",
                "copies in both directions at once",
                copies,
                held,
                peak,
                round(held / free - 1, 6),
            ),
        )
    return Nearest(schedule.name, before, after, lost, NOTES)


def programs(
    schedule: Schedule, profile: CostProfile, layers: Sequence[int] | None = None
) -> tuple[list[list[Op | Call]], list[int]]:
    """Return, per rank, its compute ops with the calls between them, and its number of layer
    forwards. A release goes before the op that needs its memory, where it may have to wait, and
    at the latest before the reload.

    Args:
        layers: see `parts.parts_of`.
    """
    lowered = _lowered(schedule, one_stream(profile))
    shape = schedule.shape
    held = [part.layers for part in parts_of(profile.for_shape(shape), layers)]
    made = [list(_calls(lowered, rank, held)) for rank in range(shape.devices)]
    forwards = [
        sum(held[stage] for stage in shape.stages_of(rank)) * shape.microbatches
        for rank in range(shape.devices)
    ]
    return made, forwards


def _lowered(schedule: Schedule, profile: CostProfile) -> Lowered:
    try:
        if profile.memory_limit is not None:
            return lower(schedule, profile)
    except (Deadlock, OutOfMemory):
        pass
    return lower(schedule, profile, replay_unlimited(schedule, profile).peak_bytes)


def _calls(lowered: Lowered, rank: int, held: Sequence[int]) -> Iterator[Op | Call]:
    numbers: dict[tuple[int, int], tuple[int, ...]] = {}
    leaving: list[Op] = []  # offloads not yet released, in their order
    forwards = 0

    def release(needed: Op) -> Iterator[Call]:
        while needed in leaving:
            op = leaving.pop(0)
            yield Call(RELEASE, numbers[op.stage, op.microbatch])

    for op in lowered.schedule.flat_programs[rank]:
        key = op.stage, op.microbatch
        for needed in lowered.waits.get(op, ()):
            yield from release(needed)
        if op.kind is O:
            if held[op.stage]:
                leaving.append(op)
                yield Call(OFFLOAD, numbers[key])
        elif op.kind is R:
            if held[op.stage]:
                yield from release(op._replace(kind=O))
                yield Call(RELOAD, numbers[key][::-1])
        else:
            if op.kind is F:
                numbers[key] = tuple(range(forwards, forwards + held[op.stage]))
                forwards += held[op.stage]
            yield op


def to_plain(made: Sequence[Sequence[Op | Call]], forwards: Sequence[int]) -> dict[str, Any]:
    """Convert to plain data: per rank, the number of layer forwards and the program in words."""
    return {
        "context": {
            "enabled": True,
            "manual_synchronization": True,
            "retain_pinned_cpu_buffers": True,
        },
        "ranks": [
            {"rank": rank, "model_layers": count, "program": [str(one) for one in program]}
            for rank, (program, count) in enumerate(zip(made, forwards, strict=True))
        ],
    }
