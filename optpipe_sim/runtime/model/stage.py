"""`StageWorker`: all stages of one device, driven op by op; the only thing an executor sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from ...errors import OptPipeError, RuntimeFault
from .recompute import STAGE, Dropping, NoSuchPart, level_of, part
from .split import WeightQueue, deferring, split_linears
from .stash import HostSlab, Slot, storage_key

Boundary = tuple[tuple[int, ...], torch.dtype]
Loss = Callable[[Tensor, Tensor], Tensor]


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all tokens, in fp32."""
    return functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


@dataclass
class _Flight:
    """One microbatch in one stage, from F to W."""

    slot: Slot
    queue: WeightQueue
    dropping: Dropping | None = None
    entry: list[Tensor] = field(default_factory=list)  # what F takes, then what B gives
    edge: GradientEdge | None = None
    done: str = "F"


class StageWorker:
    """The stages of one device: F, B, W, BW, C, O, drop and R of every microbatch, in any legal order.

    Any module will do as a stage: it takes one tensor and returns one. What that costs: only plain
    ``nn.Linear`` (and what calls `split.linear` or `split.batched`) is split, so the gradients of
    all other parameters are computed in B, and W is shorter and B longer than they might be; no
    saved tensor may be edited in place (it is noticed, and refused); dropout and the like must
    draw the same numbers as the model they are compared with.

    Gradients add up in `.grad`, in the parameters' dtype, as B, W and BW run: bitwise those of the
    unpipelined model where each stage takes its microbatches in order. The loss is the mean over the
    microbatches. A model whose head is tied to its embedding keeps two copies where these are in
    different stages: `finish_step` gives both the sum of the two gradients where one worker has both
    stages, and `tied` names the weight to exchange where two have one each.

    Args:
        modules: by stage number, or all stages in order.
        stages: of the whole model.
        boundary: shape and dtype of what goes from stage to stage; a list where they differ, entry
            s for what stage s sends.
        device, rank: where this is; `rank` only for messages.
        loss: of the last stage's output and the microbatch's targets.
        slab: host memory for offloads, to share it between workers.
        allocated: told of every storage that a reload makes (a memory meter wants to know).
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module] | Sequence[nn.Module],
        stages: int,
        boundary: Boundary | Sequence[Boundary],
        *,
        device: str | torch.device = "cpu",
        rank: int = 0,
        loss: Loss = token_loss,
        slab: HostSlab | None = None,
        allocated: Callable[[torch.UntypedStorage], None] | None = None,
    ) -> None:
        self.modules = dict(modules if isinstance(modules, Mapping) else enumerate(modules))
        self.stages, self.device, self.loss = stages, torch.device(device), loss
        wrong = [stage for stage in self.modules if not 0 <= stage < stages]
        if wrong or not self.modules:
            raise OptPipeError(f"stage {wrong or 'none'}: expected some of 0 to {stages - 1}")
        given = list(boundary) if isinstance(boundary, list) else [boundary] * (stages - 1)
        if len(given) != stages - 1:
            raise OptPipeError(f"boundary: {len(given)} given, but {stages - 1} lie between stages")
        self.boundaries: list[Boundary] = given  # type: ignore[assignment]
        self.where = f"rank {rank} ({self.device})"
        self.slab = slab or HostSlab(pinned=self.device.type == "cuda")
        self.allocated = allocated
        self.linears = {stage: split_linears(module) for stage, module in self.modules.items()}
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._anchor = torch.zeros((), device=self.device, requires_grad=True)
        self._inputs: Sequence[Tensor] | Tensor = ()
        self._targets: Sequence[Tensor] | Tensor = ()
        self._losses: dict[int, Tensor] = {}
        self._left_out: set[int] = set()
        self._compute: Any = None

    # -- a step ------------------------------------------------------------------------------------

    def start_step(
        self,
        inputs: Sequence[Tensor] | Tensor = (),
        targets: Sequence[Tensor] | Tensor = (),
    ) -> None:
        """Take the batch: one input per microbatch on the first stage, one target on the last.

        Workers without these stages need neither. Gradients are added to those that are there. On
        CUDA the current stream is the compute stream of the step.
        """
        if self._flights:
            raise RuntimeFault(f"{self.where}: the last step has not finished: {self._open()}")
        self._inputs, self._targets, self._losses = inputs, targets, {}
        if self.device.type == "cuda":
            self._compute = torch.cuda.current_stream(self.device)
        kept = [*inputs, *targets, self._anchor]
        for module in self.modules.values():
            kept += [*module.parameters(), *module.buffers()]
        self._left_out = {storage_key(tensor) for tensor in kept}

    def finish_step(self) -> Tensor | None:
        """The mean loss (None without the last stage); all gradients are in `.grad` now.

        Raises:
            RuntimeFault: where ops are missing.
        """
        if self._flights:
            raise RuntimeFault(f"{self.where}: ops are missing: {self._open()}")
        self._inputs = self._targets = ()
        first, last = self.tied(0), self.tied(self.stages - 1)
        if first is not None and last is not None and first is not last:
            sum_tied(first, last)
        if not self._losses:
            return None
        return torch.stack([loss for _, loss in sorted(self._losses.items())]).mean()

    def _open(self) -> str:
        return ", ".join(
            f"{s}.{j} has only had {flight.done}" for (s, j), flight in self._flights.items()
        )

    # -- ops ---------------------------------------------------------------------------------------

    def forward(
        self, stage: int, mb: int, x: Tensor | None, level: str | None = None
    ) -> Tensor | None:
        """F: what to send on, detached; None on the last stage, which keeps the loss.

        `level`: what is dropped, to be recomputed by a C or inside of the backward. The caller has to let go of `x` (and, once it is sent, of the result): memory it holds on
        to cannot be offloaded.
        """
        name = f"{stage}.{mb}"
        if (stage, mb) in self._flights:
            raise RuntimeFault(f"F{name} on {self.where}: runs twice")
        slot = Slot(name, self.where, self._left_out, self.slab, self.allocated)
        flight = _Flight(slot, WeightQueue())
        if level is not None:
            flight.dropping = Dropping(level_of(level), slot, flight.queue, self.device)
        dropping = nullcontext() if flight.dropping is None else flight.dropping.active()
        with slot.saving(), deferring(flight.queue), dropping:
            if stage == 0:
                taken = self._of_batch(self._inputs, "input", "F", name, mb)
            elif x is None:
                raise RuntimeFault(f"F{name} on {self.where}: no input was received")
            else:
                flight.entry.append(x.detach())
                del x
                taken = _Enter.apply(self._anchor, flight.entry)
            y = part(STAGE, self._ending_with_loss(stage, mb), taken)
            del taken
            if stage == self.stages - 1:
                self._losses[mb] = y.detach()
        if flight.dropping is not None and not flight.dropping.regions:
            raise NoSuchPart(
                f"F{name} on {self.where}: level {level!r}: the stage has no such part to recompute"
            )
        flight.edge = get_gradient_edge(y)
        self._flights[stage, mb] = flight
        return None if stage == self.stages - 1 else y.detach()

    def _ending_with_loss(self, stage: int, mb: int) -> Callable[[Tensor], Tensor]:
        """What a stage does with its input; the last one goes on to the loss."""
        module = self.modules[stage]
        if stage < self.stages - 1:
            return module
        target = self._of_batch(self._targets, "target", "F", f"{stage}.{mb}", mb)
        return lambda x: self.loss(module(x), target)

    def recompute(self, stage: int, mb: int) -> None:
        """C: make again what F dropped. Without it B does so, part by part."""
        flight = self._flight(stage, mb, "C", "F")
        if flight.dropping is None:
            raise RuntimeFault(f"C{stage}.{mb} on {self.where}: nothing is dropped")
        for region in flight.dropping.regions:
            region.recompute()
        flight.dropping = None

    def backward(self, stage: int, mb: int, dy: Tensor | None, *, fused: bool) -> Tensor | None:
        """B, or BW where `fused`: the gradient to send back; None on the first stage."""
        op = "BW" if fused else "B"
        flight = self._flight(stage, mb, op, "F")
        if stage == self.stages - 1:
            share = 1.0 / len(self._targets)
            dy = torch.full((), share, device=self.device, dtype=self._losses[mb].dtype)
        elif dy is None:
            raise RuntimeFault(f"{op}{stage}.{mb} on {self.where}: no gradient was received")
        edge, flight.edge = flight.edge, None
        assert edge is not None
        flight.queue.fused = fused
        gradients = [dy]
        del dy
        with torch.autograd.set_multithreading_enabled(False):
            torch.autograd.backward((edge,), (gradients.pop(),))
        flight.slot.close()
        flight.dropping = None
        flight.done = op
        if fused:
            del self._flights[stage, mb]
        return flight.entry.pop() if stage else None

    def weight(self, stage: int, mb: int) -> None:
        """W: the weight gradients that B has queued."""
        flight = self._flight(stage, mb, "W", "B")
        flight.queue.run(f"W{stage}.{mb} on {self.where}")
        del self._flights[stage, mb]

    def offload(self, stage: int, mb: int) -> None:
        """O: copy the activation to the host, on the current stream; the memory stays."""
        self._flight(stage, mb, "O", "F").slot.offload()

    def drop(self, stage: int, mb: int) -> None:
        """Release the device memory of an offloaded activation: here memory falls."""
        self._flight(stage, mb, "drop ", "F").slot.drop(self._compute)

    def allocate(self, stage: int, mb: int) -> None:
        """Take the memory for an R, on the compute stream: here memory rises.

        To be called where R is granted: before the compute op that it may overlap is issued.
        """
        slot = self._flight(stage, mb, "R", "F").slot
        with nullcontext() if self._compute is None else torch.cuda.stream(self._compute):
            slot.allocate()

    def reload(self, stage: int, mb: int) -> None:
        """R: copy the activation back, on the current stream.

        That stream has to wait for the compute stream as it stood at `allocate`, and the compute
        stream for the end of this before B. Without an `allocate` before, memory is taken here.
        """
        slot = self._flight(stage, mb, "R", "F").slot
        if slot.state != "allocated":
            self.allocate(stage, mb)
        slot.reload()

    # -- facts -------------------------------------------------------------------------------------

    def boundary(self, stage: int) -> Boundary:
        """Shape and dtype of what `stage` sends forward (and gets the gradient of)."""
        if not 0 <= stage < self.stages - 1:
            raise OptPipeError(f"boundary: stage {stage} of {self.stages} sends nothing on")
        return self.boundaries[stage]

    def held_bytes(self) -> int:
        """Activation bytes on the device now: each storage that a saved tensor or a queued weight
        gradient lives in, once."""
        found: dict[int, int] = {}
        for flight in list(self._flights.values()):
            found.update(flight.slot.storages())
            for tensor in flight.queue.tensors():
                if storage_key(tensor) not in self._left_out:
                    found[storage_key(tensor)] = tensor.untyped_storage().nbytes()
        return sum(found.values())

    def offload_sizes(self, stage: int, mb: int) -> list[int]:
        """Bytes of each storage that an O of this activation copies."""
        return [size for _, size in self._flight(stage, mb, "O", "F").slot.storages()]

    def parameters(self) -> list[nn.Parameter]:
        """Of all stages, each once: for the optimizer."""
        every = (p for _, module in sorted(self.modules.items()) for p in module.parameters())
        return list({id(parameter): parameter for parameter in every}.values())

    def tied(self, stage: int) -> nn.Parameter | None:
        """The copy of the tied weight in `stage` (see `models.Decoder`), if there is one."""
        found = getattr(self.modules.get(stage), "tied_weight", None)
        return found if isinstance(found, nn.Parameter) else None

    # -- pieces ------------------------------------------------------------------------------------

    def _flight(self, stage: int, mb: int, op: str, after: str) -> _Flight:
        flight = self._flights.get((stage, mb))
        if flight is None or flight.done != after:
            had = "it never had F, or is over" if flight is None else f"it has had {flight.done}"
            raise RuntimeFault(f"{op}{stage}.{mb} on {self.where}: needs {after} before; {had}")
        return flight

    def _of_batch(
        self, batch: Sequence[Tensor] | Tensor, what: str, op: str, name: str, mb: int
    ) -> Tensor:
        if not 0 <= mb < len(batch):
            raise RuntimeFault(
                f"{op}{name} on {self.where}: no {what}; start_step gave {len(batch)} microbatches"
            )
        return batch[mb]


def sum_tied(first: nn.Parameter, last: nn.Parameter) -> None:
    """Give both copies of a tied weight the sum of their gradients."""
    if first.grad is not None and last.grad is not None:
        total = first.grad + last.grad
        first.grad, last.grad = total, total.clone()


class _Enter(torch.autograd.Function):
    """The door into a stage's graph: no leaf that would hold the input, no accumulated gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, box: list[Tensor]) -> Tensor:
        ctx.box = box
        return box.pop()

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[None, None]:
        ctx.box.append(dx)
        return None, None
