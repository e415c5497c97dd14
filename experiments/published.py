"""Published measurements as the calibration takes them: Zero Bubble's tables, PipeOffload's figure 15."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optpipe_sim.costs import load_machine, load_model
from optpipe_sim.costs.calibrate import Measurement, Replays, Setup, op_times, run
from optpipe_sim.costs.data_files import data_file
from optpipe_sim.costs.estimating import estimate
from optpipe_sim.costs.machines import Machine, Rates
from optpipe_sim.schedules import REGISTRY

# The calibration sees these models only: a half of the Zero Bubble rows, a third of PipeOffload's.
CALIBRATED_ON = ("gpt-1.5b", "gpt-14.6b", "gpt-10.5b")
NO_NUMBER = ("oom", "host", "skip")
# What a fit starts from: data sheets, and what FlashAttention-2 reaches (arXiv 2307.08691, about 170 of 312 TFLOP/s).
DATA_SHEET = Rates(gemm=0.85, attention=0.55, bandwidth=0.8)


def published(name: str) -> dict[str, Any]:
    """Return a data file of ``costs/data/published``."""
    return data_file("published", name)


def side_of(model: str) -> str:
    """Return the side of the split that a model is on: ``fit`` or ``check``."""
    return "fit" if model in CALIBRATED_ON else "check"


@dataclass(frozen=True)
class Cell:
    """One published number, the measurement it is for the fit, and which side of the split it is on."""

    table: str
    model: str
    quantity: str
    measurement: Measurement

    @property
    def role(self) -> str:
        """``fit`` or ``check``."""
        return side_of(self.model)


@dataclass(frozen=True)
class Run:
    """One cell of figure 15: what was run, how it ended, and its replay at any rates.

    `outcome`: ``ran``, ``oom`` (out of memory), ``host`` (out of host memory) or ``skip`` (not run).
    """

    model: str
    seq: int
    schedule: str
    outcome: str
    percent: float  # MFU
    gib: float
    setup: Setup
    replays: Replays

    @property
    def role(self) -> str:
        """``fit`` or ``check``."""
        return side_of(self.model)


def machine_of(name: str) -> Machine:
    """Return the machine that a data file is about, at the rates that a fit to it starts from and its schedules are built at (`DATA_SHEET`)."""
    return load_machine(published(name)["machine"]).with_rates(DATA_SHEET)


def _issued(name: str, execution: str | None) -> dict[str, Any]:
    data = published(name)
    if execution is None:
        return data
    return {**data, "options": {**data["options"], "execution": execution}}


def zero_bubble_cells(execution: str | None = None) -> list[Cell]:
    """Op times and messages (table 6 and ZB-V's), throughput and memory (table 4); replayed under
    `execution`, or that of their trainer."""
    data, machine = _issued("zero_bubble", execution), machine_of("zero_bubble")
    cells: list[Cell] = []
    for row in data["rows"]:
        each, p = row["layers_per_stage"], row["devices"]
        options = {**data["options"], "microbatch": row["microbatch"], "offload": False}
        stage = Setup(row["model"], p, {**options, "layers": _ends(each, p)})
        cells += _times("Zero Bubble, table 6", row, stage, machine)
        for schedule, samples in row["samples"].items():
            setup = Setup(
                row["model"],
                p,
                {**options, **_chunked(schedule, each, p)},
                schedule,
                row["microbatches"],
            )
            seconds = row["microbatches"] * row["microbatch"] / (samples * p)
            gib = row.get("gib", {}).get(schedule)
            for one in run(setup, machine, iteration_ms=seconds * 1e3, peak_gib=gib):
                quantity = "iteration_ms" if one.kind == "iteration" else "peak_gib"
                cells.append(
                    Cell("Zero Bubble, table 4", row["model"], f"{schedule} {quantity}", one)
                )
    for row in data["vshape"]:
        options = {**data["options"], "microbatch": row["microbatch"], "chunks": 2}
        setup = Setup(row["model"], row["devices"], {**options, "offload": False})
        cells += _times("Zero Bubble, ZB-V's table", row, setup, machine)
    return cells


def _times(table: str, row: dict[str, Any], setup: Setup, machine: Machine) -> list[Cell]:
    measured = {key: row[key] for key in ("t_f_ms", "t_b_ms", "t_w_ms", "t_comm_ms")}
    made = op_times(setup, machine, measured)
    return [
        Cell(table, row["model"], f"m={row['microbatches']} {key}", one)
        for key, one in zip(measured, made, strict=True)
    ]


def figure_15(skipped: bool = False, execution: str | None = None) -> list[Run]:
    """Return all cells of figure 15 that were run; with `skipped`, the others as well; replayed under
    `execution`, or that of their trainer."""
    data, machine, made = _issued("pipeoffload", execution), machine_of("pipeoffload"), []
    for row in data["rows"]:
        p = row["devices"]
        each = (load_model(row["model"]).layers + 2) // p
        for schedule, percent, gib in zip(data["columns"], row["mfu"], row["gib"], strict=True):
            if gib == "skip" and not skipped:
                continue
            options = {
                **data["options"],
                **_chunked(schedule, each, p),
                "seq": row["seq"],
                "offload": REGISTRY[schedule].offloads,
            }
            setup = Setup(row["model"], p, options, schedule, row["microbatches"])
            ran = gib not in NO_NUMBER
            made.append(
                Run(
                    row["model"],
                    row["seq"],
                    schedule,
                    "ran" if ran else gib,
                    float(percent) if ran else 0.0,
                    float(gib) if ran else 0.0,
                    setup,
                    Replays(setup, machine),
                )
            )
    return made


def figure_15_cells(runs: list[Run]) -> list[Cell]:
    """MFU, as the time of an iteration, and activation memory, of the cells that ran."""
    machine, cells = machine_of("pipeoffload"), []
    for one in runs:
        if one.outcome != "ran":
            continue
        profile = estimate(one.model, machine, one.setup.devices, **one.setup.options)
        facts = profile.meta["iteration"]
        work = facts["flops_per_microbatch"] * one.setup.microbatches
        rate = one.percent / 100 * facts["peak_flops_per_device"] * one.setup.devices
        for found in run(
            one.setup,
            machine,
            iteration_ms=work / rate * 1e3,
            activation_gib=one.gib,
            replays=one.replays,
        ):
            quantity = "iteration_ms" if found.kind == "iteration" else "activation_gib"
            name = f"s={one.seq} {one.schedule} {quantity}"
            cells.append(Cell("PipeOffload, figure 15", one.model, name, found))
    return cells


def _ends(each: int, p: int) -> list[int]:
    """Return one layer fewer on the first and the last stage, for the embedding and the head."""
    return [each - 1] + [each] * (p - 2) + [each - 1]


def _chunked(schedule: str, each: int, p: int) -> dict[str, Any]:
    """Interleaved schedules: one layer per chunk; the others: a device's layers as one stage."""
    if "chunks" in REGISTRY[schedule].options:
        return {"chunks": each, "layers": [0] + [1] * (each * p - 2) + [0]}
    return {"layers": _ends(each, p)}
