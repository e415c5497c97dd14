"""Estimates compared with whole runs that others published.

    python -m experiments.costs_runs.run

estimates every run of ``costs/data/published/runs.yaml``, adds the held-out rows of
``results/costs_cells.csv``, and writes ``costs_runs.csv``, ``.md`` and ``.png``, and the
errors that estimates report, ``optpipe_sim/costs/data/compared/runs.yaml``; ``costs_kernels.csv``, what the kernels of one
source reach; and ``costs_microbatches.csv``, which size of microbatches is fastest.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from experiments.published import figure_15, published
from optpipe_sim.costs import estimate, load_machine, load_model
from optpipe_sim.costs.doubt import OFFLOADING, Compared, features, kind_of
from optpipe_sim.costs.layout import Layout
from optpipe_sim.costs.machines import Machine
from optpipe_sim.costs.models import Model
from optpipe_sim.costs.provenance import iteration_ns, mfu
from optpipe_sim.costs.recompute.regions import choice_of
from optpipe_sim.costs.work import Work
from optpipe_sim.errors import OptPipeError
from optpipe_sim.files import write_text
from optpipe_sim.names import build
from optpipe_sim.plot.style import save
from optpipe_sim.profile import CostProfile
from optpipe_sim.sim import simulate
from optpipe_sim.trace import Trace

from ..cells import to_csv
from .chart import draw
from .report import report_text

_SPLIT = ("tp", "cp", "ep")
_WORK = (
    "microbatch",
    "seq",
    "recompute",
    "dtype",
    "chunks",
    "layers",
    "exchange",
    "context",
    "etp",
    "flash",
    "sequence_parallel",
    "cuda_graphs",
    "grad_reduce_in_bf16",
    "accumulate_grads_in_fp32",
    "weights_in_fp32",
    "loss_fusion",
    "gradient_sums",
    "launch_blocking",
    "overlap",
)


def compare() -> list[Compared]:
    """Every published run with its estimate's error."""
    data = published("runs")
    return [_compare(row, load_machine(machine), data) for row, machine in _settings(data)]


