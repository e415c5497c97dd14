"""Checkpoints of a `PipelineStep` by the names of the whole model: any number of stages can read them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...errors import OptPipeError
from ...files import write_bytes
from ..train.checkpoint import publish, published, step_folder
from .step import PipelineStep

FORMAT = "optpipe-pipeline"
Names = Callable[[int, str], str]


def _same(stage: int, name: str) -> str:
    return name.removeprefix("_orig_mod.")  # which torch.compile puts before it


def save_pipeline(
    folder: str,
    step: PipelineStep,
    number: int,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Any = None,
    names: Names = _same,
) -> None:
    """Write weights, buffers, optimizer and scheduler after so many steps, whole or not at all; the
    one before goes. All processes of the pipeline have to.

    Args:
        names: the name in the whole model of what a stage calls so; default: the stage's own names,
            which do as long as no two stages have the same one.

    Raises:
        OptPipeError: where two stages have the same name.
    """
    here = step_folder(folder, number)
    own = {stage: _named(module, stage, names) for stage, module in step.modules.items()}
    index: dict[str, int] = {}
    for part in step.group.gather({s: list(found) for s, found in own.items()}):
        for stage, found in part.items():
            for name in found:
                if name in index:
                    raise OptPipeError(
                        f"names: stages {index[name]} and {stage} both have {name!r}; give names="
                    )
                index[name] = stage
    for stage, found in own.items():
        content: dict[str, Any] = {"tensors": found}
        if optimizer is not None:
            content |= _optimizer_state(step.modules[stage], stage, optimizer, names)
        _write(here / f"stage-{stage}.pt", content)
    if 0 in step.modules:
        _write(here / "common.pt", {"scheduler": scheduler and scheduler.state_dict()})
    step.group.gather(None)  # all of it is there
    if 0 in step.modules:
        publish(folder, number, {"format": FORMAT, "stages": index})
    step.group.gather(None)


def load_pipeline(
    folder: str,
    step: PipelineStep,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Any = None,
    names: Names = _same,
) -> int:
    """Read what `save_pipeline` has written, in as many stages as there are now.

    Returns:
        After how many steps it was.

    Raises:
        OptPipeError: where there is none, or it lacks something.
    """
    meta = published(folder, FORMAT, "`save_pipeline`")
    here, index = step_folder(folder, meta["step"]), meta["stages"]
    parts: dict[int, dict[str, Any]] = {}
    for stage, module in step.modules.items():
        wanted = {local: names(stage, local) for local in module.state_dict()}
        missing = [name for name in wanted.values() if name not in index]
        if missing:
            raise OptPipeError(f"{here}: has no {missing[0]!r}, which stage {stage} has")
        for at in {index[name] for name in wanted.values()} - set(parts):
            parts[at] = _read(here / f"stage-{at}.pt")
        found = {local: parts[index[name]]["tensors"][name] for local, name in wanted.items()}
        try:
            module.load_state_dict(found)
        except RuntimeError as error:
            raise OptPipeError(f"{here}: stage {stage}: {' '.join(str(error).split())}") from None
        if optimizer is not None:
            _restore(module, stage, optimizer, names, [parts[at] for at in sorted(parts)])
    if scheduler is not None:
        scheduler.load_state_dict(_read(here / "common.pt")["scheduler"])
    return int(meta["step"])


def _named(module: nn.Module, stage: int, names: Names) -> dict[str, Any]:
    return {names(stage, name): tensor for name, tensor in module.state_dict().items()}


def _write(path: Any, content: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_bytes(path, buffer.getvalue())


def _read(path: Any) -> Any:
    """Into host memory: the GPU that wrote it may be another's, or missing here."""
    return torch.load(path, weights_only=True, mmap=True, map_location="cpu")


def _optimizer_state(
    module: nn.Module, stage: int, optimizer: torch.optim.Optimizer, names: Names
) -> dict[str, Any]:
    """Return what an optimizer keeps of each parameter, by name, and the options of its groups."""
    state = {
        names(stage, name): dict(optimizer.state[parameter])
        for name, parameter in module.named_parameters()
        if parameter in optimizer.state
    }
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return {"optimizer": state, "groups": groups}


def _restore(
    module: nn.Module,
    stage: int,
    optimizer: torch.optim.Optimizer,
    names: Names,
    parts: list[dict[str, Any]],
) -> None:
    states: dict[str, Any] = {}
    for part in parts:
        states |= part.get("optimizer", {})
    groups = parts[0].get("groups", [])
    if len(groups) != len(optimizer.param_groups):
        raise OptPipeError(
            f"optimizer: the checkpoint has {len(groups)} groups of parameters, here are"
            f" {len(optimizer.param_groups)}"
        )
    for group, options in zip(optimizer.param_groups, groups, strict=True):
        group.update(options)
    options = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in module.named_parameters():
        if names(stage, name) in states:
            own = options.get(id(parameter), {})
            numbers = parameter.device if own.get("fused") or own.get("capturable") else "cpu"
            optimizer.state[parameter] = {
                # numbers of steps stay on the host, as optimizers make them
                key: value.to(parameter.device if value.dim() else numbers, copy=True)
                if isinstance(value, torch.Tensor)
                else value
                for key, value in states[names(stage, name)].items()
            }
