"""What README.md and results/README.md say of the contest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from experiments.contest.figure import (
    ALL,
    INGREDIENTS,
    MILP,
    ONE,
    Cell,
    best_rule,
    search,
    settings,
)
from optpipe_sim.study.claims import Tables, percent, span

Cells = Mapping[tuple[str, str], Cell]
WORDS = ("Order and chunks alone take", "with offloading it takes", "with recomputation")


def _ns(cell: Cell) -> float:
    assert cell.time is not None
    return cell.time.median


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("contest")
    cells = settings(rows)
    ours = {key: search(methods, ALL) for key, methods in cells.items()}
    rules = {key: best_rule(methods) for key, methods in cells.items()}
    there = {key: rule for key, rule in rules.items() if rule is not None}
    gain = [_ns(rule[1]) / _ns(ours[key]) - 1 for key, rule in there.items()]
    clear = sum(ours[key].time.most < _ns(rule[1]) for key, rule in there.items())  # type: ignore[union-attr]
    seconds = {row["time_limit"] for row in rows}
    yield (
        f"In {len(cells)} settings of real devices under their own memory this search (median of"
        f" {len({row['seed'] for row in rows})} seeds, {span({2 * s for s in seconds}, '{:g}'.format)} s on {rows[0]['cores']}"
        f" cores) is {span(gain, percent)} faster than the fastest of all rules, with every seed in {clear} of them"
    )
    plain = [best_rule(methods, treated=("none",)) for methods in cells.values()]
    losses = [
        _ns(without[1]) / _ns(rule[1]) - 1
        for without, rule in zip(plain, rules.values(), strict=True)
        if without is not None and rule is not None
    ]
    yield (
        f"The fastest rule recomputes in {sum(rule[0][1] != 'none' for rule in there.values())} of them; without recomputation"
        f" rules take {span(losses, percent)} longer"
        + (f", and none fits in {sum(one is None for one in plain)}" if None in plain else "")
    )
    yield from _optpipe(cells)
    for words, method in zip(WORDS, INGREDIENTS[:-1], strict=True):
        found = [_ns(search(each, method)) / _ns(ours[key]) - 1 for key, each in cells.items()
                 if search(each, method).time is not None]  # fmt: skip
        yield f"{words} {span(found, percent)} longer than all together (median {percent(median(found))})"
    gaps = [_ns(cell) / cell.bound - 1 for cell in ours.values() if cell.bound]
    yield f"Over the bound on all of it the search stays by {span(gaps, percent)} (median {percent(median(gaps))})"


def _optpipe(cells: Mapping[object, Cells]) -> Iterator[str]:
    """One chunk and offloading alone, as OptPipe is read here."""
    compared = [
        (_ns(search(methods, ONE)), _ns(rival[1]))
        for methods in cells.values()
        if search(methods, ONE).time is not None
        and (rival := best_rule(methods, ("PipeOffload",), ("none",))) is not None
    ]
    yield (
        f"With one chunk and offloading alone, as OptPipe is read here, this search beats the best PipeOffload"
        f" in {sum(ours < rival for ours, rival in compared)} of {len(compared)} settings where both fit"
    )
    milp = [row for methods in cells.values() for row in search(methods, MILP).rows]
    able = [row for row in milp if row["fits"]]
    yield (
        f"The reconstructed MILP on HiGHS improves AdaOffload's start in"
        f" {sum(row['found_by'] == 'milp' for row in able)} of {len(cells)}"
    )
