"""Schedules to start from: the fixed ones that fit, and simple offloading patterns."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import OptPipeError
from ..ops import B, F, O, Op, R, W
from ..schedule import Schedule
from ..schedules import REGISTRY, build
from .problem import Problem


def fixed_schedules(problem: Problem) -> Iterator[tuple[str, Schedule]]:
    """The named schedules that have the problem's chunks and placement (AdaOffload aside), each
    with the options that suit; whether they fit is the replay's question."""
    profile, chunks = problem.profile, problem.profile.chunks
    limit = min(problem.limits) if problem.limits else None
    for name, entry in REGISTRY.items():
        if name == "adaoffload":
            continue
        options: dict[str, int] = {}
        if "chunks" in entry.options:
            options["chunks"] = chunks
        if "limit" in entry.options and limit is not None:
            options["limit"] = limit
        try:
            schedule = build(name, profile, problem.microbatches, **options)
        except OptPipeError:
            continue
        if schedule.shape == problem.shape:
            yield name, schedule


def offload_everything(problem: Problem, depth: int) -> Schedule:
    """1F1B with at most `depth` warm-up forwards per device, everything offloaded in FIFO order,
    one reload ahead: a start where two or three activations fit."""
    shape = problem.shape
    m, programs = problem.microbatches, []
    for device in range(shape.devices):
        stages = shape.stages_of(device)
        program: list[Op] = []
        for stage in stages:
            warm_up = min(shape.stages - stage - 1, m, depth)
            order = [("F", j) for j in range(warm_up)]
            for j in range(m - warm_up):
                order += [("F", warm_up + j), ("B", j)]
            order += [("B", j) for j in range(m - warm_up, m)]
            for kind, j in order:
                if kind == "F":
                    program += [Op(F, stage, j), Op(O, stage, j)]
                else:
                    program += [Op(R, stage, j), Op(B, stage, j), Op(W, stage, j)]
        programs.append(program)
    return Schedule(shape, programs, meta={"name": f"offload-everything:{depth}"})
