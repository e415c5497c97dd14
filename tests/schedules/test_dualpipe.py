"""DualPipe-V: torch's own order, the closed forms, and what is not admitted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_profiles import unit_profile

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.ops import Op, OpKind
from optpipe_sim.schedule import validate


def torch_order(p: int, m: int) -> list[list[Op]]:
    """The order of torch's ScheduleDualPipeV; its I is our B, its B our BW, pairs flattened."""
    from torch.distributed.pipelining import schedules

    kinds = {
        schedules.FORWARD: OpKind.F,
        schedules.BACKWARD_INPUT: OpKind.B,
        schedules.BACKWARD_WEIGHT: OpKind.W,
        schedules.FULL_BACKWARD: OpKind.BW,
    }
    order = schedules.ScheduleDualPipeV.__new__(schedules.ScheduleDualPipeV)
    order.pp_group_size, order._n_microbatches = p, m
    programs = []
    for rank in range(p):
        actions = order._calculate_single_rank_operations(rank)
        flat = [part for action in actions for part in (action.sub_actions or (action,))]
        programs.append(
            [Op(kinds[a.computation_type], a.stage_index, a.microbatch_index) for a in flat]
        )
    return programs


@pytest.mark.parametrize(
    ("p", "m"), [(1, 2), (2, 4), (2, 7), (3, 6), (4, 8), (4, 13), (7, 16), (8, 32)]
)
def test_order_is_torchs(p: int, m: int) -> None:
    programs = build("dualpipe-v", unit_profile(p), m).programs
    assert [list(program) for program in programs] == torch_order(p, m)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("extra", [0, 1, 5])
def test_bubble_and_peak(p: int, extra: int) -> None:
    m = 2 * p + extra
    profile = unit_profile(p, 2)
    trace = simulate(build("dualpipe-v", profile, m), profile)
    assert trace.makespan_ns == (6 * m + p - 1) * 1_000_000
    assert max(trace.peak_bytes) == (2 * p + 1) * 100


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 5).flatmap(
        lambda p: st.tuples(
            st.integers(2 * p, 2 * p + 6),
            st.lists(st.tuples(*[st.integers(1, 50)] * 3), min_size=2 * p, max_size=2 * p),
        )
    ),
    st.integers(0, 30),
)
def test_uneven_costs_run_through(case: tuple[int, list[tuple[int, int, int]]], comm: int) -> None:
    m, times = case
    stages = [{"t_f_us": f, "t_b_us": b, "t_w_us": w, "act_bytes": 10} for f, b, w in times]
    profile = load_profile(
        {
            "devices": len(times) // 2,
            "chunks": 2,
            "placement": "vee",
            "stages": stages,
            "t_comm_us": comm,
        }
    )
    schedule = build("dualpipe-v", profile, m)
    validate(schedule)
    trace = simulate(schedule, profile)
    assert max(trace.peak_bytes) == (2 * profile.devices + 1) * 10


@pytest.mark.parametrize(("p", "m"), [(1, 1), (4, 7), (8, 8)])
def test_too_few_microbatches(p: int, m: int) -> None:
    with pytest.raises(InvalidSchedule, match=rf"needs .* {2 * p} for {p} devices, got {m}"):
        build("dualpipe-v", unit_profile(p), m)
