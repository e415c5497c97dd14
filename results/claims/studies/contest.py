"""What README.md and results/README.md say of the contest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from experiments.contest.figure import (
    ALL,
    CHOSEN,
    MILP,
    OFFLOAD,
    ONE,
    ONE_ALL,
    RECOMPUTE,
    Cell,
    Methods,
    Setting,
    best_rule,
    limits,
    search,
    settings,
    without,
)
from optpipe_sim.study.claims import Tables, percent, span

Cells = Mapping[Setting, Methods]
LACKS = {
    "Without recomputation it takes": OFFLOAD,
    "without offloading": RECOMPUTE,
    "with one chunk per device": ONE_ALL,
}
NOT_OFFLOADING = ("1F1B", "1F1B-I", "ZB-H1, ZB-1p, ZB-2p", "ZB-V", "V-Half, V-Min", "GIS")
FULL_COPIES, HALF_COPIES = 1, 2  # the largest k with which all, or half, of the copies hide


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("contest")
    cells = settings(rows)
    yield from _against_rules(cells)
    yield from _ingredients(cells)
    yield from _optpipe(cells)
    yield from _pipeoffload(cells)
    yield from _less_memory(limits(rows), cells)
    ours = [search(methods) for methods in cells.values()]
    gaps = [cell.ns / cell.bound - 1 for cell in ours if cell.bound]
    yield from _table(cells)
    yield f"Its gap to the lower bound is {span(gaps, percent)} (median {percent(median(gaps))})"


def _table(cells: Cells) -> Iterator[str]:
    """A line per setting: the fastest rule, this search with its seeds, the bound on everything."""
    for setting, methods in cells.items():
        best, ours = best_rule(methods), search(methods)
        assert best is not None
        assert ours.time is not None
        assert ours.bound is not None
        rule = f"`{best.cell.rows[0]['schedule']}` {best.cell.ns / 1e9:.4g}"
        seeds = f"{ours.time.least / 1e9:.4g} to {ours.time.most / 1e9:.4g}"
        yield (
            f"| {setting} | {rule} | {ours.ns / 1e9:.4g} ({seeds}) | {percent(best.cell.ns / ours.ns - 1)} |"
            f" {percent(ours.ns / ours.bound - 1)} |"
        )


def _against_rules(cells: Cells) -> Iterator[str]:
    """The search beside the fastest rule; which that is; what recomputation is to rules."""
    ours = {key: search(methods) for key, methods in cells.items()}
    rules = {key: best for key, methods in cells.items() if (best := best_rule(methods))}
    rows = [cell.rows[0] for cell in ours.values()]
    gain = {key: best.cell.ns / ours[key].ns - 1 for key, best in rules.items()}
    faster = [key for key, best in rules.items() if ours[key].time.most < best.cell.ns]  # type: ignore[union-attr]
    late = [
        over for key, best in rules.items() if (over := ours[key].time.most / best.cell.ns - 1) > 0
    ]  # type: ignore[union-attr]
    yield (
        f"In {len(cells)} settings of real devices under their own memory this search (median of"
        f" {len(ours[next(iter(cells))].rows)} seeds, {span(map(_seconds, rows), '{:g}'.format)} s on"
        f" {rows[0]['cores']} cores) is"
        f" {_faster(gain.values())} than the fastest of all rules (median {percent(median(gain.values()))}): faster with every seed in"
        f" {len(faster)} of them, slower with some seed in {len(late)}"
        + (f", by at most {percent(max(late), 2)}" if late else "")
    )
    tried = [methods["1F1B", "none"].rows[0] for methods in cells.values()]
    yield (
        f"Trying all rules took {span([row['point_s'] for row in tried], '{:.0f}'.format)} s per setting on one core; the search tries them first,"
        f" in at most half of its time"
    )
    won = Counter(best.method for best in rules.values())
    names = ", ".join(f"{name} in {count}" for name, count in won.most_common())
    plain = {key: best_rule(methods, treated=("none",)) for key, methods in cells.items()}
    losses = [one.cell.ns / rules[key].cell.ns - 1 for key, one in plain.items() if one is not None]
    yield (
        f"The fastest rule is {names}; it recomputes in {sum(_recomputes(best.cell) for best in rules.values())}, and"
        f" without recomputation rules take {span(losses, percent)} longer"
        + (f", and none fits in {sum(one is None for one in plain.values())}" if None in plain.values() else "")
    )  # fmt: skip


def _seconds(row: Mapping[str, Any]) -> float:
    """What the search with everything had; in tables without the column twice what the others had."""
    return float(row["seconds"] if "seconds" in row else 2 * row["time_limit"])


def _faster(gains: Iterable[float]) -> str:
    """``1.0 to 4.5 % faster``; ``between 2.0 % slower and 4.5 % faster``."""
    found = sorted(round(gain, 3) for gain in gains)
    if found[0] >= 0:
        return f"{span(found, percent)} faster"
    if found[-1] <= 0:
        return f"{span(map(abs, found), percent)} slower"
    return f"between {percent(-found[0])} slower and {percent(found[-1])} faster"


def _recomputes(cell: Cell) -> bool:
    return sum(cell.rows[0]["recompute_ns"]) > 0


def _ingredients(cells: Cells) -> Iterator[str]:
    """What the search takes without one of its ingredients."""
    said = []
    for words, method in LACKS.items():
        pairs = [(without(methods, method), search(methods)) for methods in cells.values()]
        found = [cell.ns / ours.ns - 1 for cell, ours in pairs if cell is not None]
        apart = sum(
            cell.time.differs(ours.time)  # type: ignore[union-attr,arg-type]
            for cell, ours in pairs
            if cell is not None
        )
        nothing = len(pairs) - len(found)
        said.append(
            f"{words} {span(found, percent)}{'' if said else ' longer'} (median {percent(median(found))};"
            f" beyond the spread of seeds in {apart})"
            + (f" and nothing that fits in {nothing}" if nothing else "")
        )
    yield ", ".join(said)
    yield f"Each search without an ingredient had {_part(cells)} of the time"


def _part(cells: Cells) -> str:
    """Which part of the time of the search with everything one without an ingredient had."""
    (part,) = {
        round(_seconds(search(methods).rows[0]) / search(methods, OFFLOAD).rows[0]["time_limit"])
        for methods in cells.values()
    }
    return {1: "all", 2: "half", 3: "a third"}[part]


def _optpipe(cells: Cells) -> Iterator[str]:
    """One chunk and offloading alone, as OptPipe is read here, beside PipeOffload's best; then this search."""
    compared = [
        (search(methods, ONE), rival.cell, search(methods))
        for methods in cells.values()
        if search(methods, ONE).time is not None
        and (rival := best_rule(methods, ("PipeOffload",), ("none",))) is not None
    ]
    beaten = sum(ours.time.most < rival.ns for ours, rival, _ in compared)  # type: ignore[union-attr]
    more = [rival.ns / ours.ns for ours, rival, _ in compared]
    yield (
        f"With one chunk and offloading alone, as OptPipe is read here, this search beats the best PipeOffload without recomputation,"
        f" in as many chunks as suit that, with every seed in {beaten} of {len(compared)} settings where both fit: its throughput (median, with {_part(cells)} of the time) is"
        f" {span(more, percent)} of that one's"
    )
    idle = [_idle(ours) / _idle(rival) for ours, rival, _ in compared]
    whole = [_idle(ours) / _idle(rival) for _, rival, ours in compared]
    yield (
        f"The time beyond what the busiest device computes in one chunk is {span(idle, percent)} of that of PipeOffload without recomputation"
        f" with one chunk and offloading alone, {span(whole, percent)} with all (n = {len(compared)}; negative where chunks spread the work more evenly)"
    )
    milp = [row for methods in cells.values() for row in search(methods, MILP).rows]
    able = [row for row in milp if row["fits"]]
    yield (
        f"The reconstructed MILP on HiGHS has a schedule in {len(able)} of {len(cells)}, AdaOffload's, which it improves in"
        f" {sum(row['found_by'] == 'milp' for row in able)}; the others are refused as too large or have none that fits in one chunk"
    )
    stuck = [
        methods
        for methods in cells.values()
        if best_rule(methods, NOT_OFFLOADING, ("none",)) is None
    ]
    rescued = [methods for methods in stuck
               if best_rule(methods, NOT_OFFLOADING, ("selective", "full", CHOSEN)) is not None]  # fmt: skip
    yield (
        f"Without offloading and recomputation no rule fits in {len(stuck)} of {len(cells)}, with recomputation"
        f" one fits in {len(rescued)} of these"
    )


