"""The first minutes on a GPU, rehearsed on a model of one: probes, profile, replay and loop take the code that they
take there, streams, allocator, cap, report and all."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from caching_allocator import CachingAllocator
from test_runtime_campaign import WORK as SMALL
from virtual_gpu import OnHost, VirtualGpu

from benchmarks.gpu import campaign as campaigns
from benchmarks.gpu import report as campaign_report
from benchmarks.gpu.campaign import Campaign, Runner
from optpipe_sim.errors import OptPipeError
from optpipe_sim.runtime.execute import streams
from optpipe_sim.runtime.measure import copies, machine, profiler
from optpipe_sim.runtime.model.stage import StageWorker

WORK = replace(SMALL, samples=1, loops=("1f1b", "adaoffload"))


class OfHost(torch.Generator):
    """Of random numbers, wherever they are wanted."""

    def __new__(cls, device: object = None) -> torch.Generator:
        return super().__new__(cls)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualGpu]:
    """Streams, events and the allocator of the one GPU of a machine."""
    made, allocator = VirtualGpu(), CachingAllocator()
    made.install(monkeypatch)
    allocator.install(monkeypatch)
    facts = SimpleNamespace(
        total_memory=1 << 40, name="NVIDIA Model", major=9, minor=0, multi_processor_count=132
    )
    for name, stand_in in {
        "get_device_properties": lambda device=None: facts,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "empty_cache": allocator.empty_cache,
        "_sleep": lambda cycles: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in, raising=False)
    monkeypatch.setattr(torch, "Generator", OfHost)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 3))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91_300)
    monkeypatch.setattr(profiler, "communicator_bytes", lambda index: 1 << 28)
    monkeypatch.setattr(copies, "LOAD_WIDTH", {"cuda": 16})
    monkeypatch.setattr(machine, "LOAD_WIDTH", 16)
    monkeypatch.setattr(copies, "LARGEST", 1 << 16)
    monkeypatch.setattr(copies, "IDLE_S", 0.0)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    with OnHost(), allocator, made:
        yield made
    streams.copy_stream.cache_clear()
    copies.streams.cache_clear()


@pytest.fixture
def most_ranks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """After each run, how many ranks had their stages on the device at once, with no garbage collected."""
    real, create, found = campaigns.confirm, StageWorker.__init__, []
    alive: weakref.WeakSet[StageWorker] = weakref.WeakSet()

    def init(self: StageWorker, *arguments: Any, **options: Any) -> None:
        create(self, *arguments, **options)
        alive.add(self)
        found[-1] = max(found[-1], len(alive))

    def confirm(*arguments: Any) -> Any:
        gc.collect()
        gc.disable()
        found.append(0)
        monkeypatch.setattr(StageWorker, "__init__", init)
        try:
            return real(*arguments)
        finally:
            monkeypatch.setattr(StageWorker, "__init__", create)
            gc.enable()

    monkeypatch.setattr(campaigns, "confirm", confirm)
    return found


def test_the_whole_run_on_a_model_of_a_gpu(
    gpu: VirtualGpu, most_ranks: list[int], tmp_path: Path
) -> None:
    campaign = Campaign((WORK,), "cuda", seconds=2000, tests=False, meta={"by": "a test"})
    Runner(campaign, tmp_path).run()
    found = json.loads((tmp_path / "results.json").read_text())
    assert {part["name"]: part["problem"] for part in found["parts"] if part["problem"]} == {}
    assert gpu.faults == []
    # the device holds one rank at a time
    assert most_ranks == [1] * (len(WORK.loops) + len(WORK.replays) + 1)
    failed = {name for name, one in found["probes"].items() if str(one).startswith("failed")}
    assert failed <= {"gate", "nvidia_smi", "attention"}  # the driver's own
    (work,) = found["works"].values()
    for one in work["confirmed"].values():
        assert one["gradients"]["bitwise"] == one["gradients"]["parameters"]
    for peak in work["confirmed"]["loop of adaoffload"]["memory"]:
        assert peak["reserved_bytes"] <= peak["cap_bytes"]
        assert peak["measured_bytes"] <= peak["inside_bytes"] <= peak["allocated_bytes"]
    assert "1f1b_under_the_cap" in work
    text = (tmp_path / "report.md").read_text()
    assert "A GPU's allocator is capped at" in text
    assert "1F1B under the same cap:" in text
    assert "Outside of torch's allocator: the CUDA context 984 MiB, a communicator of NCCL" in text
    assert (tmp_path / "trace-adaoffload.json").is_file()


def test_a_report_that_cannot_be_told_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field that only a GPU has is no reason to measure no more."""

    def report(*_: object) -> str:
        raise TypeError("unsupported format string passed to NoneType.__format__")

    monkeypatch.setattr(campaign_report, "report", report)
    runner = Runner(Campaign((WORK,), "cpu", seconds=900, tests=False), tmp_path)
    assert runner.part("one", 1, lambda: 2) == 2
    assert json.loads((tmp_path / "results.json").read_text())["parts"][0]["problem"] is None
    assert "## report.md\nTraceback" in (tmp_path / "failures.txt").read_text()
    (tmp_path / "results.json").unlink()
    (tmp_path / "results.json").mkdir()
    with pytest.raises((OptPipeError, OSError)):  # a folder that cannot be written to
        runner.part("another", 1, lambda: 2)
