"""Ranks: p processes of this machine over gloo that run tasks, and never outlive their parent; or those that torchrun
has started, of which this process is one.

One fresh Python loads torch and what the first task needs, which takes longer than most tasks, and forks the ranks.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import multiprocessing
import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from ...compiled import njit
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


@dataclass
class _Started:
    """The process that has forked the ranks, and what it has told of them.

    Attributes:
        control: it sends the process of each rank, then (rank, exit status) of each that ends; once this end is
            closed it ends all of them, and itself.
        pipes: to each rank, for tasks and results.
    """

    process: subprocess.Popen[bytes]
    control: Connection
    pipes: list[Connection]
    pids: list[int] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)

    def status(self, rank: int, within_s: float) -> int | None:
        """Return the exit status of a rank, None where it has not ended within some seconds."""
        ends = time.monotonic() + within_s
        with contextlib.suppress(EOFError, OSError):
            while rank not in self.ended and self.control.poll(max(0.0, ends - time.monotonic())):
                self.ended.update([self.control.recv()])
        return self.ended.get(rank)

    def end(self) -> None:
        """End all ranks, and wait for that."""
        for pipe in (*self.pipes, self.control):
            pipe.close()
        # it may still load torch; or else it ends its ranks first
        kill([self.process], after_s=START_S if self.pids else 0.0)


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
        self._started: list[_Started] = []  # one, or none
        self._folder = Path(tempfile.mkdtemp(prefix="optpipe-ranks-"))
        self._log_began = [0] * count  # bytes in the log of each rank when its job began
        self._finalizer = weakref.finalize(self, _end, self._started, self._folder)

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
        return [pid for started in self._started for pid in started.pids]

    def run(self, task: Job[Answer_co]) -> list[Answer_co]:
        """Have all ranks do a task; return their results by rank.

        Raises:
            RuntimeFault: names the rank that failed or died, and its last op.
        """
        devices = task.schedule.shape.devices
        if devices != self.count:
            raise OptPipeError(f"the schedule is for {devices} devices, not {self.count} ranks")
        try:
            if not self._started:
                self._start(type(task).__module__)
            # the last line that a rank has printed says why it died, if it is of this job
            self._log_began = [_log(self._folder, rank).stat().st_size for rank in range(devices)]
            for rank, pipe in enumerate(self._started[0].pipes):
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
        self._finalizer()

    def _start(self, module: str) -> None:
        """Start the ranks; `module`: of the task that they start with."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (self._folder / "ops").write_bytes(struct.pack("q", _NONE) * self.count)
        for rank in range(self.count):
            _log(self._folder, rank).write_bytes(b"")
        ours, theirs = zip(*(Pipe() for _ in range(self.count + 1)), strict=True)
        said = self._folder / "start.log"
        with said.open("wb") as log:
            process = start_python(
                __name__,
                (port, module, self._folder, *(pipe.fileno() for pipe in theirs)),
                log,
                stdout=log,
                pass_fds=[pipe.fileno() for pipe in theirs],
                environment={"OMP_NUM_THREADS": "1"},
            )
        for pipe in theirs:
            pipe.close()
        control, *pipes = ours
        started = _Started(process, control, pipes)
        self._started.append(started)
        try:
            started.pids += control.recv()
        except (EOFError, OSError):
            how, line = how_it_ended(process.wait()), last_line(said)
            raise RuntimeFault(
                f"ranks: cannot be started ({how}){f'; it said: {line}' * bool(line)}"
            ) from None

    def _gather(self, schedule: Schedule) -> list[Any]:
        """Return what all ranks answer, or raise the fault that explains the others."""
        answers: dict[int, Any] = {}
        ends = float("inf")
        pipes = self._started[0].pipes
        while len(answers) < self.count and time.monotonic() < ends:
            waiting = {pipe: at for at, pipe in enumerate(pipes) if at not in answers}
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
        how = how_it_ended(self._started[0].status(rank, GRACE_S))
        line = last_line(_log(self._folder, rank), self._log_began[rank])
        with (self._folder / "ops").open("rb") as file:
            row = struct.unpack_from("q", file.read(), 8 * rank)[0]
        last = "before its first op" if row == _NONE else f"its last op was {schedule.op(row)}"
        return RuntimeFault(f"rank {rank} died ({how}); {last}{f'; it said: {line}' * bool(line)}")

    def _halt(self) -> None:
        while self._started:
            self._started.pop().end()


def _log(folder: Path, rank: int) -> Path:
    """Return the file that a rank prints to."""
    return folder / f"{rank}.log"


def _end(started: list[_Started], folder: Path) -> None:
    """End the ranks and remove the folder; called when the object is collected or Python ends."""
    import shutil

    while started:
        started.pop().end()
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


def start(port: int, module: str, folder: Path, files: Sequence[int]) -> None:
    """Load what ranks need, fork them, and report how each ends; end those that are left once the caller has gone.

    Args:
        module: of the first task.
        files: descriptors of the pipe to the caller, then of that of each rank.
    """
    pipes: list[Connection] = [Connection(file) for file in files]
    control, count = pipes[0], len(pipes) - 1
    with contextlib.suppress(ImportError):  # the rank that needs it says so
        importlib.import_module(module)
    if njit is not None:  # numba reads its tables with the first function, for half a second
        njit(lambda: None)()
    forked = multiprocessing.get_context("fork")
    ranks = [
        forked.Process(target=serve, args=(os.getpid(), rank, port, pipes, folder))
        for rank in range(count)
    ]
    for rank in ranks:
        rank.start()
    for pipe in pipes[1:]:  # or none would end with its rank
        pipe.close()
    with contextlib.suppress(OSError):  # the caller has gone
        control.send([rank.pid for rank in ranks])
        alive: dict[Any, int] = {rank.sentinel: at for at, rank in enumerate(ranks)}
        while control not in (ready := wait([control, *alive])):
            for at in [alive.pop(sentinel) for sentinel in ready]:
                ranks[at].join()
                control.send((at, ranks[at].exitcode))
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.join()


def serve(parent: int, rank: int, port: int, pipes: Sequence[Connection], folder: Path) -> None:
    """Be a rank that `start` has forked: join the process group, then run tasks as they arrive.

    Args:
        parent: the process that forked this one; it may have exited since.
        pipes: of that process, then of each rank.
    """
    log = os.open(_log(folder, rank), os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    leave_with_parent(parent, _leave)  # also while a task runs
    torch.set_num_threads(1)
    connection = pipes[1 + rank]
    for pipe in pipes:  # or none would end with its process
        if pipe is not connection:
            pipe.close()
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=len(pipes) - 1,
        timeout=timedelta(seconds=START_S),
    )
    begun = Progress(folder / "ops", rank)
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
    door, first, place, *descriptors = sys.argv[1:]
    start(int(door), first, Path(place), list(map(int, descriptors)))
