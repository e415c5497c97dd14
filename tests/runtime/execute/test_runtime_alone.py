"""Rank in the loop by arithmetic: the sweeps are at their fixed point after three, wherever they
begin, and it is the run of all ranks together. What ranks send, made one stage at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lowered_cases import lowered_cases
from runtime_cases import GPT, TIED, plan_of, profile_of, started
from strategies import SEEDS

from optpipe_sim import build
from optpipe_sim.ops import Op, R
from optpipe_sim.runtime.confirm.one_device import arrivals, message_arrivals, received, sweep_ranks
from optpipe_sim.runtime.execute.record import Record, measured_trace
from optpipe_sim.runtime.execute.serial import run_serially
from optpipe_sim.runtime.execute.unpipelined import make_contents, reference
from optpipe_sim.sim.in_situ import InSitu, compose, in_situ
from optpipe_sim.sim.lower import Lowered, lower

MS = 10**6


class Model:
    """Ranks that take what they take: each op its time and its gap, whatever the sweep."""

    def __init__(self, lowered: Lowered, seed: int, longer: float = 1.3) -> None:
        self.lowered, random = lowered, np.random.default_rng(seed)
        graph = lowered.graph
        nodes = len(graph.durations)
        self.durations = (graph.durations * random.uniform(1.0, longer, nodes)).astype(np.int64)
        self.durations[graph.message] = graph.durations[graph.message]
        self.durations[(graph.row_of < 0) & ~graph.message] = 0
        self.gaps = np.where(graph.message, 0, random.integers(0, 3, nodes))
        counts = np.diff(graph.first)
        self.gaps[counts == 0] = 0
        self.slow: dict[int, float] = {}  # by how many times the ops of a rank take longer now
        self.calls = 0

    def together(self) -> int:
        """The makespan of all ranks at once."""
        return compose(self.lowered, InSitu(self.durations, self.gaps)).makespan_ns

    def run(self, rank: int, arrive_ns: Mapping[object, int]) -> Record:
        """A rank alone: what it waits for of others is there when it is said to be."""
        self.calls += 1
        graph, schedule = self.lowered.graph, self.lowered.schedule
        factor = self.slow.get(self.calls, 1.0)
        row = graph.row_of.copy()
        row[graph.grant_at] = np.arange(len(schedule))
        times = np.zeros((len(graph.durations), 2), np.int64)
        device = np.where(graph.message, -1, schedule.devices[row])
        for node in np.flatnonzero(device == rank).tolist():
            begin = 0
            for edge in range(*graph.first[node : node + 2].tolist()):
                source = int(graph.inputs[edge]) // 2
                if device[source] == rank:
                    came = int(times.ravel()[graph.inputs[edge]] + graph.lags[edge])
                else:
                    at = source
                    while graph.message[at]:  # the sender of a message on a serial link
                        inputs = graph.inputs[slice(*graph.first[at : at + 2].tolist())] // 2
                        at = next(i for i in inputs.tolist() if not graph.message[i])
                    came = arrive_ns[schedule.op(int(row[at]))]
                begin = max(begin, came)
            begin += int(self.gaps[node])
            times[node] = begin, begin + round(factor * int(self.durations[node]))
        record = Record(rank)
        for at in np.flatnonzero(schedule.devices == rank).tolist():
            op = schedule.op(at)
            record.times_ns[op] = tuple(times[graph.op_at[at]].tolist())
            if op.kind is R:
                record.granted_ns[op] = int(times[graph.grant_at[at], 0])
        return record


def wrong_start(lowered: Lowered, seed: int) -> dict[object, int]:
    """Arrivals that have nothing to do with the schedule."""
    random = Random(seed)
    late = 3 * lowered.replay().makespan_ns + 1
    return {span.op: random.randrange(late) for span in lowered.replay().spans}


@given(lowered_cases(), SEEDS, st.booleans())
def test_three_sweeps_are_enough_from_anywhere(lowered: Lowered, seed: int, wrong: bool) -> None:
    model = Model(lowered, seed)
    start = wrong_start(lowered, seed) if wrong else None
    sweeps = sweep_ranks(lowered, model.run, sweeps=3, arrive_ns=start)
    assert sweeps[-1].moved_ns == 0
    # the fixed point is the run of all ranks together, and what is composed is known after one sweep
    assert sweeps[-1].trace.makespan_ns == model.together()
    assert {sweep.composed.makespan_ns for sweep in sweeps} == {model.together()}


@given(lowered_cases(), SEEDS)
def test_a_replay_of_what_ops_took_is_the_run(lowered: Lowered, seed: int) -> None:
    model = Model(lowered, seed)
    whole = compose(lowered, InSitu(model.durations, model.gaps))
    found = in_situ(lowered, whole, arrivals(lowered, whole))
    assert np.array_equal(found.durations, model.durations)
    assert np.array_equal(compose(lowered, found).start_ns, whole.start_ns)


@pytest.mark.parametrize(("microbatches", "before"), [(8, 8), (32, 20)])
def test_after_one_slow_sweep(unit: Callable[..., object], microbatches: int, before: int) -> None:
    """A rank that was slow once is forgotten at once. Arrivals as the senders' last runs had them
    would keep it for `before` sweeps or more: lateness moved by one hop a sweep."""
    profile = unit(4, t_comm_ms=0.1)
    lowered = lower(build("1f1b", profile, microbatches), profile)
    model = Model(lowered, 0, longer=1.0)
    model.gaps[:] = 0
    model.slow = {1: 1.2, 2: 1.2, 3: 1.2, 4: 1.2}
    sweeps = sweep_ranks(lowered, model.run, sweeps=3)
    assert [sweep.moved_ns > 0 for sweep in sweeps] == [True, True, False]
    assert sweeps[-1].trace.makespan_ns == lowered.replay().makespan_ns

    model.calls = 0
    arrive = arrivals(lowered, lowered.replay())
    between = messages(lowered)
    needed = 0
    for sweep in range(60):
        moved = 0
        records = []
        for rank in range(4):
            records.append(model.run(rank, arrive))
            sent = {op: end for op, (_, end) in records[-1].times_ns.items()}
            came = message_arrivals(lowered, {op: sent[op] for op in sent if op in between})
            moved = max([moved, *(abs(came[op] - arrive[op]) for op in came)])
            arrive |= came
        if not moved:
            needed = sweep + 1
            break
    assert needed >= before
    assert measured_trace(lowered, records).makespan_ns == lowered.replay().makespan_ns


def messages(lowered: Lowered) -> set[object]:
    return {op for rank in range(4) for op in received(lowered, rank)}


@pytest.mark.parametrize("model", [GPT, TIED], ids=lambda model: model.name)
@pytest.mark.parametrize("name", ["1f1b", "zb-v", "1f1b-i"])
def test_messages_and_gradients_made_one_stage_at_a_time(model: object, name: str) -> None:
    plan = plan_of(model, 2)
    profile = profile_of(model, 2)
    schedule = build(name, profile, 4)
    lowered = lower(schedule, profile.for_shape(schedule.shape))
    steps, between, wanted = started(plan, lowered), messages(lowered), {}

    def keep(op: Op) -> None:
        if op in between:
            wanted[op] = steps[0].results[op].clone()  # all ranks of a process share them

    for step in steps.values():
        step.ended = keep
    run_serially(steps)
    found = make_contents(plan, schedule, 0)
    assert found.messages.keys() == wanted.keys()
    assert all(torch.equal(found.messages[op], wanted[op]) for op in wanted)
    loss, gradients = reference(plan, 4, 0)
    assert found.loss == pytest.approx(loss, rel=1e-6)
    assert found.gradients.keys() == gradients.keys()
    tied = {"tokens.weight"} if model is TIED else set()
    for parameter, gradient in gradients.items():
        if parameter in tied:  # the whole model adds its two uses up one by one
            torch.testing.assert_close(found.gradients[parameter], gradient)
        else:
            assert torch.equal(found.gradients[parameter], gradient), parameter
