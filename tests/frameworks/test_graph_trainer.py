"""Plans in the options of torchtitan's graph_trainer, and what its pipelines exclude."""

from __future__ import annotations

from typing import Any

import pytest
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, build
from optpipe_sim.costs import estimate
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.frameworks.graph_trainer import command, nearest, options

LEVELS = [
    {"name": "selective", "t_ms": 0.1, "keep_bytes": 80},
    {"name": "full", "t_ms": 1, "keep_bytes": 10},
]


def profile_of(devices: int, chunks: int, levels: Any = LEVELS) -> CostProfile:
    stage = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50, "layers": 2}
    return unit_profile(devices, chunks, stages={**stage, "recompute": levels})


@pytest.mark.parametrize(
    ("name", "torch", "policy"),
    [
        ("1f1b-i:recompute=full", "Interleaved1F1B", "full"),
        ("1f1b-i:recompute=selective", "Interleaved1F1B", "default"),
        ("zb-v", "ZBVZeroBubble", "full"),
    ],
)
def test_a_plan_that_it_can_run(name: str, torch: str, policy: str) -> None:
    profile = profile_of(2, 2)
    schedule = build(name, profile, 4)
    if not schedule.recompute:
        schedule = schedule.replace(recompute={str(stage): "full" for stage in range(4)})
    found = nearest(schedule, profile)
    assert found.lost == ()
    told = options(found.schedule, profile, "order.csv" if torch.startswith("ZBV") else None)
    assert told["compile"] == {"mode": "aot_fx_trace", "memory_policy": policy}
    assert told["parallelism"]["pipeline_parallel_schedule"] == torch
    assert told["training"]["disable_cuda_graphs"]
    assert "activation_checkpoint" not in told
    line = command(told)
    assert line.startswith(
        f"--compile.mode aot_fx_trace --compile.memory_policy {policy} --training."
    )
    assert "activation_checkpoint" not in line
    assert bool(found.notes) == (policy == "default")


def test_it_always_recomputes_something() -> None:
    profile = profile_of(2, 2)
    found = nearest(build("1f1b-i", profile, 4), profile)
    assert {step.thing for step in found.lost}
    assert set(found.schedule.recompute.values()) <= {"selective", "full"}
    bare = profile_of(2, 2, [])
    with pytest.raises(InvalidSchedule, match="has no level norms or selective or full"):
        nearest(build("1f1b-i", bare, 4), bare)


def test_costs_that_have_the_recomputation_in_them() -> None:
    for inside, policy in (("full", "full"), ("norms", "default")):
        profile = estimate("llama3-8b", "h100", 4, chunks=2, recompute=inside, tp=2, dp=2, zero=2)
        found = nearest(build("1f1b-i", profile, 4), profile)
        assert found.lost == ()
        told = options(found.schedule, profile, None)
        assert told["compile"]["memory_policy"] == policy
        assert told["parallelism"]["fsdp_reshard_after_forward"] == "never"
    shared = estimate("llama3-8b", "h100", 4, chunks=2, recompute="full", dp=2, zero=3)
    with pytest.raises(OptPipeError, match="which graph_trainer's pipelines exclude"):
        options(nearest(build("1f1b-i", shared, 4), shared).schedule, shared, None)


def test_what_it_cannot_run() -> None:
    profile = profile_of(2, 1)
    with pytest.raises(InvalidSchedule, match="several stages per rank"):
        nearest(build("1f1b", profile, 4), profile)
    profile = profile_of(2, 2)
    grouped = build("1f1b-i:group=4,recompute=full", profile, 8)
    with pytest.raises(InvalidSchedule, match="give --csv FILE"):
        options(nearest(grouped, profile).schedule, profile, None)
    told = options(nearest(grouped, profile).schedule, profile, "order.csv")
    assert told["parallelism"]["pipeline_parallel_schedule_csv"] == "order.csv"


def test_the_command_exports_it(command_line) -> None:
    line = "estimate --model llama3-8b --machine h100 --devices 4 --chunks 2 --recompute full --save p.yaml"
    assert command_line(line).code in (0, 1)
    line = "export 1f1b-i p.yaml -m 8 --format graph-trainer --json"
    answer = command_line(line).json
    assert answer["options"]["compile"]["memory_policy"] == "full"
    assert answer["path"] == "1f1b-i.graph-trainer.yaml"
