"""Schedules in the runtime of torch.distributed.pipelining: gradients, memory, what is refused."""

from __future__ import annotations

import pytest
import runtime_cases as cases
import torch
from runtime_cases import GPT, SEQ, plan_of, profile_of, with_levels, with_offloads
from torch.distributed.pipelining.schedules import PipelineScheduleMulti
from torch_pipeline import ShardedJob, TorchJob
from virtual_training import TorchOnVirtualGpus

from optpipe_sim import build
from optpipe_sim.errors import OptPipeError
from optpipe_sim.ops import O, Op
from optpipe_sim.runtime import schedule_class
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.runtime.execute.unpipelined import reference
from optpipe_sim.sim.lower import Lowered, lower

NEAR, SLACK_BYTES = 1.05, 1 << 17  # messages
FAMILIES = (
    "gpipe",
    "1f1b-i",
    "zb-h1",
    "zb-2p",
    "zb-v",
    "v-min",
    "gis-h",
    "po-h",
    "adaoffload",
    "dualpipe-v",
    "megatron-offload",
)


def lowered_of(name: str, p: int, chunks: int = 1) -> Lowered:
    """A named schedule, with offloads where it has none, under the least limit that changes nothing."""
    base = profile_of(GPT, p, chunks)
    options = {"limit": 3 * base.stages[0].act_bytes // 2} if name == "adaoffload" else {}
    schedule = build(name, base, 4, **options)
    profile = profile_of(GPT, p, schedule.shape.chunks).for_shape(schedule.shape)
    plain = lower(schedule, profile, options.get("limit"))
    if not offloads(plain):
        plain = lower(with_offloads(schedule), profile)
    return lower(plain.schedule, profile, plain.replay().peak_bytes)


def offloads(lowered: Lowered) -> list[Op]:
    return [op for program in lowered.schedule.programs for op in program if op.kind is O]


def check(
    ranks: Ranks,
    lowered: Lowered,
    why: str = "",
    exact: bool = True,
    job: type = TorchJob,
    **changes,
) -> list[dict]:
    """Run it: gradients and losses of one process, peaks as predicted and as our executor's."""
    results = ranks.run(job(lowered, plan_of(GPT, 2), **changes))
    loss, expected = reference(plan_of(GPT, 2), lowered.schedule.shape.microbatches, 0)
    found = cases.joined(results)
    if exact:
        cases.assert_equal(found, expected, why)
    else:  # W's in another order: sums are rounded differently
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    losses = next(result["losses"] for result in results if result["losses"])
    assert float(torch.tensor(losses).mean()) == loss, why
    for result, said in zip(results, lowered.replay().peak_bytes, strict=True):
        assert result["peak"] <= NEAR * said + SLACK_BYTES, why
        assert min(held for _, held in result["held"]) == 0, why
    return results


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_the_gradients_of_one_process(two: Ranks, name: str):
    """Bitwise; m is a power of two, so that torch's scaling of the sum rounds nothing."""
    check(two, lowered_of(name, 2), own=False)


def test_on_gpus_all_that_may_wait_for_the_device_is_done_before_the_first_message(two: Ranks):
    """On GPUs that are models: no race, no memory that is reused too early, no host memory pinned in the step, and
    gradients are those of the step alone."""
    for result in check(two, lowered_of("po-h", 2), job=TorchOnVirtualGpus, own=False):
        before, after = result["reserved"]
        assert before == after
        assert after > 0


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_it_holds_what_our_own_step_holds_before_each_op(two: Ranks, name: str):
    base = build(name, profile_of(GPT, 2), 4)
    profile = profile_of(GPT, 2, base.shape.chunks).for_shape(base.shape)
    for result in check(two, lower(base, profile)):
        assert result["held"] == result["own_held"]
        assert abs(result["peak"] - result["own_peak"]) <= SLACK_BYTES
        for name, gradient in result["own_gradients"].items():
            assert torch.equal(gradient, result["gradients"][name])


def test_a_solved_schedule_with_offloads_and_recomputation(two: Ranks):
    profile = profile_of(GPT, 2)
    limit = 5 * profile.stages[0].act_bytes // 4
    solved = lower(
        build("optpipe", profile, 4, limit=limit, time=1, workers=1, chunks="own"), profile, limit
    )
    assert offloads(solved)
    check(two, solved, own=False, exact=False)
    profile = profile_of(GPT, 2, levels=("norms+mlp", "full"))
    for apart in (False, True):
        mixed = with_levels(
            with_offloads(build("zb-h1", profile, 4)), ("norms+mlp", "full"), apart=apart
        )
        lowered = lower(mixed, profile, lower(mixed, profile).replay().peak_bytes)
        check(two, lowered, own=False)


def test_evaluation_before_and_after_a_step(two: Ranks):
    """Forwards alone, also where a rank has two neighbouring stages; gradients stay as they are."""
    results = check(two, lowered_of("zb-v", 2), own=False, evaluate=True)
    before, after = next(r["evaluated"] for r in results if r["losses"])
    assert torch.equal(before, after)
    assert before.shape == (8, SEQ, 96)
    assert not before.requires_grad


@pytest.mark.parametrize(("name", "reshard"), [("gpipe", True), ("zb-h1", False)])
def test_weights_that_fsdp_shards(two: Ranks, name: str, reshard: bool):
    """Gathered and reduced where torch's own schedules do; bitwise their gradients."""
    lowered = lowered_of(name, 1, 2)
    if name == "gpipe":
        assert offloads(lowered)
    job = ShardedJob(lowered, plan_of(GPT, 1, 2), reshard, build("gpipe", profile_of(GPT, 2), 1))
    for theirs, ours in two.run(job):
        assert theirs.keys() == ours.keys()
        assert [n for n in theirs if not torch.equal(theirs[n], ours[n])] == []


def test_four_ranks_called_as_torchtitan_calls_its_schedules(four: Ranks):
    """A loop of two stages per rank, with offloads; another step and an evaluation are the same calls."""
    check(four, lowered_of("1f1b-i", 4), own=False, titan=True, evaluate=True)
    check(four, lowered_of("zb-h1", 4), own=False, titan=True)


def test_torchtitan_takes_it_for_a_schedule_of_several_stages_but_not_from_a_csv():
    made = schedule_class(lowered_of("zb-h1", 2).schedule)
    assert issubclass(made, PipelineScheduleMulti)
    with pytest.raises(OptPipeError, match="csv: this class has a plan already"):
        made._load_csv(made.__new__(made), "plan.csv")


REFUSED = {
    "dtensor": "stage 1: parameter layers.4.",
    "ddp": "stage 1: it is in DistributedDataParallel, whose hooks expect a whole backward; hand over"
    " its .module and ",
    "hooks": "stage 1: parameter layers.4.",
    "builder": "stage 1: has a dw_builder; the schedule defers weight gradients by itself",
    "in place": "stage 1: edits its input in place, which the stage before it may still need",
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_work_is_refused_in_one_line_on_all_ranks(two: Ranks, fault: str):
    results = two.run(TorchJob(lowered_of("1f1b", 2), plan_of(GPT, 2), fault, own=False))
    refusals = {result["refused"] for result in results if "refused" in result}
    assert len(refusals) == 1
    assert refusals.pop().startswith(REFUSED[fault])
