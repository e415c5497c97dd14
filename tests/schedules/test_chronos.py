"""The order that we read into ChronosPipe's abstract: what it costs and what it holds, in closed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit_profiles import UNIT, unit_profile

from optpipe_sim import build, check, simulate
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.ops import F, Op
from optpipe_sim.solvers.fixed import published

FULL = {"name": "full", "t_ms": 1, "keep_bytes": 10}


@given(p=st.integers(2, 12), v=st.integers(2, 4), rounds=st.integers(1, 3))
def test_equal_stages_have_the_bubble_of_1f1b(p: int, v: int, rounds: int) -> None:
    """The first microbatch comes back when it does in 1F1B, and from then on no device waits."""
    m = p * rounds
    profile = unit_profile(p, v)
    schedule = build("chronos", profile, m)
    assert check(schedule, profile) == []
    makespan = simulate(schedule, profile).makespan_ns
    assert makespan == simulate(build("1f1b", profile, m), profile).makespan_ns


@given(p=st.integers(2, 24), v=st.integers(2, 4))
def test_what_is_held_tends_to_half_of_1f1b(p: int, v: int) -> None:
    """A chunk waits at most v turns of three slots for a free one, there and back; the rest is the way, 3 p slots per chunk."""
    m = 4 * p
    profile = unit_profile(p, v)
    held = max(simulate(build("chronos", profile, m), profile).peak_bytes) / 100
    chunk_activations = p * (v + 1) / 2
    assert chunk_activations <= held <= chunk_activations + v * (v + 1) / 2
    assert max(simulate(build("1f1b", profile, m), profile).peak_bytes) == 100 * p * v


def test_a_microbatch_goes_straight_through() -> None:
    """Where 1F1B-I runs the forwards of a whole group before it returns to the first one, here the second chunk comes at once."""
    profile = unit_profile(8, 2)

    def between(name: str) -> int:
        trace = simulate(build(name, profile, 32), profile)
        first, second = (trace.schedule.row(Op(F, stage, 16)) for stage in (0, 8))
        return int(trace.start_ns[second] - trace.start_ns[first]) // 1_000_000

    assert between("chronos") < 8 + 3 < between("1f1b-i")


def test_recomputation_of_the_first_chunks_leaves_what_lives_short() -> None:
    profile = unit_profile(8, 2, stages={**UNIT, "recompute": [FULL]})
    kept = simulate(build("chronos", profile, 32), profile)
    half = simulate(build("chronos:recomputed=1", profile, 32), profile)
    assert half.schedule.levels.names
    assert max(half.peak_bytes) < max(kept.peak_bytes) / 2
    every = simulate(build("chronos:recomputed=2", profile, 32), profile)
    assert max(every.peak_bytes) < max(half.peak_bytes)
    assert half.makespan_ns < every.makespan_ns
    named = build("chronos:recomputed=1,level=full", profile, 32)
    assert named.levels.table.tolist() == half.schedule.levels.table.tolist()


def test_options_outside_the_profile_are_refused() -> None:
    profile = unit_profile(4, 2)
    with pytest.raises(
        InvalidSchedule, match="recomputed: expected a number of chunks from 0 to 2"
    ):
        build("chronos:recomputed=3", profile, 4)
    with pytest.raises(InvalidSchedule, match="no such level"):
        build("chronos:recomputed=1,level=full", profile, 4)


def test_no_search_tries_it() -> None:
    assert "chronos" not in published(unit_profile(4, 2), 8)
