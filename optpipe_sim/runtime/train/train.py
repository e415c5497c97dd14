"""A training run on this machine: first costs, ranks, and the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ...profile import CostProfile
from ..device import in_thread, threads
from ..execute.launch import Ranks
from ..execute.unpipelined import plain_step
from ..measure.profiler import measure
from ..model.plan import Plan
from .task import NEWS, STOP, TrainResult, TrainTask, optimizer_for
from .trainer import RankTraining

POLL_S = 0.1
NEAR = 10  # iterations before and after a switch that are compared
SAMPLES, WARMUP = 10, 3  # of the costs to start with


def first_costs(
    plan: Plan,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
    levels: Sequence[str] = (),
    device: str = "cpu",
) -> CostProfile:
    """Measure the costs to start with: bytes, copies and times of each stage alone on this device, at `levels` of
    recomputation as well."""
    with threads(1):  # as in ranks
        return measure(plan, device, SAMPLES, WARMUP, progress, levels=levels)


@threads(1)
def unpipelined(
    task: TrainTask, steps: int, tick: Callable[[int], None] = lambda step: None
) -> list[float]:
    """Return the losses of the same run without a pipeline, by plain autograd, from the first step on."""
    whole = task.plan.module(0, 1, task.device)
    parameters = list(whole.parameters())
    optimizer = optimizer_for(parameters, task)
    found = []
    for step in range(steps):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        found.append(plain_step(whole, *task.batch(step)))
        optimizer.step()
        tick(step)
    return found


def train(
    task: TrainTask,
    news: Callable[[dict[str, Any]], object] = lambda row: None,
    ranks: Ranks | None = None,
) -> TrainResult:
    """Train on processes of this machine.

    `news` is called with every row and event; where it returns True, training stops as after Ctrl-C: at the
    end of the running step, with a checkpoint where these are wanted.
    A second Ctrl-C ends it at once.

    Args:
        ranks: existing processes; default: new ones, which end with this call.

    Raises:
        OptPipeError: where a rank fails; it is named.
    """
    with ExitStack() as stack:
        if ranks is None:
            ranks = stack.enter_context(Ranks(task.schedule.shape.devices))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="optpipe-train-")))
        # a second Ctrl-C ends all of it
        running = in_thread(partial(ranks.run, RankTraining(replace(task, folder=str(folder)))))
        told = 0
        while True:
            try:
                over = wait([running], POLL_S).done
                lines = _whole_lines(folder / NEWS)
                while told < len(lines):
                    told += 1
                    if news(json.loads(lines[told - 1])) is True:
                        (folder / STOP).touch()
                if over:
                    return running.result()[0]
            except KeyboardInterrupt:
                if (folder / STOP).exists():
                    raise
                (folder / STOP).touch()


def _whole_lines(path: Path) -> list[str]:
    """Return the lines of a file that another process still writes."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


def switch_costs(result: TrainResult) -> list[dict[str, Any]]:
    """Return what each switch cost, in ns.

    ``stall_ns``: by how much the two pauses between iterations with an exchange (proposal, change)
    were longer than the median pause before; with noise it may be below 0. ``while_preparing_ns``:
    the median iteration while ranks lowered the new schedule beside it; ``before_ns`` and
    ``after_ns``: that of the ten iterations before, beside the solver, and after; ``profiled_ns``:
    before the solver started (None without one).
    """
    found = []
    rows = {row["step"]: row for row in result.rows}
    for at, event in enumerate(result.events):
        if event["event"] != "switched" or event["step"] not in rows:
            continue
        past = result.events[at::-1]
        proposed = next(e for e in past if e["event"] == "proposed")
        profiled = next((e["measured_ns"] for e in past if e["event"] == "profiled"), None)
        first, last = proposed["step"], event["step"]
        epoch = rows[last]["epoch"]
        usual = [row for row in result.rows if row["usual"]]
        before = [row for row in usual if row["epoch"] == epoch - 1 and row["step"] < first]
        after = [row for row in usual if row["epoch"] == epoch][:NEAR]
        before = before[-NEAR:]
        if not before or not after:
            continue
        pause = median(row["between_ns"] for row in before)
        pauses = [rows[step]["between_ns"] for step in (first, last)]
        during = [rows[step]["makespan_ns"] for step in range(first, last)]
        found.append(
            {
                "step": last,
                "gain": proposed["gain"],
                "profiled_ns": profiled,
                "stall_ns": round(sum(pauses) - 2 * pause),
                "pause_ns": round(pause),
                "pauses_ns": pauses,
                "swap_ns": event["swap_ns"],
                "prepare_ns": event["prepare_ns"],
                "while_preparing_ns": round(median(during)),
                "before_ns": round(median(row["makespan_ns"] for row in before)),
                "after_ns": round(median(row["makespan_ns"] for row in after)),
            }
        )
    return found
