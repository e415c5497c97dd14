"""Simple offloading patterns to start from: everything offloaded in FIFO order, or with one microbatch
parked on the host."""

from __future__ import annotations

from collections.abc import Sequence

from ...ops import B, F, O, Op, R, W
from ...schedule import Schedule
from ..problem import Problem


def offload_everything(problem: Problem, depth: int) -> Schedule:
    """Build 1F1B with at most `depth` warm-up forwards per device, everything offloaded in FIFO
    order, one reload ahead: a start for devices with room for two or three activations."""
    stages, m = problem.shape.stages, problem.microbatches
    warm_up = [min(stages - stage - 1, depth) for stage in range(stages)]
    return _all_offloaded(problem, warm_up, range(m), f"offload-everything:{depth}")


def park_first(problem: Problem, passed: int, spare: Sequence[int]) -> Schedule:
    """As `offload_everything`, but the first microbatch stays on the host until `passed` others
    have overtaken it, on all devices. With room for two activations and slow copies this can
    beat any FIFO schedule: its forwards and offloads cost no time, as the pipeline is still
    empty.

    Args:
        spare: warm-up forwards of each stage beyond those of 1F1B.
    """
    stages, m = problem.shape.stages, problem.microbatches
    warm_up = [stages - stage - 1 + spare[stage] for stage in range(stages)]
    order = [*range(1, m)]
    order.insert(passed, 0)
    return _all_offloaded(problem, warm_up, order, f"park-first:{passed}")


def _all_offloaded(
    problem: Problem, warm_up: Sequence[int], order: Sequence[int], name: str
) -> Schedule:
    """Offload everything; backwards run in the given order, forwards `warm_up` ahead of them."""
    shape = problem.shape
    programs = []
    for device in range(shape.devices):
        program: list[Op] = []
        for stage in shape.stages_of(device):
            begun = 0
            for done, j in enumerate(order):
                for i in range(begun, min(problem.microbatches, max(j, warm_up[stage] + done) + 1)):
                    program += [Op(F, stage, i), Op(O, stage, i)]
                    begun = i + 1
                program += [Op(R, stage, j), Op(B, stage, j), Op(W, stage, j)]
        programs.append(program)
    return Schedule(shape, programs, meta={"name": name})
