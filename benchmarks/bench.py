"""How fast is it? Ratios and cost against size, all measured in this one run.

    make bench            (or: python benchmarks/bench.py [--write results/bench.md])

Each number is the best of several repetitions on one core, but for the sweep, which has all cores
and runs once.
"""

from __future__ import annotations

import argparse
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from optpipe_sim import CostProfile, Schedule, build, load_profile, simulate
from optpipe_sim.files import write_mapping, write_text
from optpipe_sim.profile_io import profile_to_json
from optpipe_sim.schedules import WHOLE
from optpipe_sim.schedules.adaoffload.adaoffload import adaoffload
from optpipe_sim.sim.lower import lower
from optpipe_sim.sim.scenarios import Noise, draw_scenarios, replay_scenarios
from optpipe_sim.solvers.anneal.annealer import Workspace, search
from optpipe_sim.solvers.anneal.plans import pack
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.run import sweep

REPLAYED = (
    "gpipe", "1f1b", "1f1b-i:chunks=2", "1f1b-i:chunks=3", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min",
    "dualpipe-v",
)  # fmt: skip
console = Console(width=100, record=True)


def profile(devices: int, **changes: object) -> CostProfile:
    stages = {"t_f_ms": 10, "t_b_ms": 11, "t_w_ms": 9, "act_mib": 100, "w_mib": 50}
    copies = {"t_offload_ms": 12, "t_reload_ms": 12}
    return load_profile(
        {"devices": devices, "stages": stages, "t_comm_ms": 1, "offload": copies, **changes}
    )


def best(work: Callable[[], object], seconds: float = 0.5) -> float:
    """The least time of a call, in seconds, over repetitions that take about `seconds`."""
    work()  # compile and warm up
    least, spent = float("inf"), 0.0
    while spent < seconds:
        before = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - before)
        spent += time.perf_counter() - before
    return least


def fresh(schedule: Schedule) -> Schedule:
    """The schedule without anything cached."""
    return Schedule.from_table(
        schedule.shape, schedule.table, schedule.offsets, schedule.link_order
    )


def per_op() -> None:
    costs = profile(8)
    schedule = build("1f1b", costs, 64)
    ops = len(schedule)
    lowered = lower(schedule, costs)
    memory = 450 * 2**20
    offloading = build("adaoffload", costs, 64, limit=memory)
    samples = 200
    drawn = draw_scenarios(costs, 64, Noise(op=0.05, copy=0.05), samples)
    noisy = best(lambda: replay_scenarios(lowered, drawn), 1.0)
    times = {
        "replay, once lowered": (best(lowered.graph.times) / ops, 500e-9),
        "lowering and replay": (
            best(lambda: lower(fresh(schedule), costs).graph.times()) / ops,
            1e-6,
        ),
        "noisy replay, per op and sample": (noisy / ops / samples, 100e-9),
        "replay with offload under a limit": (
            best(lambda: simulate(fresh(offloading), costs, memory)) / len(offloading),
            None,
        ),
        "SimPy engine, 1F1B": (
            best(lambda: simulate(fresh(schedule), costs, engine="simpy")) / ops,
            None,
        ),
        "SimPy engine, offload under a limit": (
            best(lambda: simulate(fresh(offloading), costs, memory, engine="simpy"))
            / len(offloading),
            15e-6,
        ),
    }
    table = Table(title="Time per op at p = 8, m = 64")
    for column in ("what", "ns per op", "goal", "times the replay"):
        table.add_column(column, justify="left" if column == "what" else "right")
    base = times["replay, once lowered"][0]
    for name, (value, goal) in times.items():
        mark = "" if goal is None else f"< {goal * 1e9:,.0f} {'ok' if value < goal else 'MISSED'}"
        table.add_row(name, f"{value * 1e9:,.1f}", mark, f"{value / base:,.1f}")
    console.print(table)


