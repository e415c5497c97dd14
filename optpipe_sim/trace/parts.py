"""Parts of a trace: spans of ops, messages between devices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ops import Op


class Span(NamedTuple):
    """One op on one device, in ns; `grant_ns` is when its memory was granted, None for an op that
    allocates none."""

    op: Op
    device: int
    start_ns: int
    end_ns: int
    grant_ns: int | None


class Messages(NamedTuple):
    """Messages between devices: rows of producer and consumer, departure and
    arrival in ns (arrays of equal length)."""

    producer: np.ndarray
    consumer: np.ndarray
    depart_ns: np.ndarray
    arrive_ns: np.ndarray
