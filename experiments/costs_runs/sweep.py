"""One layout with microbatches of several sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Sweep(NamedTuple):
    """Seconds of an iteration by size of the microbatch: as published, estimated without what the source states of its
    trainer, and with it."""

    name: str
    source: str
    measured: dict[int, float]
    unstated: dict[int, float]
    stated: dict[int, float]

    def best(self, seconds: Mapping[int, float]) -> int:
        """Return the size with the least of these."""
        return min(seconds, key=lambda size: (seconds[size], size))

    def regret(self, seconds: Mapping[int, float]) -> float:
        """Return how much longer the size with the least of these took than the fastest one, as a share."""
        return self.measured[self.best(seconds)] / min(self.measured.values()) - 1
