"""A profile without levels of recomputation that no schedule of the profile with them can beat."""

from __future__ import annotations

from dataclasses import replace

from ..op_table import in_proportion
from ..profile import CostProfile
from ..stage_cost import StageCost


def relaxed(profile: CostProfile) -> CostProfile:
    """Return the profile with every activation as small as the most thorough level makes it, at no cost.

    Proof that a bound on the result bounds the profile. Take a schedule, drop its C's and shorten its
    backwards to those without recomputation; every other op starts when it did. Engines and
    dependencies are kept. An activation held keep, or more, from its F to its backward and during
    that, and w from then until its W; now it holds ``a = min(act, keeps)``, and ``min(w, a)``. One
    that was on the host held keep - min(offload, keep) there, which is least where keep is. Copies
    of fewer bytes of the same activation take no longer. So no more is held at any time.
    """
    if not profile.has_levels:
        return profile
    return profile.map_stages(lambda _, cost: relaxed_cost(cost))


def relaxed_cost(cost: StageCost) -> StageCost:
    """Return the stage of `relaxed`."""
    if not cost.recompute:
        return cost
    act = min([cost.act_bytes, *(level.keep_bytes for level in cost.recompute)])
    moved = min(cost.offloadable, act)

    def copy_ns(time_ns: int | None) -> int | None:
        return None if time_ns is None else in_proportion(time_ns, moved, cost.offloadable)

    return replace(
        cost,
        act_bytes=act,
        w_bytes=min(cost.w_bytes, act),
        offload_bytes=moved,
        t_offload_ns=copy_ns(cost.t_offload_ns),
        t_reload_ns=copy_ns(cost.t_reload_ns),
        recompute=(),
    )
