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
        work, b_work: the most temporary memory beside that of F, or of a BW that recomputes inside, and of a B
        that does; beyond the reserve for whole activations.
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

    An F with B and W, and one with BW, run first: the first GEMM on a GPU's stream allocates a workspace that stays.
    Levels that drop nothing of this stage are left out.

    Raises:
        OptPipeError: where the second microbatch holds other bytes than the first.
    """
    worker = plan.worker(stage, device, fill)
    zero_gradients(worker)
    worker.start_step(*plan.batch(device))
    for fused in (False, True):
        worker.run_chain((stage, None), fused=fused)
    worker.finish_step()
    torch.cuda.empty_cache()  # so that memory reserved from here on belongs to what follows
    with meter(device) as counter:
        two = _Pass(worker, stage, plan, counter)
        units = two.run()
        for name, own in two.levels(levels, units):
            whole = level_of(name).whole_layers(plan.marked_layers(stage))
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
    """F F B W BW of two microbatches, with the meter read around each; of slices in turn, the backward
    passes in reverse."""

    def __init__(self, worker: StageWorker, stage: int, plan: Stages, counter: Meter) -> None:
        self.worker, self.stage, self.plan, self.meter = worker, stage, plan, counter
        self.batch = plan.batch(worker.device)
        self.peaks = dict.fromkeys(OPS, 0)
        self.taken: dict[str, int] = {}

    def run(self) -> list[StageBytes]:
        """Run two microbatches; return, by unit, bytes after F and after B, the storages that O copies,
        and inside each op."""
        worker, slices = self.worker, self.worker.cut.slices
        worker.start_step(*self.batch)
        peaks: list[dict[str, int]] = [{} for _ in range(slices)]

        def change(op: str, unit: int) -> int:
            self.peaks = dict.fromkeys(OPS, 0)
            changed = self.change(op, unit)
            of = peaks[unit % slices]
            of[op] = max(of.get(op, 0), self.peaks[op])
            return changed

        after_f = [change("F", unit) for unit in range(2 * slices)]
        moved = [worker.offload_sizes(self.stage, unit) for unit in range(slices)]
        kv = [worker.cut.kv_bytes(self.stage, unit) for unit in range(slices)]
        after_b = [0] * slices
        for unit in reversed(range(slices)):
            after_b[unit] = after_f[unit] + change("B", unit)
            change("W", unit)
        for unit in reversed(range(slices)):
            change("BW", slices + unit)
        worker.finish_step()
        for one, other in zip(after_f[:slices], after_f[slices:], strict=True):
            self._same(one, other)
        # what F needs beyond act, which counts from its start
        for act, of in zip(after_f, peaks, strict=False):
            of["F"] = max(0, of["F"] - act)
        self.peaks = {op: max(of[op] for of in peaks) for op in OPS}
        return [
            StageBytes((act, later), tuple(sizes), of, 0, 0, 0, kv=kept)
            for act, later, sizes, of, kept in zip(after_f, after_b, moved, peaks, kv, strict=False)
        ]

    def levels(
        self, names: Sequence[str], whole: Sequence[StageBytes]
    ) -> Iterator[tuple[str, list[LevelBytes]]]:
        """Yield the bytes of each level, by unit: of F F B W BW with the recomputation inside, of F C BW
        with it apart.

        Args:
            whole: what `run` has returned.
        """
        spare, units = max(self.peaks.values()), range(len(whole))
        for name in names:
            self.worker.start_step(*self.batch)
            peaks = [dict.fromkeys((*OPS, "C"), 0) for _ in units]

            def change(op: str, unit: int, level: str | None = None, peaks: Any = peaks) -> int:
                self.peaks = peaks[unit % len(whole)]
                return self.change(op, unit, level)

            try:
                keep = [change("F", unit, name) for unit in units]
            except NoSuchPart:
                continue
            for unit in units:
                self._same(keep[unit], change("F", len(whole) + unit, name))
            for unit in reversed(units):
                self._same(whole[unit].held[1], keep[unit] + change("B", unit))
                change("W", unit)
            for unit in reversed(units):
                change("BW", len(whole) + unit)
            for unit in units:
                change("F", unit, name)
            for unit in reversed(units):
                self._same(whole[unit].held[0], keep[unit] + change("C", unit))
                change("BW", unit)
            self.worker.finish_step()
            yield (
                name,
                [
                    _level_bytes(*one.held, kept, of, spare)
                    for one, kept, of in zip(whole, keep, peaks, strict=True)
                ],
            )

    def _same(self, one: int, other: int) -> None:
        if one != other:
            raise OptPipeError(f"stage {self.stage}: two microbatches hold {one} and {other} bytes")

    def change(self, op: str, mb: int, level: str | None = None) -> int:
        """Run an op; return the bytes held after it less those before, without its own messages."""
        worker, stage = self.worker, self.stage
        before = self.meter.held()
        self.meter.reset_peak()
        if op == "F":
            x = self.plan.message(worker, stage - 1, unit=mb)
            worker.forward(stage, mb, x, level)
            del x
        elif op == "C":
            worker.recompute(stage, mb)
        elif op == "W":
            worker.weight(stage, mb)
        else:
            dy = self.plan.message(worker, stage, gradient=True, unit=mb)
            worker.backward(stage, mb, dy, fused=op == "BW")
            del dy
        self.peaks[op] = max(self.peaks[op], self.meter.peak() - before)
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
