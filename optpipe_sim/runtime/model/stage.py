"""`StageWorker`: all stages of one device, driven op by op; the only thing an executor sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.utils import _pytree as pytree

from ...errors import OptPipeError, RuntimeFault
from ..group import add_up
from .boundary import Boundary, Enter, Layout, call, tensors_of
from .current import running
from .recompute import STAGE, Dropping, NoSuchPart, level_of, part
from .sliced import Cut, Slice
from .split import Ready, WeightQueue, split_linears
from .stash import HostSlab, Slot, storage_key

Loss = Callable[[Any, Any], Tensor]
Kept = tuple[int, str | None]  # a stage, and what it keeps: a level of recomputation, or all


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all tokens, in fp32 at least."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(wide.flatten(0, -2), targets.flatten())


@dataclass
class _Flight:
    """One unit in one stage, from F to W."""

    slot: Slot
    queue: WeightQueue
    slice: Slice | None = None
    dropping: Dropping | None = None
    entry: list[Tensor] = field(default_factory=list)  # F's input, then the gradient of it
    edges: list[GradientEdge | None] = field(default_factory=list)  # of what F returns
    done: str = "F"


class StageWorker:
    """The stages of one device: F, B, W, BW, C, O, drop and R of every unit, in any legal order. A unit
    is a microbatch, or a slice of one where sequences are `cut` (see `Cut`).

    Any module will do as a stage: what one returns the next one takes, a tensor or a tree of them
    (`boundary`). What that costs: only plain
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
        boundary: shape and dtype of the tensor that goes from stage to stage; or a list, entry s for what stage s
            sends (None where no stage of this worker is).
        device, rank: where this is; `rank` only for messages.
        loss: of the last stage's output and the microbatch's targets.
        cut: the slices of each sequence (attention as in `sliced`); the boundary is that of whole sequences.
        examples: return what a stage sends of a unit, to be measured with; default: any numbers.

    Attributes:
        slab: host memory for offloads, which workers may share.
        allocated: called with every storage that a reload allocates, for a memory meter.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module] | Sequence[nn.Module],
        stages: int,
        boundary: Layout | list[Boundary | None],
        *,
        device: str | torch.device = "cpu",
        rank: int = 0,
        loss: Loss = token_loss,
        cut: Cut | None = None,
        examples: Callable[[int, int], Tensor] | None = None,
    ) -> None:
        self.cut, self.examples = cut or Cut(), examples
        self.modules = dict(modules if isinstance(modules, Mapping) else enumerate(modules))
        self.stages, self.device, self.loss = stages, torch.device(device), loss
        if not isinstance(boundary, list):
            boundary = [Boundary.one(*boundary)] * (stages - 1)
        self.boundaries = boundary
        self.where = f"rank {rank} ({self.device})"
        self.slab = HostSlab(pinned=self.device.type == "cuda")
        self.allocated: Callable[[torch.UntypedStorage], None] | None = None
        self.linears = {stage: split_linears(module) for stage, module in self.modules.items()}
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._anchor = torch.zeros((), device=self.device, requires_grad=True)
        self.ready: Ready | None = None  # called back for gradients that are complete
        self._inputs: Sequence[Any] | Tensor = ()
        self._targets: Sequence[Any] | Tensor = ()
        self._losses: dict[int, Tensor] = {}
        self.share: float | None = None  # of each loss in the gradients; None: they are of the mean
        self._left_out: set[int] = set()
        self._compute: Any = None

    # -- a step ------------------------------------------------------------------------------------

    def start_step(
        self,
        inputs: Sequence[Any] | Tensor = (),
        targets: Sequence[Any] | Tensor = (),
    ) -> None:
        """Begin a step with a batch: one input per microbatch on the first stage, one target on the last, each
        a tensor or a tree.

        Workers without these stages need neither. Gradients accumulate in `.grad`. On
        CUDA the current stream is the compute stream of the step.
        """
        if self._flights:
            raise RuntimeFault(f"{self.where}: the last step has not finished: {self._open()}")
        self._inputs, self._targets, self._losses = inputs, targets, {}
        if self.device.type == "cuda":
            self._compute = torch.cuda.current_stream(self.device)
        self._left_out = {storage_key(self._anchor)}
        self.leave_out(tensors_of((list(inputs), list(targets))))
        for module in self.modules.values():
            self.leave_out([*module.parameters(), *module.buffers()])

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """Count these as no activations in this step, and offload none of them."""
        self._left_out.update(map(storage_key, tensors))

    def finish_step(self) -> Tensor | None:
        """Return the mean loss (None without the last stage); all gradients are in `.grad` now.

        Raises:
            RuntimeFault: where ops are missing.
        """
        if self._flights:
            raise RuntimeFault(f"{self.where}: ops are missing: {self._open()}")
        targets = len(self._targets)
        self._inputs = self._targets = ()
        first, last = self.tied(0), self.tied(self.stages - 1)
        if first is not None and last is not None:
            add_up([first, last])
        if not self._losses:
            return None
        losses = torch.stack([loss for _, loss in sorted(self._losses.items())])
        if self.cut.slices == 1:
            return losses.mean()
        shares = [self.cut.share(unit) for unit in sorted(self._losses)]
        return (losses * losses.new_tensor(shares)).sum() / targets

    def _open(self) -> str:
        return ", ".join(
            f"{self.cut.name(*at)} has only had {flight.done}"
            for at, flight in self._flights.items()
        )

    # -- ops ---------------------------------------------------------------------------------------

    def forward(
        self, stage: int, unit: int, x: Tensor | None, level: str | None = None
    ) -> Tensor | None:
        """Run F; return the tensor to send on, detached (None on the last stage, which keeps the loss).

        `level`: what is dropped, to be recomputed by a C or inside of the backward. The caller has to release
        `x` (and, once it is sent, the result): memory that it still refers to cannot be offloaded.
        """
        name = self.cut.name(stage, unit)
        if (stage, unit) in self._flights:
            raise RuntimeFault(f"F{name} on {self.where}: runs twice")
        slot = Slot(name, self.where, self._left_out, self.slab, self.allocated)
        flight = _Flight(slot, WeightQueue(), self.cut.forward(stage, unit, slot, self.where))
        if level is not None:
            flight.dropping = Dropping(level_of(level), slot, flight.queue, self.device)
        run = running(queue=flight.queue, dropping=flight.dropping, slice=flight.slice)
        with slot.saving(), run:
            if stage == 0:
                taken, spec = pytree.tree_flatten(self._of_batch(self._inputs, "input", name, unit))
            elif x is None:
                raise RuntimeFault(f"F{name} on {self.where}: no input was received")
            else:
                before = self._boundary(stage - 1, unit)
                flight.entry.append(x.detach())
                del x
                tree = before.tree(Enter.apply(self._anchor, flight.entry, before))
                taken, spec = pytree.tree_flatten(tree)
                del tree
            y = part(STAGE, partial(self._run, stage, unit, spec), *taken)
            del taken
        if flight.dropping is not None and not flight.dropping.regions:
            raise NoSuchPart(
                f"F{name} on {self.where}: level {level!r}: the stage has no such part to recompute"
            )
        if flight.slice is not None:
            flight.slice = replace(flight.slice, again=True)
        torch.clear_autocast_cache()  # copies of weights: of this microbatch, as its graph has them
        self._flights[stage, unit] = flight
        if stage == self.stages - 1:
            flight.edges = [_edge(y)]
            # a copy: torch's mse_loss and others like it return a number in memory for all of their input
            self._losses[unit] = y.detach().clone()
            return None
        after = self._boundary(stage, unit)
        made = after.check(y, f"F{name} on {self.where}: the stage")
        flight.edges = [_edge(tensor) for tensor in made if tensor.requires_grad]
        return after.pack([tensor.detach() for tensor in made], self.device)

    def _run(self, stage: int, unit: int, spec: Any, *leaves: Any) -> Any:
        """Run a stage on its input; the last one goes on to the loss."""
        found = self._call(stage, unit, pytree.tree_unflatten(leaves, spec))
        if stage < self.stages - 1:
            return found
        name = self.cut.name(stage, unit)
        return self.loss(found, self._of_batch(self._targets, "target", name, unit))

    def _call(self, stage: int, unit: int, tree: Any) -> Any:
        return call(self.modules[stage], tree)

    def recompute(self, stage: int, unit: int) -> None:
        """Run C: recompute what F dropped. Without it B does so, part by part."""
        flight = self._flight(stage, unit, "C", "F")
        if flight.dropping is None:
            raise RuntimeFault(f"C{self.cut.name(stage, unit)} on {self.where}: nothing is dropped")
        with running(slice=flight.slice):
            for region in flight.dropping.regions:
                region.recompute()
        flight.dropping = None

    def backward(self, stage: int, unit: int, dy: Tensor | None, *, fused: bool) -> Tensor | None:
        """Run B, or BW where `fused`; return the gradient to send back (None on the first stage)."""
        op = "BW" if fused else "B"
        flight = self._flight(stage, unit, op, "F")
        if stage == self.stages - 1:
            share = (self.share or 1.0 / len(self._targets)) * self.cut.share(unit)
            gradients = [torch.full((), share, device=self.device, dtype=self._losses[unit].dtype)]
        elif dy is None:
            raise RuntimeFault(
                f"{op}{self.cut.name(stage, unit)} on {self.where}: no gradient was received"
            )
        else:
            gradients = self._boundary(stage, unit).unpack_gradient(dy) if flight.edges else []
            del dy
        self.cut.backward(stage, unit, self.device, self.where)
        edges, flight.edges = flight.edges, []
        flight.queue.fused = fused
        # a checkpoint of the user's own runs its part again in here; autocast is for forwards
        with (
            torch.autograd.set_multithreading_enabled(False),
            running(queue=flight.queue, slice=flight.slice),
            torch.autocast(self.device.type, enabled=False),
        ):
            _backward(edges, gradients)
        flight.slot.close()
        self.cut.over(stage, unit)
        flight.dropping = None
        flight.done = op
        if self.ready is not None:
            self.ready.after_backward(stage, fused)
        if fused:
            del self._flights[stage, unit]
        if not stage:
            return None
        if not flight.entry:  # nothing of the input had a part in the result
            shape, dtype = self._boundary(stage - 1, unit).gradient
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return flight.entry.pop()

    def weight(self, stage: int, unit: int) -> None:
        """Run W: compute the weight gradients that B has queued."""
        flight = self._flight(stage, unit, "W", "B")
        complete = None if self.ready is None else self.ready.on_weight(stage)
        flight.queue.run(f"W{self.cut.name(stage, unit)} on {self.where}", complete)
        if self.ready is not None:
            self.ready.after_weight(stage)
        del self._flights[stage, unit]

    def offload(self, stage: int, unit: int, keys: bool = False) -> None:
        """Run O: copy the activation to the host, on the current stream; device memory stays allocated until
        `drop`. `keys`: with the keys and values that the backward passes of later slices read."""
        self._flight(stage, unit, "O", "F").slot.offload(keys)

    def drop(self, stage: int, unit: int) -> None:
        """Release the device memory of an offloaded activation; memory falls here."""
        self._flight(stage, unit, "drop ", "F").slot.drop(self._compute)

    def allocate(self, stage: int, unit: int) -> None:
        """Allocate the memory of an R, on the compute stream; memory rises here.

        Call it where R is granted: before the compute op that R may overlap is issued.
        """
        slot = self._flight(stage, unit, "R", "F").slot
        with nullcontext() if self._compute is None else torch.cuda.stream(self._compute):
            slot.allocate()

    def reload(self, stage: int, unit: int) -> None:
        """Run R: copy the activation back, on the current stream.

        That stream has to wait for the compute stream as it stood at `allocate`, and the compute
        stream for the end of this before B. Without an `allocate` before, memory is allocated here.
        """
        slot = self._flight(stage, unit, "R", "F").slot
        if slot.state != "allocated":
            self.allocate(stage, unit)
        slot.reload()

    def run_chain(
        self,
        kept: Kept,
        *,
        fused: bool,
        before: Callable[[int], None] = lambda stage: None,
    ) -> list[int]:
        """Run F B W, or F BW, of microbatch 0 (of its slices in turn, backwards in reverse) on any message;
        return the bytes of each storage that an O of the first unit would copy.

        The step has to be started; gradients are added to. `before` is called with the stage before each op.
        """
        stage, level = kept
        units = range(self.cut.slices)
        for unit in units:
            before(stage)
            self.forward(stage, unit, self.message(stage - 1, unit=unit), level)
        sizes = self.offload_sizes(stage, 0)
        for unit in reversed(units):
            dy = self.message(stage, gradient=True, unit=unit)
            before(stage)
            self.backward(stage, unit, dy, fused=fused)
            del dy
            if not fused:
                before(stage)
                self.weight(stage, unit)
        return sizes

    # -- facts -------------------------------------------------------------------------------------

    def boundary(self, stage: int, gradient: bool = False, unit: int = 0) -> Layout:
        """Return shape and dtype of what `stage` sends forward of a unit, or of the `gradient` that it
        gets for it."""
        boundary = self._boundary(stage, unit)
        return boundary.gradient if gradient else boundary.message

    def _boundary(self, stage: int, unit: int = 0) -> Boundary:
        found = self.boundaries[stage] if 0 <= stage < self.stages - 1 else None
        if found is None:
            raise OptPipeError(f"boundary: stage {stage} of {self.stages} sends nothing on")
        return self.cut.boundary(found, unit)

    def message(
        self,
        stage: int,
        gradient: bool = False,
        unit: int = 0,
        generator: torch.Generator | None = None,
    ) -> Tensor | None:
        """Return what a stage may send, an example where there are any, or the gradient that it may get for it: zeros,
        or drawn at random; None before the first stage and after the last."""
        if not 0 <= stage < self.stages - 1:
            return None
        if self.examples is not None and not gradient:
            return self.examples(stage, unit)
        boundary = self._boundary(stage, unit)
        shape, kind = boundary.gradient if gradient else boundary.message
        made = torch.zeros(shape, dtype=kind, device=self.device)
        if generator is not None:
            for tensor in boundary.unpack_gradient(made) if gradient else boundary.unpack(made):
                tensor.normal_(generator=generator)
                if gradient:
                    tensor.div_(tensor.numel())
        return made

    def offload_sizes(self, stage: int, unit: int) -> list[int]:
        """Return the bytes of each storage that an O of this activation copies, without keys and values
        that later slices read."""
        return [size for _, size in self._flight(stage, unit, "O", "F").slot.storages(stays=False)]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of all stages, each once: for the optimizer."""
        return parameters_of(self.modules)

    def tied(self, stage: int) -> nn.Parameter | None:
        """Return the copy of the tied weight in `stage` (see `decoder.Decoder`), if there is one."""
        found = getattr(self.modules.get(stage), "tied_weight", None)
        return found if isinstance(found, nn.Parameter) else None

    # -- pieces ------------------------------------------------------------------------------------

    def _flight(self, stage: int, unit: int, op: str, after: str) -> _Flight:
        flight = self._flights.get((stage, unit))
        if flight is None or flight.done != after:
            had = "it never had F, or is over" if flight is None else f"it has had {flight.done}"
            raise RuntimeFault(
                f"{op}{self.cut.name(stage, unit)} on {self.where}: needs {after} before; {had}"
            )
        return flight

    def _of_batch(self, batch: Sequence[Any] | Tensor, what: str, name: str, unit: int) -> Any:
        mb = unit // self.cut.slices
        if not 0 <= mb < len(batch):
            raise RuntimeFault(
                f"F{name} on {self.where}: no {what}; start_step gave {len(batch)} microbatches"
            )
        return self.cut.of_batch(batch[mb], unit)


@contextmanager
def unchanged(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Leave random numbers and buffers as they were."""
    kept = [(buffer, buffer._version, buffer.clone()) for buffer in module.buffers()]
    cuda = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(cuda):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, version, before in kept:
                    if buffer._version != version:
                        buffer.copy_(before)


def parameters_of(modules: Mapping[int, nn.Module]) -> list[nn.Parameter]:
    """Return the parameters of stages, each once: for the optimizer."""
    every = (p for _, module in sorted(modules.items()) for p in module.parameters())
    return list({id(parameter): parameter for parameter in every}.values())


def _edge(tensor: Tensor) -> GradientEdge | None:
    """Return the graph edge at which the backward of a tensor starts; None where it needs none."""
    return get_gradient_edge(tensor) if tensor.requires_grad else None


def _backward(edges: list[GradientEdge | None], gradients: list[Tensor]) -> None:
    """Run the backward from these edges; the lists are emptied."""
    pairs = [(edge, one) for edge, one in zip(edges, gradients, strict=True) if edge is not None]
    edges.clear()
    gradients.clear()
    if pairs:
        roots, shares = zip(*pairs, strict=True)
        pairs.clear()
        torch.autograd.backward(roots, shares)
