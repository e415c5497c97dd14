"""Which limit and which treatment bind at the bound, worked out by hand.

Two devices, two microbatches, the objective span (no drain), F, B, W = 10, 20, 0, hop 1. From its first F
device 0 waits F + hop + F + B + hop = 42 for its first backward. With both F's before it, it takes 42 - 2 x 10
+ 2 x 30 = 82 in all; with room for one activation, microbatches go one by one: 2 x (42 + 20) = 124."""

from __future__ import annotations

from typing import Any

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.ops import BW, B, C, F, Op
from optpipe_sim.profile import CostProfile
from optpipe_sim.reasons.binding import Binding, analyse_binding, describe_binding
from optpipe_sim.reasons.solution import analyse_solution, explain_solution, passing
from optpipe_sim.schedule import Schedule


def costs(**changes: Any) -> CostProfile:
    stage = {"t_f_ns": 10, "t_b_ns": 20, "t_w_ns": 0, "act_bytes": 100, "w_bytes": 0}
    levels = changes.pop("levels", [])
    return load_profile(
        {
            "name": "by hand",
            "devices": 2,
            "stages": {**stage, "recompute": levels},
            "t_comm_ns": 1,
            **changes,
        }
    )


def full(t_ns: int) -> dict[str, Any]:
    return {"name": "full", "t_ns": t_ns, "keep_bytes": 0, "work_bytes": 0}


def bindings(profile: CostProfile, limit: int) -> Binding:
    return analyse_binding(profile, 2, "span", [limit, limit])


def eased(found: Binding) -> dict[str, int]:
    return {one.how: one.ns for one in found.eased}


def test_memory_binds_where_there_is_no_treatment() -> None:
    found = bindings(costs(), 140)
    assert (found.bound.ns, found.without, found.binds) == (124, {}, ())
    assert eased(found) == {
        "with room for one more activation per device": 82,
        "with room for all activations": 82,
    }


def test_recomputation_binds() -> None:
    """Both F's fit into 140 bytes if 60 of 200 are dropped: 6 of the 10 ns that drop 100. 82 + 6."""
    found = bindings(costs(levels=[full(10)]), 140)
    assert found.bound.ns == 88
    assert found.without == {"recompute": 124}
    assert found.binds == ("recompute",)
    assert eased(found)["if recomputing 'full' took no time"] == 82
    assert eased(found)["with room for one more activation per device"] == 82
    assert found.binds_with_more_room == ()
    words = "\n".join(describe_binding(found))
    assert "Without recomputation they would prove 124 ns" in words
    assert "88 ns" in words
    assert "82 ns  if recomputing 'full' took no time (6 ns less)" in words
    assert "With room for one more activation per device recomputation is not needed" in words


def test_nothing_binds_where_everything_fits() -> None:
    found = bindings(costs(levels=[full(10)]), 200)
    assert (found.bound.ns, found.without, found.binds) == (82, {"recompute": 82}, ())
    assert "No treatment binds" in "\n".join(describe_binding(found))


def test_copies_bind() -> None:
    """The first activation is gone at 10 + 30, so the second F ends at 50, eight after 42: 82 + 8;
    with copies of no time 82."""
    found = bindings(costs(offload={"t_offload_ns": 30, "t_reload_ns": 0}), 140)
    assert found.bound.ns == 90
    assert found.without == {"offload": 124}
    assert found.binds == ("offload",)
    assert eased(found)["if copies took no time"] == 82


def test_a_treatment_without_which_nothing_fits() -> None:
    found = bindings(costs(levels=[{**full(10), "work_bytes": 40}]), 90)
    assert found.without == {"recompute": None}
    assert "Without recomputation nothing fits at all" in "\n".join(describe_binding(found))


def test_it_is_part_of_what_explain_says() -> None:
    profile = costs(levels=[full(10)], memory_limit_bytes=140)
    plan = Schedule(
        profile.shape(2),
        [
            [Op(F, 0, 0), Op(F, 0, 1), Op(B, 0, 0), Op(C, 0, 1), Op(B, 0, 1)],
            [Op(F, 1, 0), Op(B, 1, 0), Op(F, 1, 1), Op(B, 1, 1)],
        ],
        recompute={"0.1": "full"},
    )
    plan = plan.replace(
        programs=[
            [op._replace(kind=BW) if op.kind is B else op for op in program]
            for program in plan.programs
        ]
    )
    trace = simulate(plan, profile, objective="span")
    text = explain_solution(trace)
    assert "Microbatches keep their order on every stage (FIFO)" in text
    assert "Without recomputation they would prove 124 ns" in text
    data = analyse_solution(trace).to_json()["limits"]
    assert (data["closed_form_ns"], data["binds"]) == (88, ["recompute"])


def test_microbatches_that_pass_one_another() -> None:
    profile = costs()
    trace = simulate(build("gpipe", profile, 2), profile)
    assert passing(trace) == []
    last_first = Schedule(
        profile.shape(2),
        [
            [Op(F, 0, 0), Op(F, 0, 1), Op(BW, 0, 1), Op(BW, 0, 0)],
            [Op(F, 1, 0), Op(F, 1, 1), Op(BW, 1, 1), Op(BW, 1, 0)],
        ],
    )
    assert passing(simulate(last_first, profile)) == [0, 1]
