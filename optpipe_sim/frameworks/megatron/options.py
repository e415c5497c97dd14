"""A plan in Megatron-LM's own options, checked against its own constraints.

Names and constraints as of Megatron-LM d98e8a6: megatron/training/arguments.py,
megatron/core/transformer/transformer_config.py, megatron/core/pipeline_parallel/schedules.py and
docs/user-guide/features/fine_grained_activation_offloading.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import OptPipeError
from ...profile.iteration import Lengths
from ..parts import Part
from .layout import layout_string

RECOMPUTED = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
    "gdn_norm_out",
    "gdp_in_proj",
    "gdp_qkv",
    "mhc",
)
OFFLOADED = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
    "fused_group_mlp",
    "gdp_qkv",
)


OVERLAP = "overlap-moe-expert-parallel-comm"
VARIABLE = "variable_seq_lengths"
PARTIAL = "num_microbatches_with_partial_activation_checkpoints"


class MegatronError(OptPipeError):
    """Options that Megatron-LM refuses; names the option and what would be right."""


@dataclass(frozen=True)
class Recompute:
    """``--recompute-granularity`` and its related options: with ``full`` a `method` (uniform:
    groups of `layers` layers; block: the first `layers` of each chunk), with ``selective``
    `modules`."""

    granularity: str
    method: str | None = None
    layers: int | None = None
    modules: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise for options that Megatron-LM refuses."""
        if self.granularity not in ("full", "selective"):
            raise MegatronError(
                f"--recompute-granularity: expected full or selective, got {self.granularity!r}"
            )
        if self.granularity == "full":
            if self.method not in ("uniform", "block"):
                raise MegatronError(
                    f"--recompute-method: full needs uniform or block, got {self.method!r}"
                )
            if self.layers is None or self.layers < 1:
                raise MegatronError("--recompute-num-layers: full needs a number of at least 1")
            if self.modules:
                raise MegatronError("--recompute-modules: is for selective recomputation")
        else:
            if self.method is not None or self.layers is not None:
                raise MegatronError("--recompute-method, --recompute-num-layers: are for full")
            if (
                not self.modules
            ):  # the option takes one word at least; without it core_attn is meant
                raise MegatronError("--recompute-modules: name at least one module")
            _known("--recompute-modules", self.modules, RECOMPUTED)

    def options(self) -> Iterator[tuple[str, Any]]:
        yield "recompute-granularity", self.granularity
        if self.granularity == "full":
            yield "recompute-method", self.method
            yield "recompute-num-layers", self.layers
        else:
            yield "recompute-modules", list(self.modules)


@dataclass(frozen=True)
class Offloading:
    """``--fine-grained-activation-offloading``: the share `fraction` of the inputs of `modules`;
    rank r keeps r times `delta` bytes on the device."""

    modules: tuple[str, ...]
    fraction: float = 1.0
    delta: int = 0

    def check(self, recompute: Recompute | None) -> None:
        """Raise for options that Megatron-LM refuses."""
        _known("--offload-modules", self.modules, OFFLOADED)
        if not self.modules:
            raise MegatronError("--offload-modules: name at least one module")
        if not 0 <= self.fraction <= 1:
            raise MegatronError(
                f"--activation-offload-fraction: expected 0 to 1, got {self.fraction}"
            )
        if self.delta < 0:
            raise MegatronError(
                f"--delta-offload-bytes-across-pp-ranks: must be at least 0, got {self.delta}"
            )
        if "attn_proj" in self.modules and "core_attn" not in self.modules:
            raise MegatronError("--offload-modules: attn_proj needs core_attn as well")
        if "fused_group_mlp" in self.modules and {"expert_fc1", "moe_act"} & set(self.modules):
            raise MegatronError("--offload-modules: fused_group_mlp excludes expert_fc1, moe_act")
        again = set(recompute.modules) if recompute else set()
        if "moe" in again and {"moe_act", "expert_fc1", "fused_group_mlp"} & set(self.modules):
            raise MegatronError(
                "--offload-modules: with moe recomputed, moe_act, expert_fc1 and fused_group_mlp"
                " have nothing to offload"
            )
        if "gdp_qkv" in self.modules and "gdp_in_proj" in again:
            raise MegatronError("--offload-modules: gdp_qkv excludes recomputing gdp_in_proj")
        if "mhc" in again:
            raise MegatronError("--recompute-modules: mhc excludes fine-grained offloading")

    def options(self) -> Iterator[tuple[str, Any]]:
        yield "transformer-impl", "transformer_engine"
        yield "fine-grained-activation-offloading", True
        yield "offload-modules", list(self.modules)
        yield "activation-offload-fraction", self.fraction
        if self.delta:
            yield "delta-offload-bytes-across-pp-ranks", self.delta


