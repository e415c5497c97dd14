"""What `schedule_class` relies on in torch.distributed.pipelining, checked when it is imported.

That module's runtime is private, and changes between versions. The sources of torch 2.11 and 2.13
were read; any version that passes these checks is used, any other is refused in one line.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import torch
from torch.distributed.pipelining import schedules, stage

from ...errors import OptPipeError

READ = "2.11 and 2.13"
# functions and methods of `schedules`, and the arguments that they are given here
TAKES = {
    "_add_unshard_reshard": ("compute_actions",),
    "_add_reduce_grad": ("actions", "n_microbatches"),
    "_PipelineScheduleRuntime.__init__": (),
    "_PipelineScheduleRuntime.step": ("args", "target", "losses", "return_outputs", "kwargs"),
    "_PipelineScheduleRuntime.eval": ("args", "target", "losses", "kwargs"),
    "_PipelineScheduleRuntime._step_microbatches": (
        "arg_mbs",
        "kwarg_mbs",
        "target_mbs",
        "losses",
        "return_outputs",
    ),
    "_PipelineScheduleRuntime._prepare_schedule_with_comms": ("actions",),
    "_PipelineScheduleRuntime._assert_unsharded": ("stage",),
    "_PipelineScheduleRuntime._check_inputs": ("arg_mbs", "kwarg_mbs", "target_mbs", "losses"),
    "_PipelineScheduleRuntime._update_losses": ("stages", "losses"),
    "PipelineScheduleMulti.__init__": ("stages", "n_microbatches", "loss_fn"),
}
# what constructors set
SETS = {
    "_PipelineScheduleRuntime": (
        "_stages",
        "_n_microbatches",
        "_loss_fn",
        "_has_backward",
        "_internal_losses",
        "scale_grads",
        "unshard_ops",
        "unsharded_stages",
    ),
    "_PipelineStageBase": (
        "submod",
        "stage_index",
        "num_stages",
        "device",
        "group",
        "group_rank",
        "group_size",
        "dw_builder",
        "output_chunks",
    ),
}
STAGE_HAS = ("is_first", "is_last", "perform_reduce_grad", "clear_runtime_states")
KINDS = (
    "FORWARD",
    "FULL_BACKWARD",
    "BACKWARD_INPUT",
    "BACKWARD_WEIGHT",
    "UNSHARD",
    "RESHARD",
    "REDUCE_GRAD",
)
ACTION = ("stage_index", "computation_type", "microbatch_index")


def probe(runtime: ModuleType | Any, stages: ModuleType | Any, version: str) -> None:
    """Check what the adapter relies on.

    Args:
        runtime: ``torch.distributed.pipelining.schedules``. stages: ``.stage``, likewise.

    Raises:
        OptPipeError: names the version of torch and the first thing that is not as expected.
    """
    problem = _problem(runtime, stages)
    if problem is not None:
        raise OptPipeError(
            f"torch {version}: torch.distributed.pipelining has changed: {problem}; schedule_class"
            f" knows it as of torch {READ}, PipelineStep works with any"
        )


def _problem(runtime: Any, stages: Any) -> str | None:
    for path, wanted in TAKES.items():
        found: Any = runtime
        for name in path.split("."):
            found = getattr(found, name, None)
            if found is None:
                return f"no {path}"
        missing = [name for name in wanted if name not in inspect.signature(found).parameters]
        if missing:
            return f"{path} takes no {missing[0]}"
    base = getattr(stages, "_PipelineStageBase", None)
    if base is None:
        return "no _PipelineStageBase"
    for kind in (runtime._PipelineScheduleRuntime, base):
        made = {name for each in kind.__mro__ for name in _names_in(each)}
        for name in SETS[kind.__name__]:
            if name not in made:
                return f"{kind.__name__} sets no {name}"
    for name in STAGE_HAS:
        if not hasattr(base, name):
            return f"_PipelineStageBase has no {name}"
    kinds = getattr(runtime, "_ComputationType", None)
    for name in KINDS:
        if not hasattr(kinds, name):
            return f"no kind of action {name}"
    if getattr(getattr(runtime, "_Action", None), "_fields", ())[:3] != ACTION:
        return f"_Action is no {ACTION}"
    return None


def _names_in(kind: type) -> tuple[str, ...]:
    """Return the names that the constructor of a class mentions: attributes that it sets are among them."""
    code = getattr(kind.__dict__.get("__init__"), "__code__", None)
    return () if code is None else code.co_names


probe(schedules, stage, torch.__version__)
Action, Kind = schedules._Action, schedules._ComputationType
Runtime = schedules._PipelineScheduleRuntime
add_reduce_grad, add_unshard_reshard = schedules._add_reduce_grad, schedules._add_unshard_reshard
