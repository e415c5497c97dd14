"""Time of each engine on the random instances, fastest first; and what the MILP alone does (``milp``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from optpipe_sim.plot.labels import COLOURS, FONT, line_styles
from optpipe_sim.plot.style import MUTED, new_figure, styled

Row = Mapping[str, Any]
ENGINES = {"auto": "auto", "cpsat": "CP-SAT", "milp": "reconstructed MILP on HiGHS"}


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw both figures."""
    with styled():
        return {
            "": _instances([row for row in rows if row["part"] == "instances"]),
            "milp": _milp([row for row in rows if row["part"] != "instances"]),
        }


def _instances(rows: Sequence[Row]) -> Figure:
    """Draw, without and with levels of recomputation, a line per engine: the number of instances proven
    within a time."""
    looks = line_styles(len(ENGINES))
    figure = new_figure(7.4, 3.4)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for levels, ax in zip((False, True), panels, strict=True):
        some = [row for row in rows if bool(row["level_count"]) is levels]
        for (engine, name), look in zip(ENGINES.items(), looks, strict=True):
            ends = sorted(row[f"{engine}_s"] for row in some if _proven(row, engine))
            ax.step(ends, range(1, len(ends) + 1), where="post", label=name, color=look["color"],
                    linestyle=look["linestyle"])  # fmt: skip
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel("seconds")
        ax.set_title(f"{len(some)} instances, {'levels' if levels else 'no levels'}", loc="left")
        ax.grid(visible=True)
    panels[0].set_ylim(0)
    panels[0].set_ylabel("instances proven optimal")
    panels[1].legend(loc="lower right")
    figure.tight_layout()
    return figure


def _proven(row: Row, engine: str) -> bool:
    return bool(row["auto_status"] == "optimal" if engine == "auto" else row[f"{engine}_proven"])


def _milp(rows: Sequence[Row]) -> Figure:
    """Draw the seconds of each run of the MILP, and the gap of those that were stopped."""
    figure = new_figure(9.4, 8.6)
    ax = figure.add_axes((0.5, 0.06, 0.48, 0.9))
    problem = ""
    for y, row in enumerate(rows):
        proven = row["status"] == "optimal"
        ax.barh(y, max(row["seconds"], 0.05), color=COLOURS[2 if proven else 1])
        gap = "no schedule" if row["gap"] is None else f"{row['gap']:.1%}"
        text = "" if proven else f" {gap}"
        ax.text(row["seconds"], y, text, fontsize=FONT, va="center")
        ax.text(-0.01, y, _how(row), fontsize=FONT, ha="right", va="center", transform=ax.get_yaxis_transform())  # fmt: skip
        if _problem(row) != problem:
            problem = _problem(row)
            ax.text(-1.03, y, problem, fontsize=FONT, va="center", transform=ax.get_yaxis_transform())  # fmt: skip
            ax.axhline(y - 0.5, color=MUTED, lw=0.5)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks([])
    ax.set_xscale("log")
    ax.set_xlim(0.03, 90)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("seconds")
    ax.set_title("The MILP: green until it is proven; else stopped, with its gap", loc="left")
    return figure


def _problem(row: Row) -> str:
    copy = row["profile.offload.t_offload_ns"]
    copies = "no offload" if copy is None else f"copies of {copy} ns"
    return f"p = {row['p']}, m = {row['m']}, {row['limit']} B, {copies}"


def _how(row: Row) -> str:
    solver = "Gurobi, " if row["solver"] == "gurobi" else ""
    start = {"adaoffload": "AdaOffload", "none": "nothing", "everything": "a poor start"}
    switched = ", ".join(row["switched"])
    kind = (
        "" if not switched else f", {switched}" if switched == "fifo" else f", without {switched}"
    )
    return f"{solver}from {start[row['start']]}{kind}"
