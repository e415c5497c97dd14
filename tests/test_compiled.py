from __future__ import annotations

import contextlib
import gc
import io
import multiprocessing
import os
import shutil
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import optpipe_sim
from optpipe_sim import compiled

FORKED = multiprocessing.get_context("fork")
SOURCES = {
    "codes.py": "STEP = 1\n",
    "inner.py": "from .codes import STEP\nfrom .compiled import part\n\n@part\ndef inner(x):\n    return x + STEP\n",
    "outer.py": (
        "from .compiled import compiled\nfrom .inner import inner\n\n"
        "@compiled\ndef outer(x):\n    return inner(x)\n"
    ),
}


def make_package(folder: Path) -> Path:
    """A small package that compiles as the real one does."""
    package = folder / "small"
    package.mkdir()
    for name in ("compiled.py", "files.py", "errors.py", "units.py", "yaml_text.py"):
        shutil.copy(Path(optpipe_sim.__file__).with_name(name), package)
    for name, text in {"__init__.py": "", **SOURCES}.items():
        (package / name).write_text(text)
    return package


OUTER = "from small.outer import outer; print(outer(1), sum(outer.stats.cache_hits.values()))"


def run_in(folder: Path, code: str = OUTER, **environment: str) -> str:
    """What the package gives in a process of its own, and how much compiled code that found. It is forked: numba takes
    a second to begin in a fresh one."""
    ours, theirs = FORKED.Pipe(duplex=False)
    process = FORKED.Process(target=_run, args=(folder, code, environment, theirs))
    process.start()
    theirs.close()
    said = ours.recv()
    process.join()
    return said


def _run(folder: Path, code: str, environment: dict[str, str], pipe: Connection) -> None:
    os.environ.update(environment)
    sys.dont_write_bytecode = True  # the folders for it are not to be written
    sys.path.insert(0, str(folder))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {})
    pipe.send(said.getvalue().strip())


def test_where_the_package_is_read_only_the_user_s_folder_keeps_compiled_code(
    tmp_path: Path,
) -> None:
    package, cache = make_package(tmp_path), tmp_path / "cache"
    (package / "__pycache__").write_text("")  # read-only even for root
    assert [run_in(tmp_path, XDG_CACHE_HOME=str(cache)) for _ in range(2)] == ["2 0", "2 1"]
    (package / "inner.py").write_text(SOURCES["inner.py"].replace("x + STEP", "x + 10 * STEP"))
    assert run_in(tmp_path, XDG_CACHE_HOME=str(cache)) == "11 0"
    # with nowhere to keep it, it is compiled in each process
    assert [run_in(tmp_path, XDG_CACHE_HOME=os.devnull) for _ in range(2)] == ["11 0", "11 0"]


def test_nothing_runs_that_was_compiled_from_older_sources(tmp_path: Path) -> None:
    """Numba would go on with the old `inner` in `outer`, whose own source is the same."""
    package = make_package(tmp_path)

    def run() -> str:
        return run_in(tmp_path)

    assert [run(), run()] == ["2 0", "2 1"]
    (package / "inner.py").write_text(SOURCES["inner.py"].replace("x + STEP", "x + 10 * STEP"))
    assert [run(), run()] == ["11 0", "11 1"]
    (package / "codes.py").write_text("STEP = 20\n")  # constants are compiled in
    assert [run(), run()] == ["201 0", "201 1"]


