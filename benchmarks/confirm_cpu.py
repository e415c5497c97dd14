"""What a prediction is worth on a CPU: a small model profiled, scheduled with offloading, and run.

    make confirm-cpu      (or: python benchmarks/confirm_cpu.py --write results/confirm_cpu)

No GPU takes part: stages are small, a copy to the host is a copy within the same memory, and
messages go through one machine. What it shows is that program, executor and accounting do what the
simulator says, and how far times can be trusted on a machine that others use as well.
"""

from __future__ import annotations

import argparse
import io
import json
import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from optpipe_sim import CostProfile, build, simulate
from optpipe_sim.cli.outputs.confirm import show_confirmation
from optpipe_sim.cli.outputs.show import Out
from optpipe_sim.costs.models import Model
from optpipe_sim.files import write_text
from optpipe_sim.plot.confirm import confirm_figure
from optpipe_sim.plot.style import save
from optpipe_sim.profile_io import save_profile
from optpipe_sim.runtime.confirm.case import Case
from optpipe_sim.runtime.confirm.confirm import MODES, confirm
from optpipe_sim.runtime.confirm.verdict import Confirmation
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.runtime.measure.profiler import measure
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.sim.difference import beside_copies
from optpipe_sim.units import format_size, format_time

MODEL = Model("llama-6m", 8, 256, 8, 512, kv_heads=4, ffn=704)
DEVICES, CHUNKS, SEQ, MICROBATCH, MICROBATCHES = 2, 2, 256, 2, 4
SCHEDULE = "po-h"  # offloads whatever the copies take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", metavar="STEM", help="write STEM.md, .json, .png, ...")
    parser.add_argument("--samples", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as the ranks have it
    plan = Plan(MODEL, DEVICES, CHUNKS, seq=SEQ, microbatch=MICROBATCH)
    before = os.getloadavg()[0]
    profile = measure(plan, "cpu", samples=arguments.samples, name="confirm-cpu")
    schedule = build(SCHEDULE, profile, MICROBATCHES)
    profile = replace(
        profile,
        memory_limit=simulate(schedule, profile).peak_bytes,  # none to spare
        meta={**profile.meta, "load_when_measured": round(before, 2)},
    )
    case = Case(schedule, profile, plan=plan, iterations=3, sweeps=5)
    with Ranks(DEVICES) as ranks:
        found = {mode: confirm(case, mode, ranks) for mode in MODES}
    text = report(profile, found)
    print(text)
    if arguments.write:
        write(Path(arguments.write), text, profile, found)


def report(profile: CostProfile, found: dict[str, Confirmation]) -> str:
    """The page: what was run, one row per mode, and what the command prints of each."""
    loads = [confirmation.machine["load"] for confirmation in found.values()]
    machine = found["replay"].machine
    trace = found["replay"].difference.predicted
    lines = [
        "# Predicted against measured, on a CPU",
        "",
        "**No GPU took part.** This confirms programs, memory and gradients; times only as far as a"
        " CPU with other work on it can.",
        "",
        f"A decoder of {MODEL.layers} layers, {MODEL.hidden} wide, in {DEVICES * CHUNKS} stages on {DEVICES} devices;"
        f" sequences of"
        f" {SEQ}, {MICROBATCH} per microbatch, {MICROBATCHES} microbatches, fp32; `{SCHEDULE}` in"
        f" {format_size(max(profile.memory_limit or ()))} per device offloads {trace.offloaded} of"
        f" {DEVICES * CHUNKS * MICROBATCHES} activations. {machine['name']}, {machine['cores']} cores, one"
        f" thread per rank; torch {machine['torch']}; profiled at load"
        f" {profile.meta['load_when_measured']}, run at load {min(loads)} to {max(loads)}"
        " (a load above the number of cores: other processes take part of them).",
        "",
        "| mode | predicted | measured | spread | largest peak, of predicted | gradients | holds |",
        "|---|--:|--:|--:|--:|---|---|",
        *(row(confirmation) for confirmation in found.values()),
        "",
        "The spread is that of the iterations or sweeps, as a share of the prediction. Makespans of"
        " `replay` and `loop` are composed of the median durations of the ops.",
        "",
        *slowdown(found["loop"]),
    ]
    for mode, confirmation in found.items():
        lines += ["", f"## {mode}", "", "```", printed(profile, confirmation), "```"]
    return "\n".join(lines) + "\n"


def slowdown(loop: Confirmation) -> list[str]:
    """Whether copies slow the ops beside them, and what repeats of the same measurement differ by."""
    ratios = beside_copies(loop.difference, loop.last)
    said = {"alone": "with no copy on their device at that time", "beside": "beside a copy"}
    parts = [f"{ratio:.3f} times the profile's time {said[how]}" for how, ratio in ratios.items()]
    noise = (loop.noise_ns or 0) / loop.difference.predicted.makespan_ns
    return [
        f"In `loop`, compute ops took (median) {' and '.join(parts)}; the makespans composed of every other"
        f" sweep and of the rest differ by {noise:.1%}.",
    ]


def row(found: Confirmation) -> str:
    data = found.to_json()
    predicted = data["predicted_makespan_ns"]
    measured, spread, peak, gradients = "not timed", "", "none", "none"
    if found.timed:
        time = data["measured_makespan_ns"]
        measured = f"{format_time(time)} ({time / predicted - 1:+.1%})"
        spread = f"{data['spread']:.1%}"
    if found.peaks:
        most = max(found.peaks, key=lambda one: one.measured_bytes / one.predicted_bytes)
        peak = f"{most.measured_bytes / most.predicted_bytes:.1%}"
    if found.gradients:
        gradients = f"{found.gradients.bitwise} of {found.gradients.parameters} bit by bit"
    holds = "yes" if found.holds else "no"
    cells = (found.mode, format_time(predicted), measured, spread, peak, gradients, holds)
    return f"| {' | '.join(cells)} |"


def printed(profile: CostProfile, found: Confirmation) -> str:
    """What `optpipe-sim confirm` prints."""
    out = Out()
    out.console = Console(width=130, file=io.StringIO(), record=True)  # type: ignore[assignment]
    show_confirmation(out, Namespace(schedule=SCHEDULE, stretch=1), profile, found, {})
    text = out.console.export_text()
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))


def write(stem: Path, text: str, profile: CostProfile, found: dict[str, Confirmation]) -> None:
    """The page, the numbers, the profile, the measured trace of the loop and its figure."""
    write_text(f"{stem}.md", text)
    data: dict[str, Any] = {mode: one.to_json() for mode, one in found.items()}
    write_text(f"{stem}.json", json.dumps(data, indent=1) + "\n")
    save_profile(profile, f"{stem}.profile.yaml")
    found["loop"].difference.measured.save(f"{stem}.trace.json")
    save(confirm_figure(found["loop"].difference), f"{stem}.png")


if __name__ == "__main__":
    main()
