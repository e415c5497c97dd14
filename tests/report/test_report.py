"""The report's page: its numbers are those of `simulate --json` and `explain --json`, and it is one safe file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import bokeh
import numpy as np
import pytest
from bokeh.core.serialization import Serializer
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import HOSTILE, LEVELS, Page, replayed

from optpipe_sim import Report, Trace, build, load_profile, simulate
from optpipe_sim.cli import main
from optpipe_sim.errors import OptPipeError
from optpipe_sim.ops import Op, OpKind
from optpipe_sim.plot.style import shade
from optpipe_sim.reasons.data import explain_data
from optpipe_sim.reasons.reasons import Reasons, last_reason
from optpipe_sim.report.columns import TraceColumns, whole
from optpipe_sim.report.difference import (
    changes,
    is_run_of,
    measured_table,
    time_rows,
    treatment_rows,
)
from optpipe_sim.report.tables import legend
from optpipe_sim.study.compare import compare_all
from optpipe_sim.units import format_time

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "experiments/profiles/zb-1.5b-p8-m24.yaml"


@pytest.fixture(scope="module")
def report(trace: Trace) -> Report:
    """The page of the trace."""
    return Report.of(trace)


def test_the_numbers_are_those_of_simulate(trace: Trace, report: Report) -> None:
    shown = Page(report.html).tiles
    measures = trace.measures()
    assert {"makespan_ns", "bubble_rate", "peak_bytes", "offloaded", "recomputed", "fits"} <= set(
        shown
    )
    assert shown == {key: str(measures[key]) for key in shown}


def test_the_command_shows_what_simulate_and_explain_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(*words: str) -> dict[str, Any]:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    page = tmp_path / "page.html"
    made = answer("report", "zb-h1", str(PROFILE), "-m", "24", "-o", str(page))
    simulated = answer("simulate", str(PROFILE), "--schedule", "zb-h1", "-m", "24")
    explained = answer("explain", "zb-h1", str(PROFILE), "-m", "24")["explanation"]
    found = Page(page.read_text())
    assert list(made["files"]) == [str(page)]
    assert {key: made[key] for key in ("makespan_ns", "idle_ns", "peak_bytes")} == {
        key: simulated[key] for key in ("makespan_ns", "idle_ns", "peak_bytes")
    }
    assert found.tiles["makespan_ns"] == str(simulated["makespan_ns"])
    texts = [row[-1][0] for row in found.rows("a-idle")]
    assert texts == [gap["text"] for gap in explained["gaps"]]
    assert explained["hints"]
    assert all(hint["what"] in found.text for hint in explained["hints"])
    assert f"optpipe-sim report zb-h1 {PROFILE} -m 24" in found.text


def test_the_tables_are_those_of_explain(trace: Trace, report: Report) -> None:
    found, data = Page(report.html), explain_data(trace)
    gaps = [[cell[1] or cell[0] for cell in row] for row in found.rows("a-idle")]
    assert [(row[0], row[2], row[3], row[6]) for row in gaps] == [
        (str(gap["end_ns"] - gap["start_ns"]), str(gap["device"]), gap["cause"], gap["text"])
        for gap in data["gaps"]
    ]
    heads = re.findall(r"<th[^>]*><button>([^<]*)</button>", report.html)
    heads = heads[heads.index("device") : heads.index("device") + len(found.rows("a-devices")[0])]
    for row in found.rows("a-devices"):
        shown = {head: cell[1] for head, cell in zip(heads, row, strict=True)}
        device = data["devices"][int(shown["device"])]
        assert shown["computing"] == str(device["busy_ns"])
        assert shown["recomputing"] == str(device["recompute_ns"])
        assert shown["idle"] == str(sum(device["idle_ns"].values()))
        for cause, ns in device["idle_ns"].items():
            assert shown.get(cause, "0") == str(ns)
    idle = [float(row[1][1]) for row in found.rows("a-devices")]
    assert idle == sorted(idle, reverse=True)
    parts = {row[0][0]: row[1][1] for row in found.rows("a-path")}
    assert parts == {key: str(ns) for key, ns in data["critical_path"]["parts_ns"].items()}


def test_every_chain_of_causes_leads_back_to_the_start(trace: Trace) -> None:
    columns = TraceColumns(trace)
    by, start = columns.ops["by"].astype(int), trace.start_ns
    assert (by < 0).any()
    for row in range(len(by)):
        seen = []
        while row >= 0:
            seen.append(row)
            assert by[row] < 0 or start[by[row]] <= start[row]
            row = by[row]
        assert len(seen) == len(set(seen))
    # the critical path begins with the last op, and its steps are those of `explain`
    steps = explain_data(trace)["critical_path"]["steps"]
    names = list(dict.fromkeys(step["op"] for step in steps))
    assert [str(trace.schedule.op(row)) for row in columns.critical] == names


def test_an_op_names_what_it_waited_for(trace: Trace) -> None:
    columns, reasons = TraceColumns(trace), Reasons(trace)
    for row in range(0, len(trace.schedule), 7):
        op = trace.schedule.op(row)
        reason = last_reason(reasons, op)
        by = int(columns.ops["by"][row])
        assert (None if by < 0 else trace.schedule.op(by)) == reason.by
        # nothing that it waited for ended later
        assert reason.until_ns == reasons.of_start(op)[0].until_ns
        waited = columns.ops["waited"][row]
        idle = sum(int(times[row]) for times in trace.waits_ns.values())
        assert waited.startswith(f"{format_time(idle)} idle, ") == (idle > 0)
        assert ("nothing keeps it" if by < 0 else f"{reason.by} (device ") in waited
        late = trace.start_ns[row] - reason.until_ns
        assert f"{format_time(late)} for no reason" in waited if late else "no reason" not in waited
        # an arrow from what it waited for, which has ended or (a reload's anchor) begun
        assert columns.ops["since"][row] <= trace.start_ns[row]


def test_the_legend_has_every_colour_of_an_op() -> None:
    profile = load_profile(PROFILE)
    schedule = build("zb-v", profile, 8)
    shown = legend(simulate(schedule, profile.for_shape(schedule.shape)))
    colours = {shade(kind, chunk, 2) for kind in (OpKind.F, OpKind.B, OpKind.W) for chunk in (0, 1)}
    assert len(colours) == 6
    assert {colour for colour in colours if colour in shown} == colours


@given(st.lists(st.integers(-(2**31), 2**53), max_size=8))
@settings(max_examples=50)
def test_columns_of_whole_numbers_are_kept_as_steps(values: list[int]) -> None:
    steps = Serializer().encode(whole(values))["steps"]
    assert list(accumulate(steps)) == values
    # of numbers, which add up exactly where each is at most 2^53
    assert all(type(step) is int for step in steps)


def test_recomputation_offloads_and_messages_are_on_the_page(trace: Trace) -> None:
    columns = TraceColumns(trace)
    kinds = set(trace.schedule.table[:, 0].tolist())
    assert {OpKind.O, OpKind.R} <= kinds
    assert len(columns.inside["start"]) == trace.recomputed > 0
    assert len(columns.messages["depart"]) == len(trace.messages.producer) > 0
    share = columns.inside["end"].astype(int) - columns.inside["start"].astype(int)
    assert share.sum() == sum(trace.recompute_ns)
    sizes = dict(zip(columns.ops["name"], columns.ops["bytes"], strict=True))
    assert sizes["F1.3"] == "+1000 MiB at its start, −400 MiB at its end"
    assert sizes["W1.3"] == "−400 MiB at its end"  # and it allocates nothing
    apart = replayed("1f1b:recompute=full", load_profile(LEVELS), 8)
    lives = columns.lives
    assert len(lives["activation"]) == 4 * 12
    assert sum(text != "no" for text in lives["offloaded"]) == trace.offloaded
    assert sum(text != "no" for text in lives["recomputed"]) == trace.recomputed
    assert TraceColumns(apart).lives["recomputed"][0].startswith("full, ")
    assert sum(treatment_rows(apart).values()) == 4 * 8


def test_hostile_names_are_shown_as_text(trace: Trace) -> None:
    profile = replace(trace.profile, name=HOSTILE)
    schedule = trace.schedule.replace(meta={"name": HOSTILE, "note": HOSTILE})
    page = Page(Report.of(simulate(schedule, profile)).html)
    assert [tag for tag, _ in page.tags].count("script") == 3
    assert "img" not in [tag for tag, _ in page.tags]
    assert page.text.count(HOSTILE) >= 3
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)


def test_the_page_needs_nothing_else(report: Report, tmp_path: Path) -> None:
    outside = [
        value
        for tag, attributes in Page(report.html).tags
        for key, value in attributes.items()
        if key in ("src", "href") and not str(value).startswith(("data:", "#"))
    ]
    assert outside == []
    assert report.save(tmp_path / "deep" / "F.html").read_text() == report.html
    with pytest.raises(OptPipeError, match=r"F\.pdf: the name of a report must end in \.html"):
        report.save(tmp_path / "F.pdf")


def test_headings_and_figures_can_be_read_aloud(trace: Trace, report: Report) -> None:
    found = compare_all(trace.profile, 4, ["1f1b", "gpipe"])
    for each in (report, Report.of(trace, trace), Report.of_comparison(found)):
        page = Page(each.html)
        levels = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3")]
        assert levels[0] == 1
        assert all(below <= above + 1 for above, below in pairwise(levels))
        assert all("aria-label" in figure for figure in page.figures)


def test_a_report_shows_itself_in_a_notebook(report: Report) -> None:
    (frame,) = Page(report._repr_html_()).tags
    assert frame[0] == "iframe"
    base = "\n<base href='about:srcdoc'>"  # links stay in the frame
    assert frame[1]["srcdoc"].replace(base, "") == report.html != frame[1]["srcdoc"]
    assert len(repr(report)) < 100


def test_thirty_thousand_ops_are_less_than_three_megabytes() -> None:
    """Also of offloads under a limit, of which each stage takes times of its own: what is most irregular."""
    profile = load_profile(ROOT / "experiments/profiles/zb-14.6b-p16-m48-offload.yaml")
    random, names = np.random.default_rng(1), ("t_f_ns", "t_b_ns", "t_w_ns")
    stages = [
        replace(
            stage, **{name: int(getattr(stage, name) * random.uniform(0.9, 1.1)) for name in names}
        )
        for stage in profile.stages
    ]
    profile = replace(profile, stages=tuple(stages), memory_limit=24 * 2**30)
    trace = replayed("adaoffload", profile, 510)
    assert len(trace.schedule) > 30_000
    assert trace.offloaded > 2_000
    assert len(Report.of(trace).html.encode()) < 3_000_000


def remade(name: str, tmp_path: Path) -> list[Page]:
    """An example of the documentation, and what its command in the Makefile writes."""
    made = re.search(rf"optpipe-sim ((?:(?!optpipe-sim).)*?)\s+(?:-o|--report) docs/{name}", (ROOT / "Makefile").read_text(), re.DOTALL)  # fmt: skip
    assert main([*made[1].replace("\\", " ").split(), "--report", str(tmp_path / name)]) == 0
    return [Page((folder / name).read_text()) for folder in (ROOT / "docs", tmp_path)]


def test_the_examples_are_what_make_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    compared = [page.rows("choices") for page in remade("report-compare.html", tmp_path)]
    times = [[row[:5] for row in rows] for rows in compared]  # bounds may improve
    assert times[0] == times[1]
    pages = remade("report-example.html", tmp_path)
    assert pages[0].tables == pages[1].tables
    assert pages[0].tiles == pages[1].tiles
    said = [page.text.split("Settings and provenance")[0] for page in pages]
    assert said[0] == said[1]
    if f"bokeh {bokeh.__version__}" in pages[0].text:  # other versions may write models otherwise
        drawn = [_renumbered(page.figures[0]) for page in pages]
        assert drawn[0] == drawn[1]


def _renumbered(text: str) -> str:
    """Models' ids in the order of their first places: a process counts on."""
    ids: dict[str, str] = {}
    return re.sub(r'"p\d+"', lambda found: ids.setdefault(found[0], f'"p{len(ids)}"'), text)


