"""Microbatches of sequences of different lengths."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from optpipe_sim import CostProfile, build, check, load_profile, simulate
from optpipe_sim.costs import estimate, load_machine, load_model
from optpipe_sim.costs.estimating import estimated
from optpipe_sim.costs.layout import Layout
from optpipe_sim.costs.lengths import read_lengths, with_lengths
from optpipe_sim.costs.provenance import mfu, model_flops
from optpipe_sim.costs.work import Work
from optpipe_sim.errors import OptPipeError
from optpipe_sim.schedule import Schedule
from optpipe_sim.sim.forwards import forward_pass
from optpipe_sim.solvers.microbatch_order import relabelled

H100 = load_machine("h100")
EXPERTS = {"ep": 8, "dp": 8}  # on 16 GPUs


def _estimated(model: str, layout: Layout, work: Work) -> CostProfile:
    return estimated(load_model(model), H100, layout, work, levels=False)


def _totals(profile: CostProfile) -> tuple[int, int]:
    return (
        sum(cost.work_ns for cost in profile.stages),
        sum(cost.act_bytes for cost in profile.stages),
    )


def _with_lengths(
    model: str, layout: Layout, work: Work, lengths: list[list[int]]
) -> tuple[CostProfile, CostProfile]:
    usual = _estimated(model, layout, work)
    each = partial(_estimated, model)
    return usual, with_lengths(usual, load_model(model), layout, work, lengths, each)


@pytest.mark.parametrize(
    ("model", "layout", "work"),
    [
        ("llama3-8b", Layout(devices=4), Work(seq=4096)),
        ("llama3-8b", Layout(devices=4), Work(seq=4096, microbatch=2)),
        ("llama3-8b", Layout(devices=16, tp=2, cp=2), Work(seq=4096)),
        ("llama3-8b", Layout(devices=4), Work(seq=4096, flash=False)),
        ("qwen3-30b-a3b", Layout(devices=8), Work(seq=4096)),
        ("qwen3-30b-a3b", Layout(devices=16, **EXPERTS), Work(seq=4096)),
    ],
)
def test_factors_are_those_of_estimates_at_the_lengths(
    model: str, layout: Layout, work: Work
) -> None:
    """Also of packed sequences: as of so many in a microbatch. Stages have the same layers, whatever the length."""
    lengths = [[512], [1024], [4096], [16384], [32768], [2048] * 4, [8192] * 2, [1024] * 16]
    usual, found = _with_lengths(model, layout, work, lengths)
    same = replace(layout, layers=usual.meta["layers_per_stage"])
    for packed, (time, size) in zip(lengths, found.factors, strict=True):
        own = replace(work, seq=packed[0], microbatch=len(packed))
        direct = _estimated(model, same, own)
        (work_ns, held), (usual_ns, usually) = map(_totals, (direct, usual))
        assert float(time) == pytest.approx(work_ns / usual_ns, rel=0.02), packed
        assert float(size) == pytest.approx(held / usually, rel=0.02), packed
    largest = _estimated(model, same, replace(work, seq=32768, microbatch=1))
    if work.flash:  # else the sequences of 16,384 tokens in one
        assert found.static_bytes == largest.static_bytes
    assert found.rechunk(2).rechunk(1).static_bytes == pytest.approx(found.static_bytes, rel=0.01)


def test_warnings_of_the_usual_microbatch_stay_but_for_its_length() -> None:
    work = Work(seq=2**20, cuda_graph_modules=("attn",))
    usual, short = _with_lengths("qwen3-30b-a3b", Layout(16, **EXPERTS), work, [[1024], [2048]])
    assert len(usual.meta["warnings"]) == 2
    (left,) = short.meta["warnings"]
    assert left in usual.meta["warnings"]
    assert left.startswith("CUDA graphs of modules")


def test_unequal_sequences_are_between_equal_ones_and_one() -> None:
    """Attention is to the tokens of one's own sequence; all else counts tokens, as do bytes."""
    lengths = [[8192], [4096, 4096], [6144, 2048], [1024, 7168]]
    _, found = _with_lengths("llama3-8b", Layout(devices=4), Work(seq=8192), lengths)
    times = [float(time) for time, _ in found.factors]
    assert [float(size) for _, size in found.factors] == [1, 1, 1, 1]
    assert times[0] == 1
    whole, half = 1 - times[1], 1 - 0.5  # of the square: 1 and 1/2
    for at, squares in ((2, 0.625), (3, 0.78125)):
        assert 1 - times[at] == pytest.approx((1 - squares) / half * whole, abs=2e-4)


