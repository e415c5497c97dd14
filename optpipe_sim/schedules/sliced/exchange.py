"""SlimPipe's context exchange, as a cost."""

from __future__ import annotations

from dataclasses import replace

from ...profile import CostProfile
from ...profile.parts import join
from ...stage_cost import StageCost


def with_context_exchange(profile: CostProfile, exchange_ns: int = 0) -> CostProfile:
    """Return the profile with slices of equal time, their mean: devices with late slices, which
    attend to more keys, hand part of their attention to devices with early slices.

    Args:
        exchange_ns: the time that the exchange adds to the F and to the B of every slice, in ns.

    Source: Li et al., SlimPipe (arXiv 2504.14519), section 4.2.
    """

    def levelled(cost: StageCost) -> StageCost:
        n = len(cost.slices)
        parts = [
            replace(
                part,
                t_f_ns=-(-cost.t_f_ns // n) + exchange_ns,
                t_b_ns=-(-cost.t_b_ns // n) + exchange_ns,
                t_w_ns=-(-cost.t_w_ns // n),
                t_bw_ns=None if cost.t_bw_ns is None else -(-cost.t_bw_ns // n) + exchange_ns,
            )
            for part in cost.slices
        ]
        return join(parts, cost.static_bytes, cost.layers)

    if profile.slices == 1:
        return profile
    return replace(profile, stages=tuple(levelled(cost) for cost in profile.stages))
