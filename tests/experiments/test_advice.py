"""The committed answers of `advise --family megatron`, without the search that found them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from megatron_grammar import accept, stages_of

from optpipe_sim import build
from optpipe_sim.costs import estimate
from optpipe_sim.costs.provenance import iteration_ns
from optpipe_sim.frameworks.nearest import replay_unlimited
from optpipe_sim.study.tables import load_table

ROWS = load_table(Path(__file__).parents[2] / "results", "advice")
PLANS = list({(row["model"], row["gpus"], row["command"]): row for row in ROWS}.values())


@pytest.mark.parametrize("row", PLANS, ids=lambda row: f"{row['model']}-{row['gpus']}")
def test_a_plan_runs_in_megatron_and_takes_the_time_that_the_table_gives(
    row: dict[str, Any],
) -> None:
    size = int(row["command"].split("--micro-batch-size ")[1].split()[0])
    m = row["global_batch"] // row["dp"] // size
    read = accept(row["command"], m)
    if row["model"].startswith("llama"):  # such layers have no norms of their own, see modules_of
        assert "layernorm" not in (read.recompute_modules or ())
    stages = stages_of(read.pipeline_model_parallel_layout)
    # 2 layers, or 2 and the one that predicts a further token: 2m
    assert [stage.count("t") for stage in stages] == [
        int(str(layers).rstrip("m")) for layers in row["layers"]
    ]
    apart = [str(layers).endswith("m") for layers in row["layers"]]
    assert not any(apart) or ["m" in stage for stage in stages] == apart
    split = {key: row[key] for key in ("tp", "cp", "ep", "dp", "zero", "chunks", "seq")}
    devices = row["pp"] * row["tp"] * row["cp"]
    # what is recomputed everywhere is in the costs, unless the schedule's name says it
    # (the plan that was told may keep what the best row recomputes)
    named = "--recompute" not in row["command"] or "recompute=" in row["schedule"]
    how = {"levels": True} if named else {"recompute": row["recompute"]}
    profile = estimate(
        row["model"],
        row["machine"],
        devices,
        **split,
        **how,
        microbatch=size,
        layers=row["layers"],
    )
    schedule = build(row["schedule"], profile, m)
    trace = replay_unlimited(schedule, profile)
    assert trace.fits
    assert iteration_ns(profile, trace.makespan_ns) == pytest.approx(row["iteration_ns"], rel=1e-3)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['gpus']}-{row['seed']}")
def test_each_answer_stands_above_its_bound_and_came_within_minutes(row: dict[str, Any]) -> None:
    assert row["bound_ns"] <= row["free_ns"] <= row["iteration_ns"]
    assert row["seconds"] < 60
