"""Recomputation in torch: gradients of the unpipelined model, bytes as the profile says after every op,
random numbers and casts as in the forward, and what cannot be recomputed refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from runtime_cases import (
    EXPERTS,
    GPT,
    TIED,
    plan_of,
    profile_of,
    run_all,
    started,
    with_levels,
    with_offloads,
)
from stage_cases import held_bytes
from strategies import schedules
from torch import Tensor, nn

from optpipe_sim import build, simulate
from optpipe_sim.costs.models import Model
from optpipe_sim.errors import RuntimeFault
from optpipe_sim.ops import C, O, Op, R
from optpipe_sim.profile import CostProfile
from optpipe_sim.runtime.confirm.verdict import peaks_after_ops
from optpipe_sim.runtime.execute.serial import run_serially
from optpipe_sim.runtime.execute.unpipelined import named_gradients, reference
from optpipe_sim.runtime.measure.footprint import StageBytes, stage_bytes
from optpipe_sim.runtime.measure.memory import LiveBytes
from optpipe_sim.runtime.model.recompute import level_of, part
from optpipe_sim.runtime.model.stage import StageWorker
from optpipe_sim.runtime.train.planner import in_order
from optpipe_sim.schedule import Schedule
from optpipe_sim.sim.lower import lower

M = 4
LEVELS = ("norms", "attention", "norms+mlp+qkv", "full-50%", "full", "stage")
LEVELS_INSIDE = ("norms+mlp", "full", "stage")
SHALLOW = replace(GPT, layers=3)
HALF = replace(GPT, layers=4)
LOSS = 4  # bytes per microbatch that no profile counts


@cache
def shallow_bytes() -> StageBytes:
    return stage_bytes(plan_of(SHALLOW, 1), 0, "cpu", levels=LEVELS_INSIDE)


@cache
def wanted(model: Model, microbatches: int) -> tuple[float, dict[str, Tensor]]:
    return reference(plan_of(model, 1), microbatches, 0)


def confirm(schedule: Schedule, profile: CostProfile, model: Model) -> None:
    """Run it op by op: bytes after each as predicted, gradients bitwise, or up to the order of sums."""
    lowered = lower(schedule, profile)
    shape = schedule.shape
    plan = plan_of(model, shape.devices, shape.chunks)
    workers, run = run_all(plan, lowered)
    loss, expected = wanted(model, shape.microbatches)
    assert run.loss == loss
    for worker in workers.values():
        assert held_bytes(worker) == 0
        for name, gradient in named_gradients(worker).items():
            if model.tied and name in ("tokens.weight", "head.weight"):
                continue
            if in_order(schedule):
                assert torch.equal(gradient, expected[name]), name
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
    held = [run.held[rank] for rank in range(shape.devices)]
    for peak in peaks_after_ops(lowered.schedule, lowered.profile, held):
        assert abs(peak.off_bytes) <= LOSS * shape.microbatches, peak


# -- gradients and memory -------------------------------------------------------------------------

SPLIT, FUSED = {1: "zb-h1", 2: "zb-v"}, {1: "1f1b", 2: "1f1b-i"}


@pytest.mark.parametrize("apart", [False, True], ids=["inside", "apart"])
@pytest.mark.parametrize("names", [SPLIT, FUSED], ids=["split", "fused"])
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("devices", [2, 4])
def test_every_level_gives_the_gradients_and_holds_what_was_predicted(
    devices: int, chunks: int, names: dict[int, str], apart: bool
) -> None:
    model = HALF if devices * chunks == 2 else GPT  # one or two layers per stage
    profile = profile_of(model, devices, chunks, levels=LEVELS)
    base = build(names[chunks], profile, M)
    profile = profile.for_shape(base.shape)
    # all levels, and none, beside each other; two stages see half of them at a time
    for levels in (LEVELS, LEVELS[::-1]) if devices * chunks == 2 else (LEVELS,):
        mixed = with_levels(base, levels, apart=apart)
        assert apart == any(op.kind is C for program in mixed.programs for op in program)
        confirm(mixed, profile, model)


@pytest.mark.parametrize("apart", [False, True], ids=["inside", "apart"])
@pytest.mark.parametrize("model", [TIED, EXPERTS], ids=lambda model: model.name)
def test_recomputed_activations_are_offloaded(model: Model, apart: bool) -> None:
    levels = ("norms", "full", "stage")
    model = replace(model, layers=4)
    profile = profile_of(model, 2, levels=levels)
    schedule = with_levels(with_offloads(build("zb-h1", profile, 6)), levels, apart=apart)
    back = {op[1:] for op in schedule.programs[0] if op.kind is R}
    assert back & {op[1:] for op in schedule.programs[0] if op.kind is C} or not apart
    confirm(schedule, profile, model)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 2)]))
def test_any_schedule_with_any_levels(data: st.DataObject, shape: tuple[int, int]) -> None:
    profile = profile_of(HALF, *shape, levels=LEVELS)
    schedule = data.draw(schedules(profile, max_microbatches=3))
    spans = simulate(schedule, profile).spans
    ends = {span.op: span.end_ns for span in spans}
    # op by op an R has no memory to take before its O has ended
    assume(all(s.op.kind is not R or s.grant_ns >= ends[Op(O, *s.op[1:])] for s in spans))
    confirm(schedule, profile, HALF)


@pytest.mark.parametrize("apart", [False, True], ids=["inside", "apart"])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("level", LEVELS_INSIDE)
def test_memory_inside_ops_is_within_the_working_memory(level: str, name: str, apart: bool) -> None:
    """At no moment more than the prediction and the reserve, which does not grow with the level."""
    profile, size = profile_of(SHALLOW, 1, levels=LEVELS_INSIDE), shallow_bytes()
    plan = plan_of(SHALLOW, 1)
    assert size.reserve <= 1.25 * max(size.inside.values())
    schedule = build(f"{name}:recompute={level},apart={'yes' if apart else 'no'}", profile, 2)
    lowered = lower(schedule, profile)
    steps = started(plan, lowered)
    with LiveBytes() as meter:
        run_serially(steps, meter=meter)
        most = meter.peak()
    predicted = lowered.replay().peak_bytes[0]
    assert predicted <= most <= predicted + size.reserve + 2 * LOSS


@pytest.mark.parametrize("model", [GPT, EXPERTS], ids=lambda model: model.name)
def test_levels_drop_more_and_more(model: Model) -> None:
    plan = plan_of(model, 2)
    for stage in (0, 1):
        found = stage_bytes(plan, stage, "cpu", levels=("norms", "norms+mlp", "full", "stage"))
        kept = [level.keep for level in found.levels.values()]
        assert found.held[0] > kept[0] >= kept[1] > kept[2] > kept[3]
        message = plan.microbatch * plan.seq * model.hidden * 4
        assert kept[3] == (message + 4 if stage else 0)  # the loss
        # layers one by one: less at once than all together
        assert found.levels["full"].work < found.levels["stage"].work
        for level in found.levels.values():
            assert 0 <= level.work <= found.held[0] - level.keep


# -- random numbers, casts, and stages that do not repeat --------------------------------------------

WIDTH = 16


class Layer(nn.Module):
    """Dropout between two products that no deferral knows."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.two = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.dropout(torch.tanh(x @ self.one), 0.4) @ self.two


