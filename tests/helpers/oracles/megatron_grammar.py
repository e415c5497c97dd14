"""Megatron-LM's options read back, from its documented grammar and constraints (commit d98e8a6).

Written without a look at `optpipe_sim.frameworks.megatron`: what that writes, this has to accept.
"""

from __future__ import annotations

import argparse
import re
import shlex
from typing import Any

MODULES = [
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
]
OFFLOADABLE = [
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
    "fused_group_mlp",
    "gdp_qkv",
]


class Refused(Exception):
    """What Megatron-LM would refuse."""


def need(truth: Any, why: str) -> None:
    if not truth:
        raise Refused(why)


def stages_of(layout: str) -> list[str]:
    """The stages of a layout string, their repetitions written out."""
    text = layout.replace(",", "")
    while found := re.search(r"\(([^)]*)\)\*(\d+)", text):
        text = text[: found.start()] + found[1] * int(found[2]) + text[found.end() :]
    text = re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    need(set(text) <= set("EtmL|"), f"characters in {layout}")
    return text.split("|")


def check_layout(layout: str, ranks: int, layers: int, mtp: int = 0) -> list[str]:
    """The stages of a layout, held to its rules."""
    stages = stages_of(layout)
    items = "".join(stages)
    need(items.startswith("E") and items.count("E") == 1, "first item is the embedding, once")
    need(items.endswith("L") and items.count("L") == 1, "last item is the loss, once")
    need(items.count("t") == layers, "as many t as --num-layers")
    need(items.count("m") == mtp, "as many m as --mtp-num-layers")
    need("t" not in items[items.find("m") :] if mtp else True, "no t after an m")
    need(len(stages) % ranks == 0, "stages divide over the ranks")
    having = [at for at, stage in enumerate(stages) if "m" in stage]
    need(len(having) <= 1, "all m on one stage")
    need(all(at >= len(stages) - ranks for at in having), "m on the last chunk of its rank")
    return stages


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Refused(message)


def parser() -> argparse.ArgumentParser:
    """The options that are about a plan."""
    found = _Parser(allow_abbrev=False)
    whole = (
        "num-layers mtp-num-layers pipeline-model-parallel-size tensor-model-parallel-size"
        " context-parallel-size expert-model-parallel-size micro-batch-size global-batch-size"
        " seq-length microbatch-group-size-per-virtual-pipeline-stage recompute-num-layers"
        " delta-offload-bytes-across-pp-ranks min-offloaded-tensor-size expert-tensor-parallel-size"
    )
    for name in whole.split():
        found.add_argument(f"--{name}", type=int)
    found.add_argument("--pipeline-model-parallel-layout")
    found.add_argument("--recompute-granularity", choices=("full", "selective"))
    found.add_argument("--recompute-method", choices=("uniform", "block"))
    found.add_argument("--recompute-modules", nargs="+", choices=MODULES)
    found.add_argument("--transformer-impl", choices=("local", "transformer_engine"))
    found.add_argument("--fine-grained-activation-offloading", action="store_true")
    found.add_argument("--offload-modules", nargs="+", choices=OFFLOADABLE)
    found.add_argument("--activation-offload-fraction", type=float)
    found.add_argument("--sequence-parallel", action="store_true")
    found.add_argument("--use-distributed-optimizer", action="store_true")
    for name in ("--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap"):
        found.add_argument(name, action="store_true")
    for flag in (
        "bf16",
        "fp16",
        "grad-reduce-in-bf16",
        "accumulate-allreduce-grads-in-fp32",
        "cross-entropy-loss-fusion",
        "moe-grouped-gemm",
        "overlap-moe-expert-parallel-comm",
    ):
        found.add_argument(f"--{flag}", action="store_true")
    found.add_argument("--cross-entropy-fusion-impl", choices=("native", "te"), default="native")
    found.add_argument("--fp8-format", choices=("e4m3", "hybrid"))
    found.add_argument("--fp8-param-gather", action="store_true")
    recipes = ("tensorwise", "delayed", "mxfp8", "blockwise", "custom")
    found.add_argument("--fp8-recipe", choices=recipes, default="delayed")
    backends = ("flash", "fused", "unfused", "local", "auto")
    found.add_argument("--attention-backend", choices=backends)
    found.add_argument("--cp-comm-type", nargs="+", default=["p2p"])
    graphs = ("none", "local", "transformer_engine", "full_iteration")
    found.add_argument("--cuda-graph-impl", choices=graphs, default="none")
    found.add_argument("--no-check-for-nan-in-loss-and-grad", action="store_true")
    found.add_argument(
        "--no-gradient-accumulation-fusion",
        action="store_false",
        dest="gradient_accumulation_fusion",
    )
    dispatchers = ("allgather", "alltoall", "flex")
    found.add_argument("--moe-token-dispatcher-type", choices=dispatchers)
    _add_model(found)
    return found


