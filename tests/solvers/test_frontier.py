"""The best time over memory limits: curves that never rise, points that survive Ctrl-C."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, simulate
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.plot.frontier import frontier_chart, save_frontier
from optpipe_sim.solvers.frontier import Frontier, Point, frontier

LIMITS = (400, 50, 150, 200, 300, 1000)


def profile() -> CostProfile:
    return unit_profile(4, offload={"t_offload_ms": 1.3, "t_reload_ms": 1.1})


@pytest.fixture(scope="module")
def curve() -> Frontier:
    return frontier(profile(), 6, LIMITS, 10, engine="adaoffload")


def test_the_curve_and_its_bound_never_rise(curve: Frontier) -> None:
    assert [point.limit_bytes for point in curve.points] == sorted(LIMITS)
    results = [point.result for point in curve.points if point.result is not None]
    assert len(results) == 5
    for lower, higher in pairwise(results):
        assert lower.objective_ns >= higher.objective_ns
        assert lower.lower_bound_ns >= higher.lower_bound_ns
    assert results[0].objective_ns > results[-1].objective_ns
    for point in curve.points:
        if point.result is not None:
            assert point.result.schedule is not None
            trace = simulate(point.result.schedule, profile(), point.limit_bytes)
            assert trace.cost_ns == point.result.objective_ns >= point.result.lower_bound_ns
            assert point.status == ("optimal" if point.result.gap == 0 else "feasible")


def test_below_the_least_limit_nothing_is_feasible(curve: Frontier) -> None:
    first = curve.points[0]
    assert (first.limit_bytes, first.status, first.result) == (50, "infeasible", None)
    assert "the least limit that works is 100B" in str(first.reason)
    assert curve.least_limit_bytes == 100
    assert first.to_json()["objective_ns"] is None


def test_published_schedules_stand_beside_it(curve: Frontier) -> None:
    points = {point.schedule: point for point in curve.schedules}
    assert points["1f1b"].peak_bytes == 400
    assert points["1f1b"].cost_ns == 27_000_000  # (m + p - 1)(F + B + W)
    assert points["zb-h1"].cost_ns < points["1f1b"].cost_ns
    last = curve.points[-1].fixed
    assert last is not None
    assert last[1] == min(point.cost_ns for point in curve.schedules)
    assert curve.points[0].fixed is None


def test_chosen_schedules_only() -> None:
    found = frontier(profile(), 6, [400], 10, engine="adaoffload", schedules=["gpipe", "1f1b"])
    assert {point.schedule for point in found.schedules} == {"gpipe", "1f1b"}
    assert found.points[0].fixed == ("1f1b", 27_000_000)
    with pytest.raises(InvalidSchedule, match="'2f2b' is not a schedule"):
        frontier(profile(), 4, [400], schedules=["2f2b"])
    with pytest.raises(OptPipeError, match="at least one"):
        frontier(profile(), 4, [])


def test_what_is_found_above_serves_below_where_it_fits() -> None:
    """Only the highest limit is searched well; its schedule needs no more than the others have."""
    found = frontier(unit_profile(4), 6, [600, 700, 800], 10, engine="adaoffload")
    costs = {point.result.objective_ns for point in found.points if point.result}
    assert len(costs) == 1


def test_any_chunks_are_never_slower_than_those_of_the_profile_or_the_published() -> None:
    """Of a profile that can be cut in two; every bound is below every schedule that fits, whatever its chunks."""
    costs = profile()
    found = frontier(costs, 6, LIMITS[:4], 10, engine="adaoffload", chunks="any")
    assert found.chunks == "1 to 8 chunks per device in a loop, or 2 in a V"
    own = frontier(costs, 6, LIMITS[:4], 10, engine="adaoffload")
    solved = [point for point in found.points if point.result]
    used = {point.to_json()["chunks"] for point in solved}
    assert len(used) > 1
    for point, alone in zip(found.points, own.points, strict=True):
        if alone.result is not None:
            assert point.result is not None
            assert point.result.objective_ns <= alone.result.objective_ns
        if point.result is not None and point.fixed is not None:
            assert point.result.lower_bound_ns <= point.result.objective_ns <= point.fixed[1]
    for lower, higher in pairwise(solved):
        assert lower.result.objective_ns >= higher.result.objective_ns  # type: ignore[union-attr]
        assert lower.result.lower_bound_ns >= higher.result.lower_bound_ns  # type: ignore[union-attr]
    assert found.least_limit_bytes <= own.least_limit_bytes
    with pytest.raises(OptPipeError, match="slices: those of a frontier are given"):
        frontier(costs, 6, LIMITS, slices="any")


def test_ctrl_c_keeps_what_is_finished_and_the_cache_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTPIPE_SIM_CACHE", str(tmp_path))
    reported: list[int] = []

    def interrupt(point: Point) -> None:
        reported.append(point.limit_bytes)
        if len(reported) == 2:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"time_limit": 1e-4, "engine": "adaoffload", "cache": True}
    broken = frontier(profile(), 6, [150, 200, 300], on_point=interrupt, **options)
    assert broken.interrupted
    assert [point.limit_bytes for point in broken.points] == reported == [150, 200]
    whole = frontier(profile(), 6, [150, 200, 300], **options)
    assert not whole.interrupted
    assert [point.result.seconds for point in whole.points[:2] if point.result] == [0, 0]
    assert whole.points[2].result is not None
    assert whole.points[2].result.seconds > 0
    for before, after in zip(broken.points, whole.points, strict=False):
        assert before.result is not None
        assert after.result is not None
        assert after.result.objective_ns <= before.result.objective_ns


def test_the_chart_shows_curve_bound_and_schedules(curve: Frontier, tmp_path: Path) -> None:
    (ax,) = frontier_chart(curve).axes
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "best schedule found, 1 chunk per device" in labels
    assert any(label.startswith("no schedule with 1 chunk") for label in labels)
    drawn = {tuple(line.get_ydata()) for line in ax.lines if line.get_label() in labels}
    solved = [point.result for point in curve.points if point.result]
    times = tuple(result.objective_ns / 1e6 for result in solved)
    bounds = [result.lower_bound_ns / 1e6 for result in solved]
    assert times in drawn
    assert (*bounds, bounds[-1]) in drawn
    names = ", ".join(text.get_text() for text in ax.texts)
    assert "1f1b" in names
    assert save_frontier(curve, tmp_path / "f.svg").read_text().startswith("<?xml")
    with pytest.raises(OptPipeError, match="nothing to draw"):
        frontier_chart(Frontier(profile(), 6, "flush", curve.points[:1], []))
