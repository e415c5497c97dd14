"""Measured 1F1B runs with recomputation, replayed from their own stage times."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from optpipe_sim.costs.published import published
from optpipe_sim.errors import OptPipeError
from optpipe_sim.profile_io import load_profile
from optpipe_sim.schedules import build
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import Row

VERSION = 1


def run(case: str, links: str) -> Row:
    """The replayed makespan (ms) of one run beside the measured iteration without its optimizer.

    One hop is the mean over the stage boundaries of message size over the rate measured for that
    size. Gradient and embedding all-reduces are left in the measured time.

    Raises:
        OptPipeError: for a run that is not in the published data.
    """
    data = published("aceso")
    found = next((one for one in data["runs"] if one["id"] == case), None)
    if found is None:
        known = ", ".join(one["id"] for one in data["runs"])
        raise OptPipeError(f"case: {case!r} is none of the runs; known are {known}")
    rates = data["gb_per_s"]
    hops = [
        size * 2**20 / float(np.interp(size, rates["message_mib"], rates[found["gpu"]])) / 1e6
        for size in found["message_mib"]
    ]
    stages = [
        # 1F1B runs the backward fused: how it would divide does not matter
        {"t_f_ms": forward, "t_b_ms": back, "t_w_ms": 0, "t_bw_ms": back, "act_mib": 1}
        for forward, back in zip(found["forward_ms"], found["backward_ms"], strict=True)
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
    measured = found["iteration_ms"] - found["optimizer_ms"]
    replayed = trace.makespan_ns / 1e6
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
