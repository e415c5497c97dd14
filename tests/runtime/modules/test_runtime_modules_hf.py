"""A LLaMA of Hugging Face, made from a tiny config and cut into stages: nothing is downloaded."""

from __future__ import annotations

import pytest
import torch
from runtime_cases import with_levels, with_offloads
from torch import Tensor, nn
from torch.nn import functional

from optpipe_sim import build
from optpipe_sim.ops import O
from optpipe_sim.runtime import PipelineStep, mark_layers, profile_modules
from optpipe_sim.runtime.measure import profiler
from optpipe_sim.runtime.measure.copies import DIRECTIONS, MODES, Copy

llama = pytest.importorskip(
    "transformers.models.llama.modeling_llama", reason="transformers is not installed"
)
VOCAB, SEQ = 32, 8


def whole_model() -> nn.Module:
    torch.manual_seed(0)
    config = llama.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=SEQ,
        attn_implementation="sdpa",
        use_cache=False,
    )
    return llama.LlamaForCausalLM(config)


class LlamaStage(nn.Module):
    """Some layers; the embedding before the first, norm and head after the last."""

    def __init__(self, model: nn.Module, stage: int, stages: int) -> None:
        super().__init__()
        inside, each = model.model, len(model.model.layers) // stages
        self.embed = inside.embed_tokens if stage == 0 else None
        self.rotary = inside.rotary_emb
        self.layers = inside.layers[stage * each : (stage + 1) * each]
        self.norm, self.head = (inside.norm, model.lm_head) if stage == stages - 1 else (None, None)
        mark_layers(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.embed is None else self.embed(x)
        at = torch.arange(x.shape[1])[None]
        turns = self.rotary(x, at)
        for layer in self.layers:
            x = layer(x, attention_mask=None, position_ids=at, position_embeddings=turns)
        return x if self.head is None else self.head(self.norm(x))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_a_llama_of_hugging_face_offloaded_and_recomputed(monkeypatch: pytest.MonkeyPatch):
    copies = dict.fromkeys(MODES, dict.fromkeys(DIRECTIONS, Copy(1e4, 0.1, {})))
    monkeypatch.setattr(profiler, "measure_copies", lambda *_: copies)
    inputs, targets = torch.randint(0, VOCAB, (2, 4, 2, SEQ))
    plain = whole_model()
    for tokens, wanted in zip(inputs, targets, strict=True):
        (loss(plain(tokens).logits, wanted) / 4).backward()
    model = whole_model()
    stages = [LlamaStage(model, at, 2) for at in range(2)]
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
