"""One page: every method's time in every setting, the fastest rule there, what each ingredient of the
search adds, and time over memory in one setting."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.spread import Spread, spread
from optpipe_sim.plot.style import INK, MUTED, new_figure, styled
from results.claims import span

ALL = "this search"
ONE = "this search, 1 chunk, offload"  # our reading of OptPipe
ONE_ALL = "this search, 1 chunk"
OFFLOAD = "this search, offload"
RECOMPUTE = "this search, recompute"
MILP = "reconstructed MILP, 1 chunk"
TREATED = ("none", "selective", "full")
CHOSEN = "chosen"
LOOKS = {
    "1F1B": ("#7F7F7F", "s"), "1F1B-I": ("#7F7F7F", "D"), "ZB-H1, ZB-1p, ZB-2p": ("#56B4E9", "^"),
    "ZB-V": ("#0072B2", "v"), "V-Half, V-Min": ("#009E73", "<"), "GIS": ("#E69F00", ">"),
    "PipeOffload": ("#D55E00", "X"), "Megatron-LM offloading": ("#B8860B", "P"), "AdaOffload": ("#CC79A7", "o"),
    "AdaPipe, up to 4 chunks": ("#6A3D9A", "p"), "Mario": ("#8B4513", "h"), "AdaOffload-R, up to 4 chunks": ("#CC79A7", "H"),
}  # fmt: skip
FAMILIES = tuple(LOOKS)
FILLS: dict[str, Any] = {"none": "none", "selective": "left", "full": "full", CHOSEN: "bottom"}
SHIFTS = {"none": -0.24, "selective": -0.08, CHOSEN: 0.08, "full": 0.24}
# The search without an ingredient: its label and its method; without an order of its own it is a rule's.
WITHOUT = {
    "the fastest rule instead": "", "one chunk per device": ONE_ALL, "no offloading": RECOMPUTE,
    "no recomputation": OFFLOAD,
}  # fmt: skip
SHAPES = ("o", "x", "D", "^")  # of these; colours are of families
OVER_MEMORY = {  # families whose time over memory is drawn
    "1F1B-I": ("1F1B", "1F1B-I", "AdaPipe, up to 4 chunks", "Mario"),
    "V-Half, V-Min": ("ZB-H1, ZB-1p, ZB-2p", "ZB-V", "V-Half, V-Min"),
    "GIS": ("GIS",),
    "PipeOffload": ("PipeOffload",),
    "AdaOffload": ("AdaOffload", "AdaOffload-R, up to 4 chunks"),
}
SECONDS = tuple(
    base * 10**power for power in range(-3, 4) for base in (1, 1.2, 1.4, 1.6, 2, 2.5, 3, 4, 5, 7)
)
_Row = Mapping[str, Any]
_E = "profile.estimate."
_Key = TypeVar("_Key", bound=Hashable)


class Setting(NamedTuple):
    """A model on a pipeline of real devices."""

    machine: str
    model: str
    devices: int
    tp: int
    seq: int
    microbatches: int

    @property
    def pipeline(self) -> int:
        return self.devices // self.tp

    def __str__(self) -> str:
        shared = f" x {self.tp}" if self.tp > 1 else ""
        device = self.machine.upper().removesuffix("-SXM")
        return (
            f"{self.model}, {self.seq // 1024}k, {self.pipeline}{shared} {device},"
            f" m = {self.microbatches}"
        )


class Cell(NamedTuple):
    """A method and the treatments that it may use, over its seeds.

    Attributes:
        fits: whether it has a schedule with every seed.
        time: ns; None where nothing fits.
        bound: the largest lower bound proven for its treatments, ns; None for a rule.
        rows: its rows.
    """

    fits: bool
    time: Spread | None
    bound: int | None
    rows: Sequence[_Row]

    @property
    def ns(self) -> float:
        """The median of its times; the cell must have some."""
        assert self.time is not None
        return self.time.median


Methods = Mapping[tuple[str, str], Cell]


class Best(NamedTuple):
    """The fastest of some rules: its family, what it recomputes, and its cell."""

    method: str
    treated: str
    cell: Cell


def settings(rows: Sequence[_Row]) -> dict[Setting, Methods]:
    """The methods of each setting under its device's own memory, by name and treatment."""
    return _grouped([row for row in rows if row["memory_limit"] is None], setting_of)


