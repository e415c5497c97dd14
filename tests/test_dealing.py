"""How layers are dealt to stages and devices by what they cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optpipe_sim import simulate
from optpipe_sim.costs import estimate
from optpipe_sim.errors import ProfileError
from optpipe_sim.names import build
from optpipe_sim.profile.dealing import deal_layers
from optpipe_sim.schedule.shape import expand_placement
from optpipe_sim.solvers.layers.moved import counts_of

ENDS = st.floats(0, 3)
LAYERS = st.lists(st.sampled_from([1.0, 1.0, 1.5, 2.0, 3.0]), min_size=2, max_size=8)


def split(costs: list[float], first: float, last: float, stages: int) -> list[int]:
    return list(deal_layers(tuple(costs), first, last, tuple(range(stages))))


def device_times(
    counts: tuple[int, ...],
    costs: list[float],
    first: float,
    last: float,
    placement: tuple[int, ...],
) -> list[float]:
    times, at = [0.0] * (max(placement) + 1), 0
    for stage, count in enumerate(counts):
        ends = first * (stage == 0) + last * (stage == len(counts) - 1)
        times[placement[stage]] += sum(costs[at : at + count]) + ends
        at += count
    return times


def test_one_stage_per_device() -> None:
    assert split([1.0] * 22, 0.1, 0.6, 8) == [2, 3, 3, 3, 3, 3, 3, 2]
    assert split([1.0] * 22, 0.1, 1.2, 24) == [0] + [1] * 22 + [0]
    assert split([2.0, 2.0, 1.0, 1.0, 1.0, 1.0], 0.0, 0.0, 4) == [1, 1, 2, 2]
    counts = split([1.0] * 61, 0.05, 1.5, 16)
    assert (sum(counts), max(counts)) == (61, 4)
    with pytest.raises(ProfileError, match="at most 8 stages"):
        split([1.0] * 6, 0, 0, 9)


@given(LAYERS, ENDS, ENDS, st.data())
def test_the_longest_stage_is_as_short_as_possible(
    costs: list[float], first: float, last: float, data: st.DataObject
) -> None:
    stages = data.draw(st.integers(2, len(costs)))
    places = tuple(range(stages))
    borders = combinations(
        range(len(costs) + 1), stages - 1
    )  # the ends may have no layer, others have
    layouts = [
        tuple(b - a for a, b in zip((0, *cut), (*cut, len(costs)), strict=True)) for cut in borders
    ]
    best = min(max(device_times(counts, costs, first, last, places)) for counts in layouts)
    counts = deal_layers(tuple(costs), first, last, places)
    assert max(device_times(counts, costs, first, last, places)) == pytest.approx(best)


@given(LAYERS, ENDS, ENDS, st.integers(2, 3), st.sampled_from(["loop", "vee"]))
def test_several_stages_per_device_are_dealt_by_device(
    costs: list[float], first: float, last: float, devices: int, shape: str
) -> None:
    """No layout that moves one layer has a shorter busiest device, and no split by stages has either."""
    costs = costs * 2
    placement = expand_placement(shape, devices, 2)
    counts = deal_layers(tuple(costs), first, last, placement)
    assert sum(counts) == len(costs)
    assert min(counts[1:-1]) >= 1
    assert min(counts) >= 0
    busiest = max(device_times(counts, costs, first, last, placement))
    plain = deal_layers(tuple(costs), first, last, tuple(range(len(placement))))
    assert busiest <= max(device_times(plain, costs, first, last, placement)) + 1e-9
    for a in range(len(counts)):
        for b in range(len(counts)):
            moved = [*counts]
            moved[a] -= 1
            moved[b] += 1
            if min(moved[1:-1]) >= 1 and min(moved) >= 0:
                assert (
                    busiest <= max(device_times(tuple(moved), costs, first, last, placement)) + 1e-6
                )


DENSE: dict[str, Any] = {"model": "llama2-13b", "devices": 8}
SHARDED = {"model": "llama2-7b", "devices": 8, "dp": 4, "zero": 3}
SPARSE = {
    "model": "deepseek-v3",
    "devices": 64,
    "tp": 8,
}  # with experts and a layer for further tokens


@pytest.mark.parametrize("of", [DENSE, SHARDED, SPARSE])
@pytest.mark.parametrize(("chunks", "placement"), [(2, "loop"), (2, "vee"), (3, "loop")])
def test_other_chunks_are_those_of_an_estimate_with_them(
    of: dict[str, Any], chunks: int, placement: str
) -> None:
    one = estimate(machine="h100-sxm", seq=4096, **of)
    many = estimate(machine="h100-sxm", seq=4096, chunks=chunks, placement=placement, **of)
    cut = one.rechunk(chunks, placement)
    assert counts_of(cut) == counts_of(many)
    for ours, theirs in zip(cut.stages, many.stages, strict=True):
        assert ours.t_f_ns == pytest.approx(theirs.t_f_ns, abs=8)
        assert ours.t_b_ns == pytest.approx(theirs.t_b_ns, abs=8)
        assert ours.act_bytes == pytest.approx(theirs.act_bytes, abs=8)
        assert ours.static_bytes == pytest.approx(theirs.static_bytes, rel=1e-6)
        assert {one.name for one in ours.recompute} <= {one.name for one in theirs.recompute}
    back = cut.rechunk(1)
    assert [one.layers for one in back.stages] == [one.layers for one in one.stages]


def test_v_shapes_and_loops_are_faster_than_with_stages_of_equal_length() -> None:
    """13B on 8 devices: 40 layers in 16 stages, and a head of half a layer. Stages as alike as possible
    leave one device of a V with a layer more than the others."""
    given = estimate("llama2-13b", "h100-sxm", 8, seq=16384, execution="ideal")
    profile = replace(given, memory_limit=None)
    for name, chunks, placement, least in (
        ("zb-v", 2, "vee", 1.1),
        ("1f1b-i:chunks=4", 4, "loop", 1.0),
    ):
        dealt = profile.rechunk(chunks, placement)
        count, more = divmod(len(profile.items), len(dealt.stages))
        even = [count + (at < more) for at in range(len(dealt.stages))]
        alike = profile.with_layout(even, chunks, dealt.placement)
        times = [simulate(build(name, one, 32), one).iteration_ns for one in (dealt, alike)]
        assert times[1] > least * times[0]


def test_stages_that_are_not_what_their_items_add_up_to_divide_by_their_own_cost() -> None:
    given = estimate("llama2-7b", "h100-sxm", 4, seq=4096)
    slow = replace(given.stages[1], t_f_ns=2 * given.stages[1].t_f_ns)
    changed = replace(given, stages=(given.stages[0], slow, *given.stages[2:]))
    assert given.of_items
    assert not changed.of_items
    cut = changed.rechunk(2)
    assert sum(one.t_f_ns for one in cut.stages) == sum(one.t_f_ns for one in changed.stages)
    assert sum(one.t_f_ns for one in cut.stages[2:4]) == slow.t_f_ns


def test_other_speeds_deal_the_same_layers() -> None:
    given = estimate("llama2-7b", "h100-sxm", 4, seq=4096)
    scaled = given.scale(compute=1.25, memory=0.5)
    assert scaled.of_items
    assert counts_of(scaled.rechunk(3)) == counts_of(given.rechunk(3))


def test_as_many_chunks_as_there_are_layers_and_no_more() -> None:
    """DeepSeek-V3: 61 layers, the embedding, and a head with the layer for further tokens."""
    given = estimate("deepseek-v3", "h100-sxm", 16, tp=2, seq=4096)
    assert len(given.items) == 64
    assert given.most_chunks == 7
    assert len(given.rechunk(7).stages) == 56
    with pytest.raises(ProfileError, match=r"at most 63 stages.*at most 7 chunks per device"):
        given.rechunk(8)
