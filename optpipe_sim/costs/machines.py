"""Machines: the peak rates of a device, and the rates that it achieves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from ..errors import OptPipeError
from ..execution import Execution, load_execution


class MachineError(OptPipeError):
    """An invalid machine; names the machine, the key, and what would be right."""


_SHARES = (
    "gemm",
    "attention",
    "attention_backward",
    "bandwidth",
    "collective",
    "network_collective",
    "all_to_all",
    "p2p",
    "p2p_network",
)


@dataclass(frozen=True)
class Rates:
    """The few numbers that turn a data sheet into times; calibration fits some of them.

    Attributes:
        gemm: the share of the peak FLOP/s that a large GEMM reaches.
        gemm_fp8: the same of a GEMM in fp8, of the peak in fp8; 0: as `gemm`.
        attention: of the peak, of a fused attention kernel, counting what it executes.
        bandwidth: of the memory bandwidth, of kernels that only move data.
        collective: of the links' bandwidth, of collectives within a stage and a node.
        network_collective: of the network's bandwidth, of collectives that leave the node.
        network_dispatch: the same of the exchange of tokens once per node; 0: as `network_collective`.
        all_to_all: of the links' bandwidth, of the exchange of tokens between experts in a node.
        p2p, p2p_network: of the links' and of the network's bandwidth, of messages between stages
            (point-to-point transfers use few of a node's links).
        p2p_latency_us: of one such message.
        half_inner, half_waves: a GEMM reaches half of `gemm` when its inner dimension is
            `half_inner`, or when its tiles fill a share `half_waves` of the device once.
        half_rows: an expert's GEMMs reach half of that when it has this many tokens.
        expert_us: of one layer with experts and one microbatch, F and B together, that is in no
            kernel (many small launches, waiting for how many tokens each expert gets).
        expert_ms: of an iteration of a model with experts outside all ops, beside `fixed_ms`.
        host_us: what the host takes to issue the ops of one layer with experts, F and B together, that
            no CUDA graph holds: no op and no pair takes less, and a forward's routed experts, which are issued when it
            is known how many tokens they get, take no less than their part of it. 0: not known.
        launch_us: from the end of a kernel to the start of the next one where launches block.
        attention_backward: what a fused attention's backward kernel reaches, as a share of
            `attention`.
        attention_us: of one fused attention kernel, in addition to the time of its FLOPs.
        exposed_sums: the part of the memory time of W's gradient sums that its GEMM does not
            hide.
        collective_us: latency of one collective within a stage, for each device that takes part.
        update_bytes: moved once per iteration for each weight whose optimizer states the device
            holds. 30: read the gradient, read and write the weight and two moments, write the weight in the
            dtype of the GEMMs. 50: set the gradient to zero, read it for its norm and clip it as well, and
            cast the weight in a pass of its own.
        gemm_overlap: part of a GEMM's time behind which a collective that allows it can hide.
        memory_factor: activation bytes in use per byte counted (fragmentation, buffers).
        working_set: memory that the backward pass of one layer needs while it runs, as a share of
            its activations (without recompute).
        weight_buffers: copies of the weights of one layer's linears and of the head, in the dtype of the
            GEMMs, that W keeps (TransformerEngine keeps a buffer per shape of a weight whose gradient is
            summed up in place).
        logit_bytes: of one logit, kept for the backward pass of the loss: 4 where the loss is
            computed in fp32, 2 where a fused kernel overwrites the logits with their gradients.
        workspace_mib: memory that libraries keep for their kernels through the framework's allocator.
        context_gib: memory the driver, libraries and communicators take from every device.
        overhead: part of an iteration outside all ops (host, gaps, logging).
        fixed_ms: of an iteration outside all ops, however long it is.
        op_us: of each op (F, B, W) beside its kernels, whatever they take, so that small microbatches
            and thin chunks pay.
        fitted: which of these were fitted, and to what.
    """

    gemm: float
    attention: float
    bandwidth: float
    collective: float = 0.5
    network_collective: float = 0.8
    network_dispatch: float = 0.0
    all_to_all: float = 0.6
    p2p: float = 0.15
    p2p_network: float = 0.6
    p2p_latency_us: float = 20.0
    gemm_fp8: float = 0.0
    half_inner: float = 64.0
    half_waves: float = 0.25
    half_rows: float = 150.0
    expert_us: float = 4000.0
    expert_ms: float = 0.0
    host_us: float = 0.0
    launch_us: float = 43.0
    attention_backward: float = 1.0
    attention_us: float = 0.0
    exposed_sums: float = 0.0
    collective_us: float = 0.0
    update_bytes: float = 30.0
    gemm_overlap: float = 0.8
    memory_factor: float = 1.0
    working_set: float = 0.5
    weight_buffers: float = 0.0
    logit_bytes: float = 4.0
    workspace_mib: float = 0.0
    context_gib: float = 4.0
    overhead: float = 0.0
    fixed_ms: float = 0.0
    op_us: float = 0.0
    fitted: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        for key in _SHARES:
            if not 0 < getattr(self, key) <= 1.5:
                raise MachineError(f"achieved.{key}: must be from 0 to 1, got {getattr(self, key)}")
        for entry in fields(self):
            if entry.type == "float" and not 0 <= getattr(self, entry.name) < 1e6:
                raise MachineError(
                    f"achieved.{entry.name}: must be at least 0, got {getattr(self, entry.name)}"
                )
        for key in ("gemm_fp8", "network_dispatch"):
            if getattr(self, key) > 1:
                raise MachineError(f"achieved.{key}: must be from 0 to 1, got {getattr(self, key)}")
        if self.memory_factor <= 0 or self.overhead >= 1:
            raise MachineError("achieved: memory_factor must be above 0, overhead below 1")

    def fit(self, source: str, **values: float) -> Rates:
        """Return the rates with some fitted to `source`."""
        return replace(self, **values, fitted={**self.fitted, **dict.fromkeys(values, source)})


@dataclass(frozen=True)
class Pcie:
    """The link to the host.

    `d2h_gb_per_s`, `h2d_gb_per_s` are achieved rates of one device while its neighbours copy as
    well; `devices_per_switch` share a switch; `copy_engines` and `host_link` as in a profile's
    offload section.
    """

    generation: int
    lanes: int
    d2h_gb_per_s: float
    h2d_gb_per_s: float
    devices_per_switch: int = 1
    copy_engines: str = "separate"
    host_link: str = "per_direction"


@dataclass(frozen=True)
class Drives:
    """The NVMe drives of a node that offloads may go to.

    `write_gb_per_s`, `read_gb_per_s`: all of them together, as achieved. `staging_gib`: host memory of
    the node through which copies stream; None: past the host (GPUDirect Storage). `write_behind`: copies
    wait there until the drives have written them. Their rating: `number` drives of `terabytes` each may
    be written `writes_per_day` times a day for `rated_years`.
    """

    write_gb_per_s: float
    read_gb_per_s: float
    number: int = 1
    terabytes: float | None = None
    writes_per_day: float = 1.0
    rated_years: float = 5.0
    staging_gib: float | None = None
    write_behind: bool = False

    @property
    def rated_bytes(self) -> int | None:
        """The bytes that may be written to all of them in their lifetime; None if their size is unknown."""
        if self.terabytes is None:
            return None
        each = self.terabytes * self.writes_per_day * 365 * self.rated_years
        return round(self.number * each * 10**12)


@dataclass(frozen=True)
class Machine:
    """A node of equal devices, and the network between nodes.

    Attributes:
        peak_tflops: dense TFLOP/s by dtype.
        units: multiprocessors (compute units); the tiles of a GEMM are distributed over them.
        memory_gib: total memory that a device reports.
        memory_gb_per_s: bandwidth of its memory.
        link_gb_per_s: to the other devices of its node, one direction, all links of one device.
        network_gb_per_s: to other nodes, one direction, per device.
        pcie: None if unknown; then no offloading.
        devices_per_host: GPUs of one host, which launchers call a node; None: all of a node.
        host_memory_gib: of a node; None: unknown.
        nvme: the drives of a node; None: unknown. `offload_to`: ``host`` or ``nvme``.
        rates: the achieved rates.
        execution: how the runs were issued that the rates are fitted to or were judged by, an
            execution's name or file.
        sources: the source of each key's number; ``assumed`` for a guess.
    """

    name: str
    title: str
    peak_tflops: Mapping[str, float] = field(hash=False)
    units: int
    memory_gib: float
    memory_gb_per_s: float
    devices_per_node: int
    link: str
    link_gb_per_s: float
    network_gb_per_s: float
    rates: Rates
    pcie: Pcie | None = None
    devices_per_host: int | None = None
    host_memory_gib: float | None = None
    nvme: Drives | None = None
    offload_to: str = "host"
    execution: str = "ideal"
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def memory_rate(self) -> float:
        """Bytes per second that kernels move to and from the device's memory."""
        return self.memory_gb_per_s * 1e9 * self.rates.bandwidth

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s.

        Raises:
            MachineError: where the machine has no rate for it.
        """
        key = "bf16" if dtype == "fp16" and "fp16" not in self.peak_tflops else dtype
        if key not in self.peak_tflops:
            raise MachineError(
                f"machine {self.name}: no peak rate for {dtype}; it has {', '.join(self.peak_tflops)}"
            )
        return self.peak_tflops[key] * 1e12

    @property
    def usable_bytes(self) -> int:
        """Memory of a device that training can use."""
        return int((self.memory_gib - self.rates.context_gib) * 2**30)

    def limit_bytes(self) -> int:
        """Return that memory.

        Raises:
            MachineError: if there is none.
        """
        if self.usable_bytes <= 0:
            raise MachineError(
                f"machine {self.name}: achieved.context_gib {self.rates.context_gib} leaves"
                f" nothing of memory_gib {self.memory_gib}"
            )
        return self.usable_bytes

    def issued_as(self, told: Execution | str | None = None) -> Execution:
        """Return how work on it is issued: as `told`, or, as rates hold for no other, like the runs that
        they are fitted to.

        Raises:
            ProfileError: for no execution.
        """
        return load_execution(self.execution if told is None else told)

    def with_rates(self, rates: Rates) -> Machine:
        """Return the machine with other rates."""
        return replace(self, rates=rates)
