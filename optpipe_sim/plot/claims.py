"""How much of the time devices compute under ever scarcer memory: one panel per model and link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from ..errors import OptPipeError
from .style import INK, MUTED, new_figure, styled

LINES = {  # what each method looks like: colour, marker, dashes
    "no offload": ("#8A8A8A", "s", (0, (1, 1))),
    "PO-F": ("#C77CB0", "v", (0, (1, 1))),
    "PO best": ("#5E2D79", "^", (0, (4, 1.5))),
    "AdaOffload": ("#F0A830", "D", (0, (1, 1))),
    "auto": ("#3F7FBF", "o", "-"),
    "auto, same v": ("#12355B", "P", "-"),
}
_WIDTH, _HEIGHT, _ACROSS = 3.6, 2.3, 3  # inches of a panel; panels in a row


def claims_chart(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> Figure:
    """A panel per title: for each method of `LINES` points of (limit as a share of 1F1B's
    activation memory, share of the time that the busiest device computes). A method has no point
    where it does not fit.

    Raises:
        OptPipeError: where there is nothing to draw.
    """
    if not any(points for panel in panels.values() for points in panel.values()):
        raise OptPipeError("nothing to draw: no method fits anywhere")
    across = min(_ACROSS, len(panels))
    down = -(-len(panels) // across)
    limits = sorted({x for panel in panels.values() for line in panel.values() for x, _ in line})
    least = min(y for panel in panels.values() for line in panel.values() for _, y in line)
    with styled():
        figure = new_figure(_WIDTH * across, _HEIGHT * down + 0.5)
        grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        shown: dict[str, Line2D] = {}
        for at, (title, panel) in enumerate(panels.items()):
            ax = grid[at // across][at % across]
            ax.set_title(title, loc="left", color=INK)
            for name, (colour, marker, dashes) in LINES.items():
                points = sorted(panel.get(name, ()))
                if points:
                    (shown[name],) = ax.plot(
                        [limits.index(x) for x, _ in points], [y for _, y in points],
                        color=colour, marker=marker, linestyle=dashes, markersize=4, label=name,
                    )  # fmt: skip
            ax.set_xticks(range(len(limits)), [f"{x:g}" for x in limits])
            ax.set_xlim(-0.3, len(limits) - 0.7)
            ax.set_ylim(max(0, least - 0.05), 1)
            ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            ax.grid(axis="y")
        for at in range(len(panels), across * down):
            grid[at // across][at % across].set_visible(False)
        figure.supxlabel("memory limit, as a share of 1F1B's activations", fontsize=9, color=INK)
        figure.supylabel("time computing", fontsize=9, color=MUTED)
        figure.legend(
            list(shown.values()), list(shown), loc="upper center", ncols=len(shown), frameon=False
        )
        top = 1 - 0.32 / (_HEIGHT * down + 0.5)
        figure.tight_layout(rect=(0.01, 0.01, 1, top), h_pad=1.0, w_pad=1.2)
    return figure