def _add_model(found: argparse.ArgumentParser) -> None:
    """The options of a model's layers, with their defaults (arguments.py, transformer_config.py)."""
    whole = (
        "hidden-size ffn-hidden-size num-attention-heads kv-channels vocab-size max-position-embeddings num-experts"
        " moe-ffn-hidden-size moe-shared-expert-intermediate-size q-lora-rank"
    )
    for name in whole.split():
        found.add_argument(f"--{name}", type=int)
    usual = {
        "num-query-groups": 1, "rotary-base": 10000, "moe-router-topk": 2, "kv-lora-rank": 32, "qk-head-dim": 128,
        "qk-pos-emb-head-dim": 64, "v-head-dim": 128,
    }  # fmt: skip
    for name, value in usual.items():
        found.add_argument(f"--{name}", type=int, default=value)
    for name in (
        "group-query-attention",
        "swiglu",
        "quick-geglu",
        "add-qkv-bias",
        "qk-layernorm",
        "untie-embeddings-and-output-weights",
        "multi-latent-attention",
    ):
        found.add_argument(f"--{name}", action="store_true")
    found.add_argument("--disable-bias-linear", action="store_false", dest="add_bias_linear")
    found.add_argument("--hidden-dropout", type=float, default=0.1)
    found.add_argument("--attention-dropout", type=float, default=0.1)
    norms = ("LayerNorm", "RMSNorm")
    found.add_argument("--normalization", choices=norms, default="LayerNorm")
    positions = ("learned_absolute", "rope", "yarn", "mrope", "relative", "none")
    found.add_argument("--position-embedding-type", choices=positions, default="learned_absolute")
    found.add_argument("--moe-layer-freq", type=_frequency, default=1)


def _frequency(text: str) -> int | list[int]:
    """A number, or the list that a pattern such as ([0]*3+[1]*2)*2 stands for."""
    if "[" not in text:
        return int(text)
    need(re.fullmatch(r"[\[\]()*+,\d]+", text), f"pattern {text}")
    return list(eval(text))  # of these characters alone


def printed(given: argparse.Namespace, **more: Any) -> str:
    """The arguments as Megatron-LM prints them when it starts."""
    lines = ["------------------------ arguments ------------------------"]
    for name, value in sorted({**vars(given), **more}.items()):
        lines.append(f"  {name} {'.' * (48 - len(name))} {value}")
    return "\n".join([*lines, "-------------------- end of arguments ---------------------", ""])


def accept(command: str, microbatches: int) -> argparse.Namespace:
    """The options of a command line, refused as Megatron-LM refuses them."""
    given = parser().parse_args(shlex.split(command))
    p = given.pipeline_model_parallel_size
    chunks = 1
    if given.pipeline_model_parallel_layout is not None:
        further = given.mtp_num_layers or 0
        stages = check_layout(given.pipeline_model_parallel_layout, p, given.num_layers, further)
        chunks = len(stages) // p
        need(chunks == 1 or p >= 2, "interleaving needs 2 ranks")
    group = given.microbatch_group_size_per_virtual_pipeline_stage
    if chunks > 1:
        g = p if group is None else group
        need(p <= g <= microbatches, "p <= g <= m")
        need(microbatches % g == 0 or microbatches % g >= p, "m mod g is 0 or at least p")
    else:
        need(group is None, "group size without chunks")
    _check_recompute(given)
    _check_offload(given)
    _check_exchange(given, chunks)
    _check_model(given)
    if given.cuda_graph_impl == "full_iteration":
        need(given.no_check_for_nan_in_loss_and_grad, "graphs exclude checks for NaN")
        need(
            not given.fine_grained_activation_offloading, "offloading would need a limit in flight"
        )
    return given


