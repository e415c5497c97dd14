"""Backward in two parts: B computes input gradients and queues the weight gradients, W computes these.

As in zero-bubble schedules (Qi et al., ICLR 2024), with deferred weight gradients: in B a linear
computes dX = dY W and keeps (X, dY); in W, dW = dY^T X. Between B and W exactly these two are held.
Biases, norms and embeddings, under one per cent of the work, are done in B.
`Ready` says which gradients are complete meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import RuntimeFault
from .current import current

OnReady = Callable[[nn.Parameter], None]


class _Pending(NamedTuple):
    """A pending weight gradient; the versions show whether its inputs were edited in place."""

    weight: nn.Parameter
    x: Tensor
    dy: Tensor
    versions: tuple[int, int]


class WeightQueue:
    """The weight gradients of one stage and microbatch, from its B to its W.

    `fused`: they are computed at once, as in a plain backward pass (BW).
    """

    def __init__(self) -> None:
        self.fused = False
        self.pending: list[_Pending] = []

    def put(self, weight: nn.Parameter, x: Tensor, dy: Tensor) -> None:
        """Queue a weight gradient with its inputs."""
        self.pending.append(_Pending(weight, x, dy, (x._version, dy._version)))

    @torch.no_grad()
    def run(self, op: str, complete: Callable[[nn.Parameter], None] | None = None) -> None:
        """Compute the gradients, add them to `.grad`, and release the tensors GEMM by GEMM. Call `complete`
        with each weight once all of its gradient for this microbatch is added. The contributions to a weight
        that is used several times are summed first, in the order of a plain backward pass, so that sums are
        bitwise the same.

        Raises:
            RuntimeFault: names `op` where a queued tensor was edited in place since B.
        """
        uses: dict[int, int] = {}
        for each in self.pending:
            uses[id(each.weight)] = uses.get(id(each.weight), 0) + 1
        sums: dict[int, Tensor] = {}
        queue, self.pending = self.pending[::-1], []
        while queue:
            weight, x, dy, versions = queue.pop()
            if (x._version, dy._version) != versions:
                raise RuntimeFault(
                    f"{op}: an input or output gradient of a linear, {tuple(x.shape)}, was edited in"
                    " place between B and W; edit a copy instead"
                )
            part = weight_gradient(weight, x, dy)
            del x, dy
            key = id(weight)
            sums[key] = sums[key] + part if key in sums else part
            uses[key] -= 1
            if not uses[key]:
                part = sums.pop(key)
                if weight.grad is None:
                    weight.grad = part.to(gradient_dtype(weight))
                else:
                    weight.grad += part
                if complete is not None:
                    complete(weight)


def gradient_dtype(weight: nn.Parameter) -> torch.dtype:
    """Return the dtype of its `.grad`: the weight's, unless ``grad_dtype`` says otherwise."""
    return getattr(weight, "grad_dtype", None) or weight.dtype


def zero_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Allocate zeros before the step, so that the memory of a step is activations only."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()
        elif parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter, dtype=gradient_dtype(parameter))


def weight_gradient(weight: Tensor, x: Tensor, dy: Tensor) -> Tensor:
    """Return dW of ``linear`` (weight: out x in) or of `batched` (weight: groups x in x out).

    The same GEMMs, with the same layouts, as autograd's own: bitwise the same numbers.
    """
    if weight.dim() == 3:
        return x.transpose(1, 2) @ dy
    return dy.reshape(-1, dy.shape[-1]).t() @ x.reshape(-1, x.shape[-1])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, queue: WeightQueue, casts: bool
    ) -> Tensor:
        # not through saved tensors: W needs the parameter itself, to find its .grad
        ctx.weight, ctx.version, ctx.queue = weight, weight._version, queue
        ctx.save_for_backward(x)
        # under autocast a weight is cast here and again in B, and no copy is kept
        with torch.autocast(x.device.type, enabled=False) if casts else nullcontext():
            if casts:
                weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
            y = x @ weight if weight.dim() == 3 else functional.linear(x, weight, bias)
        # a view that a function returns could not be edited in place, as in ``ReLU(inplace=True)``
        return torch.ops.aten._unsafe_view(y, y.shape) if y._is_view() else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x,), weight = ctx.saved_tensors, ctx.weight
        if weight._version != ctx.version:
            raise RuntimeFault(
                f"a weight {tuple(weight.shape)} was edited in place between F and B; the optimizer"
                " has to wait for the end of the step"
            )
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        dx = dw = db = None
        if needs_x:
            w = weight.to(dy.dtype)  # as forward cast it
            dx = dy @ (w.transpose(1, 2) if w.dim() == 3 else w)
        if needs_bias:
            db = dy.reshape(-1, dy.shape[-1]).sum(0)
        if needs_weight and ctx.queue.fused:
            dw = weight_gradient(weight, x, dy)
        elif needs_weight:
            ctx.queue.put(weight, x, dy)
        return dx, dw, db, None, None


