"""Slices of sequences on real stages: the gradients of whole sequences, and memory as predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import stage_cases
import torch
from runtime_cases import (
    EXPERTS,
    SEQ,
    measured,
    plan_of,
    profile_of,
    run_all,
    with_levels,
    with_offloads,
)
from soundness import check_programs
from stage_cases import LLAMA
from torch import Tensor

from optpipe_sim import build, load_profile
from optpipe_sim.costs.models import Model
from optpipe_sim.errors import InvalidSchedule, OptPipeError, RuntimeFault
from optpipe_sim.ops import BW, C, F, O, Op, R
from optpipe_sim.profile_io import save_profile
from optpipe_sim.runtime import schedule_class
from optpipe_sim.runtime.confirm.case import Case
from optpipe_sim.runtime.confirm.case import plan_of as plan_of_profile
from optpipe_sim.runtime.confirm.task import Task
from optpipe_sim.runtime.confirm.verdict import compare_gradients, peaks_after_ops
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.runtime.execute.serial import SerialRun
from optpipe_sim.runtime.execute.unpipelined import named_gradients, reference
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.model.split import zero_gradients
from optpipe_sim.runtime.program.program import keys_moved, linear_programs
from optpipe_sim.runtime.train.task import TrainTask
from optpipe_sim.schedule import Schedule
from optpipe_sim.sim.lower import Lowered, lower

GPT, TIED = (replace(model, positions=SEQ) for model in (stage_cases.GPT, stage_cases.TIED))
EQUAL = {s: (SEQ // s,) * s for s in (2, 4)}
UNEQUAL = (12, 10, 6, 4)
NAMES = ("seq1f1b", "seq1f1b-i:chunks=2", "seq-zb", "mepipe:chunks=2", "slimpipe")


def case_of(
    name: str, model: Model, p: int, slices: tuple[int, ...], m: int = 4
) -> tuple[Plan, Lowered]:
    chunks = 2 if "chunks" in name else 1
    profile = profile_of(model, p, chunks, slices=slices)
    return plan_of(model, p, chunks, slices), lower(build(name, profile, m), profile)


def serially(plan: Plan, lowered: Lowered) -> tuple[SerialRun, dict[str, Tensor]]:
    """A run of all ranks, its memory measured, and its gradients."""
    workers, found = run_all(plan, lowered)
    return found, {n: g for worker in workers.values() for n, g in named_gradients(worker).items()}


def losses_bytes(lowered: Lowered) -> int:
    """The last stage keeps the loss of every unit to the end of the step."""
    return 4 * lowered.schedule.shape.units


def in_order(plan: Plan, m: int) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients slice by slice in one process: each microbatch forward, then back."""
    worker = Plan(plan.model, 1, 1, plan.seq, plan.microbatch, slices=plan.slices).worker(0, "cpu")
    zero_gradients(worker.parameters())
    worker.start_step(*plan.step_batch(m, 0))
    for mb in range(m):
        units = range(mb * len(plan.slices), (mb + 1) * len(plan.slices))
        for unit in units:
            worker.forward(0, unit, None)
        for unit in reversed(units):
            worker.backward(0, unit, None, fused=True)
    loss = worker.finish_step()
    assert loss is not None
    return float(loss), named_gradients(worker)


