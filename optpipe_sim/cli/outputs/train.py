"""A training run in words: a table of its schedules, sentences, a CSV of its steps, a page."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...units import format_size, format_time
from .write import write_rows

if TYPE_CHECKING:
    from ...runtime.train.task import TrainTask

HEADS = (
    "schedule",
    "steps",
    "offloaded",
    "predicted",
    "measured",
    "with pauses",
    "activations",
    "held",
)
_Row = Mapping[str, Any]


def phase_cells(phase: _Row) -> list[str]:
    """Return one row of the table: a schedule and its measures."""
    held = phase.get("held_bytes")

    def time(ns: int | None) -> str:
        return "-" if ns is None else format_time(ns)

    return [
        phase["schedule"],
        f"{phase['from_step']}-{phase['to_step'] - 1}" if phase["iterations"] else "none",
        str(phase["offloaded"]),
        f"{time(phase['predicted_ns'])} ({phase['costs']})",
        time(phase["makespan_ns"]),
        time(phase["wall_ns"]),
        format_size(max(phase["predicted_bytes"])),
        format_size(max(held)) if held else "-",
    ]


def sentences(answer: _Row) -> list[str]:
    """Summarize a run, a line for each fact."""
    lines = []
    if answer["loss_first"] is not None:
        floor = answer["loss_floor"]
        least = "" if floor is None else f"; the text's own entropy is {floor:.4f}"
        lines.append(
            f"loss {answer['loss_first']:.4f} to {answer['loss_last']:.4f} in"
            f" {answer['steps']} steps{least}"
        )
    worst = answer["greatest_difference"]
    if worst is not None:
        equal = "bitwise equal at every step" if worst == 0 else f"apart by at most {worst:.2g}"
        lines.append(f"losses of the unpipelined model: {equal}")
    happened = [(event["step"], _event(event)) for event in answer["events"]]
    happened += [(switch["step"], _switch(switch)) for switch in answer["switches"]]
    lines += [f"step {step}: {text}" for step, text in sorted(happened) if text]
    return lines


def _event(event: _Row) -> str:
    if event["event"] == "profiled":
        return (
            f"costs measured; predicted with them {format_time(event['predicted_ns'])},"
            f" measured {format_time(event['measured_ns'])}"
        )
    if event["event"] == "drift":
        return (
            f"drift: {event['what']} of stage {event['stage']} changed by {event['share']:.0%} of the stage's"
            " compute time; costs measured again, solver restarted"
        )
    if event["event"] == "solver_failed":
        return f"solver: {event['error']}; training went on"
    if event["event"] == "refused":
        return f"refused: {'; '.join(event['reasons'])}"
    return ""  # switches have a line of their own


def _switch(switch: _Row) -> str:
    alone = switch["profiled_ns"]
    before = "" if alone is None else f"{format_time(alone)} before the solver started,"
    return (
        f"switched for a predicted {switch['gain']:.1%}; pauses longer by"
        f" {switch['stall_ns'] / 1e6:.1f} ms in all (a usual pause:"
        f" {format_time(switch['pause_ns'])}); prepared in {format_time(switch['prepare_ns'])} beside"
        f" iterations of {format_time(switch['while_preparing_ns'])}; iterations {before}"
        f" {format_time(switch['before_ns'])} beside it, {format_time(switch['after_ns'])} after"
    )


def write_steps(path: str, rows: Sequence[_Row], losses: Sequence[float] | None) -> None:
    """Write the CSV, a line per step."""
    keys = ("step", "loss", "epoch", "makespan_ns", "wall_ns", "between_ns", "usual")
    beside = [None] * len(rows) if losses is None else losses
    each = (
        {**row, "usual": int(row["usual"]), "loss_unpipelined": loss}
        for row, loss in zip(rows, beside, strict=False)
    )
    write_rows(path, (*keys, "loss_unpipelined"), each)


def markdown(arguments: argparse.Namespace, task: TrainTask, answer: _Row) -> str:
    """Return the Markdown page of a run, with its provenance."""
    from ...runtime.device import check_device
    from ...runtime.measure.machine import provenance

    facts = provenance(task.plan, check_device("cpu"))
    device, versions = facts["device"], facts["versions"]
    rows = [HEADS, ["---"] * len(HEADS), *(phase_cells(phase) for phase in answer["phases"])]
    lines = [
        "# A training run that changes its schedule",
        "",
        f"`{shlex.join(['optpipe-sim', *arguments.words])}`",
        "",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        *(f"- {sentence}" for sentence in sentences(answer)),
        "",
        f"{facts['measured_at']}, {device['name']}, {device['cores']} cores,"
        + "".join(f" {name} {version}," for name, version in versions.items())
        + " gloo, one thread per rank.",
        "",
        "Ranks, their copy threads and the solver share the cores of one CPU: this run shows that losses are"
        " equal and what a switch costs, not how fast a schedule is on GPUs.",
    ]
    return "\n".join(lines) + "\n"
