"""What the compiled event loops share: how they are compiled, and a heap of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numba import njit

_Function = TypeVar("_Function", bound=Callable[..., object])


def entry(function: _Function) -> _Function:
    """Compile a function that Python calls."""
    # nothing in these loops allocates: without reference counts it runs twice as fast
    return njit(cache=True, _nrt=False)(function)  # type: ignore[no-any-return]


def step(function: _Function) -> _Function:
    """Compile a function that only compiled code calls."""
    # wrappers for Python would double the time to compile; calls pass whole runs, array by array
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
    return njit(cache=True, _nrt=False, **options)(function)  # type: ignore[no-any-return]


def part(function: _Function) -> _Function:
    """Compile a function that only compiled code calls, too long to be copied into each caller."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(cache=True, _nrt=False, **options)(function)  # type: ignore[no-any-return]


@step
def push(heap: np.ndarray, size: int, time: int, code: int) -> None:
    """Add an event to the heap of `size` rows (time, code)."""
    at = size
    while at > 0:
        up = (at - 1) // 2
        if heap[up, 0] < time or (heap[up, 0] == time and heap[up, 1] <= code):
            break
        heap[at, 0], heap[at, 1] = heap[up, 0], heap[up, 1]
        at = up
    heap[at, 0], heap[at, 1] = time, code


@step
def pop(heap: np.ndarray, size: int) -> int:
    """Take the first event off the heap of `size` rows; returns its code."""
    code = int(heap[0, 1])
    size -= 1
    time, last = heap[size, 0], heap[size, 1]
    at = 0
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and (
            heap[down + 1, 0] < heap[down, 0]
            or (heap[down + 1, 0] == heap[down, 0] and heap[down + 1, 1] < heap[down, 1])
        ):
            down += 1
        if time < heap[down, 0] or (time == heap[down, 0] and last <= heap[down, 1]):
            break
        heap[at, 0], heap[at, 1] = heap[down, 0], heap[down, 1]
        at = down
    heap[at, 0], heap[at, 1] = time, last
    return code
