"""`advise` over slices of sequences: what an exhaustive search finds, and what it says to run."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import profiles

from optpipe_sim import CostProfile, build, load_profile, simulate
from optpipe_sim.cli import main
from optpipe_sim.costs import load_machine, load_model
from optpipe_sim.costs.advise.advise import advise
from optpipe_sim.costs.advise.replay import kept_in_flight, kept_whole, profile_of, replayed
from optpipe_sim.costs.advise.rows import Row
from optpipe_sim.costs.advise.space import IN_FLIGHT, KEEPING, Question
from optpipe_sim.costs.work import Work
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.frameworks.seq1f1b import command, options

MODEL = {"name": "small", "layers": 8, "hidden": 2048, "heads": 16, "vocab": 32000, "ffn": 5632}
GIB = 2**30
NAMES = ("1f1b", "seq1f1b", "seq1f1b-i", "seq-zb", "mepipe", "gis", "sppo", "slimpipe")
LONG = {"gpus": 4, "global_batch": 2, "seq": 65536}
SPLIT = {"tp": 1, "cp": 1, "pp": 4, "chunks": (1, 2), "recompute": ("none", "full")}


def question(work: Work = Work(seq=65536), **asked: object) -> Question:  # noqa: B008
    return Question(load_model(MODEL), load_machine("h100"), 8, 8, work, 70 * GIB, **asked)  # type: ignore[arg-type]


def test_what_sequences_are_cut_into() -> None:
    """Of themselves only with enough tokens on each device, in a pipeline, one sequence at a time."""

    def cuts(**asked: object) -> set[int]:
        return {choice.slices for choice in question(**asked).choices()}

    assert cuts() == {1}
    assert cuts(slices=None) == {1, 4, 8}
    assert cuts(slices=None, cp=(4,)) == cuts(slices=None, pp=(1,)) == {1}
    assert cuts(slices=None, microbatch=(2,)) == {1}
    assert cuts(slices=(2, 16)) == {2, 16}
    by = {one.slices: set() for one in question(slices=None).choices()}
    for one in question(slices=None).choices():
        by[one.slices].add(one.slice_by)
    assert by == {1: {"time"}, 4: {"time", "exchange"}, 8: {"time", "exchange"}}
    assert {one.slice_by for one in question(slices=(4,), pp=(1,)).choices()} == {"time"}
    assert {one.slice_by for one in question(slices=(4,), schedules=("seq1f1b",)).choices()} == {
        "time"
    }
    layout = next(iter(question(slices=(2,), slice_by="length").choices())).options
    assert (layout["slices"], layout["slice_by"]) == (2, "length")
    assert "slices" not in next(iter(question().choices())).options


@pytest.mark.parametrize("limit", [70 * GIB, 20 * GIB])
def test_finds_what_an_exhaustive_search_finds(limit: int) -> None:
    found = advise(
        MODEL, "h100", **LONG, **SPLIT, slices=(1, 4, 8), schedules=NAMES, tolerance=0.0,
        memory_limit=limit, time_limit=600,
    )  # fmt: skip
    rows = []
    for choice in found.question.choices():
        for shaped, names in found.question.shapes(choice):
            profile = profile_of(found.question, shaped)
            for name in names:
                try:
                    said, trace = replayed(profile, shaped.microbatches, name)
                except OptPipeError:
                    continue
                if trace.fits:
                    rows.append(Row(shaped, said, profile, trace, 0.0, 0))
    best = min(rows, key=lambda row: row.key)
    assert (found.rows[0].key, found.rows[0].choice) == (best.key, best.choice)
    assert best.choice.slices > 1
    assert {row.choice.slices for row in rows} >= {4, 8}
    assert found.rows[0].bound_ns <= found.rows[0].iteration_ns
    assert any("slices" in doubt for doubt in found.doubts(found.rows[0]))


def test_a_name_keeps_its_options_beside_the_slices() -> None:
    asked = question(pp=(4,), chunks=(2,), slices=(2,))
    shapes = (shape for choice in asked.choices() for shape, _ in asked.shapes(choice))
    profile = profile_of(asked, next(shape for shape in shapes if shape.chunks == 2))
    assert profile.slices == 2
    for name in ("gis", "gis:group=4", "gis:group=8"):
        said, trace = replayed(profile, 16, name)
        assert said == f"{name},slices=2" if ":" in name else f"{name}:slices=2"
        again = replayed(profile, 16, said)
        assert (again[0], again[1].schedule) == (said, trace.schedule)
    fours, eights = (replayed(profile, 16, f"gis:group={size}")[1] for size in (4, 8))
    assert fours.schedule != eights.schedule


def test_what_holds_too_much_for_certain_is_not_replayed() -> None:
    found = advise(
        MODEL, "h100", **LONG, **SPLIT, slices=(1, 4, 8), schedules=NAMES, tolerance=0.0,
        memory_limit=20 * GIB, time_limit=600,
    )  # fmt: skip
    for point in found.points:
        profile, name = profile_of(found.question, point.choice), point.schedule.partition(":")[0]
        assert name not in KEEPING or kept_whole(profile) <= 20 * GIB
    assert set(found.by_slices) <= {1, 4, 8}
    best = found.rows[0]
    assert found.by_slices[best.choice.slices].iteration_ns == best.iteration_ns
    assert min(one.iteration_ns for one in found.by_slices.values()) == best.iteration_ns


@settings(max_examples=40, deadline=None)
@given(profiles(max_chunks=1, offload=False, slices=True), st.integers(1, 7))
def test_what_is_in_flight_bounds_the_peak(costs: CostProfile, m: int) -> None:
    costs = replace(costs, memory_limit=None, placement=tuple(range(costs.devices)))
    names = IN_FLIGHT[3:] if costs.slices > 1 else IN_FLIGHT[:3]
    for name in names:
        with suppress(InvalidSchedule):  # mepipe wants B and W apart
            trace = simulate(build(name, costs, m), costs)
            assert kept_in_flight(costs, m) <= max(trace.peak_bytes)


def test_slimpipe_is_tried_on_the_costs_of_its_exchange_alone() -> None:
    """And its row is not solved further: these costs hold for no other order."""
    found = advise(
        MODEL, "h100", **LONG, **SPLIT, slices=4, schedules=("slimpipe", "optpipe"), time_limit=20,
        slice_by="exchange",
    )  # fmt: skip
    row = found.rows[0]
    assert (row.schedule, row.choice.slice_by, found.solved) == ("slimpipe", "exchange", 0)
    assert {part.t_f_ns for part in row.profile.stages[1].slices} == {
        row.profile.stages[1].slices[0].t_f_ns
    }
    with pytest.raises(InvalidSchedule, match="its devices exchange no context"):
        options(row.trace.schedule, row.profile)
    for choice in question(slices=(4,), pp=(2, 4)).choices():
        for shaped, names in question(slices=(4,), pp=(2, 4)).shapes(choice):
            assert ("slimpipe" in names) == (shaped.slice_by == "exchange")
            assert names == ("slimpipe",) or "slimpipe" not in names


def test_options_of_seq1f1b() -> None:
    asked = question(slices=(4,), dp=(2,), tp=(1,), zero=(1,), recompute=("none",))
    choice = next(one for one in asked.choices() if (one.pp, one.microbatch) == (4, 1))
    profile = profile_of(asked, choice)
    _, trace = replayed(profile, choice.microbatches, "seq1f1b")
    found, notes = options(trace.schedule, profile)
    words = command(found)
    assert (
        "--pipe-sp-splits 4 --pipe-sp-strategy uniform_comp --pipeline-model-parallel-size 4"
        in words
    )
    assert "--global-batch-size 8 --use-flash-attn --use-distributed-optimizer" in words
    tokens = profile.meta["work"]["slices"]
    assert sum(tokens) == 65536
    assert any(", ".join(map(str, tokens)) in note for note in notes)
    _, other = replayed(profile, choice.microbatches, "seq-zb")
    with pytest.raises(InvalidSchedule, match="runs the order of seq1f1b only"):
        options(other.schedule, profile)
    for work, problem in (
        ({"overlap": ["grad-reduce"]}, "that hide the communication"),
        ({"grad_reduce_in_bf16": True}, "no option of it is known that has gradients in bf16"),
    ):
        changed = {**profile.meta, "work": {**profile.meta["work"], **work}}
        with pytest.raises(InvalidSchedule, match=problem):
            options(trace.schedule, replace(profile, meta=changed))


def test_command_line(tmp_path, capsys) -> None:
    words = [
        "advise",
        "--model",
        "qwen3-0.6b",
        "--machine",
        "h100",
        "--gpus",
        "4",
        "--global-batch",
        "2",
    ]
    words += ["--seq", "32768", "--pp", "4", "--tp", "1", "--chunks", "1", "--recompute", "none"]
    words += ["--slices", "8", "--time-limit", "5", "--schedules"]
    assert main([*words, "seq1f1b"]) == 0
    shown = capsys.readouterr().out
    assert "slices  dp" in shown
    assert "--pipe-sp-splits 8 --pipe-sp-strategy uniform_comp" in shown
    lines = [line for line in shown.splitlines() if line.startswith("next: ")]
    estimated = lines[0].split(" estimate ")[1].split()
    estimated[estimated.index("--save") + 1] = str(tmp_path / "p.yaml")
    assert main(["estimate", *estimated]) == 0
    assert load_profile(tmp_path / "p.yaml").slices == 8
    capsys.readouterr()
    assert main([*words, "seq1f1b,mepipe", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["rows"][0]["slices"], answer["rows"][0]["schedule"]) == (8, "mepipe")
    assert "no framework can be told this plan" in answer["notes"][0]
    assert "it can run seq1f1b on pp 4 tp 1 dp 1 slices 8" in answer["notes"][1]
    assert answer["options"]["--pipe-sp-splits"] == 8
    for wrong, message in (
        (["--slices", "3"], "slices: must divide the 32768 tokens"),
        (["--family", "megatron"], "slices: megatron runs whole sequences"),
    ):
        assert main([*words, "seq1f1b", *wrong]) == 2
        assert message in capsys.readouterr().err
