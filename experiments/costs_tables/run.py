"""Estimated against published costs, before and after calibration on a part of the rows.

    python -m experiments.costs_tables.run

takes the Zero Bubble papers' times, throughput and memory and PipeOffload's figure 15, fits the
rates of the A100 to three of the seven models, and writes ``costs_cells.csv`` (every number),
``costs_tp.csv`` (tensor against pure pipeline parallelism) and ``costs_tables.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from experiments.cells import to_csv
from experiments.published import (
    Cell,
    Run,
    figure_15,
    figure_15_cells,
    machine_of,
    published,
    zero_bubble_cells,
)
from optpipe_sim.costs import estimate, load_model
from optpipe_sim.costs.calibrate import TIMES, Calibration, calibrate, determined
from optpipe_sim.costs.machines import Machine, Rates
from optpipe_sim.costs.provenance import iteration_ns, mfu
from optpipe_sim.errors import OptPipeError
from optpipe_sim.files import write_text
from optpipe_sim.names import build
from optpipe_sim.sim import simulate

from .report import Split, report

_GIB = 2**30
OTHERWISE = ("ideal", "megatron-lm")  # executions beside that of the trainers
Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One published number, and its estimates without and with calibration."""

    table: str
    model: str
    quantity: str
    role: str
    kind: str
    published: float
    before: float
    after: float
    otherwise: tuple[float | None, ...] = ()  # times at the fitted rates, under each of `OTHERWISE`

    @property
    def errors(self) -> tuple[float, float]:
        """Estimated / published - 1, before and after."""
        return self.before / self.published - 1, self.after / self.published - 1


def fit(cells: Sequence[Cell], machine: Machine) -> tuple[Calibration, Calibration]:
    """The rates of times, then what memory needs, from the cells whose role is ``fit``.

    Memory is fitted to schedules without offloading: what an offloading one holds depends also
    on the timing of its copies. With the machine's own rates of memory held-out cells are as near as with fitted ones, so that
    these stay; `workspace_mib` is here the constant in Zero Bubble's peaks beyond what is counted, whatever
    it is of; what others recorded does not have it, so that it is no rate of the machine (`at_home`).
    """
    chosen = [cell for cell in cells if cell.role == "fit"]
    times = [cell.measurement for cell in chosen if cell.measurement.kind != "memory"]
    held = [
        cell.measurement
        for cell in chosen
        if cell.measurement.kind == "memory" and "po-" not in cell.quantity
    ]
    source = "the Zero Bubble and PipeOffload papers (1.5B, 14.6B and 10.5B)"
    # what an op takes beside its kernels is in the executions of these runs
    names = [name for name in determined(times, machine.rates) if name not in TIMES]
    first = calibrate(times, machine, source, names)
    return first, calibrate(held, machine.with_rates(first.rates), source, ["workspace_mib"])


def at_home(rates: Rates) -> Rates:
    """Return fitted rates as the machine file has them: without the constant in one source's peaks."""
    return replace(rates, workspace_mib=0.0)


def fit_context(runs: Iterable[Run], rates: Rates, machine: Machine) -> float:
    """GiB that training cannot use: between the largest peak that ran and the least that did not."""
    ran: list[float] = []
    failed: list[float] = []
    for one in runs:
        if one.role == "fit" and not one.schedule.startswith("po-"):
            peak = max(one.replays.trace(rates).peak_bytes) / _GIB
            (ran if one.outcome == "ran" else failed).append(peak)
    above = min((peak for peak in failed if peak > max(ran)), default=machine.memory_gib)
    return max(0.0, machine.memory_gib - (max(ran) + above) / 2)


