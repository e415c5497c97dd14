"""Fit rates of the B200 to SimuMax's runs: to all layouts, and to all but each in turn; and its GEMMs in fp8.

    python -m experiments.costs_runs.fit

prints the rates of ``costs/data/machines/b200-sxm.yaml``, and for each layout those that its rows in
``published/runs.yaml`` are compared at: fitted to the others, so that rates that saw a run never judge it. The same of models with
experts in bf16 on H100s, and of GEMMs in fp8 there, source by source, and of the kernels of MosaicML's runs, model by model. Last
the share of the peak that GEMMs in fp8 reach on this chip, fitted to the runs on GB200s in ``published/runs.yaml`` with
``role: fit``, which judge nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares, minimize_scalar

from experiments.published import published
from optpipe_sim.costs import load_machine, load_model
from optpipe_sim.costs.machines import Machine
from optpipe_sim.costs.provenance import iteration_ns

from .kernels import reached
from .microbatches import fit_launches
from .run import Estimated, estimated, measured_ns

MACHINE, SOURCE = "b200-sxm", "simumax"
_KEYS = ("model", "tp", "pp", "cp", "ep", "seq")  # runs alike in these are of one layout
_AT, _STEP = (
    {"collective_us": 16.0, "expert_us": 3000.0},
    1.2,
)  # where makespans are taken, and how far apart

# what is fitted to runs of models with experts, with values to start from, and the sources of these runs
EXPERTS = {"expert_us": 3000.0, "expert_ms": 100.0}
EXPERT_SOURCES = {
    **{name: name for name in ("megatron", "arms", "moonlight")},
    **dict.fromkeys(("overlap", "qwen"), "qwen"),  # one model on one cluster
}

FP8_SOURCES = ("bridge", "nemo", "sft")  # of dense models in fp8 on H100s

Layout = tuple[Any, ...]
Rates = dict[str, float]


def layout_of(row: Mapping[str, Any]) -> Layout:
    """Return the model and the layout of a run, batches left out."""
    return tuple(row.get(key, 1) for key in _KEYS)


def fit() -> dict[Layout | None, Rates]:
    """Return the rates fitted to all layouts (at None), and to all but each, by least squares of the relative
    errors of times, every layout weighted alike.

    A makespan is taken as linear in collective_us and expert_us, from three estimates of each run.
    """
    data, machine = published("runs"), load_machine(MACHINE)
    options = data["sources"][SOURCE]["options"]
    rows = [{**options, **row} for row in data["rows"] if row["source"] == SOURCE]
    layouts = [layout_of(row) for row in rows]
    measured = np.array([row["iteration_ms"] * 1e6 for row in rows])
    weights = np.array([layouts.count(layout) ** -0.5 for layout in layouts])

    def runs(**rates: Any) -> list[Estimated]:
        own = machine.with_rates(replace(machine.rates, **{**_AT, **rates}))
        return [estimated(row, own, data) for row in rows]

    here = runs()
    once = np.array([iteration_ns(one.profile, 0) for one in here])
    busy = np.array([one.trace.makespan_ns for one in here])
    slopes = [
        (np.array([one.trace.makespan_ns for one in runs(**{name: at * _STEP})]) - busy)
        / (_STEP - 1)
        for name, at in _AT.items()
    ]

    def rates(without: Layout | None) -> Rates:
        seen = np.array([layout != without for layout in layouts])

        def errors(values: Any) -> Any:
            more = sum((value - 1) * slope for value, slope in zip(values[1:], slopes, strict=True))
            times = (busy + more) / (1 - values[0]) + once
            return (weights * (times / measured - 1))[seen]

        found = least_squares(errors, (0.05, 1, 1), x_scale=(0.01, 0.1, 0.1)).x
        collective, expert = (at * share for at, share in zip(_AT.values(), found[1:], strict=True))
        return {
            "overhead": round(float(found[0]), 4),
            "collective_us": round(float(collective), 1),
            "expert_us": round(float(expert), -1),
        }

    return {layout: rates(layout) for layout in (None, *dict.fromkeys(layouts))}


def fit_experts() -> dict[str | None, Rates]:
    """Return `EXPERTS` fitted to the runs of models with experts in bf16 on H100s: to all sources (at None), and to all but each,
    by least squares of the logarithms of times, every source weighted alike. Two that ran one model on one cluster count as one.
    """
    data, machine = published("runs"), load_machine("h100-sxm")
    rows = [{**data["sources"][row["source"]]["options"], **row} for row in data["rows"]]
    rows = [row for row in rows if row["source"] in EXPERT_SOURCES and _has_time(row)]
    rows = [row for row in rows if row["machine"] == machine.name and _has_experts(row, data)]

    def off(values: Sequence[float], row: Mapping[str, Any]) -> float:
        changes: dict[str, Any] = dict(zip(EXPERTS, map(float, values), strict=True))
        one = estimated(row, machine.with_rates(replace(machine.rates, **changes)), data)
        measured = measured_ns(row, one.profile, one.microbatches)
        assert measured is not None
        return float(np.log(iteration_ns(one.profile, one.trace.makespan_ns) / measured))

    def fitted(without: str | None) -> Rates:
        seen = [row for row in rows if EXPERT_SOURCES[row["source"]] != without]
        count = Counter(EXPERT_SOURCES[row["source"]] for row in seen)

        def errors(values: Any) -> Any:
            each = (off(values, row) * count[EXPERT_SOURCES[row["source"]]] ** -0.5 for row in seen)
            return np.array(list(each))

        start = list(EXPERTS.values())
        limits = ([0.0, 0.0], [np.inf, np.inf])
        found = least_squares(errors, start, x_scale=start, bounds=limits, diff_step=[0.02]).x
        return {key: round(float(value), -1) for key, value in zip(EXPERTS, found, strict=True)}

    return {source: fitted(source) for source in (None, *dict.fromkeys(EXPERT_SOURCES.values()))}


def _has_time(row: Mapping[str, Any]) -> bool:
    return any(key in row for key in ("iteration_ms", "tflops", "tokens_per_s"))


def _has_experts(row: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    shape = data["models"].get(row["model"])
    return (
        load_model(row["model"] if shape is None else {**shape, "name": row["model"]}).experts > 0
    )


def fit_fp8() -> float:
    """Return `Rates.gemm_fp8` fitted to runs on GB200s, by least squares of the relative errors of times."""
    data, machine = published("runs"), load_machine("gb200")
    rows = [{**data["sources"][row["source"]]["options"], **row} for row in data["rows"]]
    seen = [row for row in rows if (row["machine"], row.get("role")) == ("gb200", "fit")]
    return _fp8(seen, machine, data)


def fit_fp8_h100() -> dict[str | None, float]:
    """Return `Rates.gemm_fp8` fitted to the runs of dense models on H100s: to all sources (at None), and to all but each, by least
    squares of the relative errors of times, every source weighted alike."""
    data, machine = published("runs"), load_machine("h100-sxm")
    rows = [{**data["sources"][row["source"]]["options"], **row} for row in data["rows"]]
    rows = [row for row in rows if row["source"] in FP8_SOURCES and row["machine"] == machine.name]
    rows = [row for row in rows if not _has_experts(row, data)]

    def fitted(without: str | None) -> float:
        return _fp8([row for row in rows if row["source"] != without], machine, data)

    return {source: fitted(source) for source in (None, *FP8_SOURCES)}


def _fp8(seen: Sequence[Mapping[str, Any]], machine: Machine, data: Mapping[str, Any]) -> float:
    count = Counter(row["source"] for row in seen)

    def squares(share: float) -> float:
        own = machine.with_rates(replace(machine.rates, gemm_fp8=share))
        total = 0.0
        for row in seen:
            one = estimated(row, own, data)
            measured = measured_ns(row, one.profile, one.microbatches)
            assert measured is not None
            off = iteration_ns(one.profile, one.trace.makespan_ns) / measured - 1
            total += off**2 / count[row["source"]]
        return total

    found = minimize_scalar(squares, bounds=(0.3, 0.9), method="bounded", options={"xatol": 1e-3})
    return round(float(found.x), 2)


def main() -> int:
    """Print the rates."""
    for layout, rates in fit().items():
        print("all layouts" if layout is None else f"without {layout}", rates)
    for source, rates in fit_experts().items():
        print("experts on H100s, all sources" if source is None else f"without {source}", rates)
    for model in (None, *published("runs")["sources"]["foundry"]["models_left_out"]["rates"]):
        print("kernels of MosaicML's runs on H100s, without", model, reached("h100-sxm", model))
    for source, share in fit_fp8_h100().items():
        print("fp8 on H100s, all sources" if source is None else f"without {source}", share)
    print("GEMMs in fp8 on GB200s", fit_fp8())
    print("a launch that blocks, us", fit_launches())
    return 0


if __name__ == "__main__":
    sys.exit(main())
