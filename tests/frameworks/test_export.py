"""torch loads our orders, and has the same ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from export_cases import OFFLOADING, offloading
from torch.distributed.pipelining import schedules as torch_schedules
from unit_profiles import unit_profile

from optpipe_sim import Schedule, Shape, build, simulate
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.files import write_text
from optpipe_sim.frameworks import nearest
from optpipe_sim.frameworks.losses import cost_of, leave_out, losses_of, most_held
from optpipe_sim.frameworks.torch_csv import (
    _TO_TORCH,
    from_torch_csv,
    load_torch_csv,
    torch_csv,
)
from optpipe_sim.ops import COMPUTE, O, Op, OpKind, R
from optpipe_sim.schedules import REGISTRY


def torch_stage(at: int, stages: int, ranks: int) -> Any:
    """What torch's schedules ask of a stage before they run it."""
    return SimpleNamespace(
        stage_index=at,
        num_stages=stages,
        group_size=ranks,
        group_rank=at % ranks,
        is_first=at == 0,
        is_last=at == stages - 1,
        submod=None,
        has_backward=True,
    )


def torch_order(name: str, ranks: int, chunks: int, microbatches: int) -> list[list[str]]:
    """The compute order of one of torch's own schedules, per rank. All of torch's underscore names
    that these tests use are here and in `torch_loads`."""
    made = getattr(torch_schedules, name)
    stages = [torch_stage(at * ranks, ranks * chunks, ranks) for at in range(chunks)]
    if issubclass(made, torch_schedules.PipelineScheduleSingle):
        order = made(stages[0], microbatches, loss_fn=max)._get_pipeline_order()
    else:
        order = made(stages, microbatches, loss_fn=max).pipeline_order
    return [[str(action) for action in order[rank] if action is not None] for rank in range(ranks)]


def torch_loads(path: Path, schedule: Schedule) -> Any:
    """torch's runtime with the schedule of a CSV, checked, lowered and simulated by torch."""
    shape = schedule.shape
    stages = [
        torch_stage(at * shape.devices, shape.stages, shape.devices) for at in range(shape.chunks)
    ]
    runtime = torch_schedules._PipelineScheduleRuntime(stages, shape.microbatches, loss_fn=max)
    runtime._load_csv(str(path), format="compute_only")
    # a dry run of the order with the messages torch added, which raises where it cannot go on; it
    # does not know what torch adds for sharded weights and gradients
    compute_and_messages = {
        rank: [action for action in order if action.microbatch_index is not None]
        for rank, order in runtime.pipeline_order_with_comms.items()
    }
    torch_schedules._simulate_comms_compute(
        compute_and_messages, runtime.stage_index_to_group_rank.__getitem__, shape.stages
    )
    return runtime


def torchs(name: str, ranks: int, chunks: int, microbatches: int) -> Schedule:
    """torch's own schedule as one of ours."""
    rows = torch_order(name, ranks, chunks, microbatches)
    return from_torch_csv("\n".join(",".join(row) for row in rows))


def ours(name: str, ranks: int, chunks: int, microbatches: int) -> Schedule:
    return build(name, unit_profile(ranks, chunks), microbatches)


@pytest.mark.parametrize("name", REGISTRY)
def test_torch_loads_every_schedule(tmp_path: Path, name: str) -> None:
    schedule = build(name, unit_profile(4, **OFFLOADING), 8)
    without = ["offloads"]
    path = write_text(tmp_path / "schedule.csv", torch_csv(schedule, without))
    runtime = torch_loads(path, schedule)
    order = [[str(action) for action in runtime.pipeline_order[rank]] for rank in range(4)]
    assert order == [line.split(",") for line in torch_csv(schedule, without).splitlines()]
    placement = runtime.stage_index_to_group_rank
    assert tuple(placement[stage] for stage in range(len(placement))) == schedule.shape.placement
    compute = [[op for op in program if op.kind in COMPUTE] for program in schedule.programs]
    assert load_torch_csv(path) == Schedule(schedule.shape, compute)


def test_torch_names_of_ops() -> None:
    schedule = Schedule(Shape(1, 1, 2), [["F0.0", "O0.0", "F0.1", "B0.1", "R0.0", "W0.1", "BW0.0"]])
    assert torch_csv(schedule, ["offloads"]) == "0F0,0F1,0I1,0W1,0B0\n"


