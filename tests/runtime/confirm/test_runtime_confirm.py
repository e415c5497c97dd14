"""Predictions beside real runs: what the four modes confirm, what they notice, and what they leave open."""

from __future__ import annotations

import json
import math
import os
import signal
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from runtime_cases import with_levels, with_offloads
from slow_stages import MS, OP_NS, Leaking, Paced, as_, paced, with_long_levels

from optpipe_sim import CostProfile, Trace, build, simulate
from optpipe_sim.costs import load_model
from optpipe_sim.costs.models import Model
from optpipe_sim.errors import OptPipeError, OutOfMemory, RuntimeFault
from optpipe_sim.frameworks.imports.kineto import read_kineto
from optpipe_sim.frameworks.imports.measured import read_run
from optpipe_sim.ops import B, C, F, O, R
from optpipe_sim.profile_io import save_profile
from optpipe_sim.runtime.confirm import confirm as confirming
from optpipe_sim.runtime.confirm import one_device
from optpipe_sim.runtime.confirm.case import Case, free_bytes, plan_of
from optpipe_sim.runtime.confirm.confirm import confirm
from optpipe_sim.runtime.confirm.verdict import (
    Gradients,
)
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.runtime.measure.fake import fake_profile
from optpipe_sim.runtime.measure.machine import provenance
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.settings import Tolerances
from optpipe_sim.sim.lower import lower

MODEL = Model("tiny", 4, 32, 4, 50, kv_heads=2, ffn=48, tied=True)
PLAN = Plan(MODEL, 2, seq=16, microbatch=2)


def all_but_tied(gradients: Gradients) -> None:
    """Bitwise, but for the weight whose two copies' gradients are added up at the end."""
    assert gradients.bitwise == gradients.parameters - 1 > 20
    assert gradients.worst == "tokens.weight"
    assert gradients.problems(1e-6) == []


@pytest.fixture(scope="module")
def profile() -> CostProfile:
    return paced(fake_profile(PLAN, "h100-sxm"))


@pytest.fixture(scope="module")
def case(profile) -> Case:
    """A schedule that offloads, under a limit."""
    held = [cost.act_bytes for cost in profile.stages]
    limit = [static + 2 * act for static, act in zip(profile.static_bytes, held, strict=True)]
    schedule = build("adaoffload", replace(profile, memory_limit=tuple(limit)), 4)
    assert any(op.kind is R for program in schedule.programs for op in program)
    return Case(schedule, profile, limit, PLAN, iterations=2, sweeps=2)


@pytest.fixture(scope="module")
def with_two_levels() -> CostProfile:
    return with_long_levels(paced(fake_profile(PLAN, "h100-sxm", levels=("norms", "full"))))


@pytest.fixture(scope="module", params=[False, True], ids=["inside", "apart"])
def recomputing(request: pytest.FixtureRequest, with_two_levels: CostProfile) -> Case:
    """Activations that are kept, recomputed, offloaded, and both."""
    profile = with_two_levels
    base = with_offloads(build("zb-h1", profile, 6))
    schedule = with_levels(base, ("norms", "full"), apart=request.param)
    peaks = lower(schedule, profile).replay().peak_bytes
    return Case(schedule, profile, peaks, PLAN, iterations=1, sweeps=2)


def any_of(tries: int, case: Case, mode: str, ranks: Ranks | None = None) -> list[str]:
    """The problems of a run; noise only makes it longer, so the best of some counts."""
    found: list[str] = []
    for _ in range(tries):
        found = confirm(case, mode, ranks).problems
        if not found:
            break
    return found


# -- the modes -------------------------------------------------------------------------------------


def test_synthetic_sleeps_and_confirms_no_memory(case, two) -> None:
    found = confirm(case, "synthetic", two)
    predicted = case.lowered.replay().makespan_ns
    assert len(found.makespans_ns) == 2
    assert found.difference.measured.makespan_ns == min(found.makespans_ns) >= predicted
    assert all(row.median_ns >= row.predicted_ns for row in found.difference.kinds)
    assert not found.peaks
    assert found.gradients is None
    assert any("slept" in text for text in found.not_confirmed)


def test_pairs_run_as_two_ops_and_nothing_is_said_of_what_they_hide(profile, two) -> None:
    hiding = replace(profile, pair_hidden=profile.stages[0].t_f_ns)
    schedule = build("1f1b-i:chunks=1,pairs=yes", hiding, 4)
    case = Case(schedule, hiding, None, PLAN)
    assert case.lowered.replay().makespan_ns > simulate(schedule, hiding).makespan_ns
    found = confirm(case, "gradient", two)
    assert found.gradients is not None
    all_but_tied(found.gradients)
    assert f"what pairs hide: {int(schedule.paired.sum())} pairs ran as" in " ".join(
        found.not_confirmed
    )


