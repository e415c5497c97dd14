"""Stages in torch: any legal order of ops gives the gradients of the unpipelined model."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from runtime_cases import assert_equal
from stage_cases import (
    EXPERTS,
    GPT,
    LLAMA,
    SEQ,
    TIED,
    WIDTH,
    Twice,
    batch,
    held_bytes,
    worker_of,
)
from torch import Tensor, nn
from torch.nn import functional

from optpipe_sim.costs.models import Model
from optpipe_sim.ops import dependencies, parse_op
from optpipe_sim.runtime.model.decoder import build_stage
from optpipe_sim.runtime.model.stage import StageWorker, token_loss


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
    assert_equal(dict(gradients(worker)), wanted)
    assert held_bytes(worker) == 0


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


def test_w_ops_in_another_order_give_the_same_gradients_within_rounding() -> None:
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
