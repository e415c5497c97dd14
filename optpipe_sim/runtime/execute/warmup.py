"""What a step should not meet for the first time: kernels, workspaces, pinned host memory."""

from __future__ import annotations

from collections import Counter

import torch

from ..model.chain import run_chain
from ..model.stage import StageWorker
from ..program.program import Program


def most_offloaded(program: Program) -> dict[int, int]:
    """By stage, the most microbatches whose activations are on the host at once, in issue order."""
    now: Counter[int] = Counter()
    most: Counter[int] = Counter()
    for step in program.steps:
        stage = step.op.stage
        if step.do == "offload":
            now[stage] += 1
            most[stage] = max(most[stage], now[stage])
        elif step.do == "reload":
            now[stage] -= 1
    return dict(most)


def warm_up(worker: StageWorker, program: Program | None = None) -> None:
    """Run the chains F B W and F BW of one microbatch through every stage, on zeros, and reserve the
    host memory that the offloads of the program need.

    The step has to be started, and has to be started again afterwards; gradients are added to. The
    first GEMM on a stream allocates a workspace that stays (32 MiB with cuBLAS on sm90), kernels are
    loaded at their first launch, and pinning a gigabyte takes a good part of a second.
    """
    held = {} if program is None else most_offloaded(program)
    sizes: list[int] = []
    for stage in sorted(worker.modules):
        sizes += run_chain(worker, stage, fused=False) * held.get(stage, 0)
        run_chain(worker, stage, fused=True)
    if sizes:
        worker.slab.reserve(sizes)
    if worker.device.type == "cuda":
        torch.cuda.synchronize(worker.device)
