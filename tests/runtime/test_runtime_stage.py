"""Stages in torch: gradients of any legal order of ops, and memory that falls where it is said to."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from optpipe_sim.costs import load_model
from optpipe_sim.costs.layer import Work, layer
from optpipe_sim.costs.models import Model, parameters
from optpipe_sim.errors import OptPipeError, RuntimeFault
from optpipe_sim.ops import dependencies, parse_op
from optpipe_sim.runtime.measure.fake import fake_bytes
from optpipe_sim.runtime.measure.memory import LiveBytes
from optpipe_sim.runtime.model import stash
from optpipe_sim.runtime.model.models import build_stage, layer_counts
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.model.stage import StageWorker, token_loss
from optpipe_sim.runtime.model.stash import HostSlab

SEQ, BATCH, WIDTH = 16, 2, 32
SMALL = {"layers": 4, "hidden": WIDTH, "heads": 4, "vocab": 50}
GPT = Model("gpt", **SMALL, style="gpt", positions=SEQ)
TIED = Model("tied", **SMALL, style="gpt", positions=SEQ, tied=True)
LLAMA = Model("llama", **SMALL, kv_heads=2, ffn=48)
EXPERTS = Model(
    "experts",
    **SMALL,
    kv_heads=2,
    ffn=48,
    experts=4,
    experts_per_token=2,
    expert_ffn=24,
    shared_ffn=16,
    dense_layers=1,
    qk_norm=True,
    qkv_bias=True,
)
MODELS = (GPT, TIED, LLAMA, EXPERTS)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Ops this small are slower on several threads, the more so where tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batch(microbatches: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (2, microbatches, BATCH, SEQ)
    tokens, targets = torch.randint(0, SMALL["vocab"], shape, generator=generator)
    return tokens, targets


def worker_of(model: Model, stages: int, dtype: str = "fp32") -> StageWorker:
    made = [build_stage(model, s, stages, seq=SEQ, dtype=dtype) for s in range(stages)]
    kind = next(made[0].parameters()).dtype
    return StageWorker(made, stages, ((BATCH, SEQ, WIDTH), kind))


def legal_order(stages: int, microbatches: int, seed: int) -> Iterator[tuple[str, int, int]]:
    """Every op once, drawn among those whose dependencies are met; some activations offloaded.

    Each stage takes the backward passes of its microbatches in order, which bitwise sums need.
    """
    draw = random.Random(seed)
    todo = []
    for s in range(stages):
        for j in range(microbatches):
            kinds = draw.choice((["F", "BW"], ["F", "B", "W"], ["F", "O", "R", "B", "W"]))
            todo += [(kind, s, j) for kind in kinds]

    def ready(op: tuple[str, int, int]) -> bool:
        kind, s, j = op
        needed = {str(one) for one in dependencies(parse_op(f"{kind}{s}.{j}"))}
        needed |= {f"{k}{s}.{i}" for i in range(j) for k in ("B", "W", "BW") if kind[0] in "BW"}
        return not needed & {f"{k}{at}.{i}" for k, at, i in todo}

    while todo:
        op = draw.choice([one for one in todo if ready(one)])
        todo.remove(op)
        yield op


def run_step(worker: StageWorker, order: Iterator[tuple[str, int, int]], m: int) -> Tensor | None:
    worker.start_step(*batch(m))
    forward: dict[tuple[int, int], Tensor | None] = {}
    backward: dict[tuple[int, int], Tensor | None] = {}
    for kind, s, j in order:
        if kind == "F":
            forward[s + 1, j] = worker.forward(s, j, forward.pop((s, j), None))
        elif kind in ("B", "BW"):
            dy = backward.pop((s, j), None)
            backward[s - 1, j] = worker.backward(s, j, dy, fused=kind == "BW")
        elif kind == "W":
            worker.weight(s, j)
        elif kind == "O":
            worker.offload(s, j)
            worker.drop(s, j)
        else:
            worker.reload(s, j)
    return worker.finish_step()


def unpipelined(model: Model, m: int, dtype: str = "fp32") -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of the whole model by plain autograd."""
    whole = build_stage(model, 0, 1, seq=SEQ, dtype=dtype)
    losses = []
    for tokens, targets in zip(*batch(m), strict=True):
        loss = token_loss(whole(tokens), targets)
        (loss * (1 / m)).backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean(), {n: p.grad for n, p in whole.named_parameters()}


