"""`advise`: finds what an exhaustive search finds, says what limits it, refuses in one line."""

from __future__ import annotations

import csv
import json
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from optpipe_sim import CostProfile, Schedule, load_profile, simulate
from optpipe_sim.cli import main
from optpipe_sim.costs import load_machine, load_model
from optpipe_sim.costs.advise import other_limits as advise_memory
from optpipe_sim.costs.advise import shortlist as advise_search
from optpipe_sim.costs.advise.advise import advise
from optpipe_sim.costs.advise.evaluate import evaluate
from optpipe_sim.costs.advise.other_limits import limits_around
from optpipe_sim.costs.advise.replay import profile_of, replayed
from optpipe_sim.costs.advise.rows import COMMON, LIMITS, MEMORY_ERROR, Row, limited_by
from optpipe_sim.costs.advise.shortlist import Search
from optpipe_sim.costs.advise.space import OFFLOADING, Question
from optpipe_sim.costs.doubt import best_published, between_layouts, compared
from optpipe_sim.costs.machine_files import machine_names
from optpipe_sim.costs.provenance import iteration_ns
from optpipe_sim.costs.work import Work
from optpipe_sim.errors import InvalidSchedule, NoSolution, OptPipeError, OutOfMemory
from optpipe_sim.execution import IDEAL
from optpipe_sim.plot.advise import advice_chart, pareto
from optpipe_sim.solvers.steady import ALIKE, MOST_PLANS

ROOT = Path(__file__).parents[2]
MODEL = {
    "name": "small",
    "layers": 8,
    "hidden": 2048,
    "heads": 16,
    "kv_heads": 8,
    "vocab": 32000,
    "ffn": 5632,
}
SMALL = {"gpus": 4, "global_batch": 16, "seq": 4096}
GIB = 2**30


def exhaustive(question: Question, names: tuple[str, ...]) -> Row:
    """The best of all, with no bound and no order: every choice, shape and schedule."""
    best = None
    for choice in question.choices():
        for shaped, admitted in question.shapes(choice):
            for name in set(names) & set(admitted):
                try:
                    profile = profile_of(question, shaped)
                    name_of, trace = replayed(profile, shaped.microbatches, name)
                except OptPipeError:
                    continue
                row = Row(
                    shaped, name_of, profile, trace, 0.0, question.global_batch * question.seq
                )
                if trace.fits and (best is None or row.key < best.key):
                    best = row
    assert best is not None
    return best


@pytest.mark.parametrize("limit", [80 * GIB, 9 * GIB, 5 * GIB])
def test_finds_what_an_exhaustive_search_finds(limit: int) -> None:
    names = ("1f1b", "zb-h1", "1f1b-i", "gis", "dualpipe-v", "v-half", "adaoffload")
    found = advise(
        MODEL,
        "a100",
        **SMALL,
        memory_limit=limit,
        schedules=names,
        tolerance=0.0,
        time_limit=600,
        chunks=(1, 2),
        microbatch=(1, 2),
    )
    best = exhaustive(found.question, names)
    assert found.rows[0].key == best.key
    assert found.rows[0].choice == best.choice
    assert found.unsearched == 0
    assert found.hope_ns is None
    assert max(found.rows[0].trace.peak_bytes) <= limit


def test_pruning_saves_work_and_loses_nothing_of_the_answer() -> None:
    wide = advise(MODEL, "a100", **SMALL, top=50, tolerance=0.0, schedules=["1f1b", "zb-h1"])
    few = advise(MODEL, "a100", **SMALL, top=2, tolerance=0.0, schedules=["1f1b", "zb-h1"])
    assert [row.key for row in few.rows] == [row.key for row in wide.rows[:2]]
    assert few.searched < wide.searched
    assert few.pruned["bound"] > 0


@pytest.fixture(scope="module")
def found():
    return advise("qwen3-1.7b", "h100", 8, 32, 4096, time_limit=10)


