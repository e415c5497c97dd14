"""Kimi K2's order and copies."""

from __future__ import annotations

from itertools import pairwise

import pytest
from unit_profiles import unit_profile

from optpipe_sim import build, check, simulate
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.ops import B, F, O, Op, Pair, R, W

COPIES = {"t_offload_ms": 0.5, "t_reload_ms": 0.5}


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 12)])
def test_the_order_is_interleaved_1f1b_in_pairs_with_w_behind(p: int, v: int, m: int) -> None:
    profile = unit_profile(p, v, offload=COPIES, pair_hidden_ms=0.5)
    schedule = build(f"kimi-k2:chunks={v}", profile, m)
    assert check(schedule, profile) == []
    base = build(f"1f1b-i:chunks={v},pairs=yes", profile, m)
    for mine, theirs in zip(schedule.programs, base.programs, strict=True):
        entries = [one for one in mine if isinstance(one, Pair) or one.kind in (F, B)]
        assert [str(one) for one in entries] == [str(one).replace("BW", "B") for one in theirs]
        computes = [one for one in mine if isinstance(one, Pair) or one.kind not in (O, R)]
        for one, behind in pairwise(computes):
            back = one.backward if isinstance(one, Pair) else one
            if back.kind is B:
                assert behind == back._replace(kind=W)


def test_each_entry_hides_a_copy_out_and_a_copy_back() -> None:
    """The activation of the forward before leaves, and that of the next backward comes back."""
    profile = unit_profile(4, 2, offload=COPIES, pair_hidden_ms=0.5)
    schedule = build("kimi-k2", profile, 8)
    moved = 0
    for program in schedule.programs:
        entries = [one for one in program if isinstance(one, Pair) or one.kind in (F, B)]
        backs = [one.backward if isinstance(one, Pair) else one for one in entries]
        forwards = [one.forward if isinstance(one, Pair) else one for one in entries]
        at = -1
        for one in program:
            if one in entries:
                at = entries.index(one)
            elif isinstance(one, Op) and one.kind is O:
                assert one[1:] == forwards[at][1:]
                moved += 1
            elif isinstance(one, Op) and one.kind is R:
                assert one[1:] == backs[at + 1][1:]
        for back in backs:
            if isinstance(back, Op) and back.kind is B:
                begun = next(i for i, one in enumerate(forwards) if one == back._replace(kind=F))
                away = schedule.row(back._replace(kind=O)) >= 0
                assert away is (backs.index(back) - begun >= 3)
    assert moved > schedule.shape.stages * schedule.shape.microbatches / 2


def test_copies_that_fit_their_entries_cost_nothing_and_halve_what_is_held() -> None:
    profile = unit_profile(4, 2, offload=COPIES, pair_hidden_ms=0.5)
    trace = simulate(build("kimi-k2", profile, 16), profile)
    free = simulate(build("1f1b-i:chunks=2,pairs=yes", profile, 16), profile)
    kept = trace.schedule.only(~trace.schedule.is_transfer, link_order={})
    assert trace.makespan_ns == simulate(kept, profile).makespan_ns
    assert max(trace.peak_bytes) < max(free.peak_bytes) / 2


def test_it_is_nothing_without_a_link() -> None:
    with pytest.raises(InvalidSchedule, match="offload"):
        build("kimi-k2", unit_profile(4, 2), 8)
    without = build("kimi-k2", unit_profile(4, 2, offload=COPIES), 8)
    assert not without.has_pairs  # the profile says of none what it hides
