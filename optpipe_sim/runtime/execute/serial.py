"""All ranks in one process, one op after the other: results, memory and the duration of each op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...ops import C, F, O, Op, R
from ...sim.lower import Lowered
from ..measure.memory import Meter
from ..measure.times import between_ns, mark
from ..model.stage import StageWorker
from ..program.program import COMPUTE_ENGINE, Step, inputs_of, keys_moved
from .rank_step import RankStep

_DO = {O: "offload", R: "reload"}
HEAD_START_CYCLES = 10_000_000  # some 5 ms of a GPU's clock


@dataclass
class SerialRun:
    """What a serial replay gave.

    Attributes:
        duration_ns: by op, as measured here.
        held: by rank, (op, bytes) after each of its ops, and after the grant of an R.
        loss: the mean over the microbatches.
    """

    duration_ns: dict[Op, int] = field(default_factory=dict)
    held: dict[int, list[tuple[Op, int]]] = field(default_factory=dict)
    loss: float = float("nan")


def run_serially(steps: Mapping[int, RankStep], *, meter: Meter | None = None) -> SerialRun:
    """Replay a schedule op by op, in the order in which memory changes in the simulator: an F or a C at its
    start, all others at their end. So the memory held between ops is comparable with the prediction.

    Args:
        steps: by rank, started; afterwards their stages hold their gradients. Ops of ranks that are not there
            are left out: the transport has what they would have sent.
        meter: entered already; measures the live memory without messages in flight (and makes the ops slower).
            Without one, memory is what the slots and queues of the workers hold.

    Raises:
        RuntimeFault: names the op.
    """
    run = SerialRun(held={rank: [] for rank in steps})
    prepared = next(iter(steps.values())).prepared
    lowered, place = prepared.lowered, prepared.schedule.shape.placement
    inputs, keys = inputs_of(prepared.schedule), keys_moved(prepared.schedule, lowered.profile)
    consumers = {source: place[op.stage] for op, source in inputs.items()}
    workers = {rank: one.worker for rank, one in steps.items()}
    results: dict[Op, Tensor | None] = {}
    for one in steps.values():
        one.results, one.worker.allocated = results, None if meter is None else meter.add
    memory = _RankBytes(meter, workers)
    for op, granted in _order(lowered):
        rank = place[op.stage]
        if rank not in steps:
            continue
        one, step = steps[rank], Step(_DO.get(op.kind, "run"), op, COMPUTE_ENGINE, keys=op in keys)
        source = inputs.get(op)
        if source is not None and source not in results:
            one.do(Step("recv", source, COMPUTE_ENGINE, peer=place[source.stage]))
        memory.begin()
        if granted:
            # an R may be granted before its O has ended; then the reload takes the memory
            if op._replace(kind=O) in run.duration_ns:
                one.do(replace(step, do="grant"))
            memory.end(rank)
        else:
            memory.leave_out_input(None if source is None else results[source])
            with _timed(run, op, workers[rank].device):
                one.do(step)
            if op.kind is O:
                one.do(replace(step, do="drop"))
            made = results.get(op)
            memory.leave_out_result(made)
            memory.end(rank)
            del made
            if consumers.get(op) not in steps:
                results.pop(op, None)
            one.begun(op)
        run.held[rank].append((op, memory.held(rank)))
    for worker in workers.values():
        worker.allocated = None
    losses = [loss for worker in workers.values() if (loss := worker.finish_step()) is not None]
    run.loss = float(losses[0]) if losses else float("nan")
    return run


class _RankBytes:
    """The memory of each rank, from a meter of all of them together: the changes during its ops, less what it
    sent and plus what it received (a message in flight counts for neither)."""

    def __init__(self, meter: Meter | None, workers: Mapping[int, StageWorker]) -> None:
        self.meter, self.workers = meter, workers
        self.accounts = dict.fromkeys(workers, 0)
        self.before = self.under_way = 0

    def begin(self) -> None:
        """Note that an op is about to start."""
        self.before, self.under_way = self.meter.held() if self.meter else 0, 0

    def leave_out_input(self, message: Tensor | None) -> None:
        """Leave out the memory of the message that the op takes."""
        self.under_way -= 0 if message is None else message.untyped_storage().nbytes()

    def leave_out_result(self, message: Tensor | None) -> None:
        """Leave out the memory of the message that the op makes."""
        self.under_way += 0 if message is None else message.untyped_storage().nbytes()

    def end(self, rank: int) -> None:
        """Add what changed since `begin` to the account of a rank."""
        if self.meter:
            self.accounts[rank] += self.meter.held() - self.before - self.under_way

    def held(self, rank: int) -> int:
        """Return the bytes of a rank now."""
        return self.accounts[rank] if self.meter else self.workers[rank].held_bytes()


@contextmanager
def _timed(run: SerialRun, op: Op, device: torch.device) -> Iterator[None]:
    """Measure the duration of an op: on CUDA on the device, which is kept busy until the host has issued all
    of the op; else by the host's clock."""
    if device.type == "cuda":
        torch.cuda._sleep(HEAD_START_CYCLES)
    start = mark(device)
    yield
    end = mark(device)
    if device.type == "cuda":
        end.synchronize()
    run.duration_ns[op] = round(between_ns(start, end))


def _order(lowered: Lowered) -> Iterator[tuple[Op, bool]]:
    """Yield the ops, and the grants of R's (True), by predicted time; at one instant releases come first, then the
    order of the graph."""
    trace, graph = lowered.replay(), lowered.graph
    moments = []
    for row, span in enumerate(trace.spans):
        if span.op.kind in (F, C):
            moments.append((span.start_ns, 1, int(graph.op_at[row]), span.op, False))
            continue
        moments.append((span.end_ns, 0, int(graph.op_at[row]), span.op, False))
        if span.op.kind is R and trace.grant_ns[row] < span.end_ns:
            moments.append((int(trace.grant_ns[row]), 1, int(graph.grant_at[row]), span.op, True))
    for _, _, _, op, granted in sorted(moments):
        yield op, granted