def test_rows_are_one_per_split_and_hold_together(found) -> None:
    times = [row.iteration_ns for row in found.rows]
    assert times == sorted(times)
    assert len({row.choice.split for row in found.rows}) == len(found.rows) == 5
    for row in found.rows:
        choice = row.choice
        assert choice.pp * choice.tp * choice.cp * choice.dp == 8
        assert choice.microbatch * choice.microbatches * choice.dp == 32
        assert sum(found.parts(row).values()) == pytest.approx(1, abs=1e-6)
        assert min(found.parts(row).values()) >= 0
        assert row.bound_ns <= row.iteration_ns
        assert row.tokens_per_s == pytest.approx(32 * 4096 / row.iteration_ns * 1e9)
        assert 0.05 < row.mfu < 0.8
        again = simulate(row.trace.schedule, row.profile)
        assert iteration_ns(row.profile, again.makespan_ns) == row.iteration_ns
        assert row.peak_bytes <= found.question.limit_bytes == found.question.machine.usable_bytes


def test_nothing_replayed_that_fits_beats_the_answer(found) -> None:
    fitting = [point for point in found.points if point.fits]
    assert min(point.iteration_ns for point in fitting) == found.rows[0].iteration_ns
    assert found.searched == len(found.points)
    front = pareto(fitting)
    assert front[-1].iteration_ns == found.rows[0].iteration_ns
    for one in front:
        assert not any(
            p.iteration_ns < one.iteration_ns and p.peak_bytes < one.peak_bytes for p in fitting
        )


def test_the_row_to_run_is_one_of_those_that_are_a_toss_up(found) -> None:
    near = [row for row in found.rows if row is found.rows[0] or found.is_toss_up(row)]
    if len(near) == 1:
        assert found.steady is None
        return
    assert found.steady.row in near
    assert found.steady.plans == min(len(near), 1 + MOST_PLANS)
    assert 0 <= found.steady.regret <= found.steady.regret_of_best + ALIKE
    told = found.to_json()["steady"]
    assert found.rows[told["row"]] is found.steady.row


def test_rows_that_may_be_as_fast_as_the_best_are_marked(found) -> None:
    """By how far differences between layouts are off, not by how far times are, most of which all rows share."""
    first, *others = found.to_json()["rows"]
    assert first["difference_interval"] is None
    assert first["toss_up"] is False
    off = max(between_layouts(), IDEAL.between)
    for row in others:
        longer = row["iteration_ns"] / first["iteration_ns"] - 1
        assert row["difference_interval"] == pytest.approx([longer - off, longer + off], abs=1e-6)
        assert row["toss_up"] == (longer <= off)


def test_plainest_is_the_fastest_that_frameworks_have(found) -> None:
    plain = found.plainest
    assert plain.schedule in COMMON
    assert plain.iteration_ns >= found.rows[0].iteration_ns
    rivals = [point for point in found.points if point.fits and point.schedule in COMMON]
    assert plain.iteration_ns == min(point.iteration_ns for point in rivals)


def test_what_limits_a_row_is_its_largest_loss() -> None:
    parts = dict.fromkeys(
        ["compute", "update", *(k for keys in LIMITS.values() for k in keys)], 0.0
    )
    assert limited_by({**parts, "compute": 0.97, "bubble": 0.03}) == "compute"
    assert limited_by({**parts, "compute": 0.6, "bubble": 0.15, "recompute": 0.25}) == "memory"
    assert (
        limited_by({**parts, "messages": 0.06, "gradients": 0.06, "bubble": 0.1}) == "communication"
    )
    assert limited_by({**parts, "reloads": 0.2, "bubble": 0.1}) == "copies"


def test_slow_links_are_named_as_what_limits() -> None:
    slow = replace(load_machine("h100"), network_gb_per_s=0.5, link_gb_per_s=2.0)
    found = advise(MODEL, slow, 8, 32, 4096, tp=8, pp=1, schedules=["1f1b"])
    assert limited_by(found.parts(found.rows[0])) == "communication"


