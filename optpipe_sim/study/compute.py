"""Compute one point of a sweep; an error becomes its record."""

from __future__ import annotations

import datetime
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import OptPipeError
from ..files import plain
from .points import Point, arguments
from .store.locks import Locks
from .store.store import Record, Store
from .tasks import Row, load_task
from .versions import commit

DIED = "its process died (killed, or out of memory)"
Finished = tuple[str, Record]


def compute(point: Point) -> Finished:
    """Run one point; an error becomes its record, in one line."""
    started, used = time.perf_counter(), _cpu_s()
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    rows: list[Row] = []
    error = None
    try:
        task = load_task(point.task, source=point.source)
        made = task.run(**arguments(task, point.parameters))
        rows = json.loads(
            json.dumps(plain(made if isinstance(made, list) else [made]), default=_number)
        )
    except OptPipeError as problem:
        error = str(problem)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    if error is not None:
        error = " ".join(error.split())
    today = datetime.date.today().isoformat()
    took, used = time.perf_counter() - started, _cpu_s() - used
    return point.key, Record(rows, error, took, today, load, commit(), used)


def _cpu_s() -> float:
    """Return the CPU time of this process and of those that it has waited for, s."""
    return sum(os.times()[:4])


def _number(value: Any) -> Any:
    """Convert a numpy number to a Python number."""
    if not hasattr(value, "item"):
        raise TypeError(f"a row holds {value!r}, which no table can")
    return value.item()


class Kept(NamedTuple):
    """A point that is stored on disk: computed `here`, or by another sweep; no record: another
    sweep is computing it."""

    key: str
    record: Record | None
    here: bool


def compute_and_keep(point: Point, folder: str, owner: str, fresh: bool) -> Kept:
    """Run `compute` and store the result at once, in the process that computed it. A point that
    another sweep is computing is left to it; one that it has finished in the meantime is reused,
    unless `fresh`.
    """
    locks = Locks(Path(folder), owner)
    if not locks.take(point.key):
        return Kept(point.key, None, False)
    store = Store(Path(folder))
    try:
        known = None if fresh else store.get(point.key)
        if known is not None:
            return Kept(point.key, known, False)
        finished = compute(point)
        store.put(*finished)
        return Kept(*finished, True)
    finally:
        locks.release(point.key)
