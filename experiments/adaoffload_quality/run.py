"""How close AdaOffload comes to the best makespans known, cell by cell, and how long it takes.

    python -m experiments.adaoffload_quality.run [--engines separate|shared] [--largest M]

Uniform stages F = 10, B = 11, W = 9, hop 1, act 100 bytes, w 50, all of act offloaded in a copy of
the given length each way. "best" is the best makespan a long search has found (optimal where it
meets its bound), "bound" our own lower bound.
"""

from __future__ import annotations

import argparse
import time

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.profile import CostProfile

# p, m, limit in bytes, copy: the least makespan, found and proven.
BEST = {
    (4, 8, 400, 5): 273,
    (4, 8, 200, 5): 291,
    (4, 8, 400, 16): 273,
    (4, 8, 200, 16): 303,
    (4, 16, 400, 5): 513,
    (4, 16, 200, 5): 531,
    (4, 16, 400, 16): 513,
    (4, 16, 200, 16): 551,
    (8, 16, 800, 5): 557,
    (8, 16, 400, 5): 587,
    (8, 16, 800, 16): 557,
    (8, 16, 400, 16): 587,
    (8, 16, 266, 5): 614,
    (8, 16, 200, 5): 623,
    (8, 16, 266, 16): 625,
    (8, 16, 200, 16): 643,
    (8, 32, 800, 5): 1037,
    (8, 32, 400, 5): 1067,
    (8, 32, 800, 16): 1037,
    (8, 32, 400, 16): 1067,
    (8, 32, 266, 5): 1094,
    (8, 32, 200, 5): 1103,
    (8, 32, 266, 16): 1105,
    (8, 32, 200, 16): 1139,
    (16, 32, 1600, 5): 1125,
    (16, 32, 800, 5): 1179,
    (16, 32, 400, 5): 1251,
    (16, 32, 1600, 16): 1125,
    (16, 32, 800, 16): 1179,
    (16, 32, 400, 16): 1251,
    (16, 64, 1600, 5): 2085,
    (16, 64, 800, 5): 2139,
    (16, 64, 400, 5): 2211,
    (16, 64, 1600, 16): 2085,
    (16, 64, 800, 16): 2139,
    (16, 64, 400, 16): 2211,
}


def uniform(devices: int, limit: int, copy_ns: int, engines: str) -> CostProfile:
    """The profile of a cell."""
    return load_profile(
        {
            "name": "uniform",
            "devices": devices,
            "stages": {
                "t_f_ns": 10,
                "t_b_ns": 11,
                "t_w_ns": 9,
                "act_bytes": 100,
                "w_bytes": 50,
            },
            "t_comm_ns": 1,
            "offload": {
                "t_offload_ns": copy_ns,
                "t_reload_ns": copy_ns,
                "copy_engines": engines,
            },
            "memory_limit_bytes": limit,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", choices=("separate", "shared"), default="separate")
    parser.add_argument("--largest", type=int, default=64, help="the largest m to run")
    options = parser.parse_args()
    build("adaoffload", uniform(2, 200, 5, options.engines), 2)  # compile, or load what is
    print(" p   m  limit copy   best   ours    gap  bound  copied     ms")
    gaps = []
    for (p, m, limit, copy_ns), best in BEST.items():
        if m > options.largest:
            continue
        profile = uniform(p, limit, copy_ns, options.engines)
        start = time.perf_counter()
        schedule = build("adaoffload", profile, m)
        spent = time.perf_counter() - start
        trace = simulate(schedule, profile)
        bound = lower_bound(profile, m)
        gaps.append(trace.makespan_ns / best - 1)
        print(
            f"{p:2} {m:3}  {limit:5} {copy_ns:4}  {best:5}  {trace.makespan_ns:5} {gaps[-1]:+6.2%}"
            f"  {bound.ns:5}  {trace.offloaded / (p * m):6.0%}  {spent * 1000:5.0f}"
        )
    print(f"mean gap {sum(gaps) / len(gaps):+.2%}, worst {max(gaps):+.2%}")


if __name__ == "__main__":
    main()
