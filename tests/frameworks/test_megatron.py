"""Plans in Megatron-LM's options: read back by a parser of its own, and what is lost by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron_grammar import Refused, accept, check_layout, check_world, stages_of
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, build, simulate
from optpipe_sim.costs import estimate
from optpipe_sim.errors import InvalidSchedule, OptPipeError, ProfileError
from optpipe_sim.frameworks.megatron.family import (
    Choice,
    choice_of,
    choices,
    group_sizes,
    nearest,
    plan_of,
)
from optpipe_sim.frameworks.megatron.layout import layout_string
from optpipe_sim.frameworks.megatron.options import MegatronError, Offloading, Plan, Recompute
from optpipe_sim.frameworks.nearest import compare
from optpipe_sim.frameworks.parts import Part, parts_of, parts_with

LEVELS = [
    {"name": "attention", "t_ms": 0.1, "keep_bytes": 80},
    {"name": "half", "t_ms": 0.5, "keep_bytes": 55, "layers": 2},
    {"name": "full", "t_ms": 1, "keep_bytes": 10, "layers": 4},
]
STAGE = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50, "layers": 4}
COPIES = {"t_offload_ms": 1, "t_reload_ms": 1}
OVERLAP = (
    ("overlap-moe-expert-parallel-comm", True),
    ("expert-model-parallel-size", 8),
    ("bf16", True),
)


def profile_of(devices: int, chunks: int = 1, **changes: Any) -> CostProfile:
    """Stages of 4 layers, with levels and copies."""
    stage = {**STAGE, "recompute": LEVELS}
    return unit_profile(devices, chunks, **{"stages": stage, "offload": COPIES, **changes})


# -- layouts --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 12), min_size=1, max_size=24))
def test_layouts_read_back(counts: list[int]) -> None:
    stages = stages_of(layout_string(parts_with(counts)))
    assert [stage.count("t") for stage in stages] == counts
    assert [stage.count("E") for stage in stages] == [1] + [0] * (len(counts) - 1)
    assert "".join(stages) == "E" + "t" * sum(counts) + "L"


def test_the_grammar_reads_the_documented_examples() -> None:
    assert stages_of("Et*3|(tt|)*6mL") == ["Ettt", *["tt"] * 6, "mL"]
    assert stages_of("Et*2|(tt|)*5t|tmL") == ["Ett", *["tt"] * 5, "t", "tmL"]
    assert stages_of("E|(t|)*3,m|m||L") == ["E", "t", "t", "t", "m", "m", "", "L"]
    with pytest.raises(Refused, match="as many t"):
        check_layout("Et|tL", 2, 3)


def test_a_layout_is_short() -> None:
    assert layout_string(parts_with([2, 3, 3, 3, 1])) == "Ett|(t*3|)*3tL"
    assert layout_string(parts_with([1])) == "EtL"
    assert layout_string(parts_with([0, 1, 1, 0])) == "E|(t|)*2L"


# -- what stages hold -----------------------------------------------------------------------------


def test_parts_take_embedding_and_loss_out_where_they_count_as_layers() -> None:
    plain = profile_of(4)
    assert [part.layers for part in parts_of(plain)] == [4] * 4
    counted = replace(plain, meta={"model": {"layers": 14}})
    assert [part.layers for part in parts_of(counted)] == [3, 4, 4, 3]
    assert parts_of(counted)[1] == Part(3, 4)
    assert parts_of(counted)[0].module_names() == [
        "tok_embeddings", "layers.0", "layers.1", "layers.2",
    ]  # fmt: skip
    assert parts_of(counted)[3].module_names()[-2:] == ["norm", "lm_head"]
    assert [part.layers for part in parts_of(plain, [1, 2, 3, 4])] == [1, 2, 3, 4]
    with pytest.raises(OptPipeError, match="layers: expected 4 numbers"):
        parts_of(plain, [1, 2])
    with pytest.raises(ProfileError, match=r"stages\[0\].layers: missing in the profile unit"):
        parts_of(unit_profile(4))


# -- fifty plans ----------------------------------------------------------------------------------


def plans() -> list[tuple[CostProfile, int, Choice]]:
    """Fifty of the family's choices: every group, level and offload, on 2 to 8 ranks."""
    found = []
    for devices, chunks, microbatches in ((2, 1, 5), (4, 2, 8), (4, 4, 12), (8, 2, 24), (3, 2, 7)):
        profile = profile_of(devices)
        all_of = list(choices(profile, microbatches, chunks))
        found += [
            (profile, microbatches, choice) for choice in all_of[:: max(1, len(all_of) // 12)]
        ]
    assert len({(p.devices, choice) for p, _, choice in found}) >= 50
    return found


def test_fifty_plans_are_accepted() -> None:
    for profile, microbatches, choice in plans():
        plan, _ = plan_of(choice, profile, microbatches)
        read = accept(plan.command(), microbatches)
        assert read.num_layers == 4 * profile.devices
        assert (read.activation_offload_fraction is not None) == (choice.fraction is not None)
        assert (read.recompute_granularity is not None) == (choice.level is not None)
        if choice.layers:
            assert (read.recompute_method, read.recompute_num_layers) == ("block", choice.layers)
        assert bool(plan.environment()) == (choice.fraction is not None)


def test_megatrons_own_parser_reads_the_layouts_of_fifty_plans() -> None:
    own = pytest.importorskip(
        "megatron.core.transformer.pipeline_parallel_layer_layout",
        reason="megatron-core is not installed",
    )
    letters = {"embedding": "E", "decoder": "t", "loss": "L"}
    for profile, microbatches, choice in plans():
        plan, _ = plan_of(choice, profile, microbatches)
        layout = layout_string(plan.parts)
        read = own.PipelineParallelLayerLayout(layout, profile.devices)
        stages = stages_of(layout)
        for rank, chunks in enumerate(read.layout):  # by rank, chunk and position
            for chunk, items in enumerate(chunks):
                text = "".join(letters[item.name] for item in items)
                assert text == stages[chunk * profile.devices + rank]


def test_a_plan_runs_as_its_name_says_and_is_found_again() -> None:
    for profile, microbatches, choice in plans():
        assert choice_of(choice.name) == choice
        schedule = choice.build(profile, microbatches)
        again, answer = nearest(schedule, profile)
        assert answer.schedule == schedule
        assert answer.lost == ()
        assert answer.slower == 0
        assert again.build(profile, microbatches) == schedule


@given(st.integers(2, 6), st.integers(1, 30))
def test_group_sizes_are_those_that_megatron_takes(devices: int, microbatches: int) -> None:
    sizes = group_sizes(devices, microbatches)
    assert (None in sizes) is (microbatches % devices == 0)
    assert (microbatches in sizes) is (microbatches > devices)
    for group in sizes:
        parts = parts_with([1] * (2 * devices))
        plan = Plan(devices, microbatches, parts, group)
        accept(plan.command(), microbatches)


@settings(max_examples=40)
@given(st.integers(2, 4), st.integers(2, 3), st.integers(1, 16), st.integers(1, 16))
def test_groups_run_or_are_refused(
    devices: int, chunks: int, microbatches: int, group: int
) -> None:
    profile = unit_profile(devices, chunks)
    allowed = devices <= group <= microbatches and not 0 < microbatches % group < devices
    if not allowed:
        with pytest.raises(InvalidSchedule, match="1f1b-i: "):
            build("1f1b-i", profile, microbatches, group=group, chunks=chunks)
        return
    schedule = build("1f1b-i", profile, microbatches, group=group, chunks=chunks)
    assert simulate(schedule, profile).fits
    first = [op.stage for op in schedule.programs[0] if op.kind.name == "F"]
    assert first[:group] == [0] * group


# -- what an estimate assumes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "devices", "given", "expected"),
    [  # experts in the place of tp, or divided by it as well
        ("qwen3-235b-a22b", 8, {"tp": 2, "ep": 8, "dp": 4}, {"expert_tensor_parallel_size": 1}),
        ("qwen3-235b-a22b", 8, {"tp": 2, "ep": 8, "dp": 8}, {"expert_tensor_parallel_size": None}),
        (
            "qwen3-235b-a22b",
            8,
            {"tp": 2, "ep": 8, "dp": 8, "etp": 1},
            {"expert_tensor_parallel_size": 1},
        ),
        (
            "llama3-8b",
            2,
            {"dtype": "fp8", "dp": 2},
            {"bf16": True, "fp8_recipe": "tensorwise", "fp8_param_gather": True},
        ),
        (
            "llama3-8b",
            2,
            {"dtype": "fp8", "dp": 2, "fp8_weights": "cached"},
            {"fp8_param_gather": False},
        ),
        ("llama3-8b", 2, {"grad_reduce_in_bf16": True}, {"grad_reduce_in_bf16": True}),
        ("llama3-8b", 2, {"gradient_sums": "apart"}, {"gradient_accumulation_fusion": False}),
        (
            "llama3-8b",
            2,
            {"dtype": "fp16", "accumulate_grads_in_fp32": True, "loss_fusion": "te"},
            {
                "accumulate_allreduce_grads_in_fp32": True,
                "cross_entropy_loss_fusion": True,
                "cross_entropy_fusion_impl": "te",
            },
        ),
        ("llama3-8b", 2, {"dtype": "fp16", "flash": False}, {"attention_backend": "unfused"}),
        ("llama3-8b", 4, {"cp": 2, "context": "heads"}, {"cp_comm_type": ["a2a"]}),
        (
            "deepseek-v3",
            4,
            {"ep": 8, "dp": 8, "exchange": "per-node-overlapped"},
            {"moe_token_dispatcher_type": "flex", "overlap_moe_expert_parallel_comm": True},
        ),
        ("qwen3-30b-a3b", 4, {"cuda_graphs": True}, {"cuda_graph_impl": "full_iteration"}),
        (
            "llama3-8b",
            8,
            {"tp": 2, "dp": 2, "overlap": ("grad-reduce", "param-gather", "tp-comm")},
            {"overlap_grad_reduce": True, "overlap_param_gather": True, "tp_comm_overlap": True},
        ),
        (  # nothing to hide
            "llama3-8b",
            4,
            {"overlap": ("grad-reduce", "param-gather", "tp-comm")},
            {"overlap_grad_reduce": False, "overlap_param_gather": False, "tp_comm_overlap": False},
        ),
    ],
)
def test_an_estimated_profile_says_what_it_assumes(
    model: str, devices: int, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    tried = 0
    for chunks in (1, 2):
        profile = estimate(model, "h100", devices, zero=1, levels=True, chunks=chunks, **given)
        some = list(choices(profile, 8, chunks))
        for choice in some[:: max(1, len(some) // 5)]:
            read = accept(plan_of(choice, profile, 8)[0].command(), 8)
            check_world(read, devices * given.get("dp", 1))
            assert {key: getattr(read, key) for key in expected} == expected
            tried += 1
    assert tried


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"group": 3}, "3 is not from 4"),
        ({"group": 5, "microbatches": 8}, "leaves a rest below 4"),
        ({"parts": parts_with([1] * 6)}, "6 stages do not divide over 4 ranks"),
        ({"parts": parts_with([2] * 4), "group": 8}, "needs several chunks"),
        ({"recompute": Recompute("full")}, "--recompute-method: full needs uniform or block"),
        ({"recompute": Recompute("full", "block")}, "--recompute-num-layers"),
        ({"recompute": Recompute("selective", "block", 1)}, "are for full"),
        ({"recompute": Recompute("selective")}, "name at least one module"),
        ({"sizes": OVERLAP[:1]}, "needs --expert-model-parallel-size above 1"),
        ({"sizes": OVERLAP[:2]}, "needs --bf16 or --fp16"),
        ({"sizes": (("delay-wgrad-compute", True),)}, "delay-wgrad-compute: needs --overlap-moe"),
        (
            {"sizes": OVERLAP, "parts": (*parts_with([1] * 7), Part(7, 1, False, True, mtp=2))},
            "allows one MTP layer",
        ),
        (
            {
                "sizes": (
                    ("moe-pad-expert-input-to-capacity", True),
                    ("moe-token-dispatcher-type", "flex"),
                )
            },
            "not with DeepEP",
        ),
        (
            {"sizes": OVERLAP, "parts": parts_with([1] * 4), "group": None},
            "with a pipeline it needs several chunks",
        ),
        (
            {"sizes": OVERLAP, "recompute": Recompute("full", "uniform", 1)},
            "excludes full recomputation",
        ),
        (
            {"recompute": Recompute("selective", modules=("mlps",))},
            "'mlps' is not one of core_attn",
        ),
        ({"offloading": Offloading(("attn_proj",))}, "attn_proj needs core_attn"),
        (
            {"offloading": Offloading(("mlp_norm",)), "sizes": (("cuda-graph-impl", "x"),)},
            "estimate without CUDA graphs",
        ),
        ({"offloading": Offloading(("mlp_norm",), 1.5)}, "expected 0 to 1"),
        ({"offloading": Offloading(("moe_act", "fused_group_mlp"))}, "fused_group_mlp excludes"),
        ({"offloading": Offloading(())}, "name at least one module"),
        (
            {
                "recompute": Recompute("selective", modules=("moe",)),
                "offloading": Offloading(("moe_act",)),
            },
            "with moe recomputed",
        ),
        (
            {
                "recompute": Recompute("full", "uniform", 1),
                "offloading": Offloading(("mlp_norm",)),
            },
            "fully recomputed layers have no modules",
        ),
    ],
)
def test_what_megatron_refuses_is_refused(wrong: dict[str, Any], problem: str) -> None:
    plan = Plan(4, 8, parts_with([1] * 8), 8)
    with pytest.raises(MegatronError, match=problem) as caught:
        replace(plan, **wrong)
    assert "\n" not in str(caught.value)


