"""What treatments and margins give: small and anew, and the committed tables against their own rules."""

from __future__ import annotations

from pathlib import Path

from unit_profiles import unit_profile

from experiments.margins import figure as margins_figure
from experiments.margins import task as margins
from experiments.treatments import figure, task
from optpipe_sim.study.tables import load_table

RESULTS = Path(__file__).parents[2] / "results"
STAGE = {"t_f_ms": 10, "t_b_ms": 11, "t_w_ms": 9, "act_bytes": 100, "w_bytes": 50}
LEVEL = {"name": "full", "t_ms": 2, "keep_bytes": 6, "work_bytes": 30, "b_work_bytes": 60}
PROFILE = unit_profile(
    4,
    stages={**STAGE, "recompute": [LEVEL]},
    offload={"t_offload_ms": 20, "t_reload_ms": 20},
    memory_limit_bytes=250,
)


def test_all_treatments_are_no_slower_than_one_alone_or_a_rule() -> None:
    methods = ["offload", "recompute", "rules", "all", "all, per stage", "bound"]
    rows = task.run(PROFILE, 8, "test", methods, time_limit=0.3, bound_limit=0.3)
    times = {row["method"]: row.get("cost_ns") for row in rows if row["fits"]}
    (bound,) = (row["lower_bound_ns"] for row in rows if row["method"] == "bound")
    assert times["all"] == min(ns for ns in times.values() if ns)
    assert all(bound <= ns for ns in times.values() if ns)
    assert {"rule, recompute", "offload", "recompute"} <= times.keys()
    recomputed = {row["method"]: row.get("recomputed_share") for row in rows}
    assert recomputed["offload"] == 0 < recomputed["recompute"]
    later = task.run(PROFILE, 8, "test", methods, time_limit=0.2, seed=1)
    assert not any(row["method"] == "bound" or "rule" in row["method"] for row in later)


def test_a_margin_holds_what_it_promises() -> None:
    rows = margins.run(PROFILE, 6, 0.2, [0.0, 0.1, 0.2], chunks=1, evaluations=5_000)
    times = [row["cost_ns"] for row in rows]
    assert times == sorted(times)
    assert times[-1] <= rows[0]["planned_ns"]
    assert max(row["peak_bytes"] for row in rows) <= 250


def test_the_committed_tables_hold_together() -> None:
    rows = load_table(RESULTS, "treatments")
    published, llama = figure.published(rows), figure.llama(rows)
    assert {cell.times["all"].seeds for cell in (*published.values(), *llama.values())} == {5}
    for cell in (*published.values(), *llama.values()):
        assert cell.bound is not None
        assert all(cell.bound <= one.least for one in cell.times.values())
        assert cell.times["all"].median <= min(
            cell.times[alone].median for alone in ("offload", "recompute")
        )
    grid = figure.the_map(rows)
    assert len(grid) == len({copy for copy, _ in grid}) * len({cost for _, cost in grid})
    planned = load_table(RESULTS, "margins")
    within = [row for row in planned if row["slower"] <= row["margin"]]
    assert all(row["cost_ns"] <= row["planned_ns"] for row in within)


def test_the_figures_show_every_setting() -> None:
    rows = load_table(RESULTS, "treatments")
    drawn = figure.draw(rows)
    labels = [text.get_text() for text in drawn["published"].axes[0].get_yticklabels()]
    assert len(labels) == len(set(labels)) == len(figure.published(rows))
    titles = [axes.get_title(loc="left") for axes in drawn["llama"].axes]
    assert titles == [
        f"{seq // 1024}k tokens" for seq in sorted({s for s, _ in figure.llama(rows)})
    ]
    assert len(drawn["map"].axes[0].patches) == len(figure.the_map(rows))
    assert len(margins_figure.draw(load_table(RESULTS, "margins")).axes) == 2
