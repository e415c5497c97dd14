"""The device that a process works on, and the settings of CUDA and torch that have to be made before they start:
connections, deterministic results.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ..errors import OptPipeError

_Result = TypeVar("_Result")
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


def check_device(device: str) -> torch.device:
    """Check that the device exists; prepare CUDA before it starts."""
    if device == "cuda":
        prepare_cuda()
    if device == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda
        why = "this torch is built without CUDA" if built is None else "torch sees no GPU"
        raise OptPipeError(f"--device cuda: {why}; take --device cpu, or fake for bytes alone")
    if device not in ("cpu", "cuda"):
        raise OptPipeError(f"--device {device}: expected cpu, cuda or fake")
    return torch.device(device)


def current_device(device: str | torch.device) -> torch.device:
    """Return the device; on CUDA checked to be the one whose streams and events this process uses.

    Raises:
        OptPipeError: where it is another GPU than the current one, or none, or `prepare_cuda` raises.
    """
    place = torch.device(device)
    if place.type != "cuda":
        return place
    check_device("cuda")
    current = torch.cuda.current_device()
    if place.index not in (None, current):
        raise OptPipeError(
            f"device: cuda:{place.index} is not this process's current GPU (cuda:{current}); call"
            f" torch.cuda.set_device({place.index}) first"
        )
    return torch.device("cuda", current)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Inside the block, give torch that many threads (another order of summation gives other results); None: as
    many as it has."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_thread(work: Callable[[], _Result]) -> Future[_Result]:
    """Run `work` in a thread that the end of the process does not wait for."""
    running: Future[_Result] = Future()

    def run() -> None:
        try:
            running.set_result(work())
        except BaseException as error:
            running.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return running


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[None]:
    """Run `work` again and again in another thread."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def take_device(device: str, rank: int, ranks: int) -> None:
    """Have this process work on a GPU of its own, where ``cuda`` is wanted.

    Raises:
        OptPipeError: where there are fewer GPUs than ranks.
    """
    if torch.device(device).type != "cuda":
        return
    check_device(device)
    if torch.cuda.device_count() < ranks:
        raise OptPipeError(
            f"--device cuda: {ranks} ranks need a GPU each, here are {torch.cuda.device_count()}"
        )
    torch.cuda.set_device(rank)
