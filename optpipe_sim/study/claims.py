"""OptPipe's claims put to the test at equal memory: idle time and throughput, beside PipeOffload.

    python -m optpipe_sim.study.claims

writes ``optpipe_claims.csv``, ``.md`` and ``.png`` into ``results/`` (about twelve minutes; what is
in the CSV already is not run again). The claims (arXiv 2510.05186): up to 50 % less idle time at equal
memory; over 20 % more throughput than PipeOffload where memory is scarce, over 30 % where it is
ample; models become trainable that run out of memory under every schedule that does not offload.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import NoSolution, OptPipeError, OutOfMemory
from ..solve import solve
from ..trace import Trace
from .cells import Row, finish_cells
from .claims_cases import (
    BANDWIDTHS,
    CHUNKS,
    MODELS,
    PLAIN,
    SHARES,
    best_of,
    pipeoffload_names,
    setting,
)
from .claims_page import draw, page

# What each method runs: an engine, its seconds, and whether with one chunk or with as many as the
# best PipeOffload.
SOLVED = {
    "AdaOffload": ("adaoffload", 1, False),
    "AdaOffload, same v": ("adaoffload", 1, True),
    "auto": ("auto", 4, False),
    "auto, same v": ("auto", 4, True),
    "search": ("search", 4, False),
    "CP-SAT": ("cpsat", 8, False),
    "MILP": ("milp", 10, False),
}
FIXED = ("no offload", "PO-H", "PO-F", "PO best")
ONLY_SMALL = ("CP-SAT", "MILP")  # where the model fits into the seconds
SMALL = "1.5B/2"
APART = ("cpsat", "milp")  # engines that run in a process of their own


def claim_cells(models: Sequence[str] = tuple(MODELS)) -> list[dict[str, Any]]:
    """A cell per model, bandwidth, limit and method."""
    return [
        {"model": model, "gb_per_s": speed, "share": share, "method": method}
        for model in models
        for speed in BANDWIDTHS
        for share in SHARES
        for method in (*FIXED, *SOLVED)
        if model == SMALL or method not in ONLY_SMALL
    ]


def run(cell: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """One method under one limit; without a makespan where it does not fit."""
    where = cell["model"], cell["gb_per_s"], cell["share"], folder
    began = time.perf_counter()
    if cell["method"] in SOLVED:
        engine, seconds, same = SOLVED[cell["method"]]
        arguments = (where, engine, seconds, _chunks(*where) if same else 1)
        if engine not in APART:
            return _solved(*arguments)
        # OR-Tools and highspy may each bring a HiGHS of their own, which do not share a process
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context) as pool:
            return pool.submit(_solved, *arguments).result()
    found = _fixed(cell["method"], where)
    row = {"fits": "no"} if found is None else _row(found[1], found[0])
    return {**_EMPTY, **row, "seconds": f"{time.perf_counter() - began:.2f}"}


_EMPTY = dict.fromkeys(
    ("fits", "schedule", "chunks", "makespan_ns", "idle_ns", "bound_ns", "by", "status", "seconds"),
    "",
)


def _fixed(method: str, where: tuple[Any, ...]) -> tuple[str, Trace] | None:
    if method == "PO best":
        return best_of(tuple(pipeoffload_names(setting(*where)[0].devices)), *where)
    return best_of(PLAIN if method == "no offload" else (method.lower(),), *where)


@cache
def _chunks(*where: Any) -> int:
    """The chunks per device of the best PipeOffload, or the most that are tried where none fits."""
    found = _fixed("PO best", where)
    return CHUNKS[-1] if found is None else found[1].profile.chunks


def _solved(where: tuple[Any, ...], engine: str, seconds: int, chunks: int) -> dict[str, Any]:
    profile, m = setting(*where)
    try:
        found = solve(profile.rechunk(chunks), m, engine=engine, time_limit=seconds)
    except (NoSolution, OutOfMemory):
        return {**_EMPTY, "fits": "no", "chunks": chunks}
    assert found.trace is not None
    return {
        **_EMPTY,
        **_row(found.trace, found.info["found_by"]),
        "bound_ns": found.lower_bound_ns,
        "by": found.bound_name,
        "status": found.status,
        "seconds": f"{found.seconds:.2f}",
    }


def _row(trace: Trace, name: str) -> dict[str, Any]:
    return {
        "fits": "yes",
        "schedule": name,
        "chunks": trace.profile.chunks,
        "makespan_ns": trace.makespan_ns,
        "idle_ns": trace.makespan_ns - max(trace.busy_ns),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files; 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m optpipe_sim.study.claims", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--profiles", default="experiments/profiles", help="default: %(default)s")
    parser.add_argument("--results", default="results", help="default: %(default)s")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--fresh", action="store_true", help="run finished cells again")
    given = parser.parse_args(arguments)

    def told(done: int, of: int, row: Row) -> None:
        took = f"{int(row['makespan_ns']) / 1e6:.1f} ms" if row["fits"] == "yes" else "does not fit"
        where = f"{row['model']} at {row['gb_per_s']} GB/s, {row['share']} of 1F1B"
        print(f"{done:3}/{of} {where}: {row['method']}: {took} {row['schedule']}", file=sys.stderr)

    target = Path(given.results)
    try:
        rows = finish_cells(
            target / "optpipe_claims.csv",
            claim_cells(given.models),
            lambda cell: run(cell, given.profiles),
            fresh=given.fresh,
            progress=told,
        )
        page(rows, target / "optpipe_claims.md")
        draw(rows, target / "optpipe_claims.png")
    except OptPipeError as error:
        print(error, file=sys.stderr)
        return 2
    for ending in ("csv", "md", "png"):
        print(target / f"optpipe_claims.{ending}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
