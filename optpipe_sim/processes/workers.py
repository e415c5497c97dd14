"""Workers: functions in forked processes, which exchange messages with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from .fresh import how_it_ended
from .signals import ctrl_c_later, leave_with_parent

STOP_S = 1.0  # time that a worker which was asked to end has until it is killed
POLL_S = 0.05  # between two calls of `idle`
Report = Callable[..., None]  # sends its arguments as a message
Newest = Callable[[], Any]  # the last message since the last call, or None


class Workers:
    """Run functions, each in a process of its own.

        workers = Workers()
        try:
            workers.start(calls)
            for number, message in workers.messages(is_over):
                workers.send_to_others(number, value)
        finally:
            died = workers.end()

    A call is a function of (report, newest): it sends messages with the first, and gets the last
    message sent to it from the second. A process that dies affects no other one.
    """

    def __init__(self) -> None:
        self._processes: list[Any] = []
        self._inboxes: list[Connection] = []
        self._outboxes: list[_Outbox] = []
        self._exited: set[int] = set()

    def start(self, calls: Sequence[Callable[[Report, Newest], None]]) -> None:
        """Start a process for each call."""
        pipes: list[Connection] = []
        try:
            with (
                ctrl_c_later()
            ):  # while a process is forked Python drops the exception it would raise
                for call in calls:
                    ours, theirs = _context().Pipe(duplex=False)
                    incoming, outgoing = _context().Pipe(duplex=False)
                    process = _context().Process(
                        target=_work, args=(os.getpid(), theirs, incoming, call), daemon=True
                    )
                    process.start()
                    for pipe in (theirs, incoming):  # or what it has would not end with it
                        pipe.close()
                    self._processes.append(process)
                    self._inboxes.append(ours)
                    pipes.append(outgoing)
        finally:
            # their threads start after the last fork
            self._outboxes += map(_Outbox, pipes)

    def messages(
        self, is_over: Callable[[], bool], idle: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield (worker, message) until it is over or all workers have exited.

        Args:
            idle: called at intervals while no message arrives.
        """
        while len(self._exited) < len(self._processes) and not is_over():
            running = [n for n in range(len(self._processes)) if n not in self._exited]
            ready = wait([self._inboxes[number] for number in running], POLL_S)
            if not ready:
                idle()
            for number in running:
                if self._inboxes[number] not in ready:
                    continue
                try:
                    message = self._inboxes[number].recv()
                except (EOFError, OSError):  # also in the middle of a message
                    self._exited.add(number)
                    continue
                yield number, message

    def send_to_others(self, number: int, message: object) -> None:
        """Send a message to all workers but one, without waiting for any of them."""
        for other, outbox in enumerate(self._outboxes):
            if other != number and other not in self._exited:
                outbox.put(message)

    def end(self) -> dict[int, str]:
        """End all workers, by force if necessary; returns how those that were not asked to end have died."""
        died = {}
        for number, process in enumerate(self._processes):
            if number not in self._exited:
                process.terminate()
        for number, process in enumerate(self._processes):
            process.join(STOP_S)
            if process.exitcode is None:
                process.kill()
                process.join()
            elif number in self._exited and process.exitcode:
                how = how_it_ended(process.exitcode)
                died[number] = (
                    f"its process {'was' if process.exitcode < 0 else 'ended with'} {how}"
                )
        for pipe in self._inboxes:
            pipe.close()
        for outbox in self._outboxes:
            outbox.close()
        return died


class _Outbox:
    """Send a worker the newest message without making the sender wait."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.waiting: queue.Queue[tuple[Any] | None] = queue.Queue()
        self.thread = threading.Thread(target=self._send, daemon=True)
        self.thread.start()

    def put(self, message: object) -> None:
        self.waiting.put((message,))

    def close(self) -> None:
        """Close the outbox, once the process has ended."""
        self.waiting.put(None)
        self.thread.join()
        self.pipe.close()

    def _send(self) -> None:
        while (entry := self.waiting.get()) is not None:
            if self.waiting.empty():  # otherwise there is a newer one
                try:
                    self.pipe.send(entry[0])
                except OSError:  # the process has ended
                    return


def _work(
    parent: int, outbox: Connection, inbox: Connection, call: Callable[[Report, Newest], None]
) -> None:
    """The main function of a worker."""
    lock = threading.Lock()  # several threads may report

    def report(*message: Any) -> None:
        with lock:
            outbox.send(message)

    def newest() -> Any:
        last = None
        while inbox.poll():
            last = inbox.recv()
        return last

    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handlers of the caller
        signal.signal(signal.SIGINT, signal.default_int_handler)
        leave_with_parent(parent)
        call(report, newest)
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        pass  # the parent keeps what it has


def _context() -> Any:
    return multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")


def shared_numbers(values: Sequence[int]) -> Any:
    """Return an array of integers shared by a process and the workers it starts; its lock is
    `get_lock`."""
    return _context().Array("q", list(values))


def next_places(shared: Any, count: int) -> Iterator[int]:
    """Yield places below `count` that no other worker has taken; the last of the `shared_numbers` is the next one."""
    while True:
        with shared.get_lock():
            place = shared[-1]
            shared[-1] += 1
        if place >= count:
            return
        yield place


def run_all(functions: Sequence[Callable[..., None]], *arguments: object) -> None:
    """Run functions at the same time, each in a process of its own, until all have ended. Where the
    caller is interrupted or killed, they end, too."""
    processes = [
        _context().Process(target=_run, args=(os.getpid(), each, arguments)) for each in functions
    ]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()


def _run(parent: int, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handlers of the caller
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the caller as well
    leave_with_parent(parent)
    function(*arguments)
