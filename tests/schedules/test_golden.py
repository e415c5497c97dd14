"""The text Gantt of each schedule at p = 4, unit costs: as the golden file and the docstring have it.

The first line of a golden file says what it draws: a schedule's name, then m, then chunks of the
profile (costs are 1 per chunk) and whether it offloads (a copy lasts 1 then).
"""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest
from unit_profiles import unit_profile

from optpipe_sim import build, simulate
from optpipe_sim.plot.text import text_gantt
from optpipe_sim.schedules import REGISTRY, parse_name

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))


def draw(head: str) -> str:
    name, *settings = head.split()
    values = {key: int(value) for key, _, value in (part.partition("=") for part in settings)}
    offload = {"offload": {"t_offload_ms": 1, "t_reload_ms": 1}} if values.get("offload") else {}
    profile = unit_profile(4, values.get("chunks", 1), **offload)
    limit = values.get("limit")
    if limit:
        profile = unit_profile(4, values.get("chunks", 1), memory_limit_bytes=limit, **offload)
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