@dataclass(frozen=True)
class Plan:
    """Megatron-LM's options for pipeline, recomputation and offloading.

    Attributes:
        devices: p. `microbatches`: m. `parts`: the contents of the p * v stages.
        group: the microbatch group size, with several chunks; None: p.
        sizes: what else the plan assumes, by option, where it is known: parallel and batch sizes, number
            format, exchange of tokens.
        model: the options of the model's layers, where they are known.
        kept: see `Choice`; a field of Megatron-LM's configuration that has no option.
        lengths: the tokens of microbatches that differ, where they are known; whose number of tokens differs is a field
            of its configuration, too.
        old_links: the devices are of Hopper or before, where tensor and context parallelism need one connection.

    Raises:
        MegatronError: for options that Megatron-LM refuses.
    """

    devices: int
    microbatches: int
    parts: tuple[Part, ...]
    group: int | None = None
    recompute: Recompute | None = None
    offloading: Offloading | None = None
    sizes: tuple[tuple[str, Any], ...] = ()
    model: tuple[tuple[str, Any], ...] = ()
    old_links: bool = False
    kept: int | None = None
    lengths: Lengths | None = None

    def __post_init__(self) -> None:
        if not self.parts or len(self.parts) % self.devices:
            raise MegatronError(
                f"--pipeline-model-parallel-layout: {len(self.parts)} stages do not divide over"
                f" {self.devices} ranks"
            )
        self._check_mtp()
        self._check_groups()
        if self.recompute is not None:
            self.recompute.check()
        self._check_overlap()
        self._check_kept()
        self._check_padding()
        if self.offloading is not None:
            self.offloading.check(self.recompute)
            if "cuda-graph-impl" in dict(self.sizes):
                raise MegatronError(
                    "--fine-grained-activation-offloading: with --cuda-graph-impl full_iteration its copies"
                    " in flight are limited, which no replay here knows; estimate without CUDA graphs"
                )
            if self.recompute is not None and self.recompute.granularity == "full":
                raise MegatronError(
                    "--fine-grained-activation-offloading: fully recomputed layers have no modules to"
                    " offload; use selective recomputation"
                )

    @property
    def chunks(self) -> int:
        """v, the number of model chunks of a rank."""
        return len(self.parts) // self.devices

    def _check_mtp(self) -> None:
        having = [at for at, part in enumerate(self.parts) if part.mtp]
        last = len(self.parts) - self.devices  # the first stage of the last chunks
        after = [at for at in having if any(part.layers for part in self.parts[at + 1 :])]
        if len(having) > 1 or any(at < last for at in having) or after:
            raise MegatronError(
                "--pipeline-model-parallel-layout: MTP layers (m) belong on one stage, a last chunk of its"
                f" rank and after every decoder layer; they are on {', '.join(map(str, having))}"
            )

    def _check_groups(self) -> None:
        p, m, g = self.devices, self.microbatches, self.group
        if self.chunks == 1:
            if g is not None:
                raise MegatronError(
                    "--microbatch-group-size-per-virtual-pipeline-stage: needs several chunks"
                )
            return
        if p < 2:
            raise MegatronError("--pipeline-model-parallel-size: several chunks need 2 ranks")
        g = p if g is None else g
        if not p <= g <= m or 0 < m % g < p:
            raise MegatronError(
                f"--microbatch-group-size-per-virtual-pipeline-stage: {g} is not from {p} (the ranks)"
                f" to {m} (the microbatches), or leaves a rest below {p}"
            )

    @property
    def overlaps(self) -> bool:
        """Whether forwards run with backwards as one op, so that the exchange of tokens hides."""
        return OVERLAP in dict(self.sizes)

    def _check_overlap(self) -> None:
        """Raise for what the overlapped exchange of tokens needs, and excludes (transformer_config.py)."""
        sizes = dict(self.sizes)
        if "delay-wgrad-compute" in sizes and not self.overlaps:
            raise MegatronError(f"--delay-wgrad-compute: needs --{OVERLAP}")
        if not self.overlaps:
            return
        if sizes.get("expert-model-parallel-size", 1) == 1:
            raise MegatronError(f"--{OVERLAP}: needs --expert-model-parallel-size above 1")
        if not (sizes.get("bf16") or sizes.get("fp16")):
            raise MegatronError(f"--{OVERLAP}: needs --bf16 or --fp16")
        if sum(part.mtp for part in self.parts) > 1:
            raise MegatronError(f"--{OVERLAP}: allows one MTP layer (--mtp-num-layers 1) at most")
        if self.devices > 1 and self.chunks == 1:
            raise MegatronError(f"--{OVERLAP}: with a pipeline it needs several chunks per rank")
        again = self.recompute
        if again is not None and (again.granularity == "full" or "moe" in again.modules):
            raise MegatronError(
                f"--{OVERLAP}: excludes full recomputation, and that of the module moe"
            )

    def _check_kept(self) -> None:
        """Raise for partial checkpoints without full recomputation, which alone can differ by microbatch; that excludes the overlap."""
        if self.kept is not None and (
            self.recompute is None or self.recompute.granularity != "full"
        ):
            raise MegatronError(
                f"{PARTIAL}: needs full recomputation, of the microbatches that keep nothing"
            )

    def _check_padding(self) -> None:
        """Raise for experts padded to their capacity where DeepEP sends tokens, which flex uses by default."""
        sizes = dict(self.sizes)
        if (
            "moe-pad-expert-input-to-capacity" in sizes
            and sizes.get("moe-token-dispatcher-type") == "flex"
        ):
            raise MegatronError(
                "--moe-pad-expert-input-to-capacity: not with DeepEP (--moe-token-dispatcher-type flex); estimate with"
                " another exchange"
            )

    def options(self) -> dict[str, Any]:
        """Return the options without their dashes, and their values: True for a flag, a list for
        several words."""
        found: dict[str, Any] = dict(self.sizes)
        found["num-layers"] = sum(part.layers for part in self.parts)
        if further := sum(part.mtp for part in self.parts):
            found["mtp-num-layers"] = further
        found["pipeline-model-parallel-size"] = self.devices
        if self.devices > 1:
            found["pipeline-model-parallel-layout"] = layout_string(self.parts)
        if self.chunks > 1 and self.group not in (None, self.devices):
            found["microbatch-group-size-per-virtual-pipeline-stage"] = self.group
        for part in (self.recompute, self.offloading):
            found.update(part.options() if part is not None else ())
            if part is not None and {"moe_act", "expert_fc1"} & set(part.modules):
                found["moe-grouped-gemm"] = True  # only its experts have these modules
        return {**found, **dict(self.model)}

    def fields(self) -> dict[str, Any]:
        """Return the fields of Megatron-LM's configuration that a script of one's own has to set: they have no option."""
        found: dict[str, Any] = {} if self.kept is None else {PARTIAL: self.kept}
        return found | ({VARIABLE: True} if self._varies else {})

    @property
    def _varies(self) -> bool:
        return self.lengths is not None and self.lengths.least < self.lengths.most

    def environment(self) -> dict[str, str]:
        """Return the environment variables that the options need."""
        found = {} if self.offloading is None else {"NVTE_CPU_OFFLOAD_V1": "1"}
        if self.overlaps:
            found["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
        elif self.old_links and self._shared:
            found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # else Megatron-LM refuses to start
        return found

    @property
    def _shared(self) -> bool:
        """Whether devices share layers or sequences."""
        return bool({"tensor-model-parallel-size", "context-parallel-size"} & {*dict(self.sizes)})

    def notes(self) -> Iterator[str]:
        """Yield what Megatron-LM warns of, what its users report, and what has no option."""
        if self.kept is not None:
            yield (
                f"{PARTIAL}={self.kept} is a field of its configuration without an option: set it where the model is built, and"
                " give the forward step a third argument, that this microbatch recomputes its layers (pretrain_gpt.py reads another"
                " thing there); layers look at recompute_granularity, full or None, when they run forward"
            )
        if self.lengths is not None:
            least, most, sequence = self.lengths
            yield (
                f"--seq-length is the longest microbatch; the data has to come in the plan's microbatches, of {least:,} to"
                f" {most:,} tokens, packed from sequences of at most {sequence:,}, each with its own attention (cu_seqlens)"
            )
        if self._varies:
            yield (
                f"{VARIABLE}=True is a field of its configuration without an option (arguments.py sets it to False): set it where"
                " the model is built, and give pretrain_gpt.py such data; else every message, and with padding every microbatch, is as"
                " long as --seq-length"
            )
        empty = [
            str(stage)
            for stage, part in enumerate(self.parts)
            if not (part.layers or part.mtp or part.embedding or part.loss)
        ]
        if empty:
            yield (
                f"stages without any layer ({', '.join(empty)}) are reported to hang"
                " (github.com/NVIDIA/Megatron-LM/issues/1852); give each a layer, the embedding or the loss"
            )
        if self.overlaps and self.old_links and self._shared:
            yield (
                "CUDA_DEVICE_MAX_CONNECTIONS: up to Hopper Megatron-LM wants 1 for tensor and context parallelism, and more for"
                f" --{OVERLAP}; try both, 1 gives the exchange less to hide behind"
            )

        if self.overlaps:
            yield (
                f"NVTE_FWD_LAYERNORM_SM_MARGIN, NVTE_BWD_LAYERNORM_SM_MARGIN: NVIDIA's recipes with --{OVERLAP} set both, to 24 on"
                " H100s and B200s and to 20 on GB200s (yanring/Megatron-MoE-ModelZoo, sbatch_benchmarking.sh; Megatron-LM d48bd6be,"
                " examples/moe_recipes): so many SMs are left out by TransformerEngine's norms. They are yours to set; costs here know"
                " neither"
            )

    def command(self) -> str:
        """Return the options as words of a command line, to follow the training script."""
        return " ".join(words(self.options()))


def words(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of a command line, quoted for a shell; an option that is True is a flag."""
    for name, value in options.items():
        yield f"--{name}"
        if value is not True:
            for one in value if isinstance(value, list) else [value]:
                yield shlex.quote(str(one))


def _known(option: str, modules: tuple[str, ...], known: tuple[str, ...]) -> None:
    for module in modules:
        if module not in known:
            raise MegatronError(f"{option}: {module!r} is not one of {', '.join(known)}")
