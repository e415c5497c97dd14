"""How much ops are slowed down is measured as it is: on a GPU in virtual time whose factors are known."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from timed_gpu import MS, Streams

from optpipe_sim.runtime.measure import copies, profiler
from optpipe_sim.runtime.measure.copies import (
    DIRECTIONS,
    MODES,
    Copy,
    Lane,
    interference_facts,
    op_factors,
)
from optpipe_sim.runtime.measure.times import Spread

OPS_NS = {"F": 30 * MS, "B": 40 * MS, "W": 9 * MS, "BW": 45 * MS}
BESIDE = {"d2h": 1.25, "h2d": 1.5, "both": 2.0, "message": 1.75}
COPIES = {
    mode: {way: Copy(0.0, 2.0 if mode == "all" else 1.0, {}) for way in DIRECTIONS}
    for mode in MODES
}


class Worker:
    """A stage whose ops take their time on the current stream."""

    def __init__(self, gpu: Streams) -> None:
        self.gpu, self.done = gpu, []

    def message(self, stage: int, gradient: bool = False) -> None: ...

    def start_step(self, *batch: Any) -> None:
        self.done.append("step")

    def forward(self, stage: int, mb: int, x: Any) -> None:
        self._issue("F")

    def backward(self, stage: int, mb: int, dy: Any, *, fused: bool) -> None:
        self._issue("BW" if fused else "B")

    def weight(self, stage: int, mb: int) -> None:
        self._issue("W")

    def finish_step(self) -> None: ...

    def _issue(self, op: str) -> None:
        self.done.append(op)
        self.gpu.issue(op, OPS_NS[op])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()
    made.install(monkeypatch)
    lanes = {
        way: Lane(torch.zeros(8), torch.zeros(8), 30.0 * MS, stream)
        for way, stream in zip((*DIRECTIONS, "message"), ("out", "back", "within"), strict=True)
    }
    monkeypatch.setattr(copies, "_lanes", lambda *_: lanes)

    def sleep(seconds: float) -> None:
        made.host_ns += round(seconds * 1e9)

    monkeypatch.setattr(time, "sleep", sleep)

    def slower(what: str, start: int) -> float:
        if what not in OPS_NS:
            return 1.0
        if made.running("within", start):
            return BESIDE["message"]
        out, back = made.running("out", start), made.running("back", start)
        if out or back:
            return BESIDE["both" if out and back else "d2h" if out else "h2d"]
        last = max([0, *(end for name, *_, end in made.work if name == "own")])
        return 1.1 if start - last > 5 * MS else 1.0

    made.slower = slower
    return made


def factors(gpu: Streams, **copies_of: Any) -> dict[str, dict[str, float]]:
    plan: Any = SimpleNamespace(worker=lambda *_: Worker(gpu), batch=lambda device: ())
    times = {op: Spread(ns, ns, ns) for op, ns in OPS_NS.items()}
    with gpu:
        return op_factors(plan, 0, torch.device("cuda"), times, COPIES, 1000, 3)


def test_factors_are_those_of_the_device(gpu: Streams) -> None:
    found = factors(gpu)
    assert set(found) == set(OPS_NS)
    for op, one in found.items():
        assert one == pytest.approx(BESIDE | {"idle": 1.1}, rel=1e-3), op
    # copies are there before the op starts, and until it has ended
    for (name, what, start, end), ways in itertools.product(gpu.work, ("out", "back", "within")):
        if name == "own" and what in OPS_NS and gpu.running(ways, start):
            assert gpu.running(ways, end - 1)


def test_samples_beside_copies_that_ended_before_are_dropped(
    gpu: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow op: what may be queued does not last as long."""
    monkeypatch.setattr(copies, "MOST_COPIES", 1)
    found = factors(gpu)
    assert set(found["W"]) == {*BESIDE, "idle"}  # 9 ms, beside copies of 30
    assert set(found["BW"]) == {"idle"}


def test_a_profile_has_the_slowdown_of_copies_in_both_directions() -> None:
    facts = interference_facts([{}], COPIES, 1 << 20)["interference"]
    assert facts == {"stages": [{}], "copies": {"d2h": 2.0, "h2d": 2.0}, "idle_ns": 10 * MS}


@pytest.mark.parametrize(("devices", "pairs"), [(1, 0), (2, 2), (3, 4), (8, 4)])
def test_communicators_are_taken_off_the_memory_limit(devices: int, pairs: int) -> None:
    plan: Any = SimpleNamespace(devices=devices)
    meta: dict[str, Any] = {"device": {"usable_bytes": 1000}}
    assert profiler.memory_limit(plan, {"device": {}}) is None
    assert profiler.memory_limit(plan, meta) == (1000,) * devices
    meta["reserved_bytes"] = {"context": 50, "communicator": 7}
    assert profiler.memory_limit(plan, meta) == (1000 - 7 * pairs,) * devices
    meta["reserved_bytes"]["communicator"] = "not measured: no NCCL"
    assert profiler.memory_limit(plan, meta) == (1000,) * devices