@pytest.mark.parametrize(
    ("p", "model", "slices", "names"),
    [
        (2, GPT, EQUAL[2], NAMES),
        (2, LLAMA, UNEQUAL, NAMES),
        (4, LLAMA, EQUAL[4], ("seq1f1b", "seq-zb", "mepipe")),
    ],
    ids=["gpt", "llama", "four"],
)
def test_gradients_of_whole_sequences_and_memory_after_every_op(p, model, slices, names) -> None:
    """As near to fp64 as the unsliced model's gradients, bitwise the same in every schedule; and the bytes
    that the profile says."""
    plan = plan_of(model, p, 1, slices)
    loss, found = in_order(plan, p)
    expected, wanted = reference(plan, p, 0)
    _, exact = reference(plan, p, 0, exact=True)
    verdict = compare_gradients(found, loss, wanted, expected, exact)
    assert verdict.bitwise + (verdict.rounded or 0) == verdict.parameters, verdict
    assert verdict.problems(1e-6) == []
    for name in names:
        plan, lowered = case_of(name, model, p, slices, p)
        run, gradients = serially(plan, lowered)
        assert run.loss == loss, name
        assert gradients.keys() == found.keys()
        assert [n for n in found if not torch.equal(gradients[n], found[n])] == [], name
        held = [run.held[rank] for rank in range(p)]
        for peak in peaks_after_ops(lowered.schedule, lowered.profile, held):
            last = peak.rank == lowered.schedule.shape.placement[-1]
            assert 0 <= peak.off_bytes <= last * losses_bytes(lowered), (name, peak)


def test_keys_and_values_are_part_of_the_profile() -> None:
    """2 sequences, 2 layers each, 2 heads of 8 for keys and values, 4 bytes each; none of the last slice, which
    no other reads."""
    for cost in profile_of(LLAMA, 2, slices=UNEQUAL).stages:
        kv = [part.kv_bytes for part in cost.slices]
        assert kv == [2 * tokens * 2 * 2 * 2 * 8 * 4 for tokens in (*UNEQUAL[:-1], 0)]
        for part in cost.slices:  # but for the loss, which nothing offloads
            assert 0 <= part.act_bytes - part.kv_bytes - part.offload_bytes <= 4


def test_offloaded_slices_leave_their_keys_and_values() -> None:
    profile = profile_of(LLAMA, 2, slices=EQUAL[4])
    base = build("seq-zb", profile, 4)
    lowered = lower(with_offloads(base), profile)
    assert any(op.kind is O for program in lowered.schedule.programs for op in program)
    plan = plan_of(LLAMA, 2, 1, EQUAL[4])
    run, gradients = serially(plan, lowered)
    _, expected = serially(plan, lower(base, profile))
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)
    held = [run.held[rank] for rank in range(2)]
    for peak in peaks_after_ops(lowered.schedule, lowered.profile, held):
        assert 0 <= peak.off_bytes <= losses_bytes(lowered), peak


@pytest.mark.parametrize("apart", [False, True], ids=["inside", "apart"])
def test_levels_of_recomputation_over_slices(apart: bool) -> None:
    """Bitwise the gradients without any, and the memory that the profile says after every op, offloads beside it;
    keys and values stay."""
    names = ("norms", "qkv+attention", "full")
    profile = profile_of(LLAMA, 2, levels=names, slices=UNEQUAL)
    for cost in profile.stages:
        for part in cost.slices:
            kept = [level.keep_bytes for level in part.recompute]
            assert [level.name for level in part.recompute] == list(names)
            assert part.act_bytes > max(kept)
            assert min(kept) == kept[2] > part.kv_bytes
            assert part.kv_bytes > 0 or part is cost.slices[-1]
    base = build("seq-zb", profile, 4)
    schedule = with_levels(with_offloads(base), names, apart=apart)
    assert any(op.kind is C for program in schedule.programs for op in program) == apart
    lowered, plan = lower(schedule, profile), plan_of(LLAMA, 2, 1, UNEQUAL)
    run, gradients = serially(plan, lowered)
    _, expected = serially(plan, lower(base, profile))
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)
    for peak in peaks_after_ops(lowered.schedule, profile, [run.held[rank] for rank in range(2)]):
        assert 0 <= peak.off_bytes <= losses_bytes(lowered), peak


