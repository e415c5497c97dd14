"""A pair on its two streams: which part of which layer computes, which tokens are on their way beside it, and
how long the host takes to issue it."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..ops import BW, F, W
from ..profile import CostProfile
from ..profile.streams import (
    STREAMS,
    PairTimes,
    PartSpan,
    issued,
    lines_of,
    pair_times,
    two_streams,
)
from ..units import format_time
from .axis import BESIDE, BOTTOM, WIDTH, place, points, time_unit
from .style import COLOURS, IDLE, INK, KIND_NAMES, MUTED, new_figure, styled, text_colour

HOST = "host"  # the lane of what issues the kernels
_LANE, _TOP = 0.55, 0.5  # inches per stream; above the axis
_EM = 0.6  # of a letter, in its size
_LARGEST, _LEAST = 8.0, 4.5  # points of a label


def pair_chart(
    profile: CostProfile, forward: int, backward: int | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the forward of a stage and the backward of another (None: of the same) as one op, on two streams;
    where the profile knows the host, how long that takes to issue them, too.

    Args:
        profile: estimated with pairs, so that its layers say what they do on both.
        ax: where to draw; None: a new figure (``ax.figure``).

    Raises:
        ProfileError: for another profile.
    """
    lines = lines_of(profile, forward, backward)
    spans, times = two_streams(issued(*lines)), pair_times(*lines)
    whole = max(times.kernels, times.host, 1)
    lanes = [*STREAMS, HOST] if times.host else [*STREAMS]
    with styled():
        if ax is None:
            height = len(lanes) * _LANE
            ax = place(new_figure(WIDTH, _TOP + height + BOTTOM), _TOP, height)
        unit, size = time_unit(whole)
        ax.set_xlim(0, whole / size)
        ax.set_ylim(len(lanes), 0)
        for lane, stream in enumerate(lanes):
            ax.broken_barh([(0, whole / size)], (lane + 0.08, 0.84), color=IDLE)
            for span in spans:
                if span.part.stream == stream and span.end_ns > span.start_ns:
                    _box(ax, span, lane, size)
        if times.host:
            ax.broken_barh([(0, times.host / size)], (len(STREAMS) + 0.08, 0.84), color=MUTED)
        ax.set_yticks([lane + 0.5 for lane in range(len(lanes))], lanes)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(f"time ({unit})")
        other = forward if backward is None else backward
        ax.set_title(
            f"forward of stage {forward} and backward of stage {other}: {_said(times)}",
            loc="left",
            color=INK,
        )
        apart = [W] if any("weights" in span.part.name for span in spans) else []
        kinds = (F, BW, *apart)
        handles = [Patch(color=COLOURS[kind], label=KIND_NAMES[kind]) for kind in kinds]
        handles.append(Patch(facecolor="white", edgecolor=MUTED, hatch="////", label="on the way"))
        if times.host:
            handles.append(Patch(color=MUTED, label="issues both"))
        ax.legend(handles=handles, **BESIDE)
    return ax


def _said(times: PairTimes) -> str:
    """Return what a pair takes and hides; what lies in no kernel is in none of these times."""
    one = f"{format_time(round(max(times.kernels, times.host)))} as one op"
    if times.host_is_late:
        one += f" (the host is late, kernels take {format_time(round(times.kernels))})"
    return (
        f"{one}, {format_time(times.alone)} one after the other, {format_time(times.hidden)} hidden"
    )


def _box(ax: Axes, span: PartSpan, lane: int, size: int) -> None:
    """Draw a part, with its name where it can be read."""
    name = span.part.name
    colour = COLOURS[F if name.startswith("F") else W if "weights" in name else BW]
    start, length = span.start_ns / size, (span.end_ns - span.start_ns) / size
    ax.broken_barh(
        [(start, length)],
        (lane + 0.08, 0.84),
        facecolor=colour,
        edgecolor="white",
        hatch="////" if lane else None,
        linewidth=0.5,
    )
    left, right = ax.get_xlim()
    room = points(ax)[0] * length / (right - left)
    size_points = min(_LARGEST, room / (_EM * len(name)))
    if size_points < _LEAST:
        return
    ax.text(
        start + length / 2,
        lane + 0.5,
        name,
        ha="center",
        va="center",
        fontsize=size_points,
        color=text_colour(colour),
        bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.8} if lane else None,
    )
