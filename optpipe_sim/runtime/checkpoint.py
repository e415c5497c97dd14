"""Checkpoints of stages by the names of the whole model: any number of stages can read them. Written
whole or not at all: every stage goes into the folder of the step; once all are there,
``checkpoint.json`` names that folder, and the one before is removed. Whenever a run is killed, that file
names a complete checkpoint.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ..errors import OptPipeError
from ..files import plain, read_mapping, write_bytes, write_mapping
from .group import PipelineGroup

NAME = "checkpoint.json"
FORMAT = "optpipe-pipeline"
Names = Callable[[int, str], str]


def _same(stage: int, name: str) -> str:
    return name.removeprefix("_orig_mod.")  # which torch.compile puts before it


class Stages(Protocol):
    """The stages of this process, by number, and the processes of the pipeline: a `PipelineStep`, or a training run."""

    modules: dict[int, nn.Module]
    group: PipelineGroup


def save_pipeline(
    folder: str,
    step: Stages,
    number: int,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Any = None,
    names: Names = _same,
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write weights, buffers, optimizer and scheduler after so many steps, whole or not at all, and remove
    the checkpoint before. All processes of the pipeline have to call this.

    Args:
        names: the name in the whole model of what a stage calls so; default: the stage's own names,
            which do as long as no two stages have the same one.
        meta: further plain data, of the process with the first stage.

    Raises:
        OptPipeError: where two stages have the same name.
    """
    modules, group = step.modules, step.group
    here = _folder(folder, number)
    own = {
        stage: {names(stage, name): tensor for name, tensor in module.state_dict().items()}
        for stage, module in modules.items()
    }
    index: dict[str, int] = {}
    for part in group.gather({s: list(found) for s, found in own.items()}):
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
            content |= _optimizer_state(modules[stage], stage, optimizer, names)
        _write(here / f"stage-{stage}.pt", content)
    if 0 in modules:
        _write(here / "common.pt", {"scheduler": scheduler and scheduler.state_dict()})
    group.gather(None)  # all of it is there
    if 0 in modules:
        found = {"version": 1, "step": number, "format": FORMAT, "stages": index, **(meta or {})}
        write_mapping(Path(folder) / NAME, found)
        for other in Path(folder).glob("step-*"):
            if other.name != here.name:
                shutil.rmtree(other, ignore_errors=True)
    group.gather(None)


def published(folder: str, of: str, key: str = "stages") -> dict[str, Any]:
    """Return what ``checkpoint.json`` says.

    Args:
        of: what writes such checkpoints, each with this `key`.

    Raises:
        OptPipeError: where there is none, or another program or version wrote it.
    """
    path = Path(folder) / NAME
    if not path.exists():
        raise OptPipeError(f"{folder}: there is no checkpoint")
    meta: dict[str, Any] = plain(read_mapping(path))
    if meta.get("format") != FORMAT or key not in meta:
        raise OptPipeError(f"{path}: not a checkpoint of {of} (of this version)")
    return meta


def load_pipeline(
    folder: str,
    step: Stages,
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
    meta = published(folder, "`save_pipeline`")
    here, index = _folder(folder, meta["step"]), meta["stages"]
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


def _folder(folder: str, number: int) -> Path:
    return Path(folder) / f"step-{number:06d}"


def _write(path: Path, content: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_bytes(path, buffer.getvalue())


def _read(path: Path) -> Any:
    """Read into host memory: the GPU that wrote it may be another's, or missing here."""
    try:
        return torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except (OSError, RuntimeError) as error:
        raise OptPipeError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


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
