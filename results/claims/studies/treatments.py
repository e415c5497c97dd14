"""What README.md and results/README.md say of treatments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from experiments.treatments.figure import RULE, STAGES, Cell, llama, published, the_map
from results.claims import Tables, percent, span


def over_bound(cells: Sequence[Cell], method: str) -> str:
    return span((cell.over(method).median - 1 for cell in cells), percent)


def over_all(cells: Sequence[Cell], method: str) -> list[float]:
    return [cell.times[method].median / cell.times["all"].median - 1 for cell in cells]


def better(cell: Cell) -> float:
    """The better of offloading and recomputing alone, ns."""
    return min(cell.times["offload"].median, cell.times["recompute"].median)


def clear(cells: Sequence[Cell]) -> int:
    """In how many both together are faster with every seed than either alone with any."""
    return sum(
        all(cell.times["all"].most < cell.times[alone].least for alone in ("offload", "recompute"))
        for cell in cells
    )


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("treatments")
    zb = list(published(rows).values())
    (manifest,) = tables("treatments.manifest")
    (copies,) = {
        grid["profile"][0]["offload"][key]
        for grid in manifest["config"]["grid"]
        if grid["part"] == ["published"]
        for key in ("d2h_gb_per_s", "h2d_gb_per_s")
    }
    yield (
        f"In {len(zb)} settings of published profiles, with unfused attention and copies at {copies} GB/s, offloading alone takes"
        f" {over_bound(zb, 'offload')} more than the bound on all treatments, recomputing alone {over_bound(zb, 'recompute')}, both"
        f" together {over_bound(zb, 'all')}, with every seed faster than either in {clear(zb)} of them."
    )
    staged, ruled = over_all(zb, STAGES), over_all(zb, RULE)
    yield (
        f"One treatment per stage takes {span(staged, percent)} longer than one per activation (median {percent(median(staged))}),"
        f" the best rule {span(ruled, percent)}."
    )
    cells = llama(rows)
    of_llama = next(row for row in rows if row["part"] == "llama")
    share = of_llama["memory_limit"]
    flash, rates = list(cells.values()), sorted({rate for _, rate in cells})
    slow = [cell for (_, rate), cell in cells.items() if rate < rates[-1]]
    fast = [cell for (_, rate), cell in cells.items() if rate == rates[-1]]
    yield (
        f"With flash attention ({'-'.join(of_llama['profile'].split('-')[:2])} at {span((seq // 1024 for seq, _ in cells), '{:g}k'.format)} tokens, {percent(float(share.partition('x')[0]), 0)} of 1F1B's"
        f" activations) recomputing alone takes {over_bound(flash, 'recompute')} more than the bound, the best rule"
        f" {over_bound(flash, RULE)}; offloading alone {over_bound(slow, 'offload')} with copies of"
        f" {span(rates[:-1], '{:g}'.format)} GB/s and {over_bound(fast, 'offload')} with {rates[-1]:g} GB/s; both together save"
        f" {span((1 - cell.times['all'].median / better(cell) for cell in flash), percent)} of the better of the two."
    )
    grid = the_map(rows)
    long = max(copy for copy, _ in grid)
    ratio = {
        key: c.times["offload"].median / c.times["recompute"].median - 1 for key, c in grid.items()
    }
    short = [value for (copy, _), value in ratio.items() if copy < long]
    yield (
        f"On eight equal stages with room for three activations, offloading alone takes {span(short, percent)} longer than recomputing alone"
        f" where a copy takes up to {max(c for c, _ in grid if c < long) / 30:.1f} of F + B + W, with each cost of recomputing that was tried, and"
        f" {span((v for (c, _), v in ratio.items() if c == long), percent)} where it takes {long / 30:.1f}."
    )
