"""Ctrl-C is never lost, wherever it comes."""

from __future__ import annotations

import enum
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from optpipe_sim.cli import main
from optpipe_sim.processes.signals import LATER_S, LOSING, ctrl_c_arrives

DROPPING = """
def call():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100): pass  # signals are answered between two steps
    except KeyboardInterrupt:
        dropped.append(1)
"""


def _then_wait(call: Callable[[], object], seconds: float = 5) -> None:
    """Call, and wait in steps: a signal just before a sleep does not end it."""
    call()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.parametrize("path", [LOSING[0], *(f"/site-packages/{path}" for path in LOSING[1:])])
def test_ctrl_c_comes_later_where_it_would_be_dropped(path: str) -> None:
    """The function stands for enum's, numba's and llvmlite's, whose C callers drop what they raise."""
    names: dict[str, object] = {"os": os, "signal": signal, "dropped": (dropped := [])}
    exec(compile(DROPPING, path, "exec"), names)
    call = names["call"]
    assert callable(call)
    call()
    assert dropped  # without the block
    dropped.clear()
    with pytest.raises(KeyboardInterrupt), ctrl_c_arrives():
        _then_wait(call)
    assert not dropped
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("after_s", [0, LATER_S, 2 * LATER_S])
def test_two_that_come_where_they_would_be_dropped_are_one(after_s: float) -> None:
    """The second would end what the first lets be written; it may come while the first is put off, or when that is over."""
    text = DROPPING.replace("signal.SIGINT)", "signal.SIGINT)\n        inner()", 1)
    names: dict[str, object] = {"os": os, "signal": signal, "dropped": (dropped := [])}
    names["inner"] = lambda: time.sleep(after_s) or os.kill(os.getpid(), signal.SIGINT)
    exec(compile(text, enum.__file__, "exec"), names)
    call = names["call"]
    assert callable(call)
    with pytest.raises(KeyboardInterrupt), ctrl_c_arrives():
        _then_wait(call)
    assert not dropped
    time.sleep(0.02)  # no other comes


def test_ctrl_c_comes_at_once_elsewhere() -> None:
    with pytest.raises(KeyboardInterrupt), ctrl_c_arrives():
        _then_wait(lambda: os.kill(os.getpid(), signal.SIGINT))


def test_a_program_that_ignores_ctrl_c_goes_on_to() -> None:
    """As one that a shell runs in the background does."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ctrl_c_arrives():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with suppress(SystemExit):
            main(["--help"])
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