def limits(rows: Sequence[_Row]) -> dict[int, Methods]:
    """The methods of the setting that was also run with less memory, by the limit in bytes, its
    device's own last."""
    which = {_same(row) for row in rows if row["memory_limit"] is not None}
    found = [row for row in rows if _same(row) in which]
    return dict(sorted(_grouped(found, lambda row: int(row["limit_bytes"])).items()))


def _same(row: _Row) -> tuple[str, int]:
    """What the rows of one setting share at all limits."""
    return row["profile"], row["microbatches"]


def setting_of(row: _Row) -> Setting:
    """The setting of a row."""
    estimated = {field: row[f"{_E}{field}"] for field in Setting._fields[:-1]}
    return Setting(**estimated, microbatches=row["microbatches"])


def _grouped(rows: Sequence[_Row], key_of: Callable[[_Row], _Key]) -> dict[_Key, Methods]:
    found: dict[_Key, dict[tuple[str, str], list[_Row]]] = {}
    for row in rows:
        methods = found.setdefault(key_of(row), {})
        methods.setdefault((row["method"], row["treated"]), []).append(row)
    return {
        key: {name: _cell(seeds) for name, seeds in methods.items()}
        for key, methods in found.items()
    }


def _cell(rows: Sequence[_Row]) -> Cell:
    times = [row["makespan_ns"] for row in rows if row["makespan_ns"] is not None]
    bounds = [row["lower_bound_ns"] for row in rows if row["lower_bound_ns"] is not None]
    fits = all(row["fits"] for row in rows)
    return Cell(fits, spread(times) if times else None, max(bounds, default=None), rows)


def search(methods: Methods, method: str = ALL) -> Cell:
    """The cell of a search, whatever it may do."""
    return next(cell for (name, _), cell in methods.items() if name == method)


def best_rule(
    methods: Methods,
    families: Sequence[str] = FAMILIES,
    treated: Sequence[str] = (*TREATED, CHOSEN),
) -> Best | None:
    """Return the fastest of some rules with some ways to recompute; None where none fits."""
    able = [
        Best(*key, cell)
        for key, cell in methods.items()
        if key[0] in families and key[1] in treated and cell.time is not None
    ]
    return min(able, key=lambda best: best.cell.ns, default=None)


def without(methods: Methods, method: str) -> Cell | None:
    """Return the search without an ingredient, or with ``""`` the fastest rule; None where
    nothing fits."""
    rule = best_rule(methods)
    found = search(methods, method) if method else rule and rule.cell
    return found if found is not None and found.time is not None else None


def draw(rows: Sequence[_Row]) -> dict[str, Figure]:
    """Draw the page."""
    cells = settings(rows)
    with styled():
        figure = new_figure(11.5, 0.56 * len(cells) + 5.2)
        grid = figure.add_gridspec(
            2, 3, height_ratios=(0.56 * len(cells), 2.2), width_ratios=(2.1, 1.15, 1.25)
        )
        every = figure.add_subplot(grid[0, 0])
        wins = figure.add_subplot(grid[0, 1], sharey=every)
        adds = figure.add_subplot(grid[0, 2], sharey=every)
        for down, methods in enumerate(cells.values()):
            _methods(every, down, methods)
            _winner(wins, down, methods)
            _ingredients(adds, down, methods)
        _lay_out(every, wins, adds, list(cells))
        memory = figure.add_subplot(grid[1, 0])
        _over_memory(memory, limits(rows), cells)
        keys = figure.add_subplot(grid[1, 1:])
        keys.axis("off")
        keys.add_artist(
            keys.legend(
                *_key(), loc="upper left", ncols=2, columnspacing=1.0, handletextpad=0.3, fontsize=7
            )
        )
        keys.legend(
            *_ingredients_key(),
            loc="upper right",
            handletextpad=0.4,
            fontsize=7,
            title="this search with",
            title_fontsize=7,
        )
        figure.tight_layout(w_pad=0.8, h_pad=1.6)
    return {"": figure}  # fmt: skip


