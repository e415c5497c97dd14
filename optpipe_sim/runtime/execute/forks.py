"""The fork server, a fresh Python that has loaded torch and forks ranks; and a rank, which runs tasks as they arrive."""

from __future__ import annotations

import contextlib
import importlib
import mmap
import multiprocessing
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...compiled import njit
from ...errors import OptPipeError, RuntimeFault
from ...ops import Op
from ...processes.signals import leave_with_parent
from ...schedule import Schedule

START_S = 60.0  # for torch to load and the ranks to meet
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
NONE = -1  # no op has begun


@dataclass(frozen=True)
class Wanted:
    """Ranks that are to be forked, and what a fresh Python would have had from the process that asks for them.

    Attributes:
        module: of their first task.
        folder: of their logs, and of the ops that they have begun.
        port: where they meet.
    """

    count: int
    module: str
    folder: Path
    port: int
    cwd: str = field(default_factory=os.getcwd)
    environment: dict[str, str] = field(default_factory=lambda: {**os.environ, **ONE_THREAD})
    path: list[str] = field(default_factory=lambda: list(sys.path))


def log_of(folder: Path, rank: int) -> Path:
    """Return the file that a rank prints to."""
    return folder / f"{rank}.log"


class Progress:
    """A file to which a rank writes the op it has begun, to be read after its death."""

    def __init__(self, path: str | os.PathLike[str], rank: int) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._rank, self.schedule = rank, None

    def begin(self, schedule: Schedule | None) -> None:
        """Note the schedule of a new task; None: there is none."""
        self.schedule = schedule  # type: ignore[assignment]
        struct.pack_into("q", self._map, 8 * self._rank, NONE)

    def __call__(self, op: Op) -> None:
        """Note that an op has begun."""
        if self.schedule is not None:
            struct.pack_into("q", self._map, 8 * self._rank, self.schedule.row(op))


def serve_forks(door: Connection) -> None:
    """Fork ranks as they are asked for, and report how each ends, until the caller has gone.

    Args:
        door: each `Ranks` that starts sends a pipe of its own over it. Once that gets a message or is closed, its ranks
            are killed.
    """
    if njit is not None:  # numba reads its tables with the first function, for half a second
        njit(lambda: None)()
    # torch loads its compiler with the first backward or optimizer of a process, for two seconds, though nothing is
    # compiled: once here instead of in every rank
    importlib.import_module("torch._dynamo")
    running: dict[Any, dict[int, Any]] = {}  # by pipe, the processes by rank
    folders: set[Path] = set()  # which the caller removes, unless it is killed
    while True:
        sentinels: dict[Any, tuple[Any, int]] = {
            process.sentinel: (control, rank)
            for control, ranks in running.items()
            for rank, process in ranks.items()
        }
        ready = set(wait([door, *running, *sentinels]))
        for control, rank in [sentinels[one] for one in ready & sentinels.keys()]:
            process = running[control].pop(rank)
            process.join()
            with contextlib.suppress(OSError):  # the caller has gone
                control.send((rank, process.exitcode))
        for control in ready & running.keys():
            _kill(running.pop(control))
            control.close()  # type: ignore[union-attr]
        if door in ready:
            try:
                control = Connection(recv_handle(door))
            except EOFError:  # the caller has gone
                break
            with contextlib.suppress(EOFError):
                wanted: Wanted = control.recv()
                folders.add(wanted.folder)
                running[control] = _fork(control, wanted, [door, *running])
    for ranks in running.values():
        _kill(ranks)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _fork(control: Connection, wanted: Wanted, others: Sequence[Connection]) -> dict[int, Any]:
    """Fork the ranks that are `wanted` over `control`; return the process of each.

    Args:
        others: what this process has beside that, and ranks are not to have.
    """
    pipes = [Connection(recv_handle(control)) for _ in range(wanted.count)]
    os.chdir(wanted.cwd)
    os.environ.clear()
    os.environ.update(wanted.environment)
    sys.path[:] = wanted.path
    with contextlib.suppress(Exception):  # the rank that needs it says so
        importlib.import_module(wanted.module)
    forked = multiprocessing.get_context("fork")
    ranks = {
        rank: forked.Process(
            target=serve, args=(os.getpid(), rank, wanted, pipes, [control, *others])
        )
        for rank in range(wanted.count)
    }
    for process in ranks.values():
        process.start()
    for pipe in pipes:  # or none would end with its rank
        pipe.close()
    with contextlib.suppress(OSError):  # the caller has gone
        control.send([process.pid for process in ranks.values()])
    return ranks


def _kill(ranks: Mapping[int, Any]) -> None:
    for process in ranks.values():
        process.kill()
    for process in ranks.values():
        process.join()


def serve(
    parent: int,
    rank: int,
    wanted: Wanted,
    pipes: Sequence[Connection],
    others: Sequence[Connection],
) -> None:
    """Be a rank: join the process group, then run tasks as they arrive.

    Args:
        parent: the process that forked this one; it may have exited since.
        pipes: of each rank.
        others: of that process.
    """
    log = os.open(log_of(wanted.folder, rank), os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    leave_with_parent(parent, _leave)  # also while a task runs
    torch.set_num_threads(1)
    connection = pipes[rank]
    for pipe in (*pipes, *others):  # or none would end with its process
        if pipe is not connection:
            pipe.close()
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{wanted.port}",
        rank=rank,
        world_size=wanted.count,
        timeout=timedelta(seconds=START_S),
    )
    begun = Progress(wanted.folder / "ops", rank)
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
    serve_forks(Connection(int(sys.argv[1])))
    os._exit(0)  # nothing is left to be cleared away
