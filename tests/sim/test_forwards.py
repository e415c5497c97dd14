"""Forwards alone: what they take by hand, and by a recurrence of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optpipe_sim import build, load_execution, load_profile
from optpipe_sim.ops import F
from optpipe_sim.sim.forwards import forward_pass

TIMES = {"t_b_ns": 50, "t_w_ns": 30, "act_bytes": 100}


def test_by_hand() -> None:
    """Three stages of 2, 3 and 1, messages of 4: the second stage is never idle once it has begun."""
    stages = [{"t_f_ns": ns, **TIMES} for ns in (2, 3, 1)]
    profile = load_profile(
        {"devices": 3, "stages": stages, "t_comm_ns": 4, "memory_limit_bytes": 150}
    )
    found = forward_pass(build("1f1b", profile, 5), profile)
    assert found.first_ns == 2 + 4 + 3 + 4 + 1
    assert found.makespan_ns == 2 + 4 + 5 * 3 + 4 + 1
    assert found.busy_ns == [10, 15, 5]
    assert found.bubble_rate == pytest.approx(1 - 15 / 26)
    assert found.to_json()["makespan_ns"] == 26


@pytest.mark.parametrize("p", [2, 4])
def test_interleaving_divides_the_bubble(p: int) -> None:
    """Without messages p - 1 stages wait, each v times shorter."""
    profile = load_profile({"devices": p, "stages": {"t_f_ns": 24, **TIMES}})
    for v in (2, 3, 4):
        found = forward_pass(build(f"1f1b-i:chunks={v}", profile, 2 * p), profile)
        assert found.makespan_ns == 24 * 2 * p + (p - 1) * 24 // v


@given(st.data())
def test_as_a_recurrence(data: st.DataObject) -> None:
    """Each device in order, each message as its links carry it; slices and pairs change no rule."""
    p, m = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    name = data.draw(
        st.sampled_from(["1f1b", "1f1b-i:chunks=2", "zb-v", "gpipe", "seq1f1b:slices=2"])
    )
    if name.startswith("1f1b-i"):
        p, m = max(p, 2), 2 * max(p, 2)
    number = st.integers(1, 40)
    stages = [
        {"t_f_ns": 2 * data.draw(number), "t_b_ns": 8, "t_w_ns": 6, "act_bytes": 8}
        for _ in range(p)
    ]
    links = data.draw(st.sampled_from(["latency", "blocking"]))
    hop = data.draw(st.integers(0, 20))
    profile = load_profile({"devices": p, "stages": stages, "t_comm_ns": hop, "links": links})
    execution = load_execution(
        {"families": {"plain": {"op_us": data.draw(st.sampled_from([0, 1]))}}}
    )
    profile = replace(profile, execution=execution)
    schedule = build(name, profile, m)
    costs = profile.for_shape(schedule.shape).issued(False)
    shape = schedule.shape
    place, slices = shape.placement, shape.slices
    free, ended = [0] * p, {}
    programs = [[op for op in program if op.kind is F] for program in schedule.flat_programs]
    while any(programs):
        for device, program in enumerate(programs):
            while program:
                op = program[0]
                unit = shape.unit(op)
                needs = [(op.stage - 1, unit)] if op.stage else []
                needs += [(op.stage, unit - 1)] if unit % slices else []
                if any(one not in ended for one in needs):
                    break
                away = [hop if place[stage] != device else 0 for stage, _ in needs]
                ready = [ended[one] + late for one, late in zip(needs, away, strict=True)]
                cost = costs.stages[op.stage]
                part = cost.slices[unit % slices] if slices > 1 else cost
                end = max([free[device], *ready]) + part.t_f_ns
                ended[op.stage, unit] = free[device] = end
                sends = op.stage + 1 < shape.stages and place[op.stage + 1] != device
                free[device] += hop if links == "blocking" and sends else 0
                program.pop(0)
    found = forward_pass(schedule, profile)
    assert found.makespan_ns == max(ended.values())
    last = [
        end
        for (stage, unit), end in ended.items()
        if stage == shape.stages - 1 and unit % slices == slices - 1
    ]
    assert found.first_ns == min(last)
