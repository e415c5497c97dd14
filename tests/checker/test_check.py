"""The checker of schedules: silent on what can run, and a sentence on whatever cannot."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from checker_cases import PROGRAMS, edited, offloading, programs
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, limits, profiles
from unit_profiles import unit_profile

import optpipe_sim.checker
from optpipe_sim import CostProfile, Schedule, check, simulate
from optpipe_sim.checker.check import check_trace
from optpipe_sim.checker.stepped import step_through
from optpipe_sim.errors import Deadlock, OutOfMemory, ProfileError


def test_a_valid_schedule_has_no_problems() -> None:
    assert check(programs(*PROGRAMS), offloading()) == []


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        (edited("F0.1", ""), "device 0: F0.1 is missing"),
        (edited("B0.1 W0.1", "W0.1"), "device 0: B0.1 is missing (and there is no BW for it)"),
        (edited("W1.1", ""), "device 1: W1.1 is missing (and there is no BW for it)"),
        (edited("F1.0", "F1.0 F1.0"), "device 1: F1.0 is in the programs 2 times"),
        (
            edited("BW1.0", "BW1.0 B1.0"),
            "device 1: B1.0 and BW1.0 are both there, give B and W or BW",
        ),
        (
            edited("BW1.0", "BW1.0 W1.0"),
            "device 1: W1.0 and BW1.0 are both there, give B and W or BW",
        ),
        (edited("R0.0", ""), "device 0: O0.0 offloads what no R reloads"),
        (edited("O1.1", ""), "device 1: R1.1 reloads what no O offloads"),
        (edited("F0.1", "F0.1 F1.1"), "device 0: F1.1 stands here, but stage 1 lives on device 1"),
    ],
)
def test_incomplete_programs(schedule: Schedule, sentence: str) -> None:
    assert sentence in check(schedule, offloading())


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ({"2/O": ""}, "link order 2/O: there is no such link, only 0/O, 0/R, 1/O, 1/R"),
        ({"0/O": ""}, "link order 0/O: O0.0 (device 0) is missing"),
        ({"0/O": "O0.0 O0.0"}, "link order 0/O: O0.0 (device 0) is listed 2 times"),
        ({"0/O": "O0.0 O1.1"}, "link order 0/O: O1.1 (device 1) is no transfer of this link"),
        ({"0/R": "R0.0 R0.1"}, "link order 0/R: R0.1 (device 0) is no transfer of this link"),
    ],
)
def test_link_orders(order: dict[str, str], sentence: str) -> None:
    assert sentence in check(programs(*PROGRAMS, link_order=order), offloading())


@pytest.mark.parametrize(
    ("lines", "order", "profile", "parts"),
    [
        # a backward before its own forward
        (
            ("BW0.0 F0.0", "F1.0 BW1.0"),
            {},
            {},
            ["BW0.0 (device 0) waits for", "F0.0 (device 0) waits for BW0.0"],
        ),
        # each device waits for what stands behind on the other
        (
            ("F0.0 BW0.0 F0.1 BW0.1", "F1.1 F1.0 BW1.0 BW1.1"),
            {},
            {},
            [
                "F1.0 (device 1) waits for F1.1 (device 1) (before it in the program)",
                "F0.1 (device 0)",
            ],
        ),
        # a reload that is issued behind the backward that needs it
        (
            ("F0.0 O0.0 BW0.0 R0.0", "F1.0 BW1.0"),
            {},
            {},
            [
                "R0.0 (device 0) waits for BW0.0 (device 0) (the compute op before it in the program)"
            ],
        ),
        # a reload before its offload: on one engine only is that a circle
        (
            ("F0.0 R0.0 O0.0 BW0.0", "F1.0 BW1.0"),
            {},
            {"copy_engines": "shared"},
            ["O0.0 (device 0) waits for R0.0 (device 0) (before it on the copy engine)"],
        ),
        (
            ("F0.0 O0.0 R0.0 BW0.0 F0.1 BW0.1", "F1.0 BW1.0 F1.1 O1.1 R1.1 BW1.1"),
            {"0/O": "O1.1 O0.0"},
            {"host_link_groups": [[0, 1]]},
            ["O0.0 (device 0) waits for O1.1 (device 1) (before it in link order 0/O)"],
        ),
    ],
)
def test_circles_are_named(
    lines: tuple[str, ...], order: dict[str, str], profile: dict[str, object], parts: list[str]
) -> None:
    microbatches = 2 if "0.1" in lines[0] else 1
    schedule = programs(*lines, link_order=order, m=microbatches)
    costs = offloading(offload=profile)
    (sentence,) = check(schedule, costs)
    assert sentence.startswith("the order can never go on, its ops wait in a circle: ")
    for part in parts:
        assert part in sentence
    with pytest.raises(Deadlock):
        simulate(schedule, costs)


def test_other_problems_of_a_schedule() -> None:
    schedule = programs(*PROGRAMS)
    (devices,) = check(schedule, unit_profile(3))
    assert "2 devices" in devices
    assert "has 3" in devices
    (offload,) = check(schedule, unit_profile(2))
    assert offload == "device 0: O0.0 is a transfer, but the profile unit has no offload section"
    (least, _) = check(schedule, offloading(), 99)
    assert least == (
        "device 0: the memory limit of 99 B is below the 100 B that one microbatch needs"
    )
    assert check(schedule, offloading(), (99, 200)) == [least]
    with pytest.raises(ProfileError, match="2 devices"):
        check(schedule, offloading(), (99, 99, 99))


def test_stuck_for_memory_names_op_device_and_time() -> None:
    plain = programs("F0.0 F0.1 BW0.0 BW0.1", "F1.0 BW1.0 F1.1 BW1.1")
    assert check(plain, offloading(), 200) == []
    (stuck,) = check(plain, offloading(), 199)
    assert stuck.startswith("the programs get stuck at 4 ms with 3 of 8 ops done: ")
    assert "device 0: F0.1 needs 100 B where 100 B of 199 B are held" in stuck
    assert check(programs(*PROGRAMS), offloading(), 100) == []


def test_host_limit() -> None:
    assert check(programs(*PROGRAMS), offloading(offload={"host_limit_bytes": 200})) == []
    limited = offloading(offload={"host_limit_bytes": 199})
    sentence = (
        "device 1: O1.1 raises the pinned memory of node 0 to 200 B at 5 ms,"
        " above the host limit of 199 B"
    )
    assert check(programs(*PROGRAMS), limited) == [sentence]
    assert check_trace(simulate(programs(*PROGRAMS), limited)) == [sentence]
    apart = offloading(offload={"host_limit_bytes": 99, "devices_per_node": 1})
    first, second = check(programs(*PROGRAMS), apart)
    assert first.startswith("device 0: O0.0 raises the pinned memory of node 0 to 100 B")
    assert second.startswith("device 1: O1.1 raises the pinned memory of node 1 to 100 B")


@given(case=cases(levels=True, slices=True, differ=True, pairs=True))
def test_plain_replay_equals_engine_and_both_find_the_same_stuck(
    case: tuple[CostProfile, Schedule],
) -> None:
    profile, schedule = case
    for enforce in (False, True):
        times = step_through(schedule, profile, profile.memory_limit if enforce else None)
        try:
            trace = simulate(schedule, profile, enforce=enforce)
        except Deadlock:
            assert enforce
            assert times.stuck
            assert any("get stuck" in problem for problem in check(schedule, profile))
            continue
        assert times.stuck == ()
        assert check_trace(trace, asap=True) == []
        assert enforce is False or check(schedule, profile) == []
        for span in trace.spans:
            assert (times.start_ns[span.op], times.end_ns[span.op]) == span[2:4]
            assert times.grant_ns.get(span.op) == span.grant_ns


@given(data=st.data(), profile=profiles(offload=True, max_devices=3, max_chunks=2))
@settings(max_examples=40, deadline=None)
def test_limits_between_the_least_and_the_peak(data: st.DataObject, profile: CostProfile) -> None:
    from strategies import schedules

    # what a copy of no length takes and gives back at one instant is not seen in the peak without a
    # limit, while under one it has to be granted first
    profile = profile.map_stages(
        lambda _, cost: replace(
            cost,
            t_offload_ns=None if cost.t_offload_ns is None else max(1, cost.t_offload_ns),
            t_reload_ns=None if cost.t_reload_ns is None else max(1, cost.t_reload_ns),
        )
    )
    schedule = data.draw(schedules(profile, max_microbatches=4))
    free = simulate(schedule, profile, enforce=False)
    assert check(schedule, profile, free.peak_bytes) == []
    limit = data.draw(limits(profile, free.peak_bytes))
    problems = check(schedule, profile, limit)
    try:
        trace = simulate(schedule, profile, limit)
    except (Deadlock, OutOfMemory):
        assert len(problems) == 1
        assert "get stuck" in problems[0]
    else:
        assert problems == []
        assert check_trace(trace, asap=True) == []
        assert all(peak <= most for peak, most in zip(trace.peak_bytes, limit, strict=True))


@given(profile=profiles(max_devices=3))
@settings(max_examples=40, deadline=None)
def test_the_least_limit_works_and_one_byte_less_does_not(profile: CostProfile) -> None:
    """One microbatch after the other, everything offloaded that can be."""
    copies = profile.offload is not None
    lines: list[list[str]] = [[] for _ in range(profile.devices)]
    for j in range(2):
        for stage, device in enumerate(profile.placement):
            lines[device] += [f"F{stage}.{j}"] + [f"O{stage}.{j}"] * copies
        for stage, device in reversed(list(enumerate(profile.placement))):
            lines[device] += [f"R{stage}.{j}"] * copies + [f"BW{stage}.{j}"]
    schedule = Schedule(profile.shape(2), lines)
    least = profile.least_limits
    assert check(schedule, profile, least) == []
    for device in range(profile.devices):
        below = [limit - (at == device) for at, limit in enumerate(least)]
        if below[device] >= 0:
            (problem,) = check(schedule, profile, below)
            assert problem.startswith(f"device {device}: the memory limit of {below[device]} B")
            assert f"the {least[device]} B" in problem


def test_limits_that_print_alike_get_more_digits() -> None:
    profile = unit_profile(2, stages={"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_gib": 24})
    schedule = Schedule(profile.shape(1), [["F0.0", "BW0.0"], ["F1.0", "BW1.0"]])
    first, _ = check(schedule, profile, 24 * 2**30 - 1)
    assert "the memory limit of 23.999999999 GiB is below the 24 GiB that" in first


@pytest.mark.parametrize("key", ["9/Z", "9/O", "0/Z", "0/OR", "00/O", ""])
def test_link_orders_of_no_link_are_problems_without_offloading_too(key: str) -> None:
    profile = unit_profile(2)
    schedule = Schedule(
        profile.shape(1), [["F0.0", "BW0.0"], ["F1.0", "BW1.0"]], link_order={key: []}
    )
    (problem,) = check(schedule, profile)
    assert problem == (
        f"link order {key}: there is no such link, as the profile unit has no offload section"
    )
    assert check(schedule, offloading())[0].startswith(
        f"link order {key}: there is no such link"
    ) == (key != "0/O")
    harmless = schedule.replace(link_order={"1/O": []})
    assert check(harmless, profile) == []


def test_the_checker_knows_nothing_of_the_simulator() -> None:
    files = sorted(Path(optpipe_sim.checker.__file__).parent.glob("*.py"))
    assert {"check", "costs", "ops", "times", "stepped"} <= {path.stem for path in files}
    for path in files:
        name = path.stem
        for node in ast.walk(ast.parse(path.read_text())):
            imported = getattr(node, "module", None) or "".join(
                alias.name for alias in getattr(node, "names", []) if isinstance(alias, ast.alias)
            )
            assert "sim" not in imported.replace("optpipe_sim", "").split("."), name
            if isinstance(node, ast.Attribute) and name in ("check", "ops", "times"):
                assert node.attr not in {"least_limits", "durations_ns", "host_links", "peak_bytes"}
