"""One page: every method's time in every setting, and what each ingredient of the search adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from optpipe_sim.plot.style import INK, MUTED, new_figure, styled
from optpipe_sim.spread import Spread, spread

ALL = "this search"
ONE = "this search, 1 chunk"
MILP = "reconstructed MILP, 1 chunk"
INGREDIENTS = ("this search, keep", "this search, offload", "this search, recompute", ALL)
SHOWN = {
    "this search, keep": "order and chunks",
    "this search, offload": "... and offloading",
    "this search, recompute": "... and recomputation",
    ALL: "... and both",
}
COLOURS = ("#7F7F7F", "#D55E00", "#009E73", INK)  # of the ingredients
RULES = (
    "1F1B",
    "1F1B-I",
    "ZB-H1, ZB-1p, ZB-2p",
    "ZB-V",
    "V-Half, V-Min",
    "GIS",
    "PipeOffload",
    "AdaOffload",
)
TREATED = ("none", "selective", "full")
LOOKS = {
    "1F1B": ("#7F7F7F", "s"), "1F1B-I": ("#7F7F7F", "D"), "ZB-H1, ZB-1p, ZB-2p": ("#56B4E9", "^"),
    "ZB-V": ("#0072B2", "v"), "V-Half, V-Min": ("#009E73", "<"), "GIS": ("#E69F00", ">"),
    "PipeOffload": ("#D55E00", "X"), "AdaOffload": ("#CC79A7", "o"),
}  # fmt: skip
KEY = 0.75  # inches below the axes
FILLS: dict[str, Any] = {"none": "none", "selective": "left", "full": "full"}
_Row = Mapping[str, Any]
_E = "profile.estimate."


class Setting(NamedTuple):
    """A model on a pipeline of real devices."""

    machine: str
    model: str
    devices: int
    tp: int
    seq: int
    microbatches: int

    def __str__(self) -> str:
        pipeline = self.devices // self.tp
        shared = f" x {self.tp}" if self.tp > 1 else ""
        return (
            f"{self.model}, {self.seq // 1024}k, {pipeline}{shared} {self.machine.upper().removesuffix('-SXM')},"
            f" m = {self.microbatches}"
        )


class Cell(NamedTuple):
    """A method and what it may do with activations, over its seeds.

    Attributes:
        fits: whether it has a schedule with every seed.
        time: ns; None where nothing fits.
        bound: the largest lower bound that was proven for what it may do, ns; None for a rule.
        rows: its rows.
    """

    fits: bool
    time: Spread | None
    bound: int | None
    rows: Sequence[_Row]


Cells = dict[Setting, dict[tuple[str, str], Cell]]


def settings(rows: Sequence[_Row]) -> Cells:
    """The methods of each setting, by name and treatment, in the order of the rows."""
    found: dict[Setting, dict[tuple[str, str], list[_Row]]] = {}
    for row in rows:
        estimated = {field: row[f"{_E}{field}"] for field in Setting._fields[:-1]}
        key = Setting(**estimated, microbatches=row["microbatches"])
        found.setdefault(key, {}).setdefault((row["method"], row["treated"]), []).append(row)
    return {
        key: {name: _cell(seeds) for name, seeds in methods.items()}
        for key, methods in found.items()
    }


def _cell(rows: Sequence[_Row]) -> Cell:
    times = [row["makespan_ns"] for row in rows if row["makespan_ns"] is not None]
    bounds = [row["lower_bound_ns"] for row in rows if row["lower_bound_ns"] is not None]
    fits = all(row["fits"] for row in rows)
    return Cell(fits, spread(times) if times else None, max(bounds, default=None), rows)


def search(cells: Mapping[tuple[str, str], Cell], method: str) -> Cell:
    """The cell of a search, whatever it may do."""
    return next(cell for (name, _), cell in cells.items() if name == method)


def best_rule(
    cells: Mapping[tuple[str, str], Cell],
    methods: Sequence[str] = RULES,
    treated: Sequence[str] = TREATED,
) -> tuple[tuple[str, str], Cell] | None:
    """The fastest of some rules, with some of the ways to recompute; None where none fits."""
    able = [
        (key, cell)
        for key, cell in cells.items()
        if key[0] in methods and key[1] in treated and cell.time is not None
    ]
    return min(able, key=lambda entry: entry[1].time.median, default=None)  # type: ignore[union-attr]


def draw(rows: Sequence[_Row]) -> dict[str, Figure]:
    """Time over the bound of every method in every setting; what each ingredient adds."""
    return {"": _methods(settings(rows))}


def _methods(cells: Cells) -> Figure:
    with styled():
        figure = new_figure(9.6, 0.62 * len(cells) + 2.2)
        every, adds = figure.subplots(1, 2, sharey=True, width_ratios=(1.7, 1))
        names = list(cells)
        for down, name in enumerate(names):
            _setting(every, down, cells[name])
            _ingredients(adds, down, cells[name])
        every.set_yticks(
            range(len(names)), [str(name).replace(", ", "\n", 1) for name in names], fontsize=7
        )
        every.set_ylim(len(names) - 0.4, -0.6)
        for ax in (every, adds):
            ax.set_xscale("log")
            ax.grid(axis="x")
            ax.tick_params(axis="y", length=0)
            for line in range(len(names) - 1):
                ax.axhline(line + 0.5, color=MUTED, linewidth=0.3)
            ax.set_xlabel("iteration time over the lower bound")
        _ticks(every, (1, 1.2, 1.5, 2, 3, 5))
        _ticks(adds, (1, 1.1, 1.2, 1.5, 2, 3))
        every.set_title("every method under the device's memory", loc="left")
        adds.set_title("this search, by what it may do", loc="left")
        looks: dict[str, Any] = {
            "ncols": 4,
            "columnspacing": 1.0,
            "handletextpad": 0.3,
            "fontsize": 7,
        }
        figure.legend(*_key(), loc="lower left", **looks)
        figure.legend(*_ingredients_key(), loc="lower right", **{**looks, "ncols": 2})
        figure.tight_layout(rect=(0, KEY / figure.get_figheight(), 1, 1), w_pad=1.0)
    return figure


def _ticks(ax: Any, values: Sequence[float]) -> None:
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.minorticks_off()
    ax.set_xlim(values[0] * 0.98, values[-1])


def _setting(ax: Any, down: int, cells: Mapping[tuple[str, str], Cell]) -> None:
    """All methods of one setting: rules as signs, filled by what they recompute; the search as a bar."""
    ours = search(cells, ALL)
    if ours.time is None or not ours.bound:
        return
    for (method, treated), cell in cells.items():
        if method not in LOOKS or cell.time is None:
            continue
        colour, marker = LOOKS[method]
        shift = {"none": -0.18, "selective": 0.0, "full": 0.18}[treated]
        ax.plot(cell.time.median / ours.bound, down + shift, marker, markersize=4.5,
                fillstyle=FILLS[treated], color=colour, markerfacecoloralt="white")  # fmt: skip
    ax.vlines([ours.time.median / ours.bound], down - 0.36, down + 0.36, color=INK, linewidth=1.6)


def _ingredients(ax: Any, down: int, cells: Mapping[tuple[str, str], Cell]) -> None:
    """The search with each treatment alone and with all: medians, and from the fastest seed to the slowest."""
    bound = search(cells, ALL).bound
    for at, (method, colour) in enumerate(zip(INGREDIENTS, COLOURS, strict=True)):
        cell = search(cells, method)
        if cell.time is None or not bound:
            continue
        y = down + 0.2 * (at - 1.5)
        ax.hlines(y, cell.time.least / bound, cell.time.most / bound, color=colour, linewidth=1)
        ax.plot(cell.time.median / bound, y, "o", color=colour, markersize=3.5)
        ax.hlines(y, 1, cell.time.median / bound, color=colour, linewidth=0.4, alpha=0.6)


def _key() -> tuple[list[Any], list[str]]:
    entries = [
        (
            Line2D(
                [], [], color=colour, marker=marker, linestyle="", markersize=4.5, fillstyle="none"
            ),
            name,
        )
        for name, (colour, marker) in LOOKS.items()
    ]
    entries += [
        (Line2D([], [], color=MUTED, marker="o", linestyle="", markersize=4.5, fillstyle=FILLS[treated],
                markerfacecoloralt="white"), text)
        for treated, text in (("none", "nothing recomputed"), ("selective", "a part recomputed"), ("full", "all recomputed"))
    ]  # fmt: skip
    entries.append((Line2D([], [], color=INK, linewidth=1.6), "this search, all treatments"))
    handles, labels = zip(*entries, strict=True)
    return list(handles), list(labels)


def _ingredients_key() -> tuple[list[Any], list[str]]:
    handles = [
        Line2D([], [], color=colour, marker="o", markersize=3.5, linewidth=1) for colour in COLOURS
    ]
    return handles, [SHOWN[name] for name in INGREDIENTS]