def test_scarce_memory_makes_it_recompute_or_offload() -> None:
    # pp 4 fixed: all else equal, less memory can only be slower, and has to be paid for
    asked = {**SMALL, "pp": 4, "tp": 1, "time_limit": 20, "microbatch": 1}
    asked["schedules"] = ["1f1b", "zb-h1", "gis", "adaoffload"]
    ample = advise(MODEL, "a100", **asked, memory_limit=40 * GIB).rows[0]
    scarce = advise(MODEL, "a100", **asked, memory_limit=int(4.5 * GIB)).rows[0]
    assert scarce.iteration_ns > ample.iteration_ns
    assert scarce.peak_bytes <= 4.5 * GIB < ample.peak_bytes
    assert scarce.choice.recompute != "none" or scarce.trace.offloaded
    assert ample.choice.recompute == "none"


def test_treatments_and_what_memory_buys_are_told() -> None:
    """At 4 GiB whatever fits recomputes or offloads; the value of each GiB is reported beside it."""
    limit = 4 * GIB
    asked = {**SMALL, "pp": 4, "tp": 1, "microbatch": 1, "memory_limit": limit, "top": 1}
    found = advise(MODEL, "a100", time_limit=3, **asked)
    best = found.rows[0]
    trace, answer = best.trace, best.to_json(found)
    assert best.choice.recompute != "none" or trace.recomputed + trace.offloaded > 0
    assert (answer["offloaded"], answer["recomputed"]) == (trace.offloaded, trace.recomputed)
    assert answer["levels"] == list(trace.schedule.levels.names)
    assert ("%" in best.treatment) == (trace.recomputed + trace.offloaded > 0)
    # the question's limit is among them, and neither times nor bounds rise with memory
    limits = [one.limit_bytes for one in found.memory]
    assert limits == limits_around(limit)
    assert [one["limit_bytes"] for one in found.to_json()["memory"]] == limits
    for less, more in pairwise(found.memory):
        if less.iteration_ns is not None:
            assert more.iteration_ns is not None
            assert less.bound_ns <= less.iteration_ns >= more.iteration_ns
        if less.bound_ns is not None:
            assert less.bound_ns >= more.bound_ns
    own = found.memory[limits.index(limit)]
    assert own.iteration_ns <= best.iteration_ns
    (curve,) = (line for line in advice_chart(found).axes[0].lines if "limits" in line.get_label())
    assert len(curve.get_xdata()) == sum(one.iteration_ns is not None for one in found.memory)


@pytest.mark.parametrize(
    ("allowed", "gib"), [(["keep"], 6), (["keep", "offload"], 4.5), (["keep", "recompute"], 4.5)]
)
def test_only_allowed_treatments_are_planned(allowed: list[str], gib: float) -> None:
    asked = {**SMALL, "pp": 4, "tp": 1, "microbatch": 1, "chunks": 1, "time_limit": 1.0}
    found = advise(MODEL, "a100", **asked, memory_limit=int(gib * GIB), treatments=allowed)
    assert found.to_json()["treatments"] == allowed
    (best,) = found.rows
    assert "offload" in allowed or not best.trace.offloaded
    assert "recompute" in allowed or (best.choice.recompute, best.trace.recomputed) == ("none", 0)
    assert (best.profile.offload is not None) == ("offload" in allowed)


def test_per_stage_holds_for_what_is_planned_and_for_what_is_solved(monkeypatch) -> None:
    asked = {**SMALL, "pp": 4, "tp": 1, "microbatch": 1, "chunks": 1, "memory_limit": 4 * GIB}
    searched: list[bool] = []

    def watched(*given: Any, per_stage: bool, **options: Any) -> Any:
        searched.append(per_stage)
        raise NoSolution("nothing was searched for")

    for module in (advise_search, advise_memory):
        monkeypatch.setattr(module, "solve", watched)
    found = advise(MODEL, "a100", **asked, schedules=["1f1b", "optpipe"], per_stage=True)
    assert searched
    assert all(searched)
    assert found.to_json()["per_stage"] is True
    # AdaOffload treats activations one by one
    profile = load_profile(
        {
            "name": "p",
            "devices": 4,
            "memory_limit_bytes": 250,
            "stages": {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100},
            "offload": {"t_offload_ms": 1, "t_reload_ms": 1},
        }
    )
    assert replayed(profile, 8, "adaoffload")[1].offloaded
    with pytest.raises(InvalidSchedule, match="not all treated alike"):
        replayed(profile, 8, "adaoffload", per_stage=True)


