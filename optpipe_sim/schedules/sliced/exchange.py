"""SlimPipe's context exchange, as a cost."""

from __future__ import annotations

from dataclasses import replace

from ...profile import CostProfile
from ...profile.parts import join
from ...stage_cost import StageCost


def context_exchange_ns(profile: CostProfile) -> int:
    """Return the time that the exchange adds to the F and to the B of a slice: the queries of each layer
    go to another device and their results come back, as two messages between stages; keys and values that
    are handed over are taken to come behind attention."""
    return 2 * max(cost.layers or 0 for cost in profile.stages) * profile.t_comm_ns


def with_context_exchange(profile: CostProfile, exchange_ns: int | None = None) -> CostProfile:
    """Return the profile with slices of equal time, their mean: devices with late slices, which
    attend to more keys, hand part of their attention to devices with early slices.

    Args:
        exchange_ns: the time that the exchange adds to the F and to the B of every slice, in ns; None: see
            `context_exchange_ns`.

    Source: Li et al., SlimPipe (arXiv 2504.14519), section 4.2.
    """

    added = context_exchange_ns(profile) if exchange_ns is None else exchange_ns

    def levelled(cost: StageCost) -> StageCost:
        n = len(cost.slices)
        parts = [
            replace(
                part,
                t_f_ns=-(-cost.t_f_ns // n) + added,
                t_b_ns=-(-cost.t_b_ns // n) + added,
                t_w_ns=-(-cost.t_w_ns // n),
                t_bw_ns=None if cost.t_bw_ns is None else -(-cost.t_bw_ns // n) + added,
            )
            for part in cost.slices
        ]
        return join(parts, cost.static_bytes, cost.layers)

    if profile.slices == 1:
        return profile
    work = {**(profile.meta.get("work") or {}), "slice_by": "exchange"}
    stages = tuple(levelled(cost) for cost in profile.stages)
    return replace(profile, stages=stages, meta={**profile.meta, "work": work})
