"""A LLaMA of Hugging Face, made from a tiny config and cut into stages: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime_cases import copies_made_up, with_levels, with_offloads

from benchmarks.schedule_models import VOCAB, LlamaStage, llama, loss
from optpipe_sim import build, load_profile
from optpipe_sim.ops import O
from optpipe_sim.runtime import PipelineStep, profile_modules

pytest.importorskip("transformers", reason="transformers is not installed")
LAYERS, SEQ = 4, 8
SLICES = (4, 2, 2)


def cut_and_whole() -> tuple[Any, ...]:
    """Microbatches and their targets; a model with its gradients by plain autograd; the same model, and
    its two stages."""
    inputs, targets = torch.randint(0, VOCAB, (2, 4, 2, SEQ))
    torch.manual_seed(0)
    plain = llama(LAYERS)
    for tokens, wanted in zip(inputs, targets, strict=True):
        (loss(plain(tokens).logits, wanted) / 4).backward()
    torch.manual_seed(0)
    model = llama(LAYERS)
    stages = [LlamaStage(model, at, 2) for at in range(2)]
    return inputs, targets, plain, model, stages


def test_a_llama_of_hugging_face_offloaded_and_recomputed() -> None:
    inputs, targets, plain, model, stages = cut_and_whole()
    with copies_made_up():
        profile = profile_modules(
            stages, loss, inputs[0], targets[0], levels=("full-50%", "full"), samples=1, warmup=1
        )
    base = with_offloads(build("zb-h1", profile, 4))
    assert any(op.kind is O for program in base.programs for op in program)
    for schedule in (base, with_levels(base, ("full-50%", "full"), apart=True)):
        step = PipelineStep(stages, schedule, loss, profile=profile)
        step(inputs, targets, measure=True)
        there = dict(model.named_parameters())
        for name, parameter in plain.named_parameters():
            assert torch.equal(parameter.grad, there[name].grad), name
        trace = step.prepared.lowered.replay()
        for rank, held in step.peaks.items():
            assert held <= trace.peak_bytes[rank] - profile.static_bytes[rank] + 16


def test_a_llama_of_hugging_face_over_slices() -> None:
    """`Earlier` stands in the place of its cache."""
    inputs, targets, plain, model, stages = cut_and_whole()
    unit = {"t_f_ns": 1, "t_b_ns": 1, "t_w_ns": 1, "act_bytes": 1}
    costs = load_profile({"devices": 2, "slices": len(SLICES), "stages": unit})
    PipelineStep(stages, build("seq-zb", costs, 4), loss, slices=SLICES)(inputs, targets)
    there = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(there[name].grad, parameter.grad, rtol=1e-4, atol=1e-6)