def against_size() -> None:
    table = Table(title="ZB-H1 against size (seconds; in brackets ns per op)")
    for column in ("p", "m", "ops", "build", "lower", "replay", "lower under a limit", "peak RSS"):
        table.add_column(column, justify="right")
    for devices, microbatches in ((4, 16), (8, 64), (16, 128), (32, 256), (64, 1024)):
        costs = profile(devices)
        building = best(lambda: build("zb-h1", costs, microbatches), 0.1)  # noqa: B023
        schedule = build("zb-h1", costs, microbatches)
        limit = (devices + 1) * 100 * 2**20
        lowering = best(lambda: lower(fresh(schedule), costs), 0.2)  # noqa: B023
        graph = lower(schedule, costs).graph
        replaying = best(graph.times, 0.2)
        limited = best(lambda: lower(fresh(schedule), costs, limit), 0.2)  # noqa: B023
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        ops = len(schedule)
        cells = [
            f"{value:.4f} ({value / ops * 1e9:,.0f})"
            for value in (building, lowering, replaying, limited)
        ]
        table.add_row(str(devices), str(microbatches), f"{ops:,}", *cells, f"{peak:.2f} GiB")
    console.print(table)


def builders() -> None:
    costs = profile(8, memory_limit_gib=1)
    table = Table(title="Building and replaying each schedule at p = 8, m = 32")
    for column in ("schedule", "ops", "build ms", "SimPy ms", "replay ms", "SimPy / replay"):
        table.add_column(column, justify="left" if column == "schedule" else "right")
    for name in WHOLE:
        building = best(lambda: build(name, costs, 32), 0.05)  # noqa: B023
        schedule = build(name, costs, 32)
        engine, fast = (
            best(lambda: simulate(fresh(schedule), costs, enforce=False, engine=engine), 0.05)  # noqa: B023
            for engine in ("simpy", "replay")
        )
        times = [f"{value * 1e3:.2f}" for value in (building, engine, fast)]
        table.add_row(name, str(len(schedule)), *times, f"{engine / fast:.0f}")
    console.print(table)


def doors() -> None:
    def run(code: str) -> float:
        return best(lambda: subprocess.run([sys.executable, "-c", code], check=True), 1.0)

    bare = run("pass")
    table = Table(title="Start-up, in fresh processes (an empty Python subtracted)")
    table.add_column("what")
    table.add_column("ms", justify="right")
    table.add_row("import optpipe_sim", f"{(run('import optpipe_sim') - bare) * 1e3:.0f}")
    imports = "from optpipe_sim import build, load_profile, simulate"
    table.add_row(imports, f"{(run(imports) - bare) * 1e3:.0f}")
    console.print(table)


def annealing() -> None:
    title = "Annealing from AdaOffload at a quarter of 1F1B's memory: a change tried, all evaluated"
    table = Table(title=title)
    for column in ("devices", "microbatches", "ops", "change us", "all us", "all / change"):
        table.add_column(column, justify="right")
    for devices, microbatches in ((4, 16), (8, 32), (16, 64), (32, 128)):
        limit = devices * 100 * 2**20 // 4
        problem = make_problem(profile(devices), microbatches, limit, "flush")
        start = adaoffload(problem.profile, microbatches, limit=problem.limits)
        work, plan, count = Workspace(problem), pack(problem, start), 20_000
        changes = best(partial(search, problem, [start], evaluations=count), 3.0) / count
        everything = best(partial(work.evaluate, plan))
        cells = [f"{value * 1e6:.1f}" for value in (changes, everything)]
        ops = f"{int(plan.length.sum()):,}"
        ratio = f"{everything / changes:.0f}"
        table.add_row(str(devices), str(microbatches), ops, *cells, ratio)
    console.print(table)


def sweeps() -> None:
    grid = {"schedule": [*REPLAYED], "profile.t_comm_ms": [at / 50 for at in range(100)]}
    base = {"profile": profile_to_json(profile(8)), "microbatches": 32}
    text = {"name": "bench", "question": "how fast?", "run": "simulate", "minutes": 1}
    table = Table(title="A sweep of 1,000 replays at p = 8, m = 32, on all cores")
    table.add_column("what")
    table.add_column("seconds", justify="right")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.yaml"
        write_mapping(path, {**text, "base": base, "grid": grid})
        done = sweep(load_experiment(path), folder)
        assert (done.ran, done.failed) == (1000, 0)
        table.add_row("start to finish, each point kept on disk", f"{done.seconds:.1f}")
        table.add_row(
            "again, all of it known", f"{sweep(load_experiment(path), folder).seconds:.1f}"
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="FILE", help="also write the tables to a Markdown file")
    options = parser.parse_args()
    console.print(f"Python {platform.python_version()} on {platform.machine()}, one core")
    for part in (per_op, against_size, builders, doors, annealing, sweeps):
        part()
    if options.write:
        write_text(options.write, f"# Benchmarks\n\n```\n{console.export_text()}```\n")


if __name__ == "__main__":
    main()
