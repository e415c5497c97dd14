"""The atlas as a table: per instance the best schedule known, the best bound, and where they come from."""

from __future__ import annotations

from optpipe_sim.atlas.instances import Instance, read_library
from optpipe_sim.profile import CostProfile
from optpipe_sim.study.tasks import Row

VERSION = 1
MAY = {
    (False, False): "neither",
    (True, False): "offload",
    (False, True): "recompute",
    (True, True): "both",
}


def run(names: str = "") -> list[Row]:
    """Return a row per instance whose name has `names`.

    ``may``: what may be done with activations. ``share``: the memory limit as a share of what 1F1B's activations take on the device where
    it is the least. ``kind``: of the model, ``dense`` or ``experts``, or where the op times are from, ``published`` or ``small``.
    """
    profiles: dict[str, CostProfile] = {}
    rows = []
    for one in read_library():
        if names in one.name:
            profile = profiles.setdefault(one.profile_name, one.load_profile())
            rows.append(_row(one, profile))
    return rows


def _row(one: Instance, profile: CostProfile) -> Row:
    best, bound = one.best, one.bound
    assert bound is not None
    return {
        "name": one.name,
        "model": one.model,
        "kind": _kind(one),
        "devices": one.devices,
        "chunks": one.chunks,
        "placement": profile.shape(1).placement_name,
        "slices": profile.slices,
        "links": profile.links,
        "microbatches": one.microbatches,
        "may": MAY[profile.offload is not None, profile.has_levels],
        "limit_bytes": one.limit_bytes,
        "share": share_of_1f1b(profile, one.microbatches, one.limit_bytes),
        "best_ns": best and best.ns,
        "found_by": best and best.how,
        "bound_ns": bound.ns,
        "proof": bound.how,
        "gap": one.gap,
        "commit": (best or bound).commit,
        "seconds": (best or bound).seconds,
        "seed": (best or bound).seed,
    }


def share_of_1f1b(profile: CostProfile, microbatches: int, limit_bytes: int) -> float:
    """Return a limit as a share of what 1F1B's activations take, on the device where that share is the least."""
    merged = profile.with_slices(1).rechunk(1)
    shares = [
        (limit_bytes - static) / (min(microbatches, profile.devices - device) * cost.act_bytes)
        for device, (static, cost) in enumerate(
            zip(merged.static_bytes, merged.stages, strict=True)
        )
    ]
    return round(min(shares), 4)


def _kind(one: Instance) -> str:
    if one.model == "small":
        return "small"
    if not one.source.startswith("optpipe-sim"):
        return "published"
    return "experts" if ", ep " in one.source else "dense"