def test_norms_are_recomputed_with_experts_alone() -> None:
    """Without, they are fused into GEMMs, and activation functions have no module."""
    options = {"levels": True, "zero": 1}
    dense = estimate("llama3-8b", "h100", 4, **options)
    experts = estimate("qwen3-30b-a3b", "h100", 4, ep=8, dp=8, **options)
    assert all("norms" in [level.name for level in p.stages[0].recompute] for p in (dense, experts))
    assert "norms" not in {choice.level for choice in choices(dense, 8, 1)}
    assert "norms" in {choice.level for choice in choices(experts, 8, 1)}
    with pytest.raises(InvalidSchedule, match="recompute=norms: Megatron-LM has no option"):
        plan_of(Choice(1, level="norms"), dense, 8)
    baked = estimate("llama3-8b", "h100", 4, recompute="norms")
    with pytest.raises(InvalidSchedule, match="recompute=norms: Megatron-LM has no option"):
        plan_of(Choice(1), baked, 8)


def test_a_level_without_words_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="Megatron-LM has no option for this level"):
        plan_of(Choice(1, level="half"), profile_of(2), 4)
    assert choice_of("zb-h1") is None
    assert choice_of("1f1b:recompute=full,apart=yes") is None


# -- what is lost ---------------------------------------------------------------------------------


