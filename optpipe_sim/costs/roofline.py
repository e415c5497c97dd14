"""Times from shapes: products by their efficiency, attention by its kernel, the rest by bytes.

A product of (m x k) by (k x n) reaches ``gemm * k / (k + half_inner) * w / (w + half_waves)`` of the
peak, times what padding to tiles of 128 leaves; w is how often its tiles fill all multiprocessors.
It takes at least the time its operands need to pass through memory.
"""

from __future__ import annotations

from typing import NamedTuple

from .layer import Gemm, Layer, Work
from .machines import Machine
from .models import Model

TILE = 128
GRADIENT_BYTES = 4  # of a weight's gradient, summed up in fp32: W reads and writes it


class OpTime(NamedTuple):
    """Seconds of one op, by what they are spent on; `messages` is the exposed part."""

    gemm: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    messages: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)

    def plus(self, other: OpTime) -> OpTime:
        """The sum, part by part."""
        return OpTime(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, number: int) -> OpTime:
        """So many of it."""
        return OpTime(*(number * mine for mine in self))


def gemm_seconds(gemm: Gemm, op: str, machine: Machine, dtype: str, element: int) -> float:
    """How long F, B or W of one linear takes (0 for a W without weights)."""
    rows, inner, columns = gemm.rows, gemm.inner, gemm.columns
    if op == "W":
        if not gemm.weights:
            return 0.0
        rows, inner, out_bytes = gemm.inner, gemm.rows, 2 * GRADIENT_BYTES
    else:
        inner, columns = (inner, columns) if op == "F" else (columns, inner)
        out_bytes = element
    moved = element * (rows * inner + inner * columns) + out_bytes * rows * columns
    memory = gemm.groups * moved / (machine.memory_gb_per_s * 1e9 * machine.rates.bandwidth)
    peak = machine.peak(dtype) * efficiency(machine, rows, inner, columns, gemm.groups)
    return max(gemm.flops / peak, memory)


def efficiency(machine: Machine, rows: int, inner: int, columns: int, groups: int = 1) -> float:
    """The part of the peak that a product of this shape reaches."""
    rates = machine.rates
    down, across = -(-rows // TILE), -(-columns // TILE)
    padding = rows * columns / (down * across * TILE * TILE)
    waves = down * across * groups / machine.units
    deep = inner / (inner + rates.half_inner)
    return rates.gemm * padding * deep * waves / (waves + rates.half_waves)


def op_time(layer: Layer, op: str, machine: Machine, model: Model, work: Work) -> OpTime:
    """Seconds of F, B or W of one layer on one device, recomputation included in B."""
    element, dtype, rates = work.element, work.dtype, machine.rates
    gemm = sum(gemm_seconds(one, op, machine, dtype, element) for one in layer.gemms)
    attention, moved = 0.0, 0
    if op != "W":
        attention = _attention_seconds(layer, op, machine, dtype, element)
        moved = layer.elementwise_f if op == "F" else layer.elementwise_b
    if op == "B" and layer.recompute == "norms":
        # each of the dropped tensors is written once more, from an input of about its size
        moved += 2 * (layer.kept_bytes("none") - layer.kept_bytes("norms"))
    elementwise = moved / (machine.memory_gb_per_s * 1e9 * rates.bandwidth)
    exposed = 0.0
    for message in layer.messages:
        if message.op == op:
            seconds = message.size / group_bandwidth(message.group, machine, work)
            cover = {"attention": attention, "gemm": gemm * rates.gemm_overlap}
            exposed += max(0.0, seconds - cover.get(message.behind, 0.0))
    time = OpTime(gemm, attention, elementwise, exposed)
    if op == "B" and layer.recompute == "full":
        return time.plus(op_time(layer, "F", machine, model, work))
    return time


def _attention_seconds(layer: Layer, op: str, machine: Machine, dtype: str, element: int) -> float:
    """The scores: one fused kernel, or batched products (their softmax is elementwise)."""
    kind = "bf16" if dtype == "fp8" else dtype
    if layer.flash:
        # the backward kernel computes the scores again: five products where the count has four
        count = layer.attention_flops * (1 if op == "F" else 2 * 5 / 4)
        return count * layer.executed_share / (machine.peak(kind) * machine.rates.attention)
    total = 0.0
    for gemm in layer.score_gemms:
        total += gemm_seconds(gemm, "F", machine, kind, element)
        if op == "B":  # two gradients, each as large as the product itself
            total += gemm_seconds(gemm, "B", machine, kind, element)
    return total


def group_bandwidth(group: str, machine: Machine, work: Work) -> float:
    """Bytes per second of one device in the collectives of ``tp``, ``cp`` or ``ep``."""
    span = {
        "tp": work.tp,
        "cp": work.tp * work.cp,
        "ep": work.ep * work.expert_tp,
    }[group]
    return bandwidth_within(span, machine)


def bandwidth_within(span: int, machine: Machine) -> float:
    """Bytes per second of one device in a collective over that many neighbouring devices."""
    within = span <= machine.devices_per_node
    rate = machine.link_gb_per_s if within else machine.network_gb_per_s
    return rate * 1e9 * machine.rates.collective


def embedding_time(op: str, machine: Machine, model: Model, work: Work) -> OpTime:
    """The token table: rows read in F, their gradients added in W."""
    moved = work.element * model.hidden * work.norm_tokens
    if op == "B":
        # no input gradient; a profile wants some time for it
        return OpTime(elementwise=1e-6)
    times = 2 + (2 if model.gpt else 0) if op == "F" else 4
    return OpTime(elementwise=times * moved / _memory(machine))


def head_time(op: str, machine: Machine, model: Model, work: Work) -> OpTime:
    """The last norm, the head and the loss (its logits in fp32)."""
    gemm = head_gemm(model, work)
    seconds = gemm_seconds(gemm, op, machine, work.dtype, work.element)
    logits = gemm.rows * gemm.columns
    moved = {"F": (work.element + 16) * logits, "B": (8 + work.element) * logits, "W": 0}[op]
    moved += {"F": 2, "B": 4, "W": 0}[op] * work.element * model.hidden * work.norm_tokens
    exposed = 0.0
    if work.tp > 1 and op != "W":
        size = work.element * work.tokens * model.hidden * (work.tp - 1) // work.tp
        exposed = size / group_bandwidth("tp", machine, work)
    return OpTime(gemm=seconds, elementwise=moved / _memory(machine), messages=exposed)


def head_gemm(model: Model, work: Work) -> Gemm:
    """The head's product: logits of every token over this device's part of the vocabulary."""
    return Gemm("head", work.tokens, model.hidden, -(-model.vocab // work.tp))


def _memory(machine: Machine) -> float:
    return machine.memory_gb_per_s * 1e9 * machine.rates.bandwidth
