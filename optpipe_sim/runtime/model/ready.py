"""Which gradients are complete, while a step still runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from torch import nn

from .split import SplitLinear

Told = Callable[[nn.Parameter], None]


class Ready:
    """Tells of each parameter once, as soon as no op of the step adds to its gradient any more.

    The weights of split linears are complete in the last W of their stage, one by one, the others
    after its last B (all of them after a BW).

    Args:
        modules: by stage. microbatches: of the step.
        told: hears of them, in an order that the schedule alone decides.
        later: parameters that are not told of, since they are used in several stages.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        microbatches: int,
        told: Told,
        later: Collection[int] = (),
    ) -> None:
        self.told = told
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
        """A B or BW of the stage has ended."""
        self.backward_left[stage] -= 1
        if not self.backward_left[stage]:
            self._tell(self.others[stage])
        if fused:
            self.after_weight(stage)

    def teller(self, stage: int) -> Told | None:
        """What a W of the stage tells weight by weight; None before the last one."""
        return None if self.weight_left[stage] > 1 else lambda weight: self._tell([weight])

    def after_weight(self, stage: int) -> None:
        """A W of the stage, or a BW, has ended."""
        self.weight_left[stage] -= 1
        if not self.weight_left[stage]:
            self._tell(self.split[stage])

    def _tell(self, parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            if id(parameter) not in self._over:
                self._over.add(id(parameter))
                self.told(parameter)