def test_each_step_is_what_a_replay_says() -> None:
    profile = profile_of(4, memory_limit_bytes=420)
    schedule = build("zb-h1", profile, 8)
    choice, answer = nearest(schedule, profile)
    assert choice == Choice(1)
    (split,) = answer.lost
    assert (split.name, split.count) == ("split", 32)
    assert answer.before.makespan_ns == simulate(schedule, profile).makespan_ns
    assert split.makespan_ns == answer.after.makespan_ns
    assert answer.after.makespan_ns == simulate(build("1f1b", profile, 8), profile).makespan_ns
    assert answer.slower == pytest.approx(split.slower, abs=1e-6)
    assert "1f1b takes" in answer.cost()
    assert "fit" not in answer.cost()


def test_steps_lead_from_the_schedule_to_what_is_told() -> None:
    profile = profile_of(4)
    schedule = build("po-h", profile, 8)
    some = {"0": "full", "1.3": "half"}
    _, answer = nearest(schedule.replace(recompute=some), profile)
    assert [step.name for step in answer.lost] == ["levels", "offloads", "split", "order"]
    assert answer.lost[0].count == 8 + 1
    assert answer.lost[-1].makespan_ns == answer.after.makespan_ns
    ratio = 1.0
    for step in answer.lost:
        assert step.slower is not None
        ratio *= 1 + step.slower
    whole = simulate(schedule.replace(recompute=some), profile, enforce=False).makespan_ns
    assert answer.after.makespan_ns / whole == pytest.approx(ratio, rel=1e-4)