def gradients(worker: StageWorker) -> Iterator[tuple[str, Tensor]]:
    for module in worker.modules.values():
        for name, parameter in module.named_parameters():
            yield name, parameter.grad


@pytest.mark.parametrize("model", [GPT, LLAMA, EXPERTS], ids=lambda model: model.name)
@pytest.mark.parametrize(
    ("stages", "dtype", "seed"), [(1, "fp32", 1), (4, "fp32", 2), (4, "bf16", 3)]
)
def test_any_legal_order_gives_the_unpipelined_gradients_bitwise(
    model, stages, dtype, seed
) -> None:
    loss, wanted = unpipelined(model, 3, dtype)
    worker = worker_of(model, stages, dtype)
    assert torch.equal(run_step(worker, legal_order(stages, 3, seed), 3), loss)
    found = dict(gradients(worker))
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
    assert worker.held_bytes() == 0


@pytest.mark.parametrize("stages", [1, 3])
def test_a_tied_head_shares_one_gradient_across_stages(stages) -> None:
    _, wanted = unpipelined(TIED, 2)
    worker = worker_of(TIED, stages)
    run_step(worker, legal_order(stages, 2, 5), 2)
    first, last = worker.tied(0), worker.tied(stages - 1)
    assert (first is last) == (stages == 1)
    assert torch.equal(first.grad, last.grad)
    for name, found in gradients(worker):
        # the two parts of the tied gradient are summed in another order
        want = wanted[name.replace("head", "tokens")]
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-7, msg=name)


def test_ws_in_another_order_give_the_same_within_rounding() -> None:
    _, wanted = unpipelined(LLAMA, 4)
    worker = worker_of(LLAMA, 2)
    ops = [(k, s, j) for k in "F" for s in (0, 1) for j in range(4)]
    ops += [("B", s, j) for s in (1, 0) for j in (2, 0, 3, 1)]
    ops += [("W", s, j) for s in (0, 1) for j in (3, 1, 0, 2)]
    run_step(worker, iter(ops), 4)
    for name, found in gradients(worker):
        torch.testing.assert_close(found, wanted[name], rtol=1e-5, atol=1e-7)


def test_gradients_add_up_over_steps() -> None:
    worker = worker_of(LLAMA, 2)
    run_step(worker, legal_order(2, 1, 1), 1)
    once = {name: grad.clone() for name, grad in gradients(worker)}
    run_step(worker, legal_order(2, 1, 1), 1)
    assert all(torch.equal(grad, 2 * once[name]) for name, grad in gradients(worker))


