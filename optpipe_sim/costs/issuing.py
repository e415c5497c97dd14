"""Executions fitted to measured runs: what a trainer's ops and messages cost beside their kernels, by
least squares over a grid.

A fit has five numbers: whether messages block their sender in plain schedules, in interleaved ones, and
in those with B and W apart; what every op takes beside its kernels; how much longer B and W take apart
than the costs say. Whether iterations chain is not fitted: it is known of a trainer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import OptPipeError, ProfileError
from ..execution import FAMILIES, Execution, Issue, family_of
from ..files import read_mapping, write_mapping
from ..frameworks.torch_csv import load_schedule
from ..names import build
from ..profile import CostProfile
from ..profile.iteration import iteration_ns
from ..profile_io import load_profile
from ..schedule import Schedule
from ..sim import simulate
from ..units import TIME_UNITS, Reader, format_time

LINKS = ("latency", "blocking")
OPS_US = (0, 100, 200, 300, 500, 700, 1000)
SPLITS = (1.0, 1.01, 1.02, 1.03, 1.04, 1.06, 1.08)
NEAR = 0.002  # of two fits whose errors differ by less the one nearer to the ideal is taken
LEVEL = 0.8  # of the errors that are told
FEWEST = 3  # schedules, from which one can be left out
MOST = 0.99  # an error that is told
FAR = 10  # times the replayed time: no measured one is as far from it
MEASURED = "samples"  # what the meta of a measured profile has


@dataclass(frozen=True, eq=False)
class Run:
    """A measured run.

    Attributes:
        name: of its schedule. schedule, profile: what is replayed; the profile has the schedule's own chunks.
        time: what an iteration took, in ns, or in another unit that the runs beside it share.
        chained: whether its iterations chain.
    """

    name: str
    time: float
    chained: bool
    schedule: Schedule
    profile: CostProfile

    @cached_property
    def family(self) -> str:
        """The family of its schedule."""
        return family_of(self.schedule.shape.chunks, self.schedule.issued_split)


class Fit(NamedTuple):
    """How a trainer issues the work: the kind of links by family, what an op takes beside its kernels
    (us), by how much B and W take longer apart, and whether iterations that chain are counted by their
    span."""

    plain: str = "latency"
    interleaved: str = "latency"
    split: str = "latency"
    op_us: int = 0
    split_factor: float = 1.0
    span: bool = True

    def links(self, family: str) -> str:
        """Return the kind of links of a family of schedules."""
        return {"plain": self.plain, "interleaved": self.interleaved}.get(family, self.split)


def grid(plain: Sequence[str] = LINKS) -> tuple[Fit, ...]:
    """Return every fit that is tried, the nearest to ideal first. `plain`: the kinds of links of plain
    schedules."""
    return tuple(
        Fit(first, interleaved, split, op_us, factor)
        for op_us, factor, interleaved, split, first in product(OPS_US, SPLITS, LINKS, LINKS, plain)
    )


def predicted(run: Run, fit: Fit) -> float:
    """Return how long an iteration of a run takes under a fit, in ns."""
    factor = fit.split_factor if run.family.startswith("split") else 1.0
    return _times(run, fit.links(run.family), fit.op_us, factor)[run.chained and fit.span]


@cache
def _times(run: Run, links: str, op_us: int, split: float) -> tuple[float, float]:
    """Return the iteration's time with a flush, and where iterations chain."""
    issue = Issue(links, 1000 * op_us, split=Fraction(str(split)))
    profile = replace(run.profile, execution=Execution("", {run.family: issue}))
    trace = simulate(run.schedule, profile, enforce=False)
    flush, span = trace.makespan_ns, max(trace.span_ns)
    return iteration_ns(run.profile, flush), iteration_ns(run.profile, span)


def log_errors(runs: Sequence[Run], fits: Sequence[Fit]) -> np.ndarray:
    """Return (runs, fits): the logarithm of predicted over measured time."""
    return np.log([[predicted(run, one) / run.time for one in fits] for run in runs])


def fit_to(runs: Sequence[Run]) -> Fit:
    """Return the fit under which the logarithms of predicted over measured times differ least among the
    runs, or, where costs were measured by the same clock or there is one run only, are nearest to none;
    of fits that are as good, by `NEAR`, the nearest to the ideal.

    What the runs of one machine and model have in common, the error of its estimated rates, is no matter
    of how work is issued.
    """
    fits = grid()
    errors = log_errors(runs, fits)
    if len(runs) > 1 and not all(MEASURED in run.profile.meta for run in runs):
        errors = errors - errors.mean(axis=0)
    loss = np.sqrt((errors**2).mean(axis=0))
    return fits[int(np.argmax(loss <= loss.min() + NEAR))]


