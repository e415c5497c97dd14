"""Names beside the ends of lines instead of a legend, without overlaps."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from optpipe_sim.plot.labels import FONT, OUTLINE


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Move places apart to a distance of at least `gap`, in the same order, each as little as
    its neighbours allow."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    # neighbours that touch form a group around their common middle; a group: (sum of places, members)
    groups: list[tuple[float, list[int]]] = []
    for at in order:
        total, members = places[at], [at]
        while groups:
            before, others = groups[-1]
            reach = before / len(others) + gap * len(others) / 2
            if reach <= total / len(members) - gap * len(members) / 2:
                break
            groups.pop()
            total, members = before + total, others + members
        groups.append((total, members))
    made = list(places)
    for total, members in groups:
        first = total / len(members) - gap * (len(members) - 1) / 2
        for step, at in enumerate(members):
            made[at] = first + step * gap
    return made


def name_ends(
    ax: Axes, ends: Sequence[tuple[float, float, str, str]], x: float, shift: float = 6.0
) -> None:
    """Write names, (x, y, text, colour) of the ends of lines, in a column at `x` (in data), with a
    thin line from each end to its name; `shift` points right of it.

    Call it after the limits and the scale of the axis are final.
    """
    height = ax.get_window_extent().height * 72 / ax.figure.dpi
    unit = ax.transData + ax.transAxes.inverted()
    at = [float(unit.transform((px, py))[1]) * height for px, py, _, _ in ends]
    right = float(unit.transform((x, ends[0][1]))[0])
    for place, (px, py, text, colour) in zip(apart(at, FONT + 1.5), ends, strict=True):
        ax.annotate(
            text,
            (px, py),
            (right, place / height),
            textcoords="axes fraction",
            va="center",
            ha="left",
            fontsize=FONT,
            color=colour,
            path_effects=OUTLINE,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "lw": 0.5,
                "color": colour,
                "alpha": 0.5,
                "relpos": (0, 0.5),
                "shrinkA": 0,
                "shrinkB": shift / 2,
            },
        )
