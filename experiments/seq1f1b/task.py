"""Seq1F1B's runs, each predicted from all other published runs.

Runs of the same model, attention, stages, replicas and kernels are of one setup, whichever table has them.
Memory: a stage reserves b + (a * held + c) * sequence, three numbers of the setup: b does not grow with the
sequence, held is the peak of the replay on that device as a share of a microbatch's activations, and c is what slices
do not divide. The last stage has logits as well, (h + g / slices) * sequence, two numbers of all setups, as all have one
vocabulary. The fullest stage is the first or the last: with many slices the last, which always holds a whole sequence.
Time, by seven numbers of the setup, none below 0: with stages of which one is the busiest, as the last one is by its
logits, 1F1B takes the busiest's work on all microbatches, and the other stages' on one slice; a part of that may not
shrink with slices. Each turn of whole microbatches has an overhead. Cutting sequences at all makes work longer once, however many
slices there are; with softmax attention there is work of sequence ** 2 / slices as well in each turn, of which the replay of equal
stages has slices * microbatches + p - 1. Interleaved runs have an overhead for each further chunk of each slice; the other numbers are those of the setup's plain runs and theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from experiments.published import published
from optpipe_sim.errors import OptPipeError
from optpipe_sim.profile_io import load_profile
from optpipe_sim.schedules import build
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import Row

VERSION = 4
# a log shows 77.0 GiB reserved before its run ran out of memory; up to 76.3 GiB, runs went on
CAPACITY_GIB = 77.0
UNIT = 16384  # tokens that the fitted numbers are for
SETTLED = 8192  # tokens from which on the times of logs have settled


class Setup(NamedTuple):
    """What runs have in common whose costs are the same numbers."""

    model: str
    attention: str
    kernels: str
    pp: int
    dp: int


class Run(NamedTuple):
    """A published run.

    Attributes:
        table: of its cell; None for a log. sequence: tokens.
        gib: reserved on the fullest stage, or, of a log, on the first and the last one. None: not given.
        seconds: of an iteration; None: not given, or not settled. oom: it ran out of memory.
    """

    setup: Setup
    table: str | None
    sequence: int
    microbatches: int
    slices: int
    chunks: int = 1
    gib: tuple[float, ...] | None = None
    seconds: float | None = None
    oom: bool = False


class Memory(NamedTuple):
    """Fitted numbers: b, a and c of each setup; h and g of the last stage's logits."""

    stages: Mapping[Setup, np.ndarray]
    logits: np.ndarray


def run(table: str, sequence: int, microbatches: int, slices: int) -> Row:
    """Return a cell's prediction from the other published runs, and its measurement where there is one.

    Returns:
        GiB reserved on the first and the last stage, seconds per iteration, whether it runs out of memory; the
        same measured (None: not published). None where no run of the setup says how much memory, or time.

    Raises:
        OptPipeError: for a table that is not in the published data.
    """
    tables = {one.table: one for one in runs() if one.table}
    if table not in tables:
        known = ", ".join(tables)
        raise OptPipeError(f"table: {table!r} is none of the tables; known are {known}")
    setup, chunks = tables[table].setup, tables[table].chunks
    at = Run(setup, table, sequence, microbatches, slices, chunks)
    measured = next((one for one in runs() if one[:5] == at[:5]), None)
    others = [one for one in runs() if one is not measured]
    stages, time = reserved_gib(others, at), seconds(others, at)
    gib = measured.gib[0] if measured and measured.gib else None
    took = measured.seconds if measured else None
    return {
        "first_gib": stages and stages[0],
        "last_gib": stages and stages[1],
        "reserved_gib": stages and max(stages),
        "iteration_s": time,
        "out_of_memory": stages and max(stages) > CAPACITY_GIB,
        "measured_gib": gib,
        "measured_s": took,
        "measured_oom": measured and measured.oom,
        "memory_error": max(stages) / gib - 1 if stages and gib else None,
        "time_error": time / took - 1 if time and took else None,
    }


@cache
def runs() -> tuple[Run, ...]:
    """Return every published run: the tables' cells and the logs."""
    data, found = published("seq1f1b"), []
    for table in data["tables"]:
        for sequence, m, slices, *numbers in table["cells"]:
            oom = numbers[0] == "oom"
            rate, gib = (None, None) if oom else numbers
            took = None if rate is None else m * table["dp"] * sequence / (1000 * rate)
            known = None if gib is None else (gib,)
            at = (sequence, m, slices, table.get("chunks", 1))
            found.append(Run(_setup(table), table["id"], *at, known, took, oom))
    for log in data["logs"]:
        oom, at = "oom" in log, (log["seq"], log["m"], log["s"], 1)
        stages = None if oom else (log["reserved_gib"][0], log["reserved_gib"][-1])
        took = None if oom or log["seq"] < SETTLED else log["iteration_ms"] / 1000
        found.append(Run(_setup(log), None, *at, stages, took, oom))
    return tuple(found)


