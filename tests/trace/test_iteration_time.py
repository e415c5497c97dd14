"""One word for the time of an iteration: what the trainer's log shows, the same in every answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_cases import LLAMA

from optpipe_sim import build, load_profile, save_profile, simulate
from optpipe_sim.cli import main
from optpipe_sim.plot.compare import compare_chart
from optpipe_sim.plot.frontier import frontier_chart
from optpipe_sim.profile.iteration import iteration_ns
from optpipe_sim.reasons.explain import explain
from optpipe_sim.solvers.frontier import frontier

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

    run = LLAMA
    today = answer("evaluate", *run, "--save-profile", profile, "--save", schedule)
    again = answer("simulate", profile, "--schedule", schedule)
    (row,) = answer("compare", profile, "-m", "8", "--schedules", "1f1b")["rows"]  # type: ignore[misc]
    assert today["makespan_ns"] < today["iteration_ns"]  # type: ignore[operator]
    for key in ("iteration_ns", "makespan_ns", "bubble", "imbalance"):
        assert again[key] == row[key] == pytest.approx(today[key]), key  # type: ignore[index]


# (90 + 5) / (1 - 0.2) + 20 + 30 ms where the pipeline takes 90 ms, as above
WHOLE_NS = 168_750_000


@pytest.fixture
def told(tmp_path: Path) -> str:
    """The path of the profile whose iteration has more than its pipeline."""
    items = [{"name": "layer", "count": 2, "t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 10, "act_bytes": 100}]  # fmt: skip
    profile = replace(load_profile({**IDEAL, "items": items}), meta={"iteration": BESIDE})
    save_profile(profile, str(tmp_path / "told.yaml"))
    return str(tmp_path / "told.yaml")


SEARCH = ("--time-limit", "2", "--chunks", "profile")


@pytest.mark.parametrize(
    "words",
    [
        ("solve", *SEARCH),
        ("solve", *SEARCH, "--layers", "any", "--save-profile", "q.yaml"),
        ("solve", *SEARCH, "--margin", "ops=50%"),
        ("solve", *SEARCH, "--noise", "0%"),
        ("solve", *SEARCH, "--family", "torchtitan"),
        ("frontier", *SEARCH, "--limits", "200B"),
    ],
    ids=lambda words: " ".join(words),
)
def test_every_search_gives_the_iteration_and_names_its_pipeline(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    command, *more = words
    assert main([command, told, "-m", "2", *more, "--json", "--no-cache"]) == 0
    answer = json.loads(capsys.readouterr().out)
    answer = answer["points"][0] if command == "frontier" else answer
    assert answer["iteration_ns"] == round(iteration_ns(load_profile(told), answer["cost_ns"]))
    assert main([command, told, "-m", "2", *more, "--no-cache"]) == 0
    said = capsys.readouterr().out
    first = said.splitlines()[0]
    assert f"{answer['iteration_ns'] / 1e6:.4g} ms per iteration" in first
    assert "pipeline" in said
    if "--margin" in words:
        # all ops half as long again: the pipeline half as long again, the rest as it is
        longer = round(iteration_ns(load_profile(told), 1.5 * answer["cost_ns"]))
        assert f"at most {longer / 1e6:.4g} ms per iteration within them" in said


def test_pages_and_pictures_show_the_iteration(told: str) -> None:
    profile = load_profile(told)
    trace = simulate(build("1f1b", profile, 2), profile)
    assert explain(trace).startswith("One iteration takes 168.8 ms, its pipeline 90 ms (the rest")
    curve = frontier(profile, 2, [200], 2, chunks="own", schedules=["1f1b"])
    found = curve.points[0].result
    assert found is not None
    assert found.trace is not None
    assert curve.points[0].to_json()["fixed_iteration_ns"] == WHOLE_NS
    heights = [line.get_ydata() for line in frontier_chart(curve).axes[0].get_lines()]
    assert any(float(ys[0]) == pytest.approx(found.trace.iteration_ns / 1e6) for ys in heights)  # type: ignore[index,arg-type]
    rows = [{"schedule": "1f1b", **trace.measures()}]
    ends = [bar.get_x() + bar.get_width() for bar in compare_chart(rows).axes[0].patches]  # type: ignore[attr-defined]
    assert max(ends) == pytest.approx(168.75)
