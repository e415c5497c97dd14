"""What README.md and results/README.md say of milp_quality."""

from __future__ import annotations

from collections.abc import Iterator

from results.claims import Row, Tables


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("milp_quality")

    def proven(row: Row) -> bool:
        return row["solver"] == "optimal"

    gap = [
        row for row in rows if row["table"] == "gap" and row["run"].startswith("from AdaOffload")
    ]
    at_once = [row for row in gap if proven(row)]
    assert all(row["by"] != "highs" for row in at_once)
    better = [row for row in gap if row["cost"] < row["start"]]
    (proof, scratch) = (row for row in rows if row["table"] == "proof")
    devices, microbatches = proof["case"].split(", ")[:2]
    yield (
        f"The reconstructed MILP on HiGHS proves p = {devices}, m = {microbatches} without offloads in {proof['took_s']:.1f} s,"
        f" {scratch['took_s']:.1f} s from scratch. With offloads it improves AdaOffload's start in {len(better)} of"
        f" {len(gap)} runs of {gap[0]['seconds']} s; {len(at_once)} are proven, by a closed-form bound that the start"
        f" meets."
    )
    pairs: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["table"] == "solvers":
            pairs.setdefault(row["case"], {})[row["run"]] = row
    won = {
        solver: sum(proven(pair[solver]) for pair in pairs.values())
        for solver in ("highs", "gurobi")
    }
    yield (
        f"Of {len(pairs)} cases that Gurobi's own licence admits Gurobi proves {won['gurobi']} and HiGHS {won['highs']}"
    )
