"""A torch whose pipeline runtime has changed is refused in one line, before anything runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed.pipelining import schedules, stage

from optpipe_sim.errors import OptPipeError
from optpipe_sim.runtime.pipelining.probe import probe


def changed(**changes: Any) -> SimpleNamespace:
    """Torch's schedules with some names as given; without those that are None."""
    names = vars(schedules) | changes
    return SimpleNamespace(**{name: found for name, found in names.items() if found is not None})


def runtime(**members: Any) -> type:
    """Torch's runtime with other members."""
    return type("_PipelineScheduleRuntime", (schedules._PipelineScheduleRuntime,), members)


def of_2_11(self, arg_mbs=None, kwarg_mbs=None, target_mbs=None, losses=None, return_outputs=True):
    """As torch 2.11 has it: no keywords for the loss."""


class Action(NamedTuple):
    stage: int
    kind: str


def takes_nothing(self) -> None: ...


def test_this_torch_and_the_signature_of_2_11_pass():
    probe(schedules, stage, torch.__version__)
    older = changed(_PipelineScheduleRuntime=runtime(_step_microbatches=of_2_11))
    probe(older, stage, "2.11.0")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"_add_reduce_grad": None}, "no _add_reduce_grad"),
        ({"_PipelineScheduleRuntime": None}, "no _PipelineScheduleRuntime.__init__"),
        (
            {"_PipelineScheduleRuntime": runtime(_step_microbatches=takes_nothing)},
            "_PipelineScheduleRuntime._step_microbatches takes no arg_mbs",
        ),
        ({"_Action": Action}, "_Action is no ('stage_index', 'computation_type'"),
        ({"_ComputationType": SimpleNamespace(FORWARD="F")}, "no kind of action FULL_BACKWARD"),
    ],
)
def test_what_has_changed_is_named(what: dict[str, Any], message: str):
    with pytest.raises(OptPipeError) as caught:
        probe(changed(**what), stage, "3.0")
    line = str(caught.value)
    assert line.startswith(f"torch 3.0: torch.distributed.pipelining has changed: {message}")
    assert line.endswith(
        "schedule_class knows it as of torch 2.11 and 2.13, PipelineStep works with any"
    )
    assert "\n" not in line


def test_attributes_that_nothing_sets_any_more_are_named():
    class Base:
        def __init__(self) -> None:
            self.submod = None

    bare = SimpleNamespace(_PipelineStageBase=type("_PipelineStageBase", (Base,), {}))
    with pytest.raises(OptPipeError, match="_PipelineStageBase sets no stage_index"):
        probe(schedules, bare, "3.0")
