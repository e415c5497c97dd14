"""Figures: whole files in every format, every op drawn, readable at both ends of the sizes."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from unit_profiles import unit_profile

from optpipe_sim import Schedule, Shape, Trace, simulate
from optpipe_sim.errors import OptPipeError
from optpipe_sim.ops import COMPUTE, OpKind
from optpipe_sim.plot.axis import window_of
from optpipe_sim.plot.compare import compare_chart
from optpipe_sim.plot.held import memory, tightest
from optpipe_sim.plot.lanes import gantt
from optpipe_sim.plot.picture import overview
from optpipe_sim.plot.style import COLOURS, FORMATS, save

MAGIC = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF"}
END = {".png": b"IEND\xaeB`\x82", ".svg": b"</svg>", ".pdf": b"%%EOF"}
OFFLOADING = {"offload": {"t_offload_ms": 1, "t_reload_ms": 1}}


def one_f_one_b(devices: int, microbatches: int) -> Schedule:
    """1F1B by hand, so that these tests need no other part."""
    programs = []
    for stage in range(devices):
        ahead = min(devices - stage - 1, microbatches)
        program = [f"F{stage}.{j}" for j in range(ahead)]
        for j in range(microbatches - ahead):
            program += [f"F{stage}.{j + ahead}", f"BW{stage}.{j}"]
        program += [f"BW{stage}.{j}" for j in range(microbatches - ahead, microbatches)]
        programs.append(program)
    return Schedule(Shape(devices, 1, microbatches), programs, meta={"name": "by hand"})


def trace_of(devices: int, microbatches: int, **changes: Any) -> Trace:
    return simulate(one_f_one_b(devices, microbatches), unit_profile(devices, **changes))


@pytest.fixture
def offloading() -> Trace:
    """Two devices, two chunks, every kind of op, a limit."""
    programs = [
        "F0.0 O0.0 F0.1 F2.0 B2.0 W2.0 R0.0 F2.1 BW2.1 BW0.0 BW0.1",
        "F1.0 F1.1 F3.0 B3.0 W3.0 F3.1 BW3.1 BW1.0 BW1.1",
    ]
    profile = unit_profile(2, 2, memory_limit_bytes=400, **OFFLOADING)
    return simulate(Schedule(Shape(2, 2, 2), [ops.split() for ops in programs]), profile)


def boxes(ax: Axes) -> dict[str, int]:
    """How many boxes each collection of ops has, by kind and chunk."""
    return {
        str(artist.get_gid()): len(artist.get_paths())
        for artist in ax.collections
        if isinstance(artist, PolyCollection) and artist.get_gid()
    }


def labels(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("ending", FORMATS)
def test_whole_files_in_every_format(tmp_path: Path, offloading: Trace, ending: str) -> None:
    path = save(overview(offloading), tmp_path / "new" / f"figure{ending}")
    data = path.read_bytes()
    assert data.startswith(MAGIC[ending])
    assert END[ending] in data[-32:]
    assert [path] == list(path.parent.iterdir())  # no temporary file stays
    save(overview(offloading), path)
    assert path.read_bytes() == data  # the same figure is the same file


def test_pdf_embeds_its_fonts(tmp_path: Path, offloading: Trace) -> None:
    data = save(overview(offloading), tmp_path / "figure.pdf").read_bytes()
    assert b"/FontFile2" in data
    assert b"/Type3" not in data


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.PNG.txt"])
def test_other_endings_are_refused_in_one_line(
    tmp_path: Path, offloading: Trace, name: str
) -> None:
    for drawn in (overview(offloading), gantt(offloading), compare_chart([row()])):
        with pytest.raises(OptPipeError, match=r"ends in \.png, \.svg, \.pdf") as caught:
            save(drawn, tmp_path / name)
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_unwritable_path_is_one_line(tmp_path: Path, offloading: Trace) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OptPipeError, match="cannot be written"):
        save(overview(offloading), tmp_path / "file" / "figure.png")


def test_gantt_draws_every_op_where_it_runs(offloading: Trace) -> None:
    ax = gantt(offloading)
    assert boxes(ax) == {
        "F-0": 4,
        "F-1": 4,
        "B-1": 2,
        "W-1": 2,
        "BW-0": 4,
        "BW-1": 2,
        "O-0": 1,
        "R-0": 1,
    }
    reload = offloading.span(next(span.op for span in offloading.spans if span.op.kind.name == "R"))
    drawn = next(artist for artist in ax.collections if artist.get_gid() == "R-0")
    (left, top), (right, bottom) = drawn.get_paths()[0].vertices[[0, 2]]
    assert (left, right) == (reload.start_ns / 1e6, reload.end_ns / 1e6)
    assert 0.64 < top < bottom < 1  # in its lane, below the compute ops of device 0
    assert ax.get_xlim() == (0, offloading.makespan_ns / 1e6)
    assert ax.get_xlabel() == "time (ms)"
    assert ax.get_ylabel() == "device"


def test_small_gantt_labels_each_compute_op() -> None:
    trace = trace_of(4, 8)
    ax = gantt(trace)
    wanted = sorted(f"{span.op.kind.name}{span.op.microbatch}" for span in trace.spans)
    assert sorted(labels(ax)) == wanted


def test_labels_lie_within_their_boxes() -> None:
    for trace in (trace_of(4, 8), trace_of(8, 20)):
        ax = gantt(trace)
        figure = ax.figure
        figure.canvas.draw()
        compute = [span for span in trace.spans if span.op.kind in COMPUTE]
        assert len(ax.texts) == len(compute)
        shortest = min(span.end_ns - span.start_ns for span in compute) / 1e6
        room = (
            ax.transData.transform([(shortest, 0)])[0, 0] - ax.transData.transform([(0, 0)])[0, 0]
        )
        for text in ax.texts:
            if not text.get_text().startswith("BW"):  # which last twice as long
                assert text.get_window_extent().width < room


def test_large_gantt_is_light_and_still_whole(tmp_path: Path) -> None:
    trace = trace_of(32, 128)
    figure = overview(trace)
    for ending in FORMATS:
        path = save(figure, tmp_path / f"figure{ending}")
        assert path.stat().st_size < 3_000_000  # boxes are rasterised in vector files
    lanes = figure.axes[0]
    assert (
        len(lanes.get_children()) < 50
    )  # a collection for each kind of op, not an artist for each op
    ax = gantt(trace)
    assert boxes(ax) == {"F-0": 32 * 128, "BW-0": 32 * 128}
    assert not ax.texts
    ticks = [tick.get_text() for tick in ax.get_yticklabels()]
    assert ticks == [str(device) for device in range(0, 32, 4)]


def test_a_window_has_its_part_of_every_picture(offloading: Trace) -> None:
    trace = trace_of(4, 8)
    window = window_of(trace, "25%", "50%")
    assert window == (trace.makespan_ns // 4, trace.makespan_ns // 2)
    ax = gantt(trace, window=window)
    inside = [
        span
        for span in trace.spans
        if span.end_ns > window.from_ns and span.start_ns < window.to_ns
    ]
    assert sum(boxes(ax).values()) == len(inside) < len(trace.spans)
    assert ax.get_xlim() == (window.from_ns / 1e6, window.to_ns / 1e6)
    for part in overview(trace, "25%", "50%").axes:
        assert part.get_xlim() == ax.get_xlim()
    assert overview(trace, "6ms").axes[0].get_xlim() == (6, trace.makespan_ns / 1e6)
    assert window_of(trace, 0, 10**15) == (0, trace.makespan_ns)


@pytest.mark.parametrize(
    ("start", "end", "sentence"),
    [
        ("9s", None, "from 9s: the iteration ends at 33 ms"),
        ("50%", "5ms", "from 50% to 5ms: 5 ms is not later than 16.5 ms"),
        ("101%", None, "'101%': must be at most 100%"),
        ("-1", None, "'-1' is no instant: write 10%, 120ms"),
        (True, None, "True is no instant"),
    ],
)
def test_windows_without_a_part_are_one_line(start: Any, end: Any, sentence: str) -> None:
    with pytest.raises(OptPipeError, match=re.escape(sentence)):
        overview(trace_of(4, 8), start, end)


def test_a_long_trace_has_its_beginning_apart_and_legible() -> None:
    trace = trace_of(4, 400)
    figure = overview(trace)
    above, below, detail = figure.axes
    assert above.get_xlim() == below.get_xlim() == (0, trace.makespan_ns / 1e6)
    assert 0 == detail.get_xlim()[0] < detail.get_xlim()[1] < 0.3 * above.get_xlim()[1]
    assert not above.texts
    assert {"0", "15"} < set(labels(detail))
    figure.canvas.draw()
    assert all(text.get_fontsize() >= 5 for text in detail.texts)
    (mark,) = above.patches
    assert mark.get_width() == detail.get_xlim()[1]
    assert len(overview(trace, 0).axes) == 2  # all of it, because it was asked for
    assert len(overview(trace_of(4, 40)).axes) == 2


def test_memory_shows_the_curve_the_limit_and_what_is_static() -> None:
    stages = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "static_bytes": 50}
    trace = trace_of(4, 8, stages=stages, memory_limit_bytes=500)
    ax = memory(trace)
    lines = {str(line.get_label()): line for line in ax.lines}
    for device in range(4):
        assert max(lines[f"device {device}"].get_ydata()) == trace.peak_bytes[device]
    assert set(lines["limit 500 B"].get_ydata()) == {500}
    assert "static 50 B" in [text.get_text() for text in ax.get_legend().get_texts()]
    assert ax.get_ylim()[1] > 500


def test_memory_of_many_devices_is_an_envelope_and_three_of_them() -> None:
    limits = [10_000] * 32
    limits[7] = 2_600  # room for 26 activations of 100 bytes, 25 of which it holds
    trace = trace_of(32, 40, memory_limit_bytes=limits)
    assert tightest(trace) == 7
    ax = memory(trace)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names[0] == "all 32 devices"
    assert names[3:] == ["device 7 (tightest)", "limit 2.539 KiB\n(device 7)"]
    (band,) = [artist for artist in ax.collections if artist.get_label() == "all 32 devices"]
    top = max(path.vertices[:, 1].max() for path in band.get_paths())
    assert top == pytest.approx(max(trace.peak_bytes) / 1024)


def test_a_limit_far_above_is_named_and_not_drawn() -> None:
    trace = trace_of(4, 8, memory_limit_bytes=100_000)
    ax = memory(trace)
    assert ax.get_ylim()[1] < 1000
    assert "limit 97.66 KiB\n(off the scale)" in [t.get_text() for t in ax.get_legend().get_texts()]


def test_overview_shares_the_time_axis_and_states_the_measures(offloading: Trace) -> None:
    figure = overview(offloading)
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim()
    assert above.get_position().x0 == below.get_position().x0
    text = " ".join(item.get_text() for item in figure.texts)
    assert f"bubble {offloading.bubble_rate_flush:.1%}" in text
    assert "peak 400 B" in text or f"peak {max(offloading.peak_bytes)} B" in text
    assert "1 of 8 activations offloaded" in text
    assert "does not fit" not in text
    misfit = overview(replace(offloading, fits=False))
    assert any("does not fit the limit" in item.get_text() for item in misfit.texts)


def test_nothing_is_cut_off_or_overlaps(offloading: Trace) -> None:
    """All that is drawn lies on the figure; the texts at the top do not meet."""
    long_named = replace(offloading, fits=False)
    long_named.schedule.meta["name"] = "a schedule from a file with a very long name " * 3
    chart = compare_chart([row(), row(schedule="gis:group=6,chunks=3")])
    for figure in (
        overview(long_named),
        overview(trace_of(32, 40)),
        overview(trace_of(4, 400)),
        overview(trace_of(4, 400), "10%", "12%"),
        overview(trace_of(1, 1)),
        chart,
    ):
        figure.canvas.draw()
        drawn = figure.get_tightbbox()
        width, height = figure.get_size_inches()
        assert 0 <= drawn.x0 < drawn.x1 <= width
        assert 0 <= drawn.y0 < drawn.y1 <= height
        heads = [text.get_window_extent() for text in figure.texts]
        heads += [ax.get_legend().get_window_extent() for ax in figure.axes if ax.get_legend()]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(heads, 2))


def test_draws_on_a_given_axis() -> None:
    from matplotlib.figure import Figure

    trace = trace_of(4, 8)
    above, below = Figure(figsize=(8, 6)).subplots(2)
    assert gantt(trace, above, legend=False) is above
    assert memory(trace, below, legend=False) is below
    assert above.get_legend() is None
    assert sum(boxes(above).values()) == len(trace.schedule)


def row(**changes: Any) -> dict[str, Any]:
    """A row of ``compare --json``."""
    measures = trace_of(4, 8).measures()
    return {"schedule": "1f1b", **measures, "speedup": 1.0, "lower_bound_ns": 24_000_000, **changes}


def test_compare_chart_has_a_bar_per_row_and_hatches_what_does_not_fit() -> None:
    rows = [
        row(),
        row(schedule="gpipe", fits=False),
        row(schedule="zb-v", cost_ns=None, reason="no"),
    ]
    figure = compare_chart(rows, memory_limit=[350, 400, 400, 400])
    times, sizes = figure.axes
    assert [tick.get_text() for tick in times.get_yticklabels()] == ["1f1b", "gpipe", "zb-v"]
    assert [bool(bar.get_hatch()) for bar in times.patches] == [False, False, True, True]
    whole, bubble = (bar.get_width() for bar in times.patches[:2])
    assert whole + bubble == pytest.approx(rows[0]["makespan_ns"] / 1e6)
    assert bubble / (whole + bubble) == pytest.approx(rows[0]["bubble_rate_flush"])
    assert [bar.get_width() for bar in sizes.patches] == [max(rows[0]["peak_bytes"])] * 2
    assert any(set(line.get_xdata()) == {350} for line in sizes.lines)
    assert "no" in labels(times)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[-2:] == ["limit 350 B", "does not fit"]
    assert "≈" not in labels(times)
    alike = compare_chart([row(), row(schedule="zb-h1", toss_up=True)])
    assert labels(alike.axes[0]).count("≈") == 1
    told = [text.get_text() for text in alike.legends[0].get_texts()]
    assert "≈ a toss-up with the fastest" in told


def test_one_huge_peak_does_not_flatten_the_other_bars() -> None:
    gib = 2**30
    rows = [row(schedule=str(at), peak_bytes=[at * gib] * 4) for at in (18, 20, 24, 1536)]
    _, sizes = compare_chart(rows).axes
    assert [bar.get_width() for bar in sizes.patches[:3]] == [18, 20, 24]
    assert sizes.get_xlim()[1] == pytest.approx(1.02 * 24)
    assert sizes.patches[3].get_width() == pytest.approx(sizes.get_xlim()[1])
    assert {line.get_gid() for line in sizes.lines} == {"break"}
    numbers = [text.get_text() for text in sizes.texts]
    assert numbers == ["18.0 GiB", "20.0 GiB", "24.0 GiB", "1.5 TiB"]
    _, near = compare_chart(rows[:3]).axes
    assert not near.lines


def test_compare_chart_of_nothing_is_an_error() -> None:
    with pytest.raises(OptPipeError, match="no rows"):
        compare_chart([])


# Machado, Oliveira and Fernandes (2009), "A physiologically-based model for simulation of color
# vision deficiency", severity 1.0, on linear RGB
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def lab(colour: str, deficiency: Any) -> np.ndarray:
    """CIE Lab (D65) of a colour as seen with a deficiency."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(deficiency) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.asarray(to_xyz) @ seen / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_colours_differ_for_every_eye(deficiency: str) -> None:
    assert set(COLOURS) == set(OpKind)
    seen = {kind: lab(colour, DEFICIENCIES[deficiency]) for kind, colour in COLOURS.items()}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 16, (one.name, other.name)


def test_pyplot_stays_out() -> None:
    """Drawing leaves matplotlib's global state alone, and the package loads it only to draw."""
    code = (
        "import sys, optpipe_sim, optpipe_sim.trace; assert 'matplotlib' not in sys.modules\n"
        "import optpipe_sim.plot.text; assert 'matplotlib' not in sys.modules\n"
        "import optpipe_sim.plot.picture, optpipe_sim.plot.compare\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