def test_limits_around_are_whole_gib_away() -> None:
    away = [(limit - 10 * GIB) / GIB for limit in limits_around(10 * GIB)]
    assert away == [-2, -1, 0, 1, 2]
    assert limits_around(100) == [100, 100 + GIB]


def test_devices_share_long_sequences() -> None:
    def shares(seq: int, **asked: tuple[int, ...]) -> set[int]:
        question = Question(
            load_model(MODEL), load_machine("h100"), 8, 8, Work(seq=seq), 70 * GIB, **asked
        )
        return {choice.cp for choice in question.choices()}

    assert shares(4096) == shares(8192) == {1}
    assert shares(16384) == {1, 2}
    assert shares(65536) == {1, 2, 4, 8}
    assert shares(4096, cp=(2,)) == {2}
    # where one device cannot hold a sequence of one layer, devices share it
    found = advise(MODEL, "h100", 8, 8, 131072, time_limit=5, memory_limit=10 * GIB)
    assert found.rows[0].choice.cp > 1


def test_one_limit_in_every_command() -> None:
    found = advise(MODEL, "h100", **SMALL, time_limit=1, top=1)
    # 80 GB as the driver tells it, less what driver and libraries take
    assert found.question.limit_bytes == load_machine("h100").usable_bytes == int(75.6 * GIB)
    today = evaluate(MODEL, "h100", gpus=8, microbatches=1, seq=4096, tp=8)
    assert today.row.profile.memory_limit == (found.question.limit_bytes,)
    assert found.rows[0].profile.memory_limit is not None
    assert set(found.rows[0].profile.memory_limit) == {found.question.limit_bytes}


def test_a_plan_that_fills_the_memory_has_one_with_room_beside_it() -> None:
    asked = {**SMALL, "schedules": ["1f1b", "zb-h1"], "pp": 4, "tp": 1, "tolerance": 0.0}
    machine = load_machine("a100")
    wide = advise(MODEL, machine, **asked)  # type: ignore[arg-type]
    assert not wide.near_limit
    assert wide.roomy is None
    peak = wide.rows[0].peak_bytes
    # the same on a GPU with just so much memory
    small = replace(machine, memory_gib=peak / GIB + machine.rates.context_gib + 0.001)
    full = advise(MODEL, small, **asked)  # type: ignore[arg-type]
    assert (full.near_limit, full.rows[0].peak_bytes) == (True, peak)
    assert full.roomy is not None
    assert full.roomy.peak_bytes <= 0.95 * small.usable_bytes
    assert full.roomy.iteration_ns >= full.rows[0].iteration_ns
    assert full.to_json()["roomy"] == full.roomy.to_json()


def test_without_pcie_nothing_offloads() -> None:
    bare = replace(load_machine("a100"), pcie=None)
    found = advise(MODEL, bare, **SMALL, memory_limit=5 * GIB, time_limit=1)
    assert all(row.trace.offloaded == 0 for row in found.rows)
    for name in OFFLOADING:
        with pytest.raises(OptPipeError, match="no PCIe data"):
            advise(MODEL, bare, **SMALL, schedules=[name])


def test_the_memory_error_is_that_of_the_tables() -> None:
    with (ROOT / "results" / "costs_cells.csv").open() as file:
        cells = [cell for cell in csv.DictReader(file) if cell["role"] == "check"]
    errors = [abs(float(c["after_error"])) for c in cells if c["quantity"].endswith("peak_gib")]
    assert len(errors) >= 8
    assert MEMORY_ERROR / 2 < statistics.median(errors) <= MEMORY_ERROR * 1.1


