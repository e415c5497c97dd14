"""The closed forms over all treatments on larger cells, as docs/bounds.md has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from optpipe_sim import load_profile
from optpipe_sim.bounds.bounds import lower_bound

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
    ("stage", "levels", "p", "m", "limit", "copy", "bound", "cell"),
    [
        (SMALL, SMALL_LEVELS, 8, 16, 200, 16, 623, "p 8, m 16, limit 200, O = R = 16"),
        (SMALL, SMALL_LEVELS, 8, 16, 200, 24, 623, "p 8, m 16, limit 200, O = R = 24"),
        (SMALL, SMALL_LEVELS, 8, 16, 200, 60, 623, "p 8, m 16, limit 200, O = R = 60"),
        (SMALL, SMALL_LEVELS, 16, 32, 200, 24, 1287, "p 16, m 32, limit 200, O = R = 24"),
        (LLAMA, LLAMA_LEVELS, 8, 32, 1700, 322, 5334, "LLaMA-2-13B-like, p 8, m 32, limit 1700"),
        (LLAMA, LLAMA_LEVELS, 8, 32, 3400, 322, 5223, "the same, limit 3400"),
    ],
)
def test_bounds_in_the_documentation(
    stage: dict, levels: list, p: int, m: int, limit: int, copy: int, bound: int, cell: str
) -> None:
    profile = load_profile(
        {
            "name": cell,
            "devices": p,
            "stages": {**stage, "recompute": levels},
            "t_comm_ns": 1,
            "offload": {"t_offload_ns": copy, "t_reload_ns": copy},
        }
    )
    assert lower_bound(profile, m, memory_limit=limit).ns == bound
    text = (Path(__file__).parents[2] / "docs" / "bounds.md").read_text()
    assert f"| {cell} | {bound} |" in text
