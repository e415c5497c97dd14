"""How a model is distributed over devices: stages, static bytes, and communication of replicas."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..errors import OptPipeError
from ..profile import Nvme, Offload
from .layout import MARK, Layout
from .machines import Machine, MachineError, Pcie
from .models import Model
from .recompute.regions import require_modules
from .roofline import bandwidth_within
from .work import (
    CONTEXTS,
    DTYPES,
    EXCHANGES,
    FP8_WEIGHTS,
    GRADIENT_BYTES,
    GRADIENT_SUMS,
    GRAPHED,
    LOSS_FUSIONS,
    OVERLAPS,
    PAIRS,
    Work,
    hides,
    shares_heads,
)

# what a field of `Work` may be
WORDS: dict[str, Collection[str]] = {
    "exchange": EXCHANGES,
    "context": CONTEXTS,
    "dtype": DTYPES,
    "pairs": PAIRS,
    "gradient_sums": GRADIENT_SUMS,
    "fp8_weights": FP8_WEIGHTS,
    "loss_fusion": ("", *LOSS_FUSIONS),
}
OPTIMIZER_BYTES = 12  # Adam in mixed precision: fp32 weights and two moments


def static_parts(counts: tuple[int, int], layout: Layout, work: Work) -> tuple[int, int, int]:
    """Return the bytes of weights, of gradients and of optimizer states of a stage on one device.

    Args:
        counts: weights outside the experts, and of the experts, on one device.
    """
    optimizer = OPTIMIZER_BYTES if work.weight_bytes == 2 else OPTIMIZER_BYTES - 4
    sizes = (3, work.weight_bytes), (2, work.held_gradient_bytes), (1, optimizer)
    (outside, inside), copies, expert_copies = counts, layout.copies, layout.expert_copies
    weights, gradients, states = (
        -(-outside * size // (copies if layout.zero >= least else 1))
        - (-inside * size // (expert_copies if layout.zero >= least else 1))
        for least, size in sizes
    )
    return weights, gradients, states


def step_bytes(counts: tuple[int, int], layout: Layout, work: Work) -> int:
    """Return what a device holds in the optimizer's step, no activations, where that copies gradients to fp32 first."""
    both = zip(counts, (layout.copies, layout.expert_copies), strict=True)
    updated = sum(-(-count // (copies if layout.zero else 1)) for count, copies in both)
    return sum(static_parts(counts, layout, work)) + GRADIENT_BYTES * updated


def optimizer_seconds(counts: tuple[int, int], layout: Layout, machine: Machine) -> float:
    """Return the time to update a stage's weights, bound by memory bandwidth."""
    total = 0.0
    for count, copies in zip(counts, (layout.copies, layout.expert_copies), strict=True):
        total += count / (copies if layout.zero else 1) * machine.rates.update_bytes
    return total / machine.memory_rate


def sum_seconds(counts: tuple[int, int], layout: Layout, machine: Machine, work: Work) -> float:
    """Return the time that W of a microbatch takes to add up gradients where its GEMMs do not (`Work.gradient_sums`);
    ZeRO 2 and 3 add up those of a device's part."""
    both = zip(counts, (layout.copies, layout.expert_copies), strict=True)
    held = sum(count / (copies if layout.zero >= 2 else 1) for count, copies in both)
    return held * work.sum_bytes / machine.memory_rate


def zero_seconds(
    counts: tuple[int, int], layout: Layout, machine: Machine, gradient_bytes: int = GRADIENT_BYTES
) -> dict[str, float]:
    """Return the time that ZeRO 2 and 3 add to F, B and W of a microbatch, before any overlap."""
    found = {"F": 0.0, "B": 0.0, "W": 0.0}
    if layout.zero < 2:
        return found
    for count, copies in zip(counts, (layout.copies, layout.expert_copies), strict=True):
        part = count * (copies - 1) / copies / replica_bandwidth(layout, copies, machine)
        found["W"] += gradient_bytes * part
        if layout.zero >= 3:
            found["F"] += 2 * part
            found["B"] += 2 * part
    return found


def replica_bandwidth(layout: Layout, copies: int, machine: Machine) -> float:
    """Return the bytes per second of one device in a collective over `copies` of the same weights.

    Replicas are in different nodes as soon as one fills a node. Members of one node share the
    traffic of the network: data enters their node once, over all their adapters.
    """
    span = layout.devices * copies // max(1, layout.cp)
    together = max(1, min(copies, machine.devices_per_node * copies // span))
    return bandwidth_within(span, machine, together)


def decoder_counts(layers: Sequence[int | str]) -> list[int]:
    """Return the decoder layers of each stage out of `layers`, where one number may have an m behind it: see
    `mtp_stage`."""
    return [int(str(count).removesuffix(MARK)) for count in layers]


def mtp_stage(layers: Sequence[int | str]) -> int:
    """Return the stage with the layers that predict further tokens: the one whose number has an m behind it, as in
    Megatron-LM's layouts; else that of the loss."""
    marked = [at for at, count in enumerate(layers) if str(count).endswith(MARK)]
    return marked[0] if marked else len(layers) - 1


def stage_layers(layers: Sequence[int | str], further: int = 0) -> list[int | None]:
    """Return the `layers` of each stage in a profile, which say where it may be divided.

    Embedding and head count as one layer each, on the first and the last stage, and so do the `further`
    layers that predict further tokens, on `mtp_stage`. None for a stage in the middle without any layer.
    """
    ends = [0] * len(layers)
    ends[0] += 1
    ends[-1] += 1
    ends[mtp_stage(layers)] += further
    return [count + end or None for count, end in zip(decoder_counts(layers), ends, strict=True)]


def stage_kinds(model: Model, counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return, per stage, the numbers of layers with a plain MLP and with experts."""
    kinds, at = [], 0
    for count in counts:
        dense = sum(model.dense[at : at + count])
        kinds.append((dense, count - dense))
        at += count
    return kinds


def message_ns(model: Model, machine: Machine, layout: Layout, work: Work) -> tuple[int, int]:
    """Return latency and occupancy of one message between stages, in ns.

    A profile has one number for all messages: their mean, so that sums along the pipeline are right.
    Messages within a node use the node's links, the others the network.
    """
    p = layout.pipeline
    if p == 1:
        return 0, 0
    rates = machine.rates
    size = work.element * work.norm_tokens * model.hidden
    across = -(-layout.devices // machine.devices_per_node) - 1
    near = size / (machine.link_gb_per_s * rates.p2p)
    far = size / (machine.network_gb_per_s * rates.p2p_network)
    across = min(across, p - 1)
    mean = ((p - 1 - across) * near + across * far) / (p - 1)
    return round(rates.p2p_latency_us * 1e3), round(mean)


class Copies(NamedTuple):
    """How the devices of a pipeline offload: the section of a profile, and how long copies take.

    Attributes:
        sharers: devices of a switch that copy at the same time. `devices`: of the pipeline.
    """

    section: Offload
    pcie: Pcie
    sharers: int
    devices: int

    def times_ns(self, size: int) -> tuple[int, int]:
        """Return how long so many bytes take to the host or the drives, and back."""
        write, read = self.section.drive_ns(self.devices, size)
        out = round(size * self.sharers / self.pcie.d2h_gb_per_s)
        back = round(size * self.sharers / self.pcie.h2d_gb_per_s)
        return max(out, write), max(back, read)


def offloading(machine: Machine, layout: Layout, wanted: bool | None) -> Copies | None:
    """Return how activations are offloaded: who shares a switch, the host's memory or the drives; None: they are not.

    Args:
        wanted: as of `estimate`.

    Raises:
        MachineError: for a machine without what is wanted.
    """
    pcie = machine.pcie
    if wanted is False or (wanted is None and pcie is None):
        return None
    if pcie is None:
        raise MachineError(
            f"machine {machine.name}: no PCIe data, so no offloading: give pcie (generation, lanes,"
            " d2h_gb_per_s, h2d_gb_per_s) in its file, or estimate without offloading"
        )
    group = layout.tp * layout.cp  # neighbours that copy the same thing at the same time
    sharers = min(group, pcie.devices_per_switch)
    p = layout.pipeline
    per_link = max(1, pcie.devices_per_switch // group)
    per_node = min(p, max(1, machine.devices_per_node // group))
    # a profile counts one device of each stage; the others of the node take their part
    taken = max(group, machine.devices_per_node // per_node if layout.dp > 1 else group)
    taken = min(taken, machine.devices_per_node)
    limit, nvme = None, _drives(machine, taken)
    if nvme is not None:
        per_link = _per_link(nvme, pcie, sharers, per_link, per_node)
    elif machine.host_memory_gib is not None:
        limit = int(machine.host_memory_gib * 2**30 / taken)
    links = [tuple(range(at, min(at + per_link, p))) for at in range(0, p, per_link)]
    section = Offload(
        copy_engines=pcie.copy_engines,
        host_link=pcie.host_link,
        host_link_groups=tuple(one for one in links if len(one) > 1),
        host_limit_bytes=limit,
        devices_per_node=per_node,
        nvme=nvme,
    )
    return Copies(section, pcie, sharers, p)


def _drives(machine: Machine, taken: int) -> Nvme | None:
    """Return the share of a node's drives that one of `taken` devices has; None where offloads go to
    the host.

    Raises:
        MachineError: if the machine has no drives.
    """
    drives = machine.nvme
    if machine.offload_to != "nvme":
        return None
    if drives is None:
        raise MachineError(
            f"machine {machine.name}: no NVMe data, so no offloading to drives: give nvme"
            " (write_gb_per_s, read_gb_per_s) in its file, or offload to the host"
        )
    staging, rated = drives.staging_gib, drives.rated_bytes
    return Nvme(
        int(drives.write_gb_per_s * 10**9 / taken),
        int(drives.read_gb_per_s * 10**9 / taken),
        staging_bytes=None if staging is None else int(staging * 2**30 / taken),
        rated_bytes=None if rated is None else rated // taken,
        write_behind=drives.write_behind,
    )


def _per_link(nvme: Nvme, pcie: Pcie, sharers: int, per_switch: int, per_node: int) -> int:
    """Return how many devices copy in turn on one link to the drives: as many as leave the drives, not
    PCIe, the slower part, so that few copies at full rate take the place of many at a share of it."""
    drives = max(0 if nvme.write_behind else nvme.write_bytes_per_s, nvme.read_bytes_per_s)
    most = min(pcie.d2h_gb_per_s, pcie.h2d_gb_per_s) * 1e9 / sharers * per_node / drives
    fits = [k for k in range(1, per_node + 1) if per_node % k == 0 and k <= most]
    return max([per_switch, *fits])


def _check_pairs(model: Model, work: Work) -> None:
    """Raise for pairs that nothing runs.

    Raises:
        OptPipeError: one line with the reason.
    """
    if work.pairs == "none":
        return
    if not model.experts:
        raise OptPipeError(f"pairs: {model.name} has no experts, whose exchange pairs would hide")
    if work.exchange.endswith("overlapped"):
        raise OptPipeError(
            f"pairs: exchange {work.exchange} is credited to every op alike, pairs to those that run as one;"
            f" give exchange {'per-node' if work.exchange.startswith('per-node') else 'plain'}"
        )
    if "moe" in work.recompute.split("+"):
        raise OptPipeError("recompute: moe excludes pairs; leave out one of them")
    if work.slices > 1:
        raise OptPipeError("pairs: of whole sequences; leave out slices, or pairs")


def _check_graphs(model: Model, work: Work) -> None:
    """Raise for modules that no CUDA graphs hold."""
    modules = work.cuda_graph_modules
    for name in modules:
        if name not in GRAPHED:
            raise OptPipeError(
                f"cuda graph modules: expected some of {', '.join(GRAPHED)}, got {name!r}"
            )
    if modules and not model.experts:
        raise OptPipeError(
            f"cuda graph modules: are of layers with experts, which {model.name} has not"
        )
    if modules and work.cuda_graphs:
        raise OptPipeError(
            "cuda graph modules: cuda graphs hold whole iterations; give one of the two"
        )
    if "moe_preprocess" in modules and "moe_router" not in modules:
        raise OptPipeError("cuda graph modules: moe_preprocess needs moe_router, as in Megatron-LM")


def _check_buffers(model: Model, work: Work) -> None:
    """Raise for buffers of experts that Megatron-LM refuses, or that overflow in every iteration."""
    capacity, stash = work.expert_rank_capacity, work.paged_stash
    if stash and not capacity:
        raise OptPipeError(
            "paged stash: needs an expert rank capacity, as in Megatron-LM; give both"
        )
    if not capacity:
        return
    if not model.experts:
        raise OptPipeError(f"expert rank capacity: {model.name} has no experts")
    if not work.exchange.startswith("per-node"):
        raise OptPipeError(
            "expert rank capacity: needs exchange per-node (HybridEP), as in Megatron-LM"
        )
    for name, share in (("expert rank capacity", capacity), ("paged stash", stash or capacity)):
        if share < work.imbalance:
            raise OptPipeError(
                f"{name}: {share:g} times the mean overflows at an imbalance of {work.imbalance:g}, and each iteration"
                f" runs twice; give {work.imbalance:g} or more"
            )


def check_work(model: Model, work: Work) -> None:
    """Raise for work, of one slice of a sequence, that cannot be divided over the devices.

    Raises:
        OptPipeError: one line with the numbers that do not fit.
    """
    for key in ("microbatch", "seq", "tp", "cp", "ep"):
        value = getattr(work, key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**24:
            raise OptPipeError(f"{key}: must be a whole number from 1 to 16777216, got {value!r}")
    if model.bidirectional and work.slices > 1:
        raise OptPipeError(
            f"slices: {model.name} attends to later tokens (bidirectional); leave them out"
        )
    require_modules(work.recompute, model, work.exchange)
    for key, words in WORDS.items():
        if (word := getattr(work, key)) not in words:
            known = ", ".join(filter(None, words))
            raise OptPipeError(f"{key}: expected {known}, got {word!r}")
    if shares_heads(work) and model.kv_heads % (work.tp * work.cp) and not model.latent:
        raise OptPipeError(
            f"context: heads needs tp {work.tp} x cp {work.cp} to divide the {model.kv_heads} kv_heads"
            f" of {model.name}; give ring"
        )
    for name in work.overlap:
        if name not in OVERLAPS:
            raise OptPipeError(f"overlap: expected some of {', '.join(OVERLAPS)}, got {name!r}")
    if "param-gather" in work.overlap and "grad-reduce" not in work.overlap:
        raise OptPipeError("overlap: param-gather needs grad-reduce, as in Megatron-LM; give both")
    _check_pairs(model, work)
    _check_graphs(model, work)
    _check_buffers(model, work)
    if not 1 <= work.imbalance <= work.ep or isinstance(work.imbalance, bool):
        raise OptPipeError(
            f"imbalance: the most loaded GPU over the mean is from 1 to ep, {work.ep}; got {work.imbalance:g}"
        )
    _check_formats(work)
    for key, whole in (("heads", model.heads), ("ffn", model.ffn)):
        if whole % work.tp:
            raise OptPipeError(f"tp: {work.tp} does not divide the {whole} {key} of {model.name}")
    if max(model.kv_heads, work.tp) % min(model.kv_heads, work.tp) and not model.latent:
        raise OptPipeError(
            f"tp: {work.tp} and the {model.kv_heads} kv_heads of {model.name}: one must divide the other"
        )
    if work.seq % (work.cp * (work.tp if work.sequence_parallel else 1)):
        raise OptPipeError(
            f"seq: {work.seq} tokens cannot be shared by cp {work.cp} x tp {work.tp} devices"
        )
    if work.ep > 1 and not model.experts:
        raise OptPipeError(f"ep: {work.ep}, but {model.name} has no experts")
    if model.experts and model.experts % work.ep:
        raise OptPipeError(
            f"ep: {work.ep} does not divide the {model.experts} experts of {model.name}"
        )
    if model.experts and model.expert_ffn % work.expert_tp:
        raise OptPipeError(
            f"tp: {work.tp} does not divide the expert_ffn of {model.name}, {model.expert_ffn}"
        )


def _check_formats(work: Work) -> None:
    """Check number formats, copies, and how gradients and the loss are computed."""
    if work.grad_reduce_in_bf16 and work.dtype not in ("bf16", "fp8"):
        raise OptPipeError(f"grad_reduce_in_bf16: needs dtype bf16 or fp8, got {work.dtype}")
    if work.accumulate_grads_in_fp32 and (work.dtype != "fp16"):
        raise OptPipeError(
            f"accumulate_grads_in_fp32: needs dtype fp16, got {work.dtype}, whose gradients are in fp32"
            " unless grad_reduce_in_bf16"
        )
    if work.weights_in_fp32 and (work.dtype not in ("bf16", "fp16") or work.gradient_bytes == 2):
        raise OptPipeError(
            f"weights_in_fp32: needs dtype bf16 or fp16 with gradients in fp32, got {work.dtype}"
            f" with gradients of {work.gradient_bytes} bytes"
        )
    if work.gradient_sums == "cast" and work.gradient_bytes == work.element:
        raise OptPipeError(
            f"gradient_sums: cast needs gradients that are summed up in fp32, got {work.dtype} with gradients of"
            f" {work.gradient_bytes} bytes; give apart"
        )
    if work.launch_blocking and hides(work):
        raise OptPipeError(
            "launch_blocking: nothing runs beside a kernel that is waited for; leave out cuda_graphs, cuda_graph_modules,"
            " overlap, overlapped exchanges and pairs"
        )
    if work.fp8_weights == "cached" and work.dtype != "fp8":
        raise OptPipeError(f"fp8_weights: cached needs dtype fp8, got {work.dtype}")
    if work.userbuffers and "tp-comm" not in work.overlap:
        raise OptPipeError(
            "userbuffers: those of overlapped tensor parallelism; give overlap tp-comm"
        )
