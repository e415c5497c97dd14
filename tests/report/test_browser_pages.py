"""Whole reports in a real headless Chromium, from the disk: how they load, several schedules, colours, paper."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from pages import LEVELS, replayed

from optpipe_sim import Report, Trace, load_profile, simulate
from optpipe_sim.ops import Op, OpKind
from optpipe_sim.report.columns import TraceColumns
from optpipe_sim.report.difference import changes
from optpipe_sim.study.compare import compare_all

PROFILES = Path(__file__).parents[2] / "experiments/profiles"


def test_pages_load_without_a_message(shown: Any, chromium: Browser, tmp_path: Path) -> None:
    alone = {**LEVELS, "devices": 1, "memory_limit_gib": 80}
    for one in (
        replayed("1f1b:recompute=full", load_profile(LEVELS), 12),
        replayed("1f1b", load_profile(alone), 2),  # never idle
    ):
        shown(Report.of(one))
        assert chromium.messages() == []
    chromium.open(PROFILES.parents[1] / "docs/report-example.html")
    assert chromium.messages() == []
    # which would have been seen
    (tmp_path / "bad.html").write_text(
        "<section class=view data-drawn></section><script>console.warn('heard')</script>"
    )
    chromium.open(tmp_path / "bad.html")
    assert any("heard" in message for message in chromium.messages())


def test_two_schedules_on_one_axis(shown: Any, chromium: Browser) -> None:
    profile = load_profile(PROFILES / "zb-1.5b-p8-m24.yaml")
    one, two = replayed("zb-h1", profile, 24), replayed("1f1b", profile, 24)
    shown(Report.of(one, two))
    longer = two.makespan_ns - one.makespan_ns
    assert chromium.reach("a") == chromium.reach("b") == (0, two.makespan_ns)
    chromium.click("[data-align=end]")
    assert chromium.reach("a") == (-longer, one.makespan_ns)
    assert chromium.reach("b") == (0, two.makespan_ns)
    chromium.run("optpipe.charts.a.figure.x_range.setv({ start: 1e8, end: 3e8 })")
    assert chromium.reach("b") == (1e8 + longer, 3e8 + longer)
    chromium.run("optpipe.charts.b.figure.x_range.setv({ start: 1e8, end: 3e8 })")
    assert chromium.reach("a") == (1e8 - longer, 3e8 - longer)
    chromium.click("[data-mark=changed]")
    rows = changes(one, two).rows
    assert (chromium.marked("a"), chromium.marked("b")) == rows
    # each shows the other's memory
    others = "return optpipe.charts.a.figure.renderers.filter((each) => each.data_source.name === 'a-other').length"  # fmt: skip
    assert chromium.run(others) == 8
    chromium.click("#b-idle [data-gap='0']")
    assert chromium.run("return Array.from(optpipe.charts.b.gaps.selected.indices)") == [0]
    assert chromium.messages() == []


def test_schedules_of_other_shapes_stand_side_by_side(shown: Any, chromium: Browser) -> None:
    small = load_profile(PROFILES / "zb-1.5b-p8-m24.yaml")
    large = load_profile(PROFILES / "zb-14.6b-p16-m48.yaml")
    one = replayed("zb-v", small, 8)
    for two in (replayed("zb-h1", small, 8), replayed("zb-h1", large, 12)):
        shown(Report.of(one, two))
        assert "cannot be set side by side one by one" in chromium.run("return document.body.innerText")  # fmt: skip
        assert chromium.run("return document.querySelectorAll('[data-mark=changed]').length") == 0
        chromium.click("[data-unfold]")
        chromium.click("[data-align=end]")
        chromium.click("[data-mark=critical]")
        for name, trace in (("a", one), ("b", two)):
            assert chromium.marked(name) == sorted(TraceColumns(trace).critical)
        assert chromium.messages() == []


def test_a_notebook_shows_the_page_in_a_frame(
    trace: Trace, chromium: Browser, tmp_path: Path
) -> None:
    around = "<section class='view' data-drawn='yes'></section>" + Report.of(trace)._repr_html_()
    (tmp_path / "notebook.html").write_text(around)
    chromium.open(tmp_path / "notebook.html")
    inside = "document.querySelector('iframe').contentDocument"
    chromium.wait(f"return !!{inside}.querySelector('section.view[data-drawn]')")
    assert chromium.run(f"return {inside}.querySelectorAll('#a *').length") > 0
    assert chromium.messages() == []


def test_points_and_rows_open_their_schedule(shown: Any, chromium: Browser) -> None:
    profile = load_profile(PROFILES / "zb-1.5b-p8-m24.yaml")
    found = compare_all(profile, 8, ["1f1b", "zb-h1", "gpipe"])
    shown(Report.of_comparison(found))
    hidden = "return [...document.querySelectorAll('section.view')].map((each) => each.hidden)"
    assert chromium.run(hidden) == [False, False, True, True]
    chromium.click("#choices [data-open='2']")
    chromium.wait("return document.getElementById('view-2').dataset.drawn === 'yes'")
    assert chromium.run(hidden) == [False, False, False, True]
    assert chromium.run("return optpipe.charts['schedule-1'].makespan") == found.rows[1].trace.makespan_ns  # fmt: skip
    chromium.run("window.scrollTo(0, 0)")
    x, y = chromium.run(
        "const view = [...Bokeh.index].find((each) => each.model.name === 'chart');"
        "const { x, y, view: opens } = view.model.document.get_model_by_name('chart-fits').data;"
        "return [x[opens.indexOf(3)], y[opens.indexOf(3)]]"
    )
    drawn = "return document.getElementById('view-3').dataset.drawn === 'yes'"
    chromium.tap_for(drawn, *chromium.point("chart", x, y))
    assert chromium.messages() == []


# whether the label of the time axis is drawn in a light ink: on the screen, or on what is printed
LIGHT_INK = """
const screen = [...Bokeh.index][0].canvas_view.primary.canvas;
const canvas = document.querySelector('.lanes > canvas') ?? screen;
const copy = new OffscreenCanvas(canvas.width, 25).getContext('2d', { willReadFrequently: true });
copy.drawImage(canvas, 0, 25 - canvas.height);
const { data } = copy.getImageData(0, 0, canvas.width, 25);
const opaque = data.findIndex((value, at) => at % 4 === 3 && value > 250);
return data[opaque - 1] + data[opaque - 2] + data[opaque - 3] > 380;
"""


def test_light_dark_and_paper(page: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(paper)
    assert page.run(LIGHT_INK) is False
    try:
        page.media(**{"color-scheme": "dark"})
        page.wait(f"return (() => {{{LIGHT_INK}}})()")
        dark = page.run(paper)
        assert dark != light
        page.hover(*page.box("a", "ops", 0))
        tip = "return getComputedStyle(document.querySelector('.bk-Tooltip')).{}"
        assert page.run(tip.format("backgroundColor")) == page.run("return getComputedStyle(document.querySelector('.tile')).backgroundColor")  # fmt: skip
        assert page.run(tip.format("color")) == page.run("return getComputedStyle(document.body).color")  # fmt: skip
        page.click("[data-colours]")
        page.wait(f"return !(() => {{{LIGHT_INK}}})()")
        assert page.run(paper) == light
        page.click("[data-colours]")
        assert page.run(paper) == dark
        page.run("dispatchEvent(new Event('beforeprint'))")
        # a picture that scales stands for the figure on paper, and goes away again
        assert page.run("return document.querySelector('#a > canvas').width") > 1000
        assert (page.run(paper), page.run(LIGHT_INK)) == (light, False)
        page.run("dispatchEvent(new Event('afterprint'))")
        assert page.run("return document.querySelectorAll('.lanes > canvas').length") == 0
        assert page.run(paper) == dark
        printed = page.driver.execute_cdp_cmd("Page.printToPDF", {})["data"]
        assert base64.b64decode(printed).startswith(b"%PDF")
        assert page.run(paper) == dark
    finally:
        page.media(**{"color-scheme": "light"})
        page.click("[data-colours]")


def test_hostile_names_do_nothing(shown: Any, chromium: Browser) -> None:
    name = "</script><script>window.taken = 1</script><img src=x onerror='window.taken = 1'>"
    level = {**LEVELS["stages"]["recompute"][0], "name": name}
    profile = load_profile({**LEVELS, "stages": {**LEVELS["stages"], "recompute": [level]}})
    kept = replayed("1f1b", replace(profile, name=name), 8)
    schedule = kept.schedule.replace(recompute={"1": name}, meta={"name": name})
    trace = simulate(schedule, kept.profile)
    shown(Report.of(trace))
    assert chromium.run("return document.querySelector('h1').textContent") == name
    row = trace.schedule.row(Op(OpKind.BW, 1, 3))
    (said,) = chromium.hover(*chromium.box("a", "ops", row))
    assert said[5] == f"{name}, inside its backward"
    chromium.tap(*chromium.box("a", "ops", row))
    assert chromium.run("return window.taken ?? 0") == 0
    assert chromium.messages() == []


@pytest.mark.timing
@pytest.mark.parametrize(("profile", "microbatches", "seconds"), [("zb-1.5b-p8-m32", 32, 3), ("zb-28.3b-p32-m256", 256, 8)])  # fmt: skip
def test_pages_load_quickly(profile: str, microbatches: int, seconds: int, shown: Any, chromium: Browser) -> None:  # fmt: skip
    trace = replayed("zb-h1", load_profile(PROFILES / f"{profile}.yaml"), microbatches)
    report = Report.of(trace)
    took = shown(report)
    for _ in range(2):  # other work may have slowed it down
        took = took if took < seconds else shown(report)
    print(f"{profile}: {len(trace.schedule):,} ops, {len(report.html):,} bytes, {took:.2f} s")
    assert took < seconds
    assert chromium.messages() == []
