"""One rank that `launch.Ranks` started: takes tasks from a pipe until it is closed."""

from __future__ import annotations

import os
import pickle
import sys
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from ...errors import OptPipeError, RuntimeFault
from ...processes.signals import leave_with_parent
from .launch import START_S, Progress


def main(parent: int, rank: int, ranks: int, port: int, pipe: int, progress: str) -> None:
    """Join the process group, then run tasks as they arrive.

    Args:
        parent: the process that started this one; it may have exited since.
    """
    leave_with_parent(parent, _leave)  # also while a task runs
    torch.set_num_threads(1)
    connection = Connection(pipe)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=START_S),
    )
    begun = Progress(progress, rank)
    while True:
        try:
            task = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            _leave()
        begun.begin(task.schedule)
        try:
            answer: object = task.perform(rank, begun)
        except OptPipeError as error:
            answer = (
                error if isinstance(error, RuntimeFault) else RuntimeFault(f"rank {rank}: {error}")
            )
        except Exception as error:
            answer = RuntimeFault(f"rank {rank}: {type(error).__name__}: {error}")
        begun.begin(None)
        if isinstance(answer, RuntimeFault):
            answer.__cause__ = None
        connection.send_bytes(pickle.dumps(answer))


def _leave() -> None:
    os._exit(0)  # no shutdown handshake with ranks that may have exited as well


if __name__ == "__main__":
    starter, number, world, door, fd, path = sys.argv[1:]
    main(int(starter), int(number), int(world), int(door), int(fd), path)
