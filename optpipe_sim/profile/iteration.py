"""The time of an iteration, as the trainer's log shows it, and the tokens and FLOPs of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from . import CostProfile


# of the `iteration` of a profile's meta: the model FLOPs of a usual microbatch, and with half of the attention's scores
FLOPS, FLOPS_CAUSAL = "flops_per_microbatch", "flops_per_microbatch_causal"
# the same of all microbatches, where they differ; and of its `work`: the tokens of the sequences of each
ALL_FLOPS, ALL_FLOPS_CAUSAL = "flops_of_lengths", "flops_of_lengths_causal"
LENGTHS = "lengths"


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


def lengths_of(profile: CostProfile) -> list[list[int]] | None:
    """Return the tokens of the sequences of each microbatch that differs; None where microbatches are alike, or the
    profile does not say them, as one whose factors were written by hand."""
    work = profile.meta.get("work")
    if profile.alike or not isinstance(work, dict):
        return None
    found = work.get(LENGTHS)
    return found if found and len(found) == len(profile.factors) else None


class Lengths(NamedTuple):
    """The tokens of microbatches that differ: of the shortest, of the longest, and of the longest sequence in one."""

    least: int
    most: int
    sequence: int


def extent(profile: CostProfile) -> Lengths | None:
    """Return between what the lengths of a profile's microbatches are; None where `lengths_of` is."""
    lengths = lengths_of(profile)
    if lengths is None:
        return None
    tokens = list(map(sum, lengths))
    return Lengths(min(tokens), max(tokens), max(map(max, lengths)))


def replica_tokens(profile: CostProfile, microbatches: int) -> int | None:
    """Return the tokens of the microbatches of one replica; None where the profile does not say them."""
    if not profile.alike:
        lengths = lengths_of(profile)
        return None if lengths is None else sum(map(sum, lengths))
    work = profile.meta.get("work")
    seq, size = (work.get("seq"), work.get("microbatch")) if isinstance(work, dict) else (0, 0)
    if not isinstance(seq, int) or not isinstance(size, int) or not seq * size:
        return None
    return seq * size * microbatches


def iteration_tokens(profile: CostProfile, microbatches: int) -> int | None:
    """Return the tokens of an iteration, over all replicas; None where the profile is no estimate, which
    says them."""
    parallel, tokens = profile.meta.get("parallel"), replica_tokens(profile, microbatches)
    if tokens is None or not isinstance(parallel, dict):
        return None
    return int(tokens * parallel.get("dp", 1))


def replica_flops(profile: CostProfile, microbatches: int, causal: bool = False) -> float | None:
    """Return the model FLOPs of the microbatches of one replica, every attention score counted or with `causal` half
    of them; None where the profile does not say them."""
    extra = profile.meta.get("iteration", {})
    if not profile.alike:
        known = lengths_of(profile) is not None
        found: float | None = extra.get(ALL_FLOPS_CAUSAL if causal else ALL_FLOPS)
        return found if known else None
    each = extra.get(FLOPS_CAUSAL if causal else FLOPS)
    return None if each is None else each * microbatches


def iteration_flops(profile: CostProfile, microbatches: int) -> float | None:
    """Return the model FLOPs of an iteration per GPU; None where the profile is no estimate, which says them."""
    done, parallel = replica_flops(profile, microbatches), profile.meta.get("parallel")
    if done is None or not isinstance(parallel, dict) or not parallel.get("devices"):
        return None
    return float(done / parallel["devices"])
