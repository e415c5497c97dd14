"""Profiles that command lines are tried on, and what `simulate --json` has."""

from __future__ import annotations

STAGE = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50}
PROFILE = {"name": "unit", "devices": 4, "stages": STAGE}
OFFLOADING = {**PROFILE, "offload": {"t_offload_ms": 1, "t_reload_ms": 1}}
MEASURES = {
    "schedule",
    "makespan_ns",
    "cost_ns",
    "bubble_rate",
    "bubble_rate_flush",
    "idle_ns",
    "peak_bytes",
    "host_peak_bytes",
    "offloaded",
    "fits",
}

# a run of 8 GPUs, for evaluate
LLAMA = [
    "--model",
    "llama2-7b",
    "--machine",
    "h100",
    "--gpus",
    "8",
    "--seq",
    "4096",
    "-m",
    "8",
    "--pp",
    "4",
]
