"""Sizes and times whose unit is missing or wrong are refused, with the one that was probably meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from optpipe_sim import CostProfile, build, load_profile, simulate, solve
from optpipe_sim.cli import main
from optpipe_sim.costs.advise.evaluate import evaluate
from optpipe_sim.costs.calibrate import load_measurements
from optpipe_sim.costs.machine_files import load_machine
from optpipe_sim.errors import OptPipeError
from optpipe_sim.plot.axis import window_of
from optpipe_sim.solvers.frontier import frontier
from optpipe_sim.units import as_limit, written_size

REAL = {
    "name": "real",
    "devices": 2,
    "stages": {"t_f_ms": 100, "t_b_ms": 100, "t_w_ms": 100, "act_gib": 1, "static_gib": 4},
}
TINY = {
    "name": "tiny",
    "devices": 2,
    "stages": {"t_f_ns": 10, "t_b_ns": 10, "t_w_ns": 10, "act_bytes": 100},
}
RUN = {"model": "llama2-7b", "machine": "h100", "gpus": 8, "seq": 4096}


def profile(data: dict[str, object]) -> CostProfile:
    return load_profile(data)


@pytest.mark.parametrize(
    ("value", "meant"),
    [(40, "40GiB"), ("40", "40GiB"), ("71.8", "71.8GiB"), (40960, "40960MiB"), ("81559", "81559MiB")],
)  # fmt: skip
def test_a_limit_without_its_unit_is_refused_with_the_likely_one(
    value: str | int, meant: str
) -> None:
    with pytest.raises(OptPipeError, match=f"^limit: {value} is .*; did you mean {meant}\\?"):
        as_limit("limit", value)


@pytest.mark.parametrize(
    ("value", "size"), [("40B", 40), ("0", 0), (0, 0), (2**20, 2**20), (str(2**20), 2**20)]
)
def test_a_unit_or_a_megabyte_makes_a_limit_plain(value: str | int, size: int) -> None:
    assert as_limit("limit", value) == size


def test_a_limit_that_no_device_has_is_refused() -> None:
    assert as_limit("limit", "16TiB") == 2**44
    with pytest.raises(OptPipeError, match=r"81920GiB is 80 TiB, .* did you mean 80GiB"):
        as_limit("limit", "81920GiB")


def test_tiny_profiles_take_plain_bytes() -> None:
    tiny = profile(TINY)
    assert simulate(build("1f1b", tiny, 4), tiny, memory_limit=200).peak_bytes == (200, 100)
    assert frontier(tiny, 2, [200], schedules=["1f1b"], time_limit=1).points[0].result
    assert build("zb-1p:limit=200", tiny, 2)


def test_every_function_with_a_limit_asks_for_the_unit() -> None:
    real = profile(REAL)
    asks = pytest.raises(OptPipeError, match="40 is 40 bytes; did you mean 40GiB")
    with asks:
        simulate(build("1f1b", real, 4), real, memory_limit=40)
    with asks:
        solve(real, 4, memory_limit=40)
    with asks:
        frontier(real, 4, [40, 50])
    for name in ("zb-1p", "zb-v", "adaoffload", "adapipe", "mario"):
        with asks:
            build(f"{name}:limit=40", real, 4)
    with asks:
        evaluate(**RUN, microbatches=8, memory_limit=40)


def test_an_explicit_limit_of_few_bytes_stays_possible() -> None:
    real = profile(REAL)
    with pytest.raises(OptPipeError, match="least limit that works is"):
        solve(real, 4, memory_limit="40B")
    points = frontier(real, 2, ["40B", "8GiB"], schedules=["1f1b"], time_limit=1).points
    assert [point.result is None for point in points] == [True, False]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("simulate P --schedule 1f1b -m 4 --memory-limit 40", "--memory-limit: 40 is 40 bytes; did you mean 40GiB?"),
        ("solve P -m 4 --memory-limit 40960", "--memory-limit: 40960 is 40960 bytes; did you mean 40960MiB?"),
        ("compare P -m 4 --memory-limit 81920GiB", "--memory-limit: 81920GiB is 80 TiB, more than any device has; did you mean 80GiB?"),
        ("frontier P -m 4 --limits 30,40,50", "--limits: 30 is 30 bytes; did you mean 30GiB?"),
        ("advise --model llama2-7b --machine h100 --gpus 8 --seq 4096 --global-batch 8 --memory-limit 40", "--memory-limit: 40 is 40 bytes; did you mean 40GiB?"),
        ("evaluate --model llama2-7b --machine h100 --gpus 8 --seq 4096 -m 8 --memory-limit 40", "--memory-limit: 40 is 40 bytes; did you mean 40GiB?"),
        ("evaluate --model llama2-7b --machine h100 --gpus 8 --seq 4096 -m 8 --measured-ms 2.9", "--measured-ms: 2.9 ms per iteration is an MFU of "),
        ("evaluate --model llama2-7b --machine h100 --gpus 8 --seq 4096 -m 8 --measured-gib 71000", "--measured-gib: 69.34 TiB is more than the 79.6 GiB of one h100-sxm; did you mean 69.34 GiB?"),
    ],
)  # fmt: skip
def test_the_command_line_names_its_option(
    words: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.json"
    from optpipe_sim.profile_io import save_profile

    save_profile(profile(REAL), str(path))
    assert main([str(path) if word == "P" else word for word in words.split()]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert len(error.splitlines()) == 1


def test_measured_times_beyond_the_peak_of_the_machine_are_refused() -> None:
    found = evaluate(**RUN, microbatches=8)
    ns = found.row.iteration_ns
    assert evaluate(**RUN, microbatches=8, measured_ns=ns).time_ratio == 1
    for measured, meant in ((ns / 1e3, 1.0), (ns * 1e3, 1.0)):
        with pytest.raises(OptPipeError, match=r"^measured_ns: .*; did you mean ") as caught:
            evaluate(**RUN, microbatches=8, measured_ns=measured)
        said = re.search(r"mean ([\d.]+) (m?s)\?", str(caught.value))
        assert said
        seconds = float(said[1]) * {"s": 1, "ms": 1e-3}[said[2]]
        assert seconds == pytest.approx(meant * ns / 1e9, rel=1e-3)


def test_measured_peaks_above_the_memory_of_the_device_are_refused() -> None:
    most = load_machine("h100").memory_gib
    peak = evaluate(**RUN, microbatches=8).row.peak_bytes
    assert evaluate(**RUN, microbatches=8, measured_bytes=peak).memory_ratio == 1
    evaluate(**RUN, microbatches=8, measured_bytes=round(most * 2**30))
    for wrong in (peak * 1024, peak // 1024):
        with pytest.raises(OptPipeError, match=r"^measured_bytes: .*; did you mean .* GiB"):
            evaluate(**RUN, microbatches=8, measured_bytes=wrong)


@pytest.mark.parametrize(
    ("measured", "key"),
    [("iteration_ms: 2.9", "iteration_ms"), ("peak_gib: 71000", "peak_gib"), ("t_f_ms: 0.024", "t_f_ms")],
)  # fmt: skip
def test_files_of_measurements_are_held_to_the_same(
    measured: str, key: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.yaml"
    row = "model: llama2-7b, devices: 4, seq: 4096, schedule: 1f1b, microbatches: 8"
    path.write_text(f"rows:\n- {{{row}, {measured}}}\n")
    with pytest.raises(OptPipeError, match=rf"rows\[0\]: {key}: .*did you mean"):
        load_measurements(str(path), load_machine("h100"))


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("t_f_ms", 18_522_000, "t_f_ns"),
        ("t_f_s", 18_522, "t_f_us"),
        ("act_gib", 81920, "act_mib"),
        ("static_mib", 20 * 2**30, "static_bytes"),
    ],
)
def test_keys_of_profiles_whose_unit_cannot_be(key: str, value: int, meant: str) -> None:
    stem = key.rpartition("_")[0]
    stages = {name: each for name, each in REAL["stages"].items() if not name.startswith(stem)}  # type: ignore[attr-defined]
    with pytest.raises(OptPipeError, match=rf"{key}: {value} is .*; did you mean {meant}\?"):
        profile({**REAL, "stages": {**stages, key: value}})


def test_an_instant_without_its_unit() -> None:
    real = profile(REAL)
    trace = simulate(build("1f1b", real, 8), real)
    assert window_of(trace, "120ms").from_ns == 120_000_000
    assert window_of(trace, "120000000").from_ns == 120_000_000
    with pytest.raises(OptPipeError, match=r"120: is 120 ns of .*; did you mean 120ms"):
        window_of(trace, "120")


def test_options_keep_a_size_as_it_was_written() -> None:
    assert [written_size(text) for text in ("80GB", " 40GiB ", "200B", "7")] == ["80GB", "40GiB", "200B", 7]  # fmt: skip
