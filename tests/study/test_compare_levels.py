"""`compare` with levels of recomputation: the lightest one that fits, or all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from unit_profiles import UNIT, unit_profile

from optpipe_sim import CostProfile, build, simulate
from optpipe_sim.cli.outputs.compare import _notes, table
from optpipe_sim.cli.outputs.show import Out
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.solvers.treatments import require_alike
from optpipe_sim.study.compare import Comparison, compare_all

LEVELS = [
    {"name": "light", "t_us": 100, "keep_bytes": 60, "work_bytes": 20},
    {"name": "half", "t_us": 400, "keep_bytes": 30, "work_bytes": 20},
    {"name": "full", "t_us": 1000, "keep_bytes": 6, "work_bytes": 20},
]
STAGES = {**UNIT, "recompute": LEVELS}
PROFILE = unit_profile(4, stages=STAGES)
OFFLOADING = unit_profile(4, stages=STAGES, offload={"t_offload_ms": 1, "t_reload_ms": 1})
# 1F1B holds four activations on the first device, GPipe all eight
NAMES = ["1f1b", "gpipe", "mario"]
SEARCH = "optpipe:engine=search,evaluations=300"


def names_of(found: Comparison) -> list[str]:
    return [row.schedule for row in found.rows]


def test_what_does_not_fit_comes_with_the_lightest_level_at_which_it_does() -> None:
    found = compare_all(PROFILE, 8, NAMES, memory_limit=270)
    shown = {row.plain or row.schedule: row for row in found.shown}
    assert shown.keys() == set(NAMES)
    assert [row.schedule for row in found.shown[:1]] == ["mario"]  # which chooses for itself
    assert shown["1f1b"].schedule == "1f1b:recompute=light"
    assert shown["gpipe"].schedule == "gpipe:recompute=half"
    assert all(row.trace.fits for row in found.shown)
    for name, level in (("1f1b", "light"), ("gpipe", "half")):
        alone = simulate(build(f"{name}:recompute={level}", PROFILE, 8), PROFILE, 270)
        assert shown[name].trace.cost_ns == alone.cost_ns
        assert shown[name].levels == [level]
        assert shown[name].bound.ns <= alone.cost_ns
    # the plain ones are there to be read, marked
    plain = next(row for row in found.rows if row.schedule == "1f1b")
    assert not plain.trace.fits


def test_what_fits_comes_as_it_is() -> None:
    assert names_of(compare_all(PROFILE, 8, ["1f1b", "gpipe"], memory_limit=800)) == [
        "1f1b",
        "gpipe",
    ]


def test_where_no_level_helps_the_plain_schedule_stays() -> None:
    found = compare_all(PROFILE, 8, ["gpipe"], memory_limit=60)
    assert [row.schedule for row in found.shown] == ["gpipe"]


def test_a_level_that_few_stages_have_hides_none_that_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # as full-75% of stages with four layers, where the others have three: named last, and it keeps the most
    few = {"name": "few", "t_us": 200, "keep_bytes": 50, "work_bytes": 20}
    last = {**STAGES, "recompute": [*LEVELS[:2], few, LEVELS[2]]}
    profile = unit_profile(4, stages=[STAGES, STAGES, STAGES, last])
    assert profile.level_names[-1] == "few"
    found = compare_all(profile, 8, ["gpipe"], memory_limit=270)
    assert [row.schedule for row in found.shown] == ["gpipe:recompute=half"]
    _notes(Out(), found)
    assert "does not fit" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("treatments", "levels"),
    [(["keep", "recompute"], ["light", "half", "full"]), (["keep", "offload"], [])],
)
def test_treatments_say_which_levels_are_shown(treatments: list[str], levels: list[str]) -> None:
    found = compare_all(PROFILE, 8, ["1f1b", "1f1b:recompute=full"], 800, treatments=treatments)
    if not levels:  # the profile has none then
        assert names_of(found) == ["1f1b"]
        assert "has no such level" in found.refused["1f1b:recompute=full"]
        return
    assert set(names_of(found)) == {"1f1b", *(f"1f1b:recompute={level}" for level in levels)}
    assert found.shown == found.rows


@pytest.mark.parametrize("columns", [70, 100, 140])
def test_the_table_tells_levels_from_names(columns: int) -> None:
    profile: CostProfile = replace(OFFLOADING, memory_limit=(270,) * 4)
    found = compare_all(profile, 8, [*NAMES, "adaoffload-r"])
    console = Console(width=columns, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(table(found, console))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= columns
    line = next(line for line in text.splitlines() if line.startswith("1f1b"))
    assert line.split()[:2] == ["1f1b", "light"]
    assert "recompute=" not in text


def test_per_stage_leaves_what_treats_all_activations_of_a_stage_alike() -> None:
    names = [*NAMES, "adaoffload-r", SEARCH]
    found = compare_all(OFFLOADING, 8, names, 270, per_stage=True)
    assert {"1f1b", SEARCH} <= set(names_of(found))
    for row in found.rows:
        require_alike(row.trace.schedule)
    assert "not all treated alike" in found.refused["adaoffload-r"]
    free = compare_all(OFFLOADING, 8, ["adaoffload-r"], 270)
    with pytest.raises(InvalidSchedule):
        require_alike(free.rows[0].trace.schedule)


def test_a_bound_on_fewer_treatments_is_not_a_bound_on_other_rows() -> None:
    kept = "optpipe:treatments=keep,time=0.5,workers=1"
    found = compare_all(OFFLOADING, 8, ["adaoffload-r", kept], 270)
    assert set(names_of(found)) == {"adaoffload-r", kept}
    assert all(row.gap >= 0 for row in found.rows)
