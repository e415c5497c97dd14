"""`profile_modules`: what a user's own stages cost here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...errors import OptPipeError
from ...profile import CostProfile
from ...schedule.shape import Shape
from ..group import PipelineGroup
from ..measure.profiler import Progress, measure
from ..model.plan import ModuleStages
from ..model.stage import Loss
from .examine import examine


def profile_modules(
    modules: Sequence[nn.Module],
    loss: Loss,
    inputs: Any,
    target: Any,
    *,
    devices: int | None = None,
    device: str = "cpu",
    levels: Sequence[str] = (),
    slices: Sequence[int] = (),
    samples: int = 30,
    warmup: int = 5,
    optimizer_bytes: int = 8,
    latency_ns: int = 0,
    occupancy_ns: int = 0,
    name: str = "modules",
    progress: Progress = lambda name, done, total: None,
) -> CostProfile:
    """Measure every stage of a model on this machine's CPU or GPU, for `solve` and `PipelineStep`.

    One process has all stages; one at a time runs, F, B, W and BW of a microbatch, its bytes counted
    after and inside every op. No link is measured.

    Args:
        modules: all stages in order, as `PipelineStep` takes them.
        loss, inputs, target: the loss, and one microbatch for the first and the last stage.
        devices: how many the stages are dealt out to, in turn; default: one each.
        device: where the modules are, ``cpu`` or ``cuda``.
        levels: of recomputation: ``stage`` (all of a stage at once, always possible); ``full`` and
            ``full-50%``, where stages mark their layers (`mark_layers`, `checkpoint`); ``norms``,
            ``attention``, ``mlp`` and so on, where they mark these parts (`part`).
        slices: tokens of each slice of the sequences, in order; none: they stay whole. See
            `PipelineStep` for what the modules have to do.
        samples, warmup: chains of ops that are timed, and that are not.
        optimizer_bytes: what the optimizer keeps per trained weight (8: two moments in fp32).
        latency_ns, occupancy_ns: a message between devices takes their sum, and the link is busy for
            the latter.
        progress: called with what is measured, how much is done, and of how much.

    Raises:
        OptPipeError: one line, with what cannot work.
    """
    place = torch.device(device)
    p = devices or len(modules)
    if not modules or p < 1 or len(modules) % p:
        raise OptPipeError(f"devices: {len(modules)} stages cannot be dealt out to {p} devices")
    shape = Shape(p, len(modules) // p, 1)
    alone = PipelineGroup(p, alone=True)
    passed = examine(
        dict(enumerate(modules)), shape, alone, place, inputs, target, loss, slices=slices
    )
    stages = ModuleStages(
        tuple(modules),
        loss,
        (inputs, target),
        p,
        [one.boundary for one in passed],
        [one.message for one in passed],
        optimizer_bytes,
        name,
        tuple(slices),
    )
    profile = measure(stages, device, samples, warmup, progress, levels=levels)
    return replace(profile, latency_ns=latency_ns, occupancy_ns=occupancy_ns)
