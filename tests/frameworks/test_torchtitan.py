"""Plans for torchtitan: orders by name or as a CSV, the modules of each part, and what is lost."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, Shape, build, load_profile
from optpipe_sim.costs import estimate
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.frameworks import torchtitan, torchtitan_search
from optpipe_sim.frameworks.nearest import replay_unlimited
from optpipe_sim.frameworks.torch_csv import from_torch_csv, torch_csv
from optpipe_sim.solvers.options import SolveOptions

STAGE = {
    "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50, "layers": 4,
    "recompute": [{"name": "full", "t_ms": 1, "keep_bytes": 10, "layers": 4}],
}  # fmt: skip
CHECKPOINTS = {"none", "selective", "full", "memory-budget"}
SINGLE, SEVERAL = {"1F1B", "GPipe"}, {"Interleaved1F1B", "ZBVZeroBubble"}


def profile_of(devices: int, **changes: Any) -> CostProfile:
    copies = {"t_offload_ms": 1, "t_reload_ms": 1}
    return unit_profile(devices, **{"stages": STAGE, "offload": copies, **changes})


def check(config: dict[str, Any], found: Schedule, layers: int) -> None:
    """torchtitan's own rules, from its documented options."""
    given = config["parallelism"]
    degree, parts = given["pipeline_parallel_degree"], given["module_fqns_per_model_part"]
    assert len(parts) % degree == 0
    name = given["pipeline_parallel_schedule"]
    assert name in (SINGLE if len(parts) == degree else SEVERAL)
    vee = name == "ZBVZeroBubble"  # this name, and DualPipeV, lay stages in a vee
    where = [stage % degree for stage in range(len(parts))]
    if vee:
        where = [*range(degree), *reversed(range(degree))]
    assert list(found.shape.placement) == where
    modules = [module for part in parts for module in part]
    assert modules == ["tok_embeddings", *(f"layers.{n}" for n in range(layers)), "norm", "lm_head"]
    assert config["activation_checkpoint"] in CHECKPOINTS


def plans() -> Iterator[tuple[CostProfile, Schedule]]:
    names = ("1f1b", "gpipe", "1f1b-i", "1f1b-i:chunks=4", "zb-h1", "zb-v", "v-half", "dualpipe-v",
             "po-h", "1f1b:recompute=full", "zb-v:recompute=full", "1f1b-i:group=8")  # fmt: skip
    for devices in (2, 4):
        profile = profile_of(devices)
        for name in names:
            yield profile, build(name, profile, 8)


def test_plans_are_accepted() -> None:
    for profile, schedule in plans():
        found = torchtitan.nearest(schedule, profile)
        named = torchtitan.has_name(found.schedule, profile)
        config = torchtitan.options(found.schedule, profile, None if named else "plan.csv")
        check(config, found.schedule, 4 * profile.devices)
        assert [step.name for step in found.lost] == (
            ["offloads"] if schedule.is_transfer.any() else []
        )
        order = from_torch_csv(torch_csv(found.schedule.replace(recompute={})))
        assert order.programs == found.schedule.programs
        words = torchtitan.command(config).split()
        assert words[-1] == f"activation_checkpoint:{config['activation_checkpoint']}"
        assert ("plan.csv" in words) != named


def test_only_schedules_that_torch_has_go_without_a_file() -> None:
    profile = profile_of(4)
    found = torchtitan.nearest(build("1f1b-i", profile, 8), profile)
    config = torchtitan.options(found.schedule, profile, None)
    assert config["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert "pipeline_parallel_schedule_csv" not in config["parallelism"]
    with pytest.raises(InvalidSchedule, match="give --csv FILE"):
        torchtitan.options(build("zb-h1", profile, 8), profile, None)


def test_levels_become_one_kind_of_checkpointing() -> None:
    profile = profile_of(4, memory_limit_bytes=250)
    schedule = build("1f1b", profile, 8).replace(recompute={"0": "full", "1.2": "full"})
    found = torchtitan.nearest(schedule, profile)
    assert found.schedule.recompute == {str(stage): "full" for stage in range(4)}
    assert found.after.fits
    (levels,) = found.lost
    assert (levels.name, levels.count) == ("levels", 3 * 8 - 1)
    assert torchtitan.options(found.schedule, profile, None)["activation_checkpoint"] == "full"


def test_a_placement_without_a_name_becomes_a_loop() -> None:
    profile = unit_profile(2, 2, stages={**STAGE, "recompute": []})
    odd = Shape(2, 2, 4, (0, 1, 1, 0))
    assert torchtitan.nearest(build("zb-v", profile, 4), profile).schedule.shape == odd
    shape = Shape(2, 2, 2, (1, 0, 0, 1))
    rows = [["F1.0", "F2.0", "F1.1", "F2.1", "BW2.0", "BW1.0", "BW2.1", "BW1.1"],
            ["F0.0", "F0.1", "F3.0", "BW3.0", "F3.1", "BW3.1", "BW0.0", "BW0.1"]]  # fmt: skip
    found = torchtitan.nearest(Schedule(shape, rows), replace(profile, placement=shape.placement))
    assert found.schedule == build("1f1b-i:chunks=2", profile, 2)
    assert found.lost[-1].thing == "its placement and order"


def test_what_torch_refuses_goes_into_a_file() -> None:
    """Its schedules of one stage per rank want as many microbatches as stages (torch 2.13)."""
    profile = profile_of(4)
    few = build("1f1b", profile, 3)
    assert not torchtitan.has_name(few, profile)
    assert torchtitan.has_name(build("1f1b", profile, 4), profile)
    config = torchtitan.options(few, profile, "few.csv")
    assert config["parallelism"]["pipeline_parallel_schedule_csv"] == "few.csv"


def test_uneven_layouts_name_their_modules_and_what_cannot_be_built_is_refused() -> None:
    profile = profile_of(4)
    schedule = build("1f1b", profile, 4)
    config = torchtitan.options(schedule, profile, None, layers=(1, 3, 2, 0))
    check(config, schedule, 6)
    assert config["parallelism"]["module_fqns_per_model_part"][3] == ["norm", "lm_head"]
    with pytest.raises(OptPipeError, match="stage 1: has no module"):
        torchtitan.options(schedule, profile, None, layers=(2, 0, 2, 2))
    item = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 10}
    names = ["embedding", *["layer"] * 3, "mtp", "head"]
    further = load_profile({"devices": 2, "items": [{**item, "name": name} for name in names]})
    layout = further.with_layout([3, 3])
    with pytest.raises(OptPipeError, match="stage 1: has layers that predict further tokens"):
        torchtitan.options(build("1f1b", layout, 2), layout, None)


