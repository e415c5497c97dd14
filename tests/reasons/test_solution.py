"""Solutions explained: what goes to the host, what idles, and what the bound forces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from strategies import cases
from unit_profiles import unit_profile

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.bounds.bounds import Bound, fill_and_drain, fill_and_drain_parts, lower_bound
from optpipe_sim.errors import Deadlock, OptPipeError, OutOfMemory
from optpipe_sim.plot.solution import solution_chart
from optpipe_sim.plot.style import save
from optpipe_sim.reasons.solution import analyse_solution, explain_solution, ranges


def tight(copy_us: int = 5, slots: int = 3) -> object:
    return load_profile(
        {
            "name": "tight",
            "devices": 4,
            "stages": {"t_f_us": 10, "t_b_us": 11, "t_w_us": 9, "act_bytes": 100, "w_bytes": 50},
            "t_comm_us": 1,
            "offload": {"t_offload_us": copy_us, "t_reload_us": copy_us},
            "memory_limit_bytes": 100 * slots,
        }
    )


@settings(max_examples=60, deadline=None)
@given(cases())
def test_forced_idle_never_exceeds_the_idle_there_is(case) -> None:
    profile, schedule = case
    for objective in ("flush", "span"):
        try:
            trace = simulate(schedule, profile, objective=objective)
        except (Deadlock, OutOfMemory):
            profile = replace(profile, memory_limit=None)
            trace = simulate(schedule, profile, objective=objective)
        found = analyse_solution(trace)
        least = lower_bound(profile, schedule.shape.microbatches, objective).ns
        assert found.bound.ns == least
        for device, part in zip(
            found.devices,
            fill_and_drain_parts(profile, schedule.shape.microbatches, objective),
            strict=True,
        ):
            assert device.idle == trace.cost_ns - trace.busy_ns[device.device]
            assert device.forced == least - part.work
            assert device.forced <= trace.cost_ns - part.work
            assert min(device.forced_ns.values()) >= 0
            assert min(device.idle_ns.values()) >= 0


def test_the_parts_of_fill_and_drain_make_the_bound() -> None:
    profile = tight()
    parts = fill_and_drain_parts(profile, 8)
    assert max(part.ns for part in parts) == fill_and_drain(profile, 8)
    assert [part.head for part in parts] == [11_000 * device for device in range(4)]
    assert {part.work for part in parts} == {8 * 30_000}


def test_memory_forces_what_more_of_it_would_spare() -> None:
    def forced(slots: int, copy_us: int) -> dict[str, int]:
        profile = tight(copy_us, slots)
        trace = simulate(build("adaoffload", profile, 8), profile)
        found = analyse_solution(trace)
        return {
            key: sum(device.forced_ns[key] for device in found.devices)
            for key in found.devices[0].forced_ns
        }

    ample, scarce, slow = forced(8, 5), forced(2, 5), forced(2, 40)
    assert ample["memory"] == ample["copies"] == ample["few W"] == 0 < ample["fill"]
    assert scarce["few W"] > 0
    assert scarce["fill"] == ample["fill"] == slow["fill"]
    assert slow["copies"] > scarce["copies"]


def test_copies_are_listed_as_they_are() -> None:
    profile = tight(5, 3)
    trace = simulate(build("adaoffload", profile, 8), profile)
    stages = analyse_solution(trace).stages
    gone = [op for program in trace.schedule.programs for op in program if op.kind.name == "O"]
    assert trace.offloaded == sum(len(stage.microbatches) for stage in stages) > 0
    for stage in stages:
        mine = sorted(op.microbatch for op in gone if op.stage == stage.stage)
        assert list(stage.microbatches) == mine
        if mine:
            away = [_away(trace, stage.stage, j) for j in mine]
            assert (stage.away_ns[0], stage.away_ns[2]) == (min(away), max(away))
            assert stage.lives_gone_ns >= stage.away_ns[0]
        else:
            assert stage.away_ns is None


def _away(trace, stage: int, j: int) -> int:
    from optpipe_sim import Op, OpKind

    out, back = (trace.span(Op(kind, stage, j)) for kind in (OpKind.O, OpKind.R))
    return max(0, back.grant_ns - out.end_ns)


def test_words_say_what_is_proven_and_what_binds() -> None:
    profile = tight(5, 3)
    trace = simulate(build("adaoffload", profile, 8), profile)
    text = explain_solution(trace)
    found = analyse_solution(trace)
    assert f"{trace.offloaded} of 32 activations" in text
    assert f"Device {found.binding} binds" in text
    proven = explain_solution(trace, Bound(trace.cost_ns, "CP-SAT"))
    assert "no schedule takes less: proven by CP-SAT" in proven
    gap = explain_solution(trace, Bound(trace.cost_ns // 2, "a guess"))
    assert "may or may not be avoidable" in gap
    assert text.count("\n") > 12


def test_words_for_what_a_solver_proves_beyond_the_closed_forms() -> None:
    profile = tight(40, 2)
    trace = simulate(build("adaoffload", profile, 8), profile)
    closed = lower_bound(profile, 8)
    assert closed.ns < trace.cost_ns
    text = explain_solution(trace, Bound(trace.cost_ns, "CP-SAT"))
    assert "CP-SAT proves" in text


def test_nothing_offloaded_says_why() -> None:
    for profile, words in (
        (unit_profile(2), "no offload section"),
        (replace(tight(), memory_limit=None), "no memory limit"),
        (tight(5, 9), "does not ask for it"),
    ):
        trace = simulate(build("zb-h1", profile, 4), profile)
        assert words in explain_solution(trace).splitlines()[0]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((), "-"),
        ((3,), "3"),
        ((0, 1, 2, 5), "0-2, 5"),
        ((0, 2, 4, 6, 8, 9), "0, 2, 4 and 3 more"),
    ],
)
def test_ranges(numbers, words) -> None:
    assert ranges(numbers) == words


def test_json_is_plain(tmp_path) -> None:
    import json

    profile = tight()
    trace = simulate(build("adaoffload", profile, 6), profile)
    data = json.loads(json.dumps(analyse_solution(trace).to_json()))
    assert data["gap_ns"] == data["cost_ns"] - data["lower_bound_ns"]
    assert len(data["devices"]) == len(data["offloads"]) == 4


@pytest.mark.parametrize("objective", ["flush", "span"])
def test_chart_draws_what_idles_and_what_must(objective, tmp_path) -> None:
    profile = tight(5, 2)
    trace = simulate(build("adaoffload", profile, 8), profile, objective=objective)
    found = analyse_solution(trace)
    ax = solution_chart(found)
    widths = {hatched: [0.0] * 4 for hatched in (False, True)}
    for bar in ax.patches:
        device = round(bar.get_y() + bar.get_height() / 2)
        widths[bar.get_hatch() is not None][device] += bar.get_width() * 1000  # the axis is in us
    assert widths[False] == pytest.approx([device.idle for device in found.devices])
    assert widths[True] == pytest.approx([device.forced for device in found.devices])
    path = save(ax, tmp_path / "why.png")
    assert path.stat().st_size > 10_000
    with pytest.raises(OptPipeError, match="png"):
        save(ax, tmp_path / "why.gif")
