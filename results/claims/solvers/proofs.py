"""What README.md and results/README.md say of proofs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.spread import grouped
from results.claims import Row, Tables


def sentences(tables: Tables) -> Iterator[str]:
    parts = grouped(tables("proofs"), ["part"])
    yield from _instances(parts["instances",])
    yield from _milp(parts["proof",], parts["gap",], parts["solvers",])


def _instances(rows: Sequence[Row]) -> Iterator[str]:
    plain, treated = (
        [row for row in rows if bool(row["level_count"]) is levels] for levels in (False, True)
    )
    yield f"On {len(plain)} random small instances {_found(plain)}."
    yield f"On {len(treated)} with levels of recomputation {_found(treated)}."
    wrong = [row for row in rows if row["problems"]]
    yield f"Engines contradict one another in {len(wrong)}."
    yield f"**{len(wrong)}** contradictions on {len(rows)} random small instances"


def _found(rows: Sequence[Row]) -> str:
    proven = [row for row in rows if row["cpsat_proven"]]
    same = [row for row in proven if row["auto"] == row["cpsat"]]
    milp = [row for row in rows if row["milp_proven"]]
    alike = [row for row in milp if row["milp"] == row["cpsat"]]
    said = f"CP-SAT proves {len(proven)} optima; `auto` finds {len(same)} of these"
    if not milp:  # it knows no recomputation
        return said
    return f"{said}, and the {len(milp)} that the reconstructed MILP proves equal CP-SAT's in {len(alike)} cases"


def _milp(proof: Sequence[Row], gap: Sequence[Row], solvers: Sequence[Row]) -> Iterator[str]:
    started, scratch = proof
    warm = [row for row in gap if row["start"] == "adaoffload"]
    at_once = [row for row in warm if row["status"] == "optimal"]
    assert all(row["bound"] != "highs" for row in at_once)
    better = [row for row in warm if row["objective_ns"] < row["first_ns"]]
    yield (
        f"The reconstructed MILP on HiGHS proves p = {started['p']}, m = {started['m']} without offloads in {started['seconds']:.1f} s,"
        f" {scratch['seconds']:.1f} s from scratch. With offloads it improves AdaOffload's start in {len(better)} of"
        f" {len(warm)} runs of {warm[0]['after_s']:g} s; {len(at_once)} are proven, by a closed-form bound that the start"
        f" meets."
    )
    won = {
        solver: sum(row["status"] == "optimal" for row in rows)
        for (solver,), rows in grouped(solvers, ["solver"]).items()
    }
    yield (
        f"Of {len(solvers) // len(won)} cases that Gurobi's own licence admits Gurobi proves {won['gurobi']} and HiGHS {won['highs']}"
    )