class Twice(nn.Module):
    """A linear that is used twice, and a weight that autograd saves transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.plain = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(torch.tanh(self.linear(x)))) @ self.plain.t()


@pytest.mark.parametrize("fused", [False, True])
def test_any_module_will_do_and_weights_may_be_used_twice(fused) -> None:
    torch.manual_seed(0)
    stages = [
        nn.Linear(WIDTH, WIDTH),
        Twice(),
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)),
    ]
    whole = nn.Sequential(*stages)
    inputs, targets = torch.randn(3, 8, WIDTH), torch.randn(3, 8, 4)
    for x, y in zip(inputs, targets, strict=True):
        (functional.mse_loss(whole(x), y) / 3).backward()
    wanted = [parameter.grad for parameter in whole.parameters()]
    whole.zero_grad()
    worker = StageWorker(stages, 3, ((8, WIDTH), torch.float32), loss=functional.mse_loss)
    assert worker.linears == {0: 1, 1: 1, 2: 1}
    worker.start_step(inputs, targets)
    for j in range(3):
        x = None
        for s in range(3):
            x = worker.forward(s, j, x)
        dy = None
        for s in (2, 1, 0):
            dy = worker.backward(s, j, dy, fused=fused)
            if not fused:
                worker.weight(s, j)
        assert dy is None
    worker.finish_step()
    for parameter, want in zip(whole.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, want, rtol=0, atol=0)


def middle(module: nn.Module, allocated=None) -> StageWorker:
    """The middle one of three stages, its step begun."""
    worker = StageWorker({1: module}, 3, ((8, WIDTH), torch.float32), rank=1, allocated=allocated)
    worker.start_step()
    return worker


SIZE = 8 * WIDTH * 4  # of a message


def test_memory_falls_at_drop_and_rises_at_reload() -> None:
    worker = middle(nn.Linear(WIDTH, WIDTH))
    x = torch.randn(8, WIDTH)
    alive = weakref.ref(x.untyped_storage())
    y = worker.forward(1, 0, x)
    del x
    assert worker.held_bytes() == SIZE
    assert worker.offload_sizes(1, 0) == [SIZE]  # the input; no parameter
    worker.offload(1, 0)
    assert worker.held_bytes() == SIZE
    assert alive() is not None
    worker.drop(1, 0)
    assert worker.held_bytes() == 0
    assert alive() is None  # nothing else holds it
    worker.allocate(1, 0)
    assert worker.held_bytes() == SIZE
    worker.reload(1, 0)
    worker.backward(1, 0, torch.ones_like(y), fused=False)
    assert worker.held_bytes() == 2 * SIZE  # x and dY until W
    worker.weight(1, 0)
    assert worker.held_bytes() == 0


def test_a_transposed_parameter_is_no_activation() -> None:
    worker = middle(Twice())
    worker.forward(1, 0, torch.randn(8, WIDTH))
    # the input, the two tanh; neither weight
    assert sorted(worker.offload_sizes(1, 0)) == [SIZE] * 3


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_held_bytes_are_those_that_live(stage) -> None:
    module = build_stage(EXPERTS, stage, 3, seq=SEQ)
    with LiveBytes() as live:
        boundary = ((BATCH, SEQ, WIDTH), torch.float32)
        worker = StageWorker({stage: module}, 3, boundary, allocated=live.add)
        for parameter in worker.parameters():
            parameter.grad = torch.zeros_like(parameter)
        worker.start_step(*batch(2))
        before = live.held()

        def held() -> int:
            assert abs(live.held() - before - worker.held_bytes()) <= 8  # the losses
            return worker.held_bytes()

        for j in (0, 1):
            worker.forward(stage, j, torch.zeros(boundary[0]) if stage else None)
        act = held() // 2
        assert act > 2**15
        worker.offload(stage, 1)
        worker.drop(stage, 1)
        assert held() == act
        worker.reload(stage, 1)
        assert held() == 2 * act
        for j, fused in ((0, False), (1, True)):
            dy = None if stage == 2 else torch.ones(boundary[0])
            worker.backward(stage, j, dy, fused=fused)
            del dy
            assert 0 < held() < (2 - j) * act
        worker.weight(stage, 0)
        assert held() == 0


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
def test_a_layer_holds_what_the_costs_say(model) -> None:
    work = Work(BATCH, SEQ, dtype="fp32", sequence_parallel=False)
    module = build_stage(model, 1, 4, seq=SEQ)
    worker = StageWorker({1: module}, 4, ((BATCH, SEQ, WIDTH), torch.float32))
    worker.start_step()
    y = worker.forward(1, 0, torch.zeros(BATCH, SEQ, WIDTH))
    one = layer(model, True, work)
    # no dropout here, so no masks; and small fp32 statistics that the costs leave out
    masks = sum(kept.size for kept in one.kept if "mask" in kept.name)
    assert worker.held_bytes() == pytest.approx(one.kept_bytes() - masks, rel=0.02)
    worker.backward(1, 0, torch.ones_like(y), fused=False)
    assert worker.held_bytes() == pytest.approx(one.held_for_w, rel=0.02)


def test_host_memory_is_used_again() -> None:
    slab = HostSlab(pinned=False)
    worker = middle(nn.Linear(WIDTH, WIDTH))
    worker.slab = slab
    for _ in range(3):
        y = worker.forward(1, 0, torch.randn(8, WIDTH))
        worker.offload(1, 0)
        worker.drop(1, 0)
        worker.reload(1, 0)
        worker.backward(1, 0, torch.ones_like(y), fused=True)
    assert slab.reserved == SIZE
    one, two = slab.take(100), slab.take(100)
    assert one.data_ptr() != two.data_ptr()
    assert one.numel() == 100


def test_pinned_memory_is_little_more_than_what_is_offloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slabs are powers of two, as pinned allocations are; pieces are not."""
    monkeypatch.setattr(
        stash, "_host_memory", lambda size, pinned: torch.empty(size, device="meta")
    )
    monkeypatch.setattr(HostSlab, "give", lambda self, piece, end=None: None)
    plan = Plan(load_model("llama2-7b"), 8, seq=4096, dtype="bf16")
    sizes = fake_bytes(plan, 1).copied
    for count in (1, 3, 8):
        slab = HostSlab(pinned=True)
        slab.reserve(sizes * count)
        assert sum(sizes) * count <= slab.reserved <= 1.1 * sum(sizes) * count + stash.SLAB_BYTES


