"""The text Gantt of each schedule at p = 4, unit costs: as the golden file and the docstring have it.

The first line of a golden file says what it draws: a schedule's name, then m, then chunks of the
profile (costs are 1 per chunk), into how many slices sequences are cut, whether it offloads (how long a copy takes then) and may recompute (which
takes 1 and keeps 10 of 100 bytes).
"""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from unit_profiles import UNIT, unit_profile

from optpipe_sim import build, simulate
from optpipe_sim.plot.text import text_gantt
from optpipe_sim.schedules import REGISTRY, parse_name

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))


def draw(head: str) -> str:
    name, *settings = head.split()
    values = {key: int(value) for key, _, value in (part.partition("=") for part in settings)}
    changes: dict[str, Any] = {}
    if copy := values.get("offload"):
        changes["offload"] = {"t_offload_ms": copy, "t_reload_ms": copy}
    if values.get("limit"):
        changes["memory_limit_bytes"] = values["limit"]
    if values.get("levels"):
        level = {"name": "full", "t_ms": 1, "keep_bytes": 10}
        changes["stages"] = {**UNIT, "recompute": [level]}
    if values.get("slices"):
        changes["slices"] = values["slices"]
    profile = unit_profile(4, values.get("chunks", 1), **changes)
    trace = simulate(build(name, profile, values["m"]), profile)
    return text_gantt(trace, 1_000_000)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    head, _, text = path.read_text().partition("\n")
    assert draw(head) == text
    entry = REGISTRY[parse_name(head.split()[0])[0]]
    function = getattr(import_module(f"optpipe_sim.schedules.{entry.module}"), entry.function)
    documented = "\n".join(line.strip() for line in inspect.getdoc(function).splitlines())
    assert "\n".join(line.strip() for line in text.splitlines()) in documented


def test_every_schedule_has_a_golden_file() -> None:
    assert {path.stem for path in GOLDEN} == set(REGISTRY)
