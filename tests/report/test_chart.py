"""The chart of time over memory: what is far from all others is outside the picture at first, and said to be."""

from __future__ import annotations

from bokeh.models import Title
from bokeh.models.tools import HoverTool

from optpipe_sim.report.chart import Curve, Mark, chart

GIB = 2**30
FITTING = [Mark(name, memory * GIB, time * 1e9, "fits", at) for at, (name, memory, time) in enumerate(
    (("one", 40, 10), ("two", 50, 11), ("three", 55, 12)), 1)]  # fmt: skip


def inside(plot, mark: Mark) -> bool:
    x, y = mark.memory_bytes / GIB, mark.time_ns / 1e9
    return plot.x_range.start <= x <= plot.x_range.end and plot.y_range.start <= y <= plot.y_range.end  # fmt: skip


def titles(plot) -> list[str]:
    return [one.text for one in plot.below if isinstance(one, Title)]


def test_outliers_are_outside_and_said() -> None:
    near = Mark("near", 66 * GIB, 9e9, "over", 4)
    large = Mark("gpipe", 447 * GIB, 9e9, "over", 5)
    slow = Mark("slow", 50 * GIB, 40e9, "fits", 6)
    plot = chart([*FITTING, near, large, slow], (), 60 * GIB, "memory")
    assert [inside(plot, one) for one in (*FITTING, near, large, slow)] == [True] * 4 + [False] * 2
    assert titles(plot) == [
        "2 outside the picture: gpipe (9 s, 447 GiB), slow (40 s, 50 GiB); zoom out with Ctrl and the wheel"
    ]
    # names of what is seen have the room
    (texts,) = (
        one.data_source.data["text"] for one in plot.renderers if "text" in one.data_source.data
    )
    assert "gpipe" not in " ".join(texts)


def test_without_outliers_everything_is_inside_and_nothing_is_said() -> None:
    for limit in (60 * GIB, None):
        plot = chart(FITTING, (), limit, "memory")
        assert all(inside(plot, one) for one in FITTING)
        assert titles(plot) == []
    alone = Mark("over", 100 * GIB, 9e9, "over", 1)
    assert inside(chart([alone], (), None, "memory"), alone)


def test_a_curve_says_the_range() -> None:
    curve = Curve("best", ((20 * GIB, 12e9), (40 * GIB, 11e9)))
    far = Mark("far", 90 * GIB, 11e9, "published")
    plot = chart([far], [curve], None, "limit")
    assert not inside(plot, far)
    assert titles(plot) == ["1 outside the picture; zoom out with Ctrl and the wheel"]


def test_what_a_mouse_is_told_lies_beside_the_lane() -> None:
    from optpipe_sim.report.lanes import _hover

    hover = _hover([], [("op", "@op")])
    assert isinstance(hover, HoverTool)
    assert hover.attachment == "vertical"