def _settings(data: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every run, options of its source included, with each machine file that it is compared at."""
    for each in data["rows"]:
        source = data["sources"][each["source"]]
        row = {**source["options"], **each}
        yield row, row["machine"]
        own = source.get("models_left_out", {})
        if own.get("base") == row["machine"]:
            rates = own["rates"][row["model"]]
            yield {**row, "rates": rates, "role": "model left out"}, own["machine"]


class Estimated(NamedTuple):
    """A published run as estimated: its model, layout and microbatches, profile and replay."""

    model: Model
    layout: Layout
    microbatches: int
    profile: CostProfile
    trace: Trace


def estimated(row: Mapping[str, Any], machine: Machine, data: Mapping[str, Any]) -> Estimated:
    """Estimate the run of a row of ``published/runs.yaml``, options of its source included."""
    name = row["model"]
    shape = data["models"].get(name)
    model = load_model(name if shape is None else {**shape, "name": name})
    split = {key: row.get(key, 1) for key in _SPLIT}
    devices = row.get("pp", 1) * split["tp"] * split["cp"]
    dp = row["gpus"] // devices
    zero = row.get("zero", 1) if dp * split["cp"] > 1 else 0
    work = {key: row[key] for key in _WORK if key in row}
    profile = estimate(
        model, machine, devices, **split, dp=dp, zero=zero, offload=False, levels=False, **work
    )
    microbatches = row["global_batch"] // dp // row["microbatch"]
    schedule = row["schedule"] if profile.chunks > 1 else "1f1b"
    trace = simulate(build(schedule, profile, microbatches), profile, enforce=False)
    return Estimated(
        model, Layout(devices, **split, dp=dp, zero=zero), microbatches, profile, trace
    )


def _compare(row: Mapping[str, Any], machine: Machine, data: Mapping[str, Any]) -> Compared:
    name, rates = row["model"], replace(machine.rates, **row.get("rates", {}))
    model, layout, microbatches, profile, trace = estimated(row, machine.with_rates(rates), data)
    measured = measured_ns(row, profile, microbatches)
    reached = dict.fromkeys((False, True), 0.0)
    if measured is not None:
        reached = {causal: mfu(profile, measured, microbatches, causal) for causal in reached}
    predicted = iteration_ns(profile, trace.makespan_ns)
    digits = 7 if "ablation" in row else 4  # where differences of arms count
    return Compared(
        machine=machine.name,
        kind=kind_of(model),
        dtype=row["dtype"],
        features=_features(model, machine, layout, row),
        error=None if measured is None else round(predicted / measured - 1, digits),
        mfu=round(reached[False], 4),
        mfu_causal=round(reached[True], 4),
        run=f"{name} on {row['gpus']} GPUs, {row['seq']} tokens per sequence",
        source=data["sources"][row["source"]]["title"],
        memory=_memory(row, trace.peak_bytes, digits),
        role=row.get("role", "check"),
        measured_ms=None if measured is None else round(measured / 1e6, 3),
        measured_gib=row.get("peak_gib"),
        ablation=row.get("ablation", ""),
        arm=row.get("arm", ""),
    )


def _memory(row: Mapping[str, Any], peaks: Sequence[int], digits: int) -> float | None:
    """The error of the peak of the device that was recorded: the fullest, or the last."""
    if "peak_gib" not in row:
        return None
    peak = peaks[-1] if row.get("peak_of") == "last" else max(peaks)
    return round(peak / (float(row["peak_gib"]) * 2**30) - 1, digits)


def _features(
    model: Model, machine: Machine, layout: Layout, row: Mapping[str, Any]
) -> frozenset[str]:
    work = Work(
        row["microbatch"],
        row["seq"],
        flash=row.get("flash", True),
        recompute=choice_of(row.get("recompute", "none")),
        dtype=row["dtype"],
        ep=layout.ep,
        exchange=row.get("exchange", "plain"),
        sequence_parallel=row.get("sequence_parallel", True),
        cuda_graphs=row.get("cuda_graphs", False),
        gradient_sums=row.get("gradient_sums", "fused"),
        launch_blocking=row.get("launch_blocking", False),
        overlap=tuple(row.get("overlap", ())),
    )
    return features(model, machine, layout, work)


def measured_ns(row: Mapping[str, Any], profile: CostProfile, microbatches: int) -> float | None:
    """The published time of an iteration; None where only the peak counts."""
    if "iteration_ms" in row:
        return float(row["iteration_ms"]) * 1e6
    if "tflops" in row:
        scores = "" if row.get("scores") == "all" else "_causal"
        once = profile.meta["iteration"][f"flops_per_microbatch{scores}"] * microbatches
        return float(once / (row["tflops"] * 1e12 * profile.meta["parallel"]["devices"]) * 1e9)
    if "tokens_per_s" not in row:
        return None
    tokens = row["global_batch"] * row["seq"] / row["gpus"]
    return float(tokens / row["tokens_per_s"] * 1e9)


def held_out(path: Path) -> Iterator[Compared]:
    """The rows of ``costs_cells.csv`` that no rate was fitted to."""
    causal = _causal_shares(figure_15())
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["role"] == "check"]
    for row in rows:
        if not row["quantity"].endswith("iteration_ms"):
            continue
        offloading = row["table"].startswith("PipeOffload")
        names = {"pipeline parallelism"}
        if offloading:
            names.add("recomputation of norms")
            seq, schedule = row["quantity"].split()[:2]
            names |= {OFFLOADING} if schedule.startswith("po") else set()
            shares = causal[row["model"], int(seq[2:]), schedule]
        else:
            names.add("unfused attention")
            shares = (0.0, 0.0)
        if row["model"] not in ("gpt-1.5b", "gpt-6.2b", "gpt-10.5b"):
            names.add("several nodes")
        yield Compared(
            "a100-80gb",
            "dense",
            "fp16",
            frozenset(names),
            float(row["after_error"]),
            *shares,
            f"{row['model']}, {row['quantity'].removesuffix(' iteration_ms')}",
            row["table"],
        )


def _causal_shares(runs: Sequence[Any]) -> dict[tuple[str, int, str], tuple[float, float]]:
    """MFU of PipeOffload's runs, every score or the causal half counted."""
    found = {}
    for run in runs:
        if run.outcome != "ran":
            continue
        setup = run.setup
        profile = estimate(setup.model, "a100-80gb", setup.devices, **setup.options)
        once = profile.meta["iteration"]
        share = once["flops_per_microbatch_causal"] / once["flops_per_microbatch"]
        whole = run.percent / 100
        found[run.model, run.seq, run.schedule] = (whole, round(whole * share, 4))
    return found


# -- files ----------------------------------------------------------------------------------------


def data_text(rows: Sequence[Compared], records: Sequence[Mapping[str, Any]]) -> str:
    """``data/compared/runs.yaml``."""
    lines = [
        "# Published runs beside their estimates. Written by `python -m experiments.costs_runs.run`;",
        "# `error`, `memory`: estimated / published iteration time, peak - 1; MFU is of the published run.",
        "rows:",
    ]
    for row in rows:
        values = {**row._asdict(), "features": "[" + ", ".join(sorted(row.features)) + "]"}
        values |= {key: f'"{values[key]}"' for key in ("run", "source")}
        values |= {key: "null" for key, value in values.items() if value is None}
        values |= {key: f'"{values[key]}"' for key in ("ablation", "arm")}
        lines.append("- {" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}")
    lines.append("# Runs that no estimate was held against, for the best that was reached.")
    lines.append("records:")
    for record in records:
        text = {**record, **{key: f'"{record[key]}"' for key in ("run", "source")}}
        lines.append("- {" + ", ".join(f"{key}: {value}" for key, value in text.items()) + "}")
    return "\n".join(lines) + "\n"


def table_text(rows: Sequence[Compared]) -> str:
    """``costs_runs.csv``."""
    return to_csv([{**row._asdict(), "features": " + ".join(sorted(row.features))} for row in rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files; 0, or 2 for a folder that cannot be written."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.costs_runs.run",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--results", default="results", help="default: %(default)s")
    given = parser.parse_args(arguments)
    from .kernels import kernels  # which estimate runs as this module does
    from .microbatches import sweeps, table

    data = published("runs")
    results = Path(given.results)
    inside = Path(str(files("optpipe_sim.costs") / "data" / "compared" / "runs.yaml"))
    try:
        rows = [*compare(), *held_out(results / "costs_cells.csv")]
        reached, sizes = list(kernels()), list(sweeps())
        print(write_text(inside, data_text(rows, data["records"])))
        print(write_text(results / "costs_runs.csv", table_text(rows)))
        print(write_text(results / "costs_runs.md", report_text(rows, data, reached, sizes)))
        print(write_text(results / "costs_kernels.csv", to_csv(reached)))
        print(write_text(results / "costs_microbatches.csv", to_csv(list(table(sizes)))))
        print(save(draw(rows), results / "costs_runs.png"))
    except (OptPipeError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
