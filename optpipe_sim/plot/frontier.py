"""Time over memory: the best schedule at each limit, its bound, and the published schedules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..errors import OptPipeError
from ..profile.iteration import iteration_ns
from .axis import points, size_unit, text_inches, time_unit
from .labels import FONT, OUTLINE
from .style import INK, LIMIT, MUTED, new_figure, styled

if TYPE_CHECKING:
    from ..solvers.frontier import Frontier

BEST, BOUND, FIXED, FAMILY = "#3F7FBF", "#5E2D79", "#D9622B", "#2E8B57"
_WIDTH, _HEIGHT = 9.0, 5.2  # inches
_Box = tuple[float, float, float, float]
_Place = tuple[float, float]
# where a name may begin (or end), in points from its place
_AROUND = (
    (7, 0),
    (-7, 0),
    (5, 9),
    (5, -9),
    (-5, 9),
    (-5, -9),
    (5, 18),
    (5, -18),
    (-5, 18),
    (-5, -18),
    (8, 27),
    (8, -27),
    (-8, 27),
    (-8, -27),
)
_SLOWEST = 1.6  # published schedules slower than the best by more than this are left out


def frontier_chart(frontier: Frontier) -> Figure:
    """Draw the time of an iteration from the lowest feasible limit to the highest, and the bound; the
    optimum lies between the two.

    The point of a published schedule is its time and memory without a limit.
    Points to the right of the picture or far above it are left out, and counted.

    Raises:
        OptPipeError: where no limit has a schedule.
    """
    with styled():
        figure = new_figure(_WIDTH, _HEIGHT)
        ax = figure.add_axes((0.085, 0.115, 0.885, 0.785))
        _draw(frontier, ax)
    return figure


def _draw(frontier: Frontier, ax: Axes) -> None:
    solved = [(point.limit_bytes, point.result) for point in frontier.points if point.result]
    if not solved:
        raise OptPipeError("nothing to draw: no limit of this frontier has a schedule")
    whole = partial(iteration_ns, frontier.profile)
    costs = [whole(result.objective_ns) for _, result in solved]
    size, per_size = size_unit(solved[-1][0])
    unit, per_unit = time_unit(round(max(costs)))
    limits = [limit / per_size for limit, _ in solved]
    times = [cost / per_unit for cost in costs]
    bounds = [whole(result.lower_bound_ns) / per_unit for _, result in solved]
    chunks = frontier.chunks
    room = 0.06 * (limits[-1] - limits[0] or limits[-1])
    left, right = max(0.0, limits[0] - 1.6 * room), limits[-1] + room
    least = frontier.least_limit_bytes / per_size
    if limits[0] - least < 5 * room:
        left = max(0.0, min(left, least - room))

    between = frontier.profile.execution_notes["between"]
    _regions(ax, [*limits, right], [*times, times[-1]], [*bounds, bounds[-1]], between)
    ax.step(
        [*limits, right],
        [*bounds, bounds[-1]],
        where="post",
        color=BOUND,
        linestyle=(0, (4, 2)),
        label=f"no schedule with {chunks} is faster (proven)",
    )
    ax.step([*limits, right], [*times, times[-1]], where="post", color=BEST, lw=1.8)
    ax.plot(limits, times, "o", color=BEST, ms=5, label=f"best schedule found, {chunks}")
    told = [
        (point.limit_bytes / per_size, point.family_iteration_ns / per_unit)
        for point in frontier.points
        if point.family_iteration_ns
    ]
    if told:
        label = "best schedule of the family"
        xs, ys = zip(*told, (right, told[-1][1]), strict=True)
        ax.step(xs, ys, where="post", color=FAMILY, lw=1.2, marker="s", ms=3.5, label=label)
    proven = [at for at, (_, result) in enumerate(solved) if result.status == "optimal"]
    ax.plot(
        [limits[at] for at in proven],
        [times[at] for at in proven],
        "o",
        ms=9,
        mfc="none",
        mec=BEST,
        mew=1.1,
        label="proven optimal",
    )
    ceiling = max(max(times), _SLOWEST * times[-1])
    names = _published(frontier, ax, (left, right), ceiling, (per_size, per_unit))
    if least > left:
        ax.axvspan(left, least, color="#9A9A9A", alpha=0.18, lw=0)
        ax.axvline(
            least, color=LIMIT, lw=0.9, linestyle=(0, (5, 2)), label="no schedule needs less"
        )
    every = [*bounds, *times, *(y for _, y in told), *(y for _, y in names)]
    low, high = min(every), max(every)
    ax.set_xlim(left, right)
    ax.set_ylim(low - 0.06 * (high - low or low), high + 0.09 * (high - low or high))
    ax.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 4, 5, 10]))
    ax.grid(axis="both")
    ax.set_xlabel(f"memory limit of a device ({size})")
    ax.set_ylabel(f"time per iteration ({unit})")
    shape = f"{frontier.profile.devices} devices, {frontier.microbatches} microbatches"
    ax.set_title(f"{frontier.profile.name}: {shape}", loc="left", pad=10)
    steps = [_corners(limits, values, right) for values in (times, bounds)]
    write_names(ax, names, list(zip(limits, times, strict=True)), steps)
    ax.legend(loc="upper right", framealpha=0.9, frameon=True, edgecolor="none")


def _regions(
    ax: Axes,
    limits: Sequence[float],
    times: Sequence[float],
    bounds: Sequence[float],
    between: float | None,
) -> None:
    """Shade what lies between the times found and their bounds and, where it is known, which times are a toss-up with those
    found. Each value holds from its limit up to the next."""
    ax.fill_between(
        limits, times, bounds, step="post", color=BEST, alpha=0.16, lw=0, label="not decided"
    )
    if between is not None:
        slower = [(1 + between) * time for time in times]
        label = "a toss-up with the best found"
        ax.fill_between(
            limits, times, slower, step="post", color=MUTED, alpha=0.12, lw=0, label=label
        )


def _corners(limits: list[float], values: list[float], right: float) -> list[_Place]:
    """Return the corners of a curve that holds each value up to the next limit."""
    return [
        (limit, value)
        for at, value in enumerate(values)
        for limit in (limits[at], [*limits, right][at + 1])
    ]


def _published(
    frontier: Frontier, ax: Axes, span: tuple[float, float], ceiling: float, scale: tuple[int, int]
) -> dict[tuple[float, float], str]:
    """Draw the published schedules as points with their names; points in one place share a label."""
    places: dict[tuple[float, float], list[str]] = {}
    for each in frontier.schedules:
        place = each.peak_bytes / scale[0], each.iteration_ns / scale[1]
        if span[0] <= place[0] <= span[1] and place[1] <= ceiling:
            places.setdefault(place, []).append(each.schedule)
    left_out = len(frontier.schedules) - sum(map(len, places.values()))
    if places:
        xs, ys = zip(*places, strict=True)
        label = "published schedules, no limit, any chunks"
        ax.plot(xs, ys, "D", color=FIXED, ms=4.5, lw=0, label=label)
    if left_out:
        ax.annotate(
            f"{left_out} published schedule{'s' if left_out > 1 else ''} outside the picture",
            (1, 0),
            (-2, 4),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=FONT,
            color=MUTED,
        )
    return {place: ", ".join(names) for place, names in sorted(places.items())}


def write_names(
    ax: Axes,
    names: dict[_Place, str],
    marks: Sequence[_Place],
    steps: Sequence[Sequence[_Place]] = (),
) -> None:
    """Write each name beside its point, at the first place that is free of other names, of the
    curve's marks and of the lines, or the freest; `steps` has the corners of each line."""
    size = points(ax)
    unit = ax.transScale + ax.transLimits
    at = {place: unit.transform(place) * size for place in names}
    around = [*at.values(), *(unit.transform(mark) * size for mark in marks)]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in around]
    for corners in steps:
        for (x, y), (u, v) in pairwise(unit.transform(corners) * size):
            taken.append((min(x, u) - 1, min(y, v) - 1, max(x, u) + 1, max(y, v) + 1))
    for place, text in names.items():
        wide, (x, y) = 72 * text_inches(text, FONT), at[place]
        boxes = [
            (
                x + dx - (wide if dx < 0 else 0),
                y + dy - 4,
                x + dx + (0 if dx < 0 else wide),
                y + dy + 4,
            )
            for dx, dy in _AROUND
        ]
        inside = [  # of the picture, and above the note on what is outside of it
            box
            for box in boxes
            if box[0] > 0 and box[1] > 14 and box[2] < size[0] and box[3] < size[1]
        ]
        box = min(inside or boxes, key=lambda box: _covered(box, taken))  # the first free place
        taken.append(box)
        middle = (box[1] + box[3]) / 2
        if abs(middle - y) > 12:  # too far away from its point
            near = min((box[0] - 1, box[2] + 1), key=lambda end: abs(end - x))
            ax.annotate(
                "",
                (x, y),
                (near, middle),
                xycoords="axes points",
                textcoords="axes points",
                arrowprops={
                    "arrowstyle": "-",
                    "lw": 0.6,
                    "color": MUTED,
                    "shrinkA": 0,
                    "shrinkB": 3,
                },
            )
        ax.annotate(
            text,
            (0, 0),
            (box[0], middle),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="left",
            va="center",
            fontsize=FONT,
            color=INK,
            path_effects=OUTLINE,
        )


def _covered(box: _Box, others: list[_Box]) -> float:
    """Return how much of a box others cover, in square points."""
    return sum(
        max(0.0, min(box[2], other[2]) - max(box[0], other[0]))
        * max(0.0, min(box[3], other[3]) - max(box[1], other[1]))
        for other in others
    )
