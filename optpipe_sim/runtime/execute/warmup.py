"""Warm-up before a step: kernels, workspaces, pinned host memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch

from ..model.chain import Kept, run_chain
from ..model.stage import StageWorker
from ..program.program import Program


def most_offloaded(program: Program) -> dict[Kept, int]:
    """Return, by stage and level of recomputation, the most microbatches whose activations are on the
    host at once, in issue order."""
    now: Counter[Kept] = Counter()
    most: Counter[Kept] = Counter()
    for step in program.steps:
        kept = step.op.stage, program.levels.get(step.op[1:])
        if step.do == "offload":
            now[kept] += 1
            most[kept] = max(most[kept], now[kept])
        elif step.do == "reload":
            now[kept] -= 1
    return dict(most)


def warm_up(
    worker: StageWorker,
    program: Program | None = None,
    before: Callable[[int], None] = lambda stage: None,
) -> None:
    """Run the chains F B W and F BW of one microbatch through every stage, on zeros, and reserve the
    host memory that the offloads of the program need.

    The step has to be started, and has to be started again afterwards; gradients are added to. The
    first GEMM on a stream allocates a workspace that stays (32 MiB with cuBLAS on sm90), kernels are
    loaded at their first launch, and pinning a gigabyte takes a good part of a second.

    Args:
        before: called with the stage of each op before it runs.
    """
    sizes: list[int] = []
    for stage in sorted(worker.modules):
        for fused in (False, True):
            run_chain(worker, (stage, None), fused=fused, before=before)
    for kept, count in sorted(most_offloaded(program).items(), key=str) if program else ():
        sizes += run_chain(worker, kept, fused=True, before=before) * count
    if sizes:
        worker.slab.reserve(sizes)
    if worker.device.type == "cuda":
        torch.cuda.synchronize(worker.device)
