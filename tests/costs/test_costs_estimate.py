"""The estimate as a whole: stages, memory, offload section, parallelism, provenance, the command."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from optpipe_sim import CostProfile, build, load_profile, simulate
from optpipe_sim.cli import main
from optpipe_sim.costs import estimate, load_machine, load_model, stages
from optpipe_sim.costs.layer import Layer
from optpipe_sim.costs.machines import MachineError
from optpipe_sim.costs.models import embedding_parameters, mtp_parameters, parameters
from optpipe_sim.costs.provenance import iteration_ns, mfu
from optpipe_sim.costs.roofline import OpTime, efficiency, op_time
from optpipe_sim.errors import OptPipeError
from optpipe_sim.stage_cost import StageCost


def test_published_stage_before_any_calibration() -> None:
    """Zero Bubble, 14.6B: op times within a fifth, activation bytes by its closed form."""
    profile = estimate("gpt-14.6b", "a100-80gb", 16, seq=1024, flash=False)
    assert profile.meta["layers_per_stage"] == [2] + [3] * 14 + [2]
    stage = profile.stages[8]
    assert stage.act_bytes == 3 * 1024 * (34 * 5120 + 5 * 40 * 1024)
    assert stage.w_bytes == 3 * 32 * 1024 * 5120
    for ns, published in ((stage.t_f_ns, 11.347), (stage.t_b_ns, 11.248), (stage.t_w_ns, 8.132)):
        assert ns / 1e6 == pytest.approx(published, rel=0.2)
    assert profile.memory_limit[0] < 80 * 2**30


def test_all_parameters_lie_somewhere() -> None:
    for name in ("qwen3-8b", "mixtral-8x7b", "deepseek-v3"):
        model = load_model(name)
        for options in ({}, {"chunks": 2}, {"ep": 4, "dp": 4}):
            if options.get("ep") and not model.experts:
                continue
            profile = estimate(model, "h200", 8, seq=2048, **options)
            held = sum(profile.meta["parameters_per_device"])
            # layers for further tokens come with a copy of the token table
            further = mtp_parameters(model) + (model.mtp > 0) * embedding_parameters(model)
            if not options.get("ep"):
                assert held == parameters(model) + further
            else:
                assert held < parameters(model)


def test_more_of_everything_takes_longer_and_holds_more() -> None:
    def middle(**options):
        return estimate("llama3-8b", "h100", 4, layers=[8] * 4, **{"seq": 4096, **options}).stages[
            1
        ]

    base = middle()
    for more in ({"seq": 8192}, {"microbatch": 2}):
        other = middle(**more)
        assert min(other.t_f_ns / base.t_f_ns, other.act_bytes / base.act_bytes) > 1.9
    full, norms = middle(recompute="full"), middle(recompute="norms")
    assert full.t_b_ns == pytest.approx(base.t_b_ns + base.t_f_ns, rel=1e-6)
    assert base.t_b_ns < norms.t_b_ns < 1.1 * base.t_b_ns
    assert full.act_bytes < norms.act_bytes < base.act_bytes
    assert middle(flash=False).act_bytes > 2 * base.act_bytes
    assert middle(dtype="fp8").t_f_ns < base.t_f_ns < middle(dtype="tf32").t_f_ns


def test_efficiency_saturates() -> None:
    machine = load_machine("a100")
    big = efficiency(machine, 8192, 8192, 8192)
    assert 0.95 * machine.rates.gemm < big < machine.rates.gemm
    assert efficiency(machine, 256, 8192, 256) < 0.5 * big  # four tiles on 108 units
    assert efficiency(machine, 8192, 32, 8192) < 0.5 * big
    assert efficiency(machine, 129, 8192, 8192) < efficiency(machine, 128, 8192, 8192)


def test_tensor_parallelism_trades_memory_for_messages() -> None:
    one, eight = (
        estimate("llama3-70b", "h100", 8 * tp, tp=tp, seq=8192, offload=False) for tp in (1, 8)
    )
    assert one.devices == eight.devices == 8
    assert eight.stages[3].act_bytes * 8 == pytest.approx(one.stages[3].act_bytes, rel=1e-6)
    assert eight.meta["time_spent"]["messages"] > 0.05
    assert one.meta["time_spent"]["messages"] == 0
    assert one.stages[3].t_f_ns / 8 < eight.stages[3].t_f_ns < one.stages[3].t_f_ns / 4
    # a node holds one stage, so that every hop crosses the network; an eighth of the bytes though
    assert eight.t_comm_ns < one.t_comm_ns


def test_zero_shares_out_static_memory() -> None:
    static = []
    for zero in (0, 1, 2, 3):
        profile = estimate("llama3-8b", "h100", 4, dp=8, zero=zero, seq=2048)
        weights = max(profile.meta["weights_bytes_per_device"])
        static.append(weights / max(profile.meta["parameters_per_device"]))
    assert static == pytest.approx([18, 6 + 12 / 8, 2 + 16 / 8, 18 / 8], abs=1e-3)
    plain, sharded = (
        estimate("llama3-8b", "h100", 4, dp=8, zero=zero, seq=2048) for zero in (0, 3)
    )
    assert plain.meta["iteration"]["gradient_sync_ms"] > 0
    assert sharded.meta["iteration"]["gradient_sync_ms"] == 0
    assert sharded.stages[1].t_f_ns >= plain.stages[1].t_f_ns


def test_offload_section_follows_the_machine(tmp_path) -> None:
    a100 = estimate("gpt-10.5b", "a100", 8, seq=4096, recompute="norms")
    assert a100.offload.host_link_groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    stage = a100.stages[3]
    assert stage.t_offload_ns == pytest.approx(stage.offload_bytes / 15, rel=1e-6)
    # both devices of a switch belong to one stage and copy at the same time
    tp2 = estimate("gpt-10.5b", "a100", 16, tp=2, seq=4096, recompute="norms")
    assert tp2.offload.host_link_groups == ()
    assert tp2.stages[3].t_offload_ns == pytest.approx(
        2 * tp2.stages[3].offload_bytes / 15, rel=1e-6
    )
    assert tp2.offload.devices_per_node == 4
    assert tp2.offload.host_limit_bytes == pytest.approx(
        a100.offload.host_limit_bytes / 2, rel=1e-6
    )
    assert estimate("gpt-10.5b", "a100", 8, offload=False).offload is None
    mine = tmp_path / "bare.yaml"
    mine.write_text(
        "{peak_tflops: {bf16: 100}, units: 64, memory_gib: 80, memory_gb_per_s: 1000,"
        " devices_per_node: 8, link: x, link_gb_per_s: 16, network_gb_per_s: 3,"
        " achieved: {gemm: 0.8, attention: 0.6, bandwidth: 0.8}}"
    )
    assert estimate("gpt-10.5b", str(mine), 8).offload is None
    with pytest.raises(MachineError, match="no PCIe data, so no offloading"):
        estimate("gpt-10.5b", str(mine), 8, offload=True)


def test_free_memory_of_a_published_run() -> None:
    """PipeOffload, 18.1B at 8192: 1F1B holds 37 GiB of activations, 1F1B-I 49 (within 5 %)."""
    for schedule, gib, options in (
        ("1f1b", 37, {"layers": [2] + [3] * 14 + [2]}),
        ("1f1b-i", 49, {"chunks": 3}),
    ):
        profile = estimate(
            "gpt-18.1b", "a100", 16, seq=8192, recompute="norms", offload=False, **options
        )
        trace = simulate(build(schedule, profile, 128), profile, enforce=False)
        weights = profile.meta["weights_bytes_per_device"]
        held = max(b - w for b, w in zip(trace.peak_bytes, weights, strict=True)) / 2**30
        assert held == pytest.approx(gib, rel=0.05)


def test_iteration_and_mfu() -> None:
    own = {"seq": 4096, "recompute": "norms", "chunks": 5, "execution": "pipeoffload-a100"}
    profile = estimate("gpt-10.5b", "a100-80gb", 8, **own)
    trace = simulate(build("1f1b-i", profile, 64), profile, enforce=False)
    time_ns = iteration_ns(profile, trace.cost_ns)
    assert time_ns > trace.cost_ns / (1 - 0.064)
    assert mfu(profile, time_ns, 64) == pytest.approx(0.65, abs=0.02)  # as published


def test_provenance_and_round_trip(tmp_path) -> None:
    profile = estimate("qwen3-8b", "a100-80gb", 8, tp=2, seq=8192)
    meta = profile.meta
    assert meta["provenance"]["t_f, t_b, t_w"] == "estimated with fitted rates"
    assert meta["rates"]["gemm"]["is"].startswith("fitted to the Zero Bubble")
    assert meta["rates"]["collective"]["is"].startswith("estimated: Pipeline Parallelism with")
    plain = estimate("qwen3-8b", "h100", 8, tp=2, seq=8192)
    assert set(plain.meta["provenance"].values()) == {"estimated"}
    path = tmp_path / "p.yaml"
    from optpipe_sim.profile_io import save_profile

    save_profile(profile, path)
    again = load_profile(path)
    assert again == profile
    assert again.meta["layers_per_stage"] == meta["layers_per_stage"]


def test_layers_that_are_alike_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []

    def counted(layer: Layer, op: str, *others: Any) -> OpTime:
        timed.append(op)
        return op_time(layer, op, *others)

    monkeypatch.setattr(stages, "op_time", counted)
    stages.model_costs.cache_clear()
    profile = estimate("llama3-70b", "h100", 32, tp=2, seq=8192)
    assert sum(profile.meta["layers_per_stage"]) == 80
    assert timed == ["F", "B", "W"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"devices": 6, "tp": 3}, "tp: 3 does not divide the 32 heads of qwen3-8b"),
        ({"devices": 64}, "stages: 64 .* but qwen3-8b has 36 layers"),
        ({"devices": 8, "tp": 3}, "devices: 8 are not a multiple of tp 3"),
        ({"devices": 8, "zero": 4}, "zero: expected 0, 1, 2 or 3"),
        ({"devices": 8, "chunks": 0}, "chunks"),
        ({"devices": 4, "layers": [9, 9, 9, 10]}, "add up to 36"),
        ({"devices": 0}, "devices"),
        ({"devices": 8, "dtype": "fp4"}, "dtype"),
        ({"devices": 8, "machine": "a100", "dtype": "fp8"}, "no peak rate for fp8"),
    ],
)
def test_bad_splits_are_refused_in_one_line(options, problem) -> None:
    arguments = {"model": "qwen3-8b", "machine": "h100", **options}
    with pytest.raises(OptPipeError, match=problem) as caught:
        estimate(**arguments)
    assert "\n" not in str(caught.value)


COMMAND = [
    "estimate",
    "--model",
    "qwen3-8b",
    "--machine",
    "h100",
    "--devices",
    "8",
    "--tp",
    "2",
    "--microbatch",
    "1",
    "--seq",
    "8192",
]


def test_command(tmp_path, capsys) -> None:
    path = tmp_path / "P.yaml"
    assert main([*COMMAND, "--save", str(path)]) == 0
    text = capsys.readouterr().out
    assert "8.191B parameters" in text
    assert "pipeline of 4 devices" in text
    profile = load_profile(path)
    assert profile.devices == 4
    assert main([*COMMAND, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert load_profile(data["profile"]) == profile
    assert data["parameters"] == parameters(load_model("qwen3-8b"))


def test_command_refuses_in_one_line(capsys) -> None:
    for words, problem in (
        (["--tp", "3", "--devices", "6"], "does not divide the 32 heads"),
        (["--devices", "64", "--tp", "1"], "36 layers"),
        (["--model", "nosuch"], "no such name"),
        (["--layers", "a,b"], "--layers"),
        (["--calibrate", "nosuch.yaml"], "no such file"),
    ):
        assert main([*COMMAND, *words]) == 2
        error = capsys.readouterr().err
        assert problem in error
        assert error.count("\n") == 1


def test_slices_add_up_to_the_sequence() -> None:
    """Attention of n causal slices is that of the sequence; bytes are the same; KV stays whatever is
    recomputed, so that `full` keeps it beside its inputs."""

    def of(slices: int) -> CostProfile:
        return estimate("llama3-8b", "h100", 4, seq=65536, slices=slices, levels=True)

    whole, cut = of(1).stages[1], of(8).stages[1]
    times = [part.t_f_ns for part in cut.slices]
    steps = {after - before for before, after in pairwise(times)}
    assert max(steps) - min(steps) <= 1
    assert whole.t_f_ns < cut.t_f_ns < 1.02 * whole.t_f_ns
    assert cut.act_bytes == whole.act_bytes
    part, full = cut.slices[7], cut.slices[7].level("full")
    assert part.kv_bytes == 8 * 65536 // 8 * 2 * 8 * 128 * 2  # layers, tokens, K and V, heads, bf16
    assert full is not None
    assert full.keep_bytes == part.kv_bytes + 8 * 65536 // 8 * 4096 * 2
    assert part.offload_bytes == part.act_bytes - part.kv_bytes  # which later backward passes read
    # gradients of the keys and values of all slices but the last, until their own backward
    layers = of(8).meta["layers_per_stage"]
    alone = estimate("llama3-8b", "h100", 4, seq=65536 // 8, layers=layers).stages[1]
    assert cut.static_bytes == alone.static_bytes + 7 * part.kv_bytes
    assert full.t_ns > 0.9 * part.t_f_ns
    for wrong in ({"slices": 3}, {"slices": 2, "flash": False}):
        with pytest.raises(OptPipeError, match="slices: "):
            estimate("llama3-8b", "h100", 4, seq=65536, **wrong)


def test_slices_of_equal_time_are_shorter_the_later_they_are() -> None:
    """A stage in the middle takes equally long for each, but for what shorter kernels lose; they add up to
    the sequence, in whole tiles, and to its keys and values."""
    found = estimate("llama3-8b", "h100", 4, seq=65536, slices=8, slice_by="time", levels=True)
    lengths = found.meta["work"]["slices"]
    assert sum(lengths) == 65536
    assert lengths == sorted(lengths, reverse=True)
    assert all(length % 128 == 0 for length in lengths)
    parts = found.stages[1].slices
    times = [part.t_f_ns + part.t_b_ns + part.t_w_ns for part in parts]
    assert max(times) < 1.03 * min(times)
    assert {"norms", "full"} <= {level.name for level in parts[7].recompute}
    equal = estimate("llama3-8b", "h100", 4, seq=65536, slices=8).stages[1]
    assert sum(part.kv_bytes for part in parts) == sum(part.kv_bytes for part in equal.slices)
    assert abs(sum(times) / (equal.t_f_ns + equal.t_b_ns + equal.t_w_ns) - 1) < 0.01
    with pytest.raises(
        OptPipeError, match="slice_by: expected length, time, exchange, got 'tokens'"
    ):
        estimate("llama3-8b", "h100", 4, slices=2, slice_by="tokens")


def test_slices_whose_devices_exchange_context() -> None:
    """Equally long, and equally long in time; for each layer two messages more."""
    plain = estimate("llama3-8b", "h100", 4, seq=65536, slices=8)
    found = estimate("llama3-8b", "h100", 4, seq=65536, slices=8, slice_by="exchange")
    more = 2 * max(cost.layers or 0 for cost in plain.stages) * plain.t_comm_ns
    assert more > 0
    assert found.meta["work"] == plain.meta["work"] | {"slice_by": "exchange"}
    for cost, uneven in zip(found.stages, plain.stages, strict=True):
        assert {part.t_f_ns for part in cost.slices} == {-(-uneven.t_f_ns // 8) + more}
        assert {part.t_b_ns for part in cost.slices} == {-(-uneven.t_b_ns // 8) + more}
        assert [p.act_bytes for p in cost.slices] == [p.act_bytes for p in uneven.slices]
    whole = estimate("llama3-8b", "h100", 4, seq=65536, slice_by="exchange")
    assert whole == estimate("llama3-8b", "h100", 4, seq=65536)


def test_slices_that_devices_share() -> None:
    """Each holds its part of keys and values. In a ring those of earlier slices go round once more with each
    slice, which attention of few tokens cannot hide; heads have them already."""

    def of(slices: int, seq: int = 16384, cp: int = 16, context: str = "ring") -> StageCost:
        return estimate(
            "llama3-8b", "h100", 4 * cp, seq=seq, cp=cp, slices=slices, context=context
        ).stages[1]

    assert of(4).slices[0].kv_bytes == 8 * 16384 // 4 // 16 * 2 * 8 * 128 * 2
    assert of(4).t_f_ns > 1.5 * of(1).t_f_ns
    steps = {b.t_f_ns - a.t_f_ns for a, b in pairwise(of(4).slices)}
    assert max(steps) - min(steps) <= 1  # one slice's keys and values more each time
    assert of(8, 65536, 2).t_f_ns < 1.02 * of(1, 65536, 2).t_f_ns  # hidden
    heads = of(4, cp=8, context="heads")
    alone = estimate("llama3-8b", "h100", 4, seq=16384, slices=4).stages[1]
    more = [b.t_f_ns - a.t_f_ns for a, b in pairwise(heads.slices)]
    own = [b.t_f_ns - a.t_f_ns for a, b in pairwise(alone.slices)]
    assert all(8 * got <= 1.2 * full for got, full in zip(more, own, strict=True))


def test_experts_that_tp_divides_or_not() -> None:
    """Not divided, they get the tokens of one tp device each, and are sent half as many bytes."""
    split = {"tp": 2, "ep": 8, "dp": 8, "chunks": 2}
    usual, divided, whole = (
        estimate("qwen3-235b-a22b", "h100", 8, **split, etp=etp) for etp in (None, 2, 1)
    )
    assert usual.stages == divided.stages
    assert "etp" not in usual.meta["parallel"]
    assert whole.meta["parallel"]["etp"] == 1
    assert whole.stages[0].t_f_ns < divided.stages[0].t_f_ns
    with pytest.raises(OptPipeError, match="etp: expected 1 or tp, 2, got 4"):
        estimate("qwen3-235b-a22b", "h100", 8, **split, etp=4)
    with pytest.raises(OptPipeError, match="etp: ep 16 x etp 2 does not divide tp 2 x cp 1"):
        estimate("qwen3-235b-a22b", "h100", 8, tp=2, ep=16, dp=8, etp=2)