def test_ranks_run_slices(two: Ranks) -> None:
    """Threads and gloo: unequal slices, a copy engine at work, and a tied head."""
    for name, model, change in (
        ("seq1f1b", GPT, lambda schedule: schedule),
        ("seq-zb", GPT, with_offloads),
        ("mepipe:chunks=2", TIED, lambda schedule: schedule),
    ):
        plan, lowered = case_of(name, model, 2, UNEQUAL)
        lowered = lower(change(lowered.schedule), lowered.profile)
        results = two.run(Task(Case(lowered.schedule, lowered.profile, plan=plan), "gradient"))
        loss, wanted = in_order(plan, 4)
        assert [r.records[0].loss for r in results if r.records[0].loss is not None] == [loss]
        for result in results:
            for each in result.gradients.keys() & wanted.keys():
                gradient = result.gradients[each]
                if model is TIED and each == "tokens.weight":  # first per stage, then both
                    torch.testing.assert_close(gradient, wanted[each], rtol=1e-5, atol=1e-7)
                else:
                    assert torch.equal(gradient, wanted[each]), (name, each)


def with_late_offloads(schedule: Schedule, *, back_first: bool) -> Schedule:
    """All slices but the last go to the host behind the last one's F, keys and values with them; each is
    back before its own backward, or all are before the first one, which reads them."""
    last = schedule.shape.slices - 1
    programs = []
    for program in schedule.programs:
        out: list[Op] = []
        for op in program:
            before = [op.slice] if not back_first else list(range(last)) if op.slice == last else []
            first = C if any(o.kind is C for o in program) else BW
            if op.kind is first:
                out += [op._replace(kind=R, slice=at) for at in before if at != last]
            out.append(op)
            if op.kind is F and op.slice == last:
                out += [op._replace(kind=O, slice=at) for at in range(last)]
        programs.append(out)
    return schedule.replace(programs=programs)


@pytest.mark.parametrize("back_first", [True, False], ids=["first", "late"])
def test_keys_and_values_are_offloaded_behind_the_last_forward(
    back_first: bool, two: Ranks
) -> None:
    """Slices that are recomputed and offloaded then move all that they keep; backward passes and recomputations
    of later slices read keys and values on the host where they are not back yet."""
    profile = profile_of(LLAMA, 2, levels=("full",), slices=UNEQUAL)
    plan = plan_of(LLAMA, 2, 1, UNEQUAL)
    _, expected = serially(plan, lower(build("seq1f1b", profile, 2), profile))
    for name in ("seq1f1b:recompute=full", "seq1f1b:recompute=full,apart=yes"):
        late = with_late_offloads(build(name, profile, 2), back_first=back_first)
        lowered = lower(late, profile)
        moved = keys_moved(lowered.schedule, profile)
        assert len(moved) == 2 * 2 * 3  # devices, microbatches, slices
        check_programs(linear_programs(lowered), lowered.schedule)
        run, gradients = serially(plan, lowered)
        assert all(torch.equal(gradients[name], expected[name]) for name in expected)
        held = [run.held[rank] for rank in range(2)]
        for peak in peaks_after_ops(lowered.schedule, profile, held):
            # an R that is granted while its O still runs takes no memory here: after the last forward
            # rank 1 goes straight on to the backward
            exact = peak.rank == 0 and not back_first
            assert peak.off_bytes <= losses_bytes(lowered), peak
            assert peak.off_bytes >= 0 or not exact, peak
    for result in two.run(Task(Case(late, profile, plan=plan), "gradient")):
        for each, gradient in result.gradients.items():
            assert torch.equal(gradient, expected[each]), each


def test_an_offload_of_keys_waits_for_the_last_forward() -> None:
    profile = profile_of(LLAMA, 2, levels=("full",), slices=UNEQUAL)
    late = with_late_offloads(build("seq1f1b:recompute=full", profile, 2), back_first=True)
    programs = list(linear_programs(lower(late, profile)))
    at = next(n for n, step in enumerate(programs[0].steps) if step.keys)
    steps = list(programs[0].steps)
    steps[at] = replace(steps[at], after=steps[at].after[:1])
    programs[0] = replace(programs[0], steps=tuple(steps))
    with pytest.raises(InvalidSchedule, match=r"offload O0\.0/0: .* wait for the end of F0\.0/3"):
        check_programs(programs, late)


# -- what is refused -------------------------------------------------------------------------------


