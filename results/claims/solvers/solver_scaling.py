"""What README.md and results/README.md say of solver_scaling."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import ceil

from experiments.spread import grouped, spread
from results.claims import Row, Tables, percent, span

COPIES = "0.75x 1f1b"


def sentences(tables: Tables) -> Iterator[str]:
    rows = [row for row in tables("solver_scaling") if row["memory_limit"] == COPIES]
    longest = max(row["after_s"] for row in rows)
    ends = [row for row in rows if row["after_s"] == longest]
    last: dict[tuple[str, int], Row] = {
        (row["engine"], row["profile.devices"]): row for row in ends if row["engine"] != "auto"
    }
    sizes = sorted(devices for engine, devices in last if engine == "milp")
    rows_of = {devices: last["milp", devices]["formula_constraints"] for devices in sizes}
    (per_stage,) = {row["microbatches"] / row["profile.devices"] for row in rows}
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
    auto = grouped((row for row in ends if row["engine"] == "auto"), ["profile.devices"])
    assert [devices for (devices,) in auto] == sizes
    first = max(row["first_s"] for seeds in auto.values() for row in seeds)
    gaps = [spread(row["gap"] for row in seeds) for seeds in auto.values()]
    apart = max(gap.most - gap.least for gap in gaps)
    yield (
        f"With three quarters of 1F1B's memory HiGHS finds, from nothing, no schedule in {longest:g} s at {span(tried)} stages, and from {min(refused)} on the"
        f" MILP is refused as too large; CP-SAT finds one at {span(cpsat)} stages, {span((last['cpsat', d]['gap'] for d in cpsat), percent)} over its bound, and none at {' and '.join(map(str, without))}. `auto`, which starts from AdaOffload, has one within {ceil(10 * first) / 10:g} s at"
        f" each size, and at the end a gap of {span((gap.median for gap in gaps), percent)} (medians of {span(gap.seeds for gap in gaps)} seeds,"
        f" which differ by up to {100 * apart:.1f} points)."
    )
