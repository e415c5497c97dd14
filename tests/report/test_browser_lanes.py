"""A report's lanes in a real headless Chromium: what a hand does to them, and what they answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser
from pages import replayed

from optpipe_sim import Report, Trace, load_profile
from optpipe_sim.ops import Op, OpKind
from optpipe_sim.report.columns import TraceColumns
from optpipe_sim.report.lane_layout import LaneLayout
from optpipe_sim.units import format_size, format_time

PROFILES = Path(__file__).parents[2] / "experiments/profiles"


def chain(columns: TraceColumns, row: int) -> list[int]:
    found = []
    while row >= 0:
        found.append(row)
        row = int(columns.ops["by"][row])
    return sorted(found)


def test_a_hover_says_what_the_op_waited_for_and_what_becomes_of_its_activation(
    page: Browser, trace: Trace
) -> None:
    columns = TraceColumns(trace)
    offloaded = trace.schedule.table[trace.schedule.table[:, 0] == OpKind.O][1]
    row = trace.schedule.row(Op(OpKind.B, int(offloaded[1]), int(offloaded[2])))
    span, stage = trace.spans[row], int(offloaded[1])
    (said,) = page.hover(*page.box("a", "ops", row))
    op, times, waited, held, away, again, sizes = said
    assert op.startswith(f"{span.op}: stage {stage} ")
    assert op.endswith(f"device {span.device}")
    assert format_time(span.end_ns - span.start_ns) in times
    by = trace.schedule.op(int(columns.ops["by"][row]))
    assert f"{by} (device {trace.profile.placement[by.stage]})" in waited
    first = trace.span(Op(OpKind.F, stage, span.op.microbatch))
    assert held.startswith(f"{first.start_ns / 1e6:g} ms to ")
    assert " back " in away
    assert again == "selective, inside its backward"
    assert "MiB at its start" in sizes
    row = trace.schedule.row(Op(OpKind.F, 0, 0))
    (said,) = page.hover(*page.box("a", "ops", row))
    assert (said[2], said[4]) == ("nothing keeps it from the start", "no")


def test_a_hover_over_idle_time_and_over_memory(page: Browser, trace: Trace) -> None:
    columns = TraceColumns(trace)
    gap = next(at for at, one in enumerate(columns.idle) if one.cause == "neighbour")
    found = columns.idle[gap]
    (said,) = page.hover(*page.box("a", "gaps", gap))
    assert said[0].startswith(f"device {found.device}, ")
    assert said[0].endswith(format_time(found.length_ns))
    assert said[1].startswith(
        f"neighbour: {found.op} comes after, it waits for {found.by} (device "
    )
    # memory: low in the lanes of a device and of the host, in the middle of the time
    layout = columns.layout
    for place, steps, lane in (
        (layout.memory(1), trace.memory[1], "device 1, limit 7 GiB"),
        (layout.host(0), trace.host_memory[0], "pinned host memory, no limit"),
    ):
        middle = trace.makespan_ns // 2
        (said,) = page.hover(*page.lane("a", middle, place[1] - 4))
        at = int(np.searchsorted(steps.times_ns, middle, side="right")) - 1
        since, until = steps.times_ns[at : at + 2].tolist()
        assert said == [
            format_size(int(steps.bytes[at])),
            f"{format_time(since, 6)} to {format_time(until, 6)}",
            f"{lane}, peak {format_size(steps.peak)}",
        ]


def test_a_click_on_an_op_marks_its_causes_back_to_the_start(page: Browser, trace: Trace) -> None:
    columns = TraceColumns(trace)
    row = int(np.argmax(trace.end_ns))
    wanted = chain(columns, row)
    page.tap(*page.box("a", "ops", row))
    page.wait(lambda: page.marked("a") == wanted)
    note = page.wait(page.note)
    assert note.startswith(f"{trace.schedule.op(row)} waited: ")
    assert f"its chain of {len(wanted)} causes" in note
    page.press("Escape")
    page.wait(lambda: page.marked("a") == [])
    assert page.note() == ""


def test_the_page_has_the_numbers_of_the_trace(page: Browser, trace: Trace) -> None:
    columns = TraceColumns(trace)
    for part, names in (("ops", ("start", "end", "by")), ("gaps", ("start", "end", "by"))):
        for name in names:
            found = page.run(f"return Array.from(named('a-{part}').data.{name})")
            assert found == getattr(columns, part)[name].tolist()
    assert columns.ops["end"].tolist() == trace.end_ns.tolist()


def test_a_click_may_be_held_and_the_next_may_come_at_once(page: Browser, trace: Trace) -> None:
    rows = [trace.schedule.row(Op(OpKind.F, 1, microbatch)) for microbatch in (3, 5)]
    held, next_one = (page.box("a", "ops", row) for row in rows)
    page.tap(*held, held_ms=700)
    page.wait(lambda: rows[0] in page.marked("a"))
    for place in (held, next_one):
        page.tap(*place)
    page.wait(lambda: page.marked("a") == chain(TraceColumns(trace), rows[1]))


def test_a_click_on_idle_time_names_its_cause_and_goes_to_the_op_waited_for(
    page: Browser, trace: Trace
) -> None:
    columns = TraceColumns(trace)
    gap = next(at for at, one in enumerate(columns.idle) if one.cause == "memory")
    found = columns.idle[gap]
    page.tap(*page.box("a", "gaps", gap))
    page.wait(lambda: page.note().startswith("Idle"))
    note = page.note()
    assert f"Cause: memory: {found.op} comes after, it waits for {found.by} (device " in note
    by = trace.schedule.row(found.by)
    assert page.marked("a") == chain(columns, by)
    start, end = page.reach("a")
    assert start <= min(found.start_ns, trace.start_ns[by])
    assert end >= max(found.end_ns, trace.end_ns[by])
    assert end - start < trace.makespan_ns


def test_the_critical_path_and_messages_are_switches(page: Browser, trace: Trace) -> None:
    wanted = sorted(TraceColumns(trace).critical)
    assert page.shown("a", "critical") == []
    page.click("#a-path")
    page.wait(lambda: page.shown("a", "critical") == wanted)
    # a click on an idle interval marks its own chain beside it
    page.tap(*page.box("a", "gaps", 0))
    page.wait(lambda: page.note().startswith("Idle"))
    assert page.shown("a", "critical") == wanted
    page.click("#a-path")
    page.wait(lambda: page.shown("a", "critical") == [])
    for on in (True, False):
        assert page.run("return named('a-sent').visible") is not on
        page.click("#a-messages")
        page.wait(lambda on=on: page.run("return named('a-sent').visible") is on)


def test_zoom_and_pan_by_mouse_keys_and_touch(page: Browser, trace: Trace) -> None:
    def reach() -> tuple[float, float]:
        return page.reach("a")

    def after(act: Callable[[], None]) -> tuple[float, float]:
        before = page.at_rest("a")
        act()
        page.wait(lambda: reach() != before)
        return page.at_rest("a")

    x, y = page.box("a", "ops", len(trace.schedule) // 2)
    whole = reach()
    assert whole == (0, trace.makespan_ns)
    page.mouse("mouseMoved", x, y)
    wheel = {"deltaX": 0, "deltaY": -240}
    near = after(lambda: page.mouse("mouseWheel", x, y, **wheel, modifiers=2))
    assert near[1] - near[0] < whole[1] - whole[0]
    page.mouse("mouseWheel", x, y, **wheel)  # scrolls the page
    assert page.at_rest("a") == near
    x, y = page.box("a", "ops", len(trace.schedule) // 2)
    moved = after(lambda: page.drag(x, y, 90))
    assert moved[0] < near[0]
    assert after(lambda: page.press("ArrowRight"))[0] > moved[0]
    assert after(lambda: page.press("0")) == whole
    closer = after(lambda: page.press("+"))
    assert closer[1] - closer[0] == pytest.approx(0.6 * (whole[1] - whole[0]))
    assert after(lambda: page.press("ArrowRight"))[0] == pytest.approx(closer[0] + 0.2 * (closer[1] - closer[0]))  # fmt: skip
    assert after(lambda: page.press("0")) == whole
    x, y = page.box("a", "ops", len(trace.schedule) // 2)
    touch = page.driver.execute_cdp_cmd
    touch("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 2})
    pinch = {"x": x, "y": y, "scaleFactor": 2.5, "gestureSourceType": "touch"}
    pinched = after(lambda: touch("Input.synthesizePinchGesture", pinch))
    assert pinched[1] - pinched[0] < whole[1] - whole[0]
    assert after(lambda: page.swipe(x, y, (60, 0)))[0] < pinched[0]
    # a finger that moves up scrolls the page, which a figure may fill
    before, scrolled = page.at_rest("a"), page.run("return scrollY")
    page.swipe(x, y, (0, -100))
    page.wait(f"return scrollY > {scrolled}")
    assert page.at_rest("a") == pytest.approx(before)
    touch("Emulation.setTouchEmulationEnabled", {"enabled": False})
    assert page.messages() == []


def test_devices_fold_and_unfold(shown: Any, chromium: Browser) -> None:
    trace = replayed("zb-h1", load_profile(PROFILES / "zb-14.6b-p16-m48.yaml"), 16)
    shown(Report.of(trace))

    def opened() -> list[int]:
        return chromium.marked("a", "lanes")

    height = "return named('a').height"
    layout = "return [...named('a-places').y].map(String)"
    fullest = int(np.argmax(trace.peak_bytes))
    assert opened() == [fullest]
    low, placed = chromium.run(height), chromium.run(layout)
    chromium.click("#a-devices [data-at='5']")
    chromium.wait(lambda: opened() == [fullest, 5])
    chromium.wait(lambda: chromium.run(height) > low)
    chromium.click("#a-devices [data-at='5']")
    # what the script adds up is what Python did
    chromium.wait(lambda: chromium.run(height) == low)
    assert chromium.run(layout) == placed
    chromium.run("document.getElementById('a').scrollIntoView()")
    x, y = chromium.lane("a", 0, 9 * LaneLayout.of(trace).height + 50)
    chromium.tap(x - 12, y)  # on the axis
    chromium.wait(lambda: opened() == [fullest, 9])
    for wanted in ([*range(16)], [], [*range(16)]):
        chromium.click("#a-unfold")
        chromium.wait(lambda wanted=wanted: opened() == wanted)
    # which are more than a window holds; an idle interval of the table comes into sight
    columns = TraceColumns(trace)
    gap = next(at for at, one in enumerate(columns.idle) if one.device == 15)
    chromium.click(f"#a-idle [data-at='{gap}']")
    level = columns.layout.levels[15]
    chromium.wait(lambda: 0 < chromium.lane("a", columns.idle[gap].start_ns, level)[1] < 1000)
    chromium.press("Escape")
    chromium.press("0")
    # where the boxes are drawn is where hovers find them
    row = trace.schedule.row(Op(OpKind.B, 9, 3))
    (said,) = chromium.hover(*chromium.box("a", "ops", row))
    assert said[0].startswith("B9.3: ")


def test_the_tables_sort_and_lead_to_the_lanes(page: Browser, trace: Trace) -> None:
    columns = TraceColumns(trace)
    at = 4
    page.click(f"#a-idle [data-at='{at}']")
    found = columns.idle[at]
    page.wait(lambda: page.reach("a") != (0, trace.makespan_ns))
    start, end = page.reach("a")
    assert start <= found.start_ns
    assert found.end_ns <= end
    assert page.marked("a", "gaps") == [at]
    first = "return document.querySelector('#a-idle tbody td').dataset.value"
    longest, shortest = columns.idle[0].length_ns, columns.idle[-1].length_ns
    assert page.run(first) == str(longest)
    for wanted in (longest, shortest, longest):
        page.click("#a-idle th")
        assert page.run(first) == str(wanted)
