"""Profiles from real stages: bytes that are the same with and without data, times, copies, the command."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
import torch
from runtime_cases import measured

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.costs import estimate, load_model
from optpipe_sim.costs.models import Model, parameters
from optpipe_sim.profile_io import save_profile
from optpipe_sim.runtime.measure import times
from optpipe_sim.runtime.measure.copies import _fit, copy_sizes, measure_copies
from optpipe_sim.runtime.measure.fake import fake_bytes, fake_profile
from optpipe_sim.runtime.measure.memory import LiveBytes
from optpipe_sim.runtime.measure.profiler import StageBytes, measure, stage_bytes, static_bytes
from optpipe_sim.runtime.measure.times import Clock, spread
from optpipe_sim.runtime.model.plan import Plan

SMALL = {"layers": 4, "hidden": 32, "heads": 4, "vocab": 50}
MODELS = (
    Model("gpt", **SMALL, style="gpt", tied=True, positions=16),
    Model("llama", **SMALL, kv_heads=2, ffn=48),
    Model(
        "experts", **SMALL, ffn=48, experts=4, experts_per_token=2, expert_ffn=24, dense_layers=1
    ),
)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_fake_bytes_are_the_real_ones(model, dtype) -> None:
    plan = Plan(model, 2, 2, seq=16, microbatch=2, dtype=dtype)
    for stage in sorted(set(plan.alike())):
        levels = ("norms", "full") if dtype == "fp32" else ()
        real = stage_bytes(plan, stage, "cpu", levels=levels)
        assert fake_bytes(plan, stage, levels) == real
        assert tuple(real.levels) == levels
        assert real.held[0] > 2**14
        assert all(value > 0 for value in real.inside.values())


def test_a_stage_that_no_machine_here_could_hold() -> None:
    model = load_model("llama3-405b")
    plan = Plan(model, 63, seq=8192, dtype="bf16", layers=(2,) * 63)
    found = fake_bytes(plan, 1)
    guess = estimate(model, "h100", 63, seq=8192, layers=plan.layers).stages[1]
    assert found.weights == 2 * found.parameters == 2 * 2 * 3_187_703_808
    assert found.held[0] == pytest.approx(guess.act_bytes, rel=0.01)
    assert found.held[1] == pytest.approx(guess.w_bytes, rel=0.01)


def test_stages_alike_are_measured_once() -> None:
    assert Plan(MODELS[1], 2, 2, seq=16, layers=(1, 1, 1, 1)).alike() == [0, 1, 1, 3]
    assert Plan(MODELS[2], 2, 2, seq=16, layers=(1, 1, 1, 1)).alike() == [0, 1, 1, 3]
    assert Plan(MODELS[1], 4, seq=16, layers=(1, 2, 1, 0)).alike() == [0, 1, 2, 3]


def test_the_reserve_is_the_devices_hungriest_op() -> None:
    plan = Plan(MODELS[1], 2, 2, seq=16)
    inside = ((5, 9, 1, 2), (1, 1, 1, 1), (3, 3, 3, 20), (7, 2, 1, 1))
    sizes = [
        StageBytes((10, 5), (10,), dict(zip(("F", "B", "W", "BW"), one, strict=True)), 40, 40, 10)
        for one in inside
    ]
    found = static_bytes(plan, sizes)
    assert [part["reserve"] for part in found] == [10, 4, 10, 4]  # of 20 and of 7, by two stages
    assert found[0] == {"weights": 40, "gradients": 40, "optimizer": 80, "reserve": 10}


def test_live_bytes_in_known_cases() -> None:
    before = torch.zeros(1000)
    with LiveBytes() as live:
        kept = torch.zeros(256)
        view = kept[:10].reshape(2, 5)
        assert live.held() == 1024
        del kept
        assert live.held() == 1024  # the view still needs it all
        del view
        assert live.held() == 0
        assert live.peak() == 1024
        live.reset_peak()
        assert before[:5].add_(1).sum() == 5  # only the sum and its comparison are new
        assert live.peak() < 100
        assert live.held() == 0
        live.reset_peak()
        (before + 1) * 2  # two temporaries at once
        assert live.peak() == 8000
        made: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: made.append(torch.zeros(100)))
        thread.start()
        thread.join()
        assert live.held() == 0  # another thread's
        live.add(made[0].untyped_storage())
        live.add(made[0].untyped_storage())
        assert live.held() == 400
        made.clear()
        assert live.held() == 0


def test_copies_are_fitted_by_latency_and_bandwidth() -> None:
    line = _fit({n: 5000 + n / 20 for n in (2**20, 2**22, 2**24)})
    assert line.latency_ns == pytest.approx(5000)
    assert line.gb_per_s == pytest.approx(20)
    assert line.time_ns(10**9, copies=10) == pytest.approx(10**9 / 20 + 50_000, abs=2)
    # a line that would start below 0 starts there
    assert _fit({n: n / 20 - 3000 for n in (2**20, 2**22, 2**24)}).latency_ns == 0
    assert _fit({2**20: 1000.0}).time_ns(2**21) == 2000


def test_copies_are_measured_up_to_the_largest_there_is() -> None:
    assert copy_sizes(100) == [2**16, 2**18, 2**20]
    assert copy_sizes(2**23) == [2**16, 2**18, 2**20, 2**22]
    assert copy_sizes(2**40) == [2**20, 2**22, 2**24, 2**26, 2**28]


def test_copies_are_measured_in_every_mode() -> None:
    asked: list[str] = []
    found = measure_copies(torch.device("cpu"), (2**16, 2**20), 3, asked.append)
    assert list(found) == ["alone", "together", "loaded", "all"]
    assert len(asked) == 4
    for both in found.values():
        for copy in both.values():
            assert set(copy.medians_ns) == {2**16, 2**20}
            assert copy.time_ns(2**20) > 0


def test_spread() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0])[:3] == (3.0, 1.5, 4.5)
    assert spread([7.0])[:3] == (7.0, 7.0, 7.0)


def test_a_measured_profile_can_be_read_and_used(tmp_path) -> None:
    plan = Plan(MODELS[1], 2, 2, seq=16, microbatch=2)
    reported: list[tuple[str, int, int]] = []
    profile = measure(plan, "cpu", 3, 1, lambda *news: reported.append(news))
    assert [done for _, done, _ in reported] == list(range(1, reported[-1][2] + 1))
    for stage, at in enumerate(plan.alike()):
        cost, size = profile.stages[stage], stage_bytes(plan, at, "cpu")
        assert cost.act_bytes == size.held[0]
        assert cost.w_bytes == size.held[1]
        assert cost.offload_bytes == size.moved
        assert min(cost.t_f_ns, cost.t_b_ns, cost.t_w_ns, cost.t_bw_ns) > 1000
        facts = profile.meta["stages"][stage]["times_us"]
        assert all(one["low"] <= one["median"] <= one["high"] for one in facts.values())
        assert all(0 < one["issue"] <= one["median"] for one in facts.values())
    found = profile.meta["interference"]
    assert set(found["copies"]) == {"d2h", "h2d"}
    for factors in found["stages"]:
        assert set(factors) == {"F", "B", "W", "BW"}
        assert all(factor > 0 for one in factors.values() for factor in one.values())
        assert all(
            set(one) == {"d2h", "h2d", "both", "message", "idle"} for one in factors.values()
        )
    weights = sum(part["static_bytes"]["weights"] for part in profile.meta["stages"])
    assert weights == 4 * parameters(MODELS[1])
    assert simulate(build("adaoffload", profile, 4), profile).makespan_ns > 0


def test_levels_of_recomputation_are_measured(tmp_path) -> None:
    plan = Plan(MODELS[1], 2, seq=16, microbatch=2, layers=(1, 3))
    profile = measured(plan, 3, 1, ("stage", "norms+mlp", "full-50%", "full"))
    save_profile(profile, tmp_path / "p.yaml")
    assert load_profile(tmp_path / "p.yaml") == profile
    for stage, cost in enumerate(profile.stages):
        found = {level.name: level for level in cost.recompute}
        order = [level.keep_bytes for level in cost.recompute]
        assert order == sorted(order, reverse=True)
        assert found["full"].layers == (1, 3)[stage]
        assert found["full-50%"].layers == (1, 2)[stage]
        assert found["norms+mlp"].layers is None
        times = profile.meta["stages"][stage]["times_us"]
        for level in cost.recompute:
            assert level.t_ns == pytest.approx(1000 * times[f"C {level.name}"]["median"], abs=6)
            assert {f"B {level.name}", f"BW {level.name}", f"F {level.name}"} <= times.keys()
        bytes_of = profile.meta["stages"][stage]["levels"]
        assert bytes_of["stage"]["keep"] == found["stage"].keep_bytes
    schedule = build("1f1b:recompute=full", profile, 4)
    trace = simulate(schedule, profile)
    plain = simulate(build("1f1b", profile, 4), profile)
    assert max(trace.peak_bytes) < max(plain.peak_bytes)
    assert trace.makespan_ns > plain.makespan_ns


def test_fake_times_are_those_of_the_estimate() -> None:
    plan = Plan(replace(load_model("gpt-1.5b"), layers=8), 4, seq=1024, dtype="bf16")
    profile = fake_profile(plan, "a100")
    guess = estimate(plan.model, "a100", 4, seq=1024, layers=plan.layers)
    for found, wanted in zip(profile.stages, guess.stages, strict=True):
        assert (found.t_f_ns, found.t_b_ns, found.t_w_ns) == (
            wanted.t_f_ns,
            wanted.t_b_ns,
            wanted.t_w_ns,
        )
        rate = found.offload_bytes / found.t_offload_ns
        assert rate == pytest.approx(wanted.offload_bytes / wanted.t_offload_ns, rel=1e-6)
    assert profile.t_comm_ns == guess.t_comm_ns
    assert profile.meta["provenance"]["t_f, t_b, t_w"] == "estimated"
    assert profile.meta["provenance"]["act, w, offload"].startswith("exact")


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(json.dumps({**SMALL, "kv_heads": 2, "ffn": 48}))
    return path


def test_the_command_measures_and_saves(command_line, small) -> None:
    line = f"profile --model {small} --device cpu --stages 2 --seq 16 --micro-batch 2 --samples 2"
    answer = command_line(f"{line} --warmup 0 --machine h100 --save P.yaml --json")
    assert answer.code == 0
    assert answer.json["measured"] is True
    profile = load_profile("P.yaml")
    assert load_profile(answer.json["profile"]) == profile
    assert profile.meta["device"]["kind"] == "cpu"
    assert profile.meta["versions"]["torch"] == torch.__version__
    assert profile.meta["provenance"]["t_comm"] == "estimated for h100-sxm"
    assert profile.t_comm_ns > 0
    shown = command_line(f"{line} --warmup 0")
    assert "not fit" not in shown.out
    assert "copies to and from the host, GB/s: alone" in shown.out
    assert "give --machine" in shown.out
    assert command_line("simulate P.yaml --schedule zb-h1 -m 4 -q").code == 0


def test_the_command_gives_levels(command_line, tmp_path) -> None:
    small = tmp_path / "small.json"  # a layer per stage: each level is measured of both stages
    small.write_text(json.dumps({**SMALL, "layers": 2, "kv_heads": 2, "ffn": 48}))
    line = f"profile --model {small} --device fake --stages 2 --seq 16 --machine a100"
    profile = load_profile(command_line(f"{line} --levels --json").json["profile"])
    names = [level.name for level in profile.stages[0].recompute]
    assert names[0] == "norms"
    assert names[-2:] == ["full", "stage"]
    guess = estimate(load_model(small), "a100", 2, seq=16, levels=True).stages[0]
    assert profile.stages[0].level("full").t_ns == guess.level("full").t_ns
    assert profile.stages[0].level("stage").t_ns == profile.stages[0].t_f_ns
    shown = command_line(f"{line} --levels full,stage")
    assert "recomputing" in shown.out
    assert "norms" not in shown.out
    for levels, said in (
        ("full,light", "recomputation level 'light': the runtime has norms, qkv"),
        ("full,full", "levels: full is there twice"),
        ("attention", "no time is estimated for 'attention'; there are norms"),
    ):
        answer = command_line(f"{line} --levels {levels}")
        assert answer.code == 2
        assert said in answer.complaint


def test_the_command_counts_on_fake_tensors(command_line, small) -> None:
    line = f"profile --model {small} --device fake --stages 2 --chunks 2 --seq 16 --save P.json"
    answer = command_line(line)
    assert answer.code == 0
    assert "bytes are exact" in answer.out
    assert "est." in answer.out
    plan = Plan(load_model(small), 2, 2, seq=16, dtype="bf16")
    assert load_profile("P.json").stages[0].act_bytes == stage_bytes(plan, 0, "cpu").held[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--device cuda --stages 2", "--device cuda: this torch is built without CUDA"),
        ("--device cpu --stages 7", "stages: 7 (devices along the pipeline x chunks), but small"),
        ("--device fake --stages 2 --layers 1,2", "layers: expected 2 numbers that add up to 4"),
        ("--device fake --stages 2 --dtype fp8", "dtype: the runtime has fp32, bf16, fp16"),
        ("--device fake --stages 2 --machine h1000", "machine 'h1000': no such name"),
        ("--device fake --stages 0", "argument --stages"),
        ("--device tpu --stages 2", "argument --device: invalid choice: 'tpu'"),
    ],
)
def test_refusals_are_one_line(command_line, small, options, said, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    answer = command_line(f"profile --model {small} {options}")
    assert answer.code == 2
    assert said in answer.complaint


def test_no_torch_is_one_line(command_line, small, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = command_line(f"profile --model {small} --device cpu --stages 2")
    assert answer.code == 2
    assert "pip install 'optpipe-sim[torch]'" in answer.complaint


def test_latent_attention_is_refused(command_line) -> None:
    answer = command_line("profile --model deepseek-v3 --device fake --stages 4")
    assert answer.code == 2
    assert "the runtime has no latent attention" in answer.complaint


def test_the_host_is_timed_beside_the_device(monkeypatch: pytest.MonkeyPatch):
    """A device of 5 ms per op, issued in 1 ms, once with the host held up for 9 ms."""
    now = {"host": 0, "device": 0}

    class Mark:
        def __init__(self, enable_timing: bool) -> None: ...

        def record(self) -> None:
            self.at_ms = now["device"]

        def elapsed_time(self, later) -> float:
            return later.at_ms - self.at_ms

    monkeypatch.setattr(torch.cuda, "Event", Mark)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(times.time, "perf_counter_ns", lambda: now["host"] * 10**6)
    clock = Clock(torch.device("cuda"))
    for host_ms, keep in ((0, False), (9, True), (1, True), (2, True)):
        with clock("F", keep):
            now["host"] += host_ms
            now["device"] += 5
    assert clock.times() == {"F": [5e6] * 3}
    assert clock.issued_ns == {"F": 1e6}
