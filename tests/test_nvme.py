"""Offloading to the drives of a node: rates, links, staging and wear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from file_cases import BASE
from hypothesis import given, settings
from strategies import cases

from optpipe_sim import CostProfile, Schedule, Trace, build, check, load_profile, simulate, solve
from optpipe_sim.checker.check import check_trace
from optpipe_sim.costs import estimate, load_machine
from optpipe_sim.errors import OptPipeError
from optpipe_sim.op_costs import moved_bytes
from optpipe_sim.ops import O, R
from optpipe_sim.profile import Nvme
from optpipe_sim.profile_io import profile_to_json

GIB = 2**30


def profile(
    nvme: dict[str, Any] | None, devices: int = 4, act: int = 10**9, **offload: Any
) -> CostProfile:
    """PCIe of 20 GB/s: copies of an activation of 10^9 bytes take 50 ms where drives are no slower."""
    return load_profile(
        {
            "devices": devices,
            "stages": {"t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 10, "act_bytes": act},
            "offload": {
                "d2h_gb_per_s": 20, "h2d_gb_per_s": 20, **offload, **({"nvme": nvme} if nvme else {}),
            },
        }
    )  # fmt: skip


def copies(costs: CostProfile) -> tuple[float, float]:
    """Milliseconds of an O and an R."""
    cost = costs.stages[0]
    return (cost.t_offload_ns or 0) / 1e6, (cost.t_reload_ns or 0) / 1e6


def test_a_copy_takes_the_slower_of_pcie_and_its_links_share_of_the_drives() -> None:
    drives = {"write_gb_per_s": 10, "read_gb_per_s": 40}
    assert copies(profile(None)) == (50, 50)
    assert copies(profile(drives)) == (100, 50)  # one link, which the node's devices share
    assert profile(drives).host_links == ((0, 1, 2, 3),)
    pairs = profile(drives, host_link_groups=[[0, 1], [2, 3]])
    assert copies(pairs) == (200, 50)  # two links: half of the rates each
    alone = profile(drives, host_link_groups=[[0], [1], [2], [3]])
    assert (copies(alone), alone.host_links) == ((400, 100), ((0,), (1,), (2,), (3,)))
    nodes = profile(drives, devices_per_node=2)
    assert (copies(nodes), nodes.host_links) == (
        (100, 50),
        ((0, 1), (2, 3)),
    )  # each has its own drives


def test_times_that_are_given_are_those_of_the_whole_way() -> None:
    drives = {"write_gb_per_s": 1, "read_gb_per_s": 1}
    data = profile_to_json(profile(drives))
    assert copies(load_profile(data)) == (1000, 1000)
    data["offload"] |= {"t_offload_ns": 7, "t_reload_ns": 8}
    assert copies(load_profile(data)) == (7e-6, 8e-6)


@pytest.mark.parametrize("groups", [(), ((0,),)])
def test_a_lone_device_is_written_with_the_groups_that_it_has(
    groups: tuple[tuple[int, ...], ...],
) -> None:
    lone = profile({"write_gb_per_s": 1, "read_gb_per_s": 1}, devices=1)
    lone = replace(lone, offload=replace(lone.offload, host_link_groups=groups))
    assert load_profile(profile_to_json(lone)) == lone


@given(cases())
@settings(max_examples=25, deadline=None)
def test_engines_and_checker_agree_and_staging_holds(case: tuple[CostProfile, Schedule]) -> None:
    costs, schedule = case
    if costs.offload is None:
        return
    direct = replace(
        costs,
        memory_limit=None,
        offload=replace(costs.offload, host_limit_bytes=None, nvme=Nvme(1, 1)),
    )
    trace = simulate(schedule, direct)
    again = simulate(schedule, direct, engine="simpy")
    assert (trace.start_ns == again.start_ns).all()
    assert (trace.end_ns == again.end_ns).all()
    assert trace.host_peak_bytes == 0
    largest = [0] * costs.devices
    for cost, device in zip(costs.stages, costs.placement, strict=True):
        largest[device] = max(largest[device], *(p.offloadable for p in cost.slices or (cost,)))
    room = direct.offload.staged_bytes(costs.devices, largest)
    staged = replace(direct, offload=replace(direct.offload, nvme=Nvme(1, 1, room)))
    trace = simulate(schedule, staged)
    assert trace.host_peak_bytes <= room
    assert check_trace(trace) == []
    assert load_profile(profile_to_json(staged)).host_links == staged.host_links
    if room:
        with pytest.raises(OptPipeError, match=r"offload\.nvme\.staging: "):
            replace(direct, offload=replace(direct.offload, nvme=Nvme(1, 1, room - 1)))


def test_the_checker_sees_more_copies_at_a_time_than_staging_holds() -> None:
    drives = {"write_gb_per_s": 20, "read_gb_per_s": 20, "staging_bytes": 2 * 10**7}
    costs = profile(drives, devices=2, act=10**7)
    schedule = build("po-h:chunks=2", costs, 4)
    trace = simulate(schedule, costs)
    assert trace.offloaded
    assert trace.host_peak_bytes <= 2 * 10**7
    assert check_trace(trace) == []
    copying = np.isin(trace.schedule.table[:, 0], (O, R))
    wrong = replace(trace, start_ns=np.where(copying, 0, trace.start_ns))
    assert any("above the host limit of" in problem for problem in check_trace(wrong))


def behind(costs: CostProfile, room: int, rate: int = 1) -> CostProfile:
    """The profile with drives that write `rate` bytes per ns behind its copies."""
    assert costs.offload is not None
    drives = Nvme(rate * 10**9, 10**9, room, write_behind=True)
    offload = replace(costs.offload, host_limit_bytes=None, nvme=drives)
    return replace(costs, memory_limit=None, offload=offload)


def levels_by_tick(trace: Trace) -> list[list[int]]:
    """Per node, the bytes in the staging buffer in each ns, whose drive writes a byte per ns: a queue, byte
    by byte."""
    profile, sizes = trace.profile, moved_bytes(trace.schedule, trace.profile)
    ops = [op for program in trace.schedule.programs for op in program]
    found = []
    for node in range(profile.nodes):
        mine = [
            (op, int(size))
            for op, size in zip(ops, sizes, strict=True)
            if op.kind in (O, R) and profile.placement[op.stage] // profile.devices_per_node == node
        ]
        back = {str(op)[1:]: trace.span(op) for op, _ in mine if op.kind is R}
        out = {str(op)[1:]: (trace.span(op), size) for op, size in mine if op.kind is O}
        queue: list[str] = []
        left, gone, levels = {name: size for name, (_, size) in out.items()}, set(), []
        for now in range(trace.makespan_ns + 1):
            if queue and now:
                left[queue[0]] -= 1
            queue += [name for name, (span, _) in out.items() if span.end_ns == now]
            while queue and (left[queue[0]] == 0 or back[queue[0]].start_ns <= now):
                done = queue.pop(0)
                gone |= {done} if left[done] == 0 else set()
            for name in [name for name in queue if back[name].start_ns <= now]:
                queue.remove(name)
            levels.append(
                sum(
                    size
                    for name, (span, size) in out.items()
                    if (back[name].start_ns <= now < back[name].end_ns)
                    or (span.start_ns <= now < back[name].end_ns and name not in gone)
                )
            )
        found.append(levels)
    return found


@given(cases(levels=True, slices=True, differ=True))
@settings(max_examples=40, deadline=None)
def test_drives_that_write_behind_empty_the_buffer_in_turn(
    case: tuple[CostProfile, Schedule],
) -> None:
    costs, schedule = case
    if costs.offload is None:
        return
    ample = behind(costs, 10**6)
    trace = simulate(schedule, ample)
    assert np.array_equal(trace.start_ns, simulate(schedule, ample, engine="simpy").start_ns)
    short = trace.makespan_ns < 500
    for steps, levels in zip(
        trace.host_memory, levels_by_tick(trace) if short else [], strict=short
    ):
        at = np.searchsorted(steps.times_ns, np.arange(len(levels)), "right") - 1
        assert steps.bytes[at].tolist() == levels
    peak = trace.host_peak_bytes
    largest = max(p.offloadable for cost in ample.stages for p in cost.slices or (cost,))
    tight = behind(costs, max(peak, largest))
    assert check(schedule, tight) == check_trace(simulate(schedule, tight)) == []
    assert load_profile(profile_to_json(tight)) == tight
    if peak > largest:
        over = behind(costs, peak - 1)
        assert any("above the host limit of" in said for said in check(schedule, over))
    # drives without delay hold as much as copies that stream; those that never write, as the host
    fast, offload = behind(costs, 10**6, 10**9), replace(costs.offload, host_limit_bytes=None)
    for drives, other in (
        (fast, replace(offload, nvme=Nvme(1, 1, 10**6))),
        (replace(ample, offload=replace(ample.offload, nvme=Nvme(1, 1, 10**6, write_behind=True))), offload),
    ):  # fmt: skip
        one, two = (
            simulate(schedule, replace(ample, offload=each)) for each in (drives.offload, other)
        )
        for here, there in zip(one.host_memory, two.host_memory, strict=True):
            assert np.array_equal(here.times_ns, there.times_ns)
            assert np.array_equal(here.bytes, there.bytes)


def test_a_burst_goes_at_the_rate_of_pcie_and_is_written_later() -> None:
    """Three copies of 50 ms at PCIe's rate, of which the drives write one in 100 ms."""
    rates = {"write_gb_per_s": 10, "read_gb_per_s": 20}
    drives = rates | {"staging_bytes": 3 * 10**9, "write_behind": True}
    costs = profile(drives, devices=1, act=10**9)
    assert copies(costs) == (50, 50)
    assert costs.host_links == ((0,),)
    out = [f"{kind}0.{j}" for j in range(3) for kind in "FO"]
    kept = [f"{kind}0.{j}" for j in range(3, 9) for kind in "FBW"]  # until 210 ms
    back = [f"{kind}0.{j}" for kind in "RBW" for j in range(3)]
    trace = simulate(Schedule(costs.shape(9), [[*out, *kept, *back]]), costs)
    steps = trace.host_memory[0]
    ms = [(int(time) // 10**6, int(held) // 10**9) for time, held in zip(*steps, strict=True)]
    # O's end at 60, 110, 160; written is the first at 160; R's start at 200, 250, 300, when the second, begun
    # at 160, and the third, begun at 250, are not
    assert ms == [
        (0, 0),
        (10, 1),
        (60, 2),
        (110, 3),
        (160, 2),
        (200, 3),
        (250, 2),
        (300, 1),
        (350, 0),
    ]
    assert trace.wear is not None
    assert trace.wear.written_bytes == 3 * 10**9
    assert check_trace(trace) == []


@pytest.mark.parametrize("engine", ["search", "cpsat"])
def test_plans_keep_to_the_buffer(engine: str) -> None:
    data = {
        "devices": 3,
        "stages": {"t_f_ns": 10, "t_b_ns": 10, "t_w_ns": 10, "act_bytes": 10},
        "offload": {"t_offload_ns": 5, "t_reload_ns": 5, "devices_per_node": 1},
    }
    costs = load_profile(data)
    found = {}
    for room in (10, 1000):
        drives = behind(costs, room)
        assert drives.offload is not None
        slow = replace(drives.offload, nvme=Nvme(10**8, 10**9, room, write_behind=True))
        mine = replace(drives, offload=slow)
        effort = {"evaluations": 3000} if engine == "search" else {}
        result = solve(mine, 4, 20, engine=engine, time_limit=5, workers=1, **effort)
        assert result.schedule is not None
        assert check(result.schedule, mine, 20) == []
        assert result.lower_bound_ns <= result.objective_ns
        found[room] = result
    assert found[1000].objective_ns <= found[10].objective_ns
    assert found[1000].trace.host_peak_bytes > 10 >= found[10].trace.host_peak_bytes


def test_wear_counts_what_is_written_to_the_node_that_is_written_most() -> None:
    rated = {"write_gb_per_s": 40, "read_gb_per_s": 40, "rated_tb_written": 100}
    costs = profile(rated, devices=2, act=10**7, devices_per_node=1)
    trace = simulate(build("po-f:chunks=2", costs, 8), costs)
    ops = [sum(op.kind is O for op in program) for program in trace.schedule.programs]
    wear = trace.wear
    assert wear is not None
    assert wear.written_bytes == max(ops) * 10**7 // 2 > 0
    daily = wear.written_bytes * 86_400 * 10**9 / trace.makespan_ns
    assert wear.bytes_per_day == pytest.approx(daily, rel=1e-9)
    assert wear.years == pytest.approx(100 * 10**12 / daily / 365, rel=1e-6)
    assert trace.measures()["nvme"]["written_bytes"] == wear.written_bytes
    assert "worn out after" in str(wear)


def test_without_the_key_nothing_is_new() -> None:
    costs = load_profile(BASE)
    assert "nvme" not in profile_to_json(costs).get("offload", {})
    trace = simulate(build("1f1b", costs, 4), costs)
    assert trace.wear is None
    assert "nvme" not in trace.measures()


@pytest.mark.parametrize(
    ("nvme", "offload", "said"),
    [
        ({"write_gb_per_s": 1}, {}, r"offload\.nvme\.read_gb_per_s: missing"),
        ({"write_gb_per_s": 0, "read_gb_per_s": 1}, {}, r"offload\.nvme\.write_gb_per_s: must be above 0"),
        ({"write_gb_per_s": 1, "read_gb_per_s": 1, "tier": 3}, {}, r"offload\.nvme\.tier: unknown key"),
        ({"write_gb_per_s": 1, "read_gb_per_s": 1}, {"host_limit_gib": 1}, r"offload\.host_limit: not with nvme"),
        ({"write_gb_per_s": 1, "read_gb_per_s": 1, "staging_gib": 1}, {}, r"offload\.nvme\.staging: 1 GiB"),
        ({"write_gb_per_s": 1, "read_gb_per_s": 1, "write_behind": True}, {}, r"write_behind: needs staging_gib"),
        ({"write_gb_per_s": 1, "read_gb_per_s": 1, "write_behind": 1}, {}, r"nvme\.write_behind: expected true or false"),
        ({"write_gb_per_s": 1, "read_gb_per_s": 1, "staging_mib": 9, "write_behind": True}, {}, r"one copy takes up to"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_key(nvme: dict, offload: dict, said: str) -> None:
    with pytest.raises(OptPipeError, match=said):
        profile(nvme, **offload)


def test_estimates_offload_to_the_machines_drives() -> None:
    machine = load_machine("h200-sxm")
    work: dict[str, Any] = {"devices": 16, "tp": 4, "seq": 8192}
    host = estimate("llama2-70b", machine, **work)
    drives = estimate("llama2-70b", replace(machine, offload_to="nvme"), **work)
    assert host.offload
    assert host.offload.nvme is None
    assert host.offload.host_limit_bytes
    assert drives.offload
    assert drives.offload.nvme
    assert drives.offload.host_limit_bytes is None
    cost = drives.stages[0]  # two stages of a node take turns; four ranks of each write at once
    assert cost.t_offload_ns == pytest.approx(cost.offloadable * 4 / 26, rel=1e-6)
    assert cost.t_reload_ns == pytest.approx(cost.offloadable * 4 / 48, rel=1e-6)
    assert drives.offload.nvme.rated_bytes == int(8 * 3.84e12 * 365 * 5) // 4
    assert replace(drives, offload=host.offload).stages[0].act_bytes == host.stages[0].act_bytes
    assert machine.nvme
    waiting = replace(machine.nvme, staging_gib=64, write_behind=True)
    later = estimate("llama2-70b", replace(machine, offload_to="nvme", nvme=waiting), **work)
    assert later.offload
    assert later.offload.nvme == replace(
        drives.offload.nvme, staging_bytes=16 * GIB, write_behind=True
    )
    assert later.stages[0].t_offload_ns == host.stages[0].t_offload_ns
    assert later.stages[0].t_reload_ns == cost.t_reload_ns
    with pytest.raises(OptPipeError, match="no NVMe data"):
        estimate("llama2-70b", replace(load_machine("mi300x"), offload_to="nvme"), **work)
    with pytest.raises(OptPipeError, match=r"offload_to: expected host or nvme, got 'tape'"):
        load_machine({"base": "h200-sxm", "offload_to": "tape"})