def _split(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """Return the product as an op of its own, whose W comes apart; None where nothing runs it that way."""
    queue = current("queue")
    # W finds a parameter's .grad: what is computed from parameters has to be done in B
    if queue is None or not torch.is_grad_enabled() or not weight.is_leaf:
        return None
    kind = x.device.type
    casts = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return _Linear.apply(
        x.to(torch.get_autocast_dtype(kind)) if casts else x, weight, bias, queue, casts
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``torch.nn.functional.linear``, split in two where a worker runs it, with a queue for W."""
    if torch.compiler.is_compiling():  # its backward is compiled with it, and not taken apart
        return functional.linear(x, weight, bias)
    found = _split(x, weight, bias)
    return functional.linear(x, weight, bias) if found is None else found


def batched(x: Tensor, weight: Tensor) -> Tensor:
    """Return (groups, rows, in) times (groups, in, out), one GEMM per group; split like `linear`."""
    if torch.compiler.is_compiling():
        return x @ weight
    found = _split(x, weight, None)
    return x @ weight if found is None else found


class SplitLinear(nn.Linear):
    """An ``nn.Linear`` that can be split; outside of a worker it is a plain one."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b."""
        return linear(x, self.weight, self.bias)


def split_linears(module: nn.Module) -> int:
    """Make every plain ``nn.Linear`` inside `module` splittable, in place; how many there are.

    Subclasses are left alone (their forward may do something else): their weights are done in B.
    """
    found = 0
    for part in module.modules():
        if type(part) is nn.Linear:
            part.__class__ = SplitLinear
        found += isinstance(part, SplitLinear)
    return found


class Ready:
    """Calls back once for each parameter, as soon as no further op of the step adds to its gradient.

    The weights of split linears are complete in the last W of their stage, one by one, the others
    after its last B (all of them after a BW).

    Args:
        modules: by stage. microbatches: of the step.
        call: called with each, in an order that only the schedule decides.
        later: parameters to leave out, since they are used in several stages.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        microbatches: int,
        call: OnReady,
        later: Collection[int] = (),
    ) -> None:
        self.call = call
        self.backward_left = dict.fromkeys(modules, microbatches)
        self.weight_left = dict.fromkeys(modules, microbatches)
        self.split: dict[int, list[nn.Parameter]] = {}
        self.others: dict[int, list[nn.Parameter]] = {}
        self._over = set(later)
        for stage, module in modules.items():
            linears = [part for part in module.modules() if isinstance(part, SplitLinear)]
            split = {id(linear.weight) for linear in linears}
            mine = [parameter for parameter in module.parameters() if parameter.requires_grad]
            self.split[stage] = [p for p in mine if id(p) in split]
            self.others[stage] = [p for p in mine if id(p) not in split]

    def after_backward(self, stage: int, fused: bool) -> None:
        """Note that a B or BW of the stage has ended."""
        self.backward_left[stage] -= 1
        if not self.backward_left[stage]:
            self._complete(self.others[stage])
        if fused:
            self.after_weight(stage)

    def on_weight(self, stage: int) -> OnReady | None:
        """Return the callback for each weight of a W of the stage; None before the last W."""
        return None if self.weight_left[stage] > 1 else lambda weight: self._complete([weight])

    def after_weight(self, stage: int) -> None:
        """Note that a W of the stage, or a BW, has ended."""
        self.weight_left[stage] -= 1
        if not self.weight_left[stage]:
            self._complete(self.split[stage])

    def _complete(self, parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            if id(parameter) not in self._over:
                self._over.add(id(parameter))
                self.call(parameter)
