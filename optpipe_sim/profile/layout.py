"""Move the layers of a model between the stages of its profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from ..errors import ProfileError
from ..stage_cost import with_overhead
from . import CostProfile
from .items import StageMaker, decoder_layers, even_counts


def counts_of(profile: CostProfile) -> list[int]:
    """Return how many items each stage of `profile` has: as its stages say, else an even share.

    Raises:
        ProfileError: for a profile without items, or with fewer than stages.
    """
    if not profile.items:
        raise ProfileError(
            f"items: the profile {profile.name} has no costs per layer; estimate writes them, or give"
            " them as items: [{name: embedding, t_f_ms: ...}, {name: layer, count: 32, ...}, ...]"
        )
    said = [cost.layers or 0 for cost in profile.stages]
    if sum(said) == len(profile.items) and min(said) > 0:
        return said
    return even_counts(len(profile.items), len(profile.stages))


def with_layout(
    profile: CostProfile,
    counts: Sequence[int],
    chunks: int | None = None,
    placement: str | Sequence[int] | None = None,
    maker: StageMaker | None = None,
) -> CostProfile:
    """Return the profile with its items distributed again: `counts` of them on each stage, in model order.

    Args:
        chunks, placement: None: the profile's. `maker`: of the profile's items on so many chunks.

    Raises:
        ProfileError: for a wrong number of counts, or counts that do not add up to the items.
    """
    chunks = profile.chunks if chunks is None else chunks
    if min(counts) < 1 or sum(counts) != len(profile.items):
        raise ProfileError(
            f"layers: expected numbers of at least 1 that add up to {len(profile.items)}, the items of"
            f" {profile.name}; got {', '.join(map(str, counts))}"
        )
    maker = maker or StageMaker(profile.items, chunks)
    bare = [maker.stage(first, last) for first, last in pairwise([0, *accumulate(counts)])]
    stages = [with_overhead(cost, profile.overhead_ns) for cost in bare]
    return replace(
        profile,
        chunks=chunks,
        placement=profile.placement if placement is None else placement,  # type: ignore[arg-type]
        stages=tuple(stages),
        slices=1,
        pair_hidden=profile.hidden_for(counts),
        meta=_meta(profile, counts),
    )


def one_by_one(profile: CostProfile) -> CostProfile:
    """Return the profile where no pair hides anything, in whatever layout."""
    items = tuple(replace(item, streams=None) for item in profile.items)
    return replace(profile, pair_hidden=0, items=items)


def _meta(profile: CostProfile, counts: Sequence[int]) -> dict[str, Any]:
    """Return the notes without those on the previous layout."""
    left = ("parameters_per_device", "weights_bytes_per_device", "static_by_stage")
    meta = {key: value for key, value in profile.meta.items() if key not in left}
    return {**meta, "layers_per_stage": decoder_layers(profile.items, counts)}