def test_reserved_memory_is_handed_out() -> None:
    slab = HostSlab(pinned=False)
    slab.reserve((3000, 100, 3000))
    before = slab.reserved
    pieces = [slab.take(size) for size in (3000, 3000, 100)]
    assert slab.reserved == before >= 6100
    assert len({piece.data_ptr() for piece in pieces}) == 3
    slab.take(100)
    assert slab.reserved > before


class EditsLater(nn.Module):
    """Edits what sigmoid has saved."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(x)
        y.mul_(3.0)
        return y


def fail(worker: StageWorker, *steps: str) -> str:
    """Run the steps; the last one is refused with a line that names op and device."""
    x = torch.randn(8, WIDTH)
    calls = {
        "F": lambda: worker.forward(1, 0, x),
        "B": lambda: worker.backward(1, 0, torch.ones(8, WIDTH), fused=False),
        "W": lambda: worker.weight(1, 0),
        "O": lambda: worker.offload(1, 0),
        "drop": lambda: worker.drop(1, 0),
        "R": lambda: worker.reload(1, 0),
        "edit": lambda: x.add_(1.0),
        "finish": worker.finish_step,
    }
    for step in steps[:-1]:
        calls[step]()
    with pytest.raises(RuntimeFault) as caught:
        calls[steps[-1]]()
    line = str(caught.value)
    assert "rank 1 (cpu)" in line
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("F O drop B", "B1.0 on rank 1 (cpu): its activation is on the host: R1.0 has to come"),
        ("F drop", "drop 1.0 on rank 1 (cpu): its O has not run"),
        ("F O O", "O1.0 on rank 1 (cpu): offloaded twice"),
        ("F O drop drop", "drop 1.0 on rank 1 (cpu): it is dropped already"),
        ("F R", "R1.0 on rank 1 (cpu): nothing was dropped"),
        ("F O R", "R1.0 on rank 1 (cpu): nothing was dropped"),
        ("F F", "F1.0 on rank 1 (cpu): runs twice"),
        ("B", "B1.0 on rank 1 (cpu): needs F before; it never had F"),
        ("F W", "W1.0 on rank 1 (cpu): needs B before; it has had F"),
        ("F B B", "B1.0 on rank 1 (cpu): needs F before; it has had B"),
        ("F B O", "O1.0 on rank 1 (cpu): needs F before; it has had B"),
        ("F B finish", "ops are missing: 1.0 has only had B"),
        ("F edit B", "B1.0 on rank 1 (cpu): a tensor (8, 32) that F1.0 saved was edited in place"),
        ("F edit O", "O1.0 on rank 1 (cpu): a tensor (8, 32) that F1.0 saved was edited in place"),
        ("F O edit drop", "drop 1.0 on rank 1 (cpu): a tensor (8, 32) that F1.0 saved"),
        ("F B edit W", "W1.0 on rank 1 (cpu): an input or output gradient of a linear"),
    ],
)
def test_faults_name_the_op_and_the_device(steps, said) -> None:
    assert said in fail(middle(nn.Linear(WIDTH, WIDTH)), *steps.split())


def test_an_edit_inside_a_stage_is_noticed() -> None:
    said = fail(middle(EditsLater()), "F", "B")
    assert "F1.0 saved was edited in place afterwards (version 1, saved as 0)" in said


def test_a_weight_that_changes_between_f_and_b_is_noticed() -> None:
    module = nn.Linear(WIDTH, WIDTH)
    worker = middle(module)
    worker.forward(1, 0, torch.randn(8, WIDTH))
    with torch.no_grad():
        module.weight.add_(1.0)
    with pytest.raises(RuntimeFault, match="edited in place between F and B"):
        worker.backward(1, 0, torch.ones(8, WIDTH), fused=False)


def test_a_microbatch_that_the_batch_has_not() -> None:
    worker = worker_of(LLAMA, 2)
    worker.start_step(*batch(2))
    with pytest.raises(RuntimeFault, match=r"F0\.2 on rank 0 \(cpu\): no input; .* 2 microbatches"):
        worker.forward(0, 2, None)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_stages_hold_the_weights_of_the_whole_however_it_is_cut(model) -> None:
    whole = dict(build_stage(model, 0, 1, seq=SEQ, seed=7).named_parameters())
    assert sum(p.numel() for p in whole.values()) == parameters(model)
    for stages in (2, 5):
        found = {}
        for s in range(stages):
            found |= dict(build_stage(model, s, stages, seq=SEQ, seed=7).named_parameters())
        if model.tied:
            assert torch.equal(found.pop("head.weight"), found["tokens.weight"])
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], whole[name]) for name in whole)
    other = build_stage(model, 0, 1, seq=SEQ, seed=8)
    assert not torch.equal(other.tokens.weight, whole["tokens.weight"])
    assert torch.get_default_dtype() is torch.float32


def test_layers_are_balanced_or_as_given() -> None:
    assert sum(layer_counts(LLAMA, 3, seq=SEQ)) == 4
    assert layer_counts(LLAMA, 2, seq=SEQ, layers=[1, 3]) == [1, 3]
    with pytest.raises(OptPipeError, match="layers: expected 2 numbers that add up to 4"):
        layer_counts(LLAMA, 2, seq=SEQ, layers=[1, 2])
    with pytest.raises(OptPipeError, match="stages: 9 "):
        build_stage(LLAMA, 0, 9, seq=SEQ)
    with pytest.raises(OptPipeError, match="gpt has positions for 16"):
        build_stage(GPT, 0, 1, seq=SEQ + 1)


def test_the_future_does_not_reach_the_past() -> None:
    tokens = batch(1)[0][0]
    for model in (GPT, LLAMA):
        whole = build_stage(model, 0, 1, seq=SEQ)
        later = tokens.clone()
        later[:, -1] = (later[:, -1] + 1) % model.vocab
        one, two = whole(tokens), whole(later)
        assert torch.equal(one[:, :-1], two[:, :-1])
        assert not torch.equal(one[:, -1], two[:, -1])
