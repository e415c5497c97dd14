"""A user's own modules under a schedule: gradients of plain autograd, memory as predicted."""

from __future__ import annotations

import re
from collections import OrderedDict
from copy import deepcopy
from functools import cache
from pathlib import Path

import own_modules as own
import pytest
import torch
from runtime_cases import copies_made_up, with_levels, with_offloads
from torch import Tensor, nn

from optpipe_sim import build, simulate, solve
from optpipe_sim.errors import OptPipeError, RuntimeFault
from optpipe_sim.ops import O
from optpipe_sim.profile import CostProfile, Offload
from optpipe_sim.runtime import PipelineStep, load_pipeline, profile_modules, save_pipeline
from optpipe_sim.schedule import Schedule
from optpipe_sim.schedules import REGISTRY
from optpipe_sim.stage_cost import StageCost


@cache
def profile_of(stages: int, devices: int) -> CostProfile:
    inputs, targets = own.batch(1)
    with copies_made_up():
        return profile_modules(
            own.stages_of(stages, "level"),
            own.loss,
            inputs[0],
            targets[0],
            devices=devices,
            levels=("full", "stage"),
            samples=2,
            warmup=1,
        )


def step_of(
    modules: list[nn.Module], schedule: Schedule, profile: CostProfile | None = None, **options
) -> PipelineStep:
    return PipelineStep(modules, schedule, own.loss, profile=profile, **options)


def chunks_of(name: str, p: int) -> int:
    """How many chunks per device the schedule has where it may choose."""
    cost = StageCost(9, 9, 9, 1000, 500, t_offload_ns=9, t_reload_ns=9)
    any_cut = CostProfile("any", p, (cost,) * p, offload=Offload())
    return build(name, any_cut, 2 * p, **options_of(name, any_cut)).shape.chunks


def options_of(name: str, profile: CostProfile) -> dict:
    limit = max(profile.least_limits) + profile.stages[0].act_bytes
    return {"limit": limit} if name == "adaoffload" else {}


