"""Settings of CUDA and torch that have to be made before they start: connections, deterministic results."""

from __future__ import annotations

import os

import torch

from ...errors import OptPipeError

CONNECTIONS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
DETERMINISTIC = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",  # its backward adds up in any order
}


def prepare_cuda(deterministic: bool = False) -> dict[str, str]:
    """Set the variables that CUDA reads when it starts, unless the user has; return their values.

    Streams share 8 connections to the device unless told otherwise, and work on one connection
    waits for what was issued before it on another stream: copies, messages and compute would
    depend on each other where the schedule does not say so.

    Args:
        deterministic: choose kernels that give bitwise the same result every time; those that have
            no such variant warn. Slower: times measured so are of these kernels.

    Raises:
        OptPipeError: where there is to be one connection only, as Megatron-LM used to ask for.
    """
    wanted = CONNECTIONS | (DETERMINISTIC if deterministic else {})
    for key, value in wanted.items():
        os.environ.setdefault(key, value)
    if os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1":
        raise OptPipeError(
            "CUDA_DEVICE_MAX_CONNECTIONS: with 1, copies wait for compute; unset it, or take 32"
        )
    if deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
    return {key: os.environ[key] for key in wanted}