def test_pairs_are_a_step_to_what_is_told() -> None:
    """Where Megatron-LM runs no pairs, or those of a B alone, they are parted first."""
    profile = unit_profile(4, 2, pair_hidden_ms=0.5)
    for name in ("dualpipe-v", "1f1b-i:pairs=yes"):
        schedule = build(name, profile, 8)
        lost = compare(schedule, build("1f1b-i", profile, 8), "1f1b-i", profile).lost
        pairs = lost[0]
        assert (pairs.name, pairs.count) == ("pairs", int(schedule.paired.sum()))
        assert pairs.makespan_ns == simulate(schedule.parted(), profile).makespan_ns
        assert lost[-1].name == "order"


def test_stages_without_layers_are_told() -> None:
    parts = parts_with([2, 0, 2, 0])
    noted = [list(Plan(len(of), 8, of).notes()) for of in (parts, parts_with([2, 2, 2, 0]))]
    assert "stages without any layer (1)" in noted[0][0]
    assert noted[1] == []


def test_the_nearest_fits_where_something_of_the_family_does() -> None:
    profile = profile_of(4, memory_limit_bytes=250)
    _, answer = nearest(build("adaoffload", profile, 8), profile)
    assert answer.after.fits
    assert max(answer.after.peak_bytes) <= 250
    tight = replace(profile, memory_limit=(1,) * 4)
    _, answer = nearest(build("zb-h1", tight, 8), tight)
    assert not answer.after.fits
    assert "does not fit the memory" in answer.cost()


def test_nothing_of_the_family_is_said() -> None:
    profile = unit_profile(4, 2)
    with pytest.raises(InvalidSchedule, match="runs nothing on 4 ranks with 2 chunks each and 3"):
        nearest(build("zb-v", profile, 3), profile)
