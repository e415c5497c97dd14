"""One word for the time of an iteration: what the trainer's log shows, the same in every answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.cli import main
from optpipe_sim.profile.iteration import iteration_ns

IDEAL = {
    "name": "by-hand",
    "devices": 2,
    "stages": {"t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 10, "act_bytes": 100},
}
BESIDE = {"optimizer_ms": 20.0, "gradient_sync_ms": 30.0, "exposed_exchange_ms": 5.0, "overhead": 0.2}  # fmt: skip


def test_what_the_profile_knows_beside_the_pipeline_is_added() -> None:
    ideal = load_profile(IDEAL)
    # 1F1B, 2 devices, 2 microbatches of 30 ms: 3 x 30 ms in the pipeline
    alone = simulate(build("1f1b", ideal, 2), ideal)
    assert alone.iteration_ns == alone.cost_ns == 90_000_000
    told = replace(ideal, meta={"iteration": BESIDE})
    trace = simulate(build("1f1b", told, 2), told)
    assert trace.cost_ns == 90_000_000
    # (90 + 5) / (1 - 0.2) + 20 + 30
    assert trace.iteration_ns == 168_750_000 == round(iteration_ns(told, 90_000_000))
    assert trace.measures()["iteration_ns"] == 168_750_000
    # the busiest device waits for 30 of 90 ms, and none has less work
    assert (trace.bubble, trace.imbalance) == (pytest.approx(1 / 3), 0)


def test_every_command_gives_the_same_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, schedule = str(tmp_path / "today.yaml"), str(tmp_path / "today.json")

    def answer(*words: str) -> dict[str, object]:
        assert main([*words, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    run = [
        "--model",
        "llama2-7b",
        "--machine",
        "h100",
        "--gpus",
        "8",
        "--seq",
        "4096",
        "-m",
        "8",
        "--pp",
        "4",
    ]
    today = answer("evaluate", *run, "--save-profile", profile, "--save", schedule)
    again = answer("simulate", profile, "--schedule", schedule)
    (row,) = answer("compare", profile, "-m", "8", "--schedules", "1f1b")["rows"]  # type: ignore[misc]
    assert today["makespan_ns"] < today["iteration_ns"]  # type: ignore[operator]
    for key in ("iteration_ns", "makespan_ns", "bubble", "imbalance"):
        assert again[key] == row[key] == pytest.approx(today[key]), key  # type: ignore[index]
