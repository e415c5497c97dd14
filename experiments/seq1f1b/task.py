"""Seq1F1B's runs, predicted from the first two cells of their table.

Memory: reserved = b + a * sequence * held, where b does not grow with the sequence and held is the
peak of the replay on the first device, as a share of the model's activations. Time: F + B of
a stage for a slice are (t / slices + o) * sequence, where o is the overhead of cutting per slice; two
cells of the same sequence are taken where there are two, else those of the first one. That the overhead
grows with the sequence is what the tables' other cells say: a constant one is off by up to 15 %.
Attention is linear in these runs, so that all slices cost the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from optpipe_sim.costs.published import published
from optpipe_sim.errors import OptPipeError
from optpipe_sim.profile_io import load_profile
from optpipe_sim.schedules import build
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import Row

VERSION = 2
# of the 79.1 GiB of an A100 or H100 of 80 GB, less some 1.6 GiB for the CUDA context and NCCL
CAPACITY_GIB = 77.5
FORWARD = 1 / 3  # of F + B


Cell = tuple[int, int, int]  # sequence, microbatches, slices


class Fit(NamedTuple):
    """Two numbers, and the cells that they come from."""

    per_token: float
    other: float
    cells: tuple[Cell, Cell]


def run(table: str, sequence: int, microbatches: int, slices: int) -> Row:
    """Return a cell's prediction, and its measurement where there is one.

    Returns:
        GiB reserved on the fullest stage, seconds per iteration, whether it runs out of memory; the
        same measured (None: not published); ``memory_role`` and ``time_role``: ``fit`` or ``check``.

    Raises:
        OptPipeError: for a table that is not in the published data.
    """
    data, at = _table(table), (sequence, microbatches, slices)
    memory, speed = _memory(table), _speed(table, sequence)
    reserved = memory.other + memory.per_token * sequence * _held(data["pp"], microbatches, slices)
    per_slice = speed.other * sequence
    time = _time_ns(data["pp"], *at, speed.per_token, per_slice)
    measured = _cells(data).get(at)
    ran = measured is not None and measured[0] is not None
    gib, seconds = measured if measured is not None else (None, None)

    def role(fit: Fit) -> str | None:
        return None if measured is None else "fit" if at in fit.cells else "check"

    return {
        "memory_role": role(memory),
        "time_role": role(speed) if ran else None,
        "reserved_gib": reserved,
        "iteration_s": time / 1e9,
        "out_of_memory": reserved > CAPACITY_GIB,
        "measured_gib": gib,
        "measured_s": seconds,
        "measured_oom": None if measured is None else not ran,
        "memory_error": reserved / gib - 1 if gib else None,
        "time_error": time / 1e9 / seconds - 1 if seconds else None,
        "b_gib": memory.other,
        "ms_per_slice": per_slice / 1e6,
    }


def _table(name: str) -> Mapping[str, Any]:
    tables = published("seq1f1b")["tables"]
    found = next((one for one in tables if one["id"] == name), None)
    if found is None:
        known = ", ".join(one["id"] for one in tables)
        raise OptPipeError(f"table: {name!r} is none of the tables; known are {known}")
    return found  # type: ignore[no-any-return]


def _cells(table: Mapping[str, Any]) -> dict[Cell, tuple[float | None, float | None]]:
    """Reserved GiB and seconds of each published cell; None and None where it ran out of memory."""
    found: dict[Cell, tuple[float | None, float | None]] = {}
    for sequence, m, slices, *numbers in table["cells"]:
        if numbers[0] == "oom":
            found[sequence, m, slices] = (None, None)
        else:
            rate, reserved = numbers
            found[sequence, m, slices] = (reserved, m * table["dp"] * sequence / (1000 * rate))
    return found


def _ran(table: Mapping[str, Any]) -> dict[Cell, tuple[float, float]]:
    return {
        at: (gib, s) for at, (gib, s) in _cells(table).items() if gib is not None and s is not None
    }


@cache
def _memory(name: str) -> Fit:
    """From the first cell of a table and the next that holds another number of tokens."""
    table = _table(name)
    ran = _ran(table)
    held = {at: at[0] * _held(table["pp"], *at[1:]) for at in ran}
    first, *others = ran
    other = next(at for at in others if held[at] != held[first])
    rows = [[held[at], 1] for at in (first, other)]
    per_token, rest = np.linalg.solve(rows, [ran[at][0] for at in (first, other)])
    return Fit(float(per_token), float(rest), (first, other))


@cache
def _speed(name: str, sequence: int) -> Fit:
    """From the first two cells of a sequence with other slices, or else of the table."""
    table = _table(name)
    p, ran = table["pp"], _ran(table)
    own = [at for at in ran if at[0] == sequence]
    cells = own if len({at[2] for at in own}) > 1 else list(ran)
    first = cells[0]
    apart = next(at for at in cells if at[2] != first[2] and at[0] == first[0])
    # a time is linear in both numbers: its parts are the replays with one of them
    parts = [
        [_time_ns(p, *at, 1000, 0) / 1000, _time_ns(p, *at, 0, 1000 * at[0]) / 1000]
        for at in (first, apart)
    ]
    times = [ran[at][1] * 1e9 for at in (first, apart)]
    per_token, per_slice = np.linalg.solve(parts, times)
    return Fit(float(per_token), float(per_slice), (first, apart))


@cache
def _held(p: int, microbatches: int, slices: int) -> float:
    """The most that the first device holds, as a share of a microbatch's activations on all devices."""
    profile = load_profile(
        {"devices": p, "slices": slices, "stages": {"t_f_ns": 1, "t_b_ns": 2, "t_w_ns": 0, "act_bytes": 1}}
    )  # fmt: skip
    trace = simulate(build("seq1f1b", profile, microbatches), profile)
    return trace.peak_bytes[0] / (slices * p)


def _time_ns(
    p: int, sequence: int, microbatches: int, slices: int, per_token: float, per_slice: float
) -> float:
    """The replayed iteration for F + B of so many ns per token and slice."""
    whole = per_token * sequence / slices + per_slice
    forward = max(1, round(FORWARD * whole))
    stage = {
        "t_f_ns": forward,
        "t_b_ns": max(1, round(whole) - forward),
        "t_w_ns": 0,
        "act_bytes": 1,
    }
    profile = load_profile({"devices": p, "slices": slices, "stages": stage})
    return simulate(build("seq1f1b", profile, microbatches), profile).makespan_ns