# -- two of them ------------------------------------------------------------------------------------


def test_the_difference_by_cause_adds_up() -> None:
    profile = load_profile(PROFILE)
    one, two = replayed("zb-h1", profile, 24), replayed("1f1b", profile, 24)
    *parts, total = time_rows(one, two)
    assert total == ("time per iteration", one.makespan_ns, two.makespan_ns)
    for side in (1, 2):
        assert sum(part[side] for part in parts) == pytest.approx(total[side], rel=1e-12)
    page = Page(Report.of(one, two).html)
    longer = two.makespan_ns - one.makespan_ns
    share = f"{longer / one.makespan_ns:.1%}"
    assert (
        f"1f1b takes {format_time(longer)} ({share}) longer than zb-h1, mostly idle: " in page.text
    )
    fewer = replayed("1f1b", profile, 12)
    longer_by = "1f1b of 24 microbatches takes "
    for traces, said in (
        ((two, one), "less than 1f1b"),
        ((one, one), "Both take "),
        ((fewer, two), longer_by),
    ):
        assert said in Page(Report.of(*traces).html).text
    shown = [(row[0][0], float(row[1][1]), float(row[2][1])) for row in page.rows("difference")]
    assert shown == [*parts, total]
    peaks = [(row[1][1], row[2][1]) for row in page.rows("memory-difference")]
    assert peaks == [(str(a), str(b)) for a, b in zip(one.peak_bytes, two.peak_bytes, strict=True)]
    assert {"a-idle", "b-idle", "a-devices", "b-devices"} <= set(page.tables)


