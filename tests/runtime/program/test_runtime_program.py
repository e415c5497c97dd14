"""Linear programs: sound for every schedule, within the limit whatever the durations, and no single
step of them can go missing unnoticed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import assume, given
from lowered_cases import lowered_cases
from runtime_cases import GPT, plan_of
from soundness import check_programs, clocks, surely, without
from strategies import SEEDS
from unit_profiles import unit_profile

from optpipe_sim import Schedule, build
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.op_costs import op_costs
from optpipe_sim.ops import BW, COMPUTE, B, C, O, Op, R, W
from optpipe_sim.profile import Nvme
from optpipe_sim.runtime import PipelineStep, schedule_class
from optpipe_sim.runtime.confirm.case import Case
from optpipe_sim.runtime.confirm.confirm import confirm
from optpipe_sim.runtime.confirm.task import Task
from optpipe_sim.runtime.program.program import (
    Event,
    Program,
    Step,
    inputs_of,
    linear_programs,
    prepare,
)
from optpipe_sim.sim.lower import lower
from optpipe_sim.stage_cost import RecomputeLevel

Pair = tuple[Program, Step]
LEVELS = (RecomputeLevel("light", 1, 50), RecomputeLevel("full", 2, 10))


def changed(programs: tuple[Program, ...], rank: int, steps: list[Step]) -> tuple[Program, ...]:
    """The programs with other steps for one rank."""
    return tuple(replace(p, steps=tuple(steps)) if p.rank == rank else p for p in programs)


@given(lowered_cases(levels=True))
def test_programs_are_sound(lowered):
    programs = linear_programs(lowered)
    check_programs(programs, lowered.schedule)
    for program in programs:
        done = [s.op for s in program.steps if s.do in ("run", "offload", "reload")]
        assert done == list(lowered.schedule.programs[program.rank])


@given(lowered_cases())
def test_receives_are_posted_in_the_senders_order_one_compute_op_ahead(lowered):
    programs = linear_programs(lowered)
    inputs = inputs_of(lowered.schedule)
    for program in programs:
        runs = [s.op for s in program.steps if s.do == "run"]
        posted = defaultdict(list)
        at = 0
        for step in program.steps:
            at += step.do == "run"
            if step.do == "post":
                posted[step.peer].append((step.op, at))
        for other in programs:
            sent = [s.op for s in other.steps if s.do == "send" and s.peer == program.rank]
            assert [op for op, _ in posted[other.rank]] == sent
            for op, when in posted[other.rank]:
                # for one of the two compute ops that come next, or for what is sent before that
                wanted = [inputs.get(run) for run in runs[when : when + 2]]
                assert any(source in sent[sent.index(op) :] for source in wanted)


@given(lowered_cases(levels=True))
def test_memory_stays_within_the_limit_whatever_the_durations(lowered):
    """Memory is taken in one certain order; what counts as given back is what surely has been."""
    costs = op_costs(lowered.schedule, lowered.profile)
    for program in linear_programs(lowered):
        held = lowered.profile.static_bytes[program.rank]
        gives: dict[Event, int] = {}
        last: Event | None = None
        for step, clock, at in clocks(program):
            if step.do not in ("grant", "run", "drop"):
                continue
            row = lowered.schedule.row(step.op)
            if step.do == "grant" or (step.do == "run" and costs.asks[row]):
                assert last is None or surely(last, clock, at)
                last = Event("granted" if step.do == "grant" else "start", step.op)
                for event in [event for event in gives if surely(event, clock, at)]:
                    held -= gives.pop(event)
                held += int(costs.allocated_bytes[row])
                if lowered.memory_limit is not None:
                    assert held <= lowered.memory_limit[program.rank], (program.rank, str(step))
            if step.do in ("drop", "run"):
                point = "dropped" if step.do == "drop" else "end"
                gives[Event(point, step.op)] = int(costs.released_bytes[row])


@given(lowered_cases(offload=True, levels=True), SEEDS)
def test_no_step_can_go_missing(lowered, seed):
    programs = linear_programs(lowered)
    random = Random(seed)
    steps = [
        (program, step)
        for program in programs
        for step in program.steps
        if step.peer != program.rank  # a turn among the copies of one rank: just their order
    ]
    for do in sorted({step.do for _, step in steps}):
        program, step = random.choice([pair for pair in steps if pair[1].do == do])
        broken = changed(programs, program.rank, [s for s in program.steps if s is not step])
        with pytest.raises(InvalidSchedule, match=r"rank \d+.*\d+\.\d+"):
            check_programs(broken, lowered.schedule)


@given(lowered_cases(), SEEDS)
def test_swapped_sends_are_refused(lowered, seed):
    programs = linear_programs(lowered)
    choices = []
    for program in programs:
        sends = defaultdict(list)
        for at, step in enumerate(program.steps):
            if step.do == "send":
                sends[step.peer].append(at)
        choices += [(program, pair) for ats in sends.values() for pair in pairwise(ats)]
    assume(choices)
    program, (one, other) = Random(seed).choice(choices)
    steps = list(program.steps)
    steps[one], steps[other] = steps[other], steps[one]
    with pytest.raises(InvalidSchedule, match=rf"rank {program.rank}"):
        check_programs(changed(programs, program.rank, steps), lowered.schedule)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("F0.0 R0.0 O0.0 BW0.0", "rank 0: R0.0 is before O0.0 in the program"),
        ("O0.0 F0.0 R0.0 BW0.0", "rank 0: O0.0 is before F0.0 in the program"),
    ],
)
def test_what_waits_for_a_later_copy_replays_but_cannot_be_issued(program: str, said: str) -> None:
    profile = unit_profile(1, offload={"t_offload_ms": 1, "t_reload_ms": 1})
    lowered = lower(Schedule(profile.shape(1), [program.split()]), profile)
    assert lowered.replay().makespan_ns == 5_000_000  # F, O, R, and BW, which takes two
    with pytest.raises(InvalidSchedule, match=said):
        linear_programs(lowered)


BEFORE = {  # the step that one must not stand before
    "drop": lambda op: ("offload", op),
    "reload": lambda op: ("drop", Op(O, *op[1:])),
}


@given(lowered_cases(offload=True), SEEDS)
def test_steps_in_the_wrong_order_are_refused(lowered, seed):
    programs = linear_programs(lowered)
    random = Random(seed)
    steps = [(program, step) for program in programs for step in program.steps]
    for do, before in BEFORE.items():
        choices = [pair for pair in steps if pair[1].do == do]
        assume(choices)
        program, step = random.choice(choices)
        first = next(n for n, s in enumerate(program.steps) if (s.do, s.op) == before(step.op))
        moved = [s for s in program.steps if s is not step]
        moved.insert(first, step)
        with pytest.raises(InvalidSchedule, match=rf"rank {program.rank}.*\d+\.{step.op[2]}"):
            check_programs(changed(programs, program.rank, moved), lowered.schedule)


@given(lowered_cases(offload=True, levels=True), SEEDS)
def test_what_does_not_wait_for_its_reload_is_refused(lowered, seed):
    programs = linear_programs(lowered)
    choices = [
        (program, step)
        for program in programs
        for step in program.steps
        if step.op.kind in (B, BW, C) and Event("end", Op(R, *step.op[1:])) in step.after
    ]
    assume(choices)
    program, step = Random(seed).choice(choices)
    back = Op(R, *step.op[1:])

    coming = [s for s in program.steps if s.op == back and s.do in ("grant", "reload")]
    others = [s for s in program.steps if s not in coming]
    at = others.index(step) + 1
    late = changed(programs, program.rank, others[:at] + coming + others[at:])
    with pytest.raises(InvalidSchedule, match=rf"rank {program.rank}: run .* {back}"):
        check_programs(late, lowered.schedule)
    # in the right place, but nothing says that it has to wait: the copy may be late
    hasty = replace(step, after=tuple(event for event in step.after if event.op != back))
    steps = [hasty if s is step else s for s in program.steps]
    wrong = changed(programs, program.rank, steps)
    state = next((clock, at) for s, clock, at in clocks(wrong[program.rank]) if s is hasty)
    if surely(Event("end", back), *state):  # a later copy was waited for already
        check_programs(wrong, lowered.schedule)
        return
    with pytest.raises(InvalidSchedule, match=rf"run {step.op}: .* wait for the end of {back}"):
        check_programs(wrong, lowered.schedule)


@given(lowered_cases(levels=True), SEEDS)
def test_a_recomputation_that_comes_too_late_or_too_early_is_refused(lowered, seed):
    programs = linear_programs(lowered)
    choices = [(p, step) for p in programs for step in p.steps if step.op.kind is C]
    assume(choices)
    program, step = Random(seed).choice(choices)
    key = step.op[1:]
    others = [s for s in program.steps if s is not step]
    first = next(n for n, s in enumerate(others) if s.op[1:] == key and s.do == "run")
    last = next(n for n, s in enumerate(others) if s.op[1:] == key and s.op.kind in (B, BW))
    for at in (first, last + 1):
        moved = changed(programs, program.rank, [*others[:at], step, *others[at:]])
        # it, its backward, or a grant that it is the anchor of
        with pytest.raises(InvalidSchedule, match=rf"rank {program.rank}: .*{step.op}"):
            check_programs(moved, lowered.schedule)


def test_levels_are_listed_by_stage_and_microbatch(unit):
    schedule = build("1f1b", unit(2), 2)
    levels = {"1": "full", "1.1": "light"}
    profile = replace(unit(2), stages=tuple(replace(c, recompute=LEVELS) for c in unit(2).stages))
    lowered = lower(schedule.replace(recompute=levels), profile)
    found = [program.levels for program in linear_programs(lowered)]
    assert found == [{}, {(1, 0): "full", (1, 1): "light"}]


def test_steps_in_words(unit):
    profile = unit(2, offload={"t_offload_ms": 1, "t_reload_ms": 1})
    schedule = build("zb-h1", profile, 2)
    first, second = ([*map(str, program)] for program in schedule.programs)
    first.insert(1, "O0.0")
    first.insert(first.index("B0.0"), "R0.0")
    lowered = lower(Schedule(schedule.shape, [first, second]), profile)
    programs = linear_programs(lowered)
    assert [str(step) for step in programs[0].steps[:6]] == [
        "run F0.0",
        "send F0.0 to rank 1",
        "offload O0.0 after end of F0.0",
        "post B1.0 from rank 1",
        "run F0.1",
        "send F0.1 to rank 1",
    ]
    assert [str(step) for step in programs[0].steps if step.op.kind not in COMPUTE][1:] == [
        "grant R0.0 after start of F0.1",  # while its O still runs
        "drop O0.0 after end of O0.0",
        "reload R0.0 after granted of R0.0, dropped of O0.0",
    ]
    assert [str(s) for s in programs[1].steps if s.do == "post"] == [
        "post F0.0 from rank 0",
        "post F0.1 from rank 0",
    ]
    assert set(programs[1].by_engine()) == {"compute"}


def test_what_a_program_does_twice_or_elsewhere_is_refused(unit):
    schedule = build("1f1b", unit(2), 2)
    programs = linear_programs(lower(schedule, unit(2)))
    first = list(programs[0].steps)
    run = next(step for step in first if step.do == "run")
    with pytest.raises(InvalidSchedule, match=r"rank 0: run F0\.0: it is done twice"):
        check_programs(changed(programs, 0, [*first, run]), schedule)
    foreign = replace(run, op=Op(W, 1, 0))
    with pytest.raises(InvalidSchedule, match=r"rank 0: run W1\.0: it does not belong here"):
        check_programs(changed(programs, 0, [*first, foreign]), schedule)


def test_ranks_that_wait_for_each_other_are_refused(unit):
    schedule = build("1f1b", unit(2), 1)
    programs = linear_programs(lower(schedule, unit(2)))
    steps = list(programs[0].steps)
    send = next(step for step in steps if step.do == "send")
    steps.remove(send)  # sent only after the B that waits for what becomes of it
    with pytest.raises(InvalidSchedule, match=r"rank [01] would wait for ever at: recv"):
        check_programs(changed(programs, 0, [*steps, send]), schedule)


def test_a_step_can_be_left_out_by_name(unit):
    schedule = build("1f1b", unit(2), 1)
    program = linear_programs(lower(schedule, unit(2)))[0]
    less = without(program, "send", Op(schedule.programs[0][0].kind, 0, 0))
    assert [s for s in program.steps if s not in less.steps] == [
        s for s in program.steps if s.do == "send"
    ]


def test_offloads_to_drives_are_refused_before_anything_runs(unit):
    """The runtime has host memory only; what goes nowhere may run, and ops that sleep take the drives' time."""
    plain = unit(2, offload={"t_offload_ms": 1, "t_reload_ms": 1})
    drives = replace(plain, offload=replace(plain.offload, nvme=Nvme(10**9, 10**9)))
    schedule = build("po-h", plain, 4)
    plan = plan_of(GPT, 2)
    for runs in (
        lambda: prepare(schedule, drives),
        lambda: Task(Case(schedule, drives, plan=plan), "gradient"),
        lambda: confirm(Case(schedule, drives, plan=plan), "replay"),
        lambda: confirm(Case(schedule, drives, plan=plan), "loop"),
        lambda: schedule_class(schedule, drives),
        lambda: PipelineStep([torch.nn.Identity()] * 4, schedule, torch.sum, profile=drives),
    ):
        with pytest.raises(
            OptPipeError, match=r"^profile unit: offload.nvme: .* to host memory only"
        ) as refused:
            runs()
        assert "\n" not in str(refused.value)
    assert prepare(build("1f1b", plain, 4), drives).programs
    assert prepare(schedule, plain).programs
    assert Task(Case(schedule, drives)).mode == "synthetic"
