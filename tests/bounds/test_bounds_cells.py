"""What docs/bounds.md says that bounds prove of small problems, computed again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bound_cases import configuration_bound
from greedy_cases import uniform

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.bounds.bounds import lower_bound

PAGE = (Path(__file__).parents[2] / "docs" / "bounds.md").read_text()
SMALL = {"t_f_ns": 10, "t_b_ns": 11, "t_w_ns": 9, "act_bytes": 100, "w_bytes": 50}
SMALL_LEVELS = [
    {"name": "light", "t_ns": 1, "keep_bytes": 60, "work_bytes": 20},
    {"name": "full", "t_ns": 10, "keep_bytes": 6, "work_bytes": 30},
]
LLAMA = {"t_f_ns": 48, "t_b_ns": 59, "t_w_ns": 37, "act_bytes": 676, "w_bytes": 675}
LLAMA_LEVELS = [
    {"name": "norms", "t_ns": 1, "keep_bytes": 523, "work_bytes": 20},
    {"name": "full", "t_ns": 48, "keep_bytes": 42, "work_bytes": 127},
]


@pytest.mark.parametrize(
    ("stage", "levels", "p", "m", "limit", "copy", "cell"),
    [
        (SMALL, SMALL_LEVELS, 8, 16, 200, 16, "p 8, m 16, limit 200, O = R = 16"),
        (SMALL, SMALL_LEVELS, 8, 16, 200, 24, "p 8, m 16, limit 200, O = R = 24"),
        (SMALL, SMALL_LEVELS, 8, 16, 200, 60, "p 8, m 16, limit 200, O = R = 60"),
        (SMALL, SMALL_LEVELS, 16, 32, 200, 24, "p 16, m 32, limit 200, O = R = 24"),
        (LLAMA, LLAMA_LEVELS, 8, 32, 1700, 322, "LLaMA-2-13B-like, p 8, m 32, limit 1700"),
        (LLAMA, LLAMA_LEVELS, 8, 32, 3400, 322, "the same, limit 3400"),
    ],
)
def test_bounds_in_the_documentation(
    stage: dict, levels: list, p: int, m: int, limit: int, copy: int, cell: str
) -> None:
    profile = load_profile(
        {
            "name": cell,
            "devices": p,
            "stages": {**stage, "recompute": levels},
            "t_comm_ns": 1,
            "offload": {"t_offload_ns": copy, "t_reload_ns": copy},
            "memory_limit_bytes": limit,
        }
    )
    assert f"| {cell} | {lower_bound(profile, m).ns} | {configuration_bound(profile, m)} |" in PAGE


@pytest.mark.parametrize(
    "name", ["1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "gis", "po-h", "po-f"]
)
def test_schedules_beside_the_bounds_at_their_own_memory(name: str) -> None:
    profile = uniform(8, 10**6, 16)
    trace = simulate(build(name, profile, 32), profile)
    peak = max(trace.peak_bytes)
    limited = replace(trace.profile, memory_limit=(peak,) * 8)
    bound = max(lower_bound(limited, 32).ns, configuration_bound(limited, 32))
    over = 100 * (trace.makespan_ns / bound - 1)
    share = f"{over:.1f} %" if over else "0"
    assert f"| {name} | {trace.makespan_ns} | {peak} | {bound} | {share} |" in PAGE


def test_zb_h1_of_a_published_profile() -> None:
    path = Path(__file__).parents[2] / "experiments" / "profiles" / "zb-1.5b-p8-m24.yaml"
    profile = load_profile(path)
    assert simulate(build("zb-h1", profile, 24), profile).makespan_ns == 1_310_405_000
    assert "1310.4 ms" in PAGE
