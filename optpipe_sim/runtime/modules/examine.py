"""Before the first step: what goes from stage to stage, and what cannot work, in one line.

One microbatch goes forward through all stages, and each stage backward by itself with gradients of
zero; no `.grad`, buffer or random state is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from ..model.boundary import Boundary, Enter, call
from ..model.sliced import Layouts
from .halves import Halves

SHARDED = (FSDPModule, FullyShardedDataParallel)
IN_PLACE = "modified by an inplace operation"
REDUCED = "reduce gradients by ready=, which is called when one is complete"


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
    """What one stage hands to the next while they are examined: an example, or why there is none."""

    boundary: Boundary | None = None
    message: Tensor | None = None
    problem: str | None = None
    keys: Layouts = field(default_factory=dict)  # that later slices read


def examine(
    modules: Mapping[int, nn.Module],
    shape: Shape,
    group: PipelineGroup,
    device: torch.device,
    inputs: Any,
    ending: Callable[[Any], Tensor] | None,
    run: Callable[[nn.Module, Any], Any] = call,
    refuse: Callable[[int, nn.Module, torch.device], None] = refuse,
    halves: Halves | None = None,
) -> dict[int, Passed]:
    """Examine the stages of this process; all processes of the group have to.

    Args:
        inputs: one microbatch, for the first stage. ending: the loss of what the last one
            returns, if there is one.
        run: calls a stage with a tree. refuse: raises where a stage's modules cannot be run.
        halves: where sequences are cut, what is examined instead: the first tokens, whole and cut. What a
            stage hands on is then as long as these.

    Returns:
        By stage, what it hands on; the last stage of the model has nothing.

    Raises:
        OptPipeError: the same line on all ranks.
    """
    place, last = shape.placement, shape.stages - 1
    found: dict[int, Passed] = {}
    came: dict[int, Passed] = {}
    for stage in sorted(modules):
        taken = came.get(stage)
        if taken is None and stage:
            taken = _received(*group.take(place[stage - 1]))
        if taken is not None and taken.problem:
            made = Passed(problem=taken.problem)
        else:
            try:
                refuse(stage, modules[stage], device)
                end = ending if stage == last else None
                made = _examined(stage, modules[stage], device, taken, inputs, run, end, halves)
            except OptPipeError as error:
                made = Passed(problem=str(error))
        found[stage] = made
        if stage < last and stage + 1 in modules:
            came[stage + 1] = made
        elif stage < last:
            group.put(_sent(made), place[stage + 1])
        if taken is not None and stage:
            found.setdefault(stage - 1, taken)
    problems = group.gather(next((one.problem for one in found.values() if one.problem), None))
    for problem in problems:
        if problem:
            raise OptPipeError(problem)
    return found


def _sent(made: Passed) -> tuple[Boundary | None, Any, str | None]:
    """Return it as plain data, the message as an array of bytes."""
    if made.message is None:
        return made.boundary, None, made.problem
    flat = made.message.cpu().contiguous().view(-1).view(torch.uint8)
    return made.boundary, flat.numpy(), made.problem


def _received(boundary: Boundary | None, data: Any, problem: str | None) -> Passed:
    if boundary is None:
        return Passed(problem=problem)
    shape, dtype = boundary.message
    return Passed(boundary, torch.from_numpy(data).view(dtype).view(shape), problem)


def _examined(
    stage: int,
    module: nn.Module,
    device: torch.device,
    taken: Passed | None,
    inputs: Any,
    run: Callable[[nn.Module, Any], Any],
    ending: Callable[[Any], Tensor] | None,
    halves: Halves | None,
) -> Passed:
    """Run one stage, forward and backward; the last one with the loss."""
    keys: Layouts = {}
    try:
        with unchanged(module, device), torch.enable_grad():
            if halves is not None and taken is None:
                inputs = halves.first(inputs, "inputs")
            tree, anchor = _taken(taken, inputs, device)
            mine = [value for value in pytree.tree_leaves(tree) if isinstance(value, Tensor)]
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
                keys = halves.layouts(stage, module, run, tree, given, loss)
            del given
            boundary = Boundary.of(made)
            tensors = [value for value in pytree.tree_leaves(made) if isinstance(value, Tensor)]
            _backward(tensors, module, anchor)
        return Passed(boundary, boundary.pack([t.detach() for t in tensors], device), keys=keys)
    except OptPipeError:
        raise
    except Exception as error:
        why = str(error).split("\n")[0]
        if IN_PLACE in why:
            why = "a tensor that its backward needs is edited in place; edit a copy instead"
        else:
            why = f"{type(error).__name__}: {why}"
        return Passed(problem=f"stage {stage}: {why}")


def _taken(taken: Passed | None, inputs: Any, device: torch.device) -> tuple[Any, Tensor]:
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
