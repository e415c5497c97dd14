"""What the tests of the runtime run: small models, their profiles, schedules with offloads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from optpipe_sim.costs.models import Model
from optpipe_sim.ops import BW, COMPUTE, B, C, F, O, Op, R
from optpipe_sim.profile import CostProfile, Offload
from optpipe_sim.profile.parts import join
from optpipe_sim.runtime.execute.rank_step import RankStep
from optpipe_sim.runtime.execute.serial import SerialRun, run_serially
from optpipe_sim.runtime.execute.transport import Loopback, Transport
from optpipe_sim.runtime.measure import profiler
from optpipe_sim.runtime.measure.copies import DIRECTIONS, MODES, Copy
from optpipe_sim.runtime.measure.footprint import StageBytes, stage_bytes
from optpipe_sim.runtime.measure.memory import LiveBytes
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.model.stage import StageWorker
from optpipe_sim.runtime.program.program import Prepared
from optpipe_sim.schedule import Schedule
from optpipe_sim.schedule.shape import Shape
from optpipe_sim.sim.lower import Lowered
from optpipe_sim.stage_cost import RecomputeLevel, StageCost

SEQ, WIDTH = 32, 64
SMALL = {"layers": 8, "hidden": WIDTH, "heads": 4, "vocab": 96}
GPT = Model("gpt", **SMALL, style="gpt", positions=SEQ)
TIED = Model("tied", **SMALL, style="gpt", positions=SEQ, tied=True)
EXPERTS = Model(
    "experts",
    **SMALL,
    kv_heads=2,
    ffn=96,
    experts=4,
    experts_per_token=2,
    expert_ffn=48,
    dense_layers=1,
)
MS = 10**6


def joined(results: Iterable[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The gradients of all ranks by name."""
    return {name: grad for result in results for name, grad in result["gradients"].items()}


def started(
    plan: Plan, lowered: Lowered, transport: Transport | None = None
) -> dict[int, RankStep]:
    """The steps of all ranks, started; one process has them all."""
    shape, prepared = lowered.schedule.shape, Prepared(lowered)
    steps = {}
    for rank in range(shape.devices):
        steps[rank] = RankStep(
            plan.rank_worker(shape, rank), rank, prepared, transport or Loopback({})
        )
        steps[rank].start(*plan.step_batch(shape.microbatches, 0))
    return steps


def run_all(plan: Plan, lowered: Lowered) -> tuple[dict[int, StageWorker], SerialRun]:
    """The stages of all ranks after a run in this thread, memory measured; and what was measured."""
    steps = started(plan, lowered)
    with LiveBytes() as meter:
        run = run_serially(steps, meter=meter)
    return {rank: step.worker for rank, step in steps.items()}, run


def assert_equal(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], why: str = ""
) -> None:
    """Of the same names, and bitwise."""
    assert found.keys() == expected.keys(), why
    assert [n for n in expected if not torch.equal(found[n], expected[n])] == [], why


def plan_of(model: Model, devices: int, chunks: int = 1, slices: tuple[int, ...] = ()) -> Plan:
    """Two sequences per microbatch."""
    return Plan(model, devices, chunks, seq=SEQ, microbatch=2, slices=slices)


@cache
def profile_of(
    model: Model,
    devices: int,
    chunks: int = 1,
    offload: Offload | None = None,
    levels: tuple[str, ...] = (),
    slices: tuple[int, ...] = (),
) -> CostProfile:
    """The true bytes of these stages, and times that are about alike; nothing static."""
    plan = plan_of(model, devices, chunks, slices)
    first = {at: stage_bytes(plan, at, "cpu", levels=levels) for at in set(plan.alike())}
    sizes = [first[at] for at in plan.alike()]

    def cost(size: StageBytes) -> StageCost:
        return StageCost(
            t_f_ns=2 * MS,
            t_b_ns=2 * MS,
            t_w_ns=1 * MS,
            t_offload_ns=MS,
            t_reload_ns=MS,
            act_bytes=max(size.held),
            w_bytes=size.held[1],
            offload_bytes=min(size.moved, max(size.held)),
            kv_bytes=size.kv,
            recompute=tuple(
                RecomputeLevel(name, MS, level.keep, level.work, level.b_work)
                for name, level in size.levels.items()
            ),
        )

    stages = tuple(join([cost(part) for part in size.units]) for size in sizes)
    return CostProfile(
        name=model.name,
        devices=devices,
        chunks=chunks,
        placement="loop",
        stages=stages,
        latency_ns=MS // 10,
        offload=offload or Offload(),
        slices=max(1, len(slices)),
    )


