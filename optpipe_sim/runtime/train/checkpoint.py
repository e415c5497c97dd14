"""Checkpoints of a training run, written whole or not at all.

Every rank writes its part into the folder of the step; once all parts exist, rank 0 points ``checkpoint.json``
to it, and the previous folder is removed. Whenever a run is killed, that file names a complete checkpoint.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...errors import OptPipeError
from ...files import plain, read_mapping, write_bytes, write_mapping
from ..model.stage import StageWorker

NAME = "checkpoint.json"
FORMAT = "optpipe-training"


def save_checkpoint(
    folder: str,
    rank: int,
    step: int,
    worker: StageWorker,
    optimizer: torch.optim.Optimizer,
    meta: dict[str, Any],
) -> None:
    """Write the state after `step` steps; to be called by all ranks.

    Args:
        meta: further plain data; rank 0's is written.
    """
    stages = {str(stage): module.state_dict() for stage, module in worker.modules.items()}
    buffer = io.BytesIO()
    torch.save({"stages": stages, "optimizer": optimizer.state_dict()}, buffer)
    write_bytes(step_folder(folder, step) / f"rank-{rank}.pt", buffer.getvalue())
    dist.barrier()
    if rank == 0:
        publish(folder, step, {"format": FORMAT, **meta})


def publish(folder: str, step: int, meta: dict[str, Any]) -> None:
    """Point to the checkpoint of a step, of which all parts are there; older ones go."""
    write_mapping(Path(folder) / NAME, {"version": 1, "step": step, **meta})
    for other in Path(folder).glob("step-*"):
        if other.name != step_folder(folder, step).name:
            shutil.rmtree(other, ignore_errors=True)


def load_checkpoint(folder: str, identity: dict[str, Any]) -> dict[str, Any]:
    """What is known of the checkpoint in a folder.

    Raises:
        OptPipeError: where there is none, or it is of another run: names what differs.
    """
    path = Path(folder) / NAME
    if not path.exists():
        raise OptPipeError(f"{folder}: no checkpoint to resume from; leave --resume out to start")
    meta = published(folder, FORMAT, "`optpipe-sim train`")
    before, wanted = meta["identity"], plain(identity)
    for key in wanted:
        if before.get(key) != wanted[key]:
            raise OptPipeError(
                f"{path}: {key} was {before.get(key)}, now it is {wanted[key]};"
                " resume with the same, or start over without --resume"
            )
    return meta


def published(folder: str, form: str, of: str) -> dict[str, Any]:
    """What `publish` has written.

    Raises:
        OptPipeError: where there is nothing, or it is not of that format.
    """
    path = Path(folder) / NAME
    if not path.exists():
        raise OptPipeError(f"{folder}: there is no checkpoint")
    meta: dict[str, Any] = plain(read_mapping(path))
    if meta.get("format") != form:
        raise OptPipeError(f"{path}: not a checkpoint of {of}")
    return meta


def load_state(
    folder: str, rank: int, step: int, worker: StageWorker, optimizer: torch.optim.Optimizer
) -> None:
    """Restore one rank's part.

    Raises:
        OptPipeError: where it cannot be read.
    """
    path = step_folder(folder, step) / f"rank-{rank}.pt"
    try:
        # the optimizer's numbers of steps belong on the host; the rest is copied to where it belongs
        state = torch.load(path, weights_only=True, map_location="cpu")
        for stage, module in worker.modules.items():
            module.load_state_dict(state["stages"][str(stage)])
        optimizer.load_state_dict(state["optimizer"])
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise OptPipeError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


def step_folder(folder: str, step: int) -> Path:
    """Where the parts of a checkpoint are."""
    return Path(folder) / f"step-{step:06d}"
