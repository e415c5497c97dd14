"""Executions fitted to measured runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from unit_profiles import unit_profile

from optpipe_sim import build, save_profile
from optpipe_sim.costs.issuing import (
    FEWEST,
    Fit,
    Run,
    add_run,
    fit_to,
    fitted,
    grid,
    load_runs,
    predicted,
)
from optpipe_sim.errors import OptPipeError
from optpipe_sim.execution import load_execution

STAGE = {"t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 10, "act_bytes": 10, "layers": 4}
NAMES = ("1f1b", "1f1b-i:chunks=2", "1f1b-i:chunks=4", "zb-h1", "zb-h2", "zb-v")
PROFILE = unit_profile(4, stages=STAGE, t_comm_ms=1)


def _runs(truth: Fit, names: tuple[str, ...] = NAMES, common: float = 1.0) -> list[Run]:
    """Return runs that take what they take under a fit, but for a common factor."""
    found = []
    for name in names:
        schedule = build(name, PROFILE, 8)
        run = Run(name, 1.0, False, schedule, PROFILE.for_shape(schedule.shape))
        found.append(replace(run, time=common * predicted(run, truth)))
    return found


@pytest.mark.parametrize("common", [1.0, 1.3])
@pytest.mark.parametrize(
    "truth",
    [
        Fit(),
        Fit("blocking", "blocking", "latency", 300, 1.04),
        Fit("blocking", "latency", "latency", 700, 1.08),
        Fit("latency", "latency", "blocking", 0, 1.02),
    ],
)
def test_what_made_the_runs_is_found_whatever_they_have_in_common(
    truth: Fit, common: float
) -> None:
    runs = _runs(truth, common=common)
    found = fit_to(runs)
    # a little less of an op's time may stand for a message's, but not for more than the fit tells apart
    ratios = [predicted(run, found) / run.time for run in runs]
    assert max(ratios) / min(ratios) - 1 < 0.01
    if truth == Fit():
        assert found == truth


def test_measured_costs_and_times_are_of_one_clock() -> None:
    truth = Fit(op_us=1000)
    runs = _runs(truth, ("1f1b", "zb-h1"))
    measured = [replace(run, profile=replace(run.profile, meta={"samples": 30})) for run in runs]
    assert fit_to(measured).op_us >= 700
    # a single run has nothing to cancel against either
    assert fit_to(runs[:1]).op_us + (fit_to(runs[:1]).plain == "blocking") > 0


def test_the_execution_says_what_it_rests_on() -> None:
    runs = _runs(Fit("blocking", "blocking", "latency", 300, 1.04))
    made = fitted("mine", "three runs", runs)
    assert (made.name, made.source, made.fitted_to) == ("mine", "three runs", NAMES)
    assert made.common is not None
    assert made.between is not None
    assert 0 <= made.between <= 0.05
    few = fitted("mine", "", runs[: FEWEST - 1])
    assert (few.common, few.between) == (None, None)
    chained = fitted("mine", "", [replace(runs[0], chained=True), *runs[1:]])
    assert chained.issue("split").iteration == "span"
    assert chained.issue("plain").iteration == "makespan"
    with pytest.raises(OptPipeError, match="runs: none to fit"):
        fitted("mine", "", [])


def test_the_grid_begins_with_the_ideal() -> None:
    assert grid()[0] == Fit()
    assert len(grid()) == 2 * len(grid(plain=("blocking",)))


def test_runs_from_a_file(tmp_path: Path) -> None:
    save_profile(PROFILE, str(tmp_path / "p.yaml"))
    build("zb-h1", PROFILE, 8).save(str(tmp_path / "s.json"))
    file = tmp_path / "runs.yaml"
    add_run(file, {"profile": "p.yaml", "schedule": "1f1b", "microbatches": 8, "iteration_ms": 400})
    add_run(file, {"profile": "p.yaml", "schedule": "s.json", "microbatches": 8, "iteration_ms": 1})
    add_run(
        file, {"profile": "p.yaml", "schedule": "s.json", "microbatches": 8, "iteration_ms": 360}
    )
    name, runs = load_runs(file)
    assert name == "runs"
    assert [run.time for run in runs] == [400e6, 360e6]
    assert runs[1].schedule == build("zb-h1", PROFILE, 8)
    assert runs[1].family == "split"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs: 3", "runs: expected a list of runs"),
        ("runs: []", "runs: expected a list of runs"),
        ("name: 3\nruns: [{}]", "name: expected a text"),
        ("more: 1\nruns: [{}]", "more: unknown key"),
        ("runs: [3]", r"runs\[0\]: expected a mapping"),
        ("runs: [{}]", r"runs\[0\].profile: expected a file"),
        ("runs: [{profile: p.yaml, schedule: 1}]", r"runs\[0\].schedule: expected a name or file"),
        ("runs: [{profile: p.yaml, schedule: 1f1b}]", "iteration_ms: expected the measured time"),
        (
            "runs: [{profile: p.yaml, schedule: 1f1b, iteration_ms: 400}]",
            r"runs\[0\].microbatches: expected a whole number",
        ),
        (
            "runs: [{profile: p.yaml, schedule: 1f1b, microbatches: 8, iteration_s: 400}]",
            "iteration: 400 s, where 330 ms is replayed: is its unit right?",
        ),
        (
            "runs: [{profile: p.yaml, schedule: 1f1b, microbatches: 8, iteration_ms: 400, chained: 1}]",
            "chained: expected yes or no",
        ),
        (
            "runs: [{profile: p.yaml, schedule: 1f1b, microbatches: 8, iteration_ms: 400, x: 1}]",
            "x: unknown",
        ),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    save_profile(unit_profile(4, stages=STAGE), str(tmp_path / "p.yaml"))
    (tmp_path / "runs.yaml").write_text(text)
    with pytest.raises(OptPipeError, match=said) as refused:
        load_runs(tmp_path / "runs.yaml")
    assert "\n" not in str(refused.value)


def test_on_the_command_line(command_line) -> None:
    save_profile(PROFILE, "p.yaml")
    truth = Fit("blocking", "blocking", "latency", 300, 1.04)
    for run in _runs(truth):
        row = {"profile": "p.yaml", "schedule": run.name, "microbatches": 8}
        add_run("runs.yaml", {**row, "iteration_ns": round(run.time)})
    answer = command_line("executions --fit runs.yaml --save mine.yaml --json").json
    assert answer["execution"]["fitted_to"] == list(NAMES)
    for row in answer["runs"]:
        assert abs(row["fitted_ns"] / row["measured_ns"] - 1) < 0.03
    assert load_execution("mine.yaml").fitted_to == NAMES
    assert (
        "compare PROFILE -m M --execution mine.yaml"
        in command_line("executions --fit runs.yaml --save mine.yaml").out
    )
    command_line("compare p.yaml -m 8 --execution mine.yaml --schedules 1f1b,zb-h1")
    assert command_line("executions --save x.yaml").err.endswith("--save: is for --fit RUNS.yaml\n")