@contextmanager
def copies_made_up() -> Iterator[None]:
    """Inside the block, profiles have given copies, which slow nothing down: they are measured elsewhere, beside
    threads that leave nothing of two cores to anyone else."""
    copies = dict.fromkeys(MODES, dict.fromkeys(DIRECTIONS, Copy(1e4, 0.1, {})))
    with (
        patch.object(profiler, "measure_copies", lambda *_: copies),
        patch.object(profiler, "op_factors", lambda *_: {}),
    ):
        yield


def measured(plan: Plan, samples: int, warmup: int, levels: Sequence[str] = ()) -> CostProfile:
    """The profile of a plan on this CPU, with copies made up."""
    with copies_made_up():
        return profiler.measure(plan, "cpu", samples, warmup, levels=levels)


def with_offloads(schedule: Schedule) -> Schedule:
    """Every second microbatch goes to the host where three other compute ops come before its B,
    and is back one op before that."""
    programs = []
    for program in schedule.programs:
        compute = [op for op in program if op.kind in COMPUTE]
        at = {op: number for number, op in enumerate(compute)}
        out: list[Op] = []
        reload_before: dict[Op, Op] = {}
        for op in compute:
            forward = op._replace(kind=F)
            if op.kind in (B, BW) and op.microbatch % 2 == 0 and at[op] - at[forward] > 3:
                reload_before[compute[at[op] - 1]] = op._replace(kind=R)
        gone = {op[1:] for op in reload_before.values()}
        for op in compute:
            if op in reload_before:
                out.append(reload_before[op])
            out.append(op)
            if op.kind is F and op[1:] in gone:
                out.append(op._replace(kind=O))
        programs.append(out)
    return Schedule(schedule.shape, programs)


def with_levels(schedule: Schedule, names: Sequence[str], *, apart: bool) -> Schedule:
    """The activations in turn are kept whole, or recomputed at each of these levels; apart: one
    compute op before their backward, where that is after F and R, else just before it."""
    shape, levels = schedule.shape, {}
    for stage in range(shape.stages):
        for mb in range(shape.microbatches):
            number = (stage + mb) % (len(names) + 1)
            if number:
                levels[f"{stage}.{mb}"] = names[number - 1]
    programs = []
    for program in schedule.programs:
        out: list[Op] = []
        for op in program:
            if apart and op.kind in (B, BW) and f"{op.stage}.{op.microbatch}" in levels:
                early = bool(out) and out[-1].kind in COMPUTE and out[-1][1:] != op[1:]
                out.insert(len(out) - early, op._replace(kind=C))
            out.append(op)
        programs.append(out)
    return Schedule(shape, programs, schedule.link_order, recompute=levels)


# -- stages that a user would write; ranks import them from here ------------------------------------


class Residual(nn.Module):
    """A stage of no kind that the project knows."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inside = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU())
        self.back = nn.Linear(2 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.back(self.inside(x))


def error(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean()


def residual_worker(shape: Shape, rank: int) -> StageWorker:
    modules = {stage: Residual(stage) for stage in shape.stages_of(rank)}
    return StageWorker(
        modules, shape.stages, ((2, SEQ, WIDTH), torch.float32), rank=rank, loss=error
    )


def residual_batch(microbatches: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(2, microbatches, 2, SEQ, WIDTH, generator=generator)
    return inputs, targets


@dataclass(frozen=True)
class OwnStages:
    """Stages of no kind that the project knows, in the place of a plan: functions that ranks can import."""

    worker: Callable[[Shape, int], StageWorker]

    def rank_worker(self, shape: Shape, rank: int, device: str = "cpu") -> StageWorker:
        return self.worker(shape, rank)

    def step_batch(
        self, microbatches: int, seed: int, device: str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        return residual_batch(microbatches, seed)


RESIDUAL = OwnStages(residual_worker)


class Faulty(Residual):
    """A stage whose fourth forward fails."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 4:
            self.fail()
        return super().forward(x)

    def fail(self) -> None:
        raise ValueError("the fourth is one too many")


class Killed(Faulty):
    """A stage whose fourth forward is the end of its process."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def broken_worker(shape: Shape, rank: int, kind: type[Faulty] = Faulty) -> StageWorker:
    """With faulty stages on rank 1."""
    worker = residual_worker(shape, rank)
    if rank == 1:
        for stage in worker.modules:
            worker.modules[stage] = kind(stage)
    return worker


def killed_worker(shape: Shape, rank: int) -> StageWorker:
    return broken_worker(shape, rank, Killed)
