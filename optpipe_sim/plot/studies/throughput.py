"""OptPipe beside the published schedules at equal memory, and its claims beside what we get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from ..style import INK, MUTED, new_figure, styled
from . import line_styles

LINES = (
    "1F1B", "1F1B-I", "ZB-1p", "ZB-2p", "ZB-V", "no offload", "PipeOffload", "OptPipe, 1 chunk", "OptPipe",
)  # fmt: skip
CLAIMS = (  # how much more throughput than PipeOffload, under limits from .. to of 1F1B's
    (0.2, 0.0, 0.5, "scarce"),
    (0.3, 1.0, 1.5, "ample"),
)
IDLE_CLAIM = 0.5
MANY = 3  # microbatches per device of the main settings
_Row = Mapping[str, Any]
_Setting = tuple[str, int, float]


def draw(rows: Sequence[_Row]) -> dict[str, Figure]:
    """Throughput over the memory limit, and the claims."""
    return {
        "": _throughput([row for row in rows if per_device(row) == MANY]),
        "claims": _claims(rows),
    }


def per_device(row: _Row) -> float:
    """Microbatches per device."""
    return float(row["microbatches"] / row["profile.estimate.devices"])


def share(row: _Row) -> float:
    """The limit of a row, as a share of the activations that 1F1B holds."""
    return float(row["memory_limit"].split("x")[0])


def settings(rows: Sequence[_Row]) -> dict[tuple[Any, ...], dict[str, _Row]]:
    """The rows of each model, number of devices, bandwidth, microbatches and limit, by method."""
    found: dict[tuple[Any, ...], dict[str, _Row]] = {}
    for row in rows:
        key = (*_where(row), row["microbatches"], share(row))
        found.setdefault(key, {})[row["method"]] = row
    return found


def _where(row: _Row) -> _Setting:
    return (
        row["profile.estimate.model"],
        row["profile.estimate.devices"],
        row["profile.offload.d2h_gb_per_s"],
    )


def _throughput(rows: Sequence[_Row]) -> Figure:
    speeds = sorted({_where(row)[2] for row in rows})
    columns = list(dict.fromkeys(_where(row)[:2] for row in rows))
    limits = sorted({share(row) for row in rows})
    looks = dict(zip(LINES, line_styles(len(LINES)), strict=True))
    looks["PipeOffload"] = {"color": "#D55E00", "marker": "X", "linestyle": "--", "markersize": 5}
    looks["no offload"] = {"color": MUTED, "marker": "", "linestyle": (0, (2, 1))}
    looks["OptPipe, 1 chunk"] = {
        "color": "#5E2D79",
        "marker": "d",
        "linestyle": ":",
        "markersize": 4,
    }
    looks["OptPipe"] = {"color": INK, "marker": "P", "linestyle": "-", "markersize": 5, "zorder": 2}
    with styled():
        figure = new_figure(9.0, 4.4)
        grid = figure.subplots(len(speeds), len(columns), sharex=True, sharey=True, squeeze=False)
        keys = {}
        for name in LINES:
            for down, speed in enumerate(speeds):
                for across, column in enumerate(columns):
                    line = [
                        (limits.index(share(row)), row["reference_ns"] / row["makespan_ns"])
                        for row in rows
                        if row["method"] == name and _where(row) == (*column, speed) and row["fits"]
                    ]
                    x, y = zip(*sorted(line), strict=True) if line else ((), ())
                    (keys[name],) = grid[down][across].plot(x, y, **looks[name])
        for at, (model, devices) in enumerate(columns):
            grid[0][at].set_title(
                f"{model.removeprefix('gpt-').upper()}, {devices} H100", loc="left"
            )
        for at, speed in enumerate(speeds):
            grid[at][0].set_ylabel(f"copies at {speed:g} GB/s")
        for ax in grid.flat:
            ax.grid(axis="y")
            ax.set_xticks(range(len(limits)), [f"{limit:g}" for limit in limits])
            ax.set_xlim(-0.3, len(limits) - 0.7)
            ax.set_ylim(0.15, 1.4)
        figure.supxlabel("memory limit, of 1F1B's activations", fontsize=9, y=0.02)
        figure.supylabel("throughput, of 1F1B's without a limit", fontsize=9)
        names = ["best without offload" if name == "no offload" else name for name in keys]
        figure.legend(list(keys.values()), names, loc="upper center", ncols=len(keys),
                      columnspacing=1.0, handletextpad=0.4, handlelength=1.8)  # fmt: skip
        figure.tight_layout(rect=(0.01, 0.01, 1, 0.95), w_pad=0.6)
    return figure


def less_idle(ours: _Row, other: _Row) -> float:
    """How much less idle time: 0.5 for half of it."""
    return float(1 - ours["idle_ns"] / max(1, other["idle_ns"]))


def faster(ours: _Row, other: _Row) -> float:
    """How much more throughput: 0.2 for 20 % more."""
    return float(other["makespan_ns"] / ours["makespan_ns"] - 1)


def gains(
    rows: Sequence[_Row], rival: str, how: Callable[[_Row, _Row], float]
) -> list[tuple[float, float]]:
    """(limit, what OptPipe gains) in every setting where some schedule of the rival fits as well."""
    return [
        (key[-1], how(methods["OptPipe"], methods[rival]))
        for key, methods in settings(rows).items()
        if methods["OptPipe"]["fits"] and methods[rival]["fits"]
    ]


def _claims(rows: Sequence[_Row]) -> Figure:
    many = [row for row in rows if per_device(row) == MANY]
    limits = sorted({share(row) for row in many})
    rivals = {"PO-F": "PO-F, 2 chunks, as published", "PipeOffload": "best PipeOffload",
              "no offload": "best without offload"}  # fmt: skip
    looks = dict(zip(rivals, line_styles(3), strict=True))
    with styled():
        figure = new_figure(7.2, 5.4)
        (idle, speed), (fits, few) = figure.subplots(2, 2)
        for ax, how in ((idle, less_idle), (speed, faster)):
            for at, (rival, look) in enumerate(looks.items()):
                points = gains(many, rival, how)
                x = [limits.index(limit) + 0.24 * (at - 1) for limit, _ in points]
                ax.plot(x, [100 * gain for _, gain in points], **{**look, "linestyle": ""},
                        markerfacecolor="none", label=rivals[rival])  # fmt: skip
        idle.axhline(100 * IDLE_CLAIM, color=INK, linewidth=1.4)
        idle.annotate("claim: up to", (-0.45, 100 * IDLE_CLAIM), (0, -8), ha="left",
                      textcoords="offset points", fontsize=7)  # fmt: skip
        for claim, low, high, text in CLAIMS:
            ends = [limits.index(limit) for limit in limits if low <= limit <= high]
            if ends:
                _line(speed, 100 * claim, min(ends) - 0.4, max(ends) + 0.4, f"claim, {text}: over")
        room = _room(many)
        x = [limits.index(limit) for limit, _ in room]
        speed.plot(x, [100 * most for _, most in room], "_", color="#A65E00", markersize=9,
                   label="possible against PipeOffload")  # fmt: skip
        idle.set_ylabel("OptPipe: less idle [%]")
        speed.set_ylabel("OptPipe: more throughput [%]")
        _logarithmic(speed)
        _feasible(fits, many, limits)
        for ax in (idle, speed, fits):
            ax.set_xticks(range(len(limits)), [f"{limit:g}" for limit in limits])
            ax.set_xlim(-0.5, len(limits) - 0.5)
            ax.set_xlabel("memory limit, of 1F1B's activations")
        _few(few, rows, looks)
        for ax in (idle, speed, fits, few):
            ax.grid(axis="y")
        figure.legend(*speed.get_legend_handles_labels(), loc="upper center", ncols=4,
                      columnspacing=1.2, handletextpad=0.3)  # fmt: skip
        figure.tight_layout(rect=(0, 0, 1, 0.95), w_pad=1.5, h_pad=1.2)
    return figure


def _line(ax: Any, y: float, left: float, right: float, text: str) -> None:
    ax.hlines(y, left, right, color=INK, linewidth=1.4)
    ax.annotate(text, (left, y), (0, 3), textcoords="offset points", fontsize=7)


def _logarithmic(ax: Any) -> None:
    """Gains in percent, as they are up to ten."""
    ax.set_yscale("symlog", linthresh=10)
    ticks = (0, 5, 10, 20, 50, 100, 200, 400)
    ax.set_yticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set_ylim(-1.5, 500)


def _room(rows: Sequence[_Row]) -> list[tuple[float, float]]:
    """(limit, what any schedule may at most gain over the best PipeOffload), by the lower bound."""
    return [
        (key[-1], cells["PipeOffload"]["makespan_ns"] / cells["OptPipe"]["lower_bound_ns"] - 1)
        for key, cells in settings(rows).items()
        if cells["PipeOffload"]["fits"]
    ]


def _few(ax: Any, rows: Sequence[_Row], looks: Mapping[str, Any]) -> None:
    """The gain over the microbatches per device, in the settings that were run with fewer."""
    fewer = {_where(row) for row in rows if per_device(row) != MANY}
    limits = {share(row) for row in rows if per_device(row) != MANY}
    for rival in ("PO-F", "PipeOffload"):
        for limit in sorted(limits):
            cells = [
                (cell["OptPipe"], cell[rival])
                for key, cell in settings(rows).items()
                if key[:3] in fewer and key[-1] == limit and cell[rival]["fits"]
            ]
            scarce = limit < 1
            x = [per_device(ours) + (0.08 if scarce else -0.08) for ours, _ in cells]
            y = [100 * faster(ours, other) for ours, other in cells]
            look = {**looks[rival], "linestyle": "", "markerfacecolor": "none"}
            if not scarce:
                look["markerfacecolor"] = look["color"]
            ax.plot(x, y, **look)
    for scarce, fill in ((False, MUTED), (True, "none")):
        text = "scarce" if scarce else "ample"
        ax.plot([], [], "o", markerfacecolor=fill, markeredgecolor=MUTED, markersize=4, label=text)
    for claim, _, _, text in CLAIMS:
        _line(ax, 100 * claim, 0.6, MANY + 0.4, f"claim, {text}: over")
    ax.set_xticks(range(1, MANY + 1))
    ax.set_xlim(0.6, MANY + 0.4)
    ax.set_ylim(-1.5, 50)
    ax.set_xlabel("microbatches per device")
    ax.set_ylabel("OptPipe: more throughput [%]")
    ax.legend(loc="upper right", handletextpad=0.2)


def _feasible(ax: Any, rows: Sequence[_Row], limits: Sequence[float]) -> None:
    """In how many settings something fits."""
    groups = {
        "published, without offload": ("1F1B", "1F1B-I", "ZB-1p", "ZB-2p", "ZB-V"),
        "PipeOffload": ("PipeOffload",),
        "OptPipe": ("OptPipe",),
    }
    looks = zip(("#CFCFCF", "#E69F00", "#222222"), ("", "///", ""), strict=True)
    for at, ((name, methods), (colour, hatch)) in enumerate(
        zip(groups.items(), looks, strict=True)
    ):
        counts = [
            sum(
                any(cells[method]["fits"] for method in methods)
                for key, cells in settings(rows).items()
                if key[-1] == limit
            )
            for limit in limits
        ]
        x = [where + 0.27 * (at - 1) for where in range(len(limits))]
        ax.bar(x, counts, 0.25, color=colour, hatch=hatch, edgecolor="white", label=name)
    of = len({key[:-1] for key in settings(rows)})
    ax.set_ylabel(f"settings that fit, of {of}")
    ax.set_yticks(range(0, of + 1, max(1, of // 4)))
    ax.set_ylim(0, of * 1.45)
    ax.legend(loc="upper left", fontsize=7)