def words_of(text: str) -> dict[str, list[str]]:
    """The values of each option of a command line; a list ends at the next option only."""
    found: dict[str, list[str]] = {}
    for word in shlex.split(text):
        if word.startswith("--"):
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def test_the_command_line_has_the_sizes_and_no_cuda_graphs() -> None:
    """torchtitan refuses a pipeline with its CUDA graphs, which are on by default."""
    eight = estimate("llama3-8b", "h100", 2, grad_reduce_in_bf16=True)
    with pytest.raises(OptPipeError, match="estimate without --grad-reduce-in-bf16"):
        torchtitan.options(build("1f1b", eight, 8), eight, None)
    graphs = estimate("llama3-8b", "h100", 2, cuda_graphs=True)
    with pytest.raises(OptPipeError, match="which torchtitan refuses with a pipeline"):
        torchtitan.options(build("1f1b", graphs, 8), graphs, None)
    hidden = estimate("llama3-8b", "h100", 4, tp=2, overlap=("tp-comm",))
    with pytest.raises(OptPipeError, match="estimate without --overlap tp-comm"):
        torchtitan.options(build("1f1b", hidden, 8), hidden, None)
    for zero, sizes in (
        (0, {"data_parallel_replicate_degree": 4, "data_parallel_shard_degree": 1}),
        (2, {"data_parallel_shard_degree": 4, "fsdp_reshard_after_forward": "never"}),
        (3, {"data_parallel_shard_degree": 4, "fsdp_reshard_after_forward": "always"}),
    ):
        profile = estimate("llama3-8b", "h100", 8, tp=2, cp=2, dp=4, zero=zero, microbatch=2)
        config = torchtitan.options(build("1f1b", profile, 8), profile, None)
        assert config["training"] == {
            "num_tokens_per_microbatch_per_dp_rank": 8192,
            "max_context_length": 4096,
            "disable_cuda_graphs": True,
        }
        given = config["parallelism"]
        assert {key: given[key] for key in sizes} == sizes
        assert (given["tensor_parallel_degree"], given["context_parallel_degree"]) == (2, 2)
        words = words_of(torchtitan.command(config))
        assert words["--training.disable_cuda_graphs"] == []
        parts = words["--parallelism.module_fqns_per_model_part"]
        assert [part.split(",") for part in parts] == given["module_fqns_per_model_part"]
    unit = unit_profile(1)
    alone = torchtitan.options(build("1f1b", unit, 1), unit, None, layers=(2,))
    assert alone["training"] == {}


def test_the_search_moves_layers_as_well() -> None:
    """A head as long as three layers: an even share of the items is slower."""
    layer = {"name": "layer", "count": 8, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 10}
    ends = [{**layer, "name": name, "count": 1} for name in ("embedding", "head")]
    for key in ("t_f_ms", "t_b_ms", "t_w_ms"):
        ends[1][key] = 3
    profile = load_profile({"devices": 2, "items": [ends[0], layer, ends[1]]})
    options = SolveOptions(engine="adaoffload", time_limit=5, chunks="own")
    found = torchtitan_search.best(profile, 4, options)
    assert found.to_json()["moved"]
    assert found.trace.cost_ns < found.given.cost_ns
    assert found.to_json()["layers"] == [6, 4]
    name = torchtitan.has_name(found.trace.schedule, found.trace.profile)
    config = torchtitan.options(
        found.trace.schedule, found.trace.profile, None if name else "order.csv"
    )
    check(config, found.trace.schedule, 8)


def test_full_checkpointing_does_not_split_backwards_that_would_hold_what_they_recompute() -> None:
    """W needs ten times what full checkpointing keeps: with B and W apart the order that is faster does not fit."""
    full = {"name": "full", "t_ms": 1, "keep_mib": 10, "b_work_mib": 90}
    cost = {
        "t_f_ms": 1,
        "t_b_ms": 1,
        "t_w_ms": 1,
        "act_mib": 100,
        "w_mib": 100,
        "recompute": [full],
    }
    profile = load_profile({"devices": 4, "stages": [cost] * 4, "memory_limit_gib": 0.15})
    options = SolveOptions(engine="search", evaluations=200, workers=1, chunks="own")
    found = torchtitan_search.best(profile, 8, options)
    assert found.level == "full"
    assert found.trace.fits
    whole = replay_unlimited(build("1f1b:recompute=full", profile, 8), profile)
    assert found.trace.cost_ns <= whole.cost_ns