def _lay_out(every: Any, wins: Any, adds: Any, names: Sequence[Setting]) -> None:
    every.set_yticks(
        range(len(names)), [str(name).replace(", ", "\n", 1) for name in names], fontsize=7
    )
    every.set_ylim(len(names) - 0.4, -0.6)
    for ax in (every, wins, adds):
        ax.tick_params(axis="y", length=0, labelleft=ax is every)
        for line in range(len(names) - 1):
            ax.axhline(line + 0.5, color=MUTED, linewidth=0.3)
    for ax, ticks in ((every, (1, 1.2, 1.5, 2, 3, 5)), (adds, (0.8, 1, 1.2, 1.5, 2, 3))):
        ax.set_xscale("log")
        ax.grid(axis="x")
        ax.set_xticks(ticks, [f"{value:g}" for value in ticks])
        ax.minorticks_off()
        ax.set_xlim(ticks[0] * 0.98, ticks[-1])
    wins.set_xlim(0, 1)
    wins.set_xticks([])
    for side in ("left", "bottom"):
        wins.spines[side].set_visible(False)
    every.set_xlabel("iteration time over the lower bound")
    adds.set_xlabel("time over the search with all four\n(without one, in a third of the time)")
    every.set_title("every method under the device's memory", loc="left")
    wins.set_title("the fastest rule", loc="left")
    adds.set_title("what each ingredient adds", loc="left")


def _methods(ax: Any, down: int, methods: Methods) -> None:
    """Draw all methods of one setting: rules as markers, filled by what they recompute; the search as a bar."""
    ours = search(methods)
    if ours.time is None or not ours.bound:
        return
    for (method, treated), cell in methods.items():
        if method not in LOOKS or cell.time is None:
            continue
        colour, marker = LOOKS[method]
        ax.plot(cell.ns / ours.bound, down + SHIFTS[treated], marker, markersize=4.5,
                fillstyle=FILLS[treated], color=colour, markerfacecoloralt="white")  # fmt: skip
    ax.vlines([ours.ns / ours.bound], down - 0.36, down + 0.36, color=INK, linewidth=1.6)


def _winner(ax: Any, down: int, methods: Methods) -> None:
    """Draw the fastest rule, and how much longer it takes than the search, from its slowest seed to its fastest."""
    best, ours = best_rule(methods), search(methods)
    if best is None:
        ax.text(0.02, down, "none fits", fontsize=7, va="center", color=MUTED)
        return
    recomputed = {"none": "", "selective": ", recomputes a part", "full": ", recomputes all"}
    ax.text(0.02, down - 0.17, best.method + recomputed.get(best.treated, ""), fontsize=7, va="center",
            color=LOOKS[best.method][0])  # fmt: skip
    if ours.time is not None:
        low, high = (100 * (best.cell.ns / ns - 1) for ns in (ours.time.most, ours.time.least))
        longer = f"takes {span((low, high), '{:.1f}'.format)} % longer than this search"
        ax.text(0.02, down + 0.17, longer, fontsize=7, va="center")


