"""Whole reports in a real headless Chromium, from the disk: how they load, several schedules, colours, paper."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import READY, Browser
from pages import LEVELS, replayed

from optpipe_sim import Report, Trace, load_profile, simulate
from optpipe_sim.ops import Op, OpKind
from optpipe_sim.report.columns import TraceColumns
from optpipe_sim.report.difference import changes
from optpipe_sim.study.compare import compare_all
from optpipe_sim.units import format_time

PROFILES = Path(__file__).parents[2] / "experiments/profiles"
# the place of a chart's point that opens a view
_POINT = """
const { x, y, view } = named("chart-fits").data, at = view.indexOf(arguments[0]);
return [x[at], y[at]];
"""


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
        "<script>Bokeh = { documents: [{ is_idle: true }] }; console.warn('heard')</script>"
    )
    chromium.open(tmp_path / "bad.html")
    assert any("heard" in message for message in chromium.messages())


def test_two_schedules_on_one_axis(shown: Any, chromium: Browser) -> None:
    profile = load_profile(PROFILES / "zb-1.5b-p8-m24.yaml")
    one, two = replayed("zb-h1", profile, 24), replayed("1f1b", profile, 24)
    shown(Report.of(one, two))
    longer = two.makespan_ns - one.makespan_ns
    whole = (0, two.makespan_ns)
    assert chromium.reach("a") == chromium.reach("b") == whole
    # keys are for the lanes also while those are low in the window
    assert chromium.run("return [scrollY, document.getElementById('a').getBoundingClientRect().top > innerHeight / 2]") == [0, True]  # fmt: skip
    chromium.press("+")
    chromium.wait(lambda: chromium.reach("b") != whole)
    chromium.press("0")
    chromium.wait(lambda: chromium.reach("b") == whole)
    # the last op of each is under the other's once they end together
    rows = [int(np.argmax(trace.end_ns)) for trace in (one, two)]

    def ends() -> list[float]:
        places = [chromium.box(name, "ops", row)[0] for name, row in zip("ab", rows, strict=True)]
        half = [(trace.end_ns - trace.start_ns)[row] / 2 for trace, row in zip((one, two), rows, strict=True)]  # fmt: skip
        scale = "const { x_scale } = [...Bokeh.index].find((each) => each.model.name === 'a').frame; return x_scale.compute(1) - x_scale.compute(0)"  # fmt: skip
        pixel = chromium.run(scale)
        return [place + pixel * length for place, length in zip(places, half, strict=True)]

    assert ends()[1] - ends()[0] > 50
    chromium.click("#align")
    chromium.wait(f"return named('a-shift').value === {longer}")
    assert ends()[1] == pytest.approx(ends()[0], abs=1)
    assert format_time(longer) in chromium.run("return named('a').below[0].axis_label")
    row = rows[0]
    (said,) = chromium.hover(*chromium.box("a", "ops", row))
    assert said[0].startswith(f"{one.schedule.op(row)}: ")
    chromium.click("#changed")
    rows = changes(one, two).rows
    chromium.wait(lambda: (chromium.shown("a", "changed"), chromium.shown("b", "changed")) == rows)
    # each shows the other's memory
    others = "return named('a').renderers.filter((each) => each.data_source.name === 'a-other').length"  # fmt: skip
    assert chromium.run(others) == 8
    chromium.click("#b-idle [data-at='0']")
    chromium.wait(lambda: chromium.marked("b", "gaps") == [0])
    chromium.click("#a-idle [data-at='3']")
    gap = TraceColumns(one).idle[3]
    chromium.wait(lambda: chromium.marked("a", "gaps") == [3])
    start, end = chromium.reach("a")
    assert start <= gap.start_ns + longer < gap.end_ns + longer <= end
    assert chromium.messages() == []


def test_schedules_of_other_shapes_are_shown_side_by_side(shown: Any, chromium: Browser) -> None:
    small = load_profile(PROFILES / "zb-1.5b-p8-m24.yaml")
    large = load_profile(PROFILES / "zb-14.6b-p16-m48.yaml")
    one = replayed("zb-v", small, 8)
    for two in (replayed("zb-h1", small, 8), replayed("zb-h1", large, 12)):
        shown(Report.of(one, two))
        assert "cannot be set side by side one by one" in chromium.run("return document.body.innerText")  # fmt: skip
        assert chromium.run("return document.querySelectorAll('#changed').length") == 0
        for switch in ("a-unfold", "align", "a-path"):
            chromium.click(f"#{switch}")
        for name, trace in (("a", one), ("b", two)):
            critical = sorted(TraceColumns(trace).critical)
            chromium.wait(
                lambda name=name, wanted=critical: chromium.shown(name, "critical") == wanted
            )
        assert chromium.messages() == []


def test_a_notebook_shows_the_page_in_a_frame(
    trace: Trace, chromium: Browser, tmp_path: Path
) -> None:
    found = compare_all(trace.profile, 4, ["1f1b", "gpipe"])
    (tmp_path / "notebook.html").write_text(Report.of_comparison(found)._repr_html_())
    chromium.open(tmp_path / "notebook.html")
    driver = chromium.driver
    driver.switch_to.frame(0)
    try:
        # a link leads to a place in the frame
        chromium.click("#choices [href='#view-2']")
        chromium.wait("return !!document.querySelector('#schedule-1 *')")
        assert chromium.run("return location.href") == "about:srcdoc#view-2"
    finally:
        driver.switch_to.default_content()
    assert chromium.messages() == []


def test_points_and_rows_open_their_schedule(shown: Any, chromium: Browser) -> None:
    profile = load_profile(PROFILES / "zb-1.5b-p8-m24.yaml")
    found = compare_all(profile, 8, ["1f1b", "zb-h1", "gpipe"])
    shown(Report.of_comparison(found))
    opened = "return [...document.querySelectorAll('details.view')].map((each) => each.open)"
    assert chromium.run(opened) == [True, False, False]
    chromium.click("#choices [href='#view-2']")
    chromium.wait(f"return !!named('schedule-1') && (() => {{{READY}}})()")
    assert chromium.run(opened) == [True, True, False]
    assert chromium.reach("schedule-1") == (0, found.rows[1].trace.makespan_ns)
    chromium.run("window.scrollTo(0, 0)")
    chromium.tap(*chromium.point("chart", *chromium.run(_POINT, 3)))
    chromium.wait(f"return !!named('schedule-2') && (() => {{{READY}}})()")
    assert chromium.messages() == []


def test_light_dark_and_paper(page: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    turned = "return getComputedStyle(document.getElementById('a')).filter"
    light = page.run(paper)
    assert page.run(turned) == "none"
    try:
        page.media(**{"color-scheme": "dark"})
        page.wait(lambda: page.run(paper) != light)
        dark = page.run(paper)
        assert page.run(turned).startswith("invert(1)")
        page.hover(*page.box("a", "ops", 0))
        tip = "return getComputedStyle(document.querySelector('.bk-Tooltip')).{}"
        assert page.run(tip.format("backgroundColor")) == page.run("return getComputedStyle(document.querySelector('.tile')).backgroundColor")  # fmt: skip
        assert page.run(tip.format("color")) == page.run("return getComputedStyle(document.body).color")  # fmt: skip
        for wanted in (light, dark):
            page.click("#other-colours")
            page.wait(lambda wanted=wanted: page.run(paper) == wanted)
            assert (page.run(turned) == "none") == (wanted == light)
        # a picture that scales stands for the figure on paper, and goes away again
        pictures = (
            "return [...document.querySelectorAll('#a > canvas')].map((each) => each.width > 1000)"
        )
        page.run("dispatchEvent(new Event('beforeprint'))")
        assert page.run(pictures) == [True]
        # and nothing else that Bokeh made for it, which would widen the page
        left = "return [...document.querySelectorAll('body > canvas')]"
        assert page.run(f"{left}.filter((each) => each.checkVisibility())") == []
        page.run("dispatchEvent(new Event('afterprint'))")
        assert page.run(pictures) == []
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        page.wait(lambda: page.run(paper) == light)
        assert page.run(turned) == "none"
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        printed = page.driver.execute_cdp_cmd("Page.printToPDF", {})["data"]
        assert base64.b64decode(printed).startswith(b"%PDF")
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        page.media(**{"color-scheme": "light"})


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
    chromium.wait(lambda: chromium.note().startswith("BW1.3 waited: "))
    assert chromium.run("return window.taken ?? 0") == 0
    found = compare_all(profile, 4, ["1f1b"])
    shown(Report.of_comparison(replace(found, rows=[replace(found.rows[0], schedule=name)])))
    (said,) = chromium.hover(*chromium.point("chart", *chromium.run(_POINT, 1)))
    assert said[0] == name
    assert chromium.run("return document.querySelector('#choices td').textContent") == name
    assert chromium.run("return window.taken ?? 0") == 0
    assert chromium.messages() == []


@pytest.mark.timing
@pytest.mark.parametrize(("profile", "microbatches", "seconds"), [("zb-1.5b-p8-m32", 32, 3), ("zb-28.3b-p32-m256", 256, 8)])  # fmt: skip
def test_pages_load_quickly(profile: str, microbatches: int, seconds: int, shown: Any, chromium: Browser) -> None:  # fmt: skip
    trace = replayed("zb-h1", load_profile(PROFILES / f"{profile}.yaml"), microbatches)
    report = Report.of(trace)
    took, worked = shown(report), chromium.worked()
    print(f"{profile}: {len(trace.schedule):,} ops, {len(report.html):,} bytes, {took:.2f} s, {worked:.2f} s of them at work")  # fmt: skip
    assert took < seconds or worked < seconds / 3  # other processes may have slowed it down
    assert chromium.messages() == []
