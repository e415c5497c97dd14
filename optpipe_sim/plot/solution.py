"""Idle time of devices in a solution, beside the idle time that the bound forces."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..reasons.solution import FORCED, SHORT, Solution
from ..trace import CAUSES
from ..units import format_time
from .axis import BESIDE, BOTTOM, LEFT, WIDTH, place, time_unit
from .style import INK, MUTED, figure_of, new_figure, styled

# Idle causes and forced reasons of the same meaning have the same colour; the latter are hatched.
COLOURS = {
    "fill": "#9DB8CF",
    "drain": "#C9DCEE",
    "neighbour": "#F0A830",
    "communication": "#D9622B",
    "memory": "#C77CB0",
    "reload": "#5E2D79",
    "copies": "#5E2D79",
    "few W": "#4DB38A",
    "others": "#E3D6B8",
    SHORT: "#DDDDDD",
}
NAMES = {
    "neighbour": "waits for a neighbour",
    "communication": "waits for a message",
    "memory": "waits for memory",
    "reload": "waits for a reload",
}
MUST = {"few W": "too few W's at the end", "others": "others' work"}
_ROW, _TOP = 0.36, 0.62  # inches per device; above the axis


def solution_chart(solution: Solution, ax: Axes | None = None) -> Axes:
    """Draw two bars per device: above its idle time by cause, below (hatched) the idle time of any schedule
    that meets the lower bound, by reason; the rest is the gap.

    Args:
        ax: where to draw; None: a new figure (``ax.figure``).

    Returns:
        The axis.
    """
    devices = solution.devices
    name, size = time_unit(max(1, *(device.idle for device in devices)))
    with styled():
        if ax is None:
            row = max(0.16, min(_ROW, 11 / len(devices)))
            height = max(1.9, row * len(devices))
            ax = place(new_figure(WIDTH, _TOP + height + BOTTOM), _TOP, height)
            _title(solution, ax)
        used: dict[tuple[str, bool], None] = {}
        for device in devices:
            for times, order, must in (
                (device.idle_ns, (*CAUSES, SHORT), False),
                (device.forced_ns, FORCED, True),
            ):
                left = 0.0
                for part in order:
                    time = times.get(part, 0) / size
                    if time:
                        ax.barh(
                            device.device + (0.2 if must else -0.2),
                            time,
                            0.36,
                            left=left,
                            color=COLOURS[part],
                            hatch="////" if must else None,
                            edgecolor="white" if must else COLOURS[part],
                            linewidth=0,
                        )
                        used[part, must] = None
                    left += time
        ax.set_ylim(len(devices) - 0.4, -0.6)
        step = -(-len(devices) // 32)
        ax.set_yticks(
            range(0, len(devices), step), [str(at) for at in range(0, len(devices), step)]
        )
        ax.set_ylabel("device")
        ax.set_xlabel(f"idle time per iteration ({name})")
        ax.grid(axis="x")
        if used:
            _legend(ax, list(used))
        else:
            ax.text(0.5, 0.5, "no device idles", transform=ax.transAxes, ha="center", color=MUTED)
            ax.set_xticks([])
            ax.set_xlabel("")
    return ax


def _legend(ax: Axes, used: list[tuple[str, bool]]) -> None:
    """Idle causes first, then what is forced, each under its heading."""
    handles, labels = [], []
    for must, head, order in (
        (False, "idle (upper bar)", (*CAUSES, SHORT)),
        (True, "forced (lower bar)", FORCED),
    ):
        parts = [part for part in order if (part, must) in used]
        if not parts:
            continue
        handles.append(Patch(alpha=0))
        labels.append(head)
        for part in parts:
            hatch = "////" if must else None
            handles.append(
                Patch(facecolor=COLOURS[part], hatch=hatch, edgecolor="white", linewidth=0)
            )
            labels.append(MUST.get(part, part) if must else NAMES.get(part, part))
    legend = ax.legend(handles, labels, labelspacing=0.35, handlelength=1.4, **BESIDE)
    for text in legend.get_texts():
        if text.get_text().endswith("bar)"):
            text.set_fontweight("bold")


def _title(solution: Solution, ax: Axes) -> None:
    figure = figure_of(ax)
    trace, bound = solution.trace, solution.bound
    whole = "iteration" if trace.iteration_ns == trace.cost_ns else "pipeline"
    what = whole if trace.objective == "flush" else "longest device span"
    proof = (
        f"proven optimal by {bound.name}"
        if solution.gap_ns <= 0
        else f"gap {solution.gap_ns / max(1, bound.ns):.2%} to the bound by {bound.name}"
    )
    height = figure.get_size_inches()[1]
    heading = f"Idle time by cause, and what has to be: {what} {format_time(trace.cost_ns)}"
    facts = f"{trace.profile.name}  ·  {proof}  ·  {trace.offloaded} activations offloaded"
    x = LEFT / WIDTH
    figure.text(x, 1 - 0.24 / height, heading, fontsize=12, weight="bold", color=INK)
    figure.text(x, 1 - 0.48 / height, facts, fontsize=9, color=MUTED)
