"""Copies are measured while what runs beside them runs: on streams that take time, with a launch queue
that fills."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from optpipe_sim.runtime.measure import copies

MS = 1_000_000
QUEUE = 64  # launches that are under way at once; then the host waits
COPY_NS, PRODUCT_NS = 30 * MS, MS // 4


class Streams(TorchDispatchMode):
    """A GPU in virtual time: streams in order, and a host that waits where too much is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.host_ns = 0
        self.tails: dict[str, int] = {}
        self.current = "own"
        self.work: list[tuple[str, str, int, int]] = []  # stream, what, start, end

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("aten.copy_"):
            self.issue("copy", COPY_NS)
            return args[0]
        if name.startswith("aten.mm"):
            self.issue("product", PRODUCT_NS)
            return kwargs["out"]
        return func(*args, **(kwargs or {}))

    def issue(self, what: str, duration: int) -> None:
        self.host_ns += 5_000
        under_way = sorted(end for *_, end in self.work if end > self.host_ns)
        if len(under_way) >= QUEUE:
            self.host_ns = under_way[len(under_way) - QUEUE]
        start = max(self.host_ns, self.tails.get(self.current, 0))
        self.tails[self.current] = start + duration
        self.work.append((self.current, what, start, start + duration))

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


class Event:
    gpu: Streams

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0

    def record(self) -> None:
        self.at = max(self.gpu.host_ns, self.gpu.tails.get(self.gpu.current, 0))

    def query(self) -> bool:
        self.gpu.host_ns += 20_000
        return self.gpu.host_ns >= self.at

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) / 1e6


@pytest.mark.parametrize("both", [False, True])
def test_what_runs_beside_a_copy_runs_all_the_while(
    both: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Streams()
    monkeypatch.setattr(torch.cuda, "Event", type("Event", (Event,), {"gpu": gpu}))
    monkeypatch.setattr(torch.cuda, "stream", gpu.on)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(copies, "streams", lambda device: ("own", "other", "products"))
    pair = torch.zeros(8), torch.zeros(8)
    with gpu:
        load = torch.zeros(4, 4)
        found = copies._cuda_times(pair, pair if both else None, load, 10)
    assert len(found) == 10
    measured = [(start, end) for stream, _, start, end in gpu.work if stream == "own"]
    for stream in ("other", "products") if both else ("products",):
        there = [(start, end) for name, _, start, end in gpu.work if name == stream]
        for start, end in measured[1:]:
            busy = sum(max(0, min(end, b) - max(start, a)) for a, b in there)
            assert busy > 0.98 * (end - start), (stream, start, end, busy)
    # and the copies that are measured are never held up by a full queue of launches
    gaps = [b[0] - a[1] for a, b in itertools.pairwise(measured)]
    assert max(gaps) < 5 * MS
