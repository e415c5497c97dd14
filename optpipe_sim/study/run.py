"""Run an experiment: finished points are reused, the others run on all cores or on a cluster."""

from __future__ import annotations

import datetime
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OptPipeError
from ..files import plain
from ..processes.signals import ctrl_c_for_caller, leave_with_parent
from .cluster import on_cluster
from .compute import DIED, Kept, compute_and_keep
from .experiment import Experiment
from .points import Point, plan
from .store.locks import Locks, Running
from .store.store import Record, Store
from .tables import save_table
from .tasks import Row, load_task
from .versions import SOLVERS, versions

OTHERS_S = 0.5  # how often to poll for points of other sweeps
Progress = Callable[[int, int, int], None]  # finished, of how many, failed


@dataclass(frozen=True)
class Sweep:
    """The outcome of a sweep.

    Attributes:
        files: the files of its results. ran, reused, failed: the numbers of points computed now, of
            points known before, and of those of both that ended in an error. `broken`: damaged
            files of points.
        errors: per failed point its labels and its error.
    """

    name: str
    files: list[Path]
    points: int
    ran: int
    reused: int
    failed: int
    broken: int
    seconds: float
    errors: list[tuple[Row, str]] = field(default_factory=list)


def points_folder(results: str | os.PathLike[str]) -> Path:
    """Return where the finished points of a results folder are stored."""
    return Path(results) / ".points"


def sweep(
    experiment: Experiment,
    results: str | os.PathLike[str] = "results",
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    progress: Progress = lambda finished, total, failed: None,
    notice: Callable[[str], None] = lambda text: None,
) -> Sweep:
    """Run the points of an experiment that are not finished, and write its table.

    Args:
        results: the folder of the table; finished points are kept in ``.points`` in it.
        jobs: points in parallel; default: the number of cores over the cores of one point.
        cluster: the address of a Dask scheduler, instead of the cores here.
        fresh: compute finished points again. `retry_failed`: only those that failed.
        progress: called with the numbers of finished, of all and of failed points. notice: called
            with a line if the sweep has to wait, for another sweep or for workers.

    Several sweeps may share a folder, also across machines: the others wait for a point that one of
    them computes.

    Raises:
        OptPipeError: for an invalid experiment, a full disk, a cluster that cannot be reached. Points finished
        until then are kept.
    """
    started = time.monotonic()
    points = plan(experiment)
    store = Store(points_folder(results))
    store.tidy()
    known, broken = ({}, 0) if fresh else store.find(point.key for point in points)
    if retry_failed:
        known = {key: record for key, record in known.items() if record.error is None}
    waiting = {point.key: point for point in points if point.key not in known}
    total, ran = len(known) + len(waiting), 0
    failed = sum(record.error is not None for record in known.values())
    progress(len(known), total, failed)
    try:
        left = list(waiting.values())
        again = fresh or retry_failed
        how_many = jobs or default_jobs(experiment.cores)
        with Running(store.folder) as locks:
            for key, record, here in _computed(
                left, store, locks, how_many, cluster, again, notice
            ):
                assert record is not None
                known[key] = record
                ran += here
                failed += record.error is not None
                progress(len(known), total, failed)
    except OptPipeError as error:
        if not known:
            raise
        raise OptPipeError(
            f"{error}; {len(known)} of {total} points are finished and kept, the same command goes"
            " on from there"
        ) from None
    rows, errors = _table(points, known)
    seconds = time.monotonic() - started
    count = {"points": total, "ran": ran, "reused": total - ran, "failed": failed}
    how = {
        **count,
        "jobs": (cluster and "cluster") or jobs or default_jobs(experiment.cores),
        "dates": sorted({known[point.key].date for point in points}),
        "commits": sorted({of for point in points if (of := known[point.key].commit)}),
        "wall_seconds": round(seconds, 1),
        "point_seconds": [round(known[point.key].seconds, 3) for point in points],
    }
    files = save_table(results, experiment.name, rows, _manifest(experiment, points, how))
    return Sweep(experiment.name, files, **count, broken=broken, seconds=seconds, errors=errors)


