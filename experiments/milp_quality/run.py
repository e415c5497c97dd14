"""Quality of the MILP on HiGHS: proof, gap with offloads, contribution of each acceleration,
and size of the model.

    python -m experiments.milp_quality.run [--seconds 30] [--write results/milp_quality] [TABLE ...]

TABLE: proof, gap, switches, solvers, sizes (default: all; solvers needs gurobipy). Uniform stages F = 10, B = 11, W = 9, P2P latency 1, act 100
bytes of which 50 stay until W. With `--write` finished runs are kept in the CSV file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from optpipe_sim.files import write_text
from optpipe_sim.solvers.anneal.offloading import offload_everything
from optpipe_sim.solvers.milp.milp import solve_milp
from optpipe_sim.solvers.milp.model import model_size
from optpipe_sim.solvers.milp.options import MilpOptions
from optpipe_sim.solvers.problem import Problem, make_problem

from ..cells import Row, finish_cells, provenance, to_markdown
from ..solve_quality.cases import uniform

OFF = MilpOptions(**{entry.name: False for entry in fields(MilpOptions)})
COLUMNS = {
    "case": "p, m, limit, copies", "run": "run", "start": "start", "cost": "cost", "bound": "bound",
    "by": "by", "gap": "gap", "solver": "ended", "nodes": "nodes", "took_s": "s", "size": "variables x rows",
}  # fmt: skip


def problem(devices: int, microbatches: int, limit: int, copy_ns: int | None = None) -> Problem:
    profile = uniform(devices, limit, copy_ns or 0, "separate")
    return make_problem(
        profile if copy_ns is not None else replace(profile, offload=None), microbatches
    )


@dataclass(frozen=True)
class Run:
    """A solve: `slots`: start from a schedule that offloads everything, with so many activations."""

    table: str
    case: tuple[int, int, int, int | None]
    name: str
    options: MilpOptions
    slots: int | None = None
    solver: str = "highs"

    @property
    def case_name(self) -> str:
        *sizes, copy_ns = self.case
        return ", ".join(map(str, (*sizes, "none" if copy_ns is None else copy_ns)))


def proof() -> Iterator[Run]:
    """No offload: to proven optimality."""
    case = (4, 8, 400, None)
    yield Run("proof", case, "all on", MilpOptions())
    plain = MilpOptions(adaoffload=False, bounds=False)
    yield Run("proof", case, "no start, no closed-form bound", plain)


def gap() -> Iterator[Run]:
    """With offloads, from AdaOffload and from a poor start, which offloads everything."""
    for copy_ns in (5, 16):
        for limit, slots in ((400, 4), (200, 2)):
            case = (4, 8, limit, copy_ns)
            for fifo in (False, True):
                way = ", fifo" if fifo else ""
                yield Run("gap", case, f"from AdaOffload{way}", MilpOptions(fifo=fifo))
                options = MilpOptions(adaoffload=False, fifo=fifo)
                yield Run("gap", case, f"from a poor start{way}", options, slots)


def switches() -> Iterator[Run]:
    """One acceleration off at a time, with neither start nor closed-form bound; then with each."""
    base = MilpOptions(bounds=False, adaoffload=False)
    names = [entry.name for entry in fields(MilpOptions)]
    off = [name for name in names if name not in ("fifo", "bounds", "adaoffload")]
    for case in ((4, 6, 400, None), (2, 3, 100, 4)):
        yield Run("switches", case, "from scratch", base)
        for name in off:
            yield Run("switches", case, f"without {name}", replace(base, **{name: False}))
        yield Run("switches", case, "from AdaOffload", replace(base, adaoffload=True))
        yield Run("switches", case, "with the bound as a cut", replace(base, bounds=True))
        yield Run("switches", case, "all on", MilpOptions())
        yield Run("switches", case, "all off", OFF)


def solvers() -> Iterator[Run]:
    """HiGHS beside Gurobi, on models that the licence of `pip install gurobipy` admits (2000
    variables and rows); with neither start nor closed-form bound."""
    scratch = MilpOptions(bounds=False, adaoffload=False)
    cases = ((4, 8, 400, None), (2, 6, 100, 16), (3, 4, 200, 16), (3, 5, 200, 16), (4, 4, 200, 16))
    for case in cases:
        for solver in ("highs", "gurobi"):
            yield Run("solvers", case, solver, scratch, solver=solver)


TABLES: dict[str, Callable[[], Iterator[Run]]] = {
    table.__name__: table for table in (proof, gap, switches, solvers)
}


def solved(run: Run, seconds: float) -> dict[str, Any]:
    """The columns of a run."""
    task = problem(*run.case)
    start = None if run.slots is None else offload_everything(task, run.slots)
    found = solve_milp(
        task, seconds, warm_start=start, options=run.options, solver=run.solver, threads=1
    )
    some = found.trace is not None
    return {
        "start": found.incumbents[0][1] if found.incumbents else "-",
        "cost": found.objective_ns if some else "-",
        "bound": found.lower_bound_ns,
        "by": found.bound_name,
        "gap": f"{100 * found.gap:.1f}%" if some else "-",
        "solver": found.info["solver_status"],
        "nodes": found.info["nodes"],
        "took_s": f"{found.seconds:.1f}",
        "size": f"{found.variables} x {found.constraints}",
    }


def sizes() -> list[str]:
    """Variables and rows, without and with offloads."""
    rows = []
    for devices, m in ((4, 8), (8, 16), (16, 32)):
        plain, away = problem(devices, m, 100 * devices), problem(devices, m, 50 * devices, 5)
        found = {
            "no offload": model_size(plain),
            "offload": model_size(away),
            "offload, fifo": model_size(away, MilpOptions(fifo=True)),
            "offload, all off": model_size(away, OFF),
        }
        sized = {name: f"{variables} x {rows}" for name, (variables, rows) in found.items()}
        rows.append({"p, m": f"{devices}, {m}", **sized})
    return to_markdown({name: name for name in rows[0]}, rows)


def page(rows: list[Row], tables: list[str]) -> str:
    """Return the Markdown page."""
    lines = [
        "# The MILP on HiGHS, and on Gurobi",
        "",
        "Regenerate with `python -m experiments.milp_quality.run --write results/milp_quality` (about 20"
        " minutes). Uniform stages F = 10, B = 11, W = 9, P2P latency 1, act 100 bytes, w 50; times in ns."
        " A run ends when the solver has proven its schedule optimal, or at the time given; `by` says"
        " whose bound it is.",
    ]
    if rows:
        given = ", ".join(sorted({row["seconds"] for row in rows}))
        lines += ["", f"{provenance(rows)} Given per run: {given} s, one thread."]
    for name in tables:
        lines += ["", f"## {name.capitalize()}", "", _about(name), ""]
        if name == "sizes":
            lines += sizes()
        else:
            lines += to_markdown(COLUMNS, [row for row in rows if row["table"] == name])
    return "\n".join(lines) + "\n"


def _about(name: str) -> str:
    return " ".join(({**TABLES, "sizes": sizes}[name].__doc__ or "").split())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}, sizes")
    parser.add_argument("--seconds", type=float, default=30.0, help="per run (default 30)")
    parser.add_argument("--write", metavar="STEM", help="also write STEM.csv and STEM.md")
    arguments = parser.parse_args()
    tables = arguments.tables or [
        *(name for name in TABLES if name != "solvers" or find_spec("gurobipy")), "sizes"
    ]  # fmt: skip
    if unknown := set(tables) - {*TABLES, "sizes"}:
        parser.error(f"unknown tables: {', '.join(sorted(unknown))}")
    runs = {
        (run.table, run.case_name, run.name): run
        for name in tables
        if name != "sizes"
        for run in TABLES[name]()
    }
    solve_milp(problem(2, 2, 200, 5), 10)  # imports and compiled kernels

    def compute(cell: Mapping[str, Any]) -> dict[str, Any]:
        run = runs[cell["table"], cell["case"], cell["run"]]
        return solved(run, arguments.seconds)

    def report(done: int, of: int, row: Row) -> None:
        print(f"{done:3}/{of}", *(row[key] for key in ("table", *COLUMNS)), file=sys.stderr)

    cells = [
        {"table": table, "case": case, "run": name, "seconds": f"{arguments.seconds:g}"}
        for table, case, name in runs
    ]
    with tempfile.TemporaryDirectory() as scratch:
        stem = arguments.write or f"{scratch}/milp_quality"
        rows = finish_cells(Path(f"{stem}.csv"), cells, compute, progress=report)
    text = page(rows, tables)
    if arguments.write:
        write_text(Path(f"{arguments.write}.md"), text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
