"""The best time over memory limits: curves that never rise, points that survive Ctrl-C."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, build, simulate
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.plot.frontier import frontier_chart
from optpipe_sim.plot.style import save
from optpipe_sim.solvers.fixed import best_rule
from optpipe_sim.solvers.frontier import Frontier, Point, frontier

LIMITS = (400, 50, 150, 200, 300, 1000)


def profile() -> CostProfile:
    return unit_profile(4, offload={"t_offload_ms": 1.3, "t_reload_ms": 1.1})


@pytest.fixture(scope="module")
def curve() -> Frontier:
    return frontier(profile(), 6, LIMITS, 10, engine="adaoffload", chunks="own")


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
    # over all options and chunks it is no slower than any with its default ones
    assert last[1] <= min(point.cost_ns for point in curve.schedules)
    name, cost = last
    assert simulate(build(name, profile(), 6), profile(), LIMITS[-1]).cost_ns == cost
    # one chunk needs more than 50 bytes, eight small ones do not
    assert curve.points[0].result is None
    assert curve.points[0].fixed is not None


def test_the_best_rule_is_the_best_of_all_options_chunks_and_levels() -> None:
    """Each with every value of its options, replayed one by one; at each level, inside backwards and apart."""
    level = {"name": "all", "t_ns": 900_000, "keep_bytes": 20}
    stage = {
        "t_f_ns": 900_000,
        "t_b_ns": 900_000,
        "t_w_ns": 900_000,
        "act_bytes": 90,
        "layers": 3,
        "recompute": [level],
    }
    costs = unit_profile(3, stages=stage, offload={"t_offload_ns": 700_000, "t_reload_ns": 700_000})
    names = ["1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "gpipe"]
    names += [f"zb-v:limit={limit}B" for limit in range(90, 400, 15)]
    for chunks in (1, 2, 3):
        names.append(f"1f1b-i:chunks={chunks}")
        for group in range(1, 7):
            names.append(f"gis:chunks={chunks},group={group}")
            names += [
                f"po:chunks={chunks},group={group},offloaded={n}" for n in range(1, chunks + 1)
            ]
    for limit in (60, 150, 220, 400):
        fit: dict[str, int] = {}
        for name in names:
            for more in ("", "recompute=all", "recompute=all,apart=yes"):
                full = f"{name}{',' if ':' in name else ':'}{more}" if more else name
                with suppress(OptPipeError):
                    fit[full] = simulate(build(full, costs, 6), costs, limit).cost_ns
        found = best_rule(costs, 6, (limit,) * 3, seconds=60)
        assert (found is None) == (not fit)
        if found is not None:
            assert found.untried == 0
            assert found.trace.cost_ns <= min(fit.values())
            assert max(found.trace.peak_bytes) <= limit
            assert (
                simulate(build(found.name, costs, 6), costs, limit).cost_ns == found.trace.cost_ns
            )


def test_chosen_schedules_only() -> None:
    found = frontier(
        profile(), 6, [400], 10, engine="adaoffload", schedules=["gpipe", "1f1b"], chunks="own"
    )
    assert {point.schedule for point in found.schedules} == {"gpipe", "1f1b"}
    assert found.points[0].fixed == ("1f1b", 27_000_000)
    with pytest.raises(InvalidSchedule, match="'2f2b' is not a schedule"):
        frontier(profile(), 4, [400], schedules=["2f2b"], chunks="own")
    with pytest.raises(OptPipeError, match="at least one"):
        frontier(profile(), 4, [], chunks="own")


def test_what_is_found_above_serves_below_where_it_fits() -> None:
    """Only the highest limit is searched well; its schedule needs no more than the others have."""
    found = frontier(unit_profile(4), 6, [600, 700, 800], 10, engine="adaoffload", chunks="own")
    costs = {point.result.objective_ns for point in found.points if point.result}
    assert len(costs) == 1


def test_any_chunks_are_never_slower_than_those_of_the_profile_or_the_published() -> None:
    """Of a profile that can be cut in two; every bound is below every schedule that fits, whatever its chunks."""
    costs = profile()
    found = frontier(costs, 6, LIMITS[:4], 10, engine="adaoffload", chunks="any")
    assert found.chunks == "1 to 8 chunks per device in a loop, or 2 in a V"
    own = frontier(costs, 6, LIMITS[:4], 10, engine="adaoffload", chunks="own")
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
        frontier(costs, 6, LIMITS, slices="any", chunks="own")


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
    broken = frontier(profile(), 6, [150, 200, 300], on_point=interrupt, **options, chunks="own")
    assert broken.interrupted
    assert [point.limit_bytes for point in broken.points] == reported == [150, 200]
    whole = frontier(profile(), 6, [150, 200, 300], **options, chunks="own")
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
    assert save(frontier_chart(curve), tmp_path / "f.svg").read_text().startswith("<?xml")
    with pytest.raises(OptPipeError, match="nothing to draw"):
        frontier_chart(Frontier(profile(), 6, "flush", curve.points[:1], []))