def default_jobs(cores: int) -> int:
    """Return how many points run in parallel if each occupies `cores` cores."""
    from joblib import cpu_count

    return max(1, int(cpu_count()) // cores)


def _computed(
    points: Sequence[Point],
    store: Store,
    locks: Locks,
    jobs: int,
    cluster: str | None,
    fresh: bool,
    notice: Callable[[str], None],
) -> Iterator[Kept]:
    """Yield the points as they are finished; all are stored. It waits for points that other sweeps
    compute, and computes them itself if those sweeps end without them."""
    left = {point.key: point for point in points}
    announced = False
    while left:
        free = [point for point in left.values() if locks.free(point.key)]
        if free and cluster is None:
            found = _on_cores(free, store, locks, jobs, fresh)
        elif free:
            found = _on_workers(free, store, locks, cluster or "", fresh, notice)
        else:
            found = _of_others(left, store, fresh)
        for kept in found:
            if kept.record is not None:
                del left[kept.key]
                yield kept
        if left and not announced:
            notice(f"{len(left)} points are being computed by another sweep; waiting for them")
            announced = True


def _of_others(left: Iterable[str], store: Store, fresh: bool) -> Iterator[Kept]:
    """Wait a moment, then return which of these points other sweeps have finished; none if they are
    to be computed afresh."""
    time.sleep(OTHERS_S)
    done: dict[str, Record] = {} if fresh else store.find(left)[0]
    for key, record in done.items():
        yield Kept(key, record, False)


def _on_workers(
    points: Sequence[Point],
    store: Store,
    locks: Locks,
    cluster: str,
    fresh: bool,
    notice: Callable[[str], None],
) -> Iterator[Kept]:
    """Compute the points on the workers of a cluster; this process locks and stores them."""
    taken = []
    try:
        for point in points:
            if not locks.take(point.key):
                continue
            taken.append(point)
        known: dict[str, Record] = {}
        if not fresh:
            known, _ = store.find(point.key for point in taken)
        for key, record in known.items():
            yield Kept(key, record, False)
        waiting = [point for point in taken if point.key not in known]
        for finished in on_cluster(waiting, cluster, notice) if waiting else ():
            store.put(*finished)
            locks.release(finished[0])
            yield Kept(*finished, True)
    finally:
        for point in taken:
            locks.release(point.key)


def _on_cores(
    points: Sequence[Point], store: Store, locks: Locks, jobs: int, fresh: bool
) -> Iterator[Kept]:
    """Compute the points in processes of this machine; points of other sweeps come without a
    record. If a process dies, the points that it may have run are run again one by one, so that
    only the point that kills is lost.
    """
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = {point.key: point for point in points}
    while left:
        try:
            for kept in _parallel(list(left.values()), store, locks, jobs, fresh):
                del left[kept.key]
                yield kept
        except TerminatedWorkerError:
            done: dict[str, Record] = {} if fresh else store.find(left)[0]
            for key, record in done.items():
                del left[key]
                yield Kept(key, record, True)
            for point in list(left.values())[: 4 * jobs]:
                del left[point.key]
                try:
                    yield from _parallel([point], store, locks, 1, fresh)
                except TerminatedWorkerError:
                    record = Record([], DIED, 0.0, datetime.date.today().isoformat())
                    store.put(point.key, record)
                    locks.release(point.key)
                    yield Kept(point.key, record, True)


@contextmanager
def _quiet_cleaner() -> Iterator[None]:
    """joblib's process that cleans up, if started here, does not say what it finds cleaned up
    already, as after Ctrl-C."""
    before = os.environ.get("PYTHONWARNINGS")
    wanted = [*filter(None, [before]), "ignore:resource_tracker:UserWarning"]
    os.environ["PYTHONWARNINGS"] = ",".join(wanted)
    try:
        yield
    finally:
        del os.environ["PYTHONWARNINGS"]
        if before is not None:
            os.environ["PYTHONWARNINGS"] = before


def _parallel(
    points: Sequence[Point], store: Store, locks: Locks, jobs: int, fresh: bool
) -> Iterator[Kept]:
    from joblib import Parallel, delayed

    # Points of milliseconds are sent in batches, whose size joblib finds. With one job joblib would
    # stay in this process, and a point that kills its process would kill the sweep: two processes,
    # then, of which one at a time has something to do.
    pool = Parallel(
        n_jobs=max(2, jobs),
        backend="loky",
        return_as="generator_unordered",
        pre_dispatch="2*n_jobs" if jobs > 1 else 1,
        initializer=leave_with_parent,
        initargs=(os.getpid(),),
    )
    folder = str(store.folder.resolve())
    calls = (delayed(compute_and_keep)(point, folder, locks.owner, fresh) for point in points)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A worker stopped|.* tasks which were still")
        with ctrl_c_for_caller(), _quiet_cleaner():
            finished = pool(calls)  # this starts the processes
        with closing(finished):  # here, where it says nothing of the points that Ctrl-C cuts short
            yield from finished


def _table(
    points: Sequence[Point], known: dict[str, Record]
) -> tuple[list[Row], list[tuple[Row, str]]]:
    """Return the rows in the order of the points, and the errors of those that failed."""
    rows, errors = [], []
    for point in points:
        record = known[point.key]
        if record.error is not None:
            errors.append((point.labels, record.error))
            rows.append({**point.labels, "error": record.error})
        how = _how(record) if _searches(point) else {}
        rows += [{**point.labels, **row, **how} for row in record.rows]
    return rows, errors


def _searches(point: Point) -> bool:
    """Whether the rows of a point depend on how far a search gets in its time limit."""
    names = [point.parameters.get("schedule"), *(point.parameters.get("schedules") or ())]
    named = any(str(name).startswith("optpipe") for name in names)
    return named or load_task(point.task, source=point.source).searches


def _how(record: Record) -> Row:
    """Return the conditions, besides its parameters, on which the result of a search depends."""
    used = None if record.cpu_s is None else round(record.cpu_s, 3)
    return {
        "point_s": round(record.seconds, 3),
        "cpu_s": used,
        "load": record.load,
        "commit": record.commit,
    }


def _manifest(
    experiment: Experiment, points: Sequence[Point], how: dict[str, Any]
) -> dict[str, Any]:
    """Return the provenance of a table; no names of machines, people or folders."""
    return {
        "name": experiment.name,
        "question": experiment.question,
        "task": {"name": experiment.task.name, "version": experiment.task.version},
        "config": {
            "minutes": experiment.minutes,
            "cores": experiment.cores,
            "base": plain(dict(experiment.base)),
            "grid": [plain(dict(grid)) for grid in experiment.grids],
        },
        **{key: _used(points, key) for key in ("seed", "engine", "solver", "time_limit")},
        "versions": versions((*SOLVERS, "simpy", "joblib", "pyarrow")),
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "cpu": _cpu(),
        },
        "date": datetime.date.today().isoformat(),
        **how,
    }


def _cpu() -> str | None:
    """Return the model of the CPU, as Linux names it; None where it cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    names = (line.partition(": ")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None)


def _used(points: Sequence[Point], key: str) -> list[Any]:
    """Return the values of a parameter that occur."""
    return list(dict.fromkeys(p.parameters[key] for p in points if key in p.parameters))
