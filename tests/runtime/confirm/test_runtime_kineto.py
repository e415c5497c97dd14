"""What torch's profiler records of our runs, imported: ops, times, idle times, and a replay of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from slow_stages import paced

from optpipe_sim import Trace, build
from optpipe_sim.costs.models import Model
from optpipe_sim.frameworks.imports.idle import idle_of_run
from optpipe_sim.frameworks.imports.kineto import read_kineto
from optpipe_sim.frameworks.imports.measured import Measured, read_run
from optpipe_sim.runtime.confirm.case import Case
from optpipe_sim.runtime.confirm.task import Task
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.runtime.execute.record import measured_trace
from optpipe_sim.runtime.measure.fake import fake_profile
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.sim.lower import lower

MODEL = Model("tiny", 4, 32, 4, 50, kv_heads=2, ffn=48, tied=True)


def run_of(
    name: str, microbatches: int, ranks: Ranks, count: int, folder: Path
) -> tuple[Trace, Measured]:
    """One iteration, whose ops sleep: as its ranks recorded it, and as it is read from its traces."""
    profile = paced(fake_profile(Plan(MODEL, count, seq=16, microbatch=2), "h100-sxm"))
    schedule = build(name, profile, microbatches)
    results = ranks.run(Task(Case(schedule, profile, kineto=str(folder))))
    own = measured_trace(lower(schedule, profile), [one.records[0] for one in results])
    first = int(own.start_ns.min())
    found = read_run([read_kineto(folder / f"rank{rank}.json") for rank in range(count)])
    own = replace(
        own, profile=found.trace.profile, start_ns=own.start_ns - first, end_ns=own.end_ns - first
    )
    return own, found


def idle_apart(own: Trace, found: Trace) -> float:
    """The largest difference of an idle time, over the time of the iteration."""
    pairs = zip(idle_of_run(own), idle_of_run(found), strict=True)
    apart = [abs(idle - theirs[cause]) for ours, theirs in pairs for cause, idle in ours.items()]
    return max(apart) / own.makespan_ns


def test_ops_and_times_are_those_of_the_ranks_records(two: Ranks, tmp_path: Path) -> None:
    own, run = run_of("zb-h1", 4, two, 2, tmp_path)
    found = run.trace
    assert found.schedule.programs == own.schedule.programs
    # a range begins and ends within what the record says; the host takes little in between
    slack = 0.1 * own.makespan_ns
    assert np.abs(own.start_ns - found.start_ns).max() < slack
    assert np.abs(own.end_ns - found.end_ns).max() < slack
    assert idle_apart(own, found) < 0.1


@pytest.mark.timing
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_a_trace_of_four_ranks_replays_within_three_percent(
    name: str, four: Ranks, tmp_path: Path
) -> None:
    """Their ops sleep, so that four ranks need no four cores; the best of three counts, as noise adds up."""
    for _ in range(3):
        own, run = run_of(name, 8, four, 4, tmp_path)
        off = run.replay.makespan_ns / run.mean_ns - 1
        apart = idle_apart(own, run.trace)
        if abs(off) < 0.03 and apart < 0.03:
            return
    pytest.fail(f"replay {off:+.1%} off, idle times up to {apart:.1%}")
