"""A GPU in virtual time, for tests of measurements: streams in order, a launch queue that fills, and ops that
take as long as they are said to, longer beside copies and after a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

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
        # how many times as long an op takes that starts at that time
        self.slower: Callable[[str, int], float] = lambda what, start: 1.0

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
        duration = round(duration * self.slower(what, start))
        self.tails[self.current] = start + duration
        self.work.append((self.current, what, start, start + duration))

    def running(self, stream: str, at_ns: int) -> bool:
        """Whether a stream is busy at that time."""
        return any(name == stream and a <= at_ns < b for name, _, a, b in self.work)

    def synchronize(self, device: Any = None) -> None:
        self.host_ns = max([self.host_ns, *self.tails.values()])

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have `torch.cuda` be this."""
        monkeypatch.setattr(torch.cuda, "Event", type("Event", (Event,), {"gpu": self}))
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

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
