"""A user's own modules over slices of the sequence: gradients of whole sequences, memory as predicted."""

from __future__ import annotations

import re
from functools import cache

import own_slices as own
import pytest
import torch
from own_job import OwnJob
from own_slices import SLICES
from runtime_cases import copies_made_up, with_levels, with_offloads
from torch import Tensor, nn

from optpipe_sim import build, load_profile
from optpipe_sim.errors import OptPipeError
from optpipe_sim.ops import C, O
from optpipe_sim.profile import CostProfile
from optpipe_sim.runtime import PipelineStep, profile_modules
from optpipe_sim.runtime.confirm.verdict import compare_gradients
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.schedule import Schedule

M = 4
LEVELS = ("full", "stage")


@cache
def profile_of(stages: int = 2, slices: tuple[int, ...] = SLICES) -> CostProfile:
    inputs, targets = own.batch(1)
    with copies_made_up():
        return profile_modules(
            own.stages_of(stages),
            own.loss,
            inputs[0],
            targets[0],
            devices=2,
            levels=LEVELS,
            slices=slices,
            samples=1,
            warmup=0,
        )


def schedules() -> dict[str, Schedule]:
    one, two = profile_of(), profile_of(4)
    zb = build("seq-zb", one, M)
    return {
        "seq1f1b": build("seq1f1b", one, M),
        "interleaved": build("seq1f1b-i:chunks=2", two, M),
        "offloaded": with_offloads(zb),
        "inside": with_levels(with_offloads(zb), LEVELS, apart=False),
        "apart": with_levels(with_offloads(zb), LEVELS, apart=True),
    }


@pytest.mark.parametrize("which", ["seq1f1b", "interleaved", "offloaded", "inside", "apart"])
def test_gradients_of_whole_sequences_and_the_peaks_predicted(which: str) -> None:
    """As near to fp64 as those of plain autograd; a loss of 4 bytes per unit is in no profile."""
    schedule = schedules()[which]
    stages = schedule.shape.stages
    modules = own.stages_of(stages)
    step = PipelineStep(modules, schedule, own.loss, profile=profile_of(stages))
    loss = step(*own.batch(M), measure=True)
    expected, wanted = own.whole(stages, M)
    _, exact = own.whole(stages, M, exact=True)
    verdict = compare_gradients(own.gradients(modules), loss, wanted, expected, exact)
    assert verdict.bitwise + (verdict.rounded or 0) == verdict.parameters, verdict
    assert verdict.problems(1e-6) == []
    trace = step.prepared.lowered.replay()
    kinds = {op.kind for program in step.schedule.programs for op in program}
    assert (O in kinds, C in kinds) == (which in ("offloaded", "inside", "apart"), which == "apart")
    for rank, held in step.peaks.items():
        said = trace.peak_bytes[rank] - trace.profile.static_bytes[rank]
        least = 0 if O in kinds else 9 * said // 10
        assert least <= held <= said + 4 * schedule.shape.units, (rank, held, said)


def test_keys_and_values_of_the_profile() -> None:
    """2 layers, keys and values of 2 sequences, 16 wide, 4 bytes each; none of the last slice. Each later slice
    keeps a copy of those of all tokens so far."""
    for cost in profile_of().stages:
        assert [part.kv_bytes for part in cost.slices] == [
            2 * 2 * 2 * tokens * 16 * 4 for tokens in (*SLICES[:-1], 0)
        ]
        for part in cost.slices:
            assert part.offload_bytes is not None
            assert 0 <= part.act_bytes - part.kv_bytes - part.offload_bytes <= 4
    facts = profile_of().meta["stages"][0]["static_bytes"]
    assert facts["kv_gradients"] == sum(part.kv_bytes for part in profile_of().stages[0].slices)


