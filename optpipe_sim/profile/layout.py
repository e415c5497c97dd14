"""Move the layers of a model between the stages of its profile."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ProfileError
from . import CostProfile
from .items import even_counts


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


def one_by_one(profile: CostProfile) -> CostProfile:
    """Return the profile where no pair hides anything, in whatever layout."""
    items = tuple(replace(item, streams=None) for item in profile.items)
    return replace(profile, pair_hidden=0, items=items)
