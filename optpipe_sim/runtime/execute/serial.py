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
from ..program.program import COMPUTE_ENGINE, Step, keys_moved
from .rank_step import RankStep

_DO = {O: "offload", R: "reload"}
HEAD_START_CYCLES = 10_000_000  # some 5 ms of a GPU's clock


@dataclass
class SerialRun:
    """What a serial replay gave.

    Attributes:
        duration_ns: by op, as measured here.
        held: by rank, (op, bytes) after each of its ops, and after the grant of an R; empty without a meter.
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

    Raises:
        RuntimeFault: names the op.
    """
    run = SerialRun(held={rank: [] for rank in steps})
    prepared = next(iter(steps.values())).prepared
    lowered, place = prepared.lowered, prepared.schedule.shape.placement
    inputs, keys = prepared.inputs, keys_moved(prepared.schedule, lowered.profile)
    consumers = {source: place[op.stage] for op, source in inputs.items()}
    workers = {rank: one.worker for rank, one in steps.items()}
    results: dict[Op, Tensor | None] = {}
    for one in steps.values():
        one.results, one.worker.allocated = results, None if meter is None else meter.add
    accounts = dict.fromkeys(steps, 0)
    for op, granted in _order(lowered):
        rank = place[op.stage]
        if rank not in steps:
            continue
        one, step = steps[rank], Step(_DO.get(op.kind, "run"), op, COMPUTE_ENGINE, keys=op in keys)
        source = inputs.get(op)
        if source is not None and source not in results:
            one.do(Step("recv", source, COMPUTE_ENGINE, peer=place[source.stage]))
        before = 0 if meter is None else meter.held()
        taken = 0 if granted or source is None else _bytes(results[source])
        if not granted:
            with _timed(run, op, workers[rank].device):
                one.do(step)
            if op.kind is O:
                one.do(replace(step, do="drop"))
        elif op._replace(kind=O) in run.duration_ns:
            one.do(replace(step, do="grant"))
        else:
            continue  # an R may be granted before its O has ended: then the reload takes the memory
        if meter is not None:
            # a message in flight is of no rank: it comes with the op that takes it, and goes with the one that makes it
            accounts[rank] += meter.held() - before + taken - _bytes(results.get(op))
            run.held[rank].append((op, accounts[rank]))
        if consumers.get(op) not in steps:
            results.pop(op, None)
        if not granted:
            one.begun(op)
    for worker in workers.values():
        worker.allocated = None
    losses = [loss for worker in workers.values() if (loss := worker.finish_step()) is not None]
    run.loss = float(losses[0]) if losses else float("nan")
    return run


def _bytes(message: Tensor | None) -> int:
    return 0 if message is None else message.untyped_storage().nbytes()


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
