"""Megatron-LM's logs: timers, memory lines and arguments of a run, as a profile of its stages.

Timers of one iteration are summed over its microbatches (``--timing-log-level 2``); with
``--timing-log-option all`` there is one per rank, else only that of the slowest rank, which is then
used for all.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from ...errors import OptPipeError
from ...files import read_text
from ...profile import CostProfile
from ...stage_cost import StageCost

MIB = 2**20  # what Megatron-LM calls MB
_ARGUMENT = re.compile(r"^\s*([a-z]\w+) \.{3,} (\S+)\s*$")
_ITERATION = re.compile(r"iteration\s+(\d+)/.*elapsed time per iteration \(ms\): ([\d.]+)")
_RANGE = re.compile(r"^\s*([a-z][\w-]+) \.*:\s*\(([\d.]+), ([\d.]+)\)\s*$")
_SLOWEST = re.compile(r"^\s*([a-z][\w-]+) \.*:\s*([\d.]+)\s*$")
_TIMER = re.compile(r"^\s*([a-z][\w-]+):\s*$")
_OF_RANK = re.compile(r"^\s*rank\s+(\d+): ([\d.]+)\s*$")
_MEMORY = re.compile(
    r"\[Rank (\d+)\].*memory \(MB\) \| allocated: ([\d.]+) \| max allocated: ([\d.]+)"
)
_WANTED = ("forward-compute", "backward-compute")


@dataclass
class Log:
    """The contents of a log.

    Attributes:
        arguments: the arguments of the run, by name, as written. `iterations_ms`: the time of each
            iteration.
        timers: by name and rank (-1: the slowest), ms in each logged iteration.
        memory: by rank, the bytes allocated after an iteration, and the peak in it.
    """

    arguments: dict[str, str] = field(default_factory=dict)
    iterations_ms: list[float] = field(default_factory=list)
    timers: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    memory: dict[int, tuple[int, int]] = field(default_factory=dict)

    def number(self, name: str, usual: int) -> int:
        """Return an argument as a whole number."""
        text = self.arguments.get(name, "")
        return int(text) if text.isdecimal() else usual


@dataclass(frozen=True)
class LogProfile:
    """A profile from a log: the number of microbatches, the median time of an iteration, and a
    sentence for each part that is not in the log."""

    profile: CostProfile
    microbatches: int
    iteration_ns: int | None
    unread: tuple[str, ...]


def parse_log(text: str) -> Log:
    """Parse the arguments, timers and memory lines of a log."""
    log = Log()
    timer = ""
    for line in text.splitlines():
        if found := _ARGUMENT.match(line):
            log.arguments[found[1]] = found[2]
        elif found := _ITERATION.search(line):
            log.iterations_ms.append(float(found[2]))
        elif found := _MEMORY.search(line):
            log.memory[int(found[1])] = (round(float(found[2]) * MIB), round(float(found[3]) * MIB))
        elif found := _RANGE.match(line):
            log.timers[found[1], -1].append(float(found[3]))
        elif found := _OF_RANK.match(line):
            if timer:
                log.timers[timer, int(found[1])].append(float(found[2]))
        elif found := _TIMER.match(line):
            timer = found[1]
        elif found := _SLOWEST.match(line):
            log.timers[found[1], -1].append(float(found[2]))
    return log


def read_log(path: str | os.PathLike[str], name: str = "megatron-log") -> LogProfile:
    """Read the profile of a run from its log.

    Raises:
        OptPipeError: names the file and what is missing in it.
    """
    log = parse_log(read_text(path))
    missing = [one for one in _WANTED if not any(timer == one for timer, _ in log.timers)]
    if missing:
        raise OptPipeError(
            f"{path}: no timer {missing[0]}; a run logs it with --timing-log-level 2 (and, for each"
            " rank, --timing-log-option all)"
        )
    p = log.number("pipeline_model_parallel_size", 0)
    if p < 1:
        raise OptPipeError(
            f"{path}: no argument pipeline_model_parallel_size; expected the arguments that"
            " Megatron-LM prints when it starts"
        )
    v = log.number("virtual_pipeline_model_parallel_size", 1)
    m = _microbatches(log, path)
    # one rank per pipeline rank: the first of its tensor and data parallel group
    step = max(1, log.number("world_size", p) // p)
    costs = [_stage(log, rank * step, m * v) for rank in range(p)]
    counts = _in_flight(p, v, m)
    stages = [
        _with_memory(costs[stage % p], log, stage % p, step, v, counts[stage % p], stage < p)
        for stage in range(p * v)
    ]
    taken = log.iterations_ms[1:] or log.iterations_ms
    profile = CostProfile(name, p, tuple(stages), v, meta=_meta(log, str(path)))
    return LogProfile(
        profile,
        m,
        round(median(taken) * 1e6) if taken else None,
        tuple(_unread(log, p, step)),
    )


def _microbatches(log: Log, path: str | os.PathLike[str]) -> int:
    sizes = [log.number(key, 0) for key in ("global_batch_size", "micro_batch_size")]
    if min(sizes) < 1:
        raise OptPipeError(f"{path}: no arguments global_batch_size and micro_batch_size")
    each = sizes[1] * log.number("data_parallel_size", 1)
    if sizes[0] % each:
        raise OptPipeError(f"{path}: global_batch_size {sizes[0]} is not a multiple of {each}")
    return sizes[0] // each


def _stage(log: Log, rank: int, calls: int) -> StageCost:
    """Return the times of one chunk of a rank, without the first logged iteration, which warms up."""
    times = {}
    for timer in _WANTED:
        seen = log.timers.get((timer, rank)) or log.timers.get((timer, -1))
        seen = seen or next(values for (name, _), values in log.timers.items() if name == timer)
        times[timer] = max(1, round(median(seen[1:] or seen) * 1e6 / calls))
    return StageCost(times["forward-compute"], times["backward-compute"], 0, splits=False)


def _in_flight(p: int, v: int, m: int) -> list[int]:
    """Return how many activations of one chunk each rank holds at its peak, by Megatron-LM's warm-up."""
    if v == 1:
        return [min(p - rank, m) for rank in range(p)]
    return [min(2 * (p - rank - 1) + (v - 1) * p + 1, m * v) for rank in range(p)]


