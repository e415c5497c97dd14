"""How functions are compiled, and how code compiled from older sources is removed; and the heap of events
that several compiled loops use."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .errors import OptPipeError
from .files import user_cache, write_text


def _sources() -> str:
    """Return a line per source that is compiled in, which changes with it."""
    package = Path(__file__).parent
    found = [
        path
        for path in sorted(package.rglob("*.py"))
        # `codes` has constants that are compiled in
        if path.name == "codes.py" or b"compiled import" in path.read_bytes()
    ]
    states = [(path.relative_to(package), path.stat()) for path in [Path(__file__), *found]]
    return "".join(f"{path} {state.st_mtime_ns} {state.st_size}\n" for path, state in states)


def _keeps() -> bool:
    """Whether compiled code can be kept for the next process: beside the sources, or else in the user's cache
    folder. Code that was compiled from older sources is removed.

    Numba itself checks the source of each function only, not of the functions inlined into it.
    """
    package, now = Path(__file__).parent, _sources()
    kept = package / "__pycache__" / "compiled.txt"
    if _may_write(kept.parent):
        if not kept.exists() or kept.read_text() != now:
            with suppress(OSError, OptPipeError):  # a full disk
                for path in package.rglob("__pycache__/*.nb[ic]"):
                    path.unlink(missing_ok=True)
                write_text(kept, now)
        return True
    if "NUMBA_CACHE_DIR" in os.environ:
        return True
    folder = user_cache() / "optpipe_sim-compiled"
    own = folder / hashlib.sha256(f"{package}\n{now}".encode()).hexdigest()[:16]
    if not _may_write(own):
        return False
    os.environ["NUMBA_CACHE_DIR"] = str(own)
    if "numba" in sys.modules:  # it has read the environment
        vars(import_module("numba.core.config"))["CACHE_DIR"] = str(own)
    return True


def _may_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


_cache = _keeps()
njit: Any = None  # without numba, or with one that refuses this numpy: the same loops, much slower
with suppress(ImportError):
    njit = import_module("numba").njit

_Function = TypeVar("_Function", bound=Callable[..., object])


def _compile(function: _Function, **options: bool) -> _Function:
    return function if njit is None else njit(**options)(function)


def compiled(function: Any) -> Any:
    """Compile a function that both Python and compiled code call, and that may allocate."""
    return _compile(function, cache=_cache)


def entry(function: _Function) -> _Function:
    """Compile a function that Python calls."""
    # these loops allocate nothing; without reference counts they run twice as fast
    return _compile(function, cache=_cache, _nrt=False)


def step(function: _Function) -> _Function:
    """Compile a function that only compiled code calls."""
    # wrappers for Python would double the compile time; without inlining, a call passes each array of a run
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
    return _compile(function, cache=_cache, _nrt=False, **options)


def part(function: _Function) -> _Function:
    """Compile a function that only compiled code calls, too long to be copied into each caller."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return _compile(function, cache=_cache, _nrt=False, **options)


def loop(function: _Function) -> _Function:
    """Compile a loop whose arguments include compiled functions; it is inlined into its callers, whose code is
    cached."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
    return _compile(function, _nrt=False, **options)


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
    """Remove the first event from the heap of `size` rows; returns its code."""
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
