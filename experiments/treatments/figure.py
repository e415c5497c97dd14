"""Offload only, recompute only, both: published profiles, LLaMA-2-7B over copy rates, and a map of the faster one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import log2
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from experiments.spread import Spread, spread
from optpipe_sim.plot.labels import COLOURS
from optpipe_sim.plot.style import INK, new_figure, styled

Row = Mapping[str, Any]
STAGES, RULE = "all, per stage", "the best rule"
LOOKS = {  # method: label, colour, marker
    "offload": ("offloading alone", COLOURS[0], "o"),
    "recompute": ("recomputing alone", COLOURS[1], "s"),
    RULE: ("the best rule", COLOURS[3], "D"),
    STAGES: ("both, one treatment per stage", COLOURS[4], "v"),
    "all": ("both", COLOURS[2], "^"),
}
NAMES = {"zb-14.6b-p16-m48": "14.6B", "zb-1.5b-p8-m24": "1.5B", "zbv-6.2b-p16-m48": "6.2B, V"}


class Cell(NamedTuple):
    """One setting: the times of each method over the seeds, ns, and a bound on all of them."""

    times: Mapping[str, Spread]
    bound: float | None

    def over(self, method: str) -> Spread:
        """The times of a method over the bound, or over the time with both where there is none."""
        base = self.bound or self.times["all"].median
        return spread(value / base for value in self.times[method][:3])


def settings(rows: Iterable[Row], part: str, keys: Sequence[str]) -> dict[tuple[Any, ...], Cell]:
    """The settings of a part by the values of some columns."""
    times: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    bounds: dict[tuple[Any, ...], float] = {}
    for row in rows:
        if row["part"] != part or not row["fits"]:
            continue
        key = tuple(row[name] for name in keys)
        if row["method"] in ("bound", "all") and row["lower_bound_ns"]:
            bounds[key] = max(row["lower_bound_ns"], bounds.get(key, 0))
        if row["method"] != "bound":
            times.setdefault(key, {}).setdefault(row["method"], []).append(row["cost_ns"])
    found = {}
    for key, methods in times.items():
        made = {method: spread(values) for method, values in methods.items()}
        rules = [one for method, one in made.items() if method.startswith("rule, ")]
        made |= {RULE: min(rules, key=lambda one: one.median)} if rules else {}
        found[key] = Cell(made, bounds.get(key))
    return found


def published(rows: Iterable[Row]) -> dict[tuple[Any, ...], Cell]:
    """The published profiles, by name and limit."""
    return settings(rows, "published", ("profile", "memory_limit"))


def llama(rows: Iterable[Row]) -> dict[tuple[Any, ...], Cell]:
    """LLaMA-2-7B, by tokens and copy rate."""
    return settings(rows, "llama", ("profile.estimate.seq", "profile.offload.d2h_gb_per_s"))


def the_map(rows: Sequence[Row]) -> dict[tuple[float, float], Cell]:
    """Return times by duration of a copy and of recomputation, ms; either method alone depends on one of the two only."""
    mine = [row for row in rows if row["part"] == "map" and row["fits"]]
    copy, again = "profile.offload.t_offload_ms", "profile.stages.recompute"
    cells: dict[tuple[float, float], Cell] = {}
    for row in mine:
        if row["method"] != "all" or (row[copy], cost_of(row[again])) in cells:
            continue
        at = row[copy], cost_of(row[again])
        alike = {
            "all": [r for r in mine if r["method"] == "all" and (r[copy], cost_of(r[again])) == at],
            "offload": [r for r in mine if r["method"] == "offload" and r[copy] == at[0]],
            "recompute": [r for r in mine if r["method"] == "recompute" and cost_of(r[again]) == at[1]],
        }  # fmt: skip
        cells[at] = Cell(
            {m: spread(r["cost_ns"] for r in found) for m, found in alike.items()}, None
        )
    return cells


def cost_of(levels: Any) -> float:
    """The time of a stage's only level, ms; the column has it as JSON."""
    found = json.loads(levels) if isinstance(levels, str) else levels
    return float(found[0]["t_ms"]) if found else 0.0


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Three figures: published profiles, models over copy rates, the map."""
    with styled():
        return {"published": _published(rows), "llama": _llama(rows), "map": _map(rows)}


def _published(rows: Sequence[Row]) -> Figure:
    cells = published(rows)
    tall = 1.1 + 0.52 * len(cells)
    figure = new_figure(8.6, tall)
    ax = figure.add_axes((0.19, 0.55 / tall, 0.78, 1 - 1.0 / tall))
    for at, cell in enumerate(cells.values()):
        for place, (method, (label, colour, marker)) in enumerate(LOOKS.items()):
            if method in cell.times:
                found, y = cell.over(method), at + 0.13 * (place - 2)
                ax.plot([found.least, found.most], [y, y], color=colour, lw=1.2)
                ax.plot(
                    found.median, y, marker, color=colour, ms=5, ls="", label=None if at else label
                )
    ax.set_yticks(range(len(cells)), [f"{NAMES[key[0]]}, {_limit(key[1])}" for key in cells])
    ax.set_ylim(len(cells) - 0.5, -0.5)
    for at in range(1, len(cells)):
        ax.axhline(at - 0.5, color="#E4E4E4", lw=0.8)
    _over_bound(ax.set_xscale, ax.xaxis, [1, 1.1, 1.2, 1.5, 2, 3])
    ax.set_xlabel("time over the lower bound on all treatments")
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=5, fontsize=7.5, frameon=False)
    return figure


def _limit(text: str) -> str:
    share = text.partition("x 1f1b")
    return f"{float(share[0]):.0%} of 1F1B's" if share[1] else text.replace("GiB", " GiB")


def _over_bound(scale: Any, axis: Any, ticks: Sequence[float]) -> None:
    scale("log")
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.grid(visible=True)


def _llama(rows: Sequence[Row]) -> Figure:
    cells = llama(rows)
    lengths = sorted({seq for seq, _ in cells})
    figure = new_figure(8.6, 3.2)
    top = max(cell.over(m).most for cell in cells.values() for m in LOOKS if m in cell.times)
    for at, seq in enumerate(lengths):
        ax = figure.add_axes((0.075 + 0.31 * at, 0.17, 0.285, 0.62))
        rates = sorted(rate for own, rate in cells if own == seq)
        for method, (label, colour, marker) in LOOKS.items():
            here = [(rate, cells[seq, rate]) for rate in rates if method in cells[seq, rate].times]
            if here:
                found = [cell.over(method) for _, cell in here]
                xs = [rate for rate, _ in here]
                ax.plot(
                    xs,
                    [one.median for one in found],
                    marker=marker,
                    color=colour,
                    lw=1.3,
                    ms=4.5,
                    label=label,
                )
                ax.fill_between(
                    xs,
                    [one.least for one in found],
                    [one.most for one in found],
                    color=colour,
                    alpha=0.2,
                    lw=0,
                )
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(FixedLocator(rates))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        _over_bound(ax.set_yscale, ax.yaxis, [1, 1.1, 1.2, 1.5, 2, 2.5])
        ax.set_ylim(0.985, 1.04 * top)
        ax.set_title(f"{seq // 1024}k tokens", loc="left")
        ax.set_xlabel("copies [GB/s each way]")
        if at:
            ax.tick_params(labelleft=False)
        else:
            ax.set_ylabel("time over the bound")
            ax.legend(
                loc="lower left", bbox_to_anchor=(0, 1.1), ncols=5, fontsize=7.5, frameon=False
            )
    return figure


def _map(rows: Sequence[Row]) -> Figure:
    cells = the_map(rows)
    copies, costs = (sorted({key[at] for key in cells}) for at in (0, 1))
    figure = new_figure(7.2, 4.4)
    ax = figure.add_axes((0.12, 0.14, 0.6, 0.74))
    for (copy, cost), cell in cells.items():
        x, y = copies.index(copy), costs.index(cost)
        off, again, both = (cell.times[m].median for m in ("offload", "recompute", "all"))
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, color=_blend(log2(again / off))))
        gain = f"both {_signed(both / min(off, again) - 1)}"
        for text, height, size in ((_signed(off / again - 1), 0.13, 8.5), (gain, -0.2, 7)):
            ax.text(x, y + height, text, ha="center", va="center", fontsize=size, color=INK)
    ax.set_xticks(range(len(copies)), [f"{copy / 30:.2g}" for copy in copies])
    ax.set_yticks(range(len(costs)), [f"{cost / 10:.0%}" for cost in costs])
    ax.set_xlim(-0.5, len(copies) - 0.5)
    ax.set_ylim(-0.5, len(costs) - 0.5)
    ax.set_xlabel("time of a copy, over F + B + W")
    ax.set_ylabel("recomputing takes, of F")
    ax.set_title(
        "offloading alone takes more (+) or less (-) than recomputing alone", loc="left", fontsize=9
    )
    note = "blue: offloading is faster\norange: recomputing is\n\nboth: what all treatments\ntake against the better\nof the two, each searched\nfor by itself"
    figure.text(0.745, 0.6, note, fontsize=8, color=INK, va="top")
    return figure


def _signed(share: float) -> str:
    """Format a share in percent with its sign; 0 has none."""
    text = f"{share:+.1%}"
    return "0 %" if text in ("+0.0%", "-0.0%") else text


def _blend(ratio: float) -> tuple[float, float, float]:
    """White where both are equal; blue where offloading is faster, orange where recomputing is."""
    towards = (0.34, 0.71, 0.91) if ratio > 0 else (0.90, 0.62, 0.0)
    share = min(1.0, abs(ratio) / 0.25)
    return tuple(1 - share * (1 - part) for part in towards)  # type: ignore[return-value]
