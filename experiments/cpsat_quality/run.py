"""How far CP-SAT gets: the best schedule, its bound, and the seconds to both.

    python -m experiments.cpsat_quality.run [--limit 60] [--rows 4,8 4,16] [--write results/cpsat.md]

Uniform stages F = 10, B = 11, W = 9, a hop 1, an activation 100 bytes, 50 of them until W; a copy takes
To; memory limits in bytes; two workers; started from AdaOffload. The bound is CP-SAT's own.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from optpipe_sim import build, load_profile
from optpipe_sim.files import write_text
from optpipe_sim.solvers.cpsat.engine import solve_cpsat
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.result import SolveResult

ROWS = ((4, 8, (400, 200)), (4, 16, (400, 200)), (8, 16, (800, 400, 266, 200)))
COPIES = (5, 16)


def problem(devices: int, microbatches: int, limit: int, copy: int, objective: str) -> Problem:
    stages = {"t_f_ns": 10, "t_b_ns": 11, "t_w_ns": 9, "act_bytes": 100, "w_bytes": 50}
    profile = load_profile(
        {
            "name": "uniform",
            "devices": devices,
            "stages": stages,
            "t_comm_ns": 1,
            "offload": {"t_offload_ns": copy, "t_reload_ns": copy},
        }
    )
    return make_problem(profile, microbatches, limit, objective)


def phases(found: SolveResult) -> str:
    return ", ".join(
        f"{phase['order']} {phase['bound_ns']} {phase['seconds']:.1f} s"
        for phase in found.info["phases"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per cell")
    parser.add_argument("--rows", nargs="*", help="only these p,m")
    parser.add_argument("--objective", default="flush")
    parser.add_argument("--write", help="write the table as text as well")
    options = parser.parse_args()
    console = Console(width=140, record=True)
    table = Table(
        "p, m", "limit", "To", "start", "best", "bound", "status", "best at", "seconds", "phases"
    )
    for devices, microbatches, limits in ROWS:
        if options.rows and f"{devices},{microbatches}" not in options.rows:
            continue
        for limit in limits:
            for copy in COPIES:
                task = problem(devices, microbatches, limit, copy, options.objective)
                start = build("adaoffload", task.profile, microbatches, limit=limit)
                found = solve_cpsat(task, options.limit, warm_start=start)
                cells = (
                    f"{devices}, {microbatches}",
                    limit,
                    copy,
                    found.incumbents[0][1],
                    found.objective_ns,
                    found.lower_bound_ns,
                    found.status,
                    f"{found.incumbents[-1][0]:.1f}",
                    f"{found.seconds:.1f}",
                    phases(found),
                )
                table.add_row(*map(str, cells))
                console.print(*cells)
    console.print(table)
    if options.write:
        write_text(options.write, console.export_text())


if __name__ == "__main__":
    main()