def test_doubt_is_stated_per_case() -> None:
    fitted = advise(MODEL, "a100", **SMALL, schedules=["1f1b"])
    same = [one for one in compared() if one.machine == "a100-80gb"]
    assert fitted.error is not None
    assert min(abs(o.error) for o in same) <= fitted.error <= max(abs(o.error) for o in same)
    assert "a100-80gb" in fitted.basis
    # nothing was compared on this machine: no number, and the sentence says so
    other = advise(MODEL, "mi300x", **SMALL, schedules=["1f1b"])
    assert other.error is None
    assert "no published run of dense models in bf16 on mi300x was compared" in other.basis
    assert other.between == fitted.between >= between_layouts()  # as far off on a machine left out
    answer = other.to_json()
    assert answer["error"] is None
    assert {"mfu", "mfu_causal", "plausible", "doubt"} <= set(answer["rows"][0])


def test_more_than_any_run_reached_is_flagged() -> None:
    quick = replace(
        load_machine("a100"), rates=replace(load_machine("a100").rates, gemm=1.0, overhead=0.0)
    )
    found = advise(MODEL, quick, **SMALL, schedules=["1f1b"], pp=1, tp=1)
    best = best_published(quick, "dense", "bf16")
    row = found.rows[0]
    assert row.mfu_causal > best.mfu_causal
    assert found.plausibility(row)[0] is False
    assert any(text.startswith("not plausible: an MFU of") for text in found.doubts(row))
    slow = replace(quick, rates=replace(quick.rates, gemm=0.3))
    found = advise(MODEL, slow, **SMALL, schedules=["1f1b"], pp=1, tp=1)
    assert found.plausibility(found.rows[0])[0] is True


def test_time_runs_out_with_an_honest_answer() -> None:
    found = advise("qwen3-8b", "h100", 32, 256, 8192, time_limit=0.3)
    assert found.rows
    assert found.seconds < 8
    assert found.unsearched > 0
    assert found.hope_ns is not None
    assert found.hope_ns <= found.rows[-1].iteration_ns


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 3, "gpus": 24}, "tp: 3 does not divide the 16 heads"),
        ({"tp": 3}, "tp: 3 does not divide the 4 GPUs"),
        ({"pp": 16, "gpus": 16}, "pp: 16 stages, but small has 8 layers; at most 10 stages"),
        ({"dp": 2, "global_batch": 15}, "15 sequences are not a multiple of dp 2"),
        ({"pp": 4, "tp": 2}, "no way to spread 4 GPUs"),
        ({"ep": 2}, "ep: 2, but small has no experts"),
        ({"gpus": 0}, "gpus: must be a whole number of at least 1"),
        ({"recompute": "half"}, "recompute: expected none, norms, full"),
        ({"schedules": ["1f1x"]}, "'1f1x' is not a schedule"),
        ({"schedules": ["zb-v"], "chunks": 1}, "none of zb-v runs with 1 chunks"),
        ({"top": 0}, "top: must be"),
        ({"time_limit": 0}, "time limit: must be above 0"),
        ({"zero": 4}, "zero: expected 0, 1, 2 or 3"),
        ({"treatments": ["reload"]}, "treatments: expected some of keep, offload, recompute, got"),
        ({"treatments": ["keep"], "recompute": "full"}, "recompute: the treatments exclude it"),
        ({"treatments": ["keep"], "schedules": ["po"]}, "treatments: po offloads; leave it out or"),
    ],
)
def test_refuses_in_one_line(changes, message) -> None:
    with pytest.raises(OptPipeError, match=message) as error:
        advise(MODEL, "a100", **{**SMALL, **changes})
    assert "\n" not in str(error.value)


def test_says_what_the_leanest_needs_where_nothing_fits() -> None:
    with pytest.raises(OutOfMemory, match=r"small does not fit on 4 GPUs with 1 GiB each.*needs"):
        advise(MODEL, "a100", **SMALL, memory_limit=GIB)


def test_figure_names_the_rows(found) -> None:
    figure = advice_chart(found)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert found.rows
    for at, row in enumerate(found.rows, 1):
        assert any(text.startswith(f"{at}  {row.choice}, ") for text in texts)