def _setup(data: Mapping[str, Any]) -> Setup:
    kernels = data.get("kernels", "plain")
    return Setup(data["model"], data["attention"], kernels, data["pp"], data["dp"])


class Replayed(NamedTuple):
    """Of the replay of equal slices: the first and the last device's peak, as shares of a microbatch's activations
    on all devices; the makespan in F + B of a slice."""

    held: tuple[float, float]
    turns: float


@cache
def replayed(p: int, microbatches: int, slices: int, chunks: int = 1) -> Replayed:
    """Replay Seq1F1B, interleaved where there are several chunks; with one slice, 1F1B."""
    stage = {"t_f_ns": 1, "t_b_ns": 2, "t_w_ns": 0, "act_bytes": 1}
    given = {"devices": p, "chunks": chunks, "slices": slices, "stages": stage}
    name, profile = ("seq1f1b-i" if chunks > 1 else "seq1f1b"), load_profile(given)
    trace = simulate(build(name, profile, microbatches), profile)
    first, last = (trace.peak_bytes[at] / (slices * chunks * p) for at in (0, -1))
    return Replayed((first, last), trace.makespan_ns / 3)


# -- memory ----------------------------------------------------------------------------------------


def reserved_gib(known: Sequence[Run], at: Run) -> tuple[float, float] | None:
    """Return what the first and the last stage reserve; None where no run of the setup is known."""
    fitted = memory_of(tuple(known))
    return _reserved(fitted, at) if at.setup in fitted.stages else None


@cache
def memory_of(known: tuple[Run, ...]) -> Memory:
    """Fit all setups at once, relative errors alike. A table says of the fullest stage alone: that is taken to be
    the first one, then the one that is fuller by the fit, until that has been tried."""
    ran = [one for one in known if one.gib]
    setups = sorted({one.setup for one in ran})
    # rows: a run, the stage (0: first, 1: last; None: the fullest), GiB
    rows = [
        (one, (at if len(stages) > 1 else None), gib)
        for one in ran
        for stages in [one.gib or ()]
        for at, gib in enumerate(stages)
    ]
    taken, tried = tuple(at or 0 for _, at, _ in rows), set[tuple[int, ...]]()
    while taken not in tried:
        tried.add(taken)
        matrix = np.zeros((len(rows), 3 * len(setups) + 2))
        for row, (one, _, gib), at in zip(matrix, rows, taken, strict=True):
            own = 3 * setups.index(one.setup)
            row[own : own + 3] = _stage(one, at)
            row[-2:] = _logits(one, at)
            row /= gib
        numbers = np.linalg.lstsq(matrix, np.ones(len(rows)))[0]
        stages = {setup: numbers[3 * at : 3 * at + 3] for at, setup in enumerate(setups)}
        fitted = Memory(stages, numbers[-2:])
        taken = tuple(
            int(np.argmax(_reserved(fitted, one))) if at is None else at for one, at, _ in rows
        )
    return fitted


def _reserved(fitted: Memory, at: Run) -> tuple[float, float]:
    first, last = (
        float(_stage(at, stage) @ fitted.stages[at.setup] + _logits(at, stage) @ fitted.logits)
        for stage in (0, 1)
    )
    return first, last


def _stage(at: Run, stage: int) -> np.ndarray:
    """Return what b, a and c of a setup are multiplied by."""
    tokens = at.sequence / UNIT
    held = replayed(at.setup.pp, at.microbatches, at.slices, at.chunks).held[stage]
    return np.array([1, held * tokens, tokens])


def _logits(at: Run, stage: int) -> np.ndarray:
    """Return what h and g are multiplied by."""
    return stage * at.sequence / UNIT * np.array([1, 1 / at.slices])


# -- time ------------------------------------------------------------------------------------------


def seconds(known: Sequence[Run], at: Run) -> float | None:
    """Return the time of an iteration; None where the time of no run of its setup is known."""
    own = [
        one for one in known if one.setup == at.setup and one.chunks <= at.chunks and one.seconds
    ]
    if not own:
        return None
    matrix = np.array([_parts(one) / one.seconds for one in own])
    numbers, _ = nnls(matrix, np.ones(len(own)))
    return float(_parts(at) @ numbers)


def _parts(at: Run) -> np.ndarray:
    """Return what the numbers of a setup's time are multiplied by."""
    tokens, others, m = at.sequence / UNIT, at.setup.pp - 1, at.microbatches
    turns = replayed(at.setup.pp, m, at.slices).turns
    quadratic, cut = at.setup.attention == "softmax", at.slices > 1
    filling = others * tokens / (at.slices * at.chunks)
    return np.array(
        [
            m * tokens,
            filling,
            others * tokens,
            m + others,
            cut * (m * tokens + filling),
            turns * tokens**2 / at.slices * quadratic,
            m * at.slices * (at.chunks - 1),
        ]
    )
