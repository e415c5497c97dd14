"""Fit rates of the B200 to SimuMax's runs: to all layouts, and to all but each in turn; and its GEMMs in fp8.

    python -m experiments.costs_runs.fit

prints the rates of ``costs/data/machines/b200-sxm.yaml``, and for each layout those that its rows in
``published/runs.yaml`` are compared at: fitted to the others, so that rates that saw a run never judge it. Last
the share of the peak that GEMMs in fp8 reach on this chip, fitted to the runs on GB200s in ``published/runs.yaml`` with
``role: fit``, which judge nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares, minimize_scalar

from optpipe_sim.costs import load_machine
from optpipe_sim.costs.provenance import iteration_ns
from optpipe_sim.costs.published import published

from .run import Estimated, estimated, measured_ns

MACHINE, SOURCE = "b200-sxm", "simumax"
_KEYS = ("model", "tp", "pp", "cp", "ep", "seq")  # runs alike in these are of one layout
_AT, _STEP = (
    {"collective_us": 16.0, "expert_us": 3000.0},
    1.2,
)  # where makespans are taken, and how far apart

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


def fit_fp8() -> float:
    """Return `Rates.gemm_fp8` fitted to runs on GB200s, by least squares of the relative errors of times."""
    data, machine = published("runs"), load_machine("gb200")
    rows = [{**data["sources"][row["source"]]["options"], **row} for row in data["rows"]]
    seen = [row for row in rows if (row["machine"], row.get("role")) == ("gb200", "fit")]

    def squares(share: float) -> float:
        own = machine.with_rates(replace(machine.rates, gemm_fp8=share))
        total = 0.0
        for row in seen:
            one = estimated(row, own, data)
            measured = measured_ns(row, one.profile, one.microbatches)
            assert measured is not None
            total += (iteration_ns(one.profile, one.trace.makespan_ns) / measured - 1) ** 2
        return total

    found = minimize_scalar(squares, bounds=(0.3, 0.9), method="bounded", options={"xatol": 1e-3})
    return round(float(found.x), 2)


def main() -> int:
    """Print the rates."""
    for layout, rates in fit().items():
        print("all layouts" if layout is None else f"without {layout}", rates)
    print("GEMMs in fp8", {"gemm_fp8": fit_fp8()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
