"""Which size of microbatches is fastest, as published and as estimated: one layout, several sizes.

Rates are the machine file's; none was fitted to these runs. What the source states of its trainer beside the layout
(`stated`: launches that block, gradients that are summed up in kernels of their own) is left out once, as an estimate is made
without it, and given once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from experiments.published import published
from optpipe_sim.costs import load_machine
from optpipe_sim.costs.machines import Machine
from optpipe_sim.costs.provenance import iteration_ns

from .run import estimated, measured_ns
from .sweep import Sweep


def sweeps() -> Iterator[Sweep]:
    """Yield all published sweeps."""
    data = published("microbatches")
    for sweep in data["sweeps"]:
        source = data["sources"][sweep["source"]]
        stated = {**source["stated"], **sweep.get("stated", {})}
        row = _row(sweep, data)
        found: list[dict[int, float]] = [{}, {}, {}]
        given = sweep.get("seconds") or sweep["tflops"]
        for size, value in ((int(size), value) for size, value in given.items()):
            one = {**row, "microbatch": size}
            if "seconds" in sweep:
                one["iteration_ms"] = 1e3 * value
            else:
                one["tflops"] = value * source["model_flops"]
            for at, more in ((1, {}), (2, stated)):
                found[at][size], found[0][size] = _seconds({**one, **more}, data)
        shape = sweep["shape"]
        name = (
            f"{shape['layers']} x {shape['hidden']}, {shape['heads']} heads, tp {row['tp']}, pp {row['pp']},"
            f" {row['gpus']} GPUs, batch {row['global_batch']}, {sweep['date']}"
        )
        yield Sweep(name, source["title"], *found)


def _row(run: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run as `estimated` takes it; layers lie evenly unless told."""
    row = {**data["sources"][run["source"]]["options"], **run}
    whole, stages = row["shape"]["layers"], row["pp"]
    return {"layers": [whole // stages] * stages, **row, "model": "measured"}


def _seconds(
    row: Mapping[str, Any], data: Mapping[str, Any], machine: Machine | None = None
) -> tuple[float, float]:
    """Return the seconds of an iteration, estimated and measured."""
    shape = {**data["sources"][row["source"]]["shape"], **row["shape"]}
    one = estimated(row, machine or load_machine(row["machine"]), {"models": {"measured": shape}})
    measured = measured_ns(row, one.profile, one.microbatches)
    assert measured is not None
    return iteration_ns(one.profile, one.trace.makespan_ns) / 1e9, measured / 1e9


def fit_launches() -> float:
    """Return `Rates.launch_us` of the source's own comparison of blocking launches with others, which is in no sweep."""
    data = published("microbatches")
    known = data["launches"]
    row = _row({"source": known["source"], **known["row"]}, data)
    counted, tflops = known["counted"], known["tflops"]
    each = counted["tflops"] * counted["iteration_ms"] / counted["global_batch"]  # of a sequence
    longer = (1 / tflops["blocking"] - 1 / tflops["not"]) * each * row["global_batch"] / 1e3
    machine = load_machine(row["machine"])
    row |= {**data["sources"][known["source"]]["stated"], "iteration_ms": 1.0}
    at = [
        _seconds(row, data, machine.with_rates(replace(machine.rates, launch_us=us)))[0]
        for us in (0.0, 1.0)
    ]
    return round(float(longer / (at[1] - at[0])), 1)


def table(found: Iterable[Sweep]) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``costs_microbatches.csv``, one per size."""
    for one in found:
        for size in one.measured:
            times = zip(
                ("measured_s", "unstated_s", "stated_s"),
                (one.measured, one.unstated, one.stated),
                strict=True,
            )
            yield {
                "sweep": one.name,
                "source": one.source,
                "microbatch": size,
                **{key: round(seconds[size], 3) for key, seconds in times},
            }
