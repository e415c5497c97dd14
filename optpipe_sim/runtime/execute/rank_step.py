"""`RankStep`: one rank's part of a training step, whatever runs it, and what each step of its program does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from ...errors import RuntimeFault
from ...ops import BW, B, C, F, Op
from ..group import PipelineGroup, TiedWeights
from ..measure.memory import Meter
from ..measure.memory import meter as meter_of
from ..model.split import zero_gradients
from ..model.stage import Kept, StageWorker, unchanged
from ..program.program import Prepared, Program, Step
from .nccl import Nccl
from .transport import Gloo, Transport


class RankStep:
    """One rank's part of a training step: its stages, its program and its messages.

    `PipelineStep`, torch's pipelines (`schedule_class`), training runs and `confirm` all stand on it. They differ
    in where stages and batches come from, and in what becomes of the gradients. An executor decides when and where
    each step of the program runs: `threads` on a CPU, `streams` on a GPU, `serial` op by op. What it does is `do`.

    Args:
        worker: the stages of this rank.
        prepared: the programs of all ranks.
        transport: of its messages; default: over gloo on CPUs, over NCCL on GPUs, between the processes of `group`,
            which all make theirs at the same time.
        timeout_s: how long an op may wait for another.
        begun, ended: called with each compute op, before it and once it is issued.

    Attributes:
        results: what ops have made or receives have brought, until the op or the send that uses it: no other
            reference keeps its memory from being offloaded or freed. Ranks of one process share it.
        inputs: for each op that takes another's result, that one.
        cold: whether the next start warms up before: the first of a schedule does where it would else allocate memory
            for good.
    """

    def __init__(
        self,
        worker: StageWorker,
        rank: int,
        prepared: Prepared,
        transport: Transport | None = None,
        *,
        group: Any = None,
        timeout_s: float = 60.0,
        begun: Callable[[Op], None] = lambda op: None,
        ended: Callable[[Op], None] = lambda op: None,
    ) -> None:
        self.worker, self.rank, self.timeout_s = worker, rank, timeout_s
        self.begun, self.ended = begun, ended
        self.results: dict[Op, Tensor | None] = {}
        if transport is None and worker.device.type == "cuda":
            transport = Nccl(rank, prepared.programs, timeout_s, group)
        self.transport = transport or Gloo(rank, prepared.schedule, timeout_s, group)
        self.follow(prepared)

    def follow(self, prepared: Prepared) -> None:
        """Go on with another schedule for the same stages, between two steps of all ranks."""
        self.prepared, self.program = prepared, prepared.programs[self.rank]
        self.inputs = prepared.inputs
        self.transport.follow(prepared.schedule)
        self.cold = self.worker.device.type == "cuda" or self.worker.cut.slices > 1

    def start(self, *batch: Any) -> None:
        """Start a step on these inputs and targets (see `StageWorker.start_step`), with gradients of zero;
        one that is `cold` warms up before."""
        if self.cold:
            self.cold = False
            self.start(*batch)
            self.warm_up()
        zero_gradients(self.worker.parameters())
        self.worker.start_step(*batch)

    def warm_up(self, before: Callable[[int], None] = lambda stage: None) -> None:
        """Run the chains F B W and F BW of one microbatch through every stage, on zeros, and reserve the host
        memory that the offloads of the program need.

        The step has to be started, and has to be started again afterwards; gradients are added to, random numbers
        and buffers are left as they were. The first GEMM on a stream allocates a workspace that stays (32 MiB with
        cuBLAS on sm90), slices allocate room for gradients of keys and values, kernels are loaded at their first
        launch, and pinning a gigabyte takes a good part of a second. All of it may wait for the device, which would
        then wait for another rank, which may do the same: so no message is under way yet.

        Args:
            before: called with the stage of each op before it runs.
        """
        worker, sizes = self.worker, list[int]()
        with ExitStack() as stack:
            for module in worker.modules.values():
                stack.enter_context(unchanged(module, worker.device))
            for stage in sorted(worker.modules):
                for fused in (False, True):
                    worker.run_chain((stage, None), fused=fused, before=before)
            for kept, count in sorted(most_offloaded(self.program).items(), key=str):
                sizes += worker.run_chain(kept, fused=True, before=before) * count
        if sizes:
            worker.slab.reserve(sizes)
        if worker.device.type == "cuda":
            torch.cuda.synchronize(worker.device)

    def meter(self) -> Meter:
        """Return the meter of memory on this device, which slows the step down."""
        return meter_of(self.worker.device)

    def exchange_tied(self) -> None:
        """Add up the gradients of a tied weight whose copies two ranks have."""
        shape = self.prepared.schedule.shape
        ends = {0: shape.placement[0], shape.stages - 1: shape.placement[-1]}
        members = {stage: self.worker.tied(stage) for stage in ends}
        if (
            self.rank not in ends.values()
            or len(set(ends.values())) < 2
            or all(weight is None or weight.grad is None for weight in members.values())
        ):
            return
        TiedWeights([members], shape, PipelineGroup(shape.devices)).add_up()

    # -- the steps of the program --------------------------------------------------------------------

    @contextmanager
    def named(self, step: Step) -> Iterator[None]:
        """Raise errors inside the block as faults that name the rank and the step."""
        try:
            yield
        except RuntimeFault:
            raise
        except Exception as error:
            raise RuntimeFault(
                f"rank {self.rank}: {step.do} {step.op}: {type(error).__name__}: {error}"
            ) from error

    def do(self, step: Step) -> None:
        """Do what a step of the program says, now and on the current stream."""
        op, at = step.op, (step.op.stage, self.prepared.schedule.shape.unit(step.op))
        match step.do:
            case "post":
                # what F makes goes forward, what B makes is the gradient of what the stage before sent
                back = op.kind is not F
                layout = self.worker.boundary(op.stage - back, back, at[1])
                self.transport.post(op, step.peer, layout)
            case "recv":
                self.results[op] = self.transport.recv(op, step.peer)
            case "run":
                self._run(op, *at)
            case "send":
                made = self.results.pop(op, None)
                if made is None:
                    raise RuntimeFault(f"rank {self.rank}: {op} made nothing to send")
                self.transport.send(op, made, step.peer)
            case "offload":
                self.worker.offload(*at, step.keys)
            case "drop":
                self.worker.drop(*at)
            case "grant":
                self.worker.allocate(*at)
            case "reload":
                self.worker.reload(*at)
            case "pass":
                self.transport.send(op, torch.zeros(1, dtype=torch.uint8), step.peer)
            case "turn":
                self.transport.recv(op, step.peer)

    def _run(self, op: Op, stage: int, unit: int) -> None:
        """Run a compute op on its input; torch.profiler sees it by its name."""
        made = None
        with record_function(str(op)):
            if op.kind is F:
                level = self.program.levels.get(op[1:])
                made = self.worker.forward(stage, unit, self._input(op), level)
            elif op.kind in (B, BW):
                made = self.worker.backward(stage, unit, self._input(op), fused=op.kind is BW)
            elif op.kind is C:
                self.worker.recompute(stage, unit)
            else:
                self.worker.weight(stage, unit)
        if made is not None:
            self.results[op] = made
        self.ended(op)

    def _input(self, op: Op) -> Tensor | None:
        """Return what an op takes; the caller has the only reference then."""
        source = self.inputs.get(op)
        return None if source is None else self.results.pop(source)


def most_offloaded(program: Program) -> dict[Kept, int]:
    """Return, by stage and level of recomputation, the most microbatches whose activations are on the
    host at once, in issue order."""
    now: Counter[Kept] = Counter()
    most: Counter[Kept] = Counter()
    for step in program.steps:
        kept = step.op.stage, program.levels.get(step.op[1:])
        if step.do == "offload":
            now[kept] += 1
            most[kept] = max(most[kept], now[kept])
        elif step.do == "reload":
            now[kept] -= 1
    return dict(most)
