"""Which gradients are complete, while a step still runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from torch import nn

from .split import SplitLinear

OnReady = Callable[[nn.Parameter], None]


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
