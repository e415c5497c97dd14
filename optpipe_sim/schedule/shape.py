"""Shape: how many devices, chunks, microbatches and slices, and which device has which stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import InvalidSchedule
from ..ops import Op, OpKind, SliceOp

MOST_STAGES = 2**16
MOST_FORWARDS = 2**21  # (stage, microbatch, slice): each takes 1 to 4 KB during a solve


def require_stages(devices: int, chunks: int) -> None:
    """Refuse more stages than can be handled.

    Raises:
        InvalidSchedule: says how many chunks are possible.
    """
    if devices * chunks > MOST_STAGES:
        raise InvalidSchedule(
            f"chunks: {chunks} are too many for {devices} devices: at most"
            f" {max(1, MOST_STAGES // devices)} can be handled"
        )


def expand_placement(placement: str | Sequence[int], devices: int, chunks: int) -> tuple[int, ...]:
    """Return the device of each stage: ``loop`` (stage s on s mod p), ``vee`` (0..p-1, p-1..0), or a list.

    Raises:
        InvalidSchedule: where it does not give every stage a device and every device a stage.
    """
    require_stages(devices, chunks)
    stages = devices * chunks
    if placement == "loop":
        return tuple(stage % devices for stage in range(stages))
    if placement == "vee":
        if chunks != 2:
            raise InvalidSchedule(f"placement: vee needs 2 chunks per device, here are {chunks}")
        return (*range(devices), *reversed(range(devices)))
    if isinstance(placement, str) or not isinstance(placement, Sequence):
        raise InvalidSchedule(
            f"placement: expected loop, vee or a list with the device of each stage, got {placement!r}"
        )
    if len(placement) != stages:
        raise InvalidSchedule(
            f"placement: lists {len(placement)} stages, but {devices} devices x {chunks} chunks make {stages}"
        )
    for stage, device in enumerate(placement):
        if isinstance(device, bool) or not isinstance(device, int) or not 0 <= device < devices:
            raise InvalidSchedule(
                f"placement: stage {stage} is on device {device!r}; devices are 0 to {devices - 1}"
            )
    missing = sorted(set(range(devices)) - set(placement))
    if missing:
        raise InvalidSchedule(f"placement: device {missing[0]} has no stage")
    return tuple(int(device) for device in placement)


@dataclass(frozen=True)
class Shape:
    """`devices` p, `chunks` v per device, `microbatches` m, the device of each of the p*v stages,
    and how many `slices` each microbatch's sequence is cut into.

    A *unit* passes through the pipeline as a whole: slice k of microbatch j is unit ``j * slices + k``;
    without slices a unit is a microbatch. `placement` may be given as ``loop``, ``vee`` or a list; it is
    kept as a tuple.

    Raises:
        InvalidSchedule: for counts below 1 or a placement that does not fit them.
    """

    devices: int
    chunks: int
    microbatches: int
    placement: tuple[int, ...] = "loop"  # type: ignore[assignment]
    slices: int = 1

    def __post_init__(self) -> None:
        for name in ("devices", "chunks", "microbatches", "slices"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidSchedule(
                    f"{name}: must be a whole number of at least 1, got {value!r}"
                )
        require_stages(self.devices, self.chunks)
        if self.activations > MOST_FORWARDS:
            sliced = f" x {self.slices} slices" if self.slices > 1 else ""
            raise InvalidSchedule(
                f"microbatches: {self.microbatches} are too many for {self.devices} devices x"
                f" {self.chunks} chunks{sliced}: at most"
                f" {MOST_FORWARDS // (self.stages * self.slices)} can be handled"
            )
        placement = expand_placement(self.placement, self.devices, self.chunks)
        object.__setattr__(self, "placement", placement)

    @property
    def stages(self) -> int:
        """S = p*v, the number of stages."""
        return self.devices * self.chunks

    @property
    def units(self) -> int:
        """m times the number of slices: the units that pass through each stage."""
        return self.microbatches * self.slices

    @property
    def activations(self) -> int:
        """How many activations there are, and forwards: one of each unit on each stage."""
        return self.stages * self.units

    def unit(self, op: Op) -> int:
        """Return the unit of an op."""
        return op.microbatch * self.slices + (op.slice or 0)

    def last_slice(self, unit: Any) -> Any:
        """Return the unit of the last slice of the same microbatch (or, of an array of units, of each)."""
        return unit // self.slices * self.slices + self.slices - 1

    def op(self, kind: OpKind, stage: int, unit: int) -> Op:
        """Return the op of a kind on a unit."""
        if self.slices == 1:
            return Op(kind, stage, unit)
        return SliceOp(kind, stage, *divmod(unit, self.slices))

    @property
    def placement_name(self) -> str | list[int]:
        """``loop`` or ``vee`` where the placement is one of these, else the list."""
        for name in ("loop", "vee") if self.chunks == 2 else ("loop",):
            if self.placement == expand_placement(name, self.devices, self.chunks):
                return name
        return list(self.placement)

    def stages_of(self, device: int) -> tuple[int, ...]:
        """Return the stages on `device`, in model order; chunk c is the c-th of them."""
        return self._stages_of[device]

    @cached_property
    def chunk_of(self) -> tuple[int, ...]:
        """For each stage, its number among the chunks of its device."""
        chunk = {s: c for d in range(self.devices) for c, s in enumerate(self.stages_of(d))}
        return tuple(chunk[stage] for stage in range(self.stages))

    @cached_property
    def _stages_of(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(stage for stage, owner in enumerate(self.placement) if owner == device)
            for device in range(self.devices)
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "devices": self.devices,
            "chunks": self.chunks,
            "microbatches": self.microbatches,
            "placement": self.placement_name,
            **({"slices": self.slices} if self.slices > 1 else {}),
        }
