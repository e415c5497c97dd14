"""The runtime on a real GPU: gradients, memory, order of streams, gates, caps. With
TORCH_CUDA_SANITIZER=1 torch reports races between streams as errors."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from optpipe_sim import build, simulate
from optpipe_sim.costs.models import Model
from optpipe_sim.errors import OutOfMemory
from optpipe_sim.ops import F, O, Op, R
from optpipe_sim.runtime.confirm.case import Case
from optpipe_sim.runtime.confirm.confirm import confirm
from optpipe_sim.runtime.execute.transport import GatedLoopback
from optpipe_sim.runtime.execute.unpipelined import make_contents, reference
from optpipe_sim.runtime.measure.copies import measure_copies
from optpipe_sim.runtime.measure.footprint import stage_bytes
from optpipe_sim.runtime.measure.memory import CudaBytes
from optpipe_sim.runtime.measure.profiler import measure
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.model.stash import HostSlab

MODEL = Model("small", 8, 512, 8, 1000, kv_heads=4, ffn=1024)
PLAN = Plan(MODEL, 2, seq=512, microbatch=2, dtype="bf16")
MIB = 2**20
M = 6
LEVELS = ("norms+mlp", "full", "stage")
RECOMPUTING = (
    "1f1b:recompute=full",
    "zb-h1:recompute=norms+mlp",
    "zb-h1:recompute=stage,apart=yes",
)


@pytest.fixture(scope="module")
def profile():
    """Of the small model, on this GPU."""
    return replace(measure(PLAN, "cuda", samples=5, warmup=2, levels=LEVELS), memory_limit=None)


def tight(profile, share=0.6):
    """What is static and a share of 1F1B's activations."""
    peaks = simulate(build("1f1b", profile, M), profile).peak_bytes
    static = profile.static_bytes
    limits = [s + int(share * (p - s)) for s, p in zip(static, peaks, strict=True)]
    return tuple(map(max, limits, profile.least_limits))


def test_two_microbatches_weigh_the_same_after_a_chain() -> None:
    found = stage_bytes(PLAN, 1, "cuda")
    assert found.held[0] > MIB
    assert found.taken["requested"] <= found.taken["allocated"] <= found.taken["reserved"]


def test_the_cap_holds() -> None:
    with CudaBytes("cuda", 64 * MIB) as counter:
        kept = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        del kept
    assert 40 * MIB <= counter.most["requested"] <= counter.most["reserved"] <= 64 * MIB
    with CudaBytes("cuda") as free:
        torch.empty(80 * MIB, dtype=torch.uint8, device="cuda")
    assert free.peak() >= 80 * MIB


def test_a_gate_holds_the_stream_until_its_time() -> None:
    op = Op(F, 0, 0)
    gated = GatedLoopback({op: torch.ones(4, device="cuda")}, {op: 50_000_000})
    gated.start()
    start = time.monotonic()
    came = gated.recv(op, 1)
    mark = torch.cuda.Event()
    mark.record()
    assert not mark.query()
    mark.synchronize()
    assert time.monotonic() - start >= 0.045
    gated.finish()
    assert came.sum() == 4


def test_pinned_pieces_are_pinned() -> None:
    slab = HostSlab(pinned=True)
    slab.reserve((3 * MIB, 5 * MIB))
    piece = slab.allocate(3 * MIB)
    assert piece.is_pinned()
    assert slab.reserved >= 8 * MIB


def test_contents_are_those_of_the_whole_model() -> None:
    schedule = build("1f1b", measure_free_profile(), M)
    found = make_contents(PLAN, schedule, 0, "cuda")
    loss, wanted = reference(PLAN, M, 0, "cuda")
    assert found.loss == pytest.approx(loss, rel=1e-3)
    assert all(tensor.is_pinned() for tensor in found.messages.values())
    for name, gradient in wanted.items():
        torch.testing.assert_close(found.gradients[name], gradient.cpu(), rtol=0.02, atol=1e-4)


def measure_free_profile():
    """Any costs: only the shape matters."""
    from optpipe_sim.runtime.measure.fake import fake_profile

    return fake_profile(PLAN, "h100-sxm")


def test_copies_are_measured_in_every_mode() -> None:
    found = measure_copies(torch.device("cuda"), (MIB, 16 * MIB), 5)
    for mode in found.values():
        assert all(1 < copy.gb_per_s < 1000 for copy in mode.values())


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "adaoffload", *RECOMPUTING])
@pytest.mark.parametrize("mode", ["replay", "loop"])
def test_gradients_and_memory(profile, name: str, mode: str) -> None:
    limits = tight(profile) if name == "adaoffload" else None
    schedule = build(name, replace(profile, memory_limit=limits), M)
    if limits:
        assert any(op.kind in (O, R) for program in schedule.programs for op in program)
    case = Case(schedule, profile, limits, PLAN, device="cuda", iterations=2, sweeps=2)
    found = confirm(case, mode)
    assert [text for text in found.problems if "gradient" in text or "rank" in text] == []
    for peak in found.peaks:
        assert peak.measured_bytes <= 1.02 * peak.predicted_bytes + MIB // 2


def test_a_tight_schedule_runs_under_the_cap_and_1f1b_does_not(profile) -> None:
    limits = tight(profile)
    schedule = build("adaoffload", replace(profile, memory_limit=limits), M)
    roomy = tuple(limit + 24 * MIB for limit in limits)  # segments of a small model
    case = Case(
        schedule, profile, limits, PLAN, "cuda", sweeps=1, cap_memory=True, cap_limits=roomy
    )
    assert confirm(case, "loop").peaks
    whole = build("1f1b", profile, 4 * M)
    held = Case(whole, profile, None, PLAN, "cuda", sweeps=1, cap_memory=True, cap_limits=limits)
    with pytest.raises(OutOfMemory):
        confirm(held, "loop")
