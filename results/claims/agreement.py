"""What README.md and results/README.md say of agreement."""

from __future__ import annotations

from collections.abc import Iterator

from optpipe_sim.study.claims import Tables


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("agreement")
    proven = [row for row in rows if row["cpsat_proven"]]
    same = [row for row in proven if row["auto"] == row["cpsat"]]
    milp = [row for row in rows if row["milp_proven"]]
    alike = [row for row in milp if row["milp"] == row["cpsat"]]
    wrong = [row for row in rows if row["problems"]]
    yield (
        f"On {len(rows)} random small instances CP-SAT proves {len(proven)} optima; `auto` finds {len(same)} of"
        f" these, and the {len(milp)} that the reconstructed MILP proves equal CP-SAT's in {len(alike)} cases."
        f" Engines contradict one another in {len(wrong)}."
    )
