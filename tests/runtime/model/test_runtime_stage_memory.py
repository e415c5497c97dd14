"""Memory of stages in torch: activations are held and released where the schedule says so."""

from __future__ import annotations

import weakref

import pytest
import torch
from stage_cases import (
    BATCH,
    EXPERTS,
    GPT,
    LLAMA,
    SEQ,
    SIZE,
    WIDTH,
    Twice,
    batch,
    held_bytes,
    middle,
)
from torch import nn

from optpipe_sim.costs import load_model
from optpipe_sim.costs.layer import layer
from optpipe_sim.costs.work import Work
from optpipe_sim.runtime.measure.fake import fake_bytes
from optpipe_sim.runtime.measure.memory import LiveBytes
from optpipe_sim.runtime.model import stash
from optpipe_sim.runtime.model.decoder import build_stage
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.model.stage import StageWorker
from optpipe_sim.runtime.model.stash import HostSlab


def test_memory_falls_at_drop_and_rises_at_reload() -> None:
    worker = middle(nn.Linear(WIDTH, WIDTH))
    x = torch.randn(8, WIDTH)
    alive = weakref.ref(x.untyped_storage())
    y = worker.forward(1, 0, x)
    del x
    assert held_bytes(worker) == SIZE
    assert worker.offload_sizes(1, 0) == [SIZE]  # the input; no parameter
    worker.offload(1, 0)
    assert held_bytes(worker) == SIZE
    assert alive() is not None
    worker.drop(1, 0)
    assert held_bytes(worker) == 0
    assert alive() is None  # nothing else holds it
    worker.allocate(1, 0)
    assert held_bytes(worker) == SIZE
    worker.reload(1, 0)
    worker.backward(1, 0, torch.ones_like(y), fused=False)
    assert held_bytes(worker) == 2 * SIZE  # x and dY until W
    worker.weight(1, 0)
    assert held_bytes(worker) == 0


def test_a_transposed_parameter_is_no_activation() -> None:
    worker = middle(Twice())
    worker.forward(1, 0, torch.randn(8, WIDTH))
    # the input, the two tanh; neither weight
    assert sorted(worker.offload_sizes(1, 0)) == [SIZE] * 3


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_held_bytes_are_the_bytes_of_live_tensors(stage) -> None:
    module = build_stage(EXPERTS, stage, 3, seq=SEQ)
    with LiveBytes() as live:
        boundary = ((BATCH, SEQ, WIDTH), torch.float32)
        worker = StageWorker({stage: module}, 3, boundary)
        worker.allocated = live.add
        for parameter in worker.parameters():
            parameter.grad = torch.zeros_like(parameter)
        worker.start_step(*batch(2))
        before = live.held()

        def held() -> int:
            assert abs(live.held() - before - held_bytes(worker)) <= 8  # the losses
            return held_bytes(worker)

        for j in (0, 1):
            worker.forward(stage, j, torch.zeros(boundary[0]) if stage else None)
        act = held() // 2
        assert act > 2**15
        worker.offload(stage, 1)
        worker.drop(stage, 1)
        assert held() == act
        worker.reload(stage, 1)
        assert held() == 2 * act
        for j, fused in ((0, False), (1, True)):
            dy = None if stage == 2 else torch.ones(boundary[0])
            worker.backward(stage, j, dy, fused=fused)
            del dy
            assert 0 < held() < (2 - j) * act
        worker.weight(stage, 0)
        assert held() == 0


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
def test_a_layer_holds_what_the_costs_say(model) -> None:
    work = Work(BATCH, SEQ, dtype="fp32", sequence_parallel=False)
    module = build_stage(model, 1, 4, seq=SEQ)
    worker = StageWorker({1: module}, 4, ((BATCH, SEQ, WIDTH), torch.float32))
    worker.start_step()
    y = worker.forward(1, 0, torch.zeros(BATCH, SEQ, WIDTH))
    one = layer(model, True, work)
    # no dropout here, so no masks; and small fp32 statistics that the costs leave out
    masks = sum(kept.size for kept in one.kept if "mask" in kept.name)
    assert held_bytes(worker) == pytest.approx(one.kept_bytes() - masks, rel=0.02)
    worker.backward(1, 0, torch.ones_like(y), fused=False)
    assert held_bytes(worker) == pytest.approx(one.held_for_w, rel=0.02)


def test_host_memory_is_reused() -> None:
    slab = HostSlab(pinned=False)
    worker = middle(nn.Linear(WIDTH, WIDTH))
    worker.slab = slab
    for _ in range(3):
        y = worker.forward(1, 0, torch.randn(8, WIDTH))
        worker.offload(1, 0)
        worker.drop(1, 0)
        worker.reload(1, 0)
        worker.backward(1, 0, torch.ones_like(y), fused=True)
    assert slab.reserved == SIZE
    one, two = slab.allocate(100), slab.allocate(100)
    assert one.data_ptr() != two.data_ptr()
    assert one.numel() == 100


def test_pinned_memory_is_little_more_than_what_is_offloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slabs are powers of two, as pinned allocations are; pieces are not."""
    monkeypatch.setattr(
        stash, "_host_memory", lambda size, pinned: torch.empty(size, device="meta")
    )
    monkeypatch.setattr(HostSlab, "release", lambda self, piece, end=None: None)
    plan = Plan(load_model("llama2-7b"), 8, seq=4096, dtype="bf16")
    sizes = fake_bytes(plan, 1).copied
    for count in (1, 3, 8):
        slab = HostSlab(pinned=True)
        slab.reserve(sizes * count)
        assert sum(sizes) * count <= slab.reserved <= 1.1 * sum(sizes) * count + stash.SLAB_BYTES


def test_reserved_host_memory_is_used_before_more_is_allocated() -> None:
    slab = HostSlab(pinned=False)
    slab.reserve((3000, 100, 3000))
    before = slab.reserved
    pieces = [slab.allocate(size) for size in (3000, 3000, 100)]
    assert slab.reserved == before >= 6100
    assert len({piece.data_ptr() for piece in pieces}) == 3
    slab.allocate(100)
    assert slab.reserved > before


@pytest.mark.parametrize("gpu", [True, False])
def test_numbers_in_host_memory_stay_there(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the seeds that a GPU's attention saves: the host would overwrite them while a stream reads."""
    real = stash._host_memory
    monkeypatch.setattr(stash, "_host_memory", lambda size, pinned: real(size, False))
    slot = stash.Slot("0.0", "rank 0", (), HostSlab(pinned=gpu))
    seed, x = torch.tensor(2.5, requires_grad=True), torch.randn(4, requires_grad=True)
    with slot.saving():
        y = (seed * x).sum()
    assert len(list(slot.storages())) == (1 if gpu else 2)
    slot.offload()
    assert len(slot.pieces) == (1 if gpu else 2)
    slot.drop()
    slot.allocate()
    slot.reload()
    y.backward()
    assert seed.grad == x.sum()
    assert torch.equal(x.grad, seed.expand(4))