def test_torch_is_not_told_of_offloads_in_silence() -> None:
    schedule = build("po-h", unit_profile(4, **OFFLOADING), 8)
    count = sum(op.kind is O for program in schedule.programs for op in program)
    with pytest.raises(InvalidSchedule) as caught:
        torch_csv(schedule)
    assert f"torch-csv cannot express {count} offloads; without=['offloads']" in str(caught.value)
    with pytest.raises(OptPipeError, match="'colours' is nothing that torch-csv leaves out; known"):
        torch_csv(schedule, ["colours"])
    plain = build("zb-h1", unit_profile(4), 8)
    assert torch_csv(plain, ["offloads"]) == torch_csv(plain)


def test_every_kind_of_op_is_said_or_refused() -> None:
    """A new kind of op must get a word of torch's, or an entry in `losses.CANNOT_SAY`."""
    shape = Shape(1, 1, 1)
    said = set(_TO_TORCH)
    for kind in OpKind:
        schedule = Schedule(shape, [[Op(kind, 0, 0)]])
        refused = bool(losses_of(schedule, "torch-csv"))
        assert refused == (kind not in said and kind is not R), kind  # a reload needs its offload
    with pytest.raises(InvalidSchedule, match=r"torch-csv cannot express R0\.0"):
        torch_csv(Schedule(shape, [["F0.0", "R0.0", "BW0.0"]]))


def test_what_is_left_out_takes_its_order_on_links_along() -> None:
    schedule = offloading().schedule.replace(link_order={"0/O": ["O0.0"], "0/R": ["R0.0"]})
    left = leave_out(schedule, "torch-csv", ["offloads"])
    assert left.link_order == {}
    assert left == Schedule(
        schedule.shape,
        [[op for op in program if op.kind in COMPUTE] for program in schedule.programs],
    )
    assert leave_out(schedule, "perfetto") is schedule


def test_recomputation_is_refused_or_left_out_by_name() -> None:
    levels = {"0": "full", "1.1": "full"}
    programs = [
        ["F0.0", "F0.1", "C0.0", "BW0.0", "C0.1", "BW0.1"],
        ["F1.0", "BW1.0", "F1.1", "BW1.1"],
    ]
    schedule = Schedule(Shape(2, 1, 2), programs, recompute=levels)
    with pytest.raises(InvalidSchedule, match="torch-csv cannot express 3 recomputed activations"):
        torch_csv(schedule)
    assert torch_csv(schedule, ["recomputation"]) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    left = leave_out(schedule, "torch-csv", ["recomputation"])
    assert left == Schedule(
        Shape(2, 1, 2), [[op for op in ops if op[0] != "C"] for ops in programs]
    )
    both = Schedule(Shape(1, 1, 1), [["F0.0", "O0.0", "R0.0", "BW0.0"]], recompute={"0": "full"})
    with pytest.raises(
        InvalidSchedule, match="cannot express 1 offload and 1 recomputed activation; "
    ):
        torch_csv(both)
    with pytest.raises(InvalidSchedule, match="cannot express 1 recomputed activation; "):
        torch_csv(both, ["offloads"])
    assert torch_csv(both, ["offloads", "recomputation"]) == "0F0,0B0\n"


def test_what_leaving_out_costs_is_what_a_replay_says() -> None:
    profile = unit_profile(4, **OFFLOADING, memory_limit_bytes=200)
    schedule = build("po-h", profile, 8)
    left = leave_out(schedule, "torch-csv", ["offloads"])
    cost = cost_of(schedule, left, profile)
    before, after = simulate(schedule, profile), simulate(left, profile, enforce=False)
    assert (cost.full_peak_bytes, cost.full_makespan_ns) == (before.peak_bytes, before.makespan_ns)
    assert (cost.peak_bytes, cost.makespan_ns) == (after.peak_bytes, after.makespan_ns)
    over = [device for device in range(4) if after.peak_bytes[device] > 200]
    assert over
    assert sorted(cost.above) == over
    assert cost.peak_bytes[cost.above[0]] == max(after.peak_bytes)
    assert f"device {cost.above[0]} peaks at {max(after.peak_bytes)} B of its 200 B" in str(cost)
    held = most_held(left)
    assert all(now >= then for now, then in zip(held, most_held(schedule), strict=True))


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 2), (4, 8), (5, 7)])
def test_gpipe_is_torchs(ranks: int, microbatches: int) -> None:
    assert ours("gpipe", ranks, 1, microbatches) == torchs("ScheduleGPipe", ranks, 1, microbatches)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (4, 4), (4, 9), (8, 16)])
