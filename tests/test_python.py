"""The Python door: what completes, what shows, sizes as people write them, and named errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from unit_profiles import unit_profile

import optpipe_sim
from optpipe_sim import (
    RecomputeLevel,
    StageCost,
    advise,
    build,
    check,
    compare,
    estimate,
    evaluate,
    explain,
    frontier,
    gantt,
    load_profile,
    plot,
    save_profile,
    simulate,
    solve,
)
from optpipe_sim.errors import OptPipeError
from optpipe_sim.names import optpipe
from optpipe_sim.solvers.online import SolverProcess
from optpipe_sim.solvers.options import SolveOptions
from optpipe_sim.solvers.robust import solve_robust
from optpipe_sim.study.compare import compare_all

GIB = 2**30
PROFILE = {
    "name": "sizes",
    "devices": 2,
    "stages": {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_gib": 1, "w_gib": 0.5},
}


def test_completes_to_what_one_uses_and_to_nothing_else() -> None:
    functions = {
        "advise", "build", "check", "compare", "estimate", "evaluate", "explain", "frontier", "gantt",
        "load_execution", "load_profile", "save_profile", "simulate", "solve", "plot",
    }  # fmt: skip
    nouns = {
        "CostProfile", "Execution", "Op", "OpKind", "Pair", "RecomputeLevel", "Report", "Schedule", "Shape", "SolveResult",
        "StageCost", "Trace",
    }  # fmt: skip
    errors = {
        name
        for name, one in vars(optpipe_sim.errors).items()
        if isinstance(one, type) and issubclass(one, OptPipeError)
    }
    assert set(dir(optpipe_sim)) == functions | nouns | errors | {"__version__"}
    assert {"gantt", "memory", "overview", "compare_chart", "frontier_chart"} <= set(dir(plot))
    assert all(inspect.isfunction(getattr(plot, name)) for name in dir(plot))


def test_no_module_of_plot_hides_a_function() -> None:
    modules = {path.stem for path in Path(plot.__file__ or "").parent.glob("*.py")}
    assert not modules & set(dir(plot))


def test_options_of_solve_complete_wherever_they_are_taken() -> None:
    options = {field.name for field in fields(SolveOptions)}
    for function in (optpipe_sim.solve, solve_robust, SolverProcess, optpipe):
        shown = inspect.signature(function).parameters
        assert options - set(shown) <= {"evaluations", "per_stage"}, function
    assert options - set(inspect.signature(optpipe_sim.frontier).parameters) == {"margin"}
    shown = inspect.signature(optpipe_sim.build).parameters
    assert {"chunks", "group", "limit", "recompute", "tuned"} <= set(shown)
    profile = load_profile(PROFILE)
    assert build("gis", profile, 8, group=None) == build("gis", profile, 8)


def test_signatures_show() -> None:
    for name in set(optpipe_sim.__all__) - {"plot", "Report"}:
        door = getattr(optpipe_sim, name)
        parameters = inspect.signature(door).parameters.values()
        assert not any(one.kind is one.VAR_POSITIONAL for one in parameters), name
        wrapped = {one.name for one in parameters if one.kind is one.VAR_KEYWORD}
        # the options of a schedule, and those of solve, are documented where they belong
        assert not wrapped or name in ("build", "frontier"), name
        assert door.__doc__


def test_sizes_are_written_as_people_write_them() -> None:
    profile = load_profile(PROFILE)
    schedule = build("1f1b", profile, 4)
    trace = simulate(schedule, profile, 2 * GIB)
    assert simulate(schedule, profile, "2GiB") == trace
    assert simulate(schedule, profile, ["2GiB", 2 * GIB]) == trace
    assert check(schedule, profile, "1.5GiB") == check(schedule, profile, 3 * GIB // 2) != []
    assert profile.limits("2GiB") == (2 * GIB, 2 * GIB)
    found = solve(profile, 4, "2GiB", engine="adaoffload")
    assert found.objective_ns == solve(profile, 4, 2 * GIB, engine="adaoffload").objective_ns
    rows = compare(profile, 4, ["1f1b"], "2GiB")
    assert rows[0].trace.memory_limit == (2 * GIB, 2 * GIB)
    curve = frontier(profile, 4, ["2GiB", "1536MiB"], 1.0, engine="adaoffload", schedules=["1f1b"])
    assert [point.limit_bytes for point in curve.points] == [3 * GIB // 2, 2 * GIB]
    stage = StageCost(1, 1, 1, act_bytes="1GiB", w_bytes="512MiB")  # type: ignore[arg-type]
    assert (stage.act_bytes, stage.offload_bytes, stage.w_bytes) == (GIB, GIB, GIB // 2)
    level = RecomputeLevel("full", 1, "24MiB")  # type: ignore[arg-type]
    assert level.keep_bytes == 24 * 2**20
    limited = optpipe_sim.CostProfile("x", 2, (stage, stage), memory_limit="2GiB")  # type: ignore[arg-type]
    assert limited.memory_limit == (2 * GIB, 2 * GIB)
    build("zb-1p", profile, 4, limit="2GiB")


P, S, T = (
    unit_profile(2),
    build("1f1b", unit_profile(2), 2),
    simulate(build("1f1b", unit_profile(2), 2), unit_profile(2)),
)
MODEL = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 100, "ffn": 128}
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: simulate("1f1b", P), "schedule: expected a Schedule, got '1f1b'; make one with build("),  # type: ignore[arg-type]
    (lambda: simulate(S, "p.yaml"), "profile: expected a CostProfile, got 'p.yaml'; read one with"),  # type: ignore[arg-type]
    (lambda: simulate(S, {"a": 1}), "profile: expected a CostProfile, got a dict"),  # type: ignore[arg-type]
    (lambda: simulate(S, P, "much"), "memory limit: 'much' is not a size"),
    (lambda: simulate(S, P, 2.5), "memory limit: expected a size, as 24GiB or whole bytes, got 2.5"),  # type: ignore[arg-type]
    (lambda: simulate(S, P, True), "memory limit: expected a size"),
    (lambda: simulate(S, P, [1, None]), "memory limit: expected a size, as 24GiB or whole bytes, got None"),  # type: ignore[list-item]
    (lambda: check(P, S), "schedule: expected a Schedule, got a CostProfile"),  # type: ignore[arg-type]
    (lambda: check(S, P, "1 GB of memory"), "memory limit: '1 GB of memory' is not a size"),
    (lambda: solve("p.yaml", 4), "profile: expected a CostProfile, got 'p.yaml'"),  # type: ignore[arg-type]
    (lambda: solve(P, "4"), "microbatches"),  # type: ignore[arg-type]
    (lambda: solve(P, 4, "little"), "memory limit: 'little' is not a size"),
    (lambda: build(P, "1f1b", 4), "name: expected a str, got a CostProfile; as in build('1f1b'"),  # type: ignore[arg-type]
    (lambda: build("1f1b", "p.yaml", 4), "profile: expected a CostProfile, got 'p.yaml'"),  # type: ignore[arg-type]
    (lambda: build("1f1b", P, "4"), "microbatches: must be a whole number of at least 1, got '4'"),  # type: ignore[arg-type]
    (lambda: compare("p.yaml", 4), "profile: expected a CostProfile"),  # type: ignore[arg-type]
    (lambda: compare(P, 4, "1f1b,zb-h1"), "schedules: expected a list of names, got '1f1b,zb-h1'"),
    (lambda: frontier(P, 4, "24GiB"), "limits: give a list of at least one size, got '24GiB'"),
    (lambda: frontier(P, 4, ["24 apples"]), "limits: '24 apples' is not a size"),
    (lambda: explain(S), "trace: expected a Trace, got a Schedule; make one with simulate("),  # type: ignore[arg-type]
    (lambda: gantt(S), "trace: expected a Trace, got a Schedule"),  # type: ignore[arg-type]
    (lambda: load_profile(5), "profile: expected a path or a mapping, got a int"),  # type: ignore[arg-type]
    (lambda: save_profile(S, "p.yaml"), "profile: expected a CostProfile, got a Schedule"),  # type: ignore[arg-type]
    (lambda: StageCost(1, 1, 1, "some"), "act_bytes: 'some' is not a size"),  # type: ignore[arg-type]
    (lambda: StageCost(1, 1, 1, 1.5), "act_bytes: must be a whole number, got 1.5"),  # type: ignore[arg-type]
    (lambda: advise(MODEL, "h100", "8", 8, 1024), "gpus: must be a whole number of at least 1, got '8'"),  # type: ignore[arg-type]
    (lambda: advise(MODEL, "h100", 8, 8, 1024, memory_limit="big"), "memory limit: 'big' is not a size"),
    (lambda: advise(MODEL, "h100", 8, 8, 1024, tp="2"), "tp: "),  # type: ignore[arg-type]
    (lambda: estimate(MODEL, "h100", "8"), "devices: must be a whole number from 1 to 1048576, got '8'"),  # type: ignore[arg-type]
    (lambda: estimate(MODEL, "h100", 8, seq=[1]), "seq: must be a whole number"),  # type: ignore[arg-type]
    (lambda: evaluate(MODEL, "h100", 8, 1024, microbatches="4"), "microbatches: must be a whole number"),  # type: ignore[arg-type]
    (lambda: T.plot("10 apples"), "'10 apples' is no instant"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_types_are_named(number: int) -> None:
    call, sentence = WRONG[number]
    with pytest.raises(OptPipeError) as caught:
        call()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_reprs_fit_a_line_and_pages_show_a_table_with_a_picture() -> None:
    profile = load_profile({**PROFILE, "memory_limit_gib": 3})
    trace = simulate(build("zb-h1", profile, 4), profile)
    result = solve(profile, 4, engine="adaoffload")
    compared = compare_all(profile, 4, ["1f1b", "zb-h1"])
    curve = frontier(profile, 4, ["3GiB"], 1.0, engine="adaoffload", schedules=["1f1b"])
    found = advise(MODEL, "h100", 4, 8, 1024, time_limit=1, top=2)
    today = evaluate(MODEL, "h100", 4, 1024, microbatches=2, pp=2, measured_ns=2e5)
    things = [
        profile, trace, trace.schedule, result, compared, compared.rows[0], curve, curve.points[0],
        found, found.rows[0], today,
    ]  # fmt: skip
    for thing in things:
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 200, repr(thing)
        assert not repr(thing).startswith(f"{type(thing).__name__}(")
    for thing in (trace, result, compared.rows[0], curve, found, found.rows[0], today):
        page = thing._repr_html_()
        assert page.startswith("<table>")
        assert page.count("<img src='data:image/png;base64,iVBOR") == 1
    for thing in (profile, trace.schedule):
        assert thing._repr_html_().startswith("<table>")


def test_a_trace_draws_itself() -> None:
    figure = T.plot()
    above, _ = figure.axes
    assert above.get_xlim() == (0, T.makespan_ns / 1e6)
    part = T.plot("50%", T.makespan_ns)
    assert part.axes[0].get_xlim() == (T.makespan_ns / 2e6, T.makespan_ns / 1e6)


def test_errors_are_where_one_looks_for_them() -> None:
    import pickle

    from optpipe_sim import Deadlock, OptPipeError

    profile = load_profile(PROFILE)
    with pytest.raises(Deadlock, match=r"^does not fit: ") as caught:
        simulate(build("gpipe", profile, 4), profile, max(profile.least_limits))
    assert isinstance(caught.value, OptPipeError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (Deadlock, str(caught.value))


def test_a_run_is_told_by_its_global_batch() -> None:
    asked: dict[str, Any] = {"pp": 2, "microbatch": 2}
    by_batch = evaluate(MODEL, "h100", 8, 1024, global_batch=32, **asked)
    # 4 replicas of 2 sequences in 4 microbatches
    assert by_batch.row == evaluate(MODEL, "h100", 8, 1024, microbatches=4, **asked).row
    for wrong in ({"global_batch": 33}, {}, {"global_batch": 32, "microbatches": 4}):
        with pytest.raises(OptPipeError, match="global_batch"):
            evaluate(MODEL, "h100", 8, 1024, **asked, **wrong)


def test_doubts_travel_with_the_result() -> None:
    found = advise(MODEL, "h100", 4, 8, 1024, time_limit=1, top=2)
    page = found._repr_html_()
    assert found.basis.partition(";")[0] in page.replace("&#x27;", "'")
    for doubt in found.doubts(found.rows[0]):
        assert doubt.partition("'")[0].partition("<")[0] in page
    strange = any(doubt.startswith("not plausible") for doubt in found.doubts(found.rows[0]))
    assert ("not plausible" in repr(found)) == strange
    today = evaluate(MODEL, "h100", 4, 1024, microbatches=2, pp=2)
    assert "how sure" in today._repr_html_()


def test_every_error_is_there() -> None:
    for name in ("Deadlock", "InvalidSchedule", "NoSolution", "OutOfMemory", "ProfileError"):
        assert issubclass(getattr(optpipe_sim, name), optpipe_sim.OptPipeError)


def test_a_comparison_shows_itself_as_a_table() -> None:
    profile = load_profile(PROFILE)
    rows = compare(profile, 4, ["1f1b", "zb-h1"])
    page = rows._repr_html_()
    assert page.count("<tr>") == len(rows) == 2
    for row in rows:
        assert f"{row.trace.iteration_ns / 1e6:.4g} ms, {row.speedup:.2f}x 1F1B" in page
    assert repr(rows).startswith(f"<2 rows: {rows[0]!r}")