def _check_model(given: argparse.Namespace) -> None:
    if given.hidden_size is None:  # the plan is not of an estimated profile
        return
    need(given.num_attention_heads and given.ffn_hidden_size and given.vocab_size, "sizes")
    need(given.max_position_embeddings >= (given.seq_length or 0), "positions for the sequence")
    if not given.group_query_attention:
        need(given.num_query_groups == 1, "groups of queries need their option")
    need(given.num_attention_heads % given.num_query_groups == 0, "groups divide the heads")
    if isinstance(given.moe_layer_freq, list):
        need(len(given.moe_layer_freq) == given.num_layers, "a pattern has every layer")


def _check_recompute(given: argparse.Namespace) -> None:
    method, layers = given.recompute_method, given.recompute_num_layers
    if given.recompute_granularity == "full":
        need(method and layers and layers >= 1, "full needs a method and a number of layers")
        need(given.recompute_modules is None, "modules are for selective")
    else:
        need(method is None and layers is None, "method and number are for full")
    if given.recompute_granularity is None:
        need(given.recompute_modules is None, "modules need a granularity")


def _check_exchange(given: argparse.Namespace, chunks: int) -> None:
    need(not (given.bf16 and given.fp16), "one of bf16 and fp16")
    again = set(given.recompute_modules or ())
    if given.fp8_param_gather:
        need(given.fp8_format, "weights in fp8 are of GEMMs in fp8")
        need(given.use_distributed_optimizer, "weights in fp8 want the distributed optimizer")
    if given.fp8_format is not None and given.fp8_recipe == "delayed":
        need(not again & {"moe_act", "layernorm"}, "delayed scaling")
    need("moe_act" not in again or given.moe_grouped_gemm, "moe_act needs the grouped GEMM")
    experts = given.expert_model_parallel_size or 1
    tensor = given.tensor_model_parallel_size or 1
    need(experts == 1 or tensor == 1 or given.sequence_parallel, "experts with tp need sp")
    if given.overlap_moe_expert_parallel_comm:
        need(chunks > 1 or given.pipeline_model_parallel_size == 1, "overlap needs chunks")
        need(given.recompute_granularity != "full" and "moe" not in again, "overlap excludes these")
        need(experts > 1 and (given.bf16 or given.fp16), "overlap needs experts and 16 bits")
        need(given.moe_token_dispatcher_type in ("alltoall", "flex"), "dispatcher")


def check_world(given: argparse.Namespace, world: int) -> None:
    """Refuse sizes that do not divide over `world` GPUs."""
    p = given.pipeline_model_parallel_size
    tensor = given.tensor_model_parallel_size or 1
    dense = tensor * p * (given.context_parallel_size or 1)
    need(world % dense == 0, "tp x pp x cp divides the world")
    shared = given.expert_tensor_parallel_size or tensor
    experts = shared * (given.expert_model_parallel_size or 1) * p
    need(world % experts == 0, "etp x ep x pp divides the world")
    if given.global_batch_size is not None:
        once = given.micro_batch_size * (world // dense)
        need(given.global_batch_size % once == 0, "whole microbatches")


def _check_offload(given: argparse.Namespace) -> None:
    modules = set(given.offload_modules or ())
    again = set(given.recompute_modules or ())
    if not given.fine_grained_activation_offloading:
        need(not modules and given.activation_offload_fraction is None, "offloading is not on")
        return
    need(given.transformer_impl == "transformer_engine", "offloading needs TransformerEngine")
    need(modules, "offload modules")
    need("attn_proj" not in modules or "core_attn" in modules, "attn_proj needs core_attn")
    if "moe" in again:
        need(not modules & {"moe_act", "expert_fc1", "fused_group_mlp"}, "moe recomputed whole")
    if "fused_group_mlp" in modules:
        need(not modules & {"moe_act", "expert_fc1"}, "fused_group_mlp stands alone")
    need("mhc" not in again, "mhc excludes offloading")
    need(not ("gdp_qkv" in modules and "gdp_in_proj" in again), "gdp_qkv, gdp_in_proj")
    fraction = given.activation_offload_fraction
    need(fraction is None or 0 <= fraction <= 1, "fraction")
    delta = given.delta_offload_bytes_across_pp_ranks
    need(delta is None or delta >= 0, "delta")