def test_a_recorded_gradient_run_has_iterations_after_the_first(case, two, tmp_path) -> None:
    """The first one warms up, so that times are those of the others; the gradients are as without."""
    found = confirm(replace(case, iterations=2, kineto=str(tmp_path)), "gradient", two)
    assert found.gradients is not None
    all_but_tied(found.gradients)
    run = read_run([read_kineto(tmp_path / f"rank{rank}.json") for rank in range(2)])
    assert len(run.iterations_ns) == len(found.makespans_ns) == 2
    assert run.mean_ns == run.trace.makespan_ns == run.iterations_ns[1]


@pytest.mark.timing
def test_synthetic_takes_the_time_that_was_predicted(case, two) -> None:
    assert any_of(15, replace(case, iterations=1), "synthetic", two) == []


@pytest.mark.timing
def test_synthetic_takes_the_time_that_recomputation_is_predicted_to(recomputing, two) -> None:
    assert any_of(15, recomputing, "synthetic", two) == []


def test_gradient_mode_gives_the_unpipelined_gradients_and_peaks(case, two) -> None:
    found = confirm(case, "gradient", two)
    assert found.problems == []
    all_but_tied(found.gradients)
    assert found.gradients.loss == pytest.approx(math.log(MODEL.vocab), rel=0.05)
    for peak, most in zip(found.peaks, case.predicted_peaks, strict=True):
        assert peak.predicted_bytes == most > 0
        assert 0 < peak.measured_bytes <= 1.05 * most + 2**19


def test_gradient_mode_notices_stages_that_hold_more_than_the_profile_says(case, two) -> None:
    lying = case.profile.scale(memory=0.5)
    tight = Tolerances(memory_bytes=0)
    found = confirm(
        replace(case, profile=lying, memory_limit=None, tolerances=tight), "gradient", two
    )
    assert any("rank 0 held up to" in text for text in found.problems)
    assert not found.holds


def test_replay_measures_memory_after_every_op(case) -> None:
    found = confirm(case, "replay")
    all_but_tied(found.gradients)
    for peak in found.peaks:
        assert abs(peak.off_bytes) < 64  # the losses of the microbatches
        assert abs(peak.measured_bytes - peak.predicted_bytes) < 64
    assert len(found.makespans_ns) == 2
    low, high = min(found.makespans_ns), max(found.makespans_ns)
    assert 0 < low <= high
    assert any("20 ms" not in text and "makespan" in text for text in found.problems)


@pytest.mark.parametrize("mode", ["synthetic", "gradient", "replay", "loop"])
def test_recomputation_is_confirmed_in_every_mode(mode: str, recomputing, two, monkeypatch):
    if mode == "loop":
        as_(Paced, monkeypatch)
    found = confirm(recomputing, mode, two)
    apart = any(op.kind is C for program in recomputing.schedule.programs for op in program)
    assert apart == any(row.kind is C for row in found.difference.kinds)
    timing = ("makespan", "come to rest")  # depend on how busy the machine is
    assert [text for text in found.problems if not any(word in text for word in timing)] == []
    if mode == "synthetic":  # sleeps: a backward that recomputes sleeps longer
        assert all(row.median_ns >= row.predicted_ns for row in found.difference.kinds)
        return
    all_but_tied(found.gradients)
    for peak, most in zip(found.peaks, recomputing.predicted_peaks, strict=True):
        if mode == "replay":
            assert abs(peak.off_bytes) < 64
        else:
            assert 0 < peak.measured_bytes <= 1.05 * most + 2**19