def test_command_line(tmp_path, capsys) -> None:
    chart, points = tmp_path / "chart.png", tmp_path / "points.csv"
    profile, schedule = tmp_path / "p.yaml", tmp_path / "s.json"
    words = ["advise", "--model", "qwen3-0.6b", "--machine", "h100", "--gpus", "4"]
    words += ["--global-batch", "8", "--seq", "2048", "--time-limit", "1", "--microbatch", "1"]
    files = ["--chart", chart, "--csv", points, "--save-profile", profile, "--save", schedule]
    assert main([*words, "--pp", "2,4", "--json", *map(str, files)]) == 0
    answer = json.loads(capsys.readouterr().out)
    best = answer["rows"][0]
    assert answer["gpus"] == 4
    assert best["pp"] in (2, 4)
    assert best["microbatch"] == 1
    assert chart.stat().st_size > 10_000
    with points.open() as file:
        assert len(list(csv.DictReader(file))) == answer["searched"]
    saved = load_profile(profile)
    assert isinstance(saved, CostProfile)
    trace = simulate(Schedule.load(schedule), saved)
    assert max(trace.peak_bytes) == best["peak_bytes"]
    # what it says to do next is understood
    assert main([*words, "--pp", "2"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next: ")]
    estimated = lines[0].split(" estimate ")[1].split()
    estimated[estimated.index("--save") + 1] = str(profile)
    assert main(["estimate", *estimated]) == 0
    assert load_profile(profile).devices == 2


def test_machines_all_answer() -> None:
    for name in machine_names():
        machine = load_machine(name)
        question = Question(
            load_model(MODEL), machine, 4, 16, Work(), machine.usable_bytes, pp=(2,)
        )
        found = Search(replace(question, schedules=("1f1b",)), 1, 5.0, 0.0, lambda *_: None).run()
        assert found.rows[0].choice.pp == 2


def test_an_interrupt_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while other limits are searched for, by then in a search of its own."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("optpipe_sim.costs.advise.other_limits._searched", interrupted)
    found = advise(MODEL, "a100", **SMALL, pp=4, time_limit=15)  # a busy machine gets there, too
    assert found.interrupted
    assert found.memory == ()


def test_choices_that_are_not_estimated_in_time_count_as_unsearched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("optpipe_sim.costs.advise.shortlist.FEWEST", 1)
    monkeypatch.setattr("optpipe_sim.costs.advise.shortlist.RANKING", 0.0)
    found = advise(MODEL, "a100", **SMALL, schedules=["1f1b"], time_limit=60)
    known = {point.choice for point in found.points}
    assert known
    assert found.unsearched > 0
    assert found.hope_ns == pytest.approx(found.rows[0].iteration_ns * found.rows[0].mfu_causal)


EXPERTS = {**MODEL, "experts": 16, "experts_per_token": 2, "expert_ffn": 1408}


def test_pairs_are_chosen_where_they_hide_the_exchange() -> None:
    """With pairs the answer is no slower, interleaved 1F1B runs them, and its bound holds; without experts they are refused."""
    asked: dict[str, Any] = {"pp": 2, "tp": 1, "ep": 8, "chunks": (2,), "microbatch": 1, "zero": 1}
    asked |= {"schedules": ["1f1b-i", "1f1b-i:pairs=yes"], "recompute": ["none"]}
    machine = {"base": "h100-sxm", "devices_per_node": 4}
    given = load_model(EXPERTS), load_machine(machine), 16, 64, 4096
    without, paired = (
        advise(*given, pairs=pairs, **asked).rows[0] for pairs in ("none", "combined")
    )
    assert (without.schedule, paired.schedule) == ("1f1b-i", "1f1b-i:pairs=yes")
    assert paired.trace.schedule.has_pairs
    assert paired.bound_ns <= paired.iteration_ns < without.iteration_ns
    with pytest.raises(OptPipeError, match="pairs: small has no experts"):
        advise(load_model(MODEL), *given[1:], pairs="combined")
