from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from joblib import cpu_count
from unit_profiles import unit_profile

from optpipe_sim.cli import main

# One setting for all: machines differ, so no deadline per example. Each run draws the same examples, so that a
# failure is of the change at hand; HYPOTHESIS_RANDOM=1 draws others, and --hypothesis-profile=many ten times as many
# wherever a test does not say how many.
settings.register_profile(
    # compiling takes its time in whichever example comes first
    "project",
    max_examples=25,
    deadline=None,
    derandomize=not os.environ.get("HYPOTHESIS_RANDOM"),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("many", settings.get_profile("project"), max_examples=400)
settings.load_profile("project")


# Numba, torch, bokeh and the tests themselves are millions of objects that stay: Python's collector would look through all of
# them again and again. It begins once they are there, and leaves them alone; so it does in processes that are forked here,
# which would otherwise copy every page that it looks at.
gc.disable()

# processes that tests start import the helpers too: pyproject.toml's pythonpath holds for this one only
HELPERS = Path(__file__).parent / "helpers"
ROOMS = [str(HELPERS), *map(str, sorted(HELPERS.glob("[!_]*/")))]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*ROOMS, os.environ.get("PYTHONPATH")]))

# a shell starts background jobs with Ctrl-C ignored; some tests send it
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # the tests for GPUs run where there is no pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: many tests wait for the processes that they start."""
    return cpu_count() + 1


# files with tests of 20 s and more, which begin first: at the end one of them would leave the other cores idle
LONG = {
    "test_bounds_layers.py",
    "test_default_figure.py",
    "test_incremental.py",
    "test_layouts.py",
    "test_notebooks.py",
    "test_results.py",
    "test_runtime_campaign.py",
    "test_runtime_campaign_gpu.py",
    "test_runtime_torchrun.py",
    "test_solve_floor.py",
    "test_tutorial.py",
    "test_which_link.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long tests first, all others in their order."""
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """Let the collector begin, for all that comes."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    gc.enable()


@pytest.fixture
def unit():
    return unit_profile


@dataclass(frozen=True)
class Answer:
    """What a command line gave: its exit status, stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line on stderr of a refusal."""
        assert self.out == ""
        assert self.err.count("\n") == 1
        assert self.err.startswith("optpipe-sim")
        assert "internal error" not in self.err
        return self.err


@pytest.fixture
def command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], Answer]:
    """Runs a command line in an empty folder, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTPIPE_SIM_CACHE", str(tmp_path / "cache"))

    def run(line: str) -> Answer:
        capsys.readouterr()
        answer = Answer(main(line.split()), *capsys.readouterr())
        assert "Traceback" not in answer.err
        return answer

    return run
