"""Memory over time: the bytes each device holds, as steps, with the limit and the static part."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.ticker import MaxNLocator

from ..trace import Trace
from ..trace.boxes import OFF_SCALE
from ..trace.steps import Steps
from ..units import format_size
from .axis import BESIDE, BOTTOM, WIDTH, Window, place, show_time, size_unit, time_unit, window_of
from .style import INK, LIMIT, MUTED, STATIC, new_figure, styled

FEW_DEVICES = 4  # have a line each, whatever their length
LINES_UP_TO, STEPS_UP_TO = 8, 1200  # devices and steps of all; more are drawn as an envelope


def memory(
    trace: Trace, ax: Axes | None = None, *, window: Window | None = None, legend: bool = True
) -> Axes:
    """Draw the bytes that each device holds over time.

    Few devices have a line each; many are drawn as the range they span, with the
    tightest (which comes closest to its limit; without limits: has the highest peak), the middle
    device and the one with the most room as lines. Static bytes are
    shaded, the limit is dashed. Time is in the unit of `gantt`, so that the two can share an axis.

    Args:
        ax: where to draw; None: a new figure (``ax.figure``).
        window: the part to draw (`window_of`); None: all of it.
        legend: whether to put one to the right of the axis.

    Returns:
        The axis.
    """
    with styled():
        if ax is None:
            ax = place(new_figure(WIDTH, 2.4 + 0.2 + BOTTOM), 0.2, 2.4)
        unit, scale = size_unit(max(1, *trace.peak_bytes))
        _static(trace, ax, scale)
        if _few(trace):
            _lines(trace, ax, scale)
        else:
            _envelope(trace, ax, scale)
        _limits(trace, ax, scale)
        show_time(ax, window or window_of(trace), trace.makespan_ns)
        ax.set_ylabel(f"memory ({unit})")
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        ax.grid(axis="y")
        if legend:
            ax.legend(labelspacing=0.35, handlelength=1.6, **BESIDE)
    return ax


def tightest(trace: Trace) -> int:
    """Return the device that comes closest to its limit; without limits, the one with the highest peak."""
    return int(np.argmin(_room(trace)))


def _room(trace: Trace) -> np.ndarray:
    """Per device, the bytes between its peak and its limit (or minus its peak, without limits)."""
    limits = trace.memory_limit or (0,) * trace.profile.devices
    return np.subtract(limits, trace.peak_bytes)


def device_colours(devices: int) -> list[str]:
    """Return a colour per device, from dark to light in their order."""
    return [to_hex(colormaps["viridis"](at)) for at in np.linspace(0, 0.88, devices)]


def _few(trace: Trace) -> bool:
    """Whether there are few enough devices for a line each."""
    steps = sum(len(steps.bytes) for steps in trace.memory)
    devices = trace.profile.devices
    return devices <= FEW_DEVICES or (devices <= LINES_UP_TO and steps <= STEPS_UP_TO)


def _curve(trace: Trace, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
    """Times in the axis' unit and bytes, up to the makespan."""
    _, size = time_unit(trace.makespan_ns)
    times_ns, held = steps.until(trace.makespan_ns)
    return times_ns / size, held


def _lines(trace: Trace, ax: Axes, scale: int) -> None:
    for device, colour in enumerate(device_colours(trace.profile.devices)):
        times, held = _curve(trace, trace.memory[device])
        label = f"device {device}"
        ax.plot(times, held / scale, color=colour, drawstyle="steps-post", label=label)


def _envelope(trace: Trace, ax: Axes, scale: int) -> None:
    """The range that the devices span at each instant, and the tightest device."""
    instants = np.unique(np.concatenate([steps.times_ns for steps in trace.memory]))
    least = np.full(len(instants), np.iinfo(np.int64).max)
    most = np.zeros(len(instants), np.int64)
    for steps in trace.memory:
        held = steps.bytes[np.searchsorted(steps.times_ns, instants, side="right") - 1]
        least, most = np.minimum(least, held), np.maximum(most, held)
    times, low = _curve(trace, Steps(instants, least))
    _, high = _curve(trace, Steps(instants, most))
    count = trace.profile.devices
    ax.fill_between(
        times,
        low / scale,
        high / scale,
        step="post",
        color="#9DB8CF",
        alpha=0.55,
        linewidth=0,
        label=f"all {count} devices",
    )
    # from the device with the most room to the tightest: both ends and the middle one
    order = np.argsort(_room(trace), kind="stable")
    what = "tightest" if trace.memory_limit is not None else "highest"
    for device, name, colour, width in (
        (order[-1], "roomiest" if trace.memory_limit is not None else "lowest", "#7FB0A0", 0.7),
        (order[count // 2], "middle", "#4A86B8", 0.7),
        (order[0], what, "#12355B", 1.2),
    ):
        times, held = _curve(trace, trace.memory[device])
        label = f"device {device} ({name})"
        ax.plot(
            times, held / scale, color=colour, drawstyle="steps-post", linewidth=width, label=label
        )


def _static(trace: Trace, ax: Axes, scale: int) -> None:
    """Shade the static bytes: up to the least over the devices, lighter up to the most."""
    least, most = min(trace.profile.static_bytes), max(trace.profile.static_bytes)
    if not most:
        return
    label = f"static {format_size(most)}"
    if least != most:
        label = f"static {format_size(least)}\nto {format_size(most)}"
        ax.axhspan(least / scale, most / scale, color=STATIC, alpha=0.45, linewidth=0)
    ax.axhspan(0, least / scale, color=STATIC, linewidth=0, label=label)


def _limits(trace: Trace, ax: Axes, scale: int) -> None:
    """Draw the limit of the tightest device (usually all have the same) and set the range of the axis."""
    peak = max(trace.peak_bytes)
    reach = max(peak, 1)
    if trace.memory_limit is not None:
        worst = tightest(trace)
        limit = trace.memory_limit[worst]
        name = f"limit {format_size(limit)}"
        if len(set(trace.memory_limit)) > 1:
            name += f"\n(device {worst})"
        if limit <= OFF_SCALE * peak:
            reach = max(reach, limit)
            ax.axhline(limit / scale, color=LIMIT, linestyle=(0, (5, 2)), label=name, zorder=3)
        else:
            ax.plot([], [], color=LIMIT, linestyle=(0, (5, 2)), label=f"{name}\n(off the scale)")
    ax.set_ylim(0, 1.08 * reach / scale)
    ax.spines["left"].set_color(MUTED)
    ax.yaxis.label.set_color(INK)
