from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from optpipe_sim import CostProfile, load_profile

# one setting for all: machines differ, so no deadline per example
settings.register_profile(
    "project", deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("project")

# a run in the background may have been told to ignore Ctrl-C, which some tests send
signal.signal(signal.SIGINT, signal.default_int_handler)


def unit_profile(devices: int, chunks: int = 1, **changes: Any) -> CostProfile:
    """F = B = W = 1 ms per *chunk*, no communication, 100 bytes per activation, half of it for W."""
    data: dict[str, Any] = {
        "name": "unit",
        "devices": devices,
        "chunks": chunks,
        "stages": {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50},
    }
    return load_profile({**data, **changes})


@pytest.fixture
def unit():
    return unit_profile
