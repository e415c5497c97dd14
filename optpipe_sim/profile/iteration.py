"""The time of an iteration, as the trainer's log shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from . import CostProfile


def iteration_ns(profile: CostProfile, pipeline_ns: float) -> float:
    """Return the time of an iteration whose pipeline takes `pipeline_ns`: what the profile knows beside
    it is the exchange of tokens that no other microbatch hides, gaps between ops, gradient sync, update,
    and what is the same in each.

    A profile without an ``iteration`` in its `meta` knows of nothing beside the pipeline.
    """
    extra: Mapping[str, float] = profile.meta.get("iteration", {})
    once = (
        sum(extra.get(key, 0.0) for key in ("optimizer_ms", "gradient_sync_ms", "fixed_ms")) * 1e6
    )
    pipeline_ns += extra.get("exposed_exchange_ms", 0.0) * 1e6
    return pipeline_ns / (1 - extra.get("overhead", 0.0)) + once


def iteration_tokens(profile: CostProfile, microbatches: int) -> int | None:
    """Return the tokens of an iteration, over all replicas; None where the profile is no estimate, which
    says them."""
    work, parallel = profile.meta.get("work"), profile.meta.get("parallel")
    if not isinstance(work, dict) or not isinstance(parallel, dict):
        return None
    if "seq" not in work or "microbatch" not in work:
        return None
    return int(work["seq"] * work["microbatch"] * parallel.get("dp", 1) * microbatches)


def iteration_flops(profile: CostProfile, microbatches: int) -> float | None:
    """Return the model FLOPs of an iteration per GPU; None where the profile is no estimate, which says them."""
    done = profile.meta.get("iteration", {}).get("flops_per_microbatch")
    parallel = profile.meta.get("parallel")
    if done is None or not isinstance(parallel, dict) or not parallel.get("devices"):
        return None
    return float(done * microbatches / parallel["devices"])
