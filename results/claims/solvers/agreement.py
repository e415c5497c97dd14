"""What README.md and results/README.md say of agreement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results.claims import Tables


def found(rows: Sequence[Mapping[str, Any]]) -> str:
    proven = [row for row in rows if row["cpsat_proven"]]
    same = [row for row in proven if row["auto"] == row["cpsat"]]
    milp = [row for row in rows if row["milp_proven"]]
    alike = [row for row in milp if row["milp"] == row["cpsat"]]
    said = f"CP-SAT proves {len(proven)} optima; `auto` finds {len(same)} of these"
    if not milp:  # it knows no recomputation
        return said
    return f"{said}, and the {len(milp)} that the reconstructed MILP proves equal CP-SAT's in {len(alike)} cases"


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("agreement")
    plain, treated = (
        [row for row in rows if bool(row["level_count"]) is levels] for levels in (False, True)
    )
    yield f"On {len(plain)} random small instances {found(plain)}."
    yield f"On {len(treated)} with levels of recomputation {found(treated)}."
    wrong = [row for row in rows if row["problems"]]
    yield f"Engines contradict one another in {len(wrong)}."
    yield f"**{len(wrong)}** contradictions on {len(rows)} random small instances"
