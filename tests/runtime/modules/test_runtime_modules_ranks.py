"""A user's own modules in a process per rank: gradients, peaks, tied weights, and how it ends."""

from __future__ import annotations

import time

import own_modules as own
import pytest
import torch
from own_job import OwnJob, ReplicaJob, assert_as_unpipelined
from runtime_cases import with_offloads
from torch import nn

from optpipe_sim import build
from optpipe_sim.errors import RuntimeFault
from optpipe_sim.processes.signals import is_running
from optpipe_sim.profile import CostProfile, Offload
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.stage_cost import StageCost


def costs(stages: int, devices: int = 2) -> CostProfile:
    cost = StageCost(9, 9, 9, 1000, 500, t_offload_ns=9, t_reload_ns=9)
    return CostProfile("any", devices, (cost,) * stages, stages // devices, offload=Offload())


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v"])
def test_ranks_give_the_gradients_of_plain_autograd(two: Ranks, name: str):
    stages = 4 if name == "zb-v" else 2
    schedule = with_offloads(build(name, costs(stages), 4))
    results = two.run(OwnJob(schedule))
    assert_as_unpipelined(results, schedule)
    assert all(result["called"] for result in results)


def test_tied_weights_and_clipping_across_ranks(two: Ranks):
    tied = ([(0, "embed.weight"), (1, "head.weight")],)
    results = two.run(OwnJob(build("zb-h1", costs(2), 4), tied=tied, steps=3, lr=1e-2))
    plain = own.stages_of(2)
    plain[1].head.weight = plain[0].embed.weight
    every = list({id(p): p for stage in plain for p in stage.parameters()}.values())
    optimizer = torch.optim.AdamW(every, lr=1e-2)
    for at in range(3):
        optimizer.zero_grad()
        loss = own.unpipelined(plain, *own.batch(4, at))
        norm = float(nn.utils.clip_grad_norm_(every, 0.5))
        optimizer.step()
    assert results[1]["loss"] == pytest.approx(loss, rel=1e-4)
    assert results[0]["norm"] == results[1]["norm"] == pytest.approx(norm, rel=1e-3)
    first, last = (
        results[0]["gradients"]["0.embed.weight"],
        results[1]["gradients"]["1.head.weight"],
    )
    assert torch.equal(first, last)


def test_replicas_add_up_each_gradient_when_it_is_complete(two: Ranks):
    """Data parallelism by `ready`: an all-reduce per parameter, while later ops run."""
    job = ReplicaJob(build("zb-v", costs(2, 1), 4), build("1f1b", costs(2), 2))
    first, second = two.run(job)
    each = []
    for replica in range(2):
        plain = own.stages_of(2)
        own.unpipelined(plain, *own.batch(4, replica))
        each.append(own.gradients(plain))
    for name, one in each[0].items():
        assert torch.equal(first[name], second[name]), name
        assert torch.equal(first[name], one + each[1][name]), name


READY = "reduce gradients by ready=, which is called when one is complete"
REFUSED = {
    "hooks": "parameter layer.norm.weight has hooks on its gradient, which comes in several parts; "
    + READY,
    "fsdp": "layer is sharded by FSDP, which gathers weights around a whole backward; hand over plain"
    f" modules and {READY}",
    "ddp": "layer is in DistributedDataParallel, whose hooks expect a whole backward; hand over its"
    f" .module and {READY}",
    "dtensor": "parameter layer.norm.weight is a DTensor; stages have plain tensors",
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_refused_is_the_same_line_on_all_ranks(two: Ranks, fault: str):
    results = two.run(OwnJob(build("1f1b", costs(2), 4), fault=fault))
    assert [result["refused"] for result in results] == [f"stage 1: {REFUSED[fault]}"] * 2


def test_a_killed_rank_is_reported_in_one_line_and_no_process_is_left(two: Ranks):
    job, start, pids = (
        OwnJob(build("1f1b", costs(2), 4), fault="killed"),
        time.monotonic(),
        two.pids,
    )
    with pytest.raises(RuntimeFault) as caught:
        two.run(job)
    assert str(caught.value) == "rank 1 died (killed by SIGKILL); its last op was F1.1"
    assert time.monotonic() - start < job.timeout_s + 20
    assert not [pid for pid in pids if is_running(pid)]
