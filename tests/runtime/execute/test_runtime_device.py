"""What a process is told before it uses a GPU that it should not, and the groups that NCCL's messages go through."""

from __future__ import annotations

from types import SimpleNamespace

import own_modules as own
import pytest
import torch
from group_job import Meet
from runtime_cases import with_offloads
from torch import nn
from unit_profiles import unit_profile
from virtual_gpu import OnHost, VirtualGpu

from optpipe_sim import build
from optpipe_sim.errors import OptPipeError
from optpipe_sim.profile import CostProfile, Offload
from optpipe_sim.runtime import PipelineStep
from optpipe_sim.runtime.device import current_device
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.runtime.modules import examine
from optpipe_sim.stage_cost import StageCost


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, and this process uses the first."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def test_streams_and_events_are_of_the_current_gpu(gpus: None) -> None:
    assert current_device("cpu") == torch.device("cpu")
    assert current_device("cuda") == current_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(OptPipeError, match=r"cuda:1 is not .* call torch\.cuda\.set_device\(1\)"):
        current_device("cuda:1")


def test_a_stage_on_another_gpu_is_refused() -> None:
    class Elsewhere(nn.Module):
        def named_parameters(self, *_: object, **__: object):
            yield "w", SimpleNamespace(device=torch.device("cuda:1"), _backward_hooks=None)

    examine.refuse(0, Elsewhere(), torch.device("cuda:1"))
    with pytest.raises(OptPipeError, match="stage 0: parameter w is on cuda:1, not on cuda:0"):
        examine.refuse(0, Elsewhere(), torch.device("cuda:0"))


def test_one_connection_for_all_streams_is_refused(
    gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    with pytest.raises(OptPipeError, match="CUDA_DEVICE_MAX_CONNECTIONS: with 1, copies wait"):
        current_device("cuda")


@pytest.mark.parametrize(
    ("pipelines", "came"),
    [(((0, 1, 2, 3),), [[1], [0, 2], [1, 3], [2]]), (((0, 2), (3, 1)), [[2], [3], [0], [1]])],
)
def test_all_ranks_make_the_same_groups(four: Ranks, pipelines, came) -> None:
    """Also the middle ones of a pipeline, which are in more of them than its ends."""
    assert four.run(Meet(pipelines, build("1f1b", unit_profile(4), 4))) == came


def test_host_memory_is_pinned_before_the_first_message(
    gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the step it could wait for the device, and the device for a rank that does the same."""
    gpu = VirtualGpu()
    gpu.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    monkeypatch.setattr(examine, "_elsewhere", lambda *_: False)  # the modules are on the host
    cost = StageCost(9, 9, 9, 1000, 500, t_offload_ns=9, t_reload_ns=9)
    costs = CostProfile("any", 2, (cost,) * 2, offload=Offload())
    modules, drawn = own.stages_of(2), torch.get_rng_state()
    with OnHost(), gpu:
        step = PipelineStep(
            modules, with_offloads(build("gpipe", costs, 4)), own.loss, device="cuda"
        )
        step.prepare(*own.batch(4))
    assert all(rank.worker.slab.reserved for rank in step.ranks.values())
    assert gpu.faults == []
    assert torch.equal(torch.get_rng_state(), drawn)
