from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import optpipe_sim

SOURCES = {
    "codes.py": "STEP = 1\n",
    "inner.py": "from .codes import STEP\nfrom .compiled import part\n\n@part\ndef inner(x):\n    return x + STEP\n",
    "outer.py": (
        "from .compiled import compiled\nfrom .inner import inner\n\n"
        "@compiled\ndef outer(x):\n    return inner(x)\n"
    ),
}


def test_nothing_runs_that_was_compiled_from_older_sources(tmp_path: Path) -> None:
    """Numba would go on with the old `inner` in `outer`, whose own source is the same."""
    package = tmp_path / "small"
    package.mkdir()
    for name in ("compiled.py", "files.py", "errors.py", "units.py", "yaml_text.py"):
        shutil.copy(Path(optpipe_sim.__file__).with_name(name), package)
    for name, text in {"__init__.py": "", **SOURCES}.items():
        (package / name).write_text(text)

    def run() -> str:
        code = (
            "from small.outer import outer; print(outer(1), sum(outer.stats.cache_hits.values()))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert [run(), run()] == ["2 0", "2 1"]
    (package / "inner.py").write_text(SOURCES["inner.py"].replace("x + STEP", "x + 10 * STEP"))
    assert [run(), run()] == ["11 0", "11 1"]
    (package / "codes.py").write_text("STEP = 20\n")  # constants are compiled in
    assert [run(), run()] == ["201 0", "201 1"]
