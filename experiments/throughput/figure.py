"""This search beside the published schedules at equal memory, and OptPipe's claims beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from optpipe_sim.plot.labels import line_styles
from optpipe_sim.plot.style import INK, MUTED, new_figure, styled
from optpipe_sim.spread import Spread, spread

OURS, ONE = "this search", "this search, 1 chunk"
LINES = (
    "1F1B", "1F1B-I", "ZB-1p", "ZB-2p", "ZB-V", "no offload", "PipeOffload", "AdaOffload", ONE, OURS,
)  # fmt: skip
SHOWN = {"no offload": "best without offload"}
CLAIMS = (  # of OptPipe: how much more throughput than PipeOffload, under limits from .. to of 1F1B's
    (0.2, 0.0, 0.5, "scarce"),
    (0.3, 1.0, 1.5, "ample"),
)
IDLE_CLAIM = 0.5
MANY = 3  # microbatches per device of the main settings
MACHINES = {"a100-80gb": "A100", "h100-sxm": "H100"}
_Row = Mapping[str, Any]


class Setting(NamedTuple):
    """A model on a machine, and how much of 1F1B's activation memory it may use."""

    model: str
    devices: int
    machine: str
    microbatches: int
    share: float


class Cell(NamedTuple):
    """A method in a setting, over its seeds.

    Attributes:
        fits: whether it found a schedule with every seed.
        makespan, idle: ns; those of what does not fit are without the limit.
        bound: the largest lower bound proven for its chunks, ns; None where it proves nothing.
        row: one of its rows.
    """

    fits: bool
    makespan: Spread
    idle: Spread
    bound: int | None
    row: _Row


def settings(rows: Sequence[_Row]) -> dict[Setting, dict[str, Cell]]:
    """The methods of each setting, in the order of the rows."""
    found: dict[Setting, dict[str, list[_Row]]] = {}
    for row in rows:
        key = Setting(
            row["profile.estimate.model"],
            row["profile.estimate.devices"],
            row["profile.estimate.machine"],
            row["microbatches"],
            float(row["memory_limit"].split("x")[0]),
        )
        found.setdefault(key, {}).setdefault(row["method"], []).append(row)
    return {
        key: {
            name: cell(seeds)
            for name, seeds in methods.items()
            if any(row["makespan_ns"] is not None for row in seeds)
        }
        for key, methods in found.items()
    }


def cell(rows: Sequence[_Row]) -> Cell:
    """The seeds of one method in one setting as one."""
    there = [row for row in rows if row["makespan_ns"] is not None]
    bounds = [row["lower_bound_ns"] for row in there if row["lower_bound_ns"] is not None]
    return Cell(
        all(row["fits"] for row in rows),
        spread(row["makespan_ns"] for row in there),
        spread(row["idle_ns"] for row in there),
        max(bounds, default=None),
        there[0],
    )


def fits(methods: Mapping[str, Cell], name: str) -> bool:
    """Whether a method fits in a setting."""
    return name in methods and methods[name].fits


def less_idle(ours: Cell, other: Cell) -> float:
    """How much less idle time, of medians: 0.5 for half of it."""
    return 1 - ours.idle.median / max(1, other.idle.median)


def faster(ours: Cell, other: Cell) -> float:
    """How much more throughput, of medians: 0.2 for 20 % more."""
    return other.makespan.median / ours.makespan.median - 1


def room(ours: Cell, other: Cell) -> float:
    """How much more throughput than the other any schedule could have, by the lower bound."""
    assert ours.bound is not None
    return other.makespan.median / ours.bound - 1


def gains(
    cells: Mapping[Setting, Mapping[str, Cell]], rival: str, how: Callable[[Cell, Cell], float]
) -> list[tuple[Setting, float]]:
    """What this search gains in every setting where some schedule of the rival fits as well."""
    return [
        (key, how(methods[OURS], methods[rival]))
        for key, methods in cells.items()
        if fits(methods, OURS) and fits(methods, rival)
    ]


def draw(rows: Sequence[_Row]) -> dict[str, Figure]:
    """Throughput over the memory limit, and the claims."""
    cells = settings(rows)
    many = {key: found for key, found in cells.items() if key.microbatches == MANY * key.devices}
    return {"": _throughput(many), "claims": _claims(cells, many)}


