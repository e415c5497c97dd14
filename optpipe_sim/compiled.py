"""How functions are compiled, and how code compiled from older sources is removed; and the heap of events
that several compiled loops use."""

from __future__ import annotations

import ast
import hashlib
import json
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

PACKAGE = Path(__file__).parent


def _sources() -> list[Path]:
    """Return the sources that are compiled in."""
    return [
        Path(__file__),
        *(
            path
            for path in sorted(PACKAGE.rglob("*.py"))
            # `codes` and `ops` have constants that are compiled in, `packed` says how fields are read
            if path in (PACKAGE / "codes.py", PACKAGE / "ops.py", PACKAGE / "packed.py")
            or b"compiled import" in path.read_bytes()
        ),
    ]


def _states(sources: list[Path]) -> str:
    """Return a line per source, which changes with it."""
    states = [(path.relative_to(PACKAGE), path.stat()) for path in sources]
    return "".join(f"{path} {state.st_mtime_ns} {state.st_size}\n" for path, state in states)


def _digests(sources: list[Path]) -> dict[str, str]:
    """Return for each source a digest of it and of all that are compiled into it: those that it imports, and
    those that they import."""
    texts = {path: path.read_text() for path in sources}
    imports: dict[Path, set[Path]] = {}

    def reached(path: Path, seen: set[Path]) -> set[Path]:
        if path not in seen:
            seen.add(path)
            if path not in imports:
                imports[path] = _imported(path)
            for other in imports[path]:
                reached(other, seen)
        return seen

    return {
        str(path.relative_to(PACKAGE)): hashlib.sha256(
            "\0".join(texts[one] for one in sorted(reached(path, set())) if one in texts).encode()
        ).hexdigest()
        for path in sources
    }


def _imported(path: Path) -> set[Path]:
    """Return the files of the package that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            room = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for place in (room, *(room / alias.name for alias in node.names)):
                found |= {place.with_suffix(".py"), place / "__init__.py"}
    return {one for one in found if one.exists()}


def _keeps() -> bool:
    """Whether compiled code can be kept for the next process: beside the sources, or else in the user's cache
    folder. Code that was compiled from older sources is removed.

    Numba itself checks the source of each function only, not of the functions inlined into it.
    """
    sources = _sources()
    now = _states(sources)
    kept = PACKAGE / "__pycache__" / "compiled.json"
    if _may_write(kept.parent):
        with suppress(OSError, OptPipeError):  # a full disk
            _remove_older(kept, sources, now)
        return True
    if "NUMBA_CACHE_DIR" in os.environ:
        return True
    folder = user_cache() / "optpipe_sim-compiled"
    own = folder / hashlib.sha256(f"{PACKAGE}\n{now}".encode()).hexdigest()[:16]
    if not _may_write(own):
        return False
    os.environ["NUMBA_CACHE_DIR"] = str(own)
    if "numba" in sys.modules:  # it has read the environment
        vars(import_module("numba.core.config"))["CACHE_DIR"] = str(own)
    return True


def _remove_older(kept: Path, sources: list[Path], now: str) -> None:
    """Remove the compiled code of each source that has changed, or into which one that has changed is compiled.

    Args:
        kept: the file that says which sources the compiled code is of.
        now: the states of the sources.
    """
    try:
        before = json.loads(kept.read_text())
        if before["states"] == now:
            return
        digests = before["digests"]
    except (OSError, ValueError, KeyError, TypeError):
        digests = {}
    current = _digests(sources)
    known = {str(path.relative_to(PACKAGE)) for path in sources}
    for path in PACKAGE.rglob("__pycache__/*.nb[ic]"):
        source = str((path.parents[1] / path.name.partition(".")[0]).relative_to(PACKAGE)) + ".py"
        if source not in known or digests.get(source) != current[source]:
            path.unlink(missing_ok=True)
    write_text(kept, json.dumps({"states": now, "digests": current}, indent=1))


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
    _numba = import_module("numba")
    njit = None if _numba.config.DISABLE_JIT else _numba.njit


def _for_callers() -> Any:
    """Return the pipeline that compiles what only compiled code calls, as far as its callers need it; None without
    numba, or with one that is built otherwise (each function is then compiled by itself as well).

    Numba optimizes each function, translates it to machine code, and does both again in each caller, with all that is
    inlined there. Of functions that are never called by themselves the callers alone are optimized and translated:
    22 s of the CPU for the search, not 35, and code that is as fast.
    """
    try:
        library: Any = import_module("numba.core.codegen").JITCodeLibrary
        compiler: Any = import_module("numba.core.compiler").Compiler
    except (ImportError, AttributeError):
        return None

    class Intermediate(library):  # type: ignore[misc]
        """Code that others link."""

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            self._finalized = True

    class ForCallers(compiler):  # type: ignore[misc]
        def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
            library = library or Intermediate(target.codegen(), "for callers")
            super().__init__(typing, target, library, *rest)
            # Numba knows a function by the built-in one that Python calls: here one of its own, never called.
            self.state.targetctx = self.state.targetctx.subtarget(get_executable=lambda *_: [].copy)

    return ForCallers


_PIPELINE = _for_callers()
_Function = TypeVar("_Function", bound=Callable[..., object])
_Class = TypeVar("_Class", bound=type)


def _compile(function: _Function, **options: Any) -> _Function:
    if njit is None:
        return function
    dispatcher = njit(**options)(function)
    _any_value(dispatcher)
    return dispatcher  # type: ignore[no-any-return]


def _any_value(dispatcher: Any) -> None:
    """Let compiled callers use one version of a function for all values: numba compiles another one for each
    constant that is passed, and for each first value of a variable that is passed."""
    unliteral = import_module("numba").types.unliteral
    of_arguments = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, kws: of_arguments(tuple(map(unliteral, args)), kws)


def on_disk(dispatcher: Any) -> bool:
    """Whether compiled code of a function is kept that numba will read in the place of compiling: of its
    source as it is, by this version of numba, for this CPU. Numba's own index says so; where it cannot
    be asked, as in other versions, nothing is taken to be kept."""
    try:
        known = dispatcher._cache._cache_file._load_index()
        here = dispatcher.targetctx.codegen().magic_tuple()
        return any(cpu == here for _, cpu, _ in known)
    except Exception:
        return False


def compiled(function: Any) -> Any:
    """Compile a function that both Python and compiled code call, and that may allocate."""
    return _compile(function, cache=_cache)


def entry(function: _Function) -> _Function:
    """Compile a function that Python calls."""
    # these loops allocate nothing; without reference counts they run twice as fast
    return _compile(function, cache=_cache, _nrt=False)


def step(function: _Function) -> _Function:
    """Compile a function that only compiled code calls; its arguments may include compiled functions. It is inlined
    into its callers, whose code is cached."""
    # without inlining, a call passes each array of a run
    return part(function, forceinline=True)


def part(function: _Function, **options: bool) -> _Function:
    """Compile a function that only compiled code calls, too long to be copied wherever it is called; the code of its
    callers, with one copy each, is cached."""
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return _compile(function, pipeline_class=_PIPELINE, _nrt=False, **wrappers, **options)


def packed(cls: _Class) -> _Class:
    """Let compiled code take values of a named tuple as one pointer each; it reads their fields, and makes none itself."""
    if njit is not None:
        from .packed import pack

        pack(cls)
    return cls


@step
def copy(into: np.ndarray, values: np.ndarray) -> None:
    """Copy an array into one of the same shape. For `into[:] = values` numba compiles for seconds a message
    about shapes."""
    for at in range(values.size):
        into.flat[at] = values.flat[at]


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
