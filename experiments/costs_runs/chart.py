"""Estimated over published times and peaks of whole runs, a line per machine file and source."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.contest.task import MACHINES
from optpipe_sim.costs.doubt import Compared
from optpipe_sim.plot.style import INK, MUTED, new_figure, styled

LIGHT = "#D0D0D0"
USED, OTHER = "#0072B2", "#7F7F7F"  # machine files of the contest, and others


def draw(rows: Sequence[Compared]) -> Figure:
    """Draw errors (estimated over published, less 1) of times on the left, of peaks on the right. Open
    markers are held-out runs, filled ones were fitted, light ones are of models left out of a fit to their source."""
    names = sorted({_name(row) for row in rows}, key=lambda name: (name[0] not in MACHINES, name))
    with styled():
        figure = new_figure(9.6, 0.235 * len(names) + 1.3)
        times, peaks = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for axes, key, label in (
            (times, "error", "error of the time (%)"),
            (peaks, "memory", "error of the peak (%)"),
        ):
            _panel(axes, rows, names, key, label)
        times.set_title("estimated over published, less 1", loc="left")
        times.set_yticks(range(len(names)), [": ".join(name) for name in names], fontsize=7.5)
        times.set_ylim(len(names) - 0.4, -0.6)
        for label, name in zip(times.get_yticklabels(), names, strict=True):
            label.set_color(INK if name[0] in MACHINES else MUTED)
        handles, labels = times.get_legend_handles_labels()
        figure.legend(handles, labels, fontsize=7, frameon=False, loc="lower center", ncols=2)
        figure.tight_layout(rect=(0, 0.06, 1, 1))  # the legend is below
        figure.subplots_adjust(left=0.33)  # the longest name, which tight_layout cuts
    return figure


def _name(row: Compared) -> tuple[str, str]:
    """Machine file; kind of model, format and source of a run."""
    source = row.source.split(",")[0].removeprefix("NVIDIA ").removesuffix(" 1.2")
    for long, short in SHORT.items():
        source = source.replace(long, short)
    kind = "experts, " if row.kind == "experts" else ""
    return row.machine, f"{kind}{row.dtype}, {source}"


SHORT = {
    " on GB200": "",
    "Megatron-Bridge's recomputed modules and layouts of LLaMA-3-70B SFT": "Megatron-Bridge's LLaMA-3-70B",
    "Megatron-Bridge's overlapped exchange of Qwen3-30B": "Megatron-Bridge's Qwen3-30B",
    "Megatron-Bridge's recomputed attention of Qwen3-30B-A3B": "Megatron-Bridge's Qwen3-30B",
    "Megatron-Bridge's recomputed modules of Moonlight 16B": "Megatron-Bridge's Moonlight",
    "Megatron-LM's pull requests 6311 and 6429": "Megatron-LM's DeepSeek-V3",
    "MosaicML llm-foundry": "MosaicML",
}  # fmt: skip


def _panel(
    axes: Axes, rows: Sequence[Compared], names: Sequence[tuple[str, str]], key: str, label: str
) -> None:
    axes.axvline(0, color=MUTED, linewidth=0.8)
    for line in range(1, len(names)):
        if names[line][0] != names[line - 1][0]:
            axes.axhline(line - 0.5, color=MUTED, linewidth=0.3)
    for used, colour, where in (
        (True, USED, "machine file of the contest"),
        (False, OTHER, "another machine file"),
    ):
        for role, fill, aside, how in (
            ("check", "none", 0.0, "held out"),
            ("fit", colour, 0.22, "fitted to"),
            ("model left out", LIGHT, 0.0, "fitted to other models of its source"),
        ):
            found = [
                row
                for row in rows
                if (row.machine in MACHINES) is used
                and row.role == role
                and getattr(row, key) is not None
            ]
            if not any((row.machine in MACHINES) is used and row.role == role for row in rows):
                continue
            axes.plot(
                [100 * getattr(row, key) for row in found],
                [names.index(_name(row)) + aside for row in found],
                "o",
                color=colour,
                markerfacecolor=fill,
                markersize=3.8,
                markeredgewidth=0.9,
                label=f"{where}, {how}",
            )
    axes.set_xlabel(label)
    axes.tick_params(axis="y", length=0)