def _idle(cell: Cell) -> float:
    return cell.ns - float(cell.rows[0]["work_ns"])


def _pipeoffload(cells: Cells) -> Iterator[str]:
    """Whether half of the activations can be offloaded for nothing."""
    ratios = [search(methods).rows[0]["copy_ratio"] for methods in cells.values()]
    yield (
        f"Copies of everything hide behind compute (k at most {FULL_COPIES}) in"
        f" {sum(k <= FULL_COPIES for k in ratios)} of {len(cells)}, copies of half (k at most {HALF_COPIES}) in"
        f" {sum(k <= HALF_COPIES for k in ratios)}; k is {span(ratios, '{:.1f}'.format)}"
    )


def _less_memory(found: Mapping[int, Methods], cells: Cells) -> Iterator[str]:
    """One setting under less and less memory."""
    able: Sequence[int] = [limit for limit, methods in found.items() if best_rule(methods)]
    gain, gaps = [], []
    for limit in able:
        best = best_rule(found[limit])
        assert best is not None
        ours = search(found[limit], ALL)
        assert ours.bound is not None
        gain.append(best.cell.ns / ours.ns - 1)
        gaps.append(ours.ns / ours.bound - 1)
    least, most = min(able), max(able)
    profile = search(found[most]).rows[0]["profile"]
    name = next(
        key for key, methods in cells.items() if search(methods).rows[0]["profile"] == profile
    )
    longer = search(found[least]).ns / search(found[most]).ns - 1
    yield (
        f"Under {least / 2**30:.0f} GiB instead of {most / 2**30:.0f}, {name.model} on {name.pipeline} devices takes"
        f" {percent(longer)} longer, and this search is {_faster(gain)} than the fastest rule at"
        f" {len(able)} limits from {least / 2**30:.0f} to {most / 2**30:.0f} GiB, and {span(gaps, percent)} over the bound"
    )
