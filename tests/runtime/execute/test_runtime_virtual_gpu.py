"""The executor for GPUs, the stages and the transports on a GPU that is only a model: no race, no
memory that is reused too early, and faults that are put in are found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import runtime_cases
import torch
from runtime_cases import plan_of, profile_of, with_levels, with_offloads
from virtual_gpu import VirtualGpu, nccl

from optpipe_sim import build
from optpipe_sim.ops import C, O, R
from optpipe_sim.profile import Offload
from optpipe_sim.runtime.execute import streams
from optpipe_sim.runtime.execute.nccl import Nccl
from optpipe_sim.runtime.execute.rank_step import RankStep, most_offloaded
from optpipe_sim.runtime.execute.transport import GatedLoopback, Transport
from optpipe_sim.runtime.execute.unpipelined import make_contents, named_gradients, reference
from optpipe_sim.runtime.model import stash
from optpipe_sim.runtime.model.split import zero_gradients
from optpipe_sim.runtime.model.stage import StageWorker
from optpipe_sim.runtime.program.issue import issue_order
from optpipe_sim.runtime.program.program import Prepared, levels_of, linear_programs
from optpipe_sim.sim.lower import Lowered, lower

GPT = replace(runtime_cases.GPT, layers=4)  # one or two per stage
PLAN = plan_of(GPT, 2)
M = 6
LEVELS = ("norms+mlp", "full", "stage")


@pytest.fixture(autouse=True)
def _no_streams_left() -> Iterator[None]:
    yield
    streams.copy_stream.cache_clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> VirtualGpu:
    made = VirtualGpu()
    made.install(monkeypatch)
    return made


def lowered_of(name: str, shared: bool = False, apart: bool | None = None) -> Lowered:
    """A schedule with offloads, lowered under its own peak; with recomputation, where it is said
    whether that is `apart`."""
    engines = Offload(copy_engines="shared") if shared else None
    base = build(name, profile_of(GPT, 2, offload=engines), M)
    levels = () if apart is None else LEVELS
    profile = profile_of(GPT, 2, base.shape.chunks, engines, levels).for_shape(base.shape)
    schedule = base if name == "po-h" else with_offloads(base)
    if apart is not None:
        schedule = with_levels(schedule, levels, apart=apart)
    assert any(op.kind is R for op in schedule.programs[0])
    return lower(schedule, profile, lower(schedule, profile).replay().peak_bytes)


def started(lowered: Lowered, rank: int, gpu: VirtualGpu) -> StageWorker:
    """The stages of a rank on the virtual GPU, at the start of a step."""
    worker = PLAN.rank_worker(lowered.schedule.shape, rank)
    zero_gradients(worker.parameters())
    worker.start_step(*PLAN.step_batch(M, 0))
    worker._compute = gpu.compute  # as on a CUDA device
    return worker


def contents_of(lowered: Lowered) -> dict[Any, torch.Tensor]:
    """What the ranks send to each other."""
    return make_contents(PLAN, lowered.schedule, 0).messages


def run(
    lowered: Lowered, worker: StageWorker, rank: int, transport: Transport, **options: Any
) -> None:
    """One step of a rank by the executor for GPUs."""
    streams.run_program(RankStep(worker, rank, Prepared(lowered), transport, **options))


def run_alone(lowered: Lowered, gpu: VirtualGpu, rank: int) -> StageWorker:
    """One rank with its neighbours played back, behind gates."""
    contents = contents_of(lowered)
    worker = started(lowered, rank, gpu)
    with gpu:
        run(lowered, worker, rank, GatedLoopback(contents))
    return worker


def assert_sound(lowered: Lowered, gpu: VirtualGpu) -> None:
    """Each rank alone runs without a fault, to the gradients of the unpipelined model."""
    _, expected = reference(PLAN, M, 0)
    for rank in (0, 1):
        worker = run_alone(lowered, gpu, rank)
        assert gpu.faults == []
        for parameter, gradient in named_gradients(worker).items():
            assert torch.equal(gradient, expected[parameter]), parameter


def patched(monkeypatch: pytest.MonkeyPatch, at: Any, name: str, change: Any) -> None:
    monkeypatch.setattr(at, name, change(getattr(at, name)))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["gpipe", "zb-h1", "zb-v", "po-h"])
def test_no_race_and_no_early_reuse(name: str, shared: bool, gpu: VirtualGpu) -> None:
    assert_sound(lowered_of(name, shared), gpu)
    assert len({stream.name for stream in gpu.streams}) == (2 if shared else 3)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", ["zb-h1", "1f1b-i"])
def test_no_race_where_activations_are_recomputed(name: str, apart: bool, gpu: VirtualGpu) -> None:
    """On the compute stream, some of them after a reload."""
    lowered = lowered_of(name, apart=apart)
    reloaded = {op[1:] for p in lowered.schedule.programs for op in p if op.kind is R}
    assert reloaded & levels_of(lowered.schedule).keys()
    assert_sound(lowered, gpu)


# what is left out, and what must be found then
SEEDED = {
    "the copy out does not wait for its F": ("offload", "waits", "race"),
    "the reload does not wait for its grant": ("reload", "waits", "race"),
    "memory is dropped before the copy has ended": ("drop", "event", "early reuse"),
    "B does not wait for its reload": ("run", "waits", "race"),
    "C does not wait for its reload": ("run", "waits", "race"),
}


@pytest.mark.parametrize("fault", SEEDED)
def test_seeded_faults_are_found(
    fault: str, gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    do, what, expected = SEEDED[fault]
    lowered = lowered_of("zb-h1", apart=True if fault[0] == "C" else None)

    def without_waits(real: Any) -> Any:
        def order(program: Any) -> Any:
            return tuple(
                type(issue)(issue.step, issue.stream, (), issue.makes)
                if issue.step.do == do and (fault[0] != "C" or issue.step.op.kind is C)
                else issue
                for issue in real(program)
            )

        return order

    patched(monkeypatch, streams, "issue_order", without_waits)
    if what == "event":  # the slot waits as well
        patched(monkeypatch, stash.Slot, "drop", lambda real: lambda slot, stream: real(slot))
    run_alone(lowered, gpu, 0)
    assert any(text.startswith(expected) for text in gpu.faults), gpu.faults[:3]


@pytest.mark.parametrize("marked", [True, False])
def test_a_piece_of_host_memory_is_not_written_while_a_reload_reads_it(
    marked: bool, gpu: VirtualGpu
) -> None:
    slab = stash.HostSlab(pinned=False)
    out, back = gpu.new_stream(), gpu.new_stream()
    with gpu:
        piece, target = slab.allocate(1000), torch.zeros(1000, dtype=torch.uint8)
        back.wait_event(stash._event())
        with gpu.on(back):
            target.copy_(piece)
            end = stash._event()
        address = piece.data_ptr()
        slab.release(piece, end if marked else None)
        with gpu.on(out):
            again = slab.allocate(1000)
            assert again.data_ptr() == address
            again.copy_(torch.ones(1000, dtype=torch.uint8))
    assert bool(gpu.faults) is not marked
    assert all("race: aten.copy_.default on pool 1 writes" in text for text in gpu.faults)


def test_no_step_takes_new_streams(gpu: VirtualGpu) -> None:
    lowered = lowered_of("zb-h1")
    for _ in range(3):
        run_alone(lowered, gpu, 0)
    assert gpu.pool_streams == 2


def test_gates_open_while_the_host_issues(gpu: VirtualGpu) -> None:
    """Threads of Python take turns of 5 ms, which is more than most messages are late."""
    usual = sys.getswitchinterval()
    gated = GatedLoopback({})
    gated.start()
    assert sys.getswitchinterval() == pytest.approx(1e-4)
    gated.finish()
    assert sys.getswitchinterval() == usual


def test_host_memory_is_pinned_before_the_step(gpu: VirtualGpu) -> None:
    lowered = lowered_of("po-h")
    program = linear_programs(lowered)[0]
    assert sum(most_offloaded(program).values()) > 1
    contents = contents_of(lowered)
    for warm in (False, True):
        worker = started(lowered, 0, gpu)
        with gpu:
            if warm:
                RankStep(worker, 0, Prepared(lowered), GatedLoopback({})).warm_up()
                zero_gradients(worker.parameters())
                worker.start_step(*PLAN.step_batch(M, 0))
                worker._compute = gpu.compute
            before = worker.slab.reserved
            run(lowered, worker, 0, GatedLoopback(contents))
            worker.finish_step()
        assert (worker.slab.reserved == before) is warm
    _, expected = reference(PLAN, M, 0)
    for parameter, gradient in named_gradients(worker).items():
        assert torch.equal(gradient, expected[parameter]), parameter


# -- messages ---------------------------------------------------------------------------------------


def test_nccl_messages_race_with_nothing_and_leave_when_they_are_sent(gpu: VirtualGpu) -> None:
    lowered = lowered_of("gpipe")
    programs = linear_programs(lowered)
    worker = started(lowered, 0, gpu)
    live: list[int] = []
    with gpu, nccl(gpu, done=False) as sends:
        transport = Nccl(0, programs)
        sends.clear()

        def begun(op: Any) -> None:
            # every send has ended by the time that the next op is issued
            live.append(sum(bool(work.stashed) for work in sends))
            for work in sends:
                work.done = True

        run(lowered, worker, 0, transport, begun=begun)
        assert not any(work.stashed for work in sends)
    assert gpu.faults == []
    assert len(sends) == M
    # what was sent by one op is released when the next but one is issued, at the latest
    assert max(live) == 1


def test_a_send_that_is_released_too_early_is_found(
    gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = lowered_of("gpipe")
    programs = linear_programs(lowered)
    worker = started(lowered, 0, gpu)
    with gpu, nccl(gpu) as sends:
        transport = Nccl(0, programs)
        real = Nccl.send

        def forgetful(self: Nccl, *arguments: Any) -> None:
            real(self, *arguments)
            self._out.clear()
            sends[-1].stashed.clear()

        monkeypatch.setattr(Nccl, "send", forgetful)
        run(lowered, worker, 0, transport)
    assert any(text.startswith("early reuse") for text in gpu.faults)


def test_a_message_is_not_read_before_it_is_there(
    gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = lowered_of("gpipe")
    programs = linear_programs(lowered)
    with gpu, nccl(gpu):
        transport = Nccl(1, programs)
        monkeypatch.setattr(Nccl, "recv", lambda self, op, peer: self._posted.pop(op)[1])
        run(lowered, started(lowered, 1, gpu), 1, transport)
    assert any(text.startswith("race") for text in gpu.faults)


def test_every_issue_of_a_copy_is_on_a_copy_stream() -> None:
    program = linear_programs(lowered_of("po-h"))[0]
    streams = {issue.step.do: issue.stream for issue in issue_order(program)}
    assert streams["offload"] == "offload"
    assert streams["reload"] == "reload"
    assert {issue.step.op.kind for issue in issue_order(program) if issue.stream == "offload"} == {
        O
    }
