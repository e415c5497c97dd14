"""Calibration: rates are found again, errors shrink on rows it has not seen, k of PipeOffload."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from experiments.free_lunch.task import free_lunch_ratio
from experiments.published import published, zero_bubble_cells
from optpipe_sim.cli import main
from optpipe_sim.costs import estimate, load_machine
from optpipe_sim.costs.calibrate import (
    Setup,
    calibrate,
    load_measurements,
    median_error,
    op_times,
    residuals,
    run,
)
from optpipe_sim.costs.machines import Rates
from optpipe_sim.errors import OptPipeError

A100 = load_machine("a100-80gb").with_rates(Rates(gemm=0.85, attention=0.55, bandwidth=0.8))


def _times(setup: Setup, rates) -> dict[str, float]:
    stage = setup.profile(A100, rates).stages[4]
    return {f"t_{op}_ms": getattr(stage, f"t_{op}_ns") / 1e6 for op in "fbw"}


def test_known_rates_are_found_again() -> None:
    true = replace(A100.rates, gemm=0.61, bandwidth=0.47, attention=0.38)
    rows = []
    for seq in (2048, 16384):
        setup = Setup("gpt-10.5b", 8, {"seq": seq, "offload": False})
        rows += op_times(setup, A100, _times(setup, true))
    found = calibrate(rows, A100, "itself")
    assert set(found.names) == {"gemm", "bandwidth", "attention"}
    for name in found.names:
        assert getattr(found.rates, name) == pytest.approx(getattr(true, name), rel=0.01)
    assert found.median_error() < 0.002 < median_error(found.before)
    assert found.rates.fitted == dict.fromkeys(found.names, "itself")


def test_iteration_and_memory_rates_are_found_again() -> None:
    setup = Setup("gpt-10.5b", 8, {"seq": 4096, "offload": False}, "1f1b", 16)
    small = Setup("gpt-10.5b", 8, {"seq": 1024, "offload": False}, "1f1b", 16)
    true = replace(A100.rates, overhead=0.12, memory_factor=1.1, working_set=0.9)
    rows = []
    for one in (setup, small):
        blank = run(one, A100, 1.0, 1.0)
        time, peak = (m.predict(true) for m in blank)
        rows += run(one, A100, time, peak)
        rows += op_times(one, A100, _times(one, true))
    found = calibrate(rows, A100, "itself", ["overhead", "memory_factor", "working_set"])
    assert found.rates.overhead == pytest.approx(0.12, abs=0.003)
    assert found.rates.memory_factor == pytest.approx(1.1, abs=0.01)
    assert found.rates.working_set == pytest.approx(0.9, abs=0.1)


def test_half_of_the_published_times_predict_the_other_half() -> None:
    cells = [c for c in zero_bubble_cells() if c.measurement.kind == "time"]
    fit = [c.measurement for c in cells if c.role == "fit"]
    check = [c.measurement for c in cells if c.role == "check"]
    assert (len(fit), len(check)) == (18, 36)
    found = calibrate(fit, A100, "half", ["gemm", "bandwidth"])
    before, after = residuals(check, A100.rates), residuals(check, found.rates)
    assert median_error(after) < 0.06
    assert median_error(after) < median_error(before)
    assert max(abs(one.error) for one in after) < 0.15


def test_published_tables_agree_with_the_profiles() -> None:
    """The rows carried over here are those of the profiles."""
    from pathlib import Path

    from optpipe_sim import load_profile

    folder = Path(__file__).parents[2] / "experiments" / "profiles"
    rows = published("zero_bubble")["rows"] + published("zero_bubble")["vshape"]
    assert len(rows) == 18
    for row in rows:
        kind = "zb" if "layers_per_stage" in row else "zbv"
        name = row["model"].removeprefix("gpt-")
        path = folder / f"{kind}-{name}-p{row['devices']}-m{row['microbatches']}.yaml"
        stage = load_profile(path).stages[0]
        assert stage.t_f_ns == round(row["t_f_ms"] * 1e6)
        assert stage.t_b_ns == round(row["t_b_ms"] * 1e6)
        assert stage.t_w_ns == round(row["t_w_ms"] * 1e6)


def test_free_lunch_table() -> None:
    figure = published("pipeoffload")["figure_1"]
    rates = figure["compute_tflops"], figure["offload_gb_per_s"]
    sequence = figure["sequence"]
    k = {int(h): [free_lunch_ratio(int(h), s, *rates) for s in sequence] for h in figure["k"]}
    for hidden, row in figure["k"].items():
        mine = k[int(hidden)]
        assert abs(mine[0] - row[0]) <= 0.01
        assert abs(mine[1] - row[1]) <= 0.035
    # what remains is one factor per column, for every hidden size, to the figure's rounding
    for at, factor in enumerate((0.997, 0.982, 0.965, 0.940)):
        for hidden, row in figure["k"].items():
            assert abs(factor * k[int(hidden)][at] - row[at]) < 0.0065


def test_k_of_an_estimated_layer_is_the_formula() -> None:
    """With a machine that is nothing but PipeOffload's two rates."""
    seq, hidden = 4096, 8192
    model = {
        "style": "gpt",
        "layers": 4,
        "hidden": hidden,
        "heads": 64,
        "vocab": 1000,
        "ffn": 4 * hidden,
    }
    ideal = replace(
        A100,
        peak_tflops={"bf16": 220},
        memory_gb_per_s=1e9,
        rates=replace(
            A100.rates, gemm=1.0, attention=1.0, bandwidth=1.0, half_inner=0.0, half_waves=0.0
        ),
    )
    stage = estimate(model, ideal, 2, seq=seq, recompute="norms").stages[0]
    k = (stage.t_offload_ns + stage.t_reload_ns) / (stage.t_f_ns + stage.t_b_ns + stage.t_w_ns)
    # the kernel of a causal model skips half the scores, and does them again in B
    executed = free_lunch_ratio(hidden, seq, 220, 15) * (6 * hidden + seq)
    executed /= 6 * hidden + seq * (4 + 10) / 12 / 2
    assert k == pytest.approx(executed, rel=0.005)