class Layers(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            x = part("layer", layer, x, place=(at, len(self.layers)))
        return x


def error(y: Tensor, target: Tensor) -> Tensor:
    return (y.float() - target).square().mean()


def noisy_step(
    level: str | None, apart: bool, cast: bool
) -> tuple[list[Tensor], Tensor, list[int]]:
    """Gradients of two stages and two microbatches, the random state at the end, and bytes held
    after the forwards."""
    stages = [Layers(seed) for seed in (1, 2)]
    worker = StageWorker(stages, 2, ((4, WIDTH), torch.float32), loss=error)
    inputs, targets = torch.randn(2, 2, 4, WIDTH, generator=torch.Generator().manual_seed(5))
    torch.manual_seed(7)
    worker.start_step(inputs, targets)
    for mb in (0, 1):
        x = None
        for stage in (0, 1):
            with torch.autocast("cpu", torch.bfloat16) if cast else nullcontext():
                x = worker.forward(stage, mb, x, level)
    held = [held_bytes(worker)]
    for mb in (0, 1):
        dy = None
        for stage in (1, 0):
            if apart:
                worker.recompute(stage, mb)
            dy = worker.backward(stage, mb, dy, fused=True)
    worker.finish_step()
    return [p.grad for p in worker.parameters()], torch.get_rng_state(), held


def plain_step() -> tuple[list[Tensor], Tensor]:
    stages = nn.Sequential(*(Layers(seed) for seed in (1, 2)))
    inputs, targets = torch.randn(2, 2, 4, WIDTH, generator=torch.Generator().manual_seed(5))
    torch.manual_seed(7)
    for loss in [error(stages(x), target) for x, target in zip(inputs, targets, strict=True)]:
        (loss / 2).backward()
    return [p.grad for p in stages.parameters()], torch.get_rng_state()


@pytest.mark.parametrize("apart", [False, True], ids=["inside", "apart"])
@pytest.mark.parametrize("level", ["full", "full-50%", "stage"])
def test_dropout_draws_the_same_again(level: str, apart: bool) -> None:
    expected, random = plain_step()
    found, after, held = noisy_step(level, apart, cast=False)
    assert all(map(torch.equal, found, expected))
    assert torch.equal(after, random)  # as if nothing had been drawn twice
    assert 0 < held[0] < noisy_step(None, False, cast=False)[2][0]


@pytest.mark.parametrize("apart", [False, True], ids=["inside", "apart"])
def test_autocast_is_as_in_the_forward(apart: bool) -> None:
    expected, _, _ = noisy_step(None, False, cast=True)
    for level in ("full", "stage"):
        found, _, _ = noisy_step(level, apart, cast=True)
        assert all(map(torch.equal, found, expected))
    plain, _, _ = noisy_step(None, False, cast=False)
    assert not all(map(torch.equal, plain, expected))


class Changing(nn.Module):
    """Does something else at every call."""

    def __init__(self, change: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.change, self.calls = change, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.change(x, self.calls)


def middle(module: nn.Module) -> StageWorker:
    worker = StageWorker({1: module}, 3, ((4, WIDTH), torch.float32), rank=1)
    worker.start_step()
    return worker


@pytest.mark.parametrize("apart", [False, True], ids=["inside", "apart"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, n: torch.sigmoid(x[:n]).sum() * x, r"saves a tensor \(2, 16\) where F saved"),
        (lambda x, n: torch.tanh(x).sin().cos() if n < 2 else torch.tanh(x), "saves 1 tensors"),
    ],
)
def test_a_stage_that_does_not_repeat_itself_is_refused(change, said: str, apart: bool) -> None:
    worker = middle(Changing(change))
    y = worker.forward(1, 0, torch.randn(4, WIDTH), "stage")
    said = rf"recomputing 1\.0 on rank 1 \(cpu\): it {said}.*a stage has to repeat its F exactly"
    with pytest.raises(RuntimeFault, match=said):
        worker.recompute(1, 0) if apart else worker.backward(1, 0, torch.ones_like(y), fused=True)


def test_levels_that_there_are_not() -> None:
    assert level_of("norms+mlp").parts == {"norms", "mlp"}
    assert level_of("full-25%").whole_layers(6) == 2
    assert level_of("norms").whole_layers(6) is None
    for name in ("selective", "full-", "full-200%", "norms+full", ""):
        with pytest.raises(
            RuntimeFault, match=re.escape(f"level {name!r}: the runtime has norms, qkv")
        ):
            level_of(name)
    worker = middle(nn.Linear(WIDTH, WIDTH))
    with pytest.raises(
        RuntimeFault, match=r"F1\.0 on rank 1 \(cpu\): level 'full': the stage has no"
    ):
        worker.forward(1, 0, torch.randn(4, WIDTH), "full")
    worker.forward(1, 0, torch.randn(4, WIDTH))
    with pytest.raises(RuntimeFault, match=r"C1\.0 on rank 1 \(cpu\): nothing is dropped"):
        worker.recompute(1, 0)


def test_what_is_on_the_host_cannot_be_recomputed() -> None:
    worker = middle(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    worker.forward(1, 0, torch.randn(4, WIDTH), "stage")
    worker.offload(1, 0)
    worker.drop(1, 0)
    with pytest.raises(RuntimeFault, match=r"its activation is on the host: R1\.0 has to come"):
        worker.recompute(1, 0)
