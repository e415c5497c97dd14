"""Stages that say their layers divide only between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SEEDS, profiles
from unit_profiles import unit_profile

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.costs import estimate
from optpipe_sim.errors import InvalidSchedule, ProfileError
from optpipe_sim.profile import CostProfile
from optpipe_sim.profile.parts import deal, divide, evenly, merge
from optpipe_sim.profile_io import profile_to_json, save_profile
from optpipe_sim.stage_cost import StageCost

ROOT = Path(__file__).parents[1]
ADDED = ("t_f_ns", "t_b_ns", "t_w_ns", "fused_ns", "act_bytes", "w_bytes", "offloadable", "static_bytes", "layers")  # fmt: skip


def stage(layers: int | None, **numbers: int) -> StageCost:
    usual = {"t_f_ns": 70, "t_b_ns": 80, "t_w_ns": 33, "act_bytes": 50, "w_bytes": 49}
    return StageCost(**{**usual, "layers": layers, **numbers})  # type: ignore[arg-type]


def test_a_stage_divides_between_its_layers_the_first_parts_get_one_more() -> None:
    five = stage(5, t_f_ns=103, t_b_ns=10, t_w_ns=1, act_bytes=11, w_bytes=11, static_bytes=7)
    parts = divide(five, 3)
    assert [part.layers for part in parts] == [2, 2, 1]
    # floor(n * k / 5), what remains of the whole to the first
    assert [part.t_f_ns for part in parts] == [103 - 41 - 20, 41, 20]
    assert [part.t_b_ns for part in parts] == [4, 4, 2]
    assert [part.t_w_ns for part in parts] == [1, 0, 0]
    assert [part.act_bytes for part in parts] == [5, 4, 2]
    assert [part.w_bytes for part in parts] == [5, 4, 2]
    assert [part.static_bytes for part in parts] == [4, 2, 1]
    assert merge(parts) == five


def test_equal_shares_of_layers_are_those_of_a_stage_without() -> None:
    six, none = stage(6), stage(None)
    assert [replace(part, layers=None) for part in divide(six, 3)] == divide(none, 3)
    assert [part.layers for part in divide(six, 3)] == [2, 2, 2]
    assert divide(six, 1) == [six]


def test_no_more_parts_than_layers() -> None:
    with pytest.raises(ProfileError, match=r"a stage of 3 layers .* 4 chunks: .* at most 3"):
        divide(stage(3), 4)
    with pytest.raises(ProfileError, match="a stage of 1 layer cannot be divided into 2 chunks"):
        divide(stage(1), 2)
    with pytest.raises(ProfileError, match="a stage of 4 ns cannot be divided into 3 chunks"):
        divide(stage(5, t_f_ns=4), 3)  # a fifth of 4 ns


def test_merging_adds_layers_up_and_a_stage_without_takes_them_away() -> None:
    assert merge([stage(3), stage(2)]).layers == 5
    assert merge([stage(3), stage(None)]).layers is None


def test_rechunking_with_layers() -> None:
    uneven = unit_profile(2, stages=[{**UNIT, "layers": 3}, {**UNIT, "layers": 4}])
    assert uneven.most_chunks == 3
    assert [cost.layers for cost in uneven.rechunk(2).stages] == [2, 1, 2, 2]
    assert [cost.layers for cost in uneven.rechunk(3).stages] == [1, 1, 1, 2, 1, 1]
    assert uneven.rechunk(3).rechunk(1) == uneven
    with pytest.raises(
        ProfileError,
        match=r"stages\[0\]: a stage of 3 layers .*; the layers of .* make at most 3 chunks per device",
    ):
        uneven.rechunk(4)
    # from 3 to 2 chunks: cut where the new stages begin, so that single layers serve as well
    ones = unit_profile(2, 3, stages={**UNIT, "layers": 1})
    assert ones.most_chunks == 3
    assert [cost.layers for cost in ones.rechunk(2).stages] == [1, 2, 2, 1]
    assert [cost.t_f_ns for cost in ones.rechunk(2).stages] == [60, 120, 120, 60]
    cut = unit_profile(1, 3, stages={**UNIT, "layers": 3})
    assert [cost.layers for cost in cut.rechunk(2).stages] == [5, 4]
    assert [cost.t_f_ns for cost in cut.rechunk(2).stages] == [100, 80]
    assert [cost.layers for cost in cut.rechunk(9).stages] == [1] * 9
    some = unit_profile(1, 2, stages=[UNIT, {**UNIT, "layers": 2}])
    assert some.most_chunks == 4
    assert [cost.layers for cost in some.rechunk(4).stages] == [None, None, 1, 1]
    assert unit_profile(2).most_chunks is None


def test_chunks_are_dealt_so_that_devices_are_as_equal_as_layers_allow() -> None:
    """Four stages of 5 layers, halved: the first parts would get 6, 4, 6 and 4 layers per device."""
    five = unit_profile(4, stages={**UNIT, "layers": 5})
    loop, vee = five.rechunk(2), five.rechunk(2, "vee")
    assert [cost.layers for cost in loop.stages] == [2, 2, 3, 3, 3, 3, 2, 2]
    assert [cost.layers for cost in vee.stages] == [3, 2, 3, 2, 3, 2, 3, 2]
    for dealt in (loop, vee):
        assert _loads([cost.layers or 0 for cost in dealt.stages], dealt.placement) == [5] * 4


def test_no_other_deal_of_equal_stages_is_faster_under_interleaved_1f1b() -> None:
    """Against every choice of each device's longer chunk, 16 in all."""
    five = unit_profile(4, stages={**UNIT, "layers": 5})
    dealt = five.rechunk(2)

    def time_ns(layers: Sequence[int]) -> int:
        own = dealt.map_stages(
            lambda at, cost: replace(
                cost,
                t_f_ns=12 * layers[at],
                t_b_ns=12 * layers[at],
                t_w_ns=12 * layers[at],
                layers=layers[at],
            )
        )
        return simulate(build("1f1b-i", own, 8), own).makespan_ns

    ways = [[2 + first for first in pick] + [3 - first for first in pick]
            for pick in product((0, 1), repeat=4)]  # fmt: skip
    chosen = [cost.layers or 0 for cost in dealt.stages]
    assert chosen in ways
    assert time_ns(chosen) == min(map(time_ns, ways)) < time_ns([3, 2, 3, 2, 2, 3, 2, 3])