def _ingredients(ax: Any, down: int, methods: Methods) -> None:
    """Draw the search without one of its ingredients: medians, and from the fastest seed to
    the slowest; the black line is the search with all of them."""
    ours = search(methods)
    if ours.time is None:
        return
    ax.axvspan(1, 1, color=INK)
    ax.vlines([1], down - 0.36, down + 0.36, color=INK, linewidth=1.2)
    for at, (method, shape) in enumerate(zip(WITHOUT.values(), SHAPES, strict=True)):
        cell = without(methods, method)
        y = down + 0.18 * (at - 1.5)
        if cell is None or cell.time is None:
            continue
        ax.hlines(y, cell.time.least / ours.ns, cell.time.most / ours.ns, color=INK, linewidth=0.9)
        ax.plot(cell.ns / ours.ns, y, shape, color=INK, markersize=3.6)
        ax.hlines(y, 1, cell.ns / ours.ns, color=MUTED, linewidth=0.4)


def _over_memory(ax: Any, found: Mapping[int, Methods], cells: Mapping[Setting, Methods]) -> None:
    """Draw time over the memory limit: families of rules, without and with recomputation, and the search."""
    if not found:
        ax.axis("off")
        return
    for family, members in OVER_MEMORY.items():
        for line, treated in ((":", ("none",)), ("-", (*TREATED, CHOSEN))):
            able = {limit: best_rule(methods, members, treated) for limit, methods in found.items()}
            points = [(limit / 2**30, best.cell.ns / 1e9) for limit, best in able.items() if best]
            colour, marker = LOOKS[family]
            ax.plot(*zip(*points, strict=True) if points else ([], []), line, color=colour, marker=marker,
                    markersize=3.5, fillstyle="none" if line == ":" else "full")  # fmt: skip
    ours = {limit: cell.time for limit, each in found.items() if (cell := search(each)).time}
    x = [limit / 2**30 for limit in ours]
    ax.plot(x, [time.median / 1e9 for time in ours.values() if time], color=INK, linewidth=1.8)
    ax.fill_between(
        x,
        [time.least / 1e9 for time in ours.values() if time],
        [time.most / 1e9 for time in ours.values() if time],
        color=INK, alpha=0.15, linewidth=0,
    )  # fmt: skip
    which = _same(search(next(iter(found.values()))).rows[0])
    name = next(name for name, each in cells.items() if _same(search(each).rows[0]) == which)
    ax.set_title(f"time over memory: {name}", loc="left")
    ax.set_xlabel("memory per device (GiB)")
    ax.set_ylabel("iteration time (s)")
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ticks = [value for value in SECONDS if low <= value <= high]
    ax.set_yticks(ticks, [f"{value:g}" for value in ticks])
    ax.minorticks_off()
    ax.grid(axis="y")


def _key() -> tuple[list[Any], list[str]]:
    def sign(marker: str, colour: str, fill: Any) -> Line2D:
        return Line2D([], [], color=colour, marker=marker, linestyle="", markersize=4.5, fillstyle=fill,
                      markerfacecoloralt="white")  # fmt: skip

    entries = [(sign(marker, colour, "none"), name) for name, (colour, marker) in LOOKS.items()]
    # without how many chunks are tried
    families = (
        dict.fromkeys(name.split(", up to")[0] for name in some) for some in OVER_MEMORY.values()
    )
    several = [f"{', '.join(names)};" for names in families if len(names) > 1]
    words = {"none": "nothing recomputed", "selective": "a part recomputed", CHOSEN: "as the rule chooses",
             "full": "all recomputed"}  # fmt: skip
    entries += [(sign("o", MUTED, FILLS[treated]), text) for treated, text in words.items()]
    entries += [
        (Line2D([], [], color=INK, linewidth=1.6), "this search, all treatments"),
        (
            Line2D([], [], color=MUTED, linestyle=":"),
            "\n".join(
                [
                    "below: the fastest without recomputation,",
                    "with the mark of one, among",
                    *several,
                ]
            ),
        ),
        (Line2D([], [], color=MUTED), "... and with any"),
    ]
    handles, labels = zip(*entries, strict=True)
    return list(handles), list(labels)


def _ingredients_key() -> tuple[list[Any], list[str]]:
    handles = [
        Line2D([], [], color=INK, marker=shape, markersize=3.8, linewidth=0.6) for shape in SHAPES
    ]
    return handles, list(WITHOUT)
