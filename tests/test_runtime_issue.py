"""What one host thread issues to the streams of a GPU: everything it waits for has been issued, and
memory is taken only where it has been given back, in the order of the host as on the streams."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from test_runtime_program import lowered_cases

from optpipe_sim import Schedule, build
from optpipe_sim.ops import BW, B, F, O, Op, R, W
from optpipe_sim.runtime.issue import issue_order
from optpipe_sim.runtime.program import Event, linear_programs
from optpipe_sim.sim.lower import lower


@given(lowered_cases())
def test_every_wait_points_backwards_and_nothing_is_left_out(lowered):
    for program in linear_programs(lowered):
        issues = issue_order(program)
        recorded: set[Event] = set()
        for issue in issues:
            assert recorded.issuperset(issue.waits), str(issue)
            recorded.update(issue.makes)
        steps = [step for step in program.steps if step.do not in ("turn", "pass")]
        assert sorted(map(str, steps)) == sorted(str(issue.step) for issue in issues)


@given(lowered_cases())
def test_streams_keep_the_order_of_the_program(lowered):
    """Moved are grants, and these not among each other where one may be granted before its O ends."""
    for program in linear_programs(lowered):
        order = [issue.step for issue in issue_order(program)]
        for engine, steps in program.by_engine().items():
            if engine != "grant":
                steps = [step for step in steps if step.do not in ("turn", "pass")]
                assert [step for step in order if step.engine == engine] == steps


@given(lowered_cases())
def test_memory_in_the_order_of_the_host_stays_within_the_limit(lowered):
    profile = lowered.profile
    for program in linear_programs(lowered):
        held = profile.static_bytes[program.rank]
        for issue in issue_order(program):
            do, op = issue.step.do, issue.step.op
            if do == "grant" or (do == "run" and op.kind is F):
                held += int(profile.allocated_bytes[op.kind, op.stage])
                if lowered.memory_limit is not None:
                    assert held <= lowered.memory_limit[program.rank], str(issue)
            elif do == "drop" or (do == "run" and op.kind in (B, W, BW)):
                held -= int(profile.released_bytes[op.kind, op.stage])
        assert held == profile.static_bytes[program.rank]


@given(lowered_cases(offload=True))
def test_no_stream_touches_memory_too_soon(lowered):
    """By what each stream has surely seen of the others, a copy starts after its F, memory is given
    back after the copy, a reload starts after its grant and a backward after the reload."""
    for program in linear_programs(lowered):
        seen: dict[str, set[Event]] = defaultdict(set)  # by stream: what has passed before its tail
        carried: dict[Event, set[Event]] = {}
        for issue in issue_order(program):
            here = seen[issue.stream]
            for event in issue.waits:
                here |= carried[event]
            key, do, op = issue.step.op[1:], issue.step.do, issue.step.op
            copied, back = Event("end", Op(O, *key)), Event("end", Op(R, *key))
            if do == "offload":
                assert Event("end", Op(F, *key)) in here
            elif do in ("drop", "grant", "reload"):
                assert copied in here
            elif (
                op.kind in (B, BW)
                and do == "run"
                and Op(R, *key) in lowered.schedule.programs[program.rank]
            ):
                assert back in here
            if do == "reload":
                assert Event("granted", op) in here
            here |= set(issue.makes)
            for event in issue.makes:
                carried[event] = set(here)


def test_a_grant_is_issued_before_its_anchor(unit):
    """So that the copy back runs beside the anchor, not after it."""
    profile = unit(3, offload={"t_offload_ms": 0.5, "t_reload_ms": 0.5})
    schedule = build("zb-h1", profile, 3)
    programs = [[*map(str, program)] for program in schedule.programs]
    programs[0].insert(1, "O0.0")
    programs[0].insert(programs[0].index("B0.0"), "R0.0")
    lowered = lower(Schedule(schedule.shape, programs), profile)
    issues = issue_order(linear_programs(lowered)[0])
    told = [str(issue) for issue in issues if issue.step.do not in ("post", "send", "recv")]
    assert told[:8] == [
        "compute: run F0.0",
        "offload: offload O0.0 after end of F0.0",
        "compute: run F0.1",
        "compute: drop O0.0 after end of O0.0",
        "compute: grant R0.0",
        "compute: run F0.2",
        "reload: reload R0.0 after granted of R0.0",
        "compute: run B0.0 after end of R0.0",
    ]
