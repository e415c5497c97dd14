"""What README.md and results/README.md say of adaoffload_ablation."""

from __future__ import annotations

from collections.abc import Iterator

from optpipe_sim.study.claims import Row, Tables, percent

SETTING = "profile.devices"


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("adaoffload_ablation")
    last: dict[tuple[int, str, str], Row] = {}
    for row in rows:
        last[row[SETTING], row["engine"], row["start"]] = row
    small, large = sorted({row[SETTING] for row in rows})
    m = {row[SETTING]: row["microbatches"] for row in rows}
    given = {key[1:]: int(row["time_limit"]) for key, row in last.items()}

    def won(devices: int, engine: str, start: str = "adaoffload") -> float:
        found = last[devices, engine, start]["objective_ns"]
        return 1 - found / last[devices, "adaoffload", "adaoffload"]["objective_ns"]

    def seconds(engine: str, start: str = "adaoffload") -> float:
        return last[small, engine, start]["seconds"]

    assert {last[small, "cpsat", s]["status"] for s in ("adaoffload", "none")} == {"optimal"}
    assert (
        won(small, "search")
        == won(small, "cpsat")
        == won(small, "milp")
        == won(small, "milp", "none")
    )
    yield (
        f"At p = {small}, m = {m[small]} annealing, CP-SAT and the reconstructed MILP on HiGHS all take the"
        f" {percent(won(small, 'milp'))} that there is to gain off AdaOffload (one seed); CP-SAT proves it in"
        f" {seconds('cpsat'):.1f} s, the MILP ends after {seconds('milp'):.0f} s; from nothing they take"
        f" {seconds('cpsat', 'none'):.0f} and {seconds('milp', 'none'):.0f} s."
    )
    gap = last[large, "auto", "adaoffload"]["gap"]
    yield (
        f"At p = {large}, m = {m[large]} CP-SAT and the MILP take off {percent(won(large, 'cpsat'))} and"
        f" {percent(won(large, 'milp'))} in {given['milp', 'adaoffload']} s, annealing"
        f" {percent(won(large, 'search'))} in {given['search', 'adaoffload']} s, and all engines at once as much, with a gap"
        f" of {percent(gap)}."
    )