@pytest.mark.slow  # torch.compile
def test_compiled_stages_run_slices() -> None:
    """Graphs end at the keys and values of earlier slices: what a slice reads is never baked in."""
    unit = {"t_f_ns": 1, "t_b_ns": 1, "t_w_ns": 1, "act_bytes": 1}
    schedule = build("seq1f1b", load_profile({"devices": 2, "slices": 2, "stages": unit}), 2)
    modules = own.stages_of(2)
    compiled = [torch.compile(modules[0], backend="aot_eager"), modules[1]]
    loss = PipelineStep(compiled, schedule, own.loss, slices=(own.SEQ // 2,) * 2)(*own.batch(2))
    expected, wanted = own.whole(2, 2)
    assert abs(loss - expected) < 1e-5
    found = own.gradients(modules)
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-6)


def test_ranks_run_slices_of_own_modules(two: Ranks) -> None:
    schedule = with_offloads(build("seq-zb", profile_of(), M))
    results = two.run(OwnJob(schedule, profile_of(), models="own_slices"))
    modules = own.stages_of(2)
    step = PipelineStep(modules, schedule, own.loss, slices=SLICES)
    loss = step(*own.batch(M))
    assert [result["loss"] for result in results] == [None, loss]
    found = {name: one for result in results for name, one in result["gradients"].items()}
    wanted = own.gradients(modules)
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


# -- what is refused before the first step ---------------------------------------------------------


def refused(modules: list[nn.Module], loss=own.loss, slices=SLICES, inputs=None) -> str:
    schedule = build("seq1f1b", profile_of(), M)
    step = PipelineStep(modules, schedule, loss, slices=slices)
    batch, targets = own.batch(M)
    with pytest.raises(OptPipeError) as caught:
        step(batch if inputs is None else inputs, targets)
    assert all(p.grad is None for p in step.parameters())
    return str(caught.value)


def test_stages_that_do_not_know_of_slices() -> None:
    alone = own.stages_of(2, earlier=lambda part, *tensors: tensors)
    assert re.match(
        r"stage 0: two slices of 32 tokens give other results than the whole \(off by .* of .*\):"
        r" attention takes the keys and values of earlier slices by with_earlier, and positions",
        refused(alone),
    )
    assert "stage 0: two slices" in refused(own.stages_of(2, start=lambda: 0))
    assert "F1 on stage 1: Attention gave keys and values twice; each time" in refused(
        [own.stages_of(2)[0], Shared()]
    )


class Shared(own.Stage):
    """Its only layer is used twice."""

    def __init__(self) -> None:
        super().__init__(False, True)
        self.layers = nn.ModuleList([self.layers[0]] * 2)


def test_losses_and_tensors_that_cannot_be_cut() -> None:
    modules = own.stages_of(2)
    shifted = lambda logits, targets: own.loss(logits[:, :-1], targets[:, 1:])  # noqa: E731
    assert re.match(
        r"loss: two slices of 32 tokens .*: it has to be a mean over all tokens of the targets",
        refused(modules, shifted),
    )
    assert refused(modules, slices=(8, 8, 8, 4)) == (
        "inputs: slices=[8, 8, 8, 4]: a tensor of shape (2, 32); where sequences are cut into slices,"
        " every tensor is (sequences, tokens, ...), here with 28 tokens"
    )

    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return modules[0](x).sum(1)

    assert refused([Sum(), modules[1]]).startswith("stage 0 hands on: a tensor of shape (2, 16);")


def test_slices_and_schedules_have_to_agree() -> None:
    schedule, modules = build("seq1f1b", profile_of(), M), own.stages_of(2)
    with pytest.raises(
        OptPipeError, match="cuts sequences into 4, tokens are given of 0; expected"
    ):
        PipelineStep(modules, schedule, own.loss)
    with pytest.raises(OptPipeError, match="slices: 4 given, the schedule has whole sequences"):
        PipelineStep(modules, build("1f1b", profile_of(), M), own.loss, slices=SLICES)
    with pytest.raises(OptPipeError, match=r"slices: expected tokens of each, got \[32, 0\]"):
        profile_of(2, (32, 0))


def test_random_numbers_are_not_compared() -> None:
    """A stage with dropout is taken at its word."""
    schedule = build("seq1f1b", profile_of(), M)
    step = PipelineStep(own.stages_of(2, dropout=0.5), schedule, own.loss, slices=SLICES)
    assert step(*own.batch(M)) > 0