@pytest.mark.parametrize("p", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_schedule_gives_the_gradients_of_plain_autograd_and_the_peaks_predicted(p: int):
    ran = 0
    for name in REGISTRY:
        stages = p * chunks_of(name, p)
        profile = profile_of(stages, p)
        schedule = build(name, profile, 2 * p, **options_of(name, profile))
        marks = ("level",) if schedule.recompute else ()  # mario recomputes what idle time allows
        modules, plain = own.stages_of(stages, *marks), own.stages_of(stages)
        inputs, targets = own.batch(2 * p)
        step = step_of(modules, schedule, profile.for_shape(schedule.shape))
        found = step(inputs, targets, measure=True)
        assert found == own.unpipelined(plain, inputs, targets), name
        assert own.differing(modules, plain) == [], name
        offloads = any(op.kind is O for program in step.schedule.programs for op in program)
        trace = step.prepared.lowered.replay()
        for rank, held in step.peaks.items():
            said = trace.peak_bytes[rank] - trace.profile.static_bytes[rank]
            # an R that is granted while its O still runs takes no memory here, where one op ends
            # before another begins
            least = 0 if offloads else 9 * said // 10
            assert least <= held <= said + 4 * 2 * p, (name, rank, held, said)
        ran += 1
    assert ran == len(REGISTRY)


@pytest.mark.parametrize("name", ["1f1b-i:pairs=yes", "dualpipe-v:pairs=yes", "kimi-k2:pairs=yes"])
def test_the_halves_of_pairs_run_one_after_the_other(name: str):
    profile = profile_of(4, 2)
    schedule = build(name, profile, 4)
    assert schedule.has_pairs
    modules, plain = own.stages_of(4), own.stages_of(4)
    inputs, targets = own.batch(4)
    step = step_of(modules, schedule, profile.for_shape(schedule.shape))
    assert step(inputs, targets) == own.unpipelined(plain, inputs, targets)
    assert own.differing(modules, plain) == []
    assert step.schedule.flat_programs == schedule.flat_programs
    assert step.schedule.meta["parted"] == schedule.paired.sum()


def test_a_solved_schedule_and_some_with_offloads_and_levels():
    profile = profile_of(4, 4)
    most = max(simulate(build("1f1b", profile, 8), profile).peak_bytes)
    limit = most - 3 * profile.stages[0].act_bytes // 2
    solved = solve(profile, 8, memory_limit=limit, time_limit=1, workers=1, chunks="own").schedule
    base = with_offloads(build("zb-h1", profile, 8))
    for schedule in (
        solved,
        *(with_levels(base, ("full", "stage"), apart=a) for a in (False, True)),
    ):
        modules, plain = own.stages_of(4, "level"), own.stages_of(4)
        inputs, targets = own.batch(8)
        step = step_of(modules, schedule, profile)
        step(inputs, targets, measure=True)
        own.unpipelined(plain, inputs, targets)
        for name, wanted in own.gradients(plain).items():
            torch.testing.assert_close(own.gradients(modules)[name], wanted, rtol=1e-5, atol=1e-7)
        for rank, most in enumerate(step.prepared.lowered.replay().peak_bytes):
            assert step.peaks[rank] <= most - profile.static_bytes[rank] + 64
    assert own.differing(modules, plain) == []  # these have their W's in order


def test_the_example_of_the_documentation():
    page = (Path(__file__).parents[3] / "docs" / "hardware.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].replace(
        "time_limit=2", "time_limit=1, workers=1"
    )
    names: dict = {}
    with copies_made_up():
        exec(code, names)
    assert 0 < names["mean_loss"] < 2
    trace = simulate(names["plan"].schedule, names["profile"])
    assert max(trace.peak_bytes) <= 5 * 2**20  # times are measured, and schedules as they come out


@pytest.mark.parametrize("through", ["torch", "reentrant"])
def test_checkpoints_of_the_users_own(through: str):
    modules, plain = own.stages_of(2, through), own.stages_of(2)
    inputs, targets = own.batch(4)
    schedule = with_offloads(build("zb-h1", profile_of(2, 2), 4))
    step_of(modules, schedule)(inputs, targets)
    own.unpipelined(plain, inputs, targets)
    assert own.differing(modules, plain) == []


def test_edits_in_place_that_autograd_allows():
    torch.manual_seed(0)
    modules = [nn.Sequential(own.Edits(), own.Edits()), own.Edits()]
    plain, (x, y) = deepcopy(modules), torch.randn(2, 4, 3, own.SEQ, own.WIDTH)
    schedule = with_offloads(build("zb-h1", profile_of(2, 2), 4))
    PipelineStep(modules, schedule, nn.functional.mse_loss)(x, y)
    for one, wanted in zip(x, y, strict=True):
        (nn.functional.mse_loss(plain[1](plain[0](one)), wanted) / 4).backward()
    assert own.differing(modules, plain) == []


@pytest.mark.parametrize("frozen", ["first", "last", "half", "all but one"])
def test_frozen_parameters(frozen: str):
    modules, plain = own.stages_of(4), own.stages_of(4)
    for stages in (modules, plain):
        every = [p for stage in stages for p in stage.parameters()]
        some = {
            "first": stages[0].parameters(),
            "last": stages[3].parameters(),
            "half": every[::2],
            "all but one": every[1:],
        }[frozen]
        for parameter in some:
            parameter.requires_grad_(False)
    inputs, targets = own.batch(4)
    step = step_of(modules, build("zb-h1", profile_of(4, 4), 4))
    assert step(inputs, targets) == own.unpipelined(plain, inputs, targets)
    assert own.differing(modules, plain) == []


def test_autocast_and_bf16_with_fp32_accumulation():
    inputs, targets = own.batch(6)
    schedule = build("zb-h1", profile_of(2, 2), 6)
    modules, plain = own.stages_of(2), own.stages_of(2)
    with torch.autocast("cpu", torch.bfloat16):
        found = step_of(modules, schedule)(inputs, targets)
    assert found == own.unpipelined(plain, inputs, targets, autocast=True)
    assert own.differing(modules, plain) == []
    modules, plain = ([s.bfloat16() for s in own.stages_of(2)] for _ in range(2))
    step = step_of(modules, schedule, accumulate=torch.float32)
    step(inputs, targets)
    for stage in plain:
        for parameter in stage.parameters():
            parameter.grad_dtype = torch.float32
    own.unpipelined(plain, inputs, targets)
    assert own.differing(modules, plain) == []
    assert {p.grad.dtype for p in step.parameters()} == {torch.float32}
    exact = [p.grad.clone() for p in step.parameters()]
    step.gradients_as_weights()
    torch.optim.AdamW(step.parameters(), lr=1e-9).step()
    step(inputs, targets)  # and again in fp32
    assert all(torch.equal(p.grad, g) for p, g in zip(step.parameters(), exact, strict=True))


def test_compiled_stages():
    inputs, targets = own.batch(4)
    schedule = with_offloads(build("zb-h1", profile_of(2, 2), 4))
    modules, plain = own.stages_of(2), own.stages_of(2)
    compiled = [torch.compile(m, backend="aot_eager", fullgraph=True) for m in modules]
    step_of(compiled, schedule)(inputs, targets)
    own.unpipelined(plain, inputs, targets)
    expected = own.gradients(plain)
    assert len(expected) > 2
    for name, wanted in expected.items():
        torch.testing.assert_close(own.gradients(modules)[name], wanted, rtol=1e-5, atol=1e-7)


def test_tied_weights_clipping_and_an_optimizer():
    """Three steps of AdamW with clipping are those of the model in one piece."""
    modules, plain = own.stages_of(4), own.stages_of(4)
    plain[3].head.weight = plain[0].embed.weight
    step = step_of(
        modules,
        build("1f1b", profile_of(4, 4), 4),
        tied=[[(0, "embed.weight"), (3, "head.weight")]],
    )
    assert torch.equal(modules[3].head.weight, modules[0].embed.weight)
    every = list({id(p): p for stage in plain for p in stage.parameters()}.values())
    optimizers = [torch.optim.AdamW(ps, lr=1e-2) for ps in (step.parameters(), every)]
    schedulers = [torch.optim.lr_scheduler.LinearLR(o, 0.5, 1.0, 3) for o in optimizers]
    for at in range(3):
        inputs, targets = own.batch(4, at)
        optimizers[1].zero_grad()
        loss = own.unpipelined(plain, inputs, targets)
        assert step(inputs, targets) == pytest.approx(loss, rel=1e-5)
        norm = float(nn.utils.clip_grad_norm_(every, 0.5))
        assert norm > 0.5
        assert step.clip_grad_norm_(0.5) == pytest.approx(norm, rel=1e-4)
        for one in (*optimizers, *schedulers):
            one.step()
    assert torch.equal(modules[3].head.weight, modules[0].embed.weight)


def test_the_norm_is_that_of_the_whole_model_bit_by_bit():
    modules, plain = own.stages_of(4), own.stages_of(4)
    inputs, targets = own.batch(4)
    step = step_of(modules, build("zb-h1", profile_of(4, 4), 4))
    step(inputs, targets)
    own.unpipelined(plain, inputs, targets)
    every = [p for stage in plain for p in stage.parameters()]
    assert step.clip_grad_norm_(0.1) == float(nn.utils.clip_grad_norm_(every, 0.1))
    assert own.differing(modules, plain) == []


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v"])
def test_each_parameter_is_reported_once_when_its_gradient_is_complete(name: str):
    profile = profile_of(2 * chunks_of(name, 2), 2)
    schedule = build(name, profile, 4)
    modules = own.stages_of(schedule.shape.stages)
    complete: dict[int, Tensor] = {}
    ended: list[int] = []

    class Work:
        def __init__(self, parameter: nn.Parameter) -> None:
            assert id(parameter) not in complete
            complete[id(parameter)] = parameter.grad.clone()

        def wait(self) -> None:
            ended.append(1)

    done: list[int] = []
    step = step_of(
        modules,
        schedule,
        ready=lambda p: (done.append(len(ops)), Work(p))[1],
        begun=lambda op: ops.append(op),
    )
    ops: list = []
    step(*own.batch(4))
    assert all(torch.equal(complete[id(p)], p.grad) for p in step.parameters())
    assert len(complete) == len(ended) == len(step.parameters())
    assert min(done) < len(ops) - 1  # while others still run


def cut(stages: int, blocks: int = 4) -> list[nn.Module]:
    """The same layers in so many stages; each knows its name in the whole."""
    torch.manual_seed(0)
    layers = [own.Layer() for _ in range(blocks)]
    each = blocks // stages
    return [
        nn.Sequential(OrderedDict((str(at), layers[at]) for at in range(s * each, (s + 1) * each)))
        for s in range(stages)
    ]


def test_another_number_of_stages_resumes_from_a_checkpoint(tmp_path, monkeypatch):
    """Also from one that GPUs wrote which are not here."""

    def made(stages: int) -> tuple[PipelineStep, torch.optim.Optimizer, object]:
        schedule = build("1f1b", profile_of(stages, stages), 4)
        step = PipelineStep(cut(stages), schedule, lambda y, t: (y - t).square().mean())
        optimizer = torch.optim.AdamW(step.parameters(), lr=0.1)
        return step, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def train(step, optimizer, scheduler, numbers) -> float | None:
        loss = None
        for number in numbers:
            torch.manual_seed(number)
            loss = step(torch.randn(4, 3, own.WIDTH), torch.randn(4, 3, own.WIDTH))
            optimizer.step()
            scheduler.step()
        return loss

    four, two = made(4), made(2)
    train(*four, range(2))
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:3")
        save_pipeline(str(tmp_path), four[0], 2, *four[1:])
    assert load_pipeline(str(tmp_path), two[0], *two[1:]) == 2
    assert train(*four, range(2, 5)) == train(*two, range(2, 5))
    for one, other in zip(four[0].parameters(), two[0].parameters(), strict=True):
        assert torch.equal(one, other)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000002"]
    alike = PipelineStep([nn.Linear(4, 4), nn.Linear(4, 4)], two[0].schedule, own.loss)
    with pytest.raises(OptPipeError, match="names: stages 0 and 1 both have 'weight'"):
        save_pipeline(str(tmp_path), alike, 3)
    with pytest.raises(OptPipeError, match="has no 'weight', which stage 0 has"):
        load_pipeline(str(tmp_path), alike)


# -- what cannot work is refused before the first step -----------------------------------------------


class EditsInput(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.add_(1.0))


class EditsSaved(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(super().forward(x))
        x.mul_(2.0)
        return x


def two(second: nn.Module) -> list[nn.Module]:
    return [nn.Linear(4, 4), second]


def hooked(post: bool) -> nn.Module:
    made = nn.Linear(4, 4)
    if post:
        made.bias.register_post_accumulate_grad_hook(lambda p: None)
    else:
        made.weight.register_hook(lambda g: None)
    return made


def refusal(modules: list[nn.Module], **options) -> str:
    schedule = build("1f1b", profile_of(2, 2), 2)
    mean_square = lambda y, t: (y - t).square().mean()  # noqa: E731
    options.setdefault("loss", mean_square)
    batch = torch.zeros(2, 3, 4)
    with pytest.raises(OptPipeError) as caught:
        PipelineStep(modules, schedule, **options)(batch, batch)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_work_is_refused_in_one_line():
    assert refusal(two(EditsInput(4, 4))).startswith("stage 1: edits its input in place")
    assert refusal(two(EditsSaved(4, 4))) == (
        "stage 1: a tensor that its backward needs is edited in place; edit a copy instead"
    )
    assert "parameter weight has hooks on its gradient" in refusal(two(hooked(False)))
    assert "parameter bias has hooks on its gradient" in refusal(two(hooked(True)))
    assert "loss: has to be one number, got (3, 4)" in refusal(
        two(nn.Linear(4, 4)), loss=lambda y, t: y - t
    )
    assert "stage 1: RuntimeError: mat1 and mat2" in refusal(two(nn.Linear(5, 4)))
    assert "modules: 3 given, the schedule has 2 stages" in refusal([nn.Linear(4, 4)] * 3)
    tied = [[(0, "weight"), (1, "up.weight")]]
    assert "tied: stage 1 has no parameter 'up.weight'" in refusal(two(nn.Linear(4, 4)), tied=tied)


def test_a_later_microbatch_of_another_shape():
    step = step_of(own.stages_of(2), build("1f1b", profile_of(2, 2), 2))
    inputs, targets = own.batch(2)
    inputs[1], targets[1] = inputs[1][:, :-1], targets[1][:, :-1]
    with pytest.raises(RuntimeFault, match=r"F0.1 .* all microbatches have to be alike"):
        step(inputs, targets)
    with pytest.raises(OptPipeError, match="inputs: 3 given, the schedule has 2 microbatches"):
        step(*own.batch(3))


def test_a_loss_keeps_no_more_than_a_number():
    """The result of mse_loss lies in memory for all of its input."""
    modules, batch = [nn.Linear(64, 64) for _ in range(2)], torch.randn(6, 32, 64)
    schedule = build("1f1b", CostProfile("any", 2, (StageCost(9, 9, 9, 1000, 500),) * 2), 6)
    step = PipelineStep(modules, schedule, nn.functional.mse_loss)
    step(batch, batch, measure=True)
    tensor = batch[0].nbytes
    assert 2 * tensor < step.peaks[1] <= 3 * tensor + 6 * 4