def test_lengths_that_devices_cannot_share_are_padded() -> None:
    layout = Layout(devices=16, tp=2, cp=2)
    _, found = _with_lengths("llama3-8b", layout, Work(seq=4096), [[4093], [4096], [4090, 3]])
    assert found.factors[0] == found.factors[1] == (1, 1)
    assert found.meta["work"]["lengths"] == [[4093], [4096], [4090, 3]]


def test_the_overhead_of_ops_is_in_no_factor() -> None:
    """It is added to ops whatever their length."""
    machine = H100.with_rates(replace(H100.rates, op_us=5000.0))
    model, layout, work = load_model("llama3-8b"), Layout(devices=4), Work(seq=4096)
    each = partial(estimated, model, machine, levels=False)
    found = with_lengths(each(layout, work), model, layout, work, [[1024], [4096]], each)
    _, bare = _with_lengths("llama3-8b", layout, work, [[1024], [4096]])
    assert found.stages[0].overhead_ns == 5_000_000
    assert found.microbatch_time == bare.microbatch_time


def test_a_microbatch_that_cannot_be_estimated_is_named() -> None:
    for lengths, problem in (
        ([[4096], []], "lengths: microbatch 1 has no sequences"),
        ([[4096], [2**24, 2**24]], "lengths: microbatch 1, of 33554432 tokens: seq: must be"),
    ):
        with pytest.raises(OptPipeError, match=problem):
            _with_lengths("llama3-8b", Layout(devices=4), Work(seq=4096), lengths)


def test_tokens_and_flops_are_those_of_all_microbatches(command_line) -> None:
    """Of one of 16,384 tokens beside one of 1,024, and not of two of the usual 4,096."""
    Path("lengths.txt").write_text("1024 1024\n16384\n4096\n8192\n")
    run = "estimate --model llama3-8b --machine h100 --devices 4 --dp 2 --no-levels"
    answer = command_line(f"{run} --lengths lengths.txt --save p.yaml --json").json
    profile = load_profile("p.yaml")
    trace = simulate(build("1f1b", profile, 4), profile, memory_limit="500GiB")
    seconds = trace.iteration_ns * 1e-9
    assert trace.tokens_per_s == pytest.approx(2 * 30720 / seconds)
    model = load_model("llama3-8b")
    each = [model_flops(model, *work) for work in ((2, 1024), (1, 16384), (1, 4096), (1, 8192))]
    flops, causal = map(sum, zip(*each, strict=True))
    assert trace.flops_per_s == pytest.approx(flops / 4 / seconds)
    share = causal / (4 * profile.meta["iteration"]["peak_flops_per_device"] * seconds)
    assert mfu(profile, trace.iteration_ns, 4, causal=True) == pytest.approx(share)
    forwards = forward_pass(build("1f1b", profile, 4), profile)
    assert forwards.tokens_per_s == pytest.approx(30720e9 / forwards.makespan_ns)
    # no schedule reaches more
    ceiling = answer["mfu_ceiling_causal"]
    assert 0.3 * ceiling < share < ceiling
    told = command_line("simulate p.yaml --schedule 1f1b -m 4 --memory-limit 500GiB").out
    assert f"{trace.tokens_per_s:,.0f} tokens/s over all replicas" in told


def test_the_tokens_of_factors_that_were_written_by_hand_are_not_known() -> None:
    profile = replace(
        estimate("llama3-8b", "h100", 4, levels=False), microbatch_time=(Fraction(1), Fraction(2))
    )
    trace = simulate(build("1f1b", profile, 2), profile, memory_limit="500GiB")
    assert trace.tokens_per_s is None
    assert trace.flops_per_s is None
    with pytest.raises(OptPipeError, match="does not say the lengths of its microbatches"):
        mfu(profile, 1e9, 2)