def test_replay_notices_an_op_that_takes_half_as_long_again(case, monkeypatch) -> None:
    as_(Paced, monkeypatch)
    lying = replace(case, profile=paced(case.profile, f_ns=OP_NS * 2 // 3))
    found = confirm(lying, "replay")
    ratios = {(row.kind, row.stage): row.ratio for row in found.difference.kinds}
    assert min(ratios[F, 0], ratios[F, 1]) >= 1.5
    assert min(ratios[B, 0], ratios[B, 1]) >= 1
    assert found.difference.causes_ns["F"] >= 4 * (OP_NS - OP_NS * 2 // 3)
    assert any("makespan" in text for text in found.problems)


@pytest.mark.timing
def test_loop_confirms_ops_as_long_as_predicted(case, monkeypatch) -> None:
    as_(Paced, monkeypatch)
    monkeypatch.setattr(Paced, "pace_ns", 3 * OP_NS)
    slow = replace(case, profile=case.profile.scale(compute=3, copy=3), sweeps=3)
    assert any_of(3, slow, "loop") == []


def test_loop_runs_each_rank_alone(case, monkeypatch) -> None:
    as_(Paced, monkeypatch)
    found = confirm(case, "loop")
    all_but_tied(found.gradients)
    assert not [text for text in found.problems if "held" in text or "gradient" in text]
    assert len(found.makespans_ns) == 2
    assert found.last.makespan_ns > 0
    assert found.closure_ns >= 0
    assert found.noise_ns >= 0
    # ops take no less than predicted, nor does what is composed of them
    slower = [row for row in found.difference.kinds if row.kind not in (O, R)]
    assert all(row.median_ns >= row.predicted_ns for row in slower)
    assert found.difference.measured.makespan_ns > 0.9 * found.difference.predicted.makespan_ns
    assert any("one rank at a time with modelled links" in text for text in found.not_confirmed)


def test_where_kernels_do_not_repeat_the_noise_of_the_reference_is_told(case, monkeypatch) -> None:
    """As on a GPU: by how much the unpipelined gradients are off from themselves, beside how far ours are."""
    bench, real = one_device.Bench(case), one_device.make_contents
    off = {name: gradient.clone() for name, gradient in bench.check.wanted.items()}
    off["norm.weight"] *= 1.01
    bench.check.add(off)

    def another_time(plan: Plan, schedule: Any, seed: int, device: str) -> Any:
        found = real(plan, schedule, seed, "cpu")
        found.gradients["norm.weight"] *= 1.02
        return found

    monkeypatch.setattr(one_device, "make_contents", another_time)
    assert bench.gradients(0.0).noise is None  # kernels of a CPU do repeat
    bench.case = replace(case, device="cuda")
    found = bench.gradients(0.0)
    assert (found.worst, found.relative) == ("norm.weight", pytest.approx(0.01, rel=1e-3))
    assert found.noise == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize("mode", ["replay", "loop"])
def test_a_leak_that_no_slot_knows_of_is_noticed(case, mode, monkeypatch) -> None:
    as_(Leaking, monkeypatch)
    found = confirm(replace(case, iterations=1, sweeps=1), mode)
    wrong = [text for text in found.problems if text.startswith("rank")]
    assert [text[:11] for text in wrong] == ["rank 1 held"]
    all_but_tied(found.gradients)


def test_what_no_mode_can_run_is_refused(case) -> None:
    with pytest.raises(OptPipeError, match="gradient: its ranks are processes on the CPU"):
        confirm(replace(case, device="cuda"), "gradient")
    with pytest.raises(OptPipeError, match="expected synthetic, gradient, replay, loop"):
        confirm(case, "all")
    with pytest.raises(OptPipeError, match="mode loop: needs a model; only synthetic goes without"):
        confirm(replace(case, plan=None), "loop")
    with pytest.raises(OptPipeError, match="device: expected cpu or cuda, got 'tpu'"):
        replace(case, device="tpu")
    with pytest.raises(OptPipeError, match="iterations, sweeps: must be at least 1, got 0"):
        replace(case, iterations=0)
    with pytest.raises(OptPipeError, match="needs a --memory-limit"):
        free_bytes(replace(case, memory_limit=None), 0)
    act = case.profile.stages[1].act_bytes
    reserve = case.profile.meta["stages"][1]["static_bytes"]["reserve"]
    assert free_bytes(case, 1) == 2 * act + reserve > 2 * act


def test_out_of_memory_under_the_cap_is_an_answer(case, monkeypatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise RuntimeFault("rank 1: OutOfMemoryError: CUDA out of memory.")

    monkeypatch.setattr(one_device, "sweep_ranks", full)
    with pytest.raises(OutOfMemory, match=r"rank 1: .*capped at the limit"):
        confirm(replace(case, cap_memory=True), "loop")
    with pytest.raises(RuntimeFault, match="rank 1"):
        confirm(case, "loop")


def test_a_profile_knows_its_model(profile, tmp_path) -> None:
    found = plan_of(profile)
    assert found == PLAN
    assert plan_of(profile, seq=8, microbatch=1, dtype="bf16").boundary[0] == (1, 8, 32)
    for name in ("gpt-1.5b", "qwen3-30b-a3b", "llama2-7b"):
        model = load_model(name)
        meta = provenance(Plan(model, 2, seq=64, dtype="bf16"), None)
        again = plan_of(replace(profile, meta=json.loads(json.dumps(meta)))).model
        same = {f.name for f in fields(Model)} - {"source", "published_parameters"}
        same -= {"published_active"}
        assert all(getattr(again, key) == getattr(model, key) for key in same)
    with pytest.raises(OptPipeError, match="does not say which model it is of"):
        plan_of(replace(profile, meta={}))
    with pytest.raises(OptPipeError, match="does not say its seq; give --seq"):
        plan_of(replace(profile, meta={}), MODEL, microbatch=1)


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def line(command_line, profile, two, monkeypatch):
    """`confirm` with a profile in the folder, and ranks that are there already."""
    monkeypatch.setattr(confirming, "Ranks", lambda count: nullcontext(two))
    save_profile(profile, "p.yaml")

    def run(words: str):
        return command_line(f"confirm {words}")

    return run


def test_the_command_writes_figure_traces_and_json(line) -> None:
    files = "--figure f.png --trace t.json --save-trace m.json"
    answer = line(f"adaoffload p.yaml -m 3 --mode gradient {files} --json")
    assert answer.code == 0
    data = answer.json
    assert data["holds"]
    assert data["problems"] == []
    assert {"schedule", "mode", "device", "not_confirmed", "predicted_makespan_ns"} <= data.keys()
    assert {"measured_makespan_ns", "makespans_ns", "spread", "causes_ns", "ops"} <= data.keys()
    assert {"closure_ns", "composed_makespan_ns", "tolerances", "machine", "files"} <= data.keys()
    assert data["gradients"]["parameters"] - data["gradients"]["bitwise"] == 1
    assert [peak["rank"] for peak in data["memory"]] == [0, 1]
    assert sum(data["causes_ns"].values()) == (
        data["measured_makespan_ns"] - data["predicted_makespan_ns"]
    )
    trace = Trace.load("m.json")
    assert trace.makespan_ns == data["measured_makespan_ns"]
    with open("t.json") as file:
        assert sum(event["ph"] == "X" for event in json.load(file)["traceEvents"]) >= 18
    with open("f.png", "rb") as file:
        assert file.read(4) == b"\x89PNG"


def test_the_tables_say_what_holds_and_what_is_not_confirmed(line) -> None:
    answer = line("zb-h1 p.yaml -m 3 --mode replay --iterations 1")
    assert answer.code == 1  # ops that are said to take 20 ms take less
    for text in (
        "of each of 1 iterations",
        "F ops took less",
        "33 of 34 equal",
        "Not confirmed",
        "✗ the makesp",
    ):
        assert text in answer.out
    quiet = line("zb-h1 p.yaml -m 3 --mode replay --iterations 1 --time-tolerance 1000% -q")
    assert quiet.code == 0
    assert quiet.out.startswith("✓ the prediction holds")
    assert answer.out.startswith("✗ ")
    assert "Not confirmed" not in quiet.out
    stretched = line("1f1b p.yaml -m 2 --mode synthetic --iterations 1 --stretch 2 --json").json
    assert stretched["predicted_makespan_ns"] == 2 * 3 * 3 * OP_NS + 4 * MS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_mid_run_is_one_line(line, number, monkeypatch) -> None:
    usual = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(one_device, "run_step", lambda *_: os.kill(os.getpid(), number))
    answer = line("1f1b p.yaml -m 2 --mode loop --sweeps 1 --json --figure f.png")
    assert (answer.code, answer.err) == (130, "optpipe-sim: interrupted\n")
    assert answer.json["error"]["kind"] == "interrupted"
    assert not os.path.exists("f.png")
    assert signal.getsignal(signal.SIGTERM) is usual


def test_mistakes_are_refused_in_one_line(line, profile, monkeypatch) -> None:
    save_profile(replace(profile, meta={}), "bare.yaml")
    for words, code, text in (
        ("1f1b bare.yaml -m 2 --mode gradient", 2, "does not say which model"),
        ("1f1b p.yaml --mode gradient", 2, "-m: give the number of microbatches"),
        ("1f1b p.yaml -m 2 --mode gradient --memory-limit 1KiB", 1, "limit of 1 KiB is below"),
        ("1f1b p.yaml -m 2 --mode replay --device cuda", 2, "--device cuda: "),
        ("1f1b p.yaml -m 2 --mode replay --stretch 2", 2, "only for --mode synthetic"),
        ("1f1b p.yaml -m 2 --mode loop --memory-fraction", 2, "only for --mode loop --device cuda"),
        ("1f1b p.yaml -m 2 --mode replay --time-tolerance x", 2, "must be a share, as in 5%"),
        ("1f1b p.yaml -m 2 --mode replay --figure f.txt", 2, "must end in"),
        ("1f1b p.yaml -m 2 --mode replay --layers 1,1", 2, "layers"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        answer = line(words)
        assert answer.code == code, words
        assert text in answer.complaint
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "needs torch" in line("1f1b p.yaml -m 2 --mode gradient").complaint
