"""PipeOffload's figure 15: activation memory and MFU of three models, measured and estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from optpipe_sim.plot.labels import line_styles
from optpipe_sim.plot.style import INK, MUTED, new_figure, styled

NAMES = {
    "1f1b": "1F1B", "1f1b-i": "1F1B-I", "gis": "GIS", "gis-h": "GIS-H", "po-h": "PO-H", "po-f": "PO-F",
}  # fmt: skip
_WIDE = 0.8  # of the room of a sequence length, for its schedules
_HOLLOW = {"markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 0.7}
_PANELS = (  # what, published, label, limits, where "out of memory" stands
    ("activation_gib", "published_activation_gib", "activations [GiB]", (2, 160), 115),
    ("mfu_percent", "published_mfu_percent", "MFU [%]", (52, 76), 74),
)


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A column per model; above memory, below MFU, at each sequence length; ours filled, the
    measured ones as rings, those out of memory in a strip at the top."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    names = [name for name in NAMES if any(row["schedule"] == name for row in rows)]
    looks = dict(zip(NAMES, line_styles(len(NAMES)), strict=True))
    with styled():
        figure = new_figure(7.2, 4.8)
        grid = figure.subplots(2, len(models), sharex=True, sharey="row", squeeze=False)
        for at, model in enumerate(models):
            cells = [row for row in rows if row["model"] == model]
            for ax, panel in zip(grid[:, at], _PANELS, strict=True):
                _panel(ax, cells, names, looks, panel)
            role = "rates fitted to it" if cells[0]["role"] == "fit" else "predicted"
            title = f"{model.removeprefix('gpt-').upper()}, {cells[0]['devices']} A100, {role}"
            grid[0][at].set_title(title, loc="left", fontsize=9)
            grid[1][at].set_xlabel("sequence length")
        for ax in grid[:, 0]:
            ax.text(0.01, 0.985, "out of memory", transform=ax.transAxes, fontsize=6.5, va="top")
        grid[0][0].set_yscale("log", base=2)
        grid[0][0].set_yticks([2, 4, 8, 16, 32, 64])
        grid[0][0].yaxis.set_major_formatter(ScalarFormatter())
        grid[0][0].yaxis.set_minor_formatter(NullFormatter())
        for row, (_, _, label, limits, _) in enumerate(_PANELS):
            grid[row][0].set_ylabel(label)
            grid[row][0].set_ylim(limits)
        grid[1][0].set_yticks(range(52, 73, 4))
        keys = [
            *(grid[0][0].plot([], [], **{**looks[n], "linestyle": ""})[0] for n in names),
            grid[0][0].plot([], [], "o", markersize=8, **_HOLLOW)[0],
        ]
        figure.legend(keys, [*(NAMES[n] for n in names), "measured (published)"], ncols=len(keys),
                      loc="upper center", columnspacing=1.1, handletextpad=0.3)  # fmt: skip
        figure.tight_layout(rect=(0, 0, 1, 0.94), w_pad=0.8)
    return figure


def _panel(ax: Any, cells: Sequence[Mapping[str, Any]], names: Any, looks: Any, panel: Any) -> None:
    own, published, _, limits, strip = panel
    sequences = sorted({row["seq"] for row in cells})
    step = _WIDE / len(names)
    bottom = strip * 0.85 if own == "activation_gib" else strip - 1.2
    ax.axhspan(bottom, limits[1], color="#F1F1F1", zorder=0)
    for row in cells:
        x = sequences.index(row["seq"]) + step * (names.index(row["schedule"]) + 0.5) - _WIDE / 2
        look = {**looks[row["schedule"]], "linestyle": "", "zorder": 3}
        ax.plot(x, row[own] if row["outcome"] == "ran" else strip, **look)
        if row["published_outcome"] != "skip":
            y = row[published] if row["published_outcome"] == "ran" else strip
            ax.plot(x, y, "o", markersize=8, zorder=2, **_HOLLOW)
    for at in range(1, len(sequences)):
        ax.axvline(at - 0.5, color=MUTED, linewidth=0.3)
    ax.set_xticks(range(len(sequences)), [f"{seq // 1024}k" for seq in sequences])
    ax.set_xlim(-0.5, len(sequences) - 0.5)
    ax.tick_params(axis="x", length=0)
    ax.grid(axis="y")
