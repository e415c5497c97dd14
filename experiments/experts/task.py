"""Published runs of models with experts that differ in one choice, beside estimates of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scipy.optimize import brentq

from experiments.published import published
from optpipe_sim.costs import estimate, load_model
from optpipe_sim.errors import OptPipeError
from optpipe_sim.schedules import build
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import Row
from optpipe_sim.trace import Trace

VERSION = 3
OVERLAPPED = {"plain": "overlapped", "per-node": "per-node-overlapped"}


def run(case: str, how: str, machine: str) -> Row:
    """The change of an iteration's time from one run of `case` to the other, as measured and as estimated.

    `machine`: whose rates are used. `how` of the estimate: ``alike``, the exchange is hidden in every forward and backward alike (`exchange` overlapped); ``pairs``, where one of each
    run as one op; ``uneven``, the most loaded GPU has so many times the mean of tokens as the other case of its kind implies, whose measured change the
    estimate then gives.

    Raises:
        OptPipeError: for another case, or a way that it has not.
    """
    kind = "balance" if how == "uneven" else "overlap"
    cases = {one["id"]: one for one in published("experts")[kind]}
    if case not in cases or how not in ("alike", "pairs", "uneven"):
        raise OptPipeError(
            f"case, how: {case!r}, {how!r}: known are alike and pairs of {', '.join(cases)}"
        )
    found = {**cases[case], "run": {**cases[case]["run"], "machine": machine}}
    measured = change(found)
    row: Row = {"kind": kind, "measured": measured}
    before = iteration_ns(found)
    if how == "uneven":
        row["implied"] = implied(found)
        other = next(one for name, one in cases.items() if name != case)
        row["imbalance"] = implied({**other, "run": {**other["run"], "machine": machine}})
        after = iteration_ns(found, imbalance=row["imbalance"])
    elif how == "alike":
        after = iteration_ns(found, exchange=OVERLAPPED[found["run"]["exchange"]])
    else:
        after = iteration_ns(found, pairs="combined" if "with" in found["ms"] else "delayed-w")
    estimated = after / before - 1
    if "graphs_ms" in found:  # the same run with CUDA graphs of some modules
        graphed = iteration_ns(
            found, pairs="delayed-w", cuda_graph_modules=["moe_router", "moe_preprocess"]
        )
        row["graphs_ms"] = graphed / 1e6
    return {
        **row,
        "measured_ms": (found.get("ms") or {}).get("without"),
        "estimated_ms": before / 1e6,
        "after_ms": after / 1e6,
        "estimated": estimated,
        "points": 100 * (estimated - measured),
    }


def change(found: Mapping[str, Any]) -> float:
    """Return by how much the second run takes longer than the first, as measured."""
    if "tflops" in found:
        return float(found["tflops"]["forced"] / found["tflops"]["router"] - 1)
    times = found["ms"]
    return float(times.get("with", times.get("delayed-w", 0.0)) / times["without"] - 1)


def iteration_ns(found: Mapping[str, Any], **changes: Any) -> float:
    """Return the estimated time of a run's iteration, with some options of `estimate` changed."""
    return replayed({**found["run"], **changes}).iteration_ns


def tflops(run: Mapping[str, Any], **changes: Any) -> float:
    """Return the model's TFLOP/s per GPU, the causal half of the scores counted, of a run with some options changed."""
    trace = replayed({**run, **changes})
    once = trace.profile.meta["iteration"]["flops_per_microbatch_causal"]
    done = once * run["microbatches"] / run["devices"]
    return float(done / trace.iteration_ns / 1e3)


def replayed(run: Mapping[str, Any]) -> Trace:
    """Return the replay of a run."""
    options = dict(run)
    name, microbatches = options.pop("model"), options.pop("microbatches")
    shape = published("runs")["models"].get(name)
    model = load_model(name if shape is None else {**shape, "name": name})
    profile = estimate(model, options.pop("machine"), offload=False, levels=False, **options)
    pairs = "yes" if "pairs" in options else "no"
    schedule = build(f"1f1b-i:chunks={profile.chunks},pairs={pairs}", profile, microbatches)
    return simulate(schedule, profile, enforce=False)


def implied(found: Mapping[str, Any]) -> float:
    """Return the imbalance at which the estimate gives the measured change."""
    even, measured = iteration_ns(found), change(found)

    def off(imbalance: float) -> float:
        return iteration_ns(found, imbalance=imbalance) / even - 1 - measured

    return float(brentq(off, 1.0, float(found["run"]["ep"]), xtol=1e-4))
