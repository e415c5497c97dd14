"""All ranks in one process, one op after the other: results, memory and what each op takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..ops import BW, B, F, O, Op, R
from ..sim.lower import Lowered
from .memory import Meter
from .program import inputs_of
from .stage import StageWorker


@dataclass
class SerialRun:
    """What a serial replay gave.

    Attributes:
        lasts_ns: by op, how long it took here.
        held: per rank, (op, bytes) after each of its ops, and after the grant of an R.
        contents: by op, what it sent to another rank (a copy).
        loss: the mean over the microbatches.
    """

    lasts_ns: dict[Op, int] = field(default_factory=dict)
    held: list[list[tuple[Op, int]]] = field(default_factory=list)
    contents: dict[Op, Tensor] = field(default_factory=dict)
    loss: float = float("nan")

    def durations_ns(self, lowered: Lowered) -> np.ndarray:
        """(ops,) by rows, for `Lowered.replay`."""
        ops = (op for program in lowered.schedule.programs for op in program)
        return np.array([self.lasts_ns[op] for op in ops], np.int64)


def run_serially(
    lowered: Lowered,
    workers: Sequence[StageWorker],
    *,
    keep: bool = False,
    meter: Meter | None = None,
    done: Callable[[Op], None] = lambda op: None,
) -> SerialRun:
    """Replay a schedule op by op, in the order in which the simulator has memory change: an F when
    it starts, everything else when it ends. So what is held between ops is what is predicted.

    Args:
        workers: one per rank, their step started; they are left with their gradients.
        keep: whether to keep what ranks send to each other.
        meter: entered already; weighs what really lives, messages under way left out (and makes
            the ops slower). Without one, what the slots and queues of the workers hold counts.
        done: told of each op.

    Raises:
        RuntimeFault: names the op.
    """
    run = SerialRun(held=[[] for _ in workers])
    inputs = inputs_of(lowered.schedule)
    consumers = {source: op for op, source in inputs.items()}
    place = lowered.schedule.shape.placement
    results: dict[Op, Tensor | None] = {}
    scale = _Scale(meter, workers)
    for op, granted in _order(lowered):
        rank = place[op.stage]
        worker = workers[rank]
        scale.begin()
        if granted:
            worker.allocate(op.stage, op.microbatch)
        else:
            box = [results.pop(inputs[op])] if op in inputs else [None]
            scale.taken(box[0])
            start = time.perf_counter_ns()
            made = _do(worker, op, box)
            _settle(worker)
            run.lasts_ns[op] = time.perf_counter_ns() - start
            if op.kind is O:
                worker.drop(op.stage, op.microbatch)
            scale.made(made)
            scale.end(rank)
            if op in consumers:
                results[op] = made
                if keep and made is not None and place[consumers[op].stage] != rank:
                    run.contents[op] = made.clone()
            del made
            done(op)
        if granted:
            scale.end(rank)
        run.held[rank].append((op, scale.held(rank)))
    losses = [loss for worker in workers if (loss := worker.finish_step()) is not None]
    run.loss = float(losses[0]) if losses else float("nan")
    return run


class _Scale:
    """What each rank holds: of a meter that weighs all of them together, the changes while it was
    its turn, less what it sent and plus what it took (a message under way is nobody's)."""

    def __init__(self, meter: Meter | None, workers: Sequence[StageWorker]) -> None:
        self.meter, self.workers = meter, workers
        self.accounts = [0] * len(workers)
        self.before = self.under_way = 0

    def begin(self) -> None:
        """An op is about to start."""
        self.before, self.under_way = self.meter.held() if self.meter else 0, 0

    def taken(self, message: Tensor | None) -> None:
        """What comes in."""
        self.under_way -= 0 if message is None else message.untyped_storage().nbytes()

    def made(self, message: Tensor | None) -> None:
        """What goes out."""
        self.under_way += 0 if message is None else message.untyped_storage().nbytes()

    def end(self, rank: int) -> None:
        """The op is over."""
        if self.meter:
            self.accounts[rank] += self.meter.held() - self.before - self.under_way

    def held(self, rank: int) -> int:
        """Bytes of a rank now."""
        return self.accounts[rank] if self.meter else self.workers[rank].held_bytes()


def _do(worker: StageWorker, op: Op, box: list[Tensor | None]) -> Tensor | None:
    """One op; `box` holds its input, and lets go of it."""
    at = op.stage, op.microbatch
    if op.kind is F:
        return worker.forward(*at, box.pop())
    if op.kind in (B, BW):
        return worker.backward(*at, box.pop(), fused=op.kind is BW)
    if op.kind is O:
        worker.offload(*at)
    elif op.kind is R:
        worker.reload(*at)
    else:
        worker.weight(*at)
    return None


def _settle(worker: StageWorker) -> None:
    if worker.device.type == "cuda":
        torch.cuda.synchronize(worker.device)


def _order(lowered: Lowered) -> Iterator[tuple[Op, bool]]:
    """Ops, and grants of R's (True), by predicted time; at one instant what releases comes first,
    then by the order of the graph."""
    trace, graph = lowered.replay(), lowered.graph
    moments = []
    for row, span in enumerate(trace.spans):
        if span.op.kind is F:
            moments.append((span.start_ns, 1, int(graph.op_at[row]), span.op, False))
            continue
        moments.append((span.end_ns, 0, int(graph.op_at[row]), span.op, False))
        if span.op.kind is R and trace.grant_ns[row] < span.end_ns:
            moments.append((int(trace.grant_ns[row]), 1, int(graph.grant_at[row]), span.op, True))
    for _, _, _, op, granted in sorted(moments):
        yield op, granted
