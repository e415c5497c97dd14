"""What the kernels of a source's runs reach, where its trainer and not the GPU is why estimates of them are off.

MosaicML's runs have one stage and hide FSDP's exchange, so that their times are those of three kinds of kernels: GEMMs, attention,
and what only moves data. A run's time is linear in the inverse of what each of these reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy.optimize import nnls

from experiments.published import published
from optpipe_sim.costs import load_machine
from optpipe_sim.costs.machines import Machine

from .run import estimated, measured_ns

SOURCE = "foundry"
PARTS = {"gemm": "gemm", "attention": "attention", "bandwidth": "elementwise"}  # by rate
MACHINES = ("a100-80gb", "h100-sxm")


def kernels() -> Iterator[dict[str, Any]]:
    """Yield a row per machine file: the share of the peak that each kind of kernel reaches by the file, and fitted to the
    source's runs; the median and largest error of their times by the file, and fitted to the runs of all other models."""
    for name in MACHINES:
        machine, mine, parts = _runs(name)
        models = [row["model"] for row in mine]
        left_out = np.empty(len(mine))
        for model in set(models):
            seen = np.array([one != model for one in models])
            left_out[~seen] = parts[~seen] @ _longer(parts[seen]) - 1
        known = {key: getattr(machine.rates, key) for key in PARTS}
        yield {
            "machine": name,
            "runs": len(mine),
            "models": len(set(models)),
            **known,
            **{f"{key}_reached": value for key, value in reached(name).items()},
            **_errors("", parts.sum(axis=1) - 1),
            **_errors("left_out_", left_out),
        }


def reached(name: str, without: str | None = None) -> dict[str, float]:
    """Return the share that each kind of kernel reaches in the source's runs on a machine, by `PARTS`, those of one model left out."""
    machine, mine, parts = _runs(name)
    longer = _longer(parts[[row["model"] != without for row in mine]])
    return {
        key: round(float(getattr(machine.rates, key) / each), 3)
        for key, each in zip(PARTS, longer, strict=True)
    }


def _runs(name: str) -> tuple[Machine, list[dict[str, Any]], np.ndarray]:
    """Return a machine, the source's runs on it, and the parts of each one's time."""
    data = published("runs")
    rows = [{**data["sources"][row["source"]]["options"], **row} for row in data["rows"]]
    mine = [row for row in rows if row["source"] == SOURCE and name == row["machine"]]
    return load_machine(name), mine, np.array([_parts(row, name, data) for row in mine])


def _longer(parts: np.ndarray) -> np.ndarray:
    """Return how many times as long each part takes as estimated."""
    found, _ = nnls(parts, np.ones(len(parts)))
    return np.asarray(found)


def _errors(name: str, errors: np.ndarray) -> dict[str, float]:
    worst = float(max(errors, key=abs))
    return {
        f"{name}error": round(float(np.median(abs(errors))), 4),
        f"{name}worst": round(worst, 4),
    }


def _parts(row: Mapping[str, Any], name: str, data: Mapping[str, Any]) -> list[float]:
    """Return the shares of a run's measured time, of what is in ops, that kernels of each kind take by the machine file."""
    machine = load_machine(name)
    one = estimated(row, machine, data)
    measured = measured_ns(row, one.profile, one.microbatches)
    assert measured is not None
    once = one.profile.meta["iteration"]
    ns = measured - 1e6 * (once["optimizer_ms"] + once["gradient_sync_ms"])
    ns *= 1 - machine.rates.overhead
    spent = one.profile.meta["time_spent"]
    return [one.trace.makespan_ns * spent[part] / ns for part in PARTS.values()]
