"""What a GPU's allocator does to the figures: a workspace that stays, blocks and segments, a cap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from caching_allocator import MIB, WORKSPACE, CachingAllocator

from optpipe_sim.costs.models import Model
from optpipe_sim.runtime.measure import footprint
from optpipe_sim.runtime.measure.footprint import byte_facts, stage_bytes
from optpipe_sim.runtime.measure.memory import CudaBytes, indexed
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.model.stage import StageWorker

MODEL = Model("tiny", 4, 64, 4, 96, kv_heads=2, ffn=96)
PLAN = Plan(MODEL, 2, seq=64, microbatch=2)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[CachingAllocator]:
    made = CachingAllocator()
    made.install(monkeypatch)
    with made:
        yield made


def test_the_first_gemms_workspace_is_no_activation(
    allocator: CachingAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two microbatches weigh the same, and as much as without a workspace."""
    plain = stage_bytes(PLAN, 1, "cpu")
    assert allocator.kept  # LiveBytes does not see it
    allocator.kept.clear()
    monkeypatch.setattr(footprint, "meter", lambda device: CudaBytes("cuda"))
    found = stage_bytes(PLAN, 1, "cpu")
    assert len(allocator.kept) == 1
    assert found.held == plain.held
    assert found.copied == plain.copied
    assert 0 < found.inside["F"] < WORKSPACE
    taken = byte_facts(found, {})["allocator_bytes"]
    assert 2 * found.held[0] <= taken["requested"] <= taken["allocated"] <= taken["reserved"]


def test_without_a_chain_before_it_would_count(
    allocator: CachingAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "meter", lambda device: CudaBytes("cuda"))
    monkeypatch.setattr(StageWorker, "run_chain", lambda *_, **__: None)
    with pytest.raises(footprint.OptPipeError, match="two microbatches hold"):
        stage_bytes(PLAN, 1, "cpu")


def test_what_was_there_does_not_count(allocator: CachingAllocator) -> None:
    before = torch.zeros(1000)
    with CudaBytes("cuda") as counter:
        kept = torch.zeros(300, dtype=torch.uint8)
        assert counter.held() == 300
        assert counter.taken() == {"requested": 300, "allocated": 512, "reserved": 0}
        large = torch.zeros(30 * MIB + 1, dtype=torch.uint8)
        assert counter.taken()["reserved"] == 32 * MIB
        del large
        assert counter.held() == 300
        assert counter.peak() == 300 + 30 * MIB + 1
        counter.reset_peak()
        assert counter.peak() == 300
    assert len(before) + len(kept) == 1300


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_the_cap_is_on_what_is_reserved(allocator: CachingAllocator, device: object) -> None:
    weights = torch.zeros(3 * MIB + 7, dtype=torch.uint8)
    with CudaBytes(device, 40 * MIB) as counter:
        start = allocator.current["reserved"]
        assert start == 20 * MIB > weights.numel()
        assert counter.cap_bytes == start + 40 * MIB
        assert allocator.allowed == pytest.approx(counter.cap_bytes, abs=2)
        one = torch.zeros(38 * MIB, dtype=torch.uint8)
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(30 * MIB, dtype=torch.uint8)
        del one
        two = torch.zeros(30 * MIB, dtype=torch.uint8)
    assert allocator.allowed == allocator.total
    assert counter.most["requested"] == 38 * MIB
    assert counter.most["reserved"] == 38 * MIB
    assert two.numel() == 30 * MIB


def test_a_device_has_its_index(allocator: CachingAllocator) -> None:
    assert indexed("cuda") == torch.device("cuda", 0)
    assert indexed("cuda:1").index == 1
    assert indexed("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="specified index"):  # which is why
        torch.cuda.set_per_process_memory_fraction(0.5, torch.device("cuda"))
