"""Logs of runs of Megatron-LM: arguments as it prints them, iterations, memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LLAMA3_70B = {
    "add_bias_linear": False, "add_qkv_bias": False, "attention_backend": "AttnBackend.auto", "ffn_hidden_size": 28672,
    "group_query_attention": True, "hidden_size": 8192, "kv_channels": 128, "max_position_embeddings": 8192,
    "moe_router_topk": 2, "multi_latent_attention": False, "normalization": "RMSNorm", "num_attention_heads": 64,
    "num_experts": None, "num_layers": 80, "num_query_groups": 8, "position_embedding_type": "rope",
    "rotary_base": 500000, "swiglu": True, "transformer_impl": "transformer_engine",
    "untie_embeddings_and_output_weights": True, "vocab_size": 128256,
}  # fmt: skip
ON_64_GPUS = {
    "bf16": True, "context_parallel_size": 1, "data_parallel_size": 2, "expert_model_parallel_size": 1, "fp16": False,
    "fp8": None, "global_batch_size": 64, "log_interval": 1, "micro_batch_size": 1, "overlap_grad_reduce": True,
    "overlap_param_gather": False, "pipeline_model_parallel_layout": None, "pipeline_model_parallel_size": 4,
    "recompute_granularity": None, "recompute_method": None, "recompute_modules": None, "recompute_num_layers": None,
    "seq_length": 8192, "sequence_parallel": True, "tensor_model_parallel_size": 8, "tp_comm_overlap": False,
    "use_distributed_optimizer": True, "virtual_pipeline_model_parallel_size": None, "world_size": 64,
}  # fmt: skip
TIMES_MS = (31000.0, 11020.0, 10980.0, 11000.0)


def log_of(
    changes: dict[str, Any],
    times_ms: Sequence[float] = TIMES_MS,
    max_gib: float | None = 49.0,
    batch: int = 64,
) -> str:
    """A log of Llama-3-70B on 64 GPUs, with other arguments where `changes` says so."""
    lines = ["------------------------ arguments ------------------------"]
    for name, value in sorted({**LLAMA3_70B, **ON_64_GPUS, **changes}.items()):
        lines.append(f"  {name} {'.' * (48 - len(name))} {value}")
    lines.append("-------------------- end of arguments ---------------------")
    for at, ms in enumerate(times_ms, 1):
        lines.append(
            f" [2026-11-02 10:{at:02}:00] iteration {at:8}/     100 | consumed samples: {at * batch:12} | elapsed time per"
            f" iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 391.5 | learning rate: 1.0E-04 | global batch"
            f" size: {batch:5} | lm loss: 1.1E+01 | loss scale: 1.0 | grad norm: 1.0 |"
        )
        if at == 1 and max_gib:
            for rank in (0, 16, 32, 48):
                most = (max_gib - rank / 32) * 1024
                lines.append(
                    f"[Rank {rank}] (after 1 iterations) memory (MB) | allocated: 21000.00 | max allocated: {most:.2f}"
                    " | reserved: 61000.00 | max reserved: 61000.00"
                )
    return "\n".join(lines) + "\n"
