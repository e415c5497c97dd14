"""What runs a rank's program on each kind of device: its executor and its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import OptPipeError
from ...schedule import Schedule
from ..program.program import Program
from .iteration import Iteration, Record
from .threads import run_program
from .transport import Gloo, Transport


def executor_of(device: str | torch.device) -> Callable[[Iteration], Record]:
    """Return the function that runs an iteration: threads on a CPU, streams on a GPU."""
    if torch.device(device).type != "cuda":
        return run_program
    from .streams import run_program as on_streams

    return on_streams


def transport_of(
    device: str | torch.device,
    rank: int,
    schedule: Schedule,
    programs: Sequence[Program],
    timeout_s: float,
    group: Any = None,
) -> Transport:
    """Return the transport of a pipeline's ranks: gloo on CPUs, NCCL on GPUs, where all processes of the
    default group make theirs at the same time."""
    if torch.device(device).type != "cuda":
        return Gloo(rank, schedule, timeout_s, group)
    from .nccl import Nccl

    return Nccl(rank, programs, timeout_s, group)


def current_device(device: str | torch.device) -> torch.device:
    """Return the device; on CUDA checked to be the one whose streams and events this process uses.

    Raises:
        OptPipeError: where it is another GPU than the current one, or none, or `prepare_cuda` raises.
    """
    place = torch.device(device)
    if place.type != "cuda":
        return place
    from ..measure.profiler import check_device

    check_device("cuda")
    current = torch.cuda.current_device()
    if place.index not in (None, current):
        raise OptPipeError(
            f"device: cuda:{place.index} is not this process's current GPU (cuda:{current}); call"
            f" torch.cuda.set_device({place.index}) first"
        )
    return torch.device("cuda", current)


def take_device(device: str, rank: int, ranks: int) -> None:
    """Have this process work on a GPU of its own, where ``cuda`` is wanted.

    Raises:
        OptPipeError: where there are fewer GPUs than ranks.
    """
    if torch.device(device).type != "cuda":
        return
    from ..measure.profiler import check_device

    check_device(device)
    if torch.cuda.device_count() < ranks:
        raise OptPipeError(
            f"--device cuda: {ranks} ranks need a GPU each, here are {torch.cuda.device_count()}"
        )
    torch.cuda.set_device(rank)
