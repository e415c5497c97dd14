"""How good the MILP is on HiGHS, honestly: proof, gap with offloads, what each acceleration
contributes, and how large the model gets. Uniform stages F = 10, B = 11, W = 9, one hop 1, act 100
of which 50 stay until W; times in ns, memory in bytes.

    python benchmarks/milp_quality.py [--seconds 30] [--threads 1] [proof gap switches sizes ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields, replace

from optpipe_sim import load_profile
from optpipe_sim.solve.milp import solve_milp
from optpipe_sim.solve.milp_sets import MilpOptions
from optpipe_sim.solve.milp_size import size_formula
from optpipe_sim.solve.problem import Problem, make_problem
from optpipe_sim.solve.result import SolveResult
from optpipe_sim.solve.starts import offload_everything


def problem(devices: int, microbatches: int, limit: int, copy_ns: int | None = None) -> Problem:
    data: dict[str, object] = {
        "name": "uniform",
        "devices": devices,
        "stages": {"t_f_ns": 10, "t_b_ns": 11, "t_w_ns": 9, "act_bytes": 100, "w_bytes": 50},
        "t_comm_ns": 1,
    }
    if copy_ns is not None:
        data["offload"] = {"t_offload_ns": copy_ns, "t_reload_ns": copy_ns}
    return make_problem(load_profile(data), microbatches, limit)


def row(label: str, found: SolveResult) -> str:
    cost = found.objective_ns if found.trace is not None else "-"
    gap = f"{100 * found.gap:.1f} %" if found.trace is not None else "-"
    return (
        f"| {label} | {cost} | {found.lower_bound_ns} ({found.bound_name}) | {gap} |"
        f" {found.info['solver_status']} | {found.info['nodes']} | {found.seconds:.1f} |"
        f" {found.variables} x {found.constraints} |"
    )


HEAD = "| | cost | bound | gap | HiGHS | nodes | s | variables x constraints |\n|---|---|---|---|---|---|---|---|"


def proof(seconds: float, threads: int) -> Iterator[str]:
    """No offload: to proven optimality."""
    yield HEAD
    for label, options in (
        ("all on", MilpOptions()),
        ("no start, no closed-form bound", MilpOptions(adaoffload=False, bounds=False)),
    ):
        found = solve_milp(problem(4, 8, 400), seconds, options=options, threads=threads)
        yield row(f"p=4, m=8, no offload, limit 400, {label}", found)


def gap(seconds: float, threads: int) -> Iterator[str]:
    """With offloads, from AdaOffload and from a poor start: everything offloaded."""
    yield HEAD
    for copy_ns in (5, 16):
        for limit in (400, 200):
            case = problem(4, 8, limit, copy_ns)
            poor = offload_everything(case, 4 if limit == 400 else 2)
            for fifo in (False, True):
                way = ", fifo" if fifo else ""
                found = solve_milp(case, seconds, options=MilpOptions(fifo=fifo), threads=threads)
                start = found.incumbents[0][1]
                yield row(f"To={copy_ns}, limit {limit}{way}, from AdaOffload {start}", found)
                options = MilpOptions(adaoffload=False, fifo=fifo)
                found = solve_milp(case, seconds, warm_start=poor, options=options, threads=threads)
                start = found.incumbents[0][1] if found.incumbents else 0
                yield row(f"To={copy_ns}, limit {limit}{way}, from {start}", found)


def switches(seconds: float, threads: int) -> Iterator[str]:
    """One switch off at a time, from scratch: neither start nor closed-form bound; then with each."""
    yield HEAD
    for label, case in (
        ("p=4, m=6, limit 400", problem(4, 6, 400)),
        ("p=2, m=3, limit 100, To=4", problem(2, 3, 100, 4)),
    ):
        base = MilpOptions(bounds=False, adaoffload=False)
        names = [entry.name for entry in fields(MilpOptions)]
        runs = [("from scratch", base)]
        off = (name for name in names if name not in ("fifo", "bounds", "adaoffload"))
        runs += [(f"from scratch, without {name}", replace(base, **{name: False})) for name in off]
        runs += [
            ("from AdaOffload", replace(base, adaoffload=True)),
            ("with the bound as a cut", replace(base, bounds=True)),
            ("all on", MilpOptions()),
            ("all off", MilpOptions(**dict.fromkeys(names, False))),
        ]
        for name, options in runs:
            found = solve_milp(case, seconds, options=options, threads=threads)
            yield row(f"{label}, {name}", found)


def sizes(seconds: float, threads: int) -> Iterator[str]:
    """Variables and constraints by formula, without and with offloads."""
    yield "| p, m | no offload | offload | offload, fifo | offload, all off |\n|---|---|---|---|---|"
    off = MilpOptions(**{entry.name: False for entry in fields(MilpOptions)})
    for devices, m in ((4, 8), (8, 16), (16, 32)):
        plain, away = problem(devices, m, 100 * devices), problem(devices, m, 50 * devices, 5)
        found = [
            size_formula(plain),
            *(size_formula(away, options) for options in (None, MilpOptions(fifo=True), off)),
        ]
        yield f"| {devices}, {m} | " + " | ".join(f"{a} x {b}" for a, b in found) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    tables = {table.__name__: table for table in (proof, gap, switches, sizes)}
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(tables))
    parser.add_argument("--seconds", type=float, default=30.0, help="per run (default 30)")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    solve_milp(problem(2, 2, 200, 5), 10)  # imports and compiled kernels
    for name in arguments.tables or tables:
        print(f"\n{name}: {(tables[name].__doc__ or '').splitlines()[0]}")
        for line in tables[name](arguments.seconds, arguments.threads):
            print(line, flush=True)


if __name__ == "__main__":
    main()
