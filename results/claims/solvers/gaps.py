"""What README.md and results/README.md say of gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil
from statistics import median

from experiments.gaps.figure import over_optimum
from experiments.spread import grouped, spread
from results.claims import Row, Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("gaps")
    parts = grouped(rows, ["part"])
    own, shared = ([over for _, over in over_optimum(rows, of)] for of in ("separate", "shared"))
    yield (
        f"Reconstructed AdaOffload takes {span(own, percent)} longer than the proven best in the {len(own)} reference"
        f" cells (median {percent(median(own))}); where one engine copies both ways {span(shared, percent)} longer than"
        f" the best with two (median {percent(median(shared))})."
    )
    yield from _uniform(_cells(parts["reference",]), _cells(parts["large",]), own.count(0))
    yield from _other(_cells(parts["other",]), parts["long",])
    yield from _over_time(parts["time",])
    yield from _over_size(parts["size",])


# -- `solve`, by problem --------------------------------------------------------------------------


def _cells(rows: Iterable[Row]) -> list[list[Row]]:
    """What `solve` finds of each problem, a row per seed."""
    same = ("p", "m", "limit", "profile.offload.t_offload_ns", "case")
    return list(grouped((row for row in rows if row["engine"] == "auto"), same).values())


def _proven(cells: Iterable[Iterable[Row]]) -> int:
    """In how many with every seed."""
    return sum(all(row["status"] == "optimal" for row in cell) for cell in cells)


def _every(cells: Iterable[Iterable[Row]], column: str) -> str:
    return span({row[column] for cell in cells for row in cell}, "{:g}".format)


def _gap(cell: Sequence[Row], which: str = "median") -> float:
    """Of the median, or the worst, seed to the best bound that any has."""
    found = spread(row["objective_ns"] for row in cell)
    return getattr(found, which) / max(row["lower_bound_ns"] for row in cell) - 1


def _uniform(reference: list[list[Row]], large: list[list[Row]], greedy: int) -> Iterator[str]:
    seeds, proven = len(reference[0]), _proven(reference)
    sizes = " and ".join(map(str, sorted({cell[0]["p"] for cell in large})))
    yield (
        f"Of {len(reference)} reference cells of uniform costs (p = {_every(reference, 'p')},"
        f" {_every(reference, 'after_s')} s; AdaOffload alone finds {greedy} of their optima) `solve` proves {proven} optimal with each of {seeds} seeds; with p ="
        f" {sizes} it leaves at most {percent(max(_gap(cell, 'most') for cell in large), 2)} to the bound in"
        f" {_every(large, 'after_s')} s"
    )
    yield f"of **{proven}** of {len(reference)} problems with equal stages, with each of {seeds} seeds"


def _other(cells: list[list[Row]], long: list[Row]) -> Iterator[str]:
    proven = _proven(cells)
    yield f"of other costs and links it proves {proven} of {len(cells)}"
    opened = span((_gap(cell) for cell in cells if not _proven([cell])), percent)
    runs = [row for cell in cells for row in cell]
    best = {
        case: min(row["objective_ns"] for row in every)
        for (case,), every in grouped([*runs, *long], ["case"]).items()
    }
    over = max(row["objective_ns"] / best[row["case"]] - 1 for row in runs)
    yield (
        f"`solve` ({len(cells[0])} seeds, {_every(cells, 'after_s')} s) proves {proven} of {len(cells)} problems with"
        f" other costs optimal with every seed and leaves {opened} to the bound in the others"
        f" (medians); it is at most {percent(over)} above the best of our own runs of up to"
        f" {max(row['after_s'] for row in long):g} s, which is all that *best known* means there"
    )


# -- engines alone --------------------------------------------------------------------------------


def _over_time(rows: list[Row]) -> Iterator[str]:
    runs = grouped(rows, ["p", "engine", "start", "seed"])
    small, large = sorted({row["p"] for row in rows})
    m = {row["p"]: row["microbatches"] for row in rows}
    best = {p: min(row["objective_ns"] or 1e18 for row in rows if row["p"] == p) for p in m}

    def last(devices: int, engine: str, start: str = "adaoffload") -> Row:
        return runs[devices, engine, start, 0][-1]

    def seconds(devices: int, engine: str, start: str = "adaoffload") -> float:
        return last(devices, engine, start)["seconds"]

    def reached(devices: int, start: str) -> float:
        """The first of the given times after which annealing alone has the best known with all seeds."""
        return max(
            min(row["after_s"] for row in run if row["objective_ns"] == best[devices])
            for key, run in runs.items()
            if key[:3] == (devices, "search", start)
        )

    greedy = {p: last(p, "adaoffload")["objective_ns"] for p in m}
    for devices in m:
        assert last(devices, "cpsat")["status"] == "optimal"
        assert last(devices, "cpsat")["objective_ns"] == best[devices]
    assert last(small, "milp")["objective_ns"] == best[small]
    assert last(small, "milp", "none")["objective_ns"] == best[small]
    assert last(large, "milp", "none")["objective_ns"] is None
    count = len({row["seed"] for row in rows})
    yield (
        f"With the stages of `{rows[0]['profile']}`, copies at {rows[0]['profile.offload.d2h_gb_per_s']:g} GB/s and three quarters of 1F1B's"
        f" activations AdaOffload takes {percent(greedy[small] / best[small] - 1)} longer than the"
        f" optimum at p = {small}, m = {m[small]} and {percent(greedy[large] / best[large] - 1)} at p = {large}, m = {m[large]}."
        f" CP-SAT, started from it, proves these optima in {seconds(small, 'cpsat'):.1f} and {seconds(large, 'cpsat'):.0f} s; annealing alone"
        f" reaches them within {reached(small, 'adaoffload'):g} and {reached(large, 'adaoffload'):g} s with each of"
        f" {count} seeds."
    )
    won = 1 - last(large, "milp")["objective_ns"] / greedy[large]
    yield (
        f"The reconstructed MILP on HiGHS proves the small one, to its tolerance, in {seconds(small, 'milp'):.0f} s from AdaOffload and in"
        f" {seconds(small, 'milp', 'none'):.0f} s from nothing; in {last(large, 'milp')['after_s']:g} s it takes"
        f" {percent(won)} off the large one, and from nothing finds no schedule for it."
    )
    slow = last(large, "cpsat", "none")
    yield (
        f"From nothing CP-SAT takes {seconds(small, 'cpsat', 'none'):.0f} s for the small one and is"
        f" {percent(slow['objective_ns'] / best[large] - 1)} above the optimum of the large one after"
        f" {slow['after_s']:g} s, where annealing has it within {reached(large, 'none'):g} s."
    )


def _over_size(rows: list[Row]) -> Iterator[str]:
    rows = [row for row in rows if row["profile.offload.d2h_gb_per_s"] is not None]
    longest = max(row["after_s"] for row in rows)
    ends = grouped((row for row in rows if row["after_s"] == longest), ["engine", "p"])
    last = {key: runs[0] for key, runs in ends.items()}  # MILP and CP-SAT have one seed
    sizes = sorted(devices for engine, devices in last if engine == "milp")
    rows_of = {devices: last["milp", devices]["formula_constraints"] for devices in sizes}
    (per_stage,) = {row["microbatches"] / row["p"] for row in rows}
    growth = [rows_of[b] / rows_of[a] for a, b in pairwise(sizes)]
    yield (
        f"On the stages of `{rows[0]['profile']}` with copies at {rows[0]['profile.offload.d2h_gb_per_s']:g} GB/s and m = {per_stage:g}p,"
        f" twice the stages give the reconstructed MILP {span(growth, lambda x: f'{x:.0f}')} times the constraints,"
        f" from {rows_of[sizes[0]]:,} at {sizes[0]} stages to {rows_of[sizes[-1]]:,} at {sizes[-1]}."
    )
    refused = [devices for devices in sizes if last["milp", devices]["status"] == "refused"]
    tried = [devices for devices in sizes if devices not in refused]
    assert all(last["milp", devices]["objective_ns"] is None for devices in tried)
    cpsat = [d for e, d in last if e == "cpsat" and last[e, d]["objective_ns"] is not None]
    without = sorted(d for e, d in last if e == "cpsat" and d not in cpsat)
    auto = [ends["auto", devices] for devices in sizes]
    first = max(row["first_s"] for seeds in auto for row in seeds)
    gaps = [spread(row["gap"] for row in seeds) for seeds in auto]
    apart = max(gap.most - gap.least for gap in gaps)
    yield (
        f"With three quarters of 1F1B's memory HiGHS finds, from nothing, no schedule in {longest:g} s at {span(tried)} stages, and from {min(refused)} on the"
        f" MILP is refused as too large; CP-SAT finds one at {span(cpsat)} stages, {span((last['cpsat', d]['gap'] for d in cpsat), percent)} over its bound, and none at {' and '.join(map(str, without))}. `auto`, which starts from AdaOffload, has one within {ceil(10 * first) / 10:g} s at"
        f" each size, and at the end a gap of {span((gap.median for gap in gaps), percent)} (medians of {span(gap.seeds for gap in gaps)} seeds,"
        f" which differ by up to {100 * apart:.1f} points)."
    )