def test_slices_in_a_wrong_order() -> None:
    plan = plan_of(GPT, 1, 1, EQUAL[2])
    worker = plan.worker(0, "cpu")
    worker.start_step(*plan.step_batch(1, 0))
    with pytest.raises(
        RuntimeFault, match=r"F0\.0/1 on rank 0 .*keys and values of 1 slices; 0 have"
    ):
        worker.forward(0, 1, None)
    worker.forward(0, 0, None)
    with pytest.raises(RuntimeFault, match=r"B0\.0/0 on rank 0 .*1 slices add .*; 0 have"):
        worker.backward(0, 0, None, fused=False)


def test_a_program_whose_slices_are_out_of_order() -> None:
    _, lowered = case_of("seq1f1b", GPT, 2, EQUAL[2])
    programs = list(linear_programs(lowered))
    check_programs(programs, lowered.schedule)
    steps = list(programs[1].steps)
    one, other = [at for at, step in enumerate(steps) if step.do == "run"][:2]
    steps.insert(other, steps.pop(one))
    programs[1] = replace(programs[1], steps=tuple(steps))
    with pytest.raises(
        InvalidSchedule, match=r"rank 1: run F1\.0/1: it does not wait for the end of F1\.0/0"
    ):
        check_programs(programs, lowered.schedule)


def test_what_cannot_run_in_slices() -> None:
    profile = profile_of(GPT, 2, slices=EQUAL[2])
    schedule = build("seq1f1b", profile, 4)
    plan = plan_of(GPT, 2, 1, EQUAL[2])
    with pytest.raises(OptPipeError, match="into 2; training runs take whole sequences"):
        TrainTask(schedule, profile, plan, None, 1)  # type: ignore[arg-type]
    with pytest.raises(OptPipeError, match="into 2; torch's pipelines take whole sequences"):
        schedule_class(schedule, profile)
    with pytest.raises(OptPipeError, match="the schedule cuts sequences into 2, the stages into 4"):
        plan_of(GPT, 2, 1, EQUAL[4]).rank_worker(schedule.shape, 0)
    with pytest.raises(OptPipeError, match="the schedule cuts sequences into 2, the stages into 1"):
        plan_of(GPT, 2).rank_worker(schedule.shape, 0)
    with pytest.raises(OptPipeError, match="slices: experts has experts"):
        plan_of(EXPERTS, 2, 1, EQUAL[2])
    with pytest.raises(
        OptPipeError, match=r"slices: expected .* add up to the 32 of a sequence, got 16, 8"
    ):
        plan_of(GPT, 2, 1, (16, 8))


def test_a_measured_profile_has_every_slice(tmp_path: Path) -> None:
    """Its times and bytes; read again it runs the same slices, and says so where they do not fit."""
    plan = plan_of(GPT, 2, 1, UNEQUAL)
    save_profile(measured(plan, 1, 0, ["full"]), tmp_path / "p.yaml")
    profile = load_profile(tmp_path / "p.yaml")
    for cost, true in zip(profile.stages, profile_of(GPT, 2, slices=UNEQUAL).stages, strict=True):
        for part, known in zip(cost.slices, true.slices, strict=True):
            assert min(part.t_f_ns, part.t_b_ns, part.t_w_ns) > 0
            assert (part.act_bytes, part.w_bytes) == (known.act_bytes, known.w_bytes)
            assert part.kv_bytes == known.kv_bytes
            full = part.level("full")
            assert full is not None
            assert part.kv_bytes < full.keep_bytes < part.act_bytes
            assert full.t_ns > 0
    facts = profile.meta["stages"][0]
    room = facts["static_bytes"]["kv_gradients"]  # fp32, of all slices but the last
    assert room == sum(part.kv_bytes for part in profile.stages[0].slices[:-1])
    assert facts["times_us"]["F"]["median"] == pytest.approx(
        sum(facts["times_us"][f"F/{at}"]["median"] for at in range(4)), abs=0.1
    )
    assert plan_of_profile(profile) == plan
    assert plan_of_profile(profile, slices=2).slices == EQUAL[2]
