"""Ops out of order and edits in place are refused with the op and the rank."""

from __future__ import annotations

import pytest
import torch
from stage_cases import (
    LLAMA,
    WIDTH,
    batch,
    middle,
    worker_of,
)
from torch import Tensor, nn

from optpipe_sim.errors import RuntimeFault
from optpipe_sim.runtime.model.stage import StageWorker


class EditsLater(nn.Module):
    """Edits what sigmoid has saved."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(x)
        y.mul_(3.0)
        return y


def fail(worker: StageWorker, *steps: str) -> str:
    """Run the steps; the last one is refused with a line that names op and device."""
    x = torch.randn(8, WIDTH)
    calls = {
        "F": lambda: worker.forward(1, 0, x),
        "B": lambda: worker.backward(1, 0, torch.ones(8, WIDTH), fused=False),
        "W": lambda: worker.weight(1, 0),
        "O": lambda: worker.offload(1, 0),
        "drop": lambda: worker.drop(1, 0),
        "R": lambda: worker.reload(1, 0),
        "edit": lambda: x.add_(1.0),
        "finish": worker.finish_step,
    }
    for step in steps[:-1]:
        calls[step]()
    with pytest.raises(RuntimeFault) as caught:
        calls[steps[-1]]()
    line = str(caught.value)
    assert "rank 1 (cpu)" in line
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("F O drop B", "B1.0 on rank 1 (cpu): its activation is on the host: R1.0 has to come"),
        ("F drop", "drop 1.0 on rank 1 (cpu): its O has not run"),
        ("F O O", "O1.0 on rank 1 (cpu): offloaded twice"),
        ("F O drop drop", "drop 1.0 on rank 1 (cpu): it is dropped already"),
        ("F R", "R1.0 on rank 1 (cpu): nothing was dropped"),
        ("F O R", "R1.0 on rank 1 (cpu): nothing was dropped"),
        ("F F", "F1.0 on rank 1 (cpu): runs twice"),
        ("B", "B1.0 on rank 1 (cpu): needs F before; it never had F"),
        ("F W", "W1.0 on rank 1 (cpu): needs B before; it has had F"),
        ("F B B", "B1.0 on rank 1 (cpu): needs F before; it has had B"),
        ("F B O", "O1.0 on rank 1 (cpu): needs F before; it has had B"),
        ("F B finish", "ops are missing: 1.0 has only had B"),
        ("F edit B", "B1.0 on rank 1 (cpu): a tensor (8, 32) that F1.0 saved was edited in place"),
        ("F edit O", "O1.0 on rank 1 (cpu): a tensor (8, 32) that F1.0 saved was edited in place"),
        ("F O edit drop", "drop 1.0 on rank 1 (cpu): a tensor (8, 32) that F1.0 saved"),
        ("F B edit W", "W1.0 on rank 1 (cpu): an input or output gradient of a linear"),
    ],
)
def test_faults_name_the_op_and_the_device(steps, said) -> None:
    assert said in fail(middle(nn.Linear(WIDTH, WIDTH)), *steps.split())


def test_an_edit_inside_a_stage_is_noticed() -> None:
    said = fail(middle(EditsLater()), "F", "B")
    assert "F1.0 saved was edited in place afterwards (version 1, saved as 0)" in said


def test_a_weight_that_changes_between_f_and_b_is_noticed() -> None:
    module = nn.Linear(WIDTH, WIDTH)
    worker = middle(module)
    worker.forward(1, 0, torch.randn(8, WIDTH))
    with torch.no_grad():
        module.weight.add_(1.0)
    with pytest.raises(RuntimeFault, match="edited in place between F and B"):
        worker.backward(1, 0, torch.ones(8, WIDTH), fused=False)


def test_a_microbatch_outside_the_batch_is_refused() -> None:
    worker = worker_of(LLAMA, 2)
    worker.start_step(*batch(2))
    with pytest.raises(RuntimeFault, match=r"F0\.2 on rank 0 \(cpu\): no input; .* 2 microbatches"):
        worker.forward(0, 2, None)
