"""Fit what the host of a run takes for layers with experts: what is in no kernel, and the least that issuing a layer takes.

    python -m experiments.experts.fit

prints `expert_us` and `host_us` of ``costs/data/machines/h100-sxm-megatron.yaml``, at which one published run takes as long as measured, without overlap and with
it, as pairs; and `host_us` of ``gb200-megatron.yaml``, at which one run does. No other run is seen. What a dispatcher reaches of the network is published.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from scipy.optimize import brentq

from experiments.published import published
from optpipe_sim.costs import load_machine

from .task import iteration_ns, tflops

CASE, BASE, DISPATCHER = "qwen3-30b, all-to-all", "h100-sxm", "DeepEP, 32 ranks"


def fit() -> tuple[float, float]:
    """Return `expert_us` and `host_us`, in us."""
    found = next(one for one in published("experts")["overlap"] if one["id"] == CASE)
    base, measured = load_machine(BASE), found["ms"]

    def off(wanted: str, expert_us: float, host_us: float, **changes: Any) -> float:
        rates = replace(base.rates, expert_us=expert_us, host_us=host_us, expert_ms=0.0)
        own = {**found, "run": {**found["run"], "machine": base.with_rates(rates)}}
        return float(iteration_ns(own, **changes) / 1e6 - measured[wanted])

    expert_us = host_us = 0.0
    for _ in range(4):  # a pair hardly depends on the former, so that this settles at once
        host_us = brentq(lambda at, us=expert_us: off("with", us, at, pairs="combined"), 5e3, 14e3)
        expert_us = brentq(lambda us, at=host_us: off("without", us, at), 0.0, 4000.0)
    return float(expert_us), float(host_us)


def fit_gb200() -> float:
    """Return `host_us` of GB200s, in us."""
    (found,) = published("experts")["host"]
    base = load_machine(found["run"]["machine"])

    def off(host_us: float) -> float:
        machine = base.with_rates(replace(base.rates, host_us=host_us))
        return tflops({**found["run"], "machine": machine}) - float(found["tflops"])

    return float(brentq(off, 10e3, 60e3))


def network_dispatch() -> float:
    """Return what a dispatcher reaches of the network: as published over 32 ranks, less the tokens that stay in their node."""
    found = next(one for one in published("dispatchers")["network"] if one["id"] == DISPATCHER)
    away = 1 - 1 / found["nodes"]
    both = found["gb_per_s"]
    rate = 2 * away / (1 / both["dispatch"] + 1 / both["combine"])
    return float(rate / load_machine(BASE).network_gb_per_s)


def main() -> int:
    """Print the rates."""
    print("h100-sxm-megatron: expert_us {:.0f}, host_us {:.0f}".format(*fit()))
    print(f"gb200-megatron: host_us {fit_gb200():.0f}")
    print(f"h100-sxm-megatron: network_dispatch {network_dispatch():.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
