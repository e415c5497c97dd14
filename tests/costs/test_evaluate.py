"""`evaluate`: what one runs today, predicted, beside what it takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from optpipe_sim import Schedule, advise, build, evaluate, load_profile, simulate
from optpipe_sim.cli import main
from optpipe_sim.costs import estimate, load_machine, load_model
from optpipe_sim.costs.advise.space import Question
from optpipe_sim.costs.calibrate import calibrate, load_measurements
from optpipe_sim.costs.doubt import between_layouts
from optpipe_sim.costs.provenance import iteration_ns
from optpipe_sim.costs.work import Work
from optpipe_sim.errors import OptPipeError
from optpipe_sim.execution import load_execution
from optpipe_sim.frameworks.megatron.family import plan_for
from optpipe_sim.reasons.hints import Hint

RUN: dict[str, Any] = {"pp": 4, "tp": 8, "microbatches": 8}


def today(**changes: Any) -> Any:
    return evaluate("llama3-70b", "h100", 64, 8192, **{**RUN, **changes})


def test_predicts_what_estimate_and_replay_say() -> None:
    row = today(recompute="norms").row
    profile = estimate("llama3-70b", "h100", 32, tp=8, dp=2, zero=1, seq=8192, recompute="norms")
    trace = simulate(build("1f1b", profile, 8), profile, enforce=False)
    assert row.iteration_ns == iteration_ns(profile, trace.makespan_ns)
    assert row.peak_bytes == max(trace.peak_bytes)
    assert (row.choice.dp, row.tokens) == (2, 2 * 8 * 8192)
    assert row.bound_ns <= row.iteration_ns


@pytest.mark.parametrize("schedule", ["seq1f1b:slices=4", "1f1b"])
def test_no_bound_is_above_the_replay_that_it_stands_beside(schedule: str) -> None:
    # neither fits; within the limit, whole sequences take longer than slices without one
    run: dict[str, Any] = {"pp": 4, "tp": 2, "global_batch": 8, "schedule": schedule}
    found = evaluate("llama3-8b", "h100", 8, 65536, **run)
    assert not found.row.trace.fits
    assert found.row.bound_ns <= found.row.iteration_ns
    measured = evaluate("llama3-8b", "h100", 8, 65536, measured_ns=found.row.iteration_ns, **run)
    assert "no schedule takes less" not in " ".join(measured.findings())


def test_its_profile_is_dealt_layer_by_layer() -> None:
    mine = today().row.profile.rechunk(2)
    other = estimate("llama3-70b", "h100", 32, tp=8, dp=2, zero=1, seq=8192, chunks=2)
    assert [cost.layers for cost in mine.stages] == [cost.layers for cost in other.stages]
    times = [cost.t_f_ns for cost in other.stages]  # a layer's is rounded
    assert [cost.t_f_ns for cost in mine.stages] == pytest.approx(times, rel=1e-6)


def test_experts_may_take_the_place_of_tp(tmp_path: Path) -> None:
    run: dict[str, Any] = {"pp": 4, "tp": 4, "ep": 4, "microbatches": 8}
    shared, own = (evaluate("qwen3-30b-a3b", "h100", 64, 4096, etp=etp, **run) for etp in (None, 1))
    assert str(own.row.choice).endswith(" etp 1")
    assert own.row.iteration_ns != shared.row.iteration_ns
    plan, _ = plan_for(own.row.trace.schedule, own.row.profile)
    assert "--expert-tensor-parallel-size 1" in plan.command()
    plan, _ = plan_for(shared.row.trace.schedule, shared.row.profile)
    assert "--expert-tensor" not in plan.command()
    measured = evaluate("qwen3-30b-a3b", "h100", 64, 4096, etp=1, measured_ns=5e9, **run)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"rows": [measured.measurement()]}))
    assert load_measurements(path, load_machine("h100"))
    with pytest.raises(OptPipeError, match="etp: expected 1 or tp, 4, got 2"):
        evaluate("qwen3-30b-a3b", "h100", 64, 4096, etp=2, **run)
    with pytest.raises(OptPipeError, match="etp: llama3-70b has no experts; leave it out"):
        today(etp=1)


def test_who_shares_an_expert_is_asked_for() -> None:
    def found(**asked: tuple[int, ...]) -> set[tuple[int, int | None]]:
        model, machine = load_model("qwen3-30b-a3b"), load_machine("h100")
        question = Question(model, machine, 16, 16, Work(), 70 * 2**30, **asked)
        return {(choice.tp, choice.etp) for choice in question.choices()}

    assert {etp for _, etp in found()} == {None}
    assert found(tp=(1, 4), etp=(1, 4)) == {(1, 1), (4, 1), (4, 4)}
    with pytest.raises(OptPipeError, match=r"no way to spread .* with tp 4, etp 2"):
        found(tp=(4,), etp=(2,))


@pytest.mark.parametrize(
    ("schedule", "chunks", "placement"),
    [
        ("zb-v", 2, "vee"),
        ("1f1b-i", 2, "loop"),
        ("1f1b-i:chunks=4", 4, "loop"),
        ("gpipe", 1, "loop"),
    ],
)
def test_schedules_have_their_shape(schedule: str, chunks: int, placement: str) -> None:
    row = today(schedule=schedule).row
    assert (row.profile.chunks, row.choice.placement) == (chunks, placement)
    assert row.trace.schedule.shape.chunks == chunks


def test_a_peak_of_one_rank_has_its_prediction() -> None:
    found = evaluate("llama3-8b", "h100", 8, 4096, microbatches=8, pp=8)
    peaks = found.to_json()["peak_bytes_by_device"]
    assert len(peaks) == 8
    assert max(peaks) == found.row.peak_bytes > peaks[-1]


def test_ratios_and_what_they_mean() -> None:
    row = today().row
    time, peak = row.iteration_ns, row.peak_bytes
    near = today(measured_ns=time * 1.01, measured_bytes=int(peak * 1.01))
    assert near.time_ratio == pytest.approx(1.01)
    assert near.memory_ratio == pytest.approx(1.01)
    assert near.measured_mfu() == pytest.approx(row.mfu / 1.01)
    assert near.measured_tokens_per_s == pytest.approx(row.tokens_per_s / 1.01)
    text = " ".join(near.findings())
    assert "as near as compared runs are in the median" in text
    assert "within its usual error" in text
    far = " ".join(today(measured_ns=time * 2, measured_bytes="79GiB").findings())
    assert "50.0% too short: further off than any of the" in far
    assert "too low, beyond its usual error" in far
    fast = " ".join(today(measured_ns=time / 3).findings())
    assert "no schedule takes less than" in fast
    assert "the measured time is not plausible" in fast
    assert today().findings() == []
    assert today().time_ratio is None


def test_a_result_says_in_one_line_what_is_wrong_with_it() -> None:
    whole, few = repr(today(recompute="full")), repr(today(pp=1, tp=8))
    assert "not fit" not in whole
    assert "not plausible" not in whole
    assert few.endswith(", does not fit>")
    machine = load_machine("h100")
    ideal = {"gemm": 1.0, "attention": 1.0, "bandwidth": 1.0, "overhead": 0.0}
    quick = replace(machine, rates=replace(machine.rates, **ideal))
    fast = evaluate("llama3-70b", quick, 64, 8192, pp=4, tp=8, microbatches=64)
    assert repr(fast).endswith(", not plausible>")


def test_what_was_never_compared_says_so() -> None:
    found = evaluate(
        "qwen3-235b-a22b", "a100", 64, 4096, microbatches=8, pp=8, ep=8, measured_ns=1e10
    )
    assert any("no comparable run tells" in text for text in found.findings())
    assert any("predicted not to fit" in text for text in today(memory_limit="20GiB").findings())
    assert any(
        "levels" in text for text in found.advice.doubts(today(schedule="1f1b:recompute=full").row)
    )


def test_levels_count_as_recomputation() -> None:
    found = today(schedule="1f1b:recompute=full")
    parts = found.advice.parts(found.row)
    assert sum(parts.values()) == pytest.approx(1, abs=1e-6)
    assert parts["recompute"] > 0.1
    assert today().advice.parts(today().row)["recompute"] == 0


@pytest.mark.parametrize("more", [{}, {"schedule": "1f1b:recompute=full"}])
def test_the_measurement_calibrates(tmp_path: Path, more: dict[str, Any]) -> None:
    slower = today(**more).row.iteration_ns * 1.2
    found = today(measured_ns=slower, **more)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"rows": [found.measurement()]}))
    machine = load_machine("h100")
    fitted = calibrate(load_measurements(str(path), machine), machine, "mine")
    again = today(calibration=fitted, measured_ns=slower, **more)
    assert again.time_ratio == pytest.approx(1, abs=0.01)
    assert "rates fitted to 1 time (now 0.0% off)" in again.advice.basis
    # what was fitted to is no test
    assert any("the rates are fitted to this run" in text for text in again.findings())
    assert not any("compared runs" in text for text in again.findings())


def test_a_peak_that_cannot_be_fitted_is_no_error_of_times(tmp_path: Path) -> None:
    run = today().row
    found = today(measured_ns=run.iteration_ns * 1.1, measured_bytes=round(run.peak_bytes * 1.6))
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"rows": [found.measurement()]}))
    machine = load_machine("h100")
    fitted = calibrate(load_measurements(str(path), machine), machine, "mine")
    again = today(calibration=fitted).advice
    assert again.error is not None
    assert again.error < 0.01
    assert "1 time (now 0.0% off) and 1 peak (now 28.5% off)" in again.basis


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pp": 3}, "gpus: 64 are not a multiple of pp 3 x tp 8 x cp 1"),
        ({"schedule": "optpipe"}, "schedule: optpipe is searched for"),
        ({"schedule": "1f1b", "chunks": 2}, "chunks: 1f1b runs one chunk per device, not 2"),
        ({"recompute": "some"}, "recompute: expected none, norms, full"),
        ({"measured_bytes": "much"}, "'much' is not a size"),
        ({"ep": 2}, "llama3-70b has no experts"),
    ],
)
def test_what_can_never_be_is_one_line(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptPipeError) as caught:
        today(**changes)
    assert sentence in str(caught.value)
    with pytest.raises(OptPipeError, match="nothing was measured"):
        today().measurement()


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "evaluate --model llama3-8b --machine h100 --gpus 8 --pp 4 --seq 4096 --global-batch 32"
    files = {name: str(tmp_path / name) for name in ("p.yaml", "s.json", "m.yaml")}
    words = (
        f"{line} --measured-tokens-per-s 50000 --measured-gib 30 --save-profile {files['p.yaml']}"
    )
    words += f" --save {files['s.json']} --save-measurement {files['m.yaml']}"
    assert main(words.split()) == 0
    text = capsys.readouterr().out
    assert "measured / predicted" in text
    assert (
        "in four of five runs as megatron-lm issues them; dense models in bf16 on h100-sxm" in text
    )
    assert "issued: as by megatron-lm; --execution ideal" in text
    assert f"--global-batch 32 --calibrate {files['m.yaml']}" in text
    assert main([*words.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured"]["iteration_ns"] == pytest.approx(32 * 4096 / 50_000 * 1e9)
    assert found["measured"]["peak_bytes"] == 30 * 2**30
    ratio = found["measured"]["iteration_ns"] / found["iteration_ns"]
    assert found["ratio"]["iteration"] == pytest.approx(ratio, rel=1e-6)
    assert (found["dp"], found["microbatches"], found["schedule"]) == (2, 16, "1f1b")
    # the same run goes into its row, another into a row of its own, and no row is lost
    rows = files["m.yaml"]
    assert len(yaml.safe_load(Path(rows).read_text())["rows"]) == 1
    more = f"--json --save-measurement {rows}"
    assert main(f"{line} --measured-tokens-per-s 25000 {more}".split()) == 0
    other = line.replace("--global-batch 32", "--global-batch 64")
    assert main(f"{other} --measured-gib 31 {more}".split()) == 0
    capsys.readouterr()
    first, second = yaml.safe_load(Path(rows).read_text())["rows"]
    assert first["iteration_ms"] == pytest.approx(32 * 4096 / 25_000 * 1e3)
    assert (first["peak_gib"], first["microbatches"]) == (30, 16)
    assert (second["peak_gib"], second["microbatches"]) == (31, 32)
    assert "iteration_ms" not in second
    Path(rows).write_text("name: not rows\n")
    assert main(f"{other} --measured-gib 31 {more}".split()) == 2
    assert "expected one key, rows" in capsys.readouterr().err
    replayed = simulate(Schedule.load(files["s.json"]), load_profile(files["p.yaml"]))
    assert max(replayed.peak_bytes) == found["peak_bytes"]


def test_a_hint_is_the_evaluation_of_what_it_says() -> None:
    """Recomputing every layer is dear; what is said to be gained without is what evaluating that gives."""
    run = today(recompute="full")
    hint = next(one for one in run.hints(60) if one.key == "recompute")
    other = today(recompute=hint.what.removeprefix("recompute "))
    assert hint.time_ns == other.row.iteration_ns
    assert hint.peak_bytes == other.row.peak_bytes
    assert hint.gain == pytest.approx(1 - other.row.iteration_ns / run.row.iteration_ns)
    assert other.row.trace.fits
    assert not any(one.key == "recompute" for one in other.hints(60))


def test_a_hint_says_whether_it_may_gain_nothing() -> None:
    """Another schedule by the error of differences between schedules, all else by that between layouts."""
    found = [one.to_json() for one in today(recompute="full").hints(60)]
    assert {"schedule", "recompute"} <= {one["key"] for one in found}
    schedules = load_execution("megatron-lm").between
    for one in found:
        off = schedules if one["key"] == "schedule" else between_layouts()
        assert one["gain_interval"] == pytest.approx([one["gain"] - off, one["gain"] + off])
        assert one["toss_up"] == (one["gain"] <= off)
    unsure = Hint("microbatches of 1 sequence", "microbatch", 0.03, 9.7e9, 2**30, 0.068)
    assert (
        str(unsure)
        == "microbatches of 1 sequence: 9.7 s (-3.0%, a toss-up: such differences are ±6.8% off), peak 1 GiB"
    )
    assert "toss-up" not in str(unsure._replace(gain=0.07))


def test_experts_of_their_own_and_their_exchange_are_hinted_at() -> None:
    run: dict[str, Any] = {"pp": 4, "tp": 2, "ep": 8, "microbatches": 16}
    found = evaluate("qwen3-30b-a3b", "h100", 64, 4096, **run)
    hint = next(one for one in found.hints(60) if one.key == "experts")
    etp, _, exchange = hint.what.partition(", exchange ")
    assert etp == "etp 1"
    own = evaluate("qwen3-30b-a3b", "h100", 64, 4096, etp=1, exchange=exchange, **run)
    assert hint.time_ns == own.row.iteration_ns < found.row.iteration_ns


def test_advice_is_for_the_formats_of_the_run() -> None:
    """What `evaluate` says of a run with its formats, graphs and loss, `advise` says of the same split; its last commands name them."""
    how: dict[str, Any] = {
        "grad_reduce_in_bf16": True,
        "loss_fusion": "te",
        "cuda_graph_modules": ("attn",),
        "dtype": "fp8",
    }
    split: dict[str, Any] = {"pp": 2, "tp": 1, "ep": 4, "microbatch": 1, "zero": 1}
    run = evaluate("qwen3-30b-a3b", "h100", 16, 4096, global_batch=32, **split, **how)
    found = advise(
        "qwen3-30b-a3b",
        "h100",
        16,
        32,
        4096,
        chunks=1,
        recompute=["none"],
        schedules=["1f1b"],
        **split,
        **how,
    )
    assert found.rows[0].iteration_ns == run.row.iteration_ns
    assert found.rows[0].peak_bytes == run.row.peak_bytes


def test_the_commands_that_follow_are_for_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "evaluate --model qwen3-30b-a3b --machine h100 --gpus 16 --pp 2 --ep 4 -m 4 --seq 4096"
        " --grad-reduce-in-bf16 --loss-fusion te --cuda-graph-modules attn,moe_router"
    )
    main(line.split())
    following = capsys.readouterr().out.splitlines()[-1]
    assert " advise " in following
    assert (
        "--grad-reduce-in-bf16 --loss-fusion te --cuda-graph-modules attn,moe_router" in following
    )


def test_a_measurement_names_an_execution_that_ships() -> None:
    """By which people read the file; one of their own is written out."""
    found = today(measured_ns=4e9)
    assert found.measurement()["execution"] == "megatron-lm"
    own = replace(load_execution("megatron-lm"), name="mine")
    assert today(measured_ns=4e9, execution=own).measurement()["execution"]["name"] == "mine"
