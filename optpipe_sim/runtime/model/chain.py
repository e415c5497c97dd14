"""The ops of one microbatch in one stage, one after the other, on zeros."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .stage import StageWorker

Kept = tuple[int, str | None]  # a stage, and what it keeps: a level of recomputation, or all


def run_chain(
    worker: StageWorker,
    kept: Kept,
    *,
    fused: bool,
    before: Callable[[int], None] = lambda stage: None,
) -> list[int]:
    """Run F B W, or F BW, of microbatch 0 (of its slices in turn, backwards in reverse); return the bytes
    of each storage that an O of the first unit would copy.

    The step has to be started; gradients are added to. `before` is called with the stage before each op.
    """
    stage, level = kept
    units = range(worker.cut.slices)
    for unit in units:
        before(stage)
        worker.forward(stage, unit, zeros(worker, stage - 1, unit=unit), level)
    sizes = worker.offload_sizes(stage, 0)
    for unit in reversed(units):
        dy = zeros(worker, stage, gradient=True, unit=unit)
        before(stage)
        worker.backward(stage, unit, dy, fused=fused)
        del dy
        if not fused:
            before(stage)
            worker.weight(stage, unit)
    return sizes


def zeros(
    worker: StageWorker, boundary: int, gradient: bool = False, unit: int = 0
) -> Tensor | None:
    """Return a message across a boundary, or the gradient that comes back; None where there is none."""
    if not 0 <= boundary < worker.stages - 1:
        return None
    shape, kind = worker.boundary(boundary, gradient, unit)
    return torch.zeros(shape, dtype=kind, device=worker.device)
