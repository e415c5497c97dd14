"""Before the first step: what goes from stage to stage, and what cannot work, in one line.

One microbatch goes forward through all stages, and each stage backward by itself with gradients of
zero; no `.grad`, buffer or random state is changed.

Where sequences are cut into slices, `Halves` tries whether stages give two slices the results of the whole, on the
first tokens of a microbatch. Slices are right where attention takes the keys and values of earlier ones
(`with_earlier`), positions count from the first token of the sequence (`first_token`), and the loss is a mean over
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from ...errors import OptPipeError
from ...schedule.shape import Shape
from ..group import PipelineGroup
from ..model.boundary import Boundary, Enter, call, tensors_of
from ..model.current import running
from ..model.sliced import Cut
from ..model.stage import Loss, unchanged
from ..model.stash import HostSlab, Slot

TOKENS = 128  # so few that they fit where whole sequences do not
Run = Callable[[nn.Module, Any], Any]
SHARDED = (FSDPModule, FullyShardedDataParallel)
IN_PLACE = "modified by an inplace operation"
REDUCED = "reduce gradients by ready=, which is called when one is complete"


class Halves:
    """The first tokens of a microbatch, whole and in two slices.

    Args:
        lengths: tokens of each slice of the sequences. loss, target: of the last stage.

    Raises:
        OptPipeError: where a slice has no tokens.
    """

    def __init__(self, lengths: Sequence[int], loss: Loss, target: Any) -> None:
        if min(lengths) < 1:
            raise OptPipeError(f"slices: expected tokens of each, got {_brackets(lengths)}")
        self.lengths, self.loss, self.target = tuple(lengths), loss, target
        self.tokens = min(sum(lengths), TOKENS)
        self.halves = self.tokens - self.tokens // 2, self.tokens // 2

    def first(self, tree: Any, what: str) -> Any:
        """Return the first tokens of a microbatch of inputs or targets.

        Raises:
            OptPipeError: where a tensor is not (sequences, tokens, ...) with the tokens of all slices.
        """
        _check(tree, sum(self.lengths), f"{what}: slices={_brackets(self.lengths)}")
        return pytree.tree_map_only(Tensor, lambda one: one.narrow(1, 0, self.tokens), tree)

    def ending(self, made: Any) -> Tensor:
        """Return the loss of what the last stage makes of the first tokens."""
        return self.loss(made, self.first(self.target, "targets"))

    def compare(
        self, stage: int, module: nn.Module, run: Run, tree: Any, made: Any, loss: Tensor | None
    ) -> None:
        """Run a stage on both halves, and compare the results with those of the whole.

        Args:
            tree: what it takes. made: what it makes of that. loss: of the last stage.

        Raises:
            OptPipeError: where the results of the halves are not those of the whole.
        """
        where, cut = f"stage {stage}", Cut(self.halves)
        slot = Slot(str(stage), where, (), HostSlab(pinned=False))
        halves, losses = [], []
        with torch.no_grad():
            for unit in range(2):
                with running(slice=cut.forward(stage, unit, slot, where)):
                    half = run(module, cut.of_batch(tree, unit))
                    if loss is not None:
                        target = cut.of_batch(self.first(self.target, "targets"), unit)
                        losses.append(self.loss(half, target) * cut.share(unit))
                halves.append(half)
            if loss is not None:
                found, wanted, what = [sum(losses)], [loss], "loss"
            else:
                _check(made, self.tokens, f"{where} hands on")
                pairs = zip(*map(tensors_of, halves), strict=True)
                found, wanted, what = (
                    [torch.cat(pair, 1) for pair in pairs],
                    tensors_of(made),
                    where,
                )
            off = _difference(module, found, wanted)
            if off is not None and not _is_random(run, module, tree):
                raise OptPipeError(
                    f"{what}: two slices of {self.tokens} tokens give other results than the whole"
                    f" ({off}): {_WHY[what == 'loss']}"
                )
        torch.clear_autocast_cache()  # of copies of weights without a graph


_WHY = (
    "attention takes the keys and values of earlier slices by with_earlier, and positions count from"
    " first_token()",
    "it has to be a mean over all tokens of the targets, each token's by itself",
)


def _check(tree: Any, tokens: int, what: str) -> None:
    for one in tensors_of(tree):
        if one.dim() < 2 or one.shape[1] != tokens:
            raise OptPipeError(
                f"{what}: a tensor of shape {tuple(one.shape)}; where sequences are cut into slices, every"
                f" tensor is (sequences, tokens, ...), here with {tokens} tokens"
            )


def _difference(module: nn.Module, found: Sequence[Any], wanted: Sequence[Tensor]) -> str | None:
    """Return how far results are off, where that is more than rounding."""
    kinds = [one.dtype for one in (*wanted, *module.parameters()) if one.is_floating_point()]
    if torch.is_autocast_enabled("cpu"):
        kinds.append(torch.get_autocast_dtype("cpu"))
    if torch.is_autocast_enabled("cuda"):
        kinds.append(torch.get_autocast_dtype("cuda"))
    rounding = sqrt(max((torch.finfo(kind).eps for kind in kinds), default=0.0))
    for one, other in zip(found, wanted, strict=True):
        most = float(other.abs().max())
        off = float((one.double() - other.double()).abs().max())
        if not off <= rounding * most:
            return f"off by {off:.2g} of {most:.2g}"
    return None


def _is_random(run: Run, module: nn.Module, tree: Any) -> bool:
    """Whether a stage draws random numbers: its results cannot be compared."""
    before = torch.get_rng_state()
    run(module, tree)
    return not torch.equal(before, torch.get_rng_state())


def _brackets(lengths: Sequence[int]) -> str:
    return f"[{', '.join(map(str, lengths))}]"


def refuse(
    stage: int, module: nn.Module, device: torch.device, reduced: str = REDUCED, fsdp: bool = False
) -> None:
    """Refuse a stage whose parameters this executor would give wrong gradients.

    Args:
        reduced: how gradients are reduced over replicas instead. fsdp: whether FSDP's modules are
            fine, their weights gathered.

    Raises:
        OptPipeError: names the stage and the parameter.
    """
    for name, part in module.named_modules():
        if isinstance(part, SHARDED) and not fsdp:
            raise OptPipeError(
                f"stage {stage}: {name or 'it'} is sharded by FSDP, which gathers weights around a"
                f" whole backward; hand over plain modules and {reduced}"
            )
        if isinstance(part, DistributedDataParallel):
            raise OptPipeError(
                f"stage {stage}: {name or 'it'} is in DistributedDataParallel, whose hooks expect a"
                f" whole backward; hand over its .module and {reduced}"
            )
    for name, parameter in module.named_parameters():
        which = f"stage {stage}: parameter {name}"
        if isinstance(parameter, DTensor):
            raise OptPipeError(f"{which} is a DTensor; stages have plain tensors")
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise OptPipeError(
                f"{which} has hooks on its gradient, which comes in several parts; {reduced}"
            )
        if _elsewhere(parameter.device, device):
            raise OptPipeError(f"{which} is on {parameter.device}, not on {device}")


def _elsewhere(place: torch.device, device: torch.device) -> bool:
    return place.type != device.type or (
        device.index is not None and place.index not in (None, device.index)
    )


@dataclass
class Passed:
    """The example message that one stage sends to the next while they are examined, or why there is none."""

    boundary: Boundary | None = None
    message: Tensor | None = None
    problem: str | None = None

    def portable(self) -> Passed:
        """Return it as another process can take it: in host memory, without what is of this process alone."""
        kept = None if self.message is None else self.message.cpu().clone()
        return Passed(self.boundary, kept, self.problem)


def examine(
    modules: Mapping[int, nn.Module],
    shape: Shape,
    group: PipelineGroup,
    device: torch.device,
    inputs: Any,
    target: Any,
    loss: Loss | None,
    *,
    slices: Sequence[int] = (),
    run: Run = call,
    refuse: Callable[[int, nn.Module, torch.device], None] = refuse,
) -> list[Passed]:
    """Examine the stages of this process; all processes of the group have to call this.

    Args:
        inputs, target: one microbatch, for the first stage and for the loss of the last; None where they are not here.
        loss: None: there is none.
        slices: tokens of each slice, where sequences are cut. What is examined then are the first tokens, whole and
            in two slices, and what a stage hands on is as long as these.
        run: calls a stage with a tree. refuse: raises where a stage's modules cannot be run.

    Returns:
        By stage, all but the last, what it sends on, as far as this process knows it.

    Raises:
        OptPipeError: the same line on all ranks.
    """
    place, last = shape.placement, shape.stages - 1
    halves = Halves(slices, loss, target) if slices and loss is not None else None
    ending: Callable[[Any], Tensor] | None = None
    if loss is not None:
        ending = halves.ending if halves else lambda made: loss(made, target)
    passed: dict[int, Passed] = {}  # by the stage that sends it
    for stage in sorted(modules):
        if stage and stage - 1 not in passed:
            passed[stage - 1] = group.take(place[stage - 1])
        taken = passed.get(stage - 1)
        if taken is not None and taken.problem:
            made = Passed(problem=taken.problem)
        else:
            try:
                refuse(stage, modules[stage], device)
                end = ending if stage == last else None
                made = _examined(stage, modules[stage], device, taken, inputs, run, end, halves)
            except OptPipeError as error:
                made = Passed(problem=str(error))
        passed[stage] = made
        if stage < last and stage + 1 not in modules:
            group.put(made.portable(), place[stage + 1])
    for problem in group.gather(next((p.problem for p in passed.values() if p.problem), None)):
        if problem:
            raise OptPipeError(problem)
    return [passed.get(stage, Passed()) for stage in range(last)]


def _examined(
    stage: int,
    module: nn.Module,
    device: torch.device,
    taken: Passed | None,
    inputs: Any,
    run: Run,
    ending: Callable[[Any], Tensor] | None,
    halves: Halves | None,
) -> Passed:
    """Run one stage, forward and backward; the last one with the loss."""
    try:
        with unchanged(module, device), torch.enable_grad():
            if halves is not None and taken is None:
                inputs = halves.first(inputs, "inputs")
            tree, anchor = _input_of(taken, inputs, device)
            mine = tensors_of(tree)
            versions = [tensor._version for tensor in mine]
            given = made = run(module, tree)
            if ending is not None:
                made = ending(made)
                if not isinstance(made, Tensor) or made.dim():
                    kind = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
                    raise OptPipeError(f"loss: has to be one number, got {kind}")
            if [tensor._version for tensor in mine] != versions:
                raise OptPipeError(
                    f"stage {stage}: edits its input in place, which the stage before it may still"
                    " need; edit a copy instead"
                )
            if halves is not None:
                loss = None if ending is None else made
                halves.compare(stage, module, run, tree, given, loss)
            del given
            boundary = Boundary.of(made)
            tensors = tensors_of(made)
            _backward(tensors, module, anchor)
        return Passed(boundary, boundary.pack([t.detach() for t in tensors], device))
    except OptPipeError:
        raise
    except Exception as error:
        why = str(error).split("\n")[0]
        if IN_PLACE in why:
            why = "a tensor that its backward needs is edited in place; edit a copy instead"
        else:
            why = f"{type(error).__name__}: {why}"
        return Passed(problem=f"stage {stage}: {why}")


def _input_of(taken: Passed | None, inputs: Any, device: torch.device) -> tuple[Any, Tensor]:
    """Return what a stage is called with, and a leaf before it."""
    anchor = torch.zeros((), device=device, requires_grad=True)
    if taken is None:
        return inputs, anchor
    assert taken.boundary is not None
    assert taken.message is not None
    message = taken.message.to(device, copy=True)
    return taken.boundary.tree(Enter.apply(anchor, [message], taken.boundary)), anchor


def _backward(tensors: list[Tensor], module: nn.Module, anchor: Tensor) -> None:
    roots = [tensor for tensor in tensors if tensor.requires_grad]
    leaves = [anchor, *(p for p in module.parameters() if p.requires_grad)]
    if roots:
        zeros = [torch.zeros_like(root) for root in roots]
        try:
            torch.autograd.grad(roots, leaves, zeros, allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant" not in str(error):  # such a checkpoint wants a real backward
                raise
