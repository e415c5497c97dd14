"""The best plan that Megatron-LM can run, compared with all of its family and with the best of all."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from layouts import layouts
from megatron_grammar import accept, stages_of
from test_megatron import profile_of

from optpipe_sim import CostProfile, build, load_profile
from optpipe_sim.errors import OptPipeError, OutOfMemory
from optpipe_sim.frameworks.megatron.best_plan import best, chunk_counts
from optpipe_sim.frameworks.megatron.family import (
    NAMES,
    Choice,
    choices,
    nearest,
    plan_for,
    plan_of,
)
from optpipe_sim.frameworks.megatron.options import Plan, Recompute
from optpipe_sim.frameworks.nearest import replay_unlimited
from optpipe_sim.frameworks.parts import Part
from optpipe_sim.solvers.microbatch_order import order_in, ordered
from optpipe_sim.solvers.plain import plain_plans


def test_the_best_is_the_fastest_that_fits() -> None:
    profile = profile_of(4, memory_limit_bytes=330)
    found = best(profile, 8)
    assert list(chunk_counts(profile)) == [1, 2, 3, 4]
    assert found.trace.fits
    assert max(found.trace.peak_bytes) <= 330
    times, tried = [], 0
    for chunks in (1, 2, 3, 4):
        for choice in choices(profile, 8, chunks):
            trace = replay_unlimited(choice.build(profile, 8), profile)
            tried += 1
            if max(trace.peak_bytes) <= 330:
                times.append(trace.makespan_ns)
    assert (found.tried, found.fitting) == (tried, len(times))
    assert found.trace.makespan_ns == min(times)
    plan, _ = plan_of(found.choice, profile, 8)
    accept(plan.command(), 8)


def test_what_fits_is_not_tried_with_offloading_which_makes_none_of_it_faster() -> None:
    profile = profile_of(4, memory_limit_bytes=10_000)
    family = [choice for chunks in (1, 2, 3, 4) for choice in choices(profile, 8, chunks)]
    found, tried = best(profile, 8), []
    for choice in family:
        trace = replay_unlimited(choice.build(profile, 8), profile)
        tried.append((max(trace.peak_bytes) > 10_000, trace.makespan_ns))
    assert found.trace.makespan_ns == min(tried)[1]
    assert found.tried < len(family)
    assert found.choice.fraction is None


def test_plain_plans_are_tried_however_short_the_time() -> None:
    """What stands beside the answer as plainest is of the family: none of it may be faster than the best."""
    profile = profile_of(4, memory_limit_bytes=10_000)
    found = best(profile, 8, seconds=0)
    beside = list(plain_plans(profile, 8, (10_000,) * 4, names=NAMES))
    assert len({plan.name for plan in beside}) >= 4
    assert found.trace.cost_ns <= min(plan.trace.cost_ns for plan in beside)


def test_the_order_of_microbatches_that_differ_is_part_of_the_best() -> None:
    """Their data comes in another order, with the same options; exports take the plan for what it is."""
    differing = tuple(map(Fraction, (1, 1, 1, 1, 1, 1, 1, 6)))
    profile = replace(profile_of(4, memory_limit_bytes=10_000), microbatch_time=differing)
    found = best(profile, 8, seconds=4)
    schedule = found.trace.schedule
    own = replay_unlimited(found.choice.build(profile, 8), profile)
    assert found.trace.cost_ns < own.cost_ns
    told = ordered(found.trace, waits=False)
    assert told is not None
    assert told.order == order_in(schedule) != list(range(8))
    assert told.given_iteration_ns == own.iteration_ns
    assert told.gain == pytest.approx(own.iteration_ns / found.trace.iteration_ns - 1)
    choice, instead = nearest(schedule, profile)
    assert choice.name == found.choice.name
    assert instead.lost == ()
    assert instead.after.makespan_ns == found.trace.makespan_ns
    assert ordered(replay_unlimited(build("1f1b", profile_of(4), 8), profile_of(4))) is None


def test_what_may_not_become_of_activations_does_not() -> None:
    profile = profile_of(4, memory_limit_bytes=700)
    kept = best(profile, 8, chunks=[1], offload=False, recompute=False, objective="span")
    assert (kept.choice.level, kept.choice.fraction) == (None, None)
    assert kept.trace.objective == "span"
    assert kept.trace.recomputed == kept.trace.offloaded == 0


def test_nothing_fits_or_nothing_runs() -> None:
    profile = profile_of(4, memory_limit_bytes=30)
    with pytest.raises(OutOfMemory, match="no schedule of Megatron-LM fits: the least"):
        best(profile, 8)
    with pytest.raises(OptPipeError, match="runs nothing on 4 ranks with 3 microbatches"):
        best(profile, 3, chunks=[2])


def test_other_layouts_of_layers_are_choices_too() -> None:
    """A head as long as two layers: an even share is slower; where memory is short, the first stage,
    which holds most microbatches, has the fewest layers."""
    layer = {"name": "layer", "count": 10, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 10}
    ends = [{**layer, "name": name, "count": 1} for name in ("embedding", "head")]
    ends[0] |= {"t_f_us": 1, "t_b_us": 1, "t_w_us": 1, "act_bytes": 0}
    for key in ("t_f_ms", "t_b_ms", "t_w_ms"):
        del ends[0][key]
        ends[1][key] = 2
    profile = load_profile({"devices": 4, "items": [ends[0], layer, ends[1]]})
    found = best(profile, 8, chunks=[1])
    assert found.given is not None
    assert found.trace.makespan_ns < found.given.makespan_ns
    plan, _ = plan_of(found.choice, found.trace.profile, 8)
    read = accept(plan.command(), 8)
    assert read.num_layers == 10
    assert [stage.count("t") for stage in stages_of(read.pipeline_model_parallel_layout)] == [
        part.layers for part in plan.parts
    ]
    # every layout of the family's one schedule without levels or copies
    least = min(
        replay_unlimited(build("1f1b", layout, 8), layout).makespan_ns
        for layout in (profile.with_layout(own) for own in layouts(profile))
    )
    assert found.trace.makespan_ns == least
    tight = replace(profile, memory_limit=(70,) * 4)
    assert max(replay_unlimited(build("1f1b", tight, 8), tight).peak_bytes) > 70
    squeezed = best(tight, 8, chunks=[1])
    assert squeezed.given is None
    assert squeezed.trace.fits
    assert squeezed.layers[0] < found.layers[0]
    exported, _ = plan_for(squeezed.trace.schedule, squeezed.trace.profile)
    accept(exported.command(), 8)


def test_layers_that_predict_further_tokens_have_their_place() -> None:
    item = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 10}
    names = ["embedding", *["layer"] * 4, "mtp", "head"]
    profile = load_profile({"devices": 2, "items": [{**item, "name": name} for name in names]})
    plan, _ = plan_of(Choice(1), profile.with_layout([4, 3]), 4)
    assert plan.options()["pipeline-model-parallel-layout"] == "Et*3|tmL"
    assert accept(plan.command(), 4).mtp_num_layers == 1
    early = [Part(0, 2, embedding=True), Part(2, 2, mtp=1), Part(4, 0), Part(4, 0, loss=True)]
    with pytest.raises(OptPipeError, match=r"MTP layers \(m\) belong on one stage, a last chunk"):
        Plan(2, 4, tuple(early))


def uniform(limit: int) -> CostProfile:
    """Four stages of four layers, which full recomputation leaves 8 of 100 bytes and a longer backward."""
    level = {"name": "full", "t_ms": 2, "keep_bytes": 8, "layers": 4}
    times = {"t_f_ms": 2, "t_b_ms": 2, "t_w_ms": 2, "act_bytes": 100, "layers": 4}
    stages = {**times, "recompute": [level]}
    return load_profile({"devices": 4, "stages": stages, "memory_limit_bytes": limit})


@pytest.mark.parametrize(
    ("chunks", "group", "keep"), [(1, None, 0), (1, None, 2), (2, None, 3), (4, 6, 5)]
)
def test_partial_checkpoints_are_a_field_beside_the_options(
    chunks: int, group: int | None, keep: int
) -> None:
    profile = uniform(1000)
    asked = f"megatron-partial:chunks={chunks},keep={keep}" + (f",group={group}" if group else "")
    for schedule in (build(asked, profile, 12), build(asked, profile, 12).replace(meta={})):
        choice, found = nearest(schedule, profile)
        assert not found.lost
        if keep:
            assert choice == Choice(chunks, group, "full", kept=keep)
        else:  # all recompute: an option says so
            assert choice.level == "full"
        plan, notes = plan_of(choice, profile, 12)
        accept(plan.command(), 12)
        assert plan.options()["recompute-granularity"] == "full"
        kept = {"num_microbatches_with_partial_activation_checkpoints": choice.kept}
        assert plan.fields() == (kept if choice.kept is not None else {})
        assert any("without an option" in note for note in notes) == (choice.kept is not None)


def test_partial_checkpoints_exclude_pairs_and_need_full_recomputation() -> None:
    parts = tuple(Part(at, 1, embedding=at == 0, loss=at == 3) for at in range(4))
    with pytest.raises(OptPipeError, match="partial_activation_checkpoints: needs full"):
        Plan(4, 8, parts, kept=1)
    sizes = (
        ("overlap-moe-expert-parallel-comm", True),
        ("expert-model-parallel-size", 8),
        ("bf16", True),
    )
    full = Recompute("full", "uniform", 1)
    with pytest.raises(OptPipeError, match="excludes full recomputation"):
        Plan(2, 8, parts, recompute=full, sizes=sizes, kept=1)
    assert Plan(2, 8, parts, recompute=full, kept=1).fields()


def test_what_partial_checkpoints_would_gain_is_said_beside_the_best_of_the_options() -> None:
    profile = uniform(250)
    found = best(profile, 12, chunks=[1])
    assert found.choice.level == "full"
    assert found.choice.kept is None
    assert found.partial is not None
    assert found.partial.trace.fits
    assert found.partial.cost_ns < found.trace.cost_ns
    # of all numbers that may be kept, the fastest that fits
    built = (
        replay_unlimited(build(f"megatron-partial:keep={k},level=full", profile, 12), profile)
        for k in range(5)
    )
    assert found.partial.cost_ns == min(trace.cost_ns for trace in built if trace.fits)
    assert best(uniform(10_000), 12, chunks=[1]).partial is None  # nothing has to be recomputed
    assert found.to_json()["partial"] == "megatron-partial:chunks=1,keep=1,level=full"
