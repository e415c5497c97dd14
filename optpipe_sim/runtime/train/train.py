"""A training run on this machine: first costs, ranks, and the result."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ...profile import CostProfile
from ..execute.launch import Ranks
from ..measure.profiler import measure
from ..model.plan import Plan
from ..model.stage import token_loss
from .task import NEWS, STOP, TrainResult, TrainTask, optimizer_for
from .trainer import RankTraining

POLL_S = 0.1
NEAR = 10  # iterations before and after a switch that are compared
SAMPLES, WARMUP = 10, 3  # of the costs to start with


@contextmanager
def one_thread() -> Iterator[None]:
    """Set torch to one thread, as in ranks: another order of summation gives other results."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def first_costs(
    plan: Plan,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
    levels: Sequence[str] = (),
    device: str = "cpu",
) -> CostProfile:
    """Measure the costs to start with: bytes, copies and times of each stage alone on this device, at `levels` of
    recomputation as well."""
    with one_thread():
        return measure(plan, device, SAMPLES, WARMUP, progress, levels=levels)


@one_thread()
def unpipelined(
    task: TrainTask, steps: int, tick: Callable[[int], None] = lambda step: None
) -> list[float]:
    """Return the losses of the same run without a pipeline, by plain autograd, from the first step on."""
    plan, m = task.plan, task.schedule.shape.microbatches
    whole = plan.module(0, 1, task.device)
    parameters = list(whole.parameters())
    optimizer = optimizer_for(parameters, task)
    found = []
    for step in range(steps):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        losses = []
        for tokens, targets in zip(*task.batch(step), strict=True):
            loss = token_loss(whole(tokens), targets)
            (loss / m).backward()
            losses.append(loss.detach())
        optimizer.step()
        found.append(float(torch.stack(losses).mean()))
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
        folder = stack.enter_context(TemporaryDirectory(prefix="optpipe-train-"))
        return _Driver(replace(task, folder=folder), news, ranks).run()


class _Driver:
    """Runs the ranks in a thread, and reads their reports meanwhile."""

    def __init__(
        self, task: TrainTask, news: Callable[[dict[str, Any]], object], ranks: Ranks
    ) -> None:
        self.task, self.news, self.ranks = task, news, ranks
        self.tail = _Tail(Path(task.folder) / NEWS)
        self.stop = Path(task.folder) / STOP
        self.found: TrainResult | None = None
        self.error: BaseException | None = None
        # not Thread.join: where Ctrl-C interrupts it, Python 3.11 takes the thread for ended
        self.ended = threading.Event()

    def run(self) -> TrainResult:
        """Run them; return the result of rank 0."""
        threading.Thread(target=self._work, daemon=True).start()
        going = True
        while going:
            try:
                going = not self.ended.wait(POLL_S)
                self._listen()
            except KeyboardInterrupt:
                if self.stop.exists():
                    raise
                self.stop.touch()
        if self.error is not None:
            raise self.error
        assert self.found is not None
        return self.found

    def _work(self) -> None:
        try:
            self.found = self.ranks.run(RankTraining(self.task))[0]
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()

    def _listen(self) -> None:
        for row in self.tail.read():
            if self.news(row) is True:
                self.stop.touch()


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


class _Tail:
    """The lines appended to a file since it was last read."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new rows, of whole lines only."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.at += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
