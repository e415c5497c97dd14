"""What one host thread issues to the streams of a GPU: everything it waits for has been issued, and
memory is taken only where it has been given back, in the order of the host as on the streams."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from lowered_cases import lowered_cases
from runtime_cases import GPT, plan_of, profile_of, started, with_offloads

from optpipe_sim import Schedule, build
from optpipe_sim.errors import RuntimeFault
from optpipe_sim.op_costs import op_costs
from optpipe_sim.ops import BW, B, C, F, O, Op, R
from optpipe_sim.runtime.execute import streams
from optpipe_sim.runtime.execute.rank_step import RankStep
from optpipe_sim.runtime.execute.record import measured_trace
from optpipe_sim.runtime.execute.transport import Loopback
from optpipe_sim.runtime.execute.unpipelined import make_contents, named_gradients, reference
from optpipe_sim.runtime.measure.memory import LiveBytes
from optpipe_sim.runtime.program.issue import issue_order
from optpipe_sim.runtime.program.program import Event, Prepared, linear_programs
from optpipe_sim.sim.lower import lower


@given(lowered_cases(levels=True))
def test_every_wait_points_backwards_and_nothing_is_left_out(lowered):
    for program in linear_programs(lowered):
        issues = issue_order(program)
        recorded: set[Event] = set()
        for issue in issues:
            assert recorded.issuperset(issue.waits), str(issue)
            recorded.update(issue.makes)
        steps = [step for step in program.steps if step.do not in ("turn", "pass")]
        assert sorted(map(str, steps)) == sorted(str(issue.step) for issue in issues)


@given(lowered_cases(levels=True))
def test_streams_keep_the_order_of_the_program(lowered):
    """Moved are grants, and these not among each other where one may be granted before its O ends."""
    for program in linear_programs(lowered):
        order = [issue.step for issue in issue_order(program)]
        for engine, steps in program.by_engine().items():
            if engine != "grant":
                steps = [step for step in steps if step.do not in ("turn", "pass")]
                assert [step for step in order if step.engine == engine] == steps


@given(lowered_cases(levels=True))
def test_memory_in_the_order_of_the_host_stays_within_the_limit(lowered):
    costs, static = op_costs(lowered.schedule, lowered.profile), lowered.profile.static_bytes
    for program in linear_programs(lowered):
        held = static[program.rank]
        for issue in issue_order(program):
            row = lowered.schedule.row(issue.step.op)
            if issue.step.do in ("grant", "run"):
                held += int(costs.allocated_bytes[row])
                if lowered.memory_limit is not None:
                    assert held <= lowered.memory_limit[program.rank], str(issue)
            if issue.step.do in ("drop", "run"):
                held -= int(costs.released_bytes[row])
        assert held == static[program.rank]


@given(lowered_cases(offload=True, levels=True))
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
                op.kind in (B, BW, C)
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
    lines = [str(issue) for issue in issues if issue.step.do not in ("post", "send", "recv")]
    assert lines[:8] == [
        "compute: run F0.0",
        "offload: offload O0.0 after end of F0.0",
        "compute: run F0.1",
        "compute: drop O0.0 after end of O0.0",
        "compute: grant R0.0",
        "compute: run F0.2",
        "reload: reload R0.0 after granted of R0.0",
        "compute: run B0.0 after end of R0.0",
    ]


# -- the host's part, on a device that does everything at once -------------------------------------


class Stream:
    """A stream whose work is over when it is issued."""

    def wait_event(self, event: Mark) -> None:
        assert event.at is not None, "an event that was not recorded"

    def synchronize(self) -> None:
        """It is over."""


class Mark:
    def __init__(self, enable_timing: bool = False) -> None:
        self.at: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        self.at = time.monotonic_ns()

    def query(self) -> bool:
        return self.at is not None

    def elapsed_time(self, later: Mark) -> float:
        assert self.at is not None
        assert later.at is not None
        return (later.at - self.at) / 1e6


@pytest.fixture
def quick_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of a GPU: the CPU, by the calls that a GPU would get."""
    stream = Stream()
    for name, stand_in in {
        "Stream": lambda device: Stream(),
        "Event": Mark,
        "current_device": lambda: 0,
        "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    streams.copy_stream.cache_clear()
    yield
    torch.set_num_threads(before)
    streams.copy_stream.cache_clear()


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "po-h"])
def test_the_order_of_issue_gives_the_gradients_and_the_memory(name: str, quick_device: None):
    base = build(name, profile_of(GPT, 2), 6)
    profile = profile_of(GPT, 2, base.shape.chunks).for_shape(base.shape)
    schedule = base if name == "po-h" else with_offloads(base)
    lowered = lower(schedule, profile, lower(schedule, profile).replay().peak_bytes)
    plan = plan_of(GPT, 2)

    contents = make_contents(plan, schedule, 0).messages
    _, expected = reference(plan, 6, 0)
    records = []
    for program in linear_programs(lowered):
        assert any(step.do == "grant" for step in program.steps) or program.rank or name == "1f1b"
        step = started(plan, lowered, Loopback(contents))[program.rank]
        own = step.worker
        with LiveBytes() as meter:
            own.allocated = meter.add
            record = streams.run_program(step, meter)
        own.finish_step()
        records.append(record)
        for parameter, gradient in named_gradients(own).items():
            assert torch.equal(gradient, expected[parameter]), parameter
        limit = lowered.memory_limit[program.rank]
        assert record.peak_bytes <= 1.05 * limit + (1 << 17)
    trace = measured_trace(lowered, records)
    assert trace.makespan_ns > 0


def test_a_device_that_hangs_is_noticed(quick_device: None, monkeypatch: pytest.MonkeyPatch):
    lowered = lower(build("1f1b", profile_of(GPT, 2), 4), profile_of(GPT, 2))
    plan = plan_of(GPT, 2)
    own = plan.rank_worker(lowered.schedule.shape, 0)
    own.start_step(*plan.step_batch(4, 0))
    anything = defaultdict(lambda: torch.zeros(plan.boundary[0]))
    monkeypatch.setattr(Mark, "query", lambda self: False)
    with pytest.raises(RuntimeFault, match=r"rank 0: F0\.0 has not ended within 0\.1 s"):
        streams.run_program(RankStep(own, 0, Prepared(lowered), Loopback(anything), timeout_s=0.1))
