"""Estimated over published times and peaks of whole runs, a column per source."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from optpipe_sim.costs.doubt import Compared
from optpipe_sim.plot.style import MUTED, new_figure, styled

FITTED = "a100-80gb-megatron"  # of the A100's two files, the one whose rates were fitted


def draw(rows: Sequence[Compared]) -> Figure:
    """Draw errors (estimated over published, less 1) of times above, of peaks below. Open markers are held-out runs, filled ones were fitted."""
    shown = [row for row in rows if row.machine != "a100-80gb"]
    names = sorted({_name(row) for row in shown})
    with styled():
        figure = new_figure(8.2, 6.0)
        times, peaks = figure.subplots(2, 1, sharex=True)
        _column(times, shown, names, "error", "error of the time (%)")
        _column(peaks, shown, names, "memory", "error of the peak (%)")
        times.set_title("estimated over published, less 1", loc="left")
        peaks.get_legend().remove()
        peaks.set_xticks(range(len(names)), names, rotation=35, ha="right")
        figure.tight_layout()
    return figure


def _name(row: Compared) -> str:
    """Chip, format and source of a run."""
    chip = row.machine.split("-")[0].upper()
    source = row.source.split(",")[0].removeprefix("NVIDIA ").removesuffix(" 1.2")
    kind = ", experts" if row.kind == "experts" else ""
    return f"{chip} {row.dtype}{kind}: {source.split(chr(39))[0]}"


def _column(
    axes: Axes, rows: Sequence[Compared], names: Sequence[str], key: str, label: str
) -> None:
    axes.axhline(0, color=MUTED, linewidth=0.8)
    for role, fill, aside in (("check", "none", 0.0), ("fit", "C0", 0.25)):
        found = [row for row in rows if row.role == role and getattr(row, key) is not None]
        axes.plot(
            [names.index(_name(row)) + aside for row in found],
            [100 * getattr(row, key) for row in found],
            "o",
            color="C0",
            markerfacecolor=fill,
            markersize=4,
            label={"check": "held out", "fit": "fitted to"}[role],
        )
    axes.set_ylabel(label)
    axes.legend(loc="upper left")
