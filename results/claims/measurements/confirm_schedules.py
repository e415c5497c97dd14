"""What README.md and results/README.md say of confirm_schedules."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.schedule_page import Found
from results.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    every = [Found.read(one) for one in tables("confirm_schedules")]
    runs = [run for found in every for run in found.runs]
    faults = [fault for found in every for fault in found.faults]
    good, equal = (sum(getattr(run, what) for run in runs) for what in ("good", "equal"))
    assert all(fault.good for fault in faults)
    beside = [run.ranks_peak for run in runs]
    where = ", ".join(
        f"torch {found.torch.partition('+')[0]} on"
        f" {' and '.join(str(p) for p in sorted({run.p for run in found.runs}))} ranks"
        for found in every
    )
    yield (
        f"every named schedule and an optimised one ({where}), with stages of three models, one of Hugging Face: {good} of"
        f" {len(runs)} runs have the gradients of plain autograd, {equal} of them bit by bit, and hold no more than predicted where one op runs after the other;"
        f" in a process per rank, where sent messages wait to be taken, {span(beside, lambda x: percent(x, 0))} of that (median {percent(median(beside), 0)})."
        f" Each of {len(faults)} failures of a rank is reported in one line, and no process is left."
    )
