"""What README.md and results/README.md say of adaoffload_ablation."""

from __future__ import annotations

from collections.abc import Iterator

from results.claims import Row, Tables, percent, span

SETTING = "profile.devices"


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("adaoffload_ablation")
    runs: dict[tuple[int, str, str], dict[int | None, list[Row]]] = {}
    for row in rows:
        seeds = runs.setdefault((row[SETTING], row["engine"], row["start"]), {})
        seeds.setdefault(row["seed"], []).append(row)
    small, large = sorted({row[SETTING] for row in rows})
    m = {row[SETTING]: row["microbatches"] for row in rows}

    def last(devices: int, engine: str, start: str = "adaoffload") -> list[Row]:
        """The last row of each seed."""
        return [run[-1] for run in runs[devices, engine, start].values()]

    def seconds(devices: int, engine: str, start: str = "adaoffload") -> float:
        return max(row["seconds"] for row in last(devices, engine, start))

    def reached(devices: int, engine: str, start: str) -> float:
        """The first of the given times after which all seeds have the best known."""
        return max(
            min(row["after_s"] for row in run if row["objective_ns"] == best[devices])
            for run in runs[devices, engine, start].values()
        )

    best = {p: min(row["objective_ns"] or 1e18 for row in rows if row[SETTING] == p) for p in m}
    greedy = {p: last(p, "adaoffload")[0]["objective_ns"] for p in m}
    for devices in m:
        assert {row["status"] for row in last(devices, "cpsat")} == {"optimal"}
        assert last(devices, "cpsat")[0]["objective_ns"] == best[devices]
    assert last(small, "milp")[0]["objective_ns"] == best[small]
    assert last(small, "milp", "none")[0]["objective_ns"] == best[small]
    count = len(runs[small, "search", "none"])
    yield (
        f"With the stages of `{rows[0]['profile']}`, copies at {rows[0]['profile.offload.d2h_gb_per_s']:g} GB/s and three quarters of 1F1B's"
        f" activations AdaOffload takes {percent(greedy[small] / best[small] - 1)} longer than the"
        f" optimum at p = {small}, m = {m[small]} and {percent(greedy[large] / best[large] - 1)} at p = {large}, m = {m[large]}."
        f" CP-SAT, started from it, proves these optima in {seconds(small, 'cpsat'):.1f} and {seconds(large, 'cpsat'):.0f} s; annealing alone"
        f" reaches them within {reached(small, 'search', 'adaoffload'):g} and {reached(large, 'search', 'adaoffload'):g} s with each of"
        f" {count} seeds."
    )
    won = 1 - last(large, "milp")[0]["objective_ns"] / greedy[large]
    nothing = [row["objective_ns"] for row in last(large, "milp", "none")]
    assert nothing == [None]
    yield (
        f"The reconstructed MILP on HiGHS proves the small one, to its tolerance, in {seconds(small, 'milp'):.0f} s from AdaOffload and in"
        f" {seconds(small, 'milp', 'none'):.0f} s from nothing; in {span(row['time_limit'] for row in last(large, 'milp'))} s it takes"
        f" {percent(won)} off the large one, and from nothing finds no schedule for it."
    )
    slow = last(large, "cpsat", "none")[0]
    yield (
        f"From nothing CP-SAT takes {seconds(small, 'cpsat', 'none'):.0f} s for the small one and is"
        f" {percent(slow['objective_ns'] / best[large] - 1)} above the optimum of the large one after"
        f" {slow['time_limit']:g} s, where annealing has it within {reached(large, 'search', 'none'):g} s."
    )
