"""Layouts of layers on stages: every one tried on small cases, and the bounds below all of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import pytest
from exhaustive import least_cost
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import layouts
from solving import verify

from optpipe_sim import build, simulate
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.costs import estimate
from optpipe_sim.errors import OptPipeError, ProfileError
from optpipe_sim.profile import CostProfile
from optpipe_sim.profile.items import EMBEDDING, HEAD, Item, deal_items, even_counts
from optpipe_sim.profile_io import load_profile, profile_to_json
from optpipe_sim.solvers.axes import candidate_shapes
from optpipe_sim.solvers.layers.bound import Runs, layout_bound
from optpipe_sim.solvers.layers.moved import counts_of, device_work, moves, solve_layers
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.stage_cost import RecomputeLevel, StageCost


def profile_of(
    items: list[Item], devices: int, chunks: int = 1, placement: str = "loop", **more: object
) -> CostProfile:
    """A profile with an even share of items on each stage."""
    blank = CostProfile("x", devices, (StageCost(1, 1, 0),) * (devices * chunks), chunks, placement)  # type: ignore[arg-type]
    made = replace(blank, items=tuple(items))
    return replace(made.with_layout(even_counts(len(items), len(blank.stages))), **more)  # type: ignore[arg-type]


@st.composite
def items(draw: st.DrawFn, most: int = 7) -> list[Item]:
    """Layers of one or two kinds between an embedding and a head, some that recompute."""

    def item(name: str) -> Item:
        f, b, w = (draw(st.integers(1, 9)) for _ in range(3))
        act = draw(st.integers(0, 6))
        full = RecomputeLevel("full", f, draw(st.integers(0, act)), layers=1)
        levels = (full,) if draw(st.booleans()) else ()
        cost = StageCost(f, b, w, act, draw(st.integers(0, act)), static_bytes=draw(st.integers(0, 3)), recompute=levels)  # fmt: skip
        return Item(name, cost, draw(st.integers(0, 2)))

    kinds = [item("layer"), item("expert layer")]
    body = [kinds[draw(st.integers(0, 1))] for _ in range(draw(st.integers(3, most - 2)))]
    return [item(EMBEDDING), *body, item(HEAD)]


SHAPES = st.sampled_from([(2, 1, "loop"), (3, 1, "loop"), (2, 2, "loop"), (2, 2, "vee")])
LIMITS = st.none() | st.integers(12, 60)


@settings(max_examples=15)
@given(items(), SHAPES, st.integers(1, 6), st.sampled_from(["flush", "span"]), LIMITS)
def test_the_bound_of_all_layouts_is_no_more_than_that_of_any_and_than_any_schedule(
    model: list[Item], shape: tuple[int, int, str], m: int, objective: str, limit: int | None
) -> None:
    p, chunks, placement = shape
    if len(model) < p * chunks:
        return
    profile = profile_of(model, p, chunks, placement, latency_ns=1)
    limits = None if limit is None else (limit,) * p
    bound, counts = layout_bound(profile, m, objective, limits)
    for own in layouts(profile):
        layout = profile.with_layout(own)
        if limit is None or max(layout.least_limits) <= limit:
            assert bound.ns <= lower_bound(layout, m, objective, limits).ns
            names = ("1f1b", "zb-h1") if chunks == 1 else ("adaoffload",)
            for name in names if limit is None else ():
                trace = simulate(build(name, layout, m), layout, objective=objective)
                assert bound.ns <= trace.cost_ns
    assert counts is None or (sum(counts) == len(model) and min(counts) >= 1)


@settings(max_examples=20)
@given(items(), st.sampled_from([2, 3]), st.integers(1, 6), LIMITS)
def test_the_dynamic_program_finds_the_least_of_all_layouts(
    model: list[Item], p: int, m: int, limit: int | None
) -> None:
    if len(model) < p:
        return
    profile = profile_of(model, p)
    runs = Runs(profile, m, "flush", None if limit is None else (limit,) * p)
    least, counts = runs.best(lambda: False)

    def worst(own: list[int]) -> int:
        borders = list(pairwise([0, *accumulate(own)]))
        return max(max(runs.ns[s, a, b], runs._bound(s, a, b)) for s, (a, b) in enumerate(borders))

    assert least == min(map(worst, layouts(profile)))
    assert not counts or worst(counts) == least


def plain(name: str, f: int, b: int, w: int, act: int = 1, **more: Any) -> Item:
    return Item(name, StageCost(f, b, w, act, 0, **more))


EMBED, LAYER, LOSS = plain(EMBEDDING, 1, 1, 1, 0), plain("layer", 4, 4, 4), plain(HEAD, 8, 8, 8)
CASES = (
    # items, devices, microbatches, limit
    ([EMBED, *[LAYER] * 5, LOSS], 2, 3, None),
    ([EMBED, *[LAYER] * 2, plain("thick", 9, 9, 9), LOSS], 3, 2, None),
    ([EMBED, *[LAYER] * 4, LOSS], 2, 3, 8),
)


@pytest.mark.parametrize("case", CASES)
def test_no_layout_has_a_faster_schedule_where_all_are_tried(case: Any) -> None:
    model, p, m, limit = case
    profile = profile_of(model, p)
    costs = {}
    for own in layouts(profile):
        with suppress(OptPipeError):
            problem = make_problem(profile.with_layout(own), m, limit)
            costs[tuple(own)] = least_cost(problem, 200_000)
    found = solve_layers(profile, m, limit, time_limit=4, workers=1, chunks="own")
    assert found.result.objective_ns == min(filter(None, costs.values()))
    assert costs[tuple(found.counts)] == found.result.objective_ns
    assert found.result.lower_bound_ns <= found.result.objective_ns <= found.given.objective_ns
    assert found.given.lower_bound_ns <= costs[tuple(found.given_counts)]
    verify(found.result, found.profile, limit)


def test_a_layer_goes_where_the_pipeline_starts_earlier() -> None:
    """One of 16 stages has a layer more; the first has it, where it costs least."""
    split = {"tp": 4, "dp": 2, "zero": 1}
    profile = estimate("llama3-70b", "h100", 64, **split, items=True, execution="ideal")
    even = profile.with_layout(counts_of(profile))
    bound, counts = layout_bound(profile, 64)
    assert counts == [7, *[5] * 15]  # with the embedding, and the head
    assert bound.ns == lower_bound(profile.with_layout(counts), 64).ns
    assert 0.05 < 1 - bound.ns / lower_bound(even, 64).ns < 0.08


def test_a_balanced_layout_has_less_work_on_its_busiest_device() -> None:
    model = [EMBED, *[LAYER] * 7, LOSS]
    for chunks, placement in ((1, "loop"), (2, "loop"), (2, "vee")):
        profile = profile_of(model, 2, chunks, placement)
        counts = deal_items(profile.items, profile.placement)
        found = max(device_work(profile.with_layout(counts)))
        least = min(max(device_work(profile.with_layout(own))) for own in layouts(profile))
        assert found == least <= max(device_work(profile))


def test_moves_keep_the_items_and_every_stage() -> None:
    profile = profile_of([EMBED, *[LAYER] * 4, LOSS], 3)
    made = list(moves([1, 4, 1], profile))
    assert sorted(made) == [[1, 3, 2], [2, 3, 1]]


def test_stages_of_layers_are_those_of_an_estimate() -> None:
    for name, options in (("qwen3-8b", {}), ("deepseek-v3", {"dp": 8, "ep": 8, "zero": 1})):
        whole = estimate(name, "h100", 8, levels=True, items=True, **options)
        made = whole.with_layout(counts_of(whole))
        for ours, theirs in zip(made.stages, whole.stages, strict=True):
            for key in ("t_f_ns", "t_b_ns", "t_w_ns", "t_offload_ns"):
                assert getattr(ours, key) == pytest.approx(getattr(theirs, key), abs=16), key
            for key in ("act_bytes", "w_bytes", "offload_bytes", "static_bytes", "layers"):
                assert getattr(ours, key) == pytest.approx(getattr(theirs, key), abs=64), key
            for level in ours.recompute:
                same = theirs.level(level.name)
                assert same is not None
                assert level.keep_bytes == pytest.approx(same.keep_bytes, abs=64)
                assert level.t_ns == pytest.approx(same.t_ns, abs=16)
                assert level.layers == same.layers
        assert load_profile(profile_to_json(whole)).items == whole.items


def test_a_file_of_layers_needs_no_stages() -> None:
    data: dict[str, Any] = {
        "devices": 2,
        "items": [
            {"name": "embedding", "t_f_us": 1, "t_b_us": 1, "t_w_us": 0, "act_mib": 0, "static_mib": 9},
            {"count": 5, "t_f_ms": 2, "t_b_ms": 2, "t_w_ms": 1, "act_mib": 8, "reserve_mib": 3},
            {"name": "head", "t_f_ms": 3, "t_b_ms": 3, "t_w_ms": 3, "act_mib": 1},
        ],
        "offload": {"d2h_gb_per_s": 1, "t_reload_ms": [3, 4]},
    }  # fmt: skip
    with pytest.raises(
        ProfileError, match=r"items\[0\].t_reload_ms: missing: offload gives no h2d"
    ):
        load_profile(data)
    data["offload"] = {"d2h_gb_per_s": 1, "h2d_gb_per_s": 2}
    profile = load_profile(data)
    assert [cost.layers for cost in profile.stages] == [4, 3]
    assert [cost.static_bytes for cost in profile.stages] == [12 * 2**20, 3 * 2**20]
    assert [item.cost.t_offload_ns for item in profile.items[:2]] == [0, 8 * 2**20]
    again = load_profile(profile_to_json(profile))
    assert again == profile
    assert again.items == profile.items
    data["items"][1]["count"] = 0
    with pytest.raises(ProfileError, match=r"items\[1\].count: must be from 1"):
        load_profile(data)
    del data["items"][1:]
    with pytest.raises(ProfileError, match="1 layers cannot make 2 stages"):
        load_profile(data)


def test_a_profile_without_layers_is_refused() -> None:
    with pytest.raises(ProfileError, match="items: the profile x has no costs per layer; estimate"):
        solve_layers(replace(profile_of([EMBED, LAYER, LOSS], 2), items=()), 4)
    with pytest.raises(OptPipeError, match="layers: neither with margins"):
        solve_layers(profile_of([EMBED, LAYER, LOSS], 2), 4, margin="ops=5%")


@pytest.mark.parametrize("factors", [[0.5] * 8, [1] * 7 + [6], [0.25, 4] * 4])
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("pairs", ["none", "combined"])
def test_the_bound_of_layouts_counts_the_work_of_microbatches_that_differ(
    chunks: int, factors: list[float], pairs: str
) -> None:
    """As many usual ones would be a bound that shorter ones break, and longer ones leave far behind."""
    model, more = ("qwen3-30b-a3b", {"ep": 4, "dp": 4}) if pairs != "none" else ("llama3-8b", {})
    usual = estimate(model, "h100", 4, chunks=chunks, execution="ideal", pairs=pairs, **more)
    profile = replace(usual, microbatch_time=tuple(map(Fraction, factors)), memory_limit=None)
    name = "1f1b" if chunks == 1 else "1f1b-i"
    cost_ns = simulate(build(name, profile, 8), profile).cost_ns
    bound, _ = layout_bound(profile, 8)
    assert bound.ns <= cost_ns
    work_ns = sum(item.computing.cost.work_ns for item in profile.items) * sum(factors)
    if pairs == "none":
        assert bound.ns >= 0.99 * float(work_ns) / 4


def test_numbers_of_chunks_that_the_limit_rules_out_are_left_out() -> None:
    profile = estimate("llama3-8b", "h100", 4, execution="ideal")
    least = [max(shape.least_limits) for shape in candidate_shapes(profile)]
    limit = (least[0] + least[1]) // 2
    assert least[1] < limit < least[0]  # one chunk needs more, with its layers as given
    found = solve_layers(replace(profile, memory_limit=(limit,) * 4), 8, time_limit=2, chunks="any")
    assert found.result.trace is not None
    assert max(found.result.trace.peak_bytes) <= limit