def test_1f1b_is_torchs_but_for_the_last_rank(ranks: int, microbatches: int) -> None:
    """Torch's forwards of the last rank are numbered one too high: it never runs the forward of
    microbatch 0 and runs one that does not exist. Every other rank is as ours."""
    theirs = torch_order("Schedule1F1B", ranks, 1, microbatches)
    rows = [
        line.split(",") for line in torch_csv(ours("1f1b", ranks, 1, microbatches)).splitlines()
    ]
    lowered = [[*row, f"{rank}REDUCE_GRAD"] for rank, row in enumerate(rows)]
    assert theirs[:-1] == lowered[:-1]
    last = ranks - 1
    assert rows[-1] == [f"{last}{kind}{j}" for j in range(microbatches) for kind in "FB"]
    assert theirs[-1][:-1] == [
        f"{last}{kind}{j + (kind == 'F')}" for j in range(microbatches) for kind in "FB"
    ]


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(2, 2, 4), (4, 2, 8), (4, 3, 12)])
def test_interleaved_1f1b_is_torchs(ranks: int, chunks: int, microbatches: int) -> None:
    theirs = torchs("ScheduleInterleaved1F1B", ranks, chunks, microbatches)
    assert ours("1f1b-i", ranks, chunks, microbatches) == theirs


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 12), (8, 16)])
def test_zb_h1_is_torchs_interleaved_zero_bubble_of_one_chunk(
    ranks: int, microbatches: int
) -> None:
    theirs = torchs("ScheduleInterleavedZeroBubble", ranks, 1, microbatches)
    assert ours("zb-h1", ranks, 1, microbatches) == theirs


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 10)])
def test_dualpipe_v_is_torchs(ranks: int, microbatches: int) -> None:
    """Its pairs, too."""
    theirs = torchs("ScheduleDualPipeV", ranks, 2, microbatches)
    assert ours("dualpipe-v:pairs=yes", ranks, 2, microbatches) == theirs


def test_spaces_and_empty_lines_are_skipped() -> None:
    assert from_torch_csv("0F0 , 0B0,,\r\n\r\n1F0,1B0\r\n") == from_torch_csv("0F0,0B0\n1F0,1B0\n")


def test_reads_what_torch_lowers() -> None:
    text = "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,(1I0;1W0)OVERLAP_F_B"
    assert from_torch_csv(text) == Schedule(
        Shape(2, 1, 1), [["F0.0", "BW0.0"], ["F1.0", "B1.0", "W1.0"]]
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0F0,0X0\n", r"torch csv: rank 0: '0X0' is not an action; expected STAGE"),
        ("0F0,F0\n", r"'F0' is not an action"),
        ("0F0,0B0\n0F1,0B1\n", "stage 0 is on rank 0 and on rank 1"),
        ("0F0,0B0\n2F0,2B0\n", "stage 1 has no actions"),
        ("0F0,1F0\n2F0\n", "3 stages on 2 ranks"),
        ("\n\n", "no actions"),
        ("", "no actions"),
    ],
)
def test_bad_csv_is_one_clear_line(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchedule, match=problem) as caught:
        from_torch_csv(text)
    assert "\n" not in str(caught.value)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptPipeError, match="no such file"):
        load_torch_csv(tmp_path / "none.csv")


def test_what_a_framework_costs_says_whether_it_is_a_toss_up() -> None:
    """The bubble of 1F1B is 9 ms of 33 with 8 microbatches, and of 201 with 64; ZB-H1's a third of that."""
    profile = unit_profile(4)
    for m, unsure in ((8, False), (64, True)):
        split, whole = (build(name, profile, m) for name in ("zb-h1", "1f1b"))
        told = nearest.compare(split, whole, "1f1b", profile).cost()
        assert ("in reality a toss-up: such differences are ±5.4% off" in told) is unsure
