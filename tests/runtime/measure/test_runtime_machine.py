"""What a machine says of itself, and what it may lack: nvidia-smi, NCCL."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optpipe_sim.runtime.measure import machine


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command is found; there is none yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (None, {}),
        ("exit 6", {}),  # no such device, as with MIG
        ("exit 0", {}),
        ("echo 580.1, 1980", {"driver_version": "580.1", "clocks.sm": "1980"}),
        ("echo '[N/A], 1410'; echo 1, 2", {"driver_version": "[N/A]", "clocks.sm": "1410"}),
    ],
)
def test_clocks_are_read_where_they_can_be(
    nvidia_smi: Path, script: str | None, found: dict[str, str]
) -> None:
    if script is not None:
        nvidia_smi.write_text(f"#!/bin/sh\n{script}\n")
        nvidia_smi.chmod(0o755)
    assert machine._query([], "driver_version", "clocks.sm") == found


def test_clocks_are_those_of_this_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first in torch is not the first in nvidia-smi where CUDA_VISIBLE_DEVICES says so."""
    asked: list[list[str]] = []

    def query(which: list[str], *keys: str) -> dict[str, str]:
        asked.append(which)
        return {}

    monkeypatch.setattr(machine, "_query", query)
    assert machine._nvidia_smi(SimpleNamespace(uuid="12-34")) == {}
    assert machine._nvidia_smi(SimpleNamespace()) == {}
    assert asked == [["--id=GPU-12-34"], []]


def ended(returncode: int, stdout: str = "", stderr: str = "") -> Any:
    return lambda *_, **__: SimpleNamespace(returncode=returncode, stdout=stdout, stderr=stderr)


def too_late(*_: Any, **__: Any) -> None:
    raise subprocess.TimeoutExpired("python", 60)


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (ended(0, "NCCL version 2.28\n123456\n"), 123456),
        (ended(1, "", "Traceback\nValueError: no NCCL\n"), "not measured: ValueError: no NCCL"),
        (ended(-6), "not measured: it said nothing"),
        (ended(0, "nothing"), "not measured: it said nothing"),
        (too_late, "not measured: TimeoutExpired"),
    ],
)
def test_a_communicator_is_measured_or_said_not_to_be(
    run: Any, found: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", run)
    assert machine.communicator_bytes.__wrapped__(0) == found


def test_a_communicator_is_measured_from_any_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the package is not installed."""
    asked: list[Path] = []
    monkeypatch.setattr(subprocess, "run", lambda *_, cwd, **__: asked.append(cwd) or ended(1)())
    machine.communicator_bytes.__wrapped__(0)
    assert (asked[0] / "optpipe_sim" / "runtime" / "measure" / "machine.py").is_file()