def test_interleaving_does_not_lose_by_how_layers_are_dealt() -> None:
    """8 stages of 4 layers in 3 chunks each: alternating chunks of 1 and 2 layers took 17 % longer than 1F1B."""
    four = unit_profile(8, stages={**UNIT, "layers": 4})
    in_three = four.rechunk(3)
    assert _loads([cost.layers or 0 for cost in in_three.stages], in_three.placement) == [4] * 8
    one = simulate(build("1f1b", four, 64), four).makespan_ns
    assert simulate(build("1f1b-i", in_three, 64), in_three).makespan_ns < one


@given(data=st.data(), devices=st.integers(1, 4), parts=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_no_other_deal_of_layers_is_more_equal(
    data: st.DataObject, devices: int, parts: int
) -> None:
    """Against every deal in which a run's new stages differ by one layer at most."""
    layers = data.draw(st.lists(st.integers(parts, 7), min_size=devices, max_size=devices))
    rounds = [data.draw(st.permutations(range(devices))) for _ in range(parts)]
    placement = [device for each in rounds for device in each]
    runs = [[StageCost(**{**UNIT, "layers": count})] for count in layers]
    dealt = deal(runs, parts, placement)
    assert [sum(each or ()) for each in dealt] == layers

    def spread(deals: Sequence[Sequence[int]]) -> int:
        return sum(n * n for n in _loads([n for each in deals for n in each], placement))

    ways = [
        {
            tuple(count // parts + (at in more) for at in range(parts))
            for more in combinations(range(parts), count % parts)
        }
        for count in layers
    ]
    assert spread([each or () for each in dealt]) == min(map(spread, product(*ways)))


def _loads(layers: Sequence[int], placement: Sequence[int]) -> list[int]:
    loads = [0] * (max(placement) + 1)
    for count, device in zip(layers, placement, strict=True):
        loads[device] += count
    return loads


UNIT = {"t_f_ns": 60, "t_b_ns": 60, "t_w_ns": 60, "act_bytes": 60}


@given(profile=profiles(max_chunks=3), chunks=st.integers(1, 9), seed=SEEDS)
@settings(max_examples=80, deadline=None)
def test_totals_stay_and_layers_stay_whole(profile: CostProfile, chunks: int, seed: int) -> None:
    layers = [1 + (seed >> at) % 4 for at in range(len(profile.stages))]
    long = profile.scale(compute=10**4)
    said = long.map_stages(lambda at, cost: replace(cost, layers=layers[at]))
    most = said.most_chunks
    assert most is not None
    if chunks > most:
        with pytest.raises(ProfileError, match=f"at most {most} chunk"):
            said.rechunk(chunks)
        return
    try:
        other = said.rechunk(chunks)
    except ProfileError as error:  # fewer than the most, and yet some pair of stages has too few
        assert "cannot make" in str(error) or "cannot be divided" in str(error)  # noqa: PT017
        return
    for key in ADDED:
        assert sum(getattr(c, key) for c in other.stages) == sum(
            getattr(c, key) for c in said.stages
        )
    # each new stage is a run of whole layers, as even as it can be where stages divide or merge
    if chunks % profile.chunks == 0:
        parts = chunks // profile.chunks
        assert [c.layers for c in other.stages] == [
            n for count in layers for n in evenly(count, parts)
        ]
        assert other.rechunk(said.chunks, said.placement) == said


def test_files_say_layers(tmp_path: Path) -> None:
    profile = unit_profile(2, stages=[{**UNIT, "layers": 3}, UNIT])
    save_profile(profile, tmp_path / "p.yaml")
    assert load_profile(tmp_path / "p.yaml") == profile
    stages = profile_to_json(profile)["stages"]
    assert stages[0]["layers"] == 3
    assert "layers" not in stages[1]
    for wrong, said in (
        (0, r"layers: must be above 0, got 0"),
        (2.5, r"stages\.layers: expected a whole number, got 2\.5"),
        (True, r"stages\.layers: expected a whole number, got True"),
        (2**21, r"layers: 2097152 is more than 1048576"),
    ):
        with pytest.raises(ProfileError, match=said):
            unit_profile(2, stages={**UNIT, "layers": wrong})


def test_named_schedules_keep_to_the_layers() -> None:
    profile = unit_profile(2, stages={**UNIT, "layers": 3})
    assert build("1f1b-i:chunks=3", profile, 4).shape.chunks == 3
    for name in ("1f1b-i:chunks=4", "gis:chunks=5"):
        with pytest.raises(InvalidSchedule, match=rf"{name}: stages\[0\]: .* at most 3 chunks"):
            build(name, profile, 4)
    with pytest.raises(InvalidSchedule, match=r"zb-v: .* at most 1 chunk per device"):
        build("zb-v", unit_profile(2, stages={**UNIT, "layers": 1}), 4)


def test_shipped_and_estimated_profiles_say_their_layers() -> None:
    files = sorted((ROOT / "experiments" / "profiles").glob("*.yaml"))
    assert files
    for file in files:
        profile = load_profile(file)
        layers = [cost.layers for cost in profile.stages]
        assert None not in layers, file
        # embedding and loss take the place of a layer each
        assert sum(n or 0 for n in layers) == profile.meta["model"]["layers"] + 2
    made = estimate("gpt-6.2b", "h100-sxm", 4, seq=8192, recompute="norms")
    assert made.meta["layers_per_stage"] == [7, 8, 8, 7]
    assert [cost.layers for cost in made.stages] == [8, 8, 8, 8]
    assert made.most_chunks == 8
