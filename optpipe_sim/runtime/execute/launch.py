"""Ranks: p processes of this machine over gloo that run tasks, and never outlive their parent; or those that torchrun
has started, of which this process is one."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from ...errors import OptPipeError, RuntimeFault
from ...ops import Op
from ...processes.fresh import how_it_ended, kill, last_line, start_python
from ...processes.signals import leave_with_parent
from ...processes.torchrun import torchrun_rank
from ...schedule import Schedule
from ..device import take_device

START_S = 60.0  # for torch to load and the ranks to meet
GRACE_S = 3.0  # from the first fault until those of all ranks are collected
_NONE = -1
_DEAD = object()  # the answer of a rank that has died
Answer_co = TypeVar("Answer_co", covariant=True)


class Job(Protocol[Answer_co]):
    """A task for ranks; it has to be picklable, as has its result."""

    @property
    def schedule(self) -> Schedule:
        """The schedule to start with; it gives the number of ranks, and the names of ops in error messages."""

    def perform(self, rank: int, begun: Callable[[Op], None]) -> Answer_co:
        """Run the part of one rank, which reports every op that it begins."""


class Ranks:
    """p processes, each a rank.

        with Ranks(4) as ranks:
            results = ranks.run(Task(Case(schedule, profile)))

    They stay for further tasks. After a failure all of them are ended; the next task starts new ones.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise OptPipeError(f"ranks: must be at least 1, got {count}")
        self.count = count
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        self._folder = Path(tempfile.mkdtemp(prefix="optpipe-ranks-"))
        self._log_began = [0] * count  # bytes in the log of each rank when its job began
        self._finalizer = weakref.finalize(self, _end, self._processes, self._folder)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The process of each rank; none before the first task."""
        return [process.pid for process in self._processes]

    def run(self, task: Job[Answer_co]) -> list[Answer_co]:
        """Have all ranks do a task; return their results by rank.

        Raises:
            RuntimeFault: names the rank that failed or died, and its last op.
        """
        devices = task.schedule.shape.devices
        if devices != self.count:
            raise OptPipeError(f"the schedule is for {devices} devices, not {self.count} ranks")
        if not self._processes:
            self._start()
        # the last line that a rank has printed says why it died, if it is of this job
        self._log_began = [self._log(rank).stat().st_size for rank in range(self.count)]
        try:
            for rank, pipe in enumerate(self._pipes):
                try:
                    pipe.send_bytes(pickle.dumps(task))
                except OSError:
                    raise self._died(rank, task.schedule) from None
            return self._gather(task.schedule)
        except BaseException:
            self._halt()
            raise

    def close(self) -> None:
        """End all ranks."""
        self._halt()
        self._finalizer()

    def _log(self, rank: int) -> Path:
        """Return the file that a rank prints to."""
        return self._folder / f"{rank}.log"

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (self._folder / "ops").write_bytes(struct.pack("q", _NONE) * self.count)
        for rank in range(self.count):
            ours, theirs = Pipe()
            about = (os.getpid(), rank, self.count, port, theirs.fileno(), self._folder / "ops")
            with self._log(rank).open("wb") as log:
                process = start_python(
                    __name__,
                    about,
                    log,
                    stdout=log,
                    pass_fds=[theirs.fileno()],
                    environment={"OMP_NUM_THREADS": "1"},
                )
            self._processes.append(process)
            theirs.close()
            self._pipes.append(ours)

    def _gather(self, schedule: Schedule) -> list[Any]:
        """Return what all ranks answer, or raise the fault that explains the others."""
        answers: dict[int, Any] = {}
        ends = float("inf")
        while len(answers) < self.count and time.monotonic() < ends:
            waiting = {pipe: at for at, pipe in enumerate(self._pipes) if at not in answers}
            left = None if ends == float("inf") else max(0.0, ends - time.monotonic())
            for pipe in wait(list(waiting), left):
                try:
                    answer = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError):
                    answer = _DEAD
                answers[waiting[pipe]] = answer  # type: ignore[index]
                if answer is _DEAD or isinstance(answer, RuntimeFault):
                    # the first fault may arrive a little later
                    ends = min(ends, time.monotonic() + GRACE_S)
        for rank, answer in answers.items():
            if answer is _DEAD:  # the faults of the others follow from it
                raise self._died(rank, schedule)
        faults = [answer for answer in answers.values() if isinstance(answer, RuntimeFault)]
        # preferably one that is not just about a neighbour that has exited
        own = [fault for fault in faults if "connection" not in str(fault).lower()]
        if faults:
            raise (own or faults)[0]
        return [answers[rank] for rank in range(self.count)]

    def _died(self, rank: int, schedule: Schedule) -> RuntimeFault:
        process = self._processes[rank]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        how = how_it_ended(process.returncode)
        line = last_line(self._log(rank), self._log_began[rank])
        with (self._folder / "ops").open("rb") as file:
            row = struct.unpack_from("q", file.read(), 8 * rank)[0]
        last = "before its first op" if row == _NONE else f"its last op was {schedule.op(row)}"
        return RuntimeFault(f"rank {rank} died ({how}); {last}{f'; it said: {line}' * bool(line)}")

    def _halt(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()
        kill(self._processes)
        self._processes.clear()


def _end(processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """End the processes and remove the folder; called when the object is collected or Python ends."""
    import shutil

    kill(processes)
    processes.clear()
    shutil.rmtree(folder, ignore_errors=True)


class JoinedRanks:
    """The ranks that torchrun has started, of which this process is one: over gloo on CPUs, over NCCL on GPUs.

    (NCCL has been written without several GPUs to try it on.)

    Attributes:
        rank: of this process.

    Raises:
        OptPipeError: where torchrun has started another number of them.
    """

    def __init__(self, count: int, device: str) -> None:
        self.rank, self.device = torchrun_rank() or 0, device
        self.count = int(os.environ["WORLD_SIZE"])
        if self.count != count:
            raise OptPipeError(
                f"the schedule is for {count} devices, not {self.count} ranks: start as many, with"
                f" torchrun --nproc-per-node {count}"
            )

    def run(self, task: Job[Answer_co]) -> list[Answer_co]:
        """Do the part of this rank; the first one returns the results of all, by rank, the others nothing.

        Raises:
            OptPipeError: where there is no GPU for this rank.
            RuntimeFault: names the rank, the op and what went wrong.
        """
        # torchrun sets these variables
        take_device(self.device, int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
        if self.device == "cpu":
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // self.count))
        # what ranks agree on goes over gloo in any case; `transport.Nccl` makes its own groups
        dist.init_process_group("gloo", timeout=timedelta(seconds=START_S))
        result = task.perform(self.rank, lambda op: None)
        results: list[Any] = [None] * self.count
        dist.gather_object(result, None if self.rank else results)
        dist.barrier()
        dist.destroy_process_group()
        return [] if self.rank else results


class Progress:
    """A file to which a rank writes the op it has begun, to be read after its death."""

    def __init__(self, path: str | os.PathLike[str], rank: int) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._rank, self.schedule = rank, None

    def begin(self, schedule: Schedule | None) -> None:
        """Note the schedule of a new task; None: there is none."""
        self.schedule = schedule  # type: ignore[assignment]
        struct.pack_into("q", self._map, 8 * self._rank, _NONE)

    def __call__(self, op: Op) -> None:
        """Note that an op has begun."""
        if self.schedule is not None:
            struct.pack_into("q", self._map, 8 * self._rank, self.schedule.row(op))


def serve(parent: int, rank: int, ranks: int, port: int, pipe: int, progress: str) -> None:
    """Be a rank that `Ranks` has started: join the process group, then run tasks as they arrive.

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
    serve(int(starter), int(number), int(world), int(door), int(fd), path)
