"""The device that a process works on."""

from __future__ import annotations

import torch

from ...errors import OptPipeError


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