def _with_memory(
    cost: StageCost, log: Log, rank: int, step: int, v: int, count: int, first: bool
) -> StageCost:
    known = log.memory.get(rank * step)
    if known is None:
        return cost
    allocated, most = known
    return replace(
        cost,
        act_bytes=max(0, most - allocated) // count,
        offload_bytes=None,
        static_bytes=allocated if first else 0,
    )


def _meta(log: Log, path: str) -> dict[str, Any]:
    layers = log.number("num_layers", 0)
    return {
        "source": f"optpipe-sim import: the log {path}",
        **({"model": {"layers": layers}} if layers else {}),
        "provenance": {
            "t_f, t_b": "measured: Megatron-LM's timers over the microbatches",
            "act": "derived: peak less what is allocated between iterations, over the activations in"
            " flight",
            "static": "measured: allocated between iterations",
        },
    }


def _unread(log: Log, p: int, step: int) -> list[str]:
    notes = [
        "t_comm: not in a log; messages take no time here",
        "w: backwards are fused in Megatron-LM",
    ]
    if not any((timer, rank * step) in log.timers for timer in _WANTED for rank in range(1, p)):
        notes.append(
            "times of each rank: those of the slowest rank are used for all (--timing-log-option all logs each)"
        )
    silent = [rank for rank in range(p) if rank * step not in log.memory]
    if silent:
        ranks = ", ".join(map(str, silent))
        notes.append(
            f"memory of pipeline ranks {ranks}: no line (--log-memory-to-tensorboard is none)"
        )
    if log.arguments.get("recompute_granularity", "None") != "None":
        notes.append("recomputation: it is part of the backwards' times and of what is kept")
    return notes