def test_files_of_lengths(tmp_path: Path) -> None:
    file = tmp_path / "lengths"
    file.write_text("# tokens\n4096 2048, 2048\n\n8192  # one\n")
    assert read_lengths(file) == [(4096, 2048, 2048), (8192,)]
    file.write_text("[8192, [4096, 4096]]")
    assert read_lengths(file) == [(8192,), (4096, 4096)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no lengths"),
        (
            "8192\nfour",
            "microbatch 1 (of 0 to 1): expected tokens of a sequence, from 1 to 10^9, got 'four'",
        ),
        ("[8192, 0.5]", "microbatch 1 (of 0 to 1): expected tokens"),
        ("[8192,", "is no JSON"),
        ("-1", "got '-1'"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text(text)
    with pytest.raises(OptPipeError) as error:
        read_lengths(file)
    assert problem in str(error.value)
    assert str(file) in str(error.value)


def test_an_estimate_for_lengths_is_solved_in_a_better_order(command_line) -> None:
    """A long last microbatch drains alone; the search puts it where others fill its time."""
    lengths = [2048, 2048, 4096, 2048, 2048, 2048, 2048, 16384]
    Path("lengths.txt").write_text("\n".join(map(str, lengths)))
    run = "estimate --model llama3-8b --machine h100 --devices 4 --seq 8192 --no-levels"
    answer = command_line(f"{run} --lengths lengths.txt --save p.yaml --json").json
    assert len(answer["profile"]["microbatch_time"]) == 8
    told = command_line(f"{run} --lengths lengths.txt").out
    assert "8 microbatches that differ: 0.2" in told
    given = command_line("simulate p.yaml --schedule 1f1b -m 8 --memory-limit 200GiB --json").json
    solve = "solve p.yaml -m 8 --memory-limit 200GiB --time-limit 2 --chunks 1 --save s.json --json"
    found = command_line(solve).json
    assert found["objective_ns"] < 0.93 * given["cost_ns"]
    assert found["lower_bound_ns"] <= found["objective_ns"]
    order = found["microbatch_order"]
    assert sorted(order["order"]) == list(range(8))
    assert order["given_iteration_ns"] is None or order["gain"] == pytest.approx(
        order["given_iteration_ns"] / found["iteration_ns"] - 1
    )
    assert check(Schedule.load("s.json"), load_profile("p.yaml"), 200 * 2**30) == []
    wrong = command_line("simulate p.yaml --schedule 1f1b -m 4")
    assert wrong.code == 2
    assert "has the factors of 8 microbatches, not of 4; take 8" in wrong.err


def test_exports_say_that_microbatches_differ(command_line) -> None:
    """The longest decides what the options say; what no option says is told."""
    Path("lengths.txt").write_text("2048\n4096 8192\n4096\n4096\n")
    run = "estimate --model llama3-8b --machine h100 --devices 4 --seq 4096 --microbatch 2 --no-levels"
    command_line(f"{run} --lengths lengths.txt --save p.yaml")
    profile = load_profile("p.yaml")
    build("1f1b", profile, 4).save("s.json")
    relabelled(build("1f1b", profile, 4), [3, 0, 1, 2]).save("other.json")

    def exported(schedule: str, trainer: str) -> dict[str, Any]:
        return command_line(
            f"export {schedule} p.yaml --format {trainer} -o plan.yaml --force --json"
        ).json

    megatron = exported("s.json", "megatron")
    options = megatron["options"]
    assert (options["seq-length"], options["max-position-embeddings"]) == (12288, 12288)
    assert (options["micro-batch-size"], options["global-batch-size"]) == (1, 4)
    assert megatron["fields"] == {"variable_seq_lengths": True}
    notes = "\n".join(megatron["notes"])
    assert "2,048 to 12,288 tokens, packed from sequences of at most 8,192" in notes
    assert "variable_seq_lengths=True is a field of its configuration without an option" in notes
    assert "order of microbatches" not in notes
    other = exported("other.json", "megatron")
    assert (other["told"], other["lost"], other["microbatch_order"]) == ("1f1b", [], [1, 2, 3, 0])
    assert "the plan's order of microbatches: 1 2 3 0" in "\n".join(other["notes"])
    torchtitan = exported("s.json", "torchtitan")
    training = torchtitan["options"]["training"]
    assert training["num_tokens_per_microbatch_per_dp_rank"] == 12288
    assert training["max_context_length"] == 8192
    assert "no option for microbatches of 2,048 to 12,288 tokens" in "\n".join(torchtitan["notes"])
    script = command_line(
        "export s.json p.yaml --format megatron -o plan.yaml --force --script run.sh"
    )
    assert script.code == 2
    assert "variable_seq_lengths has no option" in script.err


def test_the_family_of_a_trainer_names_its_order_of_microbatches(command_line) -> None:
    Path("lengths.txt").write_text("\n".join(map(str, [2048] * 7 + [16384])))
    run = "estimate --model llama3-8b --machine h100 --devices 4 --seq 4096 --no-levels"
    command_line(f"{run} --lengths lengths.txt --save p.yaml")
    solve = "solve p.yaml -m 8 --family megatron --memory-limit 200GiB --time-limit 1"
    found = command_line(f"{solve} --json").json
    order = found["microbatch_order"]
    assert order["order"] != list(range(8))
    assert order["gain"] > 0.01
    assert found["plainest"] is None or found["plainest"]["slower"] >= 0
    assert "in the order given" in command_line(solve).out