def fitted(name: str, source: str, runs: Sequence[Run]) -> Execution:
    """Return the execution that fits some runs, with what `LEVEL` of its errors do not exceed where each
    schedule in turn was left out.

    Raises:
        OptPipeError: without runs.
    """
    if not runs:
        raise OptPipeError("runs: none to fit an execution to")
    fit, chained = fit_to(runs), any(run.chained for run in runs)
    families = {
        family: Issue(
            fit.links(family),
            1000 * fit.op_us,
            split=Fraction(str(fit.split_factor)) if family.startswith("split") else Fraction(1),
            iteration="span" if chained and family.startswith("split") else "makespan",
        )
        for family in FAMILIES
    }
    common, between = _errors_left_out(runs)
    return Execution(name, families, source, tuple(run.name for run in runs), common, between)


def _errors_left_out(runs: Sequence[Run]) -> tuple[float | None, float | None]:
    """Return what `LEVEL` of the errors do not exceed, of times and of the ratios of two, where the fit
    had not seen the schedule; None of less than `FEWEST` schedules."""
    names = list(dict.fromkeys(run.name for run in runs))
    if len(names) < FEWEST:
        return None, None
    times, ratios = [], []
    for name in names:
        fit = fit_to([run for run in runs if run.name != name])
        off = {run.name: predicted(run, fit) / run.time for run in runs}
        times.append(abs(off[name] - 1))
        ratios += [abs(off[name] / off[other] - 1) for other in names if other != name]
    common, between = (round(float(np.quantile(each, LEVEL)), 4) for each in (times, ratios))
    return min(common, MOST), min(between, MOST)


def load_runs(path: str | os.PathLike[str]) -> tuple[str, list[Run]]:
    """Read measured runs from a file: a name, and per run its profile (a file), schedule (a name, or a
    file), microbatches (where the schedule is a name), ``iteration_ms`` (or _s, _us, _ns), and
    ``chained: yes`` where iterations chain.

    Raises:
        ProfileError: one line with the file, the run and the key.
    """
    where = Path(path)
    try:
        reader = Reader(read_mapping(path), "")
        name, rows = reader.take("name", where.stem), reader.take("runs", None)
        if not isinstance(name, str):
            raise reader.fail("name", f"expected a text, got {name!r}")
        if not isinstance(rows, list) or not rows:
            raise reader.fail(
                "runs", "expected a list of runs, each with profile, schedule and iteration_ms"
            )
        reader.finish("name, runs")
        return name, [_run(Reader(row, f"runs[{at}]"), where.parent) for at, row in enumerate(rows)]
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


def add_run(path: str | os.PathLike[str], row: Mapping[str, Any]) -> None:
    """Add a measured run to a file that `load_runs` reads, which is made where there is none; a run of
    the same schedule and profile is replaced.

    Raises:
        ProfileError: one line, for a file that holds anything but runs.
    """
    file = Path(path)
    data: Mapping[str, Any] = {}
    if file.is_file() and file.stat().st_size:
        data = read_mapping(path)
    name, rows = data.get("name", file.stem), data.get("runs", [])
    if not isinstance(rows, list) or set(data) - {"name", "runs"}:
        raise ProfileError(f"{path}: expected name and runs, a list of measured runs")
    same = ("profile", "schedule", "microbatches")
    kept = [
        old
        for old in rows
        if not isinstance(old, dict) or any(old.get(key) != row[key] for key in same)
    ]
    write_mapping(path, {"name": name, "runs": [*kept, dict(row)]})


def _run(reader: Reader, folder: Path) -> Run:
    told = {key: reader.take(key) for key in ("profile", "schedule")}
    for key, value in told.items():
        if not isinstance(value, str):
            raise reader.fail(
                key, f"expected a {'file' if key == 'profile' else 'name or file'}, got {value!r}"
            )
    microbatches, chained = reader.take("microbatches"), reader.take("chained", False)
    time = reader.amount("iteration", TIME_UNITS)
    if not time:
        raise reader.fail("iteration_ms", "expected the measured time of an iteration")
    if not isinstance(chained, bool):
        raise reader.fail("chained", f"expected yes or no, got {chained!r}")
    profile, file = load_profile(folder / told["profile"]), folder / told["schedule"]
    if file.is_file():
        schedule = load_schedule(str(file))
    elif isinstance(microbatches, int) and not isinstance(microbatches, bool):
        schedule = build(told["schedule"], profile, microbatches)
    else:
        raise reader.fail("microbatches", f"expected a whole number, got {microbatches!r}")
    reader.finish("profile, schedule, microbatches, iteration_ms, chained")
    run = Run(told["schedule"], float(time), chained, schedule, profile.for_shape(schedule.shape))
    ideal = predicted(run, Fit(span=False))
    if not 1 / FAR < time / ideal < FAR:
        likely = f"{format_time(time)}, where {format_time(ideal)} is replayed: is its unit right?"
        raise reader.fail("iteration", likely)
    return run
