"""Layers that predict further tokens (MTP): parameters, bytes, FLOPs, and their place beside the head."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optpipe_sim.costs import estimate, load_machine, load_model
from optpipe_sim.costs.layer import layer
from optpipe_sim.costs.models import ModelError, mtp_parameters, parameters
from optpipe_sim.costs.roofline import head_bytes, head_gemm, projection
from optpipe_sim.costs.work import Work
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks.megatron.layout import layout_string
from optpipe_sim.frameworks.parts import parts_of

MODEL = load_model("deepseek-v3")
WITHOUT = replace(MODEL, mtp=0)
SPLIT = {"layers": [8] * 7 + [5], "recompute": "none"}


def test_parameters_of_the_module_are_the_published_ones() -> None:
    """README_WEIGHTS.md: 671B, and 14B of the MTP module, of which 11.5B are its own and 0.9B each are copies of
    embedding and head; 685B together."""
    tables = 2 * MODEL.vocab * MODEL.hidden
    assert parameters(MODEL) == parameters(WITHOUT)
    assert mtp_parameters(MODEL) == pytest.approx(11.5e9, rel=0.01)
    assert parameters(MODEL) + mtp_parameters(MODEL) + tables == pytest.approx(685e9, rel=1e-3)
    assert mtp_parameters(WITHOUT) == 0
    with pytest.raises(ModelError, match="mtp: must be at most"):
        replace(MODEL, mtp=10**6)


def test_bytes_on_the_stage_of_the_loss() -> None:
    """Of 4096 tokens of 7168: in bf16 8 bytes each of hidden width before the decoder layer, 4 before its head."""
    work, machine = Work(1, 4096), load_machine("h100-sxm")
    with_one, without = (estimate(one, machine, 8, items=True, **SPLIT) for one in (MODEL, WITHOUT))
    wide = 4096 * 7168
    assert projection(MODEL, work).kept_bytes() == 8 * wide
    assert replace(projection(MODEL, work), recompute="norms").kept_bytes() == 4 * wide
    eight = projection(
        MODEL, replace(work, dtype="fp8")
    )  # the inputs of two norms, and in fp8 of the GEMM
    assert eight.kept_bytes() == 6 * wide
    logits = 4096 * 129280 * machine.rates.logit_bytes
    assert head_bytes(machine, MODEL, work) == (4 * wide, logits)
    more = [
        ours.act_bytes - theirs.act_bytes
        for ours, theirs in zip(with_one.stages, without.stages, strict=True)
    ]
    assert more[:-1] == [0] * 7
    whole = layer(MODEL, False, work).kept_bytes() + 12 * wide + logits
    assert more[-1] == pytest.approx(whole * machine.rates.memory_factor, abs=2)
    held = [sum(one.meta["parameters_per_device"]) for one in (with_one, without)]
    assert held[0] - held[1] == mtp_parameters(MODEL) + MODEL.vocab * MODEL.hidden
    assert [cost.t_f_ns for cost in with_one.stages[:-1]] == [
        cost.t_f_ns for cost in without.stages[:-1]
    ]
    assert with_one.stages[-1].t_f_ns > without.stages[-1].t_f_ns * 7 / 6


def test_flops_count_what_megatron_counts() -> None:
    """Its training.py: a layer, a projection of 2 h to h and a head per further token; norms are left out here."""
    work = Work(1, 4096)
    done = [
        estimate(one, "h100-sxm", 8, **SPLIT).meta["iteration"]["flops_per_microbatch"]
        for one in (MODEL, WITHOUT)
    ]
    one = sum(layer(MODEL, False, work).flops(op) for op in "FBW")
    projected = 3 * 2 * 4096 * 2 * 7168**2
    assert done[0] - done[1] == one + projected + 3 * head_gemm(MODEL, work).flops


def test_layout_with_and_without_items() -> None:
    """The division of the DeepSeek-V3 recipes: ``Et*8|(t*8|)*6t*5mL``."""
    profile = estimate(MODEL, "h100-sxm", 8, items=True, **SPLIT)
    assert [item.name for item in profile.items[-2:]] == ["mtp", "head"]
    assert len(profile.items) == sum(cost.layers for cost in profile.stages) == 64
    for one in (profile, replace(profile, items=())):
        assert layout_string(parts_of(one)) == "Et*8|(t*8|)*6t*5mL"
    alone = estimate(MODEL, "h100-sxm", 4, chunks=8, layers=[1, *[2] * 30, 0])
    assert layout_string(parts_of(alone)) == "Et|(tt|)*30mL"
    # where it is balanced, the last stage has fewer layers for it
    counts = [
        estimate(one, "h100-sxm", 16).meta["layers_per_stage"][-1] for one in (MODEL, WITHOUT)
    ]
    assert counts[0] < counts[1]


def test_a_number_with_an_m_places_them_as_the_items_do() -> None:
    """``...|t*5|m|L``: on a stage before that of the loss, with their copy of the embedding's table; the logits stay with the loss."""
    layers = [9, *[8] * 5, 7, 5]
    plain = estimate(MODEL, "h100-sxm", 8, items=True, layers=layers)
    apart = estimate(MODEL, "h100-sxm", 8, layers=[*[9] * 6, "7m", 0])
    moved = plain.with_layout([10, *[9] * 5, 8, 1])
    for ours, theirs in zip(apart.stages, moved.stages, strict=True):
        assert ours.layers == theirs.layers
        assert ours.static_bytes == pytest.approx(theirs.static_bytes, abs=2)
        assert ours.act_bytes == pytest.approx(theirs.act_bytes, abs=4)
        assert ours.work_ns == pytest.approx(theirs.work_ns, abs=8)
    for one in (apart, moved):
        assert layout_string(parts_of(one)) == "Et*9|(t*9|)*5t*7m|L"
    held = [one.meta["parameters_per_device"] for one in (plain, apart)]
    assert sum(held[0]) == sum(held[1])
    for wrong in (["9m", *[8] * 5, 7, 5], [*[8] * 6, "8m", "5m"], ["a", *[8] * 7]):
        with pytest.raises(OptPipeError, match="layers: "):
            estimate(MODEL, "h100-sxm", 8, layers=wrong)
    with pytest.raises(OptPipeError, match=f"{WITHOUT.name} has 0"):
        estimate(WITHOUT, "h100-sxm", 8, layers=[*[9] * 6, "7m", 0])


def test_full_recomputation_runs_the_projection_again_but_no_head() -> None:
    work, machine = Work(1, 4096), load_machine("h100-sxm")
    profiles = {
        level: estimate(MODEL, machine, 8, layers=[8] * 7 + [5], recompute=level)
        for level in ("none", "full")
    }
    none, full = (profiles[level].stages[-1] for level in ("none", "full"))
    again = full.t_b_ns - none.t_b_ns
    heads = 2 * head_gemm(MODEL, work).flops / (machine.peak("bf16") * machine.rates.gemm)
    assert again < none.t_f_ns - heads * 1e9
    # five layers and a hidden state each, one more of these and of the table, and what the two heads need
    logits = 2 * 4096 * 129280 * machine.rates.logit_bytes
    inputs = (6 + 1 + 2 * 2) * 2 * 4096 * 7168
    assert full.act_bytes == pytest.approx((inputs + logits) * machine.rates.memory_factor, abs=2)
