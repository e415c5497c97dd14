"""Measured 1F1B runs with recomputation, replayed from their stage times or from tables of their ops."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import numpy as np

from experiments.published import published
from optpipe_sim.errors import OptPipeError
from optpipe_sim.profile_io import load_profile
from optpipe_sim.schedules import build
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import Row

VERSION = 2


def run(case: str, links: str, times: str = "stages") -> Row:
    """The replayed makespan (ms) of one run beside the measured iteration without its optimizer.

    The message time is the mean over the stage boundaries of message size over the rate measured for that
    size. With `times` ``stages``, the measured times of each stage, gradient and embedding all-reduces are
    left in the measured time. With ``tables`` stage times are sums over the ops timed one by one, with
    those flagged recomputed in the backward pass, and the whole iteration is compared, optimizer and
    all-reduces of the slowest rank added as measured.

    Raises:
        OptPipeError: for a run that is not in the published data, or other `times`.
    """
    data = published("aceso")
    found = next((one for one in data["runs"] if one["id"] == case), None)
    if found is None:
        known = ", ".join(one["id"] for one in data["runs"])
        raise OptPipeError(f"case: {case!r} is none of the runs; known are {known}")
    if times not in ("stages", "tables"):
        raise OptPipeError(f"times: expected stages or tables, got {times!r}")
    rates = data["gb_per_s"]
    hops = [
        size * 2**20 / float(np.interp(size, rates["message_mib"], rates[found["gpu"]])) / 1e6
        for size in found["message_mib"]
    ]
    stages = [
        # 1F1B runs the backward fused, so its split does not matter
        {"t_f_ms": forward, "t_b_ms": back, "t_w_ms": 0, "t_bw_ms": back, "act_mib": 1}
        for forward, back in (
            zip(found["forward_ms"], found["backward_ms"], strict=True)
            if times == "stages"
            else stages_of_tables(found, data)
        )
    ]
    hop_ms = round(fmean(hops), 6) if hops else 0
    profile = load_profile(
        {
            "name": case,
            "devices": len(stages),
            "stages": stages,
            "t_comm_ms": hop_ms,
            "links": links,
        }
    )
    trace = simulate(build("1f1b", profile, found["microbatches"]), profile)
    measured, replayed = found["iteration_ms"], trace.makespan_ns / 1e6
    if times == "stages":
        measured -= found["optimizer_ms"]
    else:
        replayed += found["once_ms"]
    return {
        "gpu": found["gpu"],
        "model": found["model"],
        "stages": len(stages),
        "microbatches": found["microbatches"],
        "recomputed_share": sum(found["recomputed_ops"]) / sum(found["ops"]),
        "hop_ms": hop_ms,
        "measured_ms": measured,
        "replayed_ms": replayed,
        "error": replayed / measured - 1,
    }


def stages_of_tables(
    found: Mapping[str, Any], data: Mapping[str, Any]
) -> list[tuple[float, float]]:
    """Forward and backward of each stage of a run, ms, from the tables of its ops."""
    tables = {
        (one["gpu"], one["model"], one["microbatch"], one["tp"]): one for one in data["tables"]
    }
    ops = [0, *(list(range(1, 14)) * data["layers"][found["model"]]), 14, 15]
    stages, first = [], 0
    for count, flags, tp, dp in zip(
        found["ops"], found["flags"], found["tp"], found["dp"], strict=True
    ):
        table = tables[found["gpu"], found["model"], found["microbatch"] // dp, tp]
        mine, first = ops[first : first + count], first + count
        forward, backward = (
            [table[key][op] for op in mine] for key in ("forward_us", "backward_us")
        )
        again = [us for us, flag in zip(forward, flags, strict=True) if flag == "1"]
        stages.append((sum(forward) / 1e3, (sum(backward) + sum(again)) / 1e3))
    return stages
