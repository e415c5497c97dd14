"""The referee: is a change of the search any worse? And what is lost without each of its methods?

    make referee                                     run all cells, compare them with results/referee.csv
    python benchmarks/referee.py --write             make today's search the one to compare with
    python benchmarks/referee.py --without all       switch the methods off, one by one (half an hour)

Some 70 cells, each with fixed seeds: uniform stages whose optimum is proven, uneven and published costs, several
chunks, spans, shared links, slices, blocking links, the settings of the contest with one chunk and with several,
up to 64 devices. Each is searched for a fixed number of *evaluations*, not seconds, in one process, so that the cost
found and the method that found it depend on the code and the seed alone. Speed (evaluations per second, compilation
apart) depends on the machine, so it is compared as the median ratio over all cells, and the table says where and
under which load it was measured. No published schedule is tried first: it would hide what the search itself finds.

A cell counts as worse where each of its seeds costs more than each seed before. Finished cells are kept in
out/referee.csv, also after Ctrl-C; `--fresh` runs them again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from joblib import Parallel, delayed

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the cells are those of the experiments

from experiments.cases import OTHER, Case, published, uniform  # noqa: E402
from experiments.cells import (  # noqa: E402
    Row,
    finish_cells,
    provenance,
    read_rows,
    to_csv,
    to_markdown,
)
from optpipe_sim.bounds.bounds import lower_bound  # noqa: E402
from optpipe_sim.files import write_text  # noqa: E402
from optpipe_sim.schedule import Schedule  # noqa: E402
from optpipe_sim.solvers.anneal.annealer import shares_links, treats  # noqa: E402
from optpipe_sim.solvers.problem import Problem, make_problem  # noqa: E402
from optpipe_sim.solvers.race.compiling import compile_engines  # noqa: E402
from optpipe_sim.solvers.reports import Job  # noqa: E402
from optpipe_sim.solvers.solve import solve  # noqa: E402
from optpipe_sim.stage_cost import RecomputeLevel, StageCost  # noqa: E402
from optpipe_sim.study.profiles import profile_of  # noqa: E402

COMMITTED = ROOT / "results" / "referee.csv"
ABLATIONS = ROOT / "results" / "referee-without.csv"
RUNS = ROOT / "out" / "referee.csv"
SEEDS = 2
# per cell, at most; and forwards timed in all of them, since an evaluation of a large schedule takes longer
EVALUATIONS, FORWARDS = 30_000, 12_000_000
SLOWEST = 0.9  # least ratio of the speeds
NOTHING = "nothing"  # is switched off

# p, m, bytes, copy: uniform stages that are not solved by AdaOffload alone
UNIFORM = (
    (4, 8, 200, 5), (4, 8, 200, 16), (4, 16, 200, 5), (4, 16, 200, 16), (8, 16, 266, 16), (8, 16, 200, 5),
    (8, 16, 200, 16), (8, 32, 266, 16), (8, 32, 200, 16), (16, 32, 400, 5), (16, 32, 400, 16), (16, 64, 400, 16),
    (32, 128, 1600, 16), (64, 128, 3200, 16),
)  # fmt: skip
# machine, model, devices, tp, sequence length, microbatches; then the chunks that the contest's plans have
CONTEST = (
    ("a100-40gb", "llama2-7b", 8, 1, 8192, 32, 2),
    ("a100-80gb", "llama2-7b", 4, 1, 16384, 32, 2),
    ("a100-80gb", "llama2-13b", 8, 1, 16384, 32, 2),
    ("h100-sxm", "llama2-7b", 4, 1, 4096, 4, 5),
    ("h100-sxm", "llama3-8b", 4, 1, 32768, 16, 3),
    ("h100-sxm", "llama2-13b", 8, 1, 16384, 32, 2),
    ("h100-sxm", "qwen2.5-32b", 16, 1, 8192, 64, 2),
    ("h100-sxm", "llama2-70b", 64, 8, 32768, 16, 5),
    ("gh200", "llama2-13b", 8, 1, 16384, 32, 2),
    ("gh200", "qwen2.5-32b", 16, 1, 16384, 32, 2),
    ("b200-sxm", "qwen2.5-32b", 8, 1, 16384, 32, 3),
    ("b200-sxm", "llama3-70b", 16, 1, 8192, 128, 2),
)


@cache
def cells() -> dict[str, Case]:
    """The cells by name."""
    found = {
        f"uniform p{p} m{m} {limit} B, copies of {copy}": Case(uniform(p, limit, copy), m)
        for p, m, limit, copy in UNIFORM
    }
    found |= OTHER
    for name, share, level in (
        ("zb-1.5b-p8-m24", "0.5", 700), ("zb-1.5b-p8-m24", "0.25", 460), ("zb-14.6b-p16-m48", "0.25", 460),
    ):  # fmt: skip
        found[f"{name} {share}, levels"] = _levelled(published(name, share), level)
    vee = published("zbv-6.2b-p16-m48", "0.25", 2, "vee")
    found["zbv-6.2b vee 0.25, levels"] = _levelled(vee, 460)
    half = published("zb-1.5b-p8-m24", "0.5")
    for slices in (2, 4):
        cut = replace(half, profile=half.profile.with_slices(slices))
        found[f"zb-1.5b-p8-m24 0.5, {slices} slices"] = cut
    for links in ("blocking", "serial"):
        linked = replace(half, profile=replace(half.profile, links=links))
        found[f"zb-1.5b-p8-m24 0.5, {links} links"] = linked
    for machine, model, devices, tp, seq, m, chunks in CONTEST:
        given = {
            "machine": machine, "model": model, "devices": devices, "tp": tp, "seq": seq, "levels": True,
        }  # fmt: skip
        profile = profile_of({"estimate": given}, ROOT)
        for number in (1, chunks):
            case = Case(profile.rechunk(number), m)
            found[f"{machine} {model} p{profile.devices} m{m}, {number} chunks"] = case
    return found


def _levelled(case: Case, keep: int) -> Case:
    """The case with a selective level, which keeps so many thousandths, and with full recomputation."""

    def change(_: int, cost: StageCost) -> StageCost:
        few = RecomputeLevel("selective", cost.t_f_ns // 25, cost.act_bytes * keep // 1000)
        full = RecomputeLevel("full", cost.t_f_ns, cost.act_bytes // 50)
        return replace(cost, recompute=(few, full))

    return replace(case, profile=case.profile.map_stages(change))


@dataclass(frozen=True)
class Method:
    """A method of the search that can be switched off.

    Attributes:
        instead: what takes the place of each function or constant, by its module and name.
        where: whether a problem has it at all.
    """

    instead: Mapping[str, Any]
    where: Callable[[Problem], bool]


def _none(*_: Any, **__: Any) -> list[Any]:
    return []


def _no(*_: Any, **__: Any) -> None:
    return None


def _as_given(job: Job, report: Any) -> Job:
    return job


def _as_it_is(_: Problem, schedule: Schedule, *rest: Any) -> Schedule:
    return schedule


def _itself(problem: Problem) -> list[Problem]:
    return [problem]


def _one_by_one(passing: tuple[float, float, float]) -> tuple[float, float, float]:
    return (*passing[:2], 0.0)


SOLVERS = "optpipe_sim.solvers"
ANNEAL, SEARCH, STARTS = f"{SOLVERS}.anneal", f"{SOLVERS}.search", f"{SOLVERS}.starts"
METHODS = {
    "waves": Method(
        {f"{SEARCH}.wave_search": _none, f"{STARTS}.fixed_levels.wave_search": _none},
        lambda problem: problem.shape.chunks > 1,
    ),
    "perturbed AdaOffload": Method(
        {f"{SEARCH}.greedy_search": _none},
        lambda problem: problem.may_offload,
    ),
    "periodic pattern": Method({f"{SEARCH}.pattern_start": _no}, shares_links),
    "links of their own first": Method(
        {f"{SEARCH}._stand_in": _as_given, f"{SEARCH}.stand_ins": _itself},
        shares_links,
    ),
    "fixed levels first": Method({f"{SEARCH}._improve": _none}, treats),
    "parked microbatches": Method(
        {f"{ANNEAL}.annealer._parked": _no},
        lambda problem: not treats(problem) and problem.shape.chunks == 1 and problem.may_offload,
    ),
    "overtaking and tightening": Method(
        {f"{ANNEAL}.annealer.SLOW_PASSING": _one_by_one((0.1, 0.5, 0.3))}, treats
    ),
    "tidy": Method({"optpipe_sim.solvers.portfolio.tidy": _as_it_is}, lambda problem: True),
}


@contextmanager
def switched_off(name: str) -> Iterator[None]:
    """Switch a method off in this process."""
    with ExitStack() as stack:
        for place, value in ({} if name == NOTHING else METHODS[name].instead).items():
            module, _, attribute = place.rpartition(".")
            stack.enter_context(patch.object(import_module(module), attribute, value))
        yield


def run(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Search one cell with one seed."""
    case = cells()[cell["case"]]
    problem = make_problem(case.profile, case.microbatches, case.limit, case.objective)
    began = time.perf_counter()
    compile_engines(problem)
    compiled = time.perf_counter()
    evaluations = min(EVALUATIONS, FORWARDS // (problem.shape.stages * problem.shape.units))
    with switched_off(cell["without"]):
        found = solve(
            case.profile, case.microbatches, case.limit, "search", 1e6, case.objective, cell["seed"],
            evaluations=evaluations, workers=1, published=False, chunks="own",
        )  # fmt: skip
    seconds = time.perf_counter() - compiled
    bound = lower_bound(case.profile, case.microbatches, case.objective, problem.limits)
    assert found.trace is not None
    return {
        "cost_ns": found.objective_ns,
        "bound_ns": bound.ns,
        "bound": bound.name,
        "found_by": found.info["found_by"],
        "offloaded": found.trace.offloaded,
        "evaluations": evaluations,
        "seconds": f"{seconds:.2f}",
        "compile_s": f"{compiled - began:.1f}",
    }


def wanted(without: Sequence[str], pattern: str, seeds: int) -> list[dict[str, Any]]:
    """The runs: each cell with each seed, and without each method that it has."""
    runs = []
    for name in without:
        for case, given in cells().items():
            if pattern not in case:
                continue
            problem = make_problem(given.profile, given.microbatches, given.limit, given.objective)
            if name == NOTHING or METHODS[name].where(problem):
                runs += [{"without": name, "case": case, "seed": seed} for seed in range(seeds)]
    return runs


def costs_of(rows: Sequence[Row], without: str = NOTHING) -> dict[str, list[Row]]:
    """The rows of each cell."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["without"] == without:
            found.setdefault(row["case"], []).append(row)
    return found


@dataclass(frozen=True)
class Verdict:
    """Rows of one cell beside those before.

    Attributes:
        change: relative change of the median cost. worse, better: every seed beyond every seed before.
        speed: the ratio of the evaluations per second (medians).
    """

    change: float
    worse: bool
    better: bool
    speed: float


def verdict(before: Sequence[Row], now: Sequence[Row]) -> Verdict:
    """Compare the rows of a cell with those before."""
    old, new = ([int(row["cost_ns"]) for row in rows] for rows in (before, now))
    rates = [
        median(int(row["evaluations"]) / max(0.01, float(row["seconds"])) for row in rows)
        for rows in (before, now)
    ]
    return Verdict(
        median(new) / median(old) - 1,
        min(new) > max(old),
        max(new) < min(old),
        rates[1] / rates[0],
    )


def compared(before: Sequence[Row], now: Sequence[Row], without: str = NOTHING) -> list[Row]:
    """The table of all cells that both have, the worst first."""
    old, new = costs_of(before), costs_of(now, without)
    found = {case: verdict(old[case], rows) for case, rows in new.items() if case in old}
    return [
        {
            "cell": case,
            "before": f"{median(int(row['cost_ns']) for row in old[case]):g}",
            "now": f"{median(int(row['cost_ns']) for row in new[case]):g}",
            "change": f"{one.change:+.2%}",
            "verdict": "worse" if one.worse else "better" if one.better else "",
            "speed": f"{one.speed:.2f}",
            "found by": ", ".join(dict.fromkeys(row["found_by"] for row in new[case])),
        }
        for case, one in sorted(found.items(), key=lambda item: -item[1].change)
    ]


def lost(rows: Sequence[Row]) -> list[Row]:
    """The table of what is lost without each method, over the cells that have it."""
    table = []
    for name in METHODS:
        cell_rows = compared(rows, rows, name)
        if not cell_rows:
            continue
        changes = [float(row["change"].rstrip("%")) for row in cell_rows]
        verdicts = [row["verdict"] for row in cell_rows]
        table.append(
            {
                "without": name,
                "cells": str(len(cell_rows)),
                "worse": str(verdicts.count("worse")),
                "better": str(verdicts.count("better")),
                "mean": f"{sum(changes) / len(changes):+.2f} %",
                "most": f"{max(changes):+.2f} %",
                "where": cell_rows[0]["cell"],
            }
        )
    return table


def _page(rows: Sequence[Row], ablations: Sequence[Row]) -> str:
    own = costs_of(rows)
    found_by = Counter(row["found_by"] for row in rows)
    gaps = [
        {
            "cell": case,
            "cost": f"{median(int(row['cost_ns']) for row in each):g}",
            "gap": f"{median(int(row['cost_ns']) for row in each) / int(each[0]['bound_ns']) - 1:.2%}",
            "found by": ", ".join(dict.fromkeys(row["found_by"] for row in each)),
        }
        for case, each in own.items()
    ]
    lines = [
        "# The referee",
        "",
        f"{len(own)} cells, {SEEDS} seeds each, up to {EVALUATIONS:,} evaluations of a cell, fewer of large ones; no"
        " published schedule is tried first. Costs in ns, medians; gap to the closed-form bound of the cell's own"
        f" chunks and cut. {provenance(rows)}",
        "",
        "Which method found the plan, over cells and seeds: "
        + ", ".join(
            f"{name} {count}" for name, count in found_by.most_common()
        )
        + ".",
        "",
        "## What is lost without each method",
        "",
        "Over the cells that have it; *worse*, *better*: every seed beyond every seed with it. Mean and largest change of"
        " the cost. Exactly 0.00 % everywhere means that so few evaluations never reach the method, not that it is useless:"
        f" it comes after the first slow visits of a search. {provenance(ablations)}",
        "",
        *to_markdown(
            {
                "without": "without", "cells": "cells", "worse": "worse", "better": "better",
                "mean": "mean", "most": "most", "where": "where",
            },
            lost(ablations),
        ),
        "",
        "## Cell by cell",
        "",
        *to_markdown({"cell": "cell", "cost": "cost", "gap": "gap", "found by": "found by"}, gaps),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _finish(runs: Sequence[Mapping[str, Any]], path: Path, fresh: bool, jobs: int) -> list[Row]:
    """Run what is missing in `path`, on `jobs` processes."""
    done = {} if fresh else {_key(row): row for row in read_rows(path)}
    todo = [one for one in runs if _key(one) not in done]
    ahead = Parallel(n_jobs=jobs, return_as="generator")(delayed(run)(one) for one in todo)
    found = iter(ahead)

    def show(number: int, of: int, row: Row) -> None:
        without = "" if row["without"] == NOTHING else f"without {row['without']}: "
        print(
            f"{number}/{of} {without}{row['case']}, seed {row['seed']}: {row['cost_ns']} by {row['found_by']},"
            f" {row['seconds']} s",
            file=sys.stderr,
            flush=True,
        )

    return finish_cells(path, runs, lambda _: next(found), fresh=fresh, progress=show)


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("without", "case", "seed"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--without", nargs="*", default=[], metavar="METHOD", help="all, or some of: " + ", ".join(METHODS))  # fmt: skip
    parser.add_argument("--cells", default="", metavar="TEXT", help="only cells with this in their name")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1: speed is measured)")  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="run finished cells again")
    parser.add_argument("--write", action="store_true", help="make these runs the ones to compare with")  # fmt: skip
    given = parser.parse_args()
    off = list(METHODS) if given.without == ["all"] else given.without
    for name in off:
        if name not in METHODS:
            parser.error(f"--without: expected all or some of {', '.join(METHODS)}; got {name!r}")
    try:
        rows = _finish(
            wanted([NOTHING, *off], given.cells, given.seeds), RUNS, given.fresh, given.jobs
        )
    except KeyboardInterrupt:
        print(f"interrupted; finished cells are in {RUNS}, the same command goes on", file=sys.stderr)  # fmt: skip
        return 130
    plain = [row for row in rows if row["without"] == NOTHING]
    ablations = [row for row in rows if row["without"] != NOTHING]
    if given.write:
        write_text(COMMITTED, to_csv(plain))
        if ablations:
            write_text(ABLATIONS, to_csv(rows))  # beside the same search with all its methods
        write_text(COMMITTED.with_suffix(".md"), _page(plain, read_rows(ABLATIONS)))
        print(COMMITTED.with_suffix(".md"))
        return 0
    return _judge(plain, ablations)


def _judge(plain: Sequence[Row], ablations: Sequence[Row]) -> int:
    """Print the comparison; 1 if a cell is worse or the search is slower than allowed."""
    table = compared(read_rows(COMMITTED), plain)
    head = ("cell", "before", "now", "change", "verdict", "speed", "found by")
    print("\n".join(to_markdown({name: name for name in head}, table)))
    if ablations:
        head = ("without", "cells", "worse", "better", "mean", "most", "where")
        print("\n".join(["", *to_markdown({name: name for name in head}, lost([*plain, *ablations]))]))  # fmt: skip
    worse = [row["cell"] for row in table if row["verdict"] == "worse"]
    speed = median([float(row["speed"]) for row in table] or [1.0])
    print(f"\n{len(worse)} of {len(table)} cells worse beyond the spread of seeds; speed {speed:.2f} of before")  # fmt: skip
    return int(bool(worse) or speed < SLOWEST)


if __name__ == "__main__":
    from benchmarks.referee import main as importable  # where other processes find its functions

    sys.exit(importable())
