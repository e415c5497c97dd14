"""Steps that one published run took to twice its rate, beside estimates of those of which something is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.experts.task import tflops
from experiments.published import published
from optpipe_sim.costs import load_machine
from optpipe_sim.costs.machines import Machine
from optpipe_sim.study.tasks import Row

VERSION = 2
MACHINE = ("issued", "host", "dispatcher")  # what changes rates, not options


def run(machine: str) -> list[Row]:
    """Return a row per step: the rate per GPU in TFLOP/s and by how much it rose, as published and as estimated.

    An estimated step begins at the last one that was estimated. `kernels`: the rate that the same run would have if its host were never late. `pairs`: by how much it would rise if a forward and a
    backward ran as one op.
    """
    history = published("experts")["history"]
    (first,) = (one for one in published("experts")["host"] if one["id"] == history["run"])
    base, rows = load_machine(machine), []
    host_us, host, options, dispatcher = base.rates.host_us, 1.0, dict(first["run"]), ""
    measured = estimated = 0.0
    for step in history["steps"]:
        row: Row = {"step": step["step"], "change": step["change"], "measured": step["tflops"]}
        row["gain"] = step["tflops"] / measured - 1 if measured else None
        measured = step["tflops"]
        changed = step.get("estimate")
        if changed is not None:
            host_us += changed.get("issued", 0) * base.rates.host_us
            host *= changed.get("host", 1.0)
            dispatcher = changed.get("dispatcher", dispatcher)
            options |= {key: value for key, value in changed.items() if key not in MACHINE}
            options["machine"] = machine_at(base, host_us * host, dispatcher)
            before, estimated = estimated, tflops(options)
            row |= {
                "estimated": estimated,
                "estimated_gain": estimated / before - 1 if before else None,
                "kernels": tflops({**options, "cuda_graph_modules": []}, cuda_graphs=True),
                "pairs": tflops(options, pairs="combined") / estimated - 1,
            }
        rows.append({**row, "unknown": step.get("unknown")})
    return rows


def machine_at(base: Machine, host_us: float, dispatcher: str) -> Machine:
    """Return a machine with another `host_us`, and with the exchange of tokens as a dispatcher was measured ("": as it is)."""
    rates = replace(base.rates, host_us=host_us)
    if dispatcher:
        (found,) = (one for one in published("dispatchers")["links"] if one["id"] == dispatcher)
        share = exchanged_per_s(found) / (base.link_gb_per_s * 1e9)
        rates = replace(rates, all_to_all=share, collective_us=0.0)  # which the measured time has
    return base.with_rates(rates)


def exchanged_per_s(found: Mapping[str, Any]) -> float:
    """Return the bytes per second at which a dispatcher takes every copy of a token that goes to another rank, there and back.

    It sends one copy to each rank, its own among them, and that is what its published rate counts.
    """
    ranks, chosen, rates = found["ranks"], found["topk"], found["gb_per_s"]
    counted = ranks * (1 - (1 - 1 / ranks) ** chosen)  # experts drawn evenly
    copies = chosen * (1 - 1 / ranks)
    return float(2e9 / (1 / rates["dispatch"] + 1 / rates["combine"]) * copies / counted)