def _throughput(cells: Mapping[Setting, Mapping[str, Cell]]) -> Figure:
    machines = list(dict.fromkeys(key.machine for key in cells))
    columns = list(dict.fromkeys((key.model, key.devices) for key in cells))
    limits = sorted({key.share for key in cells})
    looks = dict(zip(LINES, line_styles(len(LINES)), strict=True))
    looks["PipeOffload"] = {"color": "#D55E00", "marker": "X", "linestyle": "--", "markersize": 5}
    looks["no offload"] = {"color": MUTED, "marker": "", "linestyle": (0, (2, 1))}
    looks["AdaOffload"] = {"color": "#0072B2", "marker": "s", "linestyle": ":", "markersize": 4}
    looks[ONE] = {"color": "#5E2D79", "marker": "d", "linestyle": ":", "markersize": 4}
    looks[OURS] = {"color": INK, "marker": "P", "linestyle": "-", "markersize": 5, "zorder": 2}
    with styled():
        figure = new_figure(9.0, 4.4)
        grid = figure.subplots(len(machines), len(columns), sharex=True, sharey=True, squeeze=False)
        keys = {}
        for name in LINES:
            for down, machine in enumerate(machines):
                for across, column in enumerate(columns):
                    line = [
                        (limits.index(key.share), methods[name])
                        for key, methods in cells.items()
                        if (key.model, key.devices, key.machine) == (*column, machine)
                        and fits(methods, name)
                    ]
                    (keys[name],) = _line(grid[down][across], line, looks[name])
        for at, (model, devices) in enumerate(columns):
            grid[0][at].set_title(
                f"{model.removeprefix('gpt-').upper()}, p = {devices}", loc="left"
            )
        for at, machine in enumerate(machines):
            grid[at][0].set_ylabel(MACHINES.get(machine, machine))
        for ax in grid.flat:
            ax.grid(axis="y")
            ax.set_xticks(range(len(limits)), [f"{limit:g}" for limit in limits])
            ax.set_xlim(-0.3, len(limits) - 0.7)
            ax.set_ylim(0, 1.4)
        figure.supxlabel("memory limit, of 1F1B's activations", fontsize=9, y=0.02)
        figure.supylabel("throughput, of 1F1B's without a limit", fontsize=9)
        figure.legend(list(keys.values()), [SHOWN.get(name, name) for name in keys],
                      loc="upper center", ncols=5, columnspacing=1.0, handletextpad=0.4,
                      handlelength=1.8)  # fmt: skip
        figure.tight_layout(rect=(0.01, 0.01, 1, 0.9), w_pad=0.6)
    return figure


def _line(ax: Any, line: Sequence[tuple[int, Cell]], look: Mapping[str, Any]) -> Any:
    """Medians, joined; a bar from the slowest seed to the fastest."""
    x = [at for at, _ in line]
    speeds = [
        [each.row["reference_ns"] / ns for ns in each.makespan[:3]]
        for _, each in sorted(line, key=lambda entry: entry[0])
    ]
    ax.vlines(sorted(x), [low for _, _, low in speeds], [high for _, high, _ in speeds],
              color=look["color"], linewidth=2.5, alpha=0.4)  # fmt: skip
    return ax.plot(sorted(x), [middle for middle, _, _ in speeds], **look)


def _claims(
    cells: Mapping[Setting, Mapping[str, Cell]], many: Mapping[Setting, Mapping[str, Cell]]
) -> Figure:
    limits = sorted({key.share for key in many})
    rivals = {"PO-F": "PO-F, 2 chunks, as it comes", "PipeOffload": "best PipeOffload",
              "no offload": "best without offload"}  # fmt: skip
    looks = dict(zip(rivals, line_styles(3), strict=True))
    with styled():
        figure = new_figure(7.2, 5.4)
        (idle, speed), (able, few) = figure.subplots(2, 2)
        for ax, how in ((idle, less_idle), (speed, faster)):
            for at, (rival, look) in enumerate(looks.items()):
                points = gains(many, rival, how)
                x = [limits.index(key.share) + 0.24 * (at - 1) for key, _ in points]
                ax.plot(x, [100 * gain for _, gain in points], **{**look, "linestyle": ""},
                        markerfacecolor="none", label=rivals[rival])  # fmt: skip
        idle.axhline(100 * IDLE_CLAIM, color=INK, linewidth=1.4)
        idle.annotate("claim: up to", (-0.45, 100 * IDLE_CLAIM), (0, -8), ha="left",
                      textcoords="offset points", fontsize=7)  # fmt: skip
        for claim, low, high, text in CLAIMS:
            ends = [limits.index(limit) for limit in limits if low <= limit <= high]
            if ends:
                _claim(
                    speed, 100 * claim, min(ends) - 0.45, max(ends) + 0.4, f"claim, {text}: over"
                )
        possible = gains(many, "PipeOffload", room)
        speed.plot([limits.index(key.share) for key, _ in possible],
                   [100 * most for _, most in possible], "_", color="#A65E00", markersize=9,
                   label="possible against PipeOffload")  # fmt: skip
        idle.set_ylabel("this search: less idle [%]")
        speed.set_ylabel("this search: more throughput [%]")
        _logarithmic(speed)
        _feasible(able, many, limits)
        for ax in (idle, speed, able):
            ax.set_xticks(range(len(limits)), [f"{limit:g}" for limit in limits])
            ax.set_xlim(-0.5, len(limits) - 0.5)
            ax.set_xlabel("memory limit, of 1F1B's activations")
        _few(few, cells, looks)
        for ax in (idle, speed, able):
            ax.grid(axis="y")
        figure.legend(*speed.get_legend_handles_labels(), loc="upper center", ncols=4,
                      columnspacing=1.2, handletextpad=0.3)  # fmt: skip
        figure.tight_layout(rect=(0, 0, 1, 0.95), w_pad=1.5, h_pad=1.2)
    return figure


