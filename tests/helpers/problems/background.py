"""Solvers in the background: a problem that takes long, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from unit_profiles import unit_profile

from optpipe_sim import CostProfile


def hard() -> CostProfile:
    """Two slots and copies that take longer than the compute: nothing proves this in seconds."""
    return unit_profile(8, offload={"t_offload_ms": 3.9, "t_reload_ms": 3.7}, t_comm_ms=0.3)


def until(true: Callable[[], Any], seconds: float = 40) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)
