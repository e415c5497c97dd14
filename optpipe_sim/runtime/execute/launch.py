"""Ranks: p processes of this machine over gloo that run tasks, and never outlive their parent; or those that torchrun
has started, of which this process is one.

One fresh Python loads torch, which takes longer than most tasks, and forks all ranks of this process (`forks`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import socket
import struct
import tempfile
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from ...errors import OptPipeError, RuntimeFault
from ...ops import Op
from ...processes.fresh import how_it_ended, kill, last_line, start_python
from ...processes.torchrun import torchrun_rank
from ...schedule import Schedule
from ..device import take_device
from . import forks
from .forks import NONE, ONE_THREAD, START_S, Wanted, log_of

GRACE_S = 3.0  # from the first fault until those of all ranks are collected
_DEAD = object()  # the answer of a rank that has died
Answer_co = TypeVar("Answer_co", covariant=True)


class Job(Protocol[Answer_co]):
    """A task for ranks; it has to be picklable, as has its result."""

    @property
    def schedule(self) -> Schedule:
        """The schedule to start with; it gives the number of ranks, and the names of ops in error messages."""

    def perform(self, rank: int, begun: Callable[[Op], None]) -> Answer_co:
        """Run the part of one rank, which reports every op that it begins."""


class _ForkServer:
    """The process that forks the ranks of this one (`forks.serve_forks`), and ends with it.

    Attributes:
        door: each `Ranks` that starts sends a pipe of its own over it.
        loaded: whether it has loaded torch and forked ranks.
    """

    def __init__(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.door, theirs = Pipe()
        self.loaded = False
        self.process = start_python(
            forks.__name__,
            [theirs.fileno()],
            self.log,
            stdout=self.log,
            pass_fds=[theirs.fileno()],
            environment=ONE_THREAD,
        )
        theirs.close()

    def end(self) -> None:
        """End it; where it still loads torch, by force."""
        self.door.close()
        kill([self.process], after_s=START_S if self.loaded else 0.0)


_SERVERS: list[_ForkServer] = []  # one, or none


def _fork_server() -> _ForkServer:
    """Return the one of this process; start it where none runs."""
    if not _SERVERS or _SERVERS[0].process.poll() is not None:
        _SERVERS[:] = [_ForkServer()]
    return _SERVERS[0]


def _end_all(these: list[Any]) -> None:
    while these:
        these.pop().end()


atexit.register(_end_all, _SERVERS)


@dataclass
class _Started:
    """The ranks of a `Ranks`, and what the fork server has told of them.

    Attributes:
        control: brings the process of each rank, then (rank, exit status) of each that ends; a message to the fork
            server, or closing it, ends all of them.
        pipes: to each rank, for tasks and results.
    """

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
        for pipe in self.pipes:
            pipe.close()
        with contextlib.suppress(EOFError, OSError):
            self.control.send("end")
            while self.pids and self.control.poll(START_S):
                self.control.recv()
        self.control.close()


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
            self._log_began = [log_of(self._folder, rank).stat().st_size for rank in range(devices)]
            for rank, pipe in enumerate(self._started[0].pipes):
                try:
                    pipe.send_bytes(pickle.dumps(task))
                except OSError:
                    raise self._died(rank, task.schedule) from None
            return self._gather(task.schedule)
        except BaseException:
            _end_all(self._started)
            raise

    def close(self) -> None:
        """End all ranks."""
        self._finalizer()

    def _start(self, module: str) -> None:
        """Start the ranks; `module`: of the task that they start with."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (self._folder / "ops").write_bytes(struct.pack("q", NONE) * self.count)
        for rank in range(self.count):
            log_of(self._folder, rank).write_bytes(b"")
        ours, theirs = zip(*(Pipe() for _ in range(self.count + 1)), strict=True)
        control, *pipes = ours
        started = _Started(control, pipes)
        self._started.append(started)
        server = _fork_server()
        try:
            send_handle(server.door, theirs[0].fileno(), server.process.pid)
            control.send(Wanted(self.count, module, self._folder, port))
            for pipe in theirs[1:]:
                send_handle(control, pipe.fileno(), server.process.pid)
            for pipe in theirs:
                pipe.close()
            started.pids += control.recv()
            server.loaded = True
        except (EOFError, OSError):
            how = how_it_ended(server.process.wait())
            server.log.seek(0)
            line = last_line(server.log.read())
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
        line = last_line(log_of(self._folder, rank).read_bytes()[self._log_began[rank] :])
        with (self._folder / "ops").open("rb") as file:
            row = struct.unpack_from("q", file.read(), 8 * rank)[0]
        last = "before its first op" if row == NONE else f"its last op was {schedule.op(row)}"
        return RuntimeFault(f"rank {rank} died ({how}); {last}{f'; it said: {line}' * bool(line)}")


def _end(started: list[_Started], folder: Path) -> None:
    """End the ranks and remove the folder; called when the object is collected or Python ends."""
    import shutil

    _end_all(started)
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
