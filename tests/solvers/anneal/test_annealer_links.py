"""The compiled evaluation where links are shared: the replay's times to the tick, and their causes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import limits, profiles, schedules

from optpipe_sim import Schedule, load_profile, simulate
from optpipe_sim.errors import Deadlock
from optpipe_sim.ops import BW, TRANSFERS, B, OpKind
from optpipe_sim.sim.replay import run_events
from optpipe_sim.solvers.anneal.annealer import Workspace, shares_links
from optpipe_sim.solvers.anneal.loop import critical
from optpipe_sim.solvers.anneal.offloading import offload_everything
from optpipe_sim.solvers.anneal.plans import pack, unpack
from optpipe_sim.solvers.anneal.times import NEVER
from optpipe_sim.solvers.problem import Problem, make_problem


@st.composite
def linked(draw: st.DrawFn) -> tuple[Problem, Schedule]:
    """A problem whose transfers share links, and a schedule of its shape; limits
    from none to scarce, zeros and ties of all kinds."""
    profile = replace(draw(profiles(offload=True)), memory_limit=None)
    assert profile.offload is not None
    offload = replace(profile.offload, host_limit_bytes=None)
    if profile.devices == 1:
        offload = replace(offload, copy_engines="separate", host_link="single")
    elif not any(len(group) > 1 for group in offload.host_link_groups):
        offload = replace(offload, host_link_groups=(tuple(range(profile.devices)),))
    profile = replace(profile, offload=offload)
    schedule = draw(schedules(profile, linked=False))
    peaks = simulate(schedule, profile, enforce=False).peak_bytes
    limit = draw(limits(profile, peaks))
    if draw(st.booleans()):  # ample, and yet limits: without any, transfers would be left out
        limit = tuple(max(peak, some) for peak, some in zip(peaks, limit, strict=True))
    problem = Problem(profile, schedule.shape.microbatches, limit)
    return problem, unpack(problem, pack(problem, schedule))


@given(linked())
def test_times_are_those_of_the_replay_event_by_event(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    assert shares_links(problem)
    assert problem.host_limit is None
    work = Workspace(problem)
    makespan, span, total = work.evaluate(pack(problem, schedule))
    try:
        start, end, _ = run_events(schedule, problem.profile, problem.limits)[:3]
    except Deadlock:
        assert makespan >= NEVER
        return
    codes = _codes(schedule, problem)
    assert work.times.end[codes].tolist() == end.tolist()
    assert makespan == end.max()
    compute = schedule.table[:, 0] < OpKind.O
    assert total == end[compute].sum()
    spans = [
        int(end[rows].max() - start[rows].min())
        for device in range(problem.profile.devices)
        if len(rows := np.flatnonzero(compute & (schedule.devices == device)))
    ]
    assert span == max(spans)
    _check_causes(work, problem, schedule, dict(zip(codes.tolist(), start.tolist(), strict=True)))


def _check_causes(
    work: Workspace, problem: Problem, schedule: Schedule, start: dict[int, int]
) -> None:
    """Every op starts as its cause ends, or starts, or as its message arrives; the first at 0."""
    latency = problem.profile.t_comm_ns
    low, high = work.costs.low, work.costs.high
    for code in start:
        cause = int(work.times.cause[code])
        if cause < 0:
            assert start[code] == 0
            continue
        end = int(work.times.end[cause])
        message = (
            cause >> high == code >> high < OpKind.O
            and problem.profile.placement[cause >> low & (1 << high - low) - 1]
            != problem.profile.placement[code >> low & (1 << high - low) - 1]
            and abs(cause - code) == 1 << low
        )
        if message:
            late = start[code] - end - latency
            assert late >= 0 if problem.profile.links == "serial" else late == 0
        else:
            assert start[code] in (end, start[cause])


def _codes(schedule: Schedule, problem: Problem) -> np.ndarray:
    costs = Workspace(problem).costs
    low, high = costs.low, costs.high
    kinds, stages, microbatches = schedule.table.T.astype(np.int64)
    return np.where(kinds == BW, B, kinds) << high | stages << low | microbatches


def test_the_critical_path_goes_over_the_link_that_holds_things_up() -> None:
    """Two devices share a link that is busy all the time, and so is what everything waits for."""
    stages = {"t_f_ns": 10, "t_b_ns": 10, "t_w_ns": 10, "act_bytes": 10}
    copies = {"t_offload_ns": 40, "t_reload_ns": 40, "host_link": "single"}
    offload = {**copies, "host_link_groups": [[0, 1]]}
    profile = load_profile({"devices": 2, "stages": stages, "offload": offload})
    problem = make_problem(profile, 6, 20)
    plan = pack(problem, offload_everything(problem, 2))
    work = Workspace(problem)
    makespan = work.evaluate(plan)[0]
    high = work.costs.high
    path = np.zeros(100, np.int64)
    size = critical(plan, work.costs, work.times, path)
    kinds = [OpKind(code >> high) for code in path[:size].tolist()]
    transfers = [kind for kind in kinds if kind in TRANSFERS]
    assert 40 * len(transfers) > 0.8 * makespan
    assert kinds[-1] == OpKind.F  # back to the first op of all
