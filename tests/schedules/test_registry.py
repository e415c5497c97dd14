"""What the registry says of a schedule is what the schedule does; nothing else in the project says it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, build, simulate
from optpipe_sim.names import ENTRIES
from optpipe_sim.ops import O
from optpipe_sim.schedule import Schedule
from optpipe_sim.schedules import ALL, IN_FLIGHT, REGISTRY, those
from optpipe_sim.solvers.options import ENGINES

PACKAGE = Path(__file__).parents[2] / "optpipe_sim"
LEVEL = {"name": "all", "t_ms": 0.9, "keep_bytes": 20}
STAGE = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "layers": 4, "recompute": [LEVEL]}


def profile(limit: int = 900) -> CostProfile:
    costs = unit_profile(4, stages=STAGE, offload={"t_offload_ms": 0.5, "t_reload_ms": 0.5})
    return replace(costs, memory_limit=(limit,) * 4)


def built(name: str, chunks: int = 1, placement: str = "loop") -> Schedule:
    costs = profile().rechunk(chunks, placement)
    known = REGISTRY[name].options
    given = {"chunks": chunks, "placement": placement}
    return build(name, costs, 8, **{key: value for key, value in given.items() if key in known})


@pytest.mark.parametrize("name", REGISTRY)
def test_a_schedule_runs_where_its_entry_says(name: str) -> None:
    for chunks, placement, where in ((1, "loop", "one"), (2, "loop", "loop"), (2, "vee", "vee")):
        if where not in REGISTRY[name].runs:
            continue
        shape = built(name, chunks, placement).shape
        assert (shape.chunks, shape.placement_name) == (chunks, placement)
    # and in one of the shapes without being asked for it
    first = build(name, profile(), 8).shape
    own = "vee" if first.placement_name == "vee" else "one" if first.chunks == 1 else "loop"
    assert own in REGISTRY[name].runs


@pytest.mark.parametrize("name", those(lambda entry: entry.keeps != ""))
def test_it_keeps_what_its_entry_says(name: str) -> None:
    """A device holds all of a microbatch before its first backward; in flight: of p - r of them, on one chunk."""
    entry = REGISTRY[name]
    for chunks, placement, where in ((1, "loop", "one"), (2, "loop", "loop"), (2, "vee", "vee")):
        if where not in entry.runs:
            continue
        costs = profile().rechunk(chunks, placement)
        trace = simulate(built(name, chunks, placement), replace(costs, memory_limit=None))
        for device, peak in enumerate(trace.peak_bytes):
            held = 4 - device if entry.keeps == IN_FLIGHT and where == "one" else 1
            assert peak >= 100 * held, (name, where, device)
    assert entry.keeps in (ALL, IN_FLIGHT)


def test_what_offloads_is_nothing_without_a_link() -> None:
    for name, entry in REGISTRY.items():
        costs = profile(250 if entry.plans else 900)
        schedule = build(name, costs.with_slices(2) if entry.sliced else costs, 8)
        if entry.offloads:
            assert O in schedule.table[:, 0], name
        elif not entry.recomputes:
            assert O not in schedule.table[:, 0], name
    for name in those(lambda entry: entry.recomputes):
        costs = replace(profile(250), offload=None)  # device 0 would hold 400 bytes
        assert build(name, costs, 8).levels.names, name


def test_titles_and_torch_names_are_each_one_schedule() -> None:
    for key in ("title", "torch"):
        said = [getattr(entry, key) for entry in REGISTRY.values() if getattr(entry, key)]
        assert len(said) == len(set(said))
    slow = sorted(entry.slow for entry in REGISTRY.values() if entry.slow)
    assert slow == list(range(1, len(slow) + 1))


@pytest.mark.parametrize("name", those(lambda entry: bool(entry.tried)))
def test_what_searches_try_is_in_the_entry(name: str) -> None:
    """Its grids are of its options, and what bounds it is never slower."""
    entry = REGISTRY[name]
    for trial in entry.tried:
        assert {*trial.options} <= {*entry.options}, (name, trial)
        assert {*(trial.on or ())} <= {"one", "loop", "vee"}
    for chunks, where in ((1, "one"), (2, "loop")):
        bound = entry.bound.get(where)
        if bound is not None:
            costs = profile().rechunk(chunks)
            own, other = (built(one, chunks) for one in (name, bound))
            times = [simulate(one, costs, enforce=False).makespan_ns for one in (own, other)]
            assert times[0] >= times[1] > 0


def _texts(tree: ast.AST) -> Iterator[Any]:
    """Yield the texts of a file but for docstrings, and annotations, which cannot name a constant."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node
        yield from _texts(node)


def test_no_schedule_is_named_outside_of_its_room() -> None:
    """Neither as a text of its own nor as the beginning of one with options: what the rest of the project asks of a schedule
    stands in its entry, and those that others build on have constants there. (AdaOffload is also an engine.)"""
    names, found = {*ENTRIES} - {"optpipe", *ENGINES}, []
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).as_posix()
        if not inside.startswith("schedules/"):
            found += [
                f"{inside}:{node.lineno}: {node.value}"
                for node in _texts(ast.parse(path.read_text()))
                if node.value.partition(":")[0] in names
            ]
    assert found == []
