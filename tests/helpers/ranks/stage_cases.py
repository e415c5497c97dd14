"""Small models, and workers of their stages."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from optpipe_sim.costs.models import Model
from optpipe_sim.runtime.model.decoder import build_stage
from optpipe_sim.runtime.model.stage import StageWorker
from optpipe_sim.runtime.model.stash import storage_key

SEQ, BATCH, WIDTH = 16, 2, 32
SMALL = {"layers": 4, "hidden": WIDTH, "heads": 4, "vocab": 50}
GPT = Model("gpt", **SMALL, style="gpt", positions=SEQ)
TIED = Model("tied", **SMALL, style="gpt", positions=SEQ, tied=True)
LLAMA = Model("llama", **SMALL, kv_heads=2, ffn=48)
EXPERTS = Model(
    "experts",
    **SMALL,
    kv_heads=2,
    ffn=48,
    experts=4,
    experts_per_token=2,
    expert_ffn=24,
    shared_ffn=16,
    dense_layers=1,
    qk_norm=True,
    qkv_bias=True,
)
MODELS = (GPT, TIED, LLAMA, EXPERTS)


def held_bytes(worker: StageWorker) -> int:
    """The activation bytes on the device now: each storage of a saved tensor or a queued weight gradient, once."""
    found: dict[int, int] = {}
    for flight in list(worker._flights.values()):
        found.update(flight.slot.storages())
        for pending in flight.queue.pending:
            for tensor in (pending.x, pending.dy):
                if storage_key(tensor) not in worker._left_out:
                    found[storage_key(tensor)] = tensor.untyped_storage().nbytes()
    return sum(found.values())


def batch(microbatches: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (2, microbatches, BATCH, SEQ)
    tokens, targets = torch.randint(0, SMALL["vocab"], shape, generator=generator)
    return tokens, targets


def worker_of(model: Model, stages: int, dtype: str = "fp32") -> StageWorker:
    made = [build_stage(model, s, stages, seq=SEQ, dtype=dtype) for s in range(stages)]
    kind = next(made[0].parameters()).dtype
    return StageWorker(made, stages, ((BATCH, SEQ, WIDTH), kind))


class Twice(nn.Module):
    """A linear that is used twice, and a weight that autograd saves transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.plain = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(torch.tanh(self.linear(x)))) @ self.plain.t()


def middle(module: nn.Module, allocated=None) -> StageWorker:
    """The middle one of three stages, its step begun."""
    worker = StageWorker({1: module}, 3, ((8, WIDTH), torch.float32), rank=1)
    worker.allocated = allocated
    worker.start_step()
    return worker


SIZE = 8 * WIDTH * 4  # of a message
