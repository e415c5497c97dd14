"""Microbatches of sequences of different lengths in torch: the gradients of the unpipelined model, and after every op
the bytes that the profile's factors say."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from runtime_cases import (
    EXPERTS,
    GPT,
    SEQ,
    assert_equal,
    plan_of,
    profile_of,
    run_all,
    with_levels,
    with_offloads,
)

from optpipe_sim import build, load_profile
from optpipe_sim.costs.lengths import MEASURED, with_measured_lengths
from optpipe_sim.costs.models import Model
from optpipe_sim.errors import OptPipeError
from optpipe_sim.profile import CostProfile
from optpipe_sim.profile.iteration import LENGTHS
from optpipe_sim.runtime.confirm.case import plan_of as plan_from
from optpipe_sim.runtime.confirm.verdict import peaks_after_ops
from optpipe_sim.runtime.execute.unpipelined import make_contents, named_gradients, reference
from optpipe_sim.runtime.model.plan import model_shape
from optpipe_sim.schedule import Schedule
from optpipe_sim.sim.lower import lower

TOKENS = (32, 8, 20, 5, 32, 1)
LEVELS = ("norms", "full")
LOSS = 8  # bytes of a microbatch that are the same for any length


def differing(profile: CostProfile) -> CostProfile:
    """All that a stage of these models holds is in proportion to the tokens."""
    factors = tuple(Fraction(one, SEQ) for one in TOKENS)
    return replace(profile, microbatch_time=factors, microbatch_bytes=factors)


def schedules(profile: CostProfile) -> dict[str, Schedule]:
    m = len(TOKENS)
    split = build("zb-h1", profile, m)
    return {
        "fused": build("1f1b", profile, m),
        "split": split,
        "inside": with_levels(split, LEVELS, apart=False),
        "apart": with_levels(split, LEVELS, apart=True),
        "offloaded": with_offloads(split),
    }


@pytest.mark.parametrize("name", ["fused", "split", "inside", "apart", "offloaded"])
def test_gradients_are_the_unpipelined_ones_and_every_op_holds_its_share(name: str) -> None:
    profile = differing(profile_of(GPT, 2, levels=LEVELS))
    lowered = lower(schedules(profile)[name], profile)
    plan = replace(plan_of(GPT, 2), tokens=TOKENS)
    workers, run = run_all(plan, lowered)
    loss, wanted = reference(plan, len(TOKENS), 0)
    assert run.loss == loss
    found = {key: one for each in workers.values() for key, one in named_gradients(each).items()}
    assert_equal(found, wanted)
    held = [run.held[rank] for rank in range(2)]
    for peak in peaks_after_ops(lowered.schedule, lowered.profile, held):
        assert abs(peak.off_bytes) <= LOSS * len(TOKENS), peak


@pytest.mark.parametrize("model", [GPT, EXPERTS], ids=["gpt", "experts"])
def test_rank_by_rank_messages_and_gradients_are_those_of_the_whole_model(model: Model) -> None:
    plan = replace(plan_of(model, 2), tokens=TOKENS)
    profile = differing(profile_of(model, 2))
    found = make_contents(plan, build("1f1b", profile, len(TOKENS)), 0)
    loss, wanted = reference(plan, len(TOKENS), 0)
    assert found.loss == loss
    assert_equal(found.gradients, wanted)
    sent = {op.microbatch: one.shape for op, one in found.messages.items()}
    assert sent == {at: (2, one, model.hidden) for at, one in enumerate(TOKENS)}


def test_a_microbatch_alone_is_as_long_as_it_says() -> None:
    plan = replace(plan_of(GPT, 2), tokens=TOKENS)
    whole = plan_of(GPT, 2).step_batch(len(TOKENS), 0)
    for part, every in zip(plan.step_batch(len(TOKENS), 0), whole, strict=True):
        for short, long, count in zip(part, every, TOKENS, strict=True):
            assert torch.equal(short, long[:, :count])
    with pytest.raises(OptPipeError, match="tokens: of 6 microbatches, but 4 run"):
        plan.step_batch(4, 0)
    with pytest.raises(OptPipeError, match="tokens: expected 1 to 32 per sequence, got 33"):
        replace(plan, tokens=(1, 33))
    with pytest.raises(OptPipeError, match="slices: of sequences of one length"):
        replace(plan, slices=(16, 16))


# -- from a profile ---------------------------------------------------------------------------------


def test_a_profile_says_how_long_sequences_are_or_is_refused() -> None:
    profile = differing(profile_of(GPT, 2))

    def told(lengths: list[list[int]]) -> CostProfile:
        work = {"microbatch": 1, "seq": 16, LENGTHS: lengths}
        return replace(
            profile, meta={"model": {"name": "gpt", "shape": model_shape(GPT)}, "work": work}
        )

    plan = plan_from(told([[one] for one in TOKENS]))
    assert (plan.seq, plan.tokens, plan.microbatch) == (32, TOKENS, 1)
    with pytest.raises(OptPipeError, match="microbatch 1 is packed from 2 sequences"):
        plan_from(told([[32], [4, 4], [20], [5], [32], [1]]))
    with pytest.raises(OptPipeError, match="microbatches differ, but it does not say how long"):
        plan_from(told([]))


def test_lengths_between_measured_ones_lie_on_the_line() -> None:
    """Of what costs 100 + 3 per token and holds its square, seven lengths and the longest are measured."""
    plain = profile_of(GPT, 1)
    cost = replace(
        plain.stages[0],
        t_f_ns=1200,
        t_b_ns=1000,
        t_w_ns=900,
        act_bytes=10**6,
        w_bytes=0,
        offload_bytes=0,
    )
    usual = replace(plain, stages=(cost,), meta={"work": {"seq": 1000}})
    measured: list[int] = []

    def measure(one: int) -> tuple[int, int]:
        measured.append(one)
        return 100 + 3 * one, one * one

    tokens = (1000, 10, 500, *range(100, 1000, 7))
    found = with_measured_lengths(usual, tokens, measure)
    assert len(measured) == MEASURED - 1
    assert measured == sorted(set(measured))
    assert found.meta["lengths_measured"] == [*measured, 1000]
    assert found.meta["work"][LENGTHS] == [[one] for one in tokens]
    time, size = found.microbatch_time, found.microbatch_bytes
    widest = max(high - low for low, high in pairwise([*measured, 1000]))
    for at, one in enumerate(tokens):
        assert float(time[at]) == pytest.approx((100 + 3 * one) / 3100, abs=1e-4)
        square = one * one / 1e6
        assert square - 1e-4 <= float(size[at]) <= square + (widest / 2) ** 2 / 1e6 + 1e-4
        if one in measured:
            assert float(size[at]) == pytest.approx(square, abs=1e-4)
    assert with_measured_lengths(usual, (9, 9), measure).alike


def test_the_command_measures_and_a_run_of_that_profile_holds_what_it_says(
    command_line, tmp_path: Path
) -> None:
    (tmp_path / "lengths.txt").write_text("16\n4\n16\n8\n")
    (tmp_path / "model.json").write_text(
        '{"name": "small", "layers": 2, "hidden": 64, "heads": 4, "vocab": 96, "kv_heads": 2, "ffn": 96}'
    )
    line = "profile --model model.json --device fake --stages 2 --lengths lengths.txt --save P.json"
    answer = command_line(line)
    assert answer.code == 0
    assert "4 microbatches that differ" in answer.out
    profile = load_profile("P.json")
    assert [float(one) for one in profile.microbatch_bytes] == pytest.approx(
        [1, 1 / 4, 1, 1 / 2], abs=1e-3
    )
    assert profile.meta["work"][LENGTHS] == [[16], [4], [16], [8]]
    answer = command_line("confirm 1f1b P.json -m 4 --mode replay --json")
    assert answer.json["gradients"]["bitwise"] == answer.json["gradients"]["parameters"] > 0
    assert all(
        abs(one["off_bytes"]) < 0.01 * one["predicted_bytes"] for one in answer.json["memory"]
    )
    answer = command_line("train --model model.json --stages 2 -m 4 --profile P.json")
    assert "--profile P.json: its microbatches differ" in answer.complaint
    for other, why in (
        ("--seq 16", "leave out --seq, --slices and --microbatch"),
        ("--slices 2", "leave out --seq, --slices and --microbatch"),
    ):
        assert why in command_line(f"{line} {other}").complaint
    (tmp_path / "lengths.txt").write_text("16\n4 4\n")
    assert "microbatch 1 is packed from 2 sequences" in command_line(line).complaint
