"""What a layer does on the two streams of a pair, from its shapes: the parts of `profile.streams`, in ns."""

from __future__ import annotations

from typing import Any

from ..profile.streams import Streams
from .data_files import data_file
from .layer import Layer
from .machines import Machine
from .models import Model
from .recompute.regions import modules_of
from .roofline import OpTime, experts_seconds, host_seconds, message_seconds
from .work import Work

OPS = ("F", "B", "W")


def interference() -> dict[str, Any]:
    """Return how many times as long ``compute`` and ``exchange`` take while the other runs, measured
    elsewhere, with sources."""
    return data_file("published", "interference")


def slower() -> tuple[float, float]:
    """Return `Streams.slower`: of compute, and of exchange."""
    found = interference()["used"]
    return float(found["compute"]), float(found["exchange"])


def layer_streams(
    layer: Layer, times: dict[str, OpTime], machine: Machine, model: Model, work: Work
) -> Streams:
    """Return the parts of a layer's forward and backward; together they take what F, B and W do in kernels.

    What a layer spends in no kernel (launches, waiting for how many tokens each expert gets) is in none
    of them: it hides nothing, and nothing hides it. What the host takes beyond that to issue F, or B
    with W, bounds a pair from below, too. Collectives of tensor and context parallelism are with what is
    computed before tokens leave. A module that runs again is with what it belongs to; a whole layer runs
    ahead of its backward, its exchange with nothing beside it.

    Args:
        times: of F, B and W, as `op_time` has them, the exchange of tokens in full.
    """
    sent = {
        op: sum(
            message_seconds(one, machine, model, work)
            for one in layer.messages
            if (one.group, one.op) == ("ep", op)
        )
        for op in "FB"
    }
    experts = {op: experts_seconds(layer, op, machine, work) for op in OPS}
    full = layer.recompute == "full"
    if "moe_act" in modules_of(layer.recompute):  # once more, from its input
        again = sum(
            2 * kept.computed for kept in layer.kept if kept.name == "expert activation output"
        )
        experts["B"] += again / machine.memory_rate
    busy = {op: times[op].total - times[op].launches for op in OPS}
    rest = {op: busy[op] - sent.get(op, 0.0) - experts[op] for op in OPS}
    if full:
        rest["B"] -= busy["F"]
    forward = rest["F"], sent["F"] / 2, experts["F"], sent["F"] / 2
    backward = [sent["B"] / 2, experts["B"], sent["B"] / 2, rest["B"]]
    weights = experts["W"], rest["W"]
    if work.pairs != "delayed-w":
        backward[1] += weights[0]
        backward[3] += weights[1]
        weights = 0.0, 0.0

    def ns(seconds: Any) -> tuple[int, ...]:
        return tuple(max(0, round(one * 1e9)) for one in seconds)

    again_ns = ns(forward) if full else (0, 0, 0, 0)
    host = [host_seconds(layer, op, machine, work) for op in "FB"]
    host[1] += host[0] if full else 0.0  # the forward that runs again
    host = [seconds - times[op].launches for seconds, op in zip(host, "FB", strict=True)]
    return Streams(ns(forward), ns(backward), ns(weights), again_ns, ns(host), slower())