def tensor_parallel(rates: Rates, machine: Machine) -> list[Split]:
    """Pure pipeline parallelism of 32 with offloading, and 1F1B-I with TP 8 x PP 4."""
    data, found = published("pipeoffload"), []
    for row in data["tensor_parallel"]:
        layers = load_model(row["model"]).layers
        plans = [("TP 8 x PP 4", "1f1b-i", 8, (layers + 2) // 4)]
        plans += [("PP 32", schedule, 1, 2) for schedule in row["offloading"]]
        base = 0.0
        for name, schedule, tp, chunks in plans:
            profile = estimate(
                row["model"],
                machine,
                32,
                tp=tp,
                chunks=chunks,
                seq=row["seq"],
                rates=rates,
                offload=tp == 1,
                **data["options"],
            )
            m = row["microbatches"]
            trace = simulate(build(schedule, profile, m), profile, enforce=False)
            time = iteration_ns(profile, trace.cost_ns)
            base = base or time
            spent = profile.meta["time_spent"]
            busy = sum(stage.work_ns for stage in profile.stages) / 1e9
            linear = _linear_flops(profile.meta, row["model"]) / profile.meta["parallel"]["tp"]
            found.append(
                Split(
                    row["model"],
                    row["seq"],
                    name,
                    schedule,
                    time / 1e9,
                    mfu(profile, time, m),
                    max(trace.peak_bytes) / _GIB,
                    trace.bubble_rate,
                    spent["messages"],
                    linear / (busy * spent["gemm"]) / 1e12,
                    base / time - 1,
                )
            )
    return found


def _linear_flops(meta: dict[str, Any], name: str) -> float:
    """Model FLOPs of one microbatch without the attention's scores."""
    model, seq = load_model(name), meta["work"]["seq"]
    scores = 6 * seq * seq * model.heads * (model.qk_dim + model.v_dim) * model.layers
    return float(meta["iteration"]["flops_per_microbatch"] - scores)


def issued_otherwise(rates: Rates) -> list[tuple[float | None, ...]]:
    """Return for each cell the times of an iteration under `OTHERWISE`; None where it is no time of one."""
    found = []
    for execution in OTHERWISE:
        cells = zero_bubble_cells(execution) + figure_15_cells(figure_15(execution=execution))
        each = (cell.measurement for cell in cells)
        found.append([one.predict(rates) if one.kind == "iteration" else None for one in each])
    return list(zip(*found, strict=True))


def medians(rows: Iterable[Row], role: str) -> dict[tuple[str, str], tuple[int, float, float]]:
    """Per table and quantity: how many, and the median absolute error before and after."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.role == role:
            groups.setdefault((row.table, row.quantity.split()[-1]), []).append(row)
    return {
        key: (
            len(group),
            median(abs(row.errors[0]) for row in group),
            median(abs(row.errors[1]) for row in group),
        )
        for key, group in groups.items()
    }


def _files(rows: list[Row], splits: list[Split]) -> dict[str, str]:
    def cell(r: Row) -> dict[str, str]:
        otherwise = zip(OTHERWISE, r.otherwise, strict=True)
        return {
            "table": r.table,
            "model": r.model,
            "quantity": r.quantity,
            "role": r.role,
            "published": f"{r.published:.6g}",
            "before": f"{r.before:.6g}",
            "before_error": f"{r.errors[0]:+.4f}",
            "after": f"{r.after:.6g}",
            "after_error": f"{r.errors[1]:+.4f}",
            **{
                f"{name.replace('-', '_')}_error": ""
                if time is None
                else f"{time / r.published - 1:+.4f}"
                for name, time in otherwise
            },
        }

    def split(s: Split) -> dict[str, str]:
        return {
            "model": s.model,
            "seq": str(s.seq),
            "split": s.name,
            "schedule": s.schedule,
            "seconds": f"{s.seconds:.3f}",
            "mfu": f"{s.mfu:.4f}",
            "peak_gib": f"{s.peak_gib:.2f}",
            "bubble": f"{s.bubble:.4f}",
            "messages": f"{s.messages:.4f}",
            "gemm_tflops": f"{s.gemm_rate:.1f}",
            "faster": f"{s.faster:.4f}",
        }

    return {
        "costs_cells.csv": to_csv(list(map(cell, rows))),
        "costs_tp.csv": to_csv(list(map(split, splits))),
    }


def _how_issued(rows: Sequence[Row], table: str) -> str:
    """Return a line of a table: held-out times of one source under its trainer's execution, and under others."""
    mine = [row for row in rows if (row.table, row.kind, row.role) == (table, "iteration", "check")]
    others = (
        [time / row.published - 1 for row in mine if (time := row.otherwise[at]) is not None]
        for at in range(len(OTHERWISE))
    )
    errors = [[row.errors[1] for row in mine], *others]
    cells = (f"{median(map(abs, each)):.1%} ({max(map(abs, each)):.1%})" for each in errors)
    return f"| {table} | {len(mine)} | {' | '.join(cells)} |"


def tables(say: Say) -> dict[str, str]:
    """The text of every file, by name."""
    machine = machine_of("zero_bubble")
    runs = figure_15()
    say("what was published, at the rates of the data sheet")
    cells = zero_bubble_cells() + figure_15_cells(runs)
    before = [cell.measurement.predict(machine.rates) for cell in cells]
    say("fitting rates")
    _, fitted = fit(cells, machine)
    context = fit_context(runs, at_home(fitted.rates), machine)
    rates = fitted.rates.fit("who ran out of memory there (10.5B)", context_gib=round(context, 2))
    say("the same at the fitted rates")
    rows = [
        Row(
            cell.table,
            cell.model,
            cell.quantity,
            cell.role,
            cell.measurement.kind,
            cell.measurement.value,
            first,
            cell.measurement.predict(rates),
            others,
        )
        for cell, first, others in zip(cells, before, issued_otherwise(rates), strict=True)
    ]
    say("tensor against pipeline parallelism")
    splits = tensor_parallel(at_home(rates), machine)
    text = report(
        {role: medians(rows, role) for role in ("check", "fit")},
        [
            _how_issued(rows, table)
            for table in dict.fromkeys(row.table for row in rows if row.kind == "iteration")
        ],
        splits,
        machine,
        rates,
    )
    return {**_files(rows, splits), "costs_tables.md": text}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files; 0, or 2 for a folder that cannot be written."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.costs_tables.run",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--results", default="results", help="default: %(default)s")
    given = parser.parse_args(arguments)
    try:
        for name, text in tables(lambda step: print(f"{step} ...", file=sys.stderr)).items():
            print(write_text(Path(given.results) / name, text))
    except OptPipeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
