"""Measure the bytes of a stage, after every op and inside it: on a real device, or of fake tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from ...errors import OptPipeError
from ...stage_cost import RecomputeLevel
from ..model.plan import Stages
from ..model.recompute import NoSuchPart, level_of
from ..model.split import gradient_dtype, zero_gradients
from ..model.stage import StageWorker
from .memory import Meter, meter

OPS = ("F", "B", "W", "BW")
USUAL_LEVELS = ("norms", "norms+mlp", "full-50%", "full", "stage")


@dataclass(frozen=True)
class LevelBytes:
    """Bytes of one stage at a level of recomputation, measured.

    Attributes:
        keep: by one microbatch after F.
        work: the most temporary memory that dropping and recomputing add to F, or to a BW that recomputes inside,
            beyond the reserve of ops without them.
        b_work: likewise of a B that recomputes inside.
        inside: by op, what it needed beyond that.
        layers: how many it recomputes whole; None: parts of them, or the stage.
    """

    keep: int
    work: int
    b_work: int
    inside: dict[str, int]
    layers: int | None = None


@dataclass(frozen=True)
class StageBytes:
    """Bytes of one stage, measured.

    Attributes:
        held: by one microbatch after F and after B.
        copied: what an O copies, storage by storage.
        inside: by op, its temporary memory beyond what schedules account for (act from the start of F to the
        end of B).
        weights, gradients: of the parameters.
        taken: by a GPU's allocator for all of it, at most: what was ``requested``, what was
            ``allocated`` (whole blocks) and ``reserved`` (whole segments).
        levels: of recomputation, by name; of all slices the sum of what they keep.
        kv, kv_gradients: of a slice, its keys and values, part of what it holds; of the stage, the room for
            their gradients.
        slices: where sequences are cut, of each slice; then `held` and `copied` are of all of them.
    """

    held: tuple[int, int]
    copied: tuple[int, ...]
    inside: dict[str, int]
    weights: int
    gradients: int
    parameters: int
    taken: dict[str, int] = field(default_factory=dict)
    levels: dict[str, LevelBytes] = field(default_factory=dict)
    kv: int = 0
    kv_gradients: int = 0
    slices: tuple[StageBytes, ...] = ()

    @property
    def units(self) -> tuple[StageBytes, ...]:
        """Of each slice, or of whole sequences."""
        return self.slices or (self,)

    @property
    def moved(self) -> int:
        """Bytes that an O moves."""
        return sum(self.copied)

    @property
    def reserve(self) -> int:
        """The most temporary memory of any op."""
        ops = [self.inside, *(level.inside for level in self.levels.values())]
        return max(max(one.values()) for one in ops)


def stage_bytes(
    plan: Stages,
    stage: int,
    device: str | torch.device,
    fill: bool = True,
    levels: Sequence[str] = (),
) -> StageBytes:
    """Run two microbatches through a stage and read the meter after and inside every op; then again
    for each level of recomputation.

    An F with B and W, and one with BW, run first (of fake tensors, without `fill`, nothing has to): the first GEMM on
    a GPU's stream allocates a workspace that stays.
    Levels that drop nothing of this stage are left out.

    Raises:
        OptPipeError: where the second microbatch holds other bytes than the first.
    """
    worker = plan.worker(stage, device, fill)
    zero_gradients(worker.parameters())
    if fill:
        worker.start_step(*plan.batch(device))
        for fused in (False, True):
            worker.run_chain((stage, None), fused=fused)
        worker.finish_step()
    with meter(device) as counter:
        two = _Pass(worker, stage, plan, counter)
        units = two.run()
        for name, own in two.levels(levels, units):
            whole = level_of(name).whole_layers(plan.layers[stage] if plan.layers else 0)
            for unit, level in zip(units, own, strict=True):
                unit.levels[name] = replace(level, layers=whole)
    parameters = worker.parameters()
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    held = [unit.held for unit in units]
    return StageBytes(
        held=(sum(after_f for after_f, _ in held), sum(after_b for _, after_b in held)),
        copied=tuple(size for unit in units for size in unit.copied),
        inside={op: max(unit.inside[op] for unit in units) for op in units[0].inside},
        weights=sum(p.numel() * p.element_size() for p in parameters),
        gradients=sum(p.numel() * gradient_dtype(p).itemsize for p in trained),
        parameters=sum(p.numel() for p in trained),
        taken=two.taken,
        levels={name: _joined([unit.levels[name] for unit in units]) for name in units[0].levels},
        kv=sum(unit.kv for unit in units),
        kv_gradients=worker.cut.room_bytes(stage),
        slices=tuple(units) if len(units) > 1 else (),
    )


def _joined(levels: Sequence[LevelBytes]) -> LevelBytes:
    """Return a level of all slices, of which one recomputes at a time."""
    return LevelBytes(
        sum(level.keep for level in levels),
        max(level.work for level in levels),
        max(level.b_work for level in levels),
        {op: max(level.inside[op] for level in levels) for op in levels[0].inside},
        levels[0].layers,
    )


class _Pass:
    """Two microbatches through a stage, with the meter read around each op; of slices in turn, the backward passes in
    reverse.

    Attributes:
        peaks: by unit of a microbatch and op, the most that was held inside it beyond what was there before.
        taken: by a GPU's allocator, at most.
        spare: the most that an op without recomputation needs for a moment.
    """

    def __init__(self, worker: StageWorker, stage: int, plan: Stages, counter: Meter) -> None:
        self.worker, self.stage, self.meter = worker, stage, counter
        self.batch = plan.batch(worker.device)
        self.slices = worker.cut.slices
        self.peaks: list[dict[str, int]] = []
        self.taken: dict[str, int] = {}
        self.spare = 0

    def run(self) -> list[StageBytes]:
        """Run them without recomputation; return, by unit, bytes after F and after B, the storages that O copies,
        and inside each op."""
        held, copied, kv = self._both(None)
        self.worker.finish_step()
        for (act, _), of in zip(held, self.peaks, strict=True):
            of["F"] = max(0, of["F"] - act)  # what F needs beyond act, which counts from its start
            del of["C"]
        self.spare = max(max(of.values()) for of in self.peaks)
        return [
            StageBytes(after, tuple(sizes), of, 0, 0, 0, kv=kept)
            for after, sizes, of, kept in zip(held, copied, self.peaks, kv, strict=True)
        ]

    def levels(
        self, names: Sequence[str], whole: Sequence[StageBytes]
    ) -> Iterator[tuple[str, list[LevelBytes]]]:
        """Yield the bytes of each level, by unit: of F F B W BW with the recomputation inside, of F C BW
        with it apart.

        Args:
            whole: what `run` has returned.
        """
        units = range(self.slices)
        for name in names:
            try:
                held, _, _ = self._both(name)
            except NoSuchPart:
                continue
            for (_, after_b), one in zip(held, whole, strict=True):
                self._same(one.held[1], after_b)
            for unit in units:
                self.change("F", unit, name)
            for unit in reversed(units):
                self._same(whole[unit].held[0], held[unit][0] + self.change("C", unit))
                self.change("BW", unit)
            self.worker.finish_step()
            rows = zip(whole, held, self.peaks, strict=True)
            yield (
                name,
                [_level_bytes(*one.held, keep, of, self.spare) for one, (keep, _), of in rows],
            )

    def _both(self, level: str | None) -> tuple[list[tuple[int, int]], list[list[int]], list[int]]:
        """Start a step and run F F B W BW.

        Returns:
            By unit of a microbatch: bytes after F and after B; the storages that an O copies; those of keys and
            values.
        """
        worker, units = self.worker, range(self.slices)
        worker.start_step(*self.batch)
        self.peaks = [dict.fromkeys((*OPS, "C"), 0) for _ in units]
        after_f = [self.change("F", unit, level) for unit in units]
        for unit in units:
            self._same(after_f[unit], self.change("F", self.slices + unit, level))
        copied = [worker.offload_sizes(self.stage, unit) for unit in units]
        kv = [worker.cut.kv_bytes(self.stage, unit) for unit in units]
        after_b = [0 for _ in units]
        for unit in reversed(units):
            after_b[unit] = after_f[unit] + self.change("B", unit)
            self.change("W", unit)
        for unit in reversed(units):
            self.change("BW", self.slices + unit)
        return list(zip(after_f, after_b, strict=True)), copied, kv

    def _same(self, one: int, other: int) -> None:
        if one != other:
            raise OptPipeError(f"stage {self.stage}: two microbatches hold {one} and {other} bytes")

    def change(self, op: str, unit: int, level: str | None = None) -> int:
        """Run an op; return the bytes held after it less those before, without its own messages."""
        worker, stage, peaks = self.worker, self.stage, self.peaks[unit % self.slices]
        before = self.meter.held()
        self.meter.reset_peak()
        if op == "F":
            x = worker.message(stage - 1, unit=unit)
            worker.forward(stage, unit, x, level)
            del x
        elif op == "C":
            worker.recompute(stage, unit)
        elif op == "W":
            worker.weight(stage, unit)
        else:
            dy = worker.message(stage, gradient=True, unit=unit)
            worker.backward(stage, unit, dy, fused=op == "BW")
            del dy
        peaks[op] = max(peaks[op], self.meter.peak() - before)
        for key, size in self.meter.taken().items():
            self.taken[key] = max(self.taken.get(key, 0), size)
        return self.meter.held() - before


def _level_bytes(
    act: int, after_b: int, keep: int, peaks: dict[str, int], spare: int
) -> LevelBytes:
    """Return a level of one unit, from what is held after F and after B, and the peaks of its ops."""
    most = act - keep
    peaks["F"] -= keep
    peaks["C"] -= most
    work = min(most, max(0, max(peaks["F"], peaks["BW"]) - spare))
    b_work = min(most, max(0, peaks["B"] - spare))
    counted = {"F": work, "BW": work, "B": max(b_work, after_b - keep)}
    inside = {op: max(0, peak - counted.get(op, 0)) for op, peak in peaks.items()}
    return LevelBytes(keep, work, b_work, inside)


def check_levels(names: Sequence[str]) -> None:
    """Refuse levels that the runtime does not have, and one that is named twice.

    Raises:
        OptPipeError: names it.
    """
    for at, name in enumerate(names):
        level_of(name)
        if name in names[:at]:
            raise OptPipeError(f"levels: {name} is there twice")


def recompute_levels(size: StageBytes, times_ns: Mapping[str, float]) -> tuple[RecomputeLevel, ...]:
    """Return the levels of a stage for its profile, from the least that is dropped to the most."""
    found = [
        RecomputeLevel(
            name, max(1, round(times_ns[name])), level.keep, level.work, level.b_work, level.layers
        )
        for name, level in size.levels.items()
    ]
    return tuple(sorted(found, key=lambda level: -level.keep_bytes))


def byte_facts(size: StageBytes, static: Mapping[str, int]) -> dict[str, Any]:
    """Return the bytes of a stage as plain data."""
    return {
        "bytes_after": {"F": size.held[0], "B": size.held[1], "W": 0},
        "copies": len(size.copied),
        "bytes_inside_beyond": dict(size.inside),
        "static_bytes": dict(static),
        **({"allocator_bytes": dict(size.taken)} if size.taken else {}),
        **({"levels": {n: asdict(one) for n, one in size.levels.items()}} if size.levels else {}),
    }


def static_bytes(plan: Stages, sizes: Sequence[StageBytes]) -> list[dict[str, int]]:
    """Return, per stage, the bytes of weights, gradients and optimizer, and its share of the device's reserve.

    The reserve is the most temporary memory of any op on the device; its stages share it.
    """
    each = plan.adam_bytes
    parts = []
    for stage, size in enumerate(sizes):
        mates = sizes[stage % plan.devices :: plan.devices]
        reserve = max(mate.reserve for mate in mates)
        parts.append(
            {
                "weights": size.weights,
                "gradients": size.gradients,
                "optimizer": each * size.parameters,
                "reserve": -(-reserve // plan.chunks),
                **({"kv_gradients": size.kv_gradients} if size.kv_gradients else {}),
            }
        )
    return parts