def test_only_what_a_change_is_compiled_into_is_compiled_again(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    (package / "other.py").write_text(
        "from .compiled import compiled\n\n@compiled\ndef other(x):\n    return x\n"
    )

    def run() -> str:
        code = (
            "from small.outer import outer; from small.other import other; print(outer(1), other(1),"
            "*(sum(one.stats.cache_hits.values()) for one in (outer, other)))"
        )
        return run_in(tmp_path, code)

    assert [run(), run()] == ["2 1 0 0", "2 1 1 1"]
    (package / "inner.py").write_text(SOURCES["inner.py"].replace("x + STEP", "x + 10 * STEP"))
    assert [run(), run()] == ["11 1 0 1", "11 1 1 1"]
    (package / "__pycache__" / "compiled.json").write_text("{")  # damaged: nothing is known
    assert run() == "11 1 0 0"


def test_constants_are_no_reason_to_compile_a_function_again() -> None:
    def add(x, more):
        return x + 1 if more else x

    inner = compiled._compile(add)

    def call(x):
        return inner(1, True) + inner(2, False) + inner(x, x > 3)

    outer = compiled._compile(call)
    assert outer(5) == 2 + 2 + 6
    assert len(inner.overloads) == 1


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 1, 3)])
def test_an_array_is_copied_whole(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape)).reshape(shape)
    into = np.zeros_like(values)
    compiled.copy.py_func(into, values)
    np.testing.assert_array_equal(into, values)


KEPT = "from small import compiled; from small.outer import outer; print(compiled.on_disk(outer))"


@pytest.mark.parametrize("seconds", [-1000, 1000])
def test_numba_s_index_says_whether_code_is_kept(tmp_path: Path, seconds: int) -> None:
    """Not the times of files, to which a checkout or a copy gives any order."""
    package = make_package(tmp_path)
    assert run_in(tmp_path, KEPT) == "False"
    assert run_in(tmp_path) == "2 0"
    assert run_in(tmp_path, KEPT) == "True"
    source = package / "outer.py"
    written = source.stat().st_mtime + seconds
    os.utime(source, (written, written))
    said, hits = run_in(tmp_path, KEPT), run_in(tmp_path).split()[1]
    assert said == str(hits == "1")  # older versions of numba go by times
    # another text is not what was compiled, whatever its time
    source.write_text(SOURCES["outer.py"].replace("inner(x)", "inner(x) + 1"))
    os.utime(source, (written, written))
    assert run_in(tmp_path, KEPT) == "False"
    assert run_in(tmp_path) == "3 0"
    for index in package.rglob("*.nbi"):
        index.write_bytes(b"")
    assert run_in(tmp_path, KEPT) == "False"


def test_another_cpu_s_code_is_not_kept(tmp_path: Path) -> None:
    make_package(tmp_path)
    assert run_in(tmp_path) == "2 0"
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}  # read as numba begins
    said = subprocess.check_output(
        [sys.executable, "-c", KEPT], env={**os.environ, "PYTHONPATH": str(tmp_path), **other}
    )
    assert said == b"False\n"


@compiled.packed
class Several(NamedTuple):
    numbers: np.ndarray
    table: np.ndarray
    factor: int
    adds: bool
    share: float
    missing: None


@compiled.step
def _weighted(several, at):
    return several.numbers[at] * several.factor


@compiled.entry
def _total(several):
    total = several.share
    for at in range(len(several.numbers)):
        total += _weighted(several, at)
    if several.adds and several.missing is None:
        total += several.table[1, 2]
    several.numbers[0] += 1
    return total


@compiled.compiled
def _twice(several):
    copy = several.numbers.copy()
    return _total(several) + _total(several) + copy[0]


def test_compiled_code_reads_the_fields_of_a_packed_tuple_and_keeps_none_of_them() -> None:
    numbers, table = np.arange(5), np.arange(12).reshape(3, 4)
    several = Several(numbers, table, 3, True, 0.5, None)
    assert _total(several) == 0.5 + 3 * 10 + 6
    assert _twice(several) == 2 * (0.5 + 3 * 11 + 6) + 3 + 1
    assert numbers[0] == 3
    assert _total(several._replace(numbers=numbers[::2])) == 0.5 + 3 * (3 + 2 + 4) + 6
    before = sys.getrefcount(numbers)
    for _ in range(9):
        _twice(several)
        with pytest.raises(OverflowError):  # found behind the arrays, which are given back
            _twice(several._replace(factor=2**70))
    gc.collect()
    assert sys.getrefcount(numbers) == before
