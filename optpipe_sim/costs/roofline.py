"""Times from shapes: GEMMs by their efficiency, attention by its kernel, the rest by bytes.

A GEMM of (m x k) by (k x n) reaches ``gemm * k / (k + half_inner) * w / (w + half_waves)`` of the
peak, times the share left by padding to tiles of 128; w is how often its tiles fill all multiprocessors.
The grouped GEMMs of experts reach ``m / (m + half_rows)`` of that, m tokens each.
It takes at least the time its operands need to pass through memory. With fp8 the router and the
head stay in bf16, and every other GEMM has its operands cast first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import add
from typing import NamedTuple

from .layer import FP8_BYTES, Gemm, Kept, Layer, operands, stored
from .machines import Machine
from .models import Model
from .recompute.regions import MODULES, Region, dropped, modules_of
from .work import GRADIENT_BYTES, GRAPHED, LOSS_FUSIONS, Message, Work

TILE = 128
KERNELS = 227  # of a layer with experts, F and B (published/launches.yaml)
KERNELS_PER_GEMM = 3  # of other layers: for each GEMM two kernels that only move data or send it
EXPERT_SHARE = {"F": 1 / 3, "B": 2 / 3}  # of `Rates.expert_us`
_EXPERTS = ("experts in", "experts out")  # the linears of routed experts


class OpTime(NamedTuple):
    """Seconds of one op by cause; `messages` is the exposed part, `launches` the time that layers with
    experts, and all where launches block, spend outside kernels."""

    gemm: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    messages: float = 0.0
    launches: float = 0.0

    @property
    def total(self) -> float:
        """The whole duration."""
        return sum(self)

    @property
    def compute(self) -> float:
        """The time in kernels that compute."""
        return self.gemm + self.attention + self.elementwise

    def plus(self, other: OpTime) -> OpTime:
        """Return the sum, part by part."""
        return OpTime(*map(add, self, other))

    def times(self, number: int) -> OpTime:
        """Multiply each part."""
        return OpTime(*[number * mine for mine in self])


def gemm_seconds(
    gemm: Gemm,
    op: str,
    machine: Machine,
    dtype: str,
    element: int,
    gradient_bytes: int = GRADIENT_BYTES,
) -> float:
    """Return the seconds of F, B or W of one linear (0 for a W without weights).

    W reads and writes the weight's gradient, of `gradient_bytes` per weight.
    """
    rows, inner, columns = gemm.rows, gemm.inner, gemm.columns
    if not columns:  # a model without a head
        return 0.0
    if op == "W":
        if not gemm.weights:
            return 0.0
        rows, inner, out_bytes = gemm.inner, gemm.rows, 2 * gradient_bytes
    else:
        inner, columns = (inner, columns) if op == "F" else (columns, inner)
        out_bytes = element
    moved = element * (rows * inner + inner * columns) + out_bytes * rows * columns
    per_byte = gemm.groups / machine.memory_rate
    sums = out_bytes * rows * columns * per_byte * machine.rates.exposed_sums if op == "W" else 0.0
    own, rates = gemm_dtype(gemm, dtype), machine.rates
    if element == 2 and _misses_tensor_cores(gemm) and "fp32" in machine.peak_tflops:
        own = "fp32"
    peak = machine.peak(own) * efficiency(machine, rows, inner, columns, gemm.groups)
    if own == "fp8" and rates.gemm_fp8:
        peak *= rates.gemm_fp8 / rates.gemm
    if gemm.groups > 1 and gemm.weights:
        peak *= gemm.rows / (gemm.rows + machine.rates.half_rows)
    return max(gemm.flops / peak + sums, moved * per_byte)


def _misses_tensor_cores(gemm: Gemm) -> bool:
    """Return whether a batched GEMM without weights has rows, of heads, that are no multiple of 16 bytes
    in 16-bit formats.

    cuBLAS asks for these where tensor cores are to be used well (its guide, tensor core usage).
    Measured: heads of 150 take GPT's layers 1.27 times as long as their FLOPs say (BigScience's
    chronicles of tr11-176B-ml), which is what the rate of fp32 gives.
    """
    return not gemm.weights and bool(gemm.inner % 8 or gemm.columns % 8)


def gemm_dtype(gemm: Gemm, dtype: str) -> str:
    """Return the type a GEMM is computed in: fp8 recipes leave the router and the head in bf16."""
    return "bf16" if dtype == "fp8" and gemm.name in ("router", "head") else dtype


def cast_bytes(layer: Layer, op: str, dtype: str) -> int:
    """Bytes moved to cast the operands of one layer's GEMMs to fp8, 0 for other types.

    An input (F) or an output gradient (B) is read for its largest entry, read again, and written
    twice, as it is and transposed. Casts of weights count once per iteration and are left out.
    """
    if dtype != "fp8" or op == "W":
        return 0
    products = [gemm for gemm in layer.gemms if gemm_dtype(gemm, dtype) == "fp8"]
    return sum(
        6 * gemm.groups * gemm.rows * (gemm.inner if op == "F" else gemm.columns)
        for gemm in products
    )


def efficiency(machine: Machine, rows: int, inner: int, columns: int, groups: int = 1) -> float:
    """Return the share of the peak that a GEMM of this shape reaches."""
    rates = machine.rates
    down, across = -(-rows // TILE), -(-columns // TILE)
    padding = rows * columns / (down * across * TILE * TILE)
    waves = down * across * groups / machine.units
    deep = inner / (inner + rates.half_inner)
    return rates.gemm * padding * deep * waves / (waves + rates.half_waves)


def op_time(layer: Layer, op: str, machine: Machine, model: Model, work: Work) -> OpTime:
    """Seconds of F, B or W of one layer on one device, recomputation included in B."""
    time = _compute_time(layer, op, machine, work)
    exposed = sum(
        max(
            0.0,
            message_seconds(one, machine, model, work) - _cover(layer, one, time, machine, work),
        )
        for one in layer.messages
        if one.op == op
    )
    launches = 0.0
    routed = any(gemm.name == "router" for gemm in layer.gemms)
    if routed and op != "W" and not work.cuda_graphs:
        launches = machine.rates.expert_us * 1e-6 * EXPERT_SHARE[op]
        whole = time.total + exposed + launches
        whole += _compute_time(layer, "W", machine, work).total if op == "B" else 0.0
        launches += max(0.0, host_seconds(layer, op, machine, work) - whole)
        if op == "F":
            launches = max(launches, _late_experts(layer, machine, work))
    if work.launch_blocking:
        launches += kernels(layer, op, work) * machine.rates.launch_us * 1e-6
    time = time._replace(messages=exposed, launches=launches)
    if op == "B" and layer.recompute == "full":
        return time.plus(op_time(unpaired(layer), "F", machine, model, work))
    if op == "B":
        for module in modules_of(layer.recompute):
            again = rerun(layer, MODULES[module])
            time = time.plus(op_time(again, "F", machine, model, work)) if again else time
    return time


def kernels(layer: Layer, op: str, work: Work) -> int:
    """Return about how many kernels F, B or W of a layer launches, what it recomputes left out.

    Counted in Megatron-LM's GPT layers: 18 in F, where attention is not fused, and a few more in B. W: a GEMM for each
    linear; sums of gradients that are apart take a kernel for each weight and bias, of which a linear has three
    with those of the norms, and casts another.
    """
    linears = len(layer.gemms)
    if op == "W":
        sums = {"fused": 0, "apart": KERNELS_PER_GEMM, "cast": 2 * KERNELS_PER_GEMM}
        return linears * (1 + sums[work.gradient_sums])
    if any(gemm.name == "router" for gemm in layer.gemms):
        return round(KERNELS * EXPERT_SHARE[op]) + _issued_beside(layer, op, work)
    scores = len(layer.score_gemms) or int(layer.flash)
    twice = op == "B" and not layer.flash  # a fused kernel makes all gradients of the attention
    return KERNELS_PER_GEMM * (linears + scores * (1 + twice))


def host_seconds(layer: Layer, op: str, machine: Machine, work: Work) -> float:
    """Return the seconds that the host takes to issue F, or B with W, of a layer with experts; no time
    for others.

    The rate is that of a layer without tensor parallelism that recomputes nothing; what a layer issues beside
    that takes the mean of its kernels. A forward that runs again (full recomputation) is not in it.
    """
    if op == "W" or work.cuda_graphs or not any(gemm.name == "router" for gemm in layer.gemms):
        return 0.0
    left = 1 - sum(GRAPHED[name] for name in work.cuda_graph_modules)
    shares = EXPERT_SHARE[op] * left + _issued_beside(layer, op, work) / KERNELS
    return machine.rates.host_us * 1e-6 * shares


def _late_experts(layer: Layer, machine: Machine, work: Work) -> float:
    """Return the seconds by which issuing the routed experts' forward takes longer than their kernels.

    None of it is issued ahead: how many tokens each expert gets comes to the host first (Megatron-LM's device-host
    sync in layers that drop no tokens). A backward knows it.
    """
    issuing = machine.rates.host_us * 1e-6 * EXPERT_SHARE["F"] * (1 - sum(GRAPHED.values()))
    return max(0.0, issuing - experts_seconds(layer, "F", machine, work))


def _issued_beside(layer: Layer, op: str, work: Work) -> int:
    """Return the kernels that a layer issues beside those of one without tensor parallelism and recomputation: its
    collectives, unless a graph of the attention holds them, and in B what recomputed modules run again."""
    held = "attn" in work.cuda_graph_modules
    beside = 0 if held else _collectives(layer, op)
    if op == "B" and layer.recompute != "full":
        for module in modules_of(layer.recompute):
            again = rerun(layer, MODULES[module])
            if again is not None:
                dropped_here = sum(kept.name in MODULES[module].drops for kept in layer.kept)
                beside += dropped_here + len(again.gemms) + _collectives(again, "F")
    return beside


def _collectives(layer: Layer, op: str) -> int:
    """Return how many collectives of tensor and context parallelism an op has."""
    return sum(one.number for one in layer.messages if one.op == op and one.group != "ep")


def rerun(layer: Layer, region: Region) -> Layer | None:
    """Return a layer whose F is what B runs again of a region; None where `layer` has nothing of it."""
    sizes = {kept.name: kept.computed for kept in layer.kept if kept.name in region.drops}
    if not sizes:
        return None
    sent = [one for one in unpaired(layer).messages if one.op == "F" and one.group in region.sends]
    shared = [one for one in sent if one.group == "tp"]
    messages = [one for one in sent if one.group != "tp"]
    messages += [one for one in shared if one.behind in region.gemms]
    collectives = sum(one.number for one in shared)
    if collectives > 2 and not any(one.behind in region.gemms for one in shared):
        # of the two of each block, those of the second one
        step = sum(one.size for one in shared) // collectives
        messages.append(Message("tp", "F", 2 * step, "", 2))
    moved = 2 * sum(sizes.values())  # each is written once more, from an input of about its size
    if "router" in region.gemms:  # tokens go to their experts and back
        moved += layer.routed[0] - 2 * sum(sizes[name] for name in sizes if "expert" in name)
    return replace(
        layer,
        gemms=tuple(gemm for gemm in layer.gemms if gemm.name in region.gemms),
        score_gemms=tuple(gemm for gemm in layer.score_gemms if gemm.name in region.gemms),
        attention_flops=layer.attention_flops * region.attention,
        elementwise_f=moved,
        messages=tuple(messages),
        recompute="none",
        flash=layer.flash and region.attention,
    )


def _compute_time(layer: Layer, op: str, machine: Machine, work: Work) -> OpTime:
    """Seconds of F, B or W of one layer in kernels that compute, without recomputing the whole layer."""
    element, dtype = work.element, work.dtype
    gemm = sum(
        gemm_seconds(one, op, machine, dtype, element, work.gradient_bytes) for one in layer.gemms
    )
    attention, moved = 0.0, 0
    if op != "W":
        attention = _attention_seconds(layer, op, machine, dtype, element)
        moved = layer.elementwise_f if op == "F" else layer.elementwise_b
    if op == "B" and layer.recompute == "norms":
        # each of the dropped tensors is written once more, from an input of about its size
        gone = dropped("norms")
        moved += 2 * sum(kept.computed for kept in layer.kept if kept.name in gone)
    moved += cast_bytes(layer, op, dtype)
    return OpTime(gemm, attention, moved / machine.memory_rate)


def _cover(layer: Layer, message: Message, own: OpTime, machine: Machine, work: Work) -> float:
    """Return the seconds of compute that a message can hide behind; `own`: of the op that sends it."""
    if not message.behind:
        return 0.0
    seconds = 0.0
    for op in message.during or message.op:
        whole = _compute_time(layer, op, machine, work) if message.during else own
        if message.behind == "attention":
            return whole.attention
        if message.behind == "gemm":
            seconds += whole.gemm
            continue
        if message.behind in ("experts", "rest"):
            part = experts_seconds(layer, op, machine, work)
        else:
            part = _named_seconds(layer, op, machine, work, (message.behind,))
        seconds += whole.total - part if message.behind == "rest" else part
    return seconds * machine.rates.gemm_overlap


def experts_seconds(layer: Layer, op: str, machine: Machine, work: Work) -> float:
    """Return the seconds of F, B or W that a layer computes in its routed experts."""
    moved = layer.routed[op == "B"] / machine.memory_rate if op != "W" else 0.0
    return _named_seconds(layer, op, machine, work, _EXPERTS) + moved


def _named_seconds(
    layer: Layer, op: str, machine: Machine, work: Work, names: tuple[str, ...]
) -> float:
    return sum(
        gemm_seconds(one, op, machine, work.dtype, work.element, work.gradient_bytes)
        for one in layer.gemms
        if one.name in names
    )


def unpaired(layer: Layer) -> Layer:
    """Return the layer where no other microbatch's op runs beside it, so that its tokens' exchange is exposed."""
    if not any(one.group == "ep" and one.behind for one in layer.messages):
        return layer
    bare = (one._replace(behind="") if one.group == "ep" else one for one in layer.messages)
    return replace(layer, messages=tuple(bare))


def exposed_exchange(layer: Layer, machine: Machine, model: Model, work: Work) -> float:
    """Return the seconds that its tokens' exchange adds to one F and one B where no other microbatch hides it.

    So it is until the first B of an iteration and after the last F: one F and one B of every layer are
        in line there.
    """
    alone = unpaired(layer)
    if alone is layer:
        return 0.0
    return sum(
        op_time(alone, op, machine, model, work).messages
        - op_time(layer, op, machine, model, work).messages
        for op in ("F", "B")
    )


def _attention_seconds(layer: Layer, op: str, machine: Machine, dtype: str, element: int) -> float:
    """Return the scores: one fused kernel, or batched GEMMs (their softmax is elementwise)."""
    kind = "bf16" if dtype == "fp8" else dtype
    if layer.flash:
        # the backward kernel recomputes the scores: five GEMMs where the count has four
        count = layer.attention_flops * (1 if op == "F" else 2 * 5 / 4)
        rate = machine.rates.attention * (1 if op == "F" else machine.rates.attention_backward)
        executed = count * layer.executed_share / (machine.peak(kind) * rate)
        return executed + machine.rates.attention_us * 1e-6
    total = 0.0
    for gemm in layer.score_gemms:
        total += gemm_seconds(gemm, "F", machine, kind, element)
        if op == "B":  # two gradients, each as large as the GEMM itself
            total += gemm_seconds(gemm, "B", machine, kind, element)
    return total


def message_seconds(message: Message, machine: Machine, model: Model, work: Work) -> float:
    """Return the seconds of a message; tokens for experts use the links and the network concurrently.

    Sent once per node, a token crosses the network as often as its experts, drawn evenly, lie in
    other nodes, and reaches them from there over the links.
    """
    rates, ep = machine.rates, work.ep
    members = {"tp": work.tp, "cp": work.cp, "ep": ep}[message.group]
    latency = message.number * members * rates.collective_us * 1e-6
    if message.group != "ep":
        return message.size / group_bandwidth(message.group, machine, work) + latency
    inside = min(ep, max(1, machine.devices_per_node // work.expert_tp))
    each = message.size / (ep - 1)  # to one of the others
    near = each * (inside - 1) / (machine.link_gb_per_s * 1e9 * rates.all_to_all)
    apart, share = each * (ep - inside), rates.network_collective
    if work.exchange.startswith("per-node") and ep > inside:
        nodes, chosen = ep / inside, model.experts_per_token
        apart *= (1 - (1 - 1 / nodes) ** chosen) * nodes / chosen
        share = rates.network_dispatch or share
    far = apart / (machine.network_gb_per_s * 1e9 * share)
    return max(near, far) + latency


def group_bandwidth(group: str, machine: Machine, work: Work) -> float:
    """Bytes per second of one device in the collectives of ``tp`` or ``cp``."""
    if group == "tp":
        return bandwidth_within(work.tp, machine, min(work.tp, machine.devices_per_node))
    return bandwidth_within(work.tp * work.cp, machine)


def bandwidth_within(span: int, machine: Machine, together: int = 1) -> float:
    """Bytes per second of one device in a collective over that many neighbouring devices, of which
    `together` lie in each node."""
    near = machine.link_gb_per_s * 1e9 * machine.rates.collective
    if span <= machine.devices_per_node:
        return near
    far = machine.network_gb_per_s * 1e9 * machine.rates.network_collective
    return min(near, together * far)


def embedding_time(op: str, machine: Machine, model: Model, work: Work) -> OpTime:
    """Return the token table: rows read in F, their gradients added in W."""
    moved = work.element * model.hidden * work.norm_tokens
    if op == "B":
        # no input gradient; a profile wants some time for it
        return OpTime(elementwise=1e-6)
    times = 2 + (2 if model.gpt else 0) if op == "F" else 4
    return OpTime(elementwise=times * moved / machine.memory_rate)


def head_time(op: str, machine: Machine, model: Model, work: Work) -> OpTime:
    """Return the last norm, the head and the loss (its logits in fp32)."""
    gemm = head_gemm(model, work)
    seconds = gemm_seconds(gemm, op, machine, work.dtype, work.element, work.gradient_bytes)
    logits = gemm.rows * gemm.columns
    kept = min(4.0, logit_bytes(machine, work))  # what is copied beside it counts no passes
    passes = {"F": work.element + 4 * kept, "B": 2 * kept + work.element, "W": 0.0}[op]
    moved = passes * logits
    moved += {"F": 2, "B": 4, "W": 0}[op] * work.element * model.hidden * work.norm_tokens
    exposed = 0.0
    if work.tp > 1 and op != "W":
        size = work.element * work.tokens * model.hidden * (work.tp - 1) // work.tp
        exposed = message_seconds(Message("tp", op, size), machine, model, work)
    return OpTime(gemm=seconds, elementwise=moved / machine.memory_rate, messages=exposed)


def projection(model: Model, work: Work) -> Layer:
    """What a layer of `mtp` has besides its decoder layer and its head: a row of the token table, two
    norms, and the GEMM that makes one hidden state of both (Megatron-LM, multi_token_prediction.py). Its
    input, and what it gives, are gathered over the devices that share matrices."""
    t, n, e, h = work.tokens, work.norm_tokens, work.element, model.hidden
    step = e * t * h * (work.tp - 1) // work.tp
    return Layer(
        gemms=(Gemm("projection", t, 2 * h, h // work.tp),),
        score_gemms=(),
        attention_flops=0,
        executed_share=1.0,
        elementwise_f=e * n * h * (2 + 2 * 2 + 4),  # the row, the norms, and both side by side
        elementwise_b=e * n * h * (2 + 2 * 3 + 4),
        kept=stored(
            (
                Kept("projection norm inputs", 2 * e * n * h),
                Kept("projection input", 2 * e * n * h),
            ),
            work,
        ),
        # with that of the decoder layer, a hidden state and a row of the table
        input_bytes=e * n * h,
        held_for_w=operands(e * (2 * n + t // work.tp) * h, work),
        messages=tuple(Message("tp", op, 3 * step, "", 2) for op in "FB") if step else (),
        recompute=work.recompute,
        flash=False,
    )


def head_gemm(model: Model, work: Work) -> Gemm:
    """Return the head's GEMM: logits of every token over this device's part of the vocabulary."""
    return Gemm("head", work.tokens, model.hidden, -(-model.outputs // work.tp))


def logit_bytes(machine: Machine, work: Work) -> float:
    """Return the bytes of one logit that the loss keeps for its backward pass."""
    return LOSS_FUSIONS.get(work.loss_fusion, machine.rates.logit_bytes)


def head_bytes(machine: Machine, model: Model, work: Work) -> tuple[int, int]:
    """Inputs of the last norm and of the head; the logits."""
    gemm = head_gemm(model, work)
    inputs = 2 * work.element * work.norm_tokens * model.hidden
    return inputs, round(logit_bytes(machine, work) * gemm.rows * gemm.columns)


def working_set(one: Layer, machine: Machine) -> int:
    """Return what the backward pass of one layer needs besides what is kept for it.

    Gradients of about half of a whole layer's activations (none of them in fp8); and what it
    recomputes, which the W of the layer holds until it has run.
    """
    gradients = sum(kept.computed for kept in one.kept)
    needed = max(one.kept_bytes("none"), one.held_for_w)
    again = max(0, needed - one.kept_bytes())
    return round(machine.rates.working_set * gradients) + again + one.buffers


def head_working_set(machine: Machine, model: Model, work: Work) -> int:
    """Return what the backward pass of one loss and its head needs besides the logits' bytes.

    First the logits' gradients, where they do not take the place of the logits; then these
    alone, with the input gathered once more and its gradient.
    """
    gemm, logits = head_gemm(model, work), head_bytes(machine, model, work)[1]
    gradients = work.element * gemm.rows * gemm.columns
    shared = 2 if work.tp > 1 and work.sequence_parallel else 1
    inputs = shared * work.element * gemm.rows * gemm.inner
    apart = gradients if logits > gradients else 0
    return max(apart, gradients - logits + inputs + buffer_bytes((gemm,), machine, work))


def buffer_bytes(gemms: Iterable[Gemm], machine: Machine, work: Work) -> int:
    """Return the buffers that W keeps for weights of these shapes."""
    weights = sum(gemm.inner * gemm.columns for gemm in gemms if gemm.weights)
    return round(machine.rates.weight_buffers * work.element * weights)


def fp8_copy_bytes(layer: Layer, work: Work) -> int:
    """Return what copies in fp8 of a layer's weights take, as they are and transposed, where these stay in bf16."""
    if work.dtype != "fp8" or work.fp8_weights != "cached":
        return 0
    narrow = (gemm for gemm in layer.gemms if gemm.weights and gemm_dtype(gemm, "fp8") == "fp8")
    return 2 * FP8_BYTES * sum(gemm.inner * gemm.columns * gemm.groups for gemm in narrow)


def userbuffer_bytes(model: Model, work: Work) -> int:
    """Return the buffers of tensor parallelism's overlapped collectives on a device, however many of its layers use them.

    TransformerEngine (module/base.py, `initialize_ub`) has one of a microbatch's hidden states for each of ten GEMMs:
    six gather, in fp8 where the GEMMs are, four scatter. Megatron-LM's training/initialize.py gives it the shape.
    """
    if not work.userbuffers or work.tp == 1:
        return 0
    gathered = FP8_BYTES if work.dtype == "fp8" else work.element
    return work.tokens * model.hidden * (6 * gathered + 4 * work.element)