def test_measurements_from_a_file(tmp_path, capsys) -> None:
    path = tmp_path / "m.yaml"
    row = published("zero_bubble")["rows"][6]
    measured = {key: row[key] for key in ("t_f_ms", "t_b_ms", "t_w_ms", "t_comm_ms")}
    base = {"model": "gpt-14.6b", "devices": 16, "seq": 1024, "flash": False}
    path.write_text(yaml.safe_dump({"rows": [{**base, **measured}]}))
    words = (
        "estimate --model gpt-14.6b --machine a100 --devices 16 --seq 1024 --no-flash --calibrate"
    )
    assert main([*words.split(), str(path)]) == 0
    assert "error of 4 measurements" in capsys.readouterr().out
    profile = "experiments/profiles/zb-14.6b-p16-m48.yaml"
    path.write_text(yaml.safe_dump({"rows": [{**base, "profile": profile}]}))
    assert len(load_measurements(str(path), A100)) == 4
    whole = {**base, "schedule": "1f1b", "microbatches": 48, "iteration_ms": 2142.0, "peak_gib": 32}
    path.write_text(yaml.safe_dump({"rows": [whole]}))
    found = calibrate(load_measurements(str(path), A100), A100, "throughput")
    assert "gemm" in found.names
    assert found.median_error("iteration") < 0.01


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rows: []", "expected one key, rows"),
        ("rows: [{model: gpt-1.5b}]", r"rows\[0\]: devices: missing"),
        ("rows: [{model: gpt-1.5b, devices: 8}]", "nothing measured"),
        ("rows: [{model: gpt-1.5b, devices: 8, t_f_ms: -1}]", "t_f_ms: must be a number above 0"),
        ("rows: [{model: gpt-1.5b, devices: 8, t_x_ms: 1}]", "t_x_ms: unknown key"),
        ("rows: [{model: gpt-1.5b, devices: 8, peak_gib: 9}]", "needs schedule and microbatches"),
        ("rows: [{model: gpt-1.5b, devices: 8, tp: 7, t_f_ms: 9}]", r"rows\[0\]"),
    ],
)
def test_bad_measurements_are_refused(tmp_path, text, problem) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(OptPipeError, match=problem):
        load_measurements(str(path), A100)


def test_calibration_refuses_nothing_to_go_by() -> None:
    with pytest.raises(OptPipeError, match="no measurements"):
        calibrate([], A100, "nothing")
