"""See whether a process runs, exit with the parent process, and control which process receives which signal."""

from __future__ import annotations

import enum
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

POLL_S = 0.5  # between two checks that the parent is alive
LATER_S = 0.002
JOIN_S = 0.1  # not for ever: the main thread may have been interrupted where it holds what a thread needs to end
# Python code that is called from C: numpy looks attributes up, numba reads what it returns with, LLVM has compiled
LOSING = (
    enum.__file__,
    os.path.join("numba", "core", "serialize.py"),
    os.path.join("llvmlite", "binding", "executionengine.py"),
)


def is_running(pid: int) -> bool:
    """Whether there is a process with this id, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it exists, and belongs to another user
        return True
    return True


def leave_with_parent(
    parent: int,
    leave: Callable[[], object] = lambda: os._exit(1),
    wait: Callable[[float], bool] | None = None,
) -> None:
    """Make this process exit once its parent has exited; a thread watches it.

    Args:
        parent: the process id of the parent.
        leave: called then.
        wait: waits for the given seconds and returns whether the parent has asked this process to leave.
    """
    asked_to_leave = wait or threading.Event().wait

    def watch() -> None:
        while os.getppid() == parent and not asked_to_leave(POLL_S):
            pass
        leave()

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def ctrl_c_arrives() -> Iterator[None]:
    """In the block Ctrl-C is never lost: where it would be raised into compiled code that drops it, or makes a
    SystemError of it, it comes a moment later. Of 1200 that were sent to replays, 70 and 40 were."""
    main = threading.current_thread()
    if main is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield  # another thread receives it, or another handler answers it
        return

    waiting: list[threading.Timer] = []  # on a busy machine the one before may be late
    due_s = 0.0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal due_s
        if not _within(frame, LOSING):
            _cancel(waiting)
            raise KeyboardInterrupt
        if time.monotonic() >= due_s:  # it may have come while this function put it off
            due_s = time.monotonic() + LATER_S
            later = threading.Timer(LATER_S, signal.pthread_kill, (main.ident, number))
            later.daemon = True
            waiting.append(later)
            later.start()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _cancel(timers: list[threading.Timer]) -> None:
    """None of them sends a signal after this; one that has begun to, sends it now."""
    for timer in timers:
        timer.cancel()
    for timer in timers:
        if timer.is_alive():
            timer.join(JOIN_S)


def _within(frame: FrameType | None, files: tuple[str, ...]) -> bool:
    """Whether a frame, or one that called it, is of code in such files."""
    while frame is not None and not frame.f_code.co_filename.endswith(files):
        frame = frame.f_back
    return frame is not None


@contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives it
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """In the block SIGTERM, which job schedulers send before they kill, is what Ctrl-C is: an interrupt that the
    block may answer, and that leaves no process or file behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextmanager
def ctrl_c_for_caller() -> Iterator[None]:
    """Processes started in the block ignore Ctrl-C, which a terminal sends to all of them: the caller
    ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