def _claim(ax: Any, y: float, left: float, right: float, text: str) -> None:
    ax.hlines(y, left, right, color=INK, linewidth=1.4)
    ax.annotate(text, (left, y), (0, 3), textcoords="offset points", fontsize=7)


def _logarithmic(ax: Any) -> None:
    """Gains in percent, as they are up to ten."""
    ax.set_yscale("symlog", linthresh=10)
    ticks = (0, 5, 10, 20, 50, 100, 200, 400)
    ax.set_yticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set_ylim(-1.5, 500)


def _few(
    ax: Any, cells: Mapping[Setting, Mapping[str, Cell]], looks: Mapping[str, Mapping[str, Any]]
) -> None:
    """The gain over the microbatches per device, in the models that were run with fewer; nothing where none were."""
    fewer = {key[:3] for key in cells if key.microbatches != MANY * key.devices}
    if not fewer:
        ax.set_axis_off()
        return
    limits = {key.share for key in cells if key.microbatches != MANY * key.devices}
    here = {key: found for key, found in cells.items() if key[:3] in fewer and key.share in limits}
    for rival in ("PO-F", "PipeOffload"):
        for scarce in (False, True):
            points = [(k, g) for k, g in gains(here, rival, faster) if (k.share < 1) == scarce]
            x = [k.microbatches / k.devices + (0.08 if scarce else -0.08) for k, _ in points]
            fill = "none" if scarce else looks[rival]["color"]
            look = {**looks[rival], "linestyle": "", "markerfacecolor": fill}
            ax.plot(x, [100 * gain for _, gain in points], **look)
    for scarce, fill in ((False, MUTED), (True, "none")):
        text = "scarce" if scarce else "ample"
        ax.plot([], [], "o", markerfacecolor=fill, markeredgecolor=MUTED, markersize=4, label=text)
    for claim, _, _, text in CLAIMS:
        _claim(ax, 100 * claim, 0.6, MANY + 0.4, f"claim, {text}: over")
    ax.grid(axis="y")
    ax.set_xticks(range(1, MANY + 1))
    ax.set_xlim(0.6, MANY + 0.4)
    ax.set_ylim(-1.5, 60)
    ax.set_xlabel("microbatches per device")
    ax.set_ylabel("this search: more throughput [%]")
    ax.legend(loc="upper right", handletextpad=0.2)


def _feasible(
    ax: Any, cells: Mapping[Setting, Mapping[str, Cell]], limits: Sequence[float]
) -> None:
    """In how many settings something fits."""
    groups = {
        "without offload": ("no offload",),
        "PipeOffload": ("PipeOffload",),
        "this search": (OURS,),
    }
    looks = zip(("#CFCFCF", "#E69F00", "#222222"), ("", "///", ""), strict=True)
    of = {limit: sum(key.share == limit for key in cells) for limit in limits}
    for at, ((name, methods), (colour, hatch)) in enumerate(
        zip(groups.items(), looks, strict=True)
    ):
        counts = [
            sum(
                any(fits(found, method) for method in methods)
                for key, found in cells.items()
                if key.share == limit
            )
            for limit in limits
        ]
        x = [where + 0.27 * (at - 1) for where in range(len(limits))]
        ax.bar(x, counts, 0.25, color=colour, hatch=hatch, edgecolor="white", label=name)
    most = max(of.values())
    ax.set_ylabel(f"settings that fit, of {most}")
    ax.set_yticks(range(0, most + 1, max(1, most // 4)))
    ax.set_ylim(0, most * 1.45)
    ax.legend(loc="upper left", fontsize=7)
