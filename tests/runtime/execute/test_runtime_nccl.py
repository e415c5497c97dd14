"""Messages over NCCL hang for no schedule: on a model of it that blocks wherever NCCL may."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from lowered_cases import lowered_cases
from nccl_model import hang
from unit_profiles import unit_profile

from optpipe_sim import build
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.runtime.execute.nccl import directed_pairs
from optpipe_sim.runtime.program.program import Program, linear_programs
from optpipe_sim.schedules import REGISTRY
from optpipe_sim.sim.lower import lower


def programs_of(name: str, devices: int, microbatches: int) -> tuple[Program, ...]:
    """The programs of a named schedule; offloads cost as much as ops."""
    copies = {"t_offload_ms": 1, "t_reload_ms": 1}
    limit = 100 * max(3, devices)
    profile = unit_profile(devices, offload=copies, memory_limit_bytes=limit)
    schedule = build(name, profile, microbatches)
    return linear_programs(lower(schedule, replace(profile, memory_limit=None)))


@pytest.mark.parametrize("name", REGISTRY)
def test_no_named_schedule_hangs(name: str) -> None:
    tried = 0
    for devices in (2, 3, 4, 8):
        for microbatches in (*range(1, 10), 16):
            try:
                programs = programs_of(name, devices, microbatches)
            except InvalidSchedule:  # some patterns ask for multiples
                continue
            tried += 1
            stuck = hang(programs, directed_pairs(programs))
            assert stuck is None, (devices, microbatches, stuck)
    assert tried > 10


@pytest.mark.parametrize(
    ("name", "devices", "microbatches"),
    [("1f1b", 4, 1), ("zb-v", 8, 1), ("po-h", 2, 8), ("po-f", 2, 16), ("v-min", 8, 1)],
)
def test_without_a_first_exchange_they_would(name: str, devices: int, microbatches: int) -> None:
    """The model can tell: communicators that are made as they are met hang."""
    assert "rank 0 at" in (hang(programs_of(name, devices, microbatches)) or "")


@given(lowered_cases())
def test_no_other_schedule_hangs_either(lowered) -> None:
    programs = linear_programs(lowered)
    assert hang(programs, directed_pairs(programs)) is None


def test_an_order_that_ranks_do_not_share_hangs() -> None:
    """The first exchange is safe for its order is the same on all ranks."""
    programs = programs_of("1f1b", 4, 8)
    pairs = directed_pairs(programs)
    assert pairs == sorted(pairs)
    assert hang(programs, pairs) is None
    assert "rank 1 at" in (hang(programs, pairs, backwards=(1,)) or "")