def test_what_differs_is_marked() -> None:
    profile = load_profile(LEVELS)
    one = replayed("1f1b", profile, 8)
    programs = [list(program) for program in one.schedule.programs]
    at = programs[2].index(Op(OpKind.F, 2, 5))
    programs[2][at - 1 : at + 1] = programs[2][at - 1 : at + 1][::-1]
    two = simulate(one.schedule.replace(programs=programs), profile)
    found = changes(one, two)
    # the two that changed places, and the one after them
    assert found.order == 3
    marked = [[str(trace.schedule.op(row)) for row in rows] for trace, rows in zip((one, two), found.rows, strict=True)]  # fmt: skip
    assert sorted(marked[0]) == sorted(marked[1]) == sorted(map(str, programs[2][at - 1 : at + 2]))
    again = simulate(one.schedule.replace(recompute={"1.3": "full"}), profile)
    treated = changes(one, again)
    assert (treated.order, treated.treatments) == (0, 1)
    names = {str(one.schedule.op(row)) for row in treated.rows[0]}
    assert names == {"F1.3", "BW1.3"}
    assert changes(one, one).rows == ([], [])
    assert "cannot be set side by side" in changes(one, replayed("1f1b", profile, 4)).says


def test_a_measured_trace_beside_its_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = load_profile(ROOT / "results/confirm_cpu.profile.yaml")
    measured = Trace.load(ROOT / "results/confirm_cpu.trace.json")
    schedule = measured.schedule
    predicted = simulate(schedule, measured.profile)
    assert profile.devices == measured.profile.devices
    table = Page(measured_table(predicted, measured)).rows("measured")
    assert float(table[-1][1][1]) == sum(float(row[1][1]) for row in table[:-1])
    assert is_run_of(measured, predicted)
    assert not is_run_of(predicted, predicted)
    # also of what was planned with other costs, which a replay with these costs is not
    planned = simulate(schedule, replace(measured.profile, name="planned"))
    assert is_run_of(measured, planned)
    assert not is_run_of(predicted, planned)
    assert Report.of(predicted, measured).title == "po-h, predicted against po-h, measured"
    found = changes(predicted, measured)
    assert found.durations > 0
    lasting = [trace.end_ns - trace.start_ns for trace in (predicted, measured)]
    off = np.abs(lasting[1] - lasting[0]) > 0.1 * lasting[0]
    assert found.rows[0] == np.flatnonzero(off).tolist()
    schedule.save(tmp_path / "s.json")
    words = ["report", str(tmp_path / "s.json"), str(ROOT / "results/confirm_cpu.profile.yaml")]
    words += ["--against", str(ROOT / "results/confirm_cpu.trace.json")]
    assert main([*words, "-o", str(tmp_path / "F.html"), "--json"]) in (0, 1)
    answer = json.loads(capsys.readouterr().out)
    assert answer["against"]["makespan_ns"] == measured.makespan_ns
    assert Page((tmp_path / "F.html").read_text()).tiles["makespan_ns"] == str(measured.makespan_ns)
