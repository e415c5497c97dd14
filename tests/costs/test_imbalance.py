"""Experts that are loaded unevenly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optpipe_sim.costs import estimate
from optpipe_sim.costs.advise.advise import advise
from optpipe_sim.costs.advise.evaluate import evaluate
from optpipe_sim.costs.imbalance import UNKNOWN, Imbalance, as_imbalance, over_mean
from optpipe_sim.costs.layer import layer
from optpipe_sim.costs.model_files import load_model
from optpipe_sim.costs.work import Work
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks.megatron.family import Choice, plan_of

MOE: dict[str, Any] = {
    "model": "qwen3-30b-a3b", "machine": "h100", "devices": 2, "ep": 8, "dp": 8, "zero": 1, "levels": False,
}  # fmt: skip


def test_the_most_loaded_rank_by_hand() -> None:
    """Two GPUs with two experts each: 6 of 8 tokens on the first, 1.5 times the mean."""
    assert over_mean([5, 1, 0, 2], 2) == 6 / 4
    assert over_mean([5, 1, 0, 2], 4) == 5 / 2
    assert over_mean([1, 1, 1, 1], 4) == 1


def test_all_that_experts_do_is_that_of_the_most_loaded() -> None:
    model = load_model("qwen3-30b-a3b")
    even, uneven = (
        layer(model, False, Work(1, 4096, ep=8, imbalance=imbalance)) for imbalance in (1.0, 1.5)
    )

    def rows(one: Any, name: str) -> list[int]:
        return [gemm.rows for gemm in one.gemms if gemm.name.startswith(name)]

    assert rows(uneven, "experts") == [3 * each // 2 for each in rows(even, "experts")]
    assert rows(uneven, "router") == rows(even, "router")
    assert [one.size for one in uneven.messages] == [3 * one.size // 2 for one in even.messages]
    assert [moved / whole for moved, whole in zip(uneven.routed, even.routed, strict=True)] == [
        1.5,
        1.5,
    ]
    kept = {one.name: one.size for one in even.kept}
    for one in uneven.kept:
        routed = one.name.startswith("expert ")
        assert one.size == kept[one.name] * (1.5 if routed else 1)


def test_work_that_counts_is_that_of_the_model() -> None:
    """MFU does not grow with what the most loaded GPU computes more."""
    even, uneven = (estimate(**MOE, imbalance=imbalance) for imbalance in (1, 1.5))
    key = "flops_per_microbatch"
    assert even.meta["iteration"][key] == uneven.meta["iteration"][key]
    assert uneven.stages[0].t_f_ns > even.stages[0].t_f_ns
    assert uneven.stages[0].act_bytes > even.stages[0].act_bytes
    assert "imbalance" not in even.meta


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1.3, (1.3, 1.3, 1.3)),
        ("1.3", (1.3, 1.3, 1.3)),
        ("1.1..1.5", (1.1, 1.3, 1.5)),
        ((1.0, 2.0), (1, 1.5, 2)),
        ("unknown", (1, sum(UNKNOWN) / 2, UNKNOWN[1])),
    ],
)
def test_what_may_be_given(given: Any, expected: tuple[float, float, float]) -> None:
    assert as_imbalance(given, 128, 8)[:3] == pytest.approx(expected)


def test_measured_loads(tmp_path: Path) -> None:
    """Every layer waits for its own most loaded GPU: the mean of 1.5 and 1."""
    file = tmp_path / "loads"
    file.write_text("# tokens of each expert\n5 1 0 2\n1, 1, 1, 1\n")
    assert as_imbalance(str(file), 4, 2) == Imbalance(1.25, 1.25, 1.25)
    file.write_text("[5, 1, 0, 2]")
    assert as_imbalance(str(file), 4, 2).usual == 1.5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no loads"),
        ("1 2 3", "layer 0: expected the tokens of 4 experts, got 3"),
        ("1 2 3 x", "expected tokens of an expert, got 'x'"),
        ("1 2 3 -1", "expected tokens of an expert, got '-1'"),
        ("0 0 0 0", "no tokens at all"),
        ("[[1, 2", "is no JSON"),
    ],
)
def test_wrong_loads(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "loads"
    file.write_text(text)
    with pytest.raises(OptPipeError) as error:
        as_imbalance(str(file), 4, 2)
    assert problem in str(error.value)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("0.9", "a number from 1"),
        ("2..1", "two in order"),
        ("nowhere", "a range 1.1..1.6, unknown, or a file"),
        (9, "with ep 8 the most loaded GPU gets at most 8 times"),
        ((1, 2, 3), "or two in order"),
        (float("nan"), "a number from 1"),
        (True, "a number from 1"),
    ],
)
def test_wrong_imbalances(given: Any, problem: str) -> None:
    with pytest.raises(OptPipeError, match=problem):
        as_imbalance(given, 128, 8)
    with pytest.raises(OptPipeError, match=problem):
        estimate(**MOE, imbalance=given)


def test_capacity_and_padding() -> None:
    given = as_imbalance("1.1..1.5", 128, 8)
    assert given.within(None) is given
    assert given.within(1.2)[:3] == (1.1, 1.2, 1.2)
    assert given.within(2, padded=True)[:3] == (2, 2, 2)
    with pytest.raises(OptPipeError, match="needs a capacity factor"):
        given.within(None, padded=True)
    with pytest.raises(OptPipeError, match="must be at least 1"):
        given.within(0.5)
    profile = estimate(**MOE, imbalance=given.within(1.2, padded=True))
    plan, _ = plan_of(Choice(1), profile, 4)
    assert "--moe-expert-capacity-factor 1.2 --moe-pad-expert-input-to-capacity" in plan.command()


def test_a_range_widens_the_interval_of_times_where_one_is_known() -> None:
    options: dict[str, Any] = {"gpus": 16, "seq": 4096, "ep": 16, "microbatches": 8}
    run = ("qwen3-30b-a3b", "h100-sxm")
    options["execution"] = "ideal"  # factors are of the work alone
    known, ranged = (
        evaluate(*run, **options, imbalance=given).row.trace for given in (1.2, (1.0, 1.4))
    )
    assert known.iteration_ns == ranged.iteration_ns
    low, high = ranged.iteration_interval_ns or (0, 0)
    assert known.iteration_interval_ns is not None
    assert low < known.iteration_interval_ns[0]
    assert high > known.iteration_interval_ns[1]
    ends = [evaluate(*run, **options, imbalance=end).row for end in (1.0, 1.4)]
    factors = ranged.profile.meta["imbalance"]["time"]
    kept = [
        sum(one.act_bytes for one in each.stages)
        for each in (ends[0].profile, known.profile, ends[1].profile)
    ]
    shares = [kept[0] / kept[1], kept[2] / kept[1]]
    assert ranged.profile.meta["imbalance"]["act"] == pytest.approx(shares, rel=1e-6)
    for end, factor in zip(ends, factors, strict=True):
        assert end.profile.stages[0].work_ns / known.profile.stages[0].work_ns == pytest.approx(
            factor, rel=1e-6
        )


def test_from_the_command_line(command_line) -> None:
    run = "evaluate --model qwen3-30b-a3b --machine h100 --gpus 16 --seq 4096 --ep 8 -m 4"
    found = command_line(f"{run} --imbalance 1.1..1.5").out
    assert "the most loaded GPU's experts get 1.3 times the mean of tokens (1.1 to 1.5:" in found
    assert "--imbalance 1.1..1.5" in found.splitlines()[-1]  # of the advice that comes next
    even, uneven = (command_line(f"{run} {more} --json").json for more in ("", "--imbalance 1.5"))
    assert even["expert_imbalance"] is None
    assert uneven["expert_imbalance"]["usual"] == 1.5
    assert uneven["iteration_ns"] > even["iteration_ns"]
    assert uneven["peak_bytes"] > even["peak_bytes"]
    assert "unevenly loaded experts" in uneven["doubt"]["unmeasured"]
    wrong = command_line(f"{run} --imbalance 9")
    assert wrong.code == 2
    assert "at most 8 times" in wrong.err
    padded = command_line(f"{run} --capacity-factor 1.25 --pad-to-capacity").out
    assert "1.25 times the mean of an expert are computed, padded" in padded


def test_advice_chooses_among_splits_of_uneven_experts() -> None:
    """One GPU has all experts: they are even there; more of them share the imbalance, and take longer for it."""
    given: dict[str, Any] = {
        "global_batch": 16, "seq": 4096, "time_limit": 5.0, "pp": 2, "tp": 1, "microbatch": 1,
        "schedules": "1f1b", "recompute": "full", "memory_limit": "500GiB",
    }  # fmt: skip
    times = {
        (ep, imbalance): advise("qwen3-30b-a3b", "h100-sxm", 8, ep=ep, imbalance=imbalance, **given)
        for ep in (1, 4)
        for imbalance in (1.0, 1.5)
    }
    even, uneven = (times[4, imbalance].rows[0] for imbalance in (1.0, 1.5))
    assert uneven.iteration_ns > even.iteration_ns
    assert uneven.profile.meta["imbalance"]["usual"] == 1.5
    assert times[1, 1.5].rows[0].iteration_ns == times[1, 1.0].rows[0].iteration_ns


def test_advice_takes_no_loads_of_experts(tmp_path: Path) -> None:
    (tmp_path / "loads").write_text("1 2")
    with pytest.raises(OptPipeError, match="says another one for each ep"):
        advise("qwen3-30b-a3b", "h100-sxm", 8, 16, 4096, imbalance=str(tmp_path / "loads"))
    with pytest.raises(OptPipeError, match="at most 1 times"):
        advise("llama3-8b", "h100-sxm", 8, 16, 4096, imbalance=1.5)


STASH: dict[str, Any] = {"exchange": "per-node", "cuda_graphs": True}


def test_experts_hold_their_capacity_or_pages_for_their_backward() -> None:
    """Per layer and microbatch: inputs, twice the width and the width, for X times the mean of tokens."""
    model = load_model("qwen3-30b-a3b")
    work = replace(Work(1, 4096), ep=8, **STASH)
    tokens = 4096 * model.experts_per_token
    each = 2 * tokens * (model.hidden + 3 * model.expert_ffn)

    def held(**options: Any) -> int:
        return layer(model, False, replace(work, **options)).kept_bytes("none")

    def beside(**options: Any) -> int:
        return layer(model, False, replace(work, **options)).buffers

    assert held(expert_rank_capacity=1.5) - held() == each // 2
    assert held(expert_rank_capacity=1.5, imbalance=1.2) - held() == each // 2
    assert held(expert_rank_capacity=1.5, paged_stash=1.25) - held() == each // 4
    assert beside(expert_rank_capacity=1.5, paged_stash=1.25) == each * 3 // 2
    assert beside(expert_rank_capacity=1.5) == beside() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paged_stash": 1.1}, "paged stash: needs an expert rank capacity"),
        ({"expert_rank_capacity": 1.5, "exchange": "plain"}, "needs exchange per-node"),
        ({"expert_rank_capacity": 1.2, "imbalance": 1.5}, "overflows at an imbalance of 1.5"),
        (
            {"expert_rank_capacity": 2, "paged_stash": 1.1, "imbalance": 1.5},
            "paged stash: 1.1 times",
        ),
        ({"expert_rank_capacity": 2, "model": "llama3-8b", "ep": 1}, "has no experts"),
    ],
)
def test_buffers_that_megatron_refuses_or_that_overflow(
    options: dict[str, Any], message: str
) -> None:
    run = {"model": "qwen3-30b-a3b", "machine": "h100", "devices": 2, "ep": 8, "dp": 8, **STASH}
    with pytest.raises(OptPipeError, match=message):
        estimate(**{**run, **options})


def test_buffers_are_options_of_a_plan() -> None:
    profile = estimate(
        "qwen3-30b-a3b", "h100", devices=2, ep=8, dp=8, expert_rank_capacity=1.5, paged_stash=1.1, levels=False, **STASH
    )  # fmt: skip
    options = dict(plan_of(Choice(1), profile, 8)[0].options())
    assert options["moe-flex-dispatcher-backend"] == "hybridep"
    assert options["moe-expert-rank-capacity-factor"] == 1.5
    assert options["moe-paged-stash-buffer-size-factor-cuda"] == 1.1


def test_graphs_of_modules_hold_states_for_each_microbatch() -> None:
    model = load_model("qwen3-30b-a3b")
    work = replace(Work(1, 4096), ep=8)
    state = 2 * 4096 * model.hidden
    for modules, states in (
        (("attn",), 2),
        (("moe_router",), 1),
        (("attn", "moe_router", "moe_preprocess"), 3),
    ):
        graphed = layer(model, False, replace(work, cuda_graph_modules=modules))
        assert graphed.kept_bytes() - layer(model, False, work).kept_bytes() == states * state


def test_the_answer_says_what_a_paged_stash_saves(command_line) -> None:
    run = (
        "--model qwen3-30b-a3b --machine h100 --ep 8 --chunks 2 --seq 4096 --cuda-graphs --exchange per-node"
        " --expert-rank-capacity 1.5"
    )
    one = f"estimate {run} --devices 4 --dp 8 --no-levels"
    said = "paged stash: experts keep 1.1 times the mean of tokens for their backward, not 1.5"
    answer = command_line(f"{one} --paged-stash --json").json["profile"]
    found = answer["meta"]["paged_stash"]
    before = command_line(f"{one} --json").json["profile"]
    kept = [
        plain["act_bytes"] - own["act_bytes"]
        for own, plain in zip(answer["stages"], before["stages"], strict=True)
    ]
    assert found["saved_bytes"] == max(kept) == kept[found["stage"]] > 0
    model = load_model("qwen3-30b-a3b")
    rows = 4096 * model.experts_per_token * 3 // 2
    assert found["buffer_bytes"] == pytest.approx(
        2 * rows * (model.hidden + 3 * model.expert_ffn), rel=0.1
    )
    assert "paged_stash" not in before["meta"]
    assert said in command_line(f"{one} --paged-stash").out
    assert "paged stash" not in command_line(one).out
    whole = f"evaluate {run} --gpus 32 --pp 4 -m 8 --schedule 1f1b-i"
    assert said in command_line(f"{whole} --paged-stash").out
