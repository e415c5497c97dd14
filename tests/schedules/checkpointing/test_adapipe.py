"""AdaPipe's levels: the fastest of all choices that fit, and what is said where none does."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recompute_cases import profile
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, build, check, load_profile, simulate
from optpipe_sim.errors import OutOfMemory


@st.composite
def uneven(draw: st.DrawFn) -> CostProfile:
    """Two to four stages with up to two levels each."""
    number = st.integers(1, 30)
    stages = []
    for _ in range(draw(st.sampled_from([2, 3, 4]))):
        act = draw(st.integers(60, 100))
        levels = [
            {"name": name, "t_ns": draw(number), "keep_bytes": draw(st.integers(0, act))}
            for name in draw(st.sampled_from([[], ["a"], ["a", "b"]]))
        ]
        stage = {"t_f_ns": draw(number), "t_b_ns": draw(number), "t_w_ns": draw(number)}
        stages.append({**stage, "act_bytes": act, "w_bytes": 20, "recompute": levels})
    return load_profile({"name": "uneven", "devices": len(stages), "stages": stages})


@settings(max_examples=40)
@given(uneven(), st.integers(1, 5), st.integers(100, 400))
def test_no_other_choice_that_fits_is_faster(
    costs: CostProfile, microbatches: int, limit: int
) -> None:
    base = build("1f1b", costs, microbatches)
    names = [[None, *(level.name for level in cost.recompute)] for cost in costs.stages]
    best = None
    for levels in product(*names):
        recompute = {str(at): name for at, name in enumerate(levels) if name is not None}
        trace = simulate(base.replace(recompute=recompute), costs)
        if max(trace.peak_bytes) <= limit and (best is None or trace.makespan_ns < best):
            best = trace.makespan_ns
    try:
        schedule = build("adapipe", costs, microbatches, limit=limit)
    except OutOfMemory as error:
        assert best is None
        found = re.search(r"the least limit that works is (\d+)B", str(error))
        assert found
        least = int(found[1])
        rank = int(str(error).split(":")[0].removeprefix("device "))
        assert least > limit
        limits = tuple(least if at == rank else 10**6 for at in range(costs.devices))
        build("adapipe", costs, microbatches, limit=limits)
        return
    trace = simulate(schedule, costs, limit)
    assert max(trace.peak_bytes) <= limit
    assert trace.makespan_ns == best
    assert check(schedule, costs, limit) == []


def test_chunks_of_a_device_share_its_memory() -> None:
    """Rank 0 of 2 holds 3 activations of chunk 0 and 2 of chunk 1, of 100 bytes each. For 400 it
    suffices that one chunk keeps 60 of each; for 300 both would: with 20 to work in that is too much."""
    costs = profile(2, chunks=2)
    expected = {500: {}, 400: {"0": "light"}, 320: {"0": "light", "2": "light"}, 300: {"0": "full"}}
    for limit, recompute in expected.items():
        schedule = build("adapipe", costs, 8, limit=limit)
        assert schedule.recompute == recompute
        assert max(simulate(schedule, costs, limit).peak_bytes) <= limit


def test_without_levels_or_limit_it_is_1f1b() -> None:
    plain = unit_profile(3)
    assert build("adapipe:limit=1GiB", plain, 4) == build("1f1b", plain, 4)
    assert build("adapipe", profile(3), 4) == build("1f1b", profile(3), 4)
    with pytest.raises(OutOfMemory, match=r"device 0: no levels of recomputation make 1F1B fit"):
        build("adapipe:limit=20B", profile(3), 4)
