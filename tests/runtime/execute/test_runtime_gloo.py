"""Schedules run over gloo: gradients of one process, memory as predicted, faults that end at once."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runtime_cases as cases
import torch
from own_job import OwnJob, assert_as_unpipelined
from runtime_cases import (
    EXPERTS,
    GPT,
    RESIDUAL,
    TIED,
    assert_equal,
    plan_of,
    profile_of,
    with_levels,
    with_offloads,
)
from soundness import check_programs, without
from torch import Tensor

from optpipe_sim import build
from optpipe_sim.costs.models import Model
from optpipe_sim.errors import InvalidSchedule, OptPipeError, RuntimeFault
from optpipe_sim.ops import BW, O, W
from optpipe_sim.processes.signals import is_running
from optpipe_sim.profile import Offload
from optpipe_sim.runtime.confirm.case import Case
from optpipe_sim.runtime.confirm.task import Result, Task
from optpipe_sim.runtime.execute import launch
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.runtime.execute.record import measured_trace
from optpipe_sim.runtime.execute.unpipelined import reference
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.program.program import linear_programs
from optpipe_sim.schedules import REGISTRY
from optpipe_sim.sim.lower import Lowered, lower

OWN_OFFLOADS = ("adaoffload", "kimi-k2", "po", "po-h", "po-f")
NEAR = 1.05
SLACK_BYTES = 1 << 17  # messages


def gradient_task(lowered: Lowered, plan: Plan | cases.OwnStages) -> Task:
    case = Case(lowered.schedule, lowered.profile, lowered.memory_limit, plan)  # type: ignore[arg-type]
    return Task(case, "gradient")


def run(
    ranks: Ranks, lowered: Lowered, model: Model | cases.OwnStages
) -> tuple[list[Result], dict[str, Tensor]]:
    """Results, and the gradients of all ranks by name."""
    plan = model if isinstance(model, cases.OwnStages) else plan_of(model, ranks.count)
    results = ranks.run(gradient_task(lowered, plan))
    return results, {name: grad for r in results for name, grad in r.gradients.items()}


def peaks(lowered: Lowered, results: list[Result]) -> list[tuple[int, int, int]]:
    """Per rank, the most that was held between ops; what the model says for just these moments, by
    the times measured; and what was predicted."""
    trace = measured_trace(lowered, [result.records[0] for result in results])
    found = []
    for result, steps, said in zip(results, trace.memory, lowered.replay().peak_bytes, strict=True):
        record = result.records[0]
        at = np.searchsorted(steps.times_ns, [time_ns for time_ns, _ in record.held], "right") - 1
        found.append((record.peak_bytes, int(steps.bytes[np.maximum(at, 0)].max()), said))
    return found


def near(lowered: Lowered, results: list[Result]) -> bool:
    """Never above the prediction; and where the model has it, with the times that it took."""
    return all(
        held <= NEAR * said + SLACK_BYTES
        and abs(held - by_times) <= (NEAR - 1) * by_times + SLACK_BYTES
        for held, by_times, said in peaks(lowered, results)
    )


def variants(name: str, p: int) -> Iterator[tuple[str, Lowered]]:
    """A named schedule as it is, and with offloads, under the least limit that changes nothing."""
    base = profile_of(GPT, p)
    options = {"limit": 3 * base.stages[0].act_bytes // 2} if name == "adaoffload" else {}
    schedule = build(name, base, 2 * p, **options)
    profile = profile_of(GPT, p, schedule.shape.chunks).for_shape(schedule.shape)
    plain = lower(schedule, profile, options.get("limit"))
    if name in OWN_OFFLOADS:
        assert any(op.kind is O for program in plain.schedule.programs for op in program), name
        yield name, lower(schedule, profile, plain.replay().peak_bytes)
        return
    yield name, plain
    offloaded = with_offloads(schedule)
    if any(op.kind is O for program in offloaded.programs for op in program):
        peaks = lower(offloaded, profile).replay().peak_bytes
        yield f"{name} with offloads", lower(offloaded, profile, peaks)


LIKE_OTHERS = {
    "adapipe",
    "mario",
    "megatron-partial",
    "adaoffload-r",
}  # without levels: 1F1B and AdaOffload


@pytest.mark.parametrize("p", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_schedule_gives_the_gradients_of_one_process(p: int, request: pytest.FixtureRequest):
    """Bitwise, in fp32: each stage has its W's (or BW's) in the order of the microbatches."""
    ranks = request.getfixturevalue({2: "two", 4: "four"}[p])
    loss, expected = reference(plan_of(GPT, p), 2 * p, 0)
    ran = 0
    for name in REGISTRY.keys() - (LIKE_OTHERS if p > 2 else set()):
        for why, lowered in variants(name, p):
            for program in lowered.schedule.programs:
                for stage in {op.stage for op in program}:
                    order = [
                        o.microbatch for o in program if o.kind in (W, BW) and o.stage == stage
                    ]
                    assert order == sorted(order), why
            results, gradients = run(ranks, lowered, GPT)
            assert_equal(gradients, expected, why)
            assert [r.records[0].loss for r in results if r.records[0].loss is not None] == [loss]
            tries = 0
            while not near(lowered, results):
                # a thread may stop between a copy's end and its drop: weighed in there, once
                tries += 1
                assert tries < 4, (why, peaks(lowered, results))
                results, _ = run(ranks, lowered, GPT)
            ran += 1
    assert ran >= 1.5 * len(REGISTRY)


def test_a_schedule_found_under_a_limit(two: Ranks):
    profile = profile_of(GPT, 2)
    limit = 5 * profile.stages[0].act_bytes // 4
    schedule = build("optpipe", profile, 4, limit=limit, time=1, workers=1, chunks="own")
    assert any(op.kind is O for program in schedule.programs for op in program)
    lowered = lower(schedule, profile, limit)
    results, gradients = run(two, lowered, GPT)
    _, expected = reference(plan_of(GPT, 2), 4, 0)
    for name in expected:
        torch.testing.assert_close(gradients[name], expected[name], rtol=1e-5, atol=1e-7)
    assert near(lowered, results) or near(lowered, run(two, lowered, GPT)[0])


@pytest.mark.parametrize("apart", [False, True], ids=["inside", "apart"])
def test_recomputation_gives_the_gradients_and_holds_what_was_predicted(two: Ranks, apart: bool):
    levels = ("norms+mlp", "full", "stage")
    profile = profile_of(GPT, 2, levels=levels)
    base = with_offloads(build("zb-h1", profile, 6))
    schedule = with_levels(base, levels, apart=apart)
    lowered = lower(schedule, profile, lower(schedule, profile).replay().peak_bytes)
    results, gradients = run(two, lowered, GPT)
    _, expected = reference(plan_of(GPT, 2), 6, 0)
    assert_equal(gradients, expected)
    assert near(lowered, results) or near(lowered, run(two, lowered, GPT)[0])


@pytest.mark.parametrize("host_link", ["per_direction", "single"])
@pytest.mark.parametrize("copy_engines", ["separate", "shared"])
def test_ranks_on_one_host_link_take_turns(two: Ranks, copy_engines: str, host_link: str):
    offload = Offload(copy_engines=copy_engines, host_link=host_link, host_link_groups=((0, 1),))
    profile = profile_of(GPT, 2, 2, offload)
    base = build("zb-v", profile, 4)
    profile = profile.for_shape(base.shape)
    schedule = with_offloads(base)
    lowered = lower(schedule, profile, lower(schedule, profile).replay().peak_bytes)
    assert any(step.do == "turn" for p in linear_programs(lowered) for step in p.steps)
    results, gradients = run(two, lowered, GPT)
    _, expected = reference(plan_of(GPT, 2), 4, 0)
    assert_equal(gradients, expected)
    times = {op: when for result in results for op, when in result.records[0].times_ns.items()}
    for order in lowered.schedule.link_order.values():
        for before, after in pairwise(order):
            assert times[before][1] <= times[after][0], (before, after)


def test_a_tied_head_gets_the_sum_of_both_ends(two: Ranks):
    lowered = lower(build("zb-h1", profile_of(TIED, 2), 4), profile_of(TIED, 2))
    results, gradients = run(two, lowered, TIED)
    _, expected = reference(plan_of(TIED, 2), 4, 0)
    for name in expected:  # added up in another order: first per stage, then both
        for result in results:
            if name in result.gradients:
                torch.testing.assert_close(
                    result.gradients[name], expected[name], rtol=1e-5, atol=1e-7
                )
    assert gradients.keys() >= expected.keys()


def test_experts(two: Ranks):
    profile = profile_of(EXPERTS, 2)
    schedule = with_offloads(build("zb-h1", profile, 4))
    _, gradients = run(two, lower(schedule, profile), EXPERTS)
    _, expected = reference(plan_of(EXPERTS, 2), 4, 0)
    assert gradients.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(gradients[name], expected[name], rtol=1e-5, atol=1e-7)


def test_modules_of_ones_own(two: Ranks):
    profile = profile_of(GPT, 2)
    schedule = with_offloads(build("zb-h1", profile, 4))
    results, _ = run(two, lower(schedule, profile), RESIDUAL)
    stages = [cases.Residual(stage) for stage in range(2)]
    for x, target in zip(*cases.residual_batch(4, 0), strict=True):
        (cases.error(stages[1](stages[0](x)), target) / 4).backward()
    for result, stage in zip(results, stages, strict=True):
        expected = {name: p.grad for name, p in stage.named_parameters()}
        assert_equal(result.gradients, expected)


def test_a_step_of_ones_own_modules_on_four_ranks(four: Ranks):
    """`PipelineStep` with trees between stages, offloads and deferred W's; a vee at that."""
    for name, stages in (("zb-h1", 4), ("zb-v", 8)):
        base = build(name, profile_of(GPT, 4, stages // 4), 8)
        schedule = with_offloads(base)
        assert schedule != base
        assert_as_unpipelined(four.run(OwnJob(schedule)), schedule)


def test_a_task_for_another_number_of_ranks(two: Ranks):
    schedule = build("1f1b", profile_of(GPT, 4), 8)
    with pytest.raises(OptPipeError, match="the schedule is for 4 devices, not 2 ranks"):
        two.run(Task(Case(schedule, profile_of(GPT, 4))))


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mortal() -> Iterator[Ranks]:
    """Ranks that do not outlive the tests of what goes wrong, and leave nothing behind."""
    with Ranks(2) as ranks:
        yield ranks
        left = ranks.pids
    assert not [pid for pid in left if is_running(pid)]


def offloaded() -> Lowered:
    profile = profile_of(GPT, 2)
    return lower(with_offloads(build("zb-h1", profile, 8)), profile)


def fault(ranks: Ranks, task: Task, within_s: float = 20.0) -> str:
    """How it ended; well before any timeout of gloo."""
    if not ranks.pids:  # not the time that torch takes to load
        ranks.run(replace(task, mode="synthetic", programs=None))
    pids, start = ranks.pids, time.monotonic()
    with pytest.raises(RuntimeFault) as caught:
        ranks.run(task)
    assert time.monotonic() - start < within_s
    assert not [pid for pid in pids if is_running(pid)]
    return str(caught.value)


def mutated(change: Callable[..., object], timeout_s: float = 15.0) -> Task:
    """A task whose programs the check refuses, run all the same; a rank waits so long for another one."""
    lowered = offloaded()
    programs = list(linear_programs(lowered))
    change(programs)
    with pytest.raises(InvalidSchedule, match=r"rank \d"):
        check_programs(programs, lowered.schedule)
    task = gradient_task(lowered, plan_of(GPT, 2))
    return replace(task, programs=tuple(programs), timeout_s=timeout_s)


def test_a_missing_reload_is_reported(mortal: Ranks):
    def change(programs: list) -> None:
        back = next(step for step in programs[0].steps if step.do == "reload")
        steps = without(without(programs[0], "reload", back.op), "grant", back.op).steps
        programs[0] = replace(
            programs[0],
            steps=tuple(
                replace(s, after=tuple(e for e in s.after if e.op != back.op)) for s in steps
            ),
        )

    message = fault(mortal, mutated(change))
    assert re.match(r"B0\.\d on rank 0 .*on the host: R0\.\d has to come before", message)


def test_a_message_that_is_never_sent(mortal: Ranks):
    def change(programs: list) -> None:
        send = [step for step in programs[0].steps if step.do == "send"][3]
        programs[0] = without(programs[0], "send", send.op)

    # rank 0 waits as well, for what rank 1 would make of it
    message = fault(mortal, mutated(change, timeout_s=3.0))
    assert re.match(
        r"rank [01]: waiting for the result of (F0|B1)\.[0-3] from rank [01]: ", message
    )


def test_a_message_sent_before_it_is_made(mortal: Ranks):
    def change(programs: list) -> None:
        steps = list(programs[0].steps)
        sends = [at for at, step in enumerate(steps) if step.do == "send"]
        one, other = sends[1:3]
        steps[one], steps[other] = steps[other], steps[one]
        programs[0] = replace(programs[0], steps=tuple(steps))

    assert "rank 0: F0.2 made nothing to send" in fault(mortal, mutated(change))


def test_a_stage_that_fails(mortal: Ranks):
    task = gradient_task(offloaded(), cases.OwnStages(cases.broken_worker))
    message = fault(mortal, task)
    assert message == "rank 1: run F1.3: ValueError: the fourth is one too many"
    # and the next task finds ranks again
    results = mortal.run(gradient_task(offloaded(), RESIDUAL))
    assert len(results) == 2


def test_a_rank_that_is_killed(mortal: Ranks):
    task = gradient_task(offloaded(), cases.OwnStages(cases.killed_worker))
    assert fault(mortal, task) == "rank 1 died (killed by SIGKILL); its last op was F1.3"


def test_new_ranks_are_forked_from_the_process_that_has_loaded_torch(mortal: Ranks):
    task = gradient_task(offloaded(), RESIDUAL)
    mortal.run(task)
    (server,) = launch._SERVERS
    fault(mortal, gradient_task(offloaded(), cases.OwnStages(cases.killed_worker)))
    mortal.run(task)
    with Ranks(1) as one:
        profile = profile_of(GPT, 1)
        one.run(Task(Case(build("1f1b", profile, 2), profile)))
    assert [server] == launch._SERVERS
    assert server.process.poll() is None


def test_ranks_see_where_their_caller_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a fresh Python would: folder, environment and path of when they start."""
    (tmp_path / "new_jobs.py").write_text(
        "import os\n"
        "class Where:\n"
        "    def __init__(self, schedule):\n"
        "        self.schedule = schedule\n"
        "    def perform(self, rank, begun):\n"
        "        return os.getcwd(), os.environ['OPTPIPE_NEW']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OPTPIPE_NEW", "yes")
    from new_jobs import Where  # type: ignore[import-not-found]

    with Ranks(2) as ranks:
        assert ranks.run(Where(offloaded().schedule)) == 2 * [(str(tmp_path), "yes")]


def ended(pids: list[int], within_s: float) -> bool:
    ends = time.monotonic() + within_s
    while any(map(is_running, pids)) and time.monotonic() < ends:
        time.sleep(0.05)
    return not any(map(is_running, pids))


def pids_of_killed(caller: Callable[[Connection], None]) -> list[int]:
    """What a process says that runs a function and kills itself."""
    ours, theirs = Pipe()
    process = get_context("fork").Process(target=caller, args=(theirs,))
    process.start()
    theirs.close()
    pids = ours.recv()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return pids


def test_no_rank_is_left_where_the_caller_is_killed_while_torch_loads():
    begin = launch.start_python

    def caller(pipe: Connection) -> None:
        def die(*words: Any, **options: Any) -> None:
            pipe.send([begin(*words, **options).pid])
            os.kill(os.getpid(), signal.SIGKILL)

        launch.start_python = die
        Ranks(2)._start("json")

    assert ended(pids_of_killed(caller), 60)


def test_ranks_that_cannot_start_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "torch.py").write_text("raise SystemError('no such machine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(launch, "_SERVERS", [])
    with (
        Ranks(2) as ranks,
        pytest.raises(
            RuntimeFault,
            match=r"ranks: cannot be started \(exit status 1\); it said: SystemError: no such",
        ),
    ):
        ranks._start("json")


def test_ranks_end_with_the_process_that_started_them(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    profile = profile_of(GPT, 2)
    task = Task(Case(build("1f1b", profile, 2), profile))

    def caller(pipe: Connection) -> None:
        ranks = Ranks(2)
        ranks.run(task)
        pipe.send([*ranks.pids, launch._SERVERS[0].process.pid])
        os.kill(os.getpid(), signal.SIGKILL)

    *ranks, server = pids_of_killed(caller)
    assert len(ranks) == 2
    assert ended(ranks, 5)
    assert server not in [own.process.pid for own in launch._SERVERS]
    assert ended([server], 60)
    assert list(tmp_path.glob("optpipe-ranks-*")) == []
