"""Which transfers share a host link, and how `Schedule.link_order` names the links."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..errors import InvalidSchedule
from ..ops import Op, R
from ..profile import CostProfile
from ..schedule import Schedule


def link_keys(profile: CostProfile) -> tuple[str, ...]:
    """Return the link of each device and direction, as ``link_order`` names it: entry ``2 d`` for the O's
    of device d, ``2 d + 1`` for its R's. The number is the host-link group (lone devices follow the
    groups in rank order)."""
    single = profile.shares_host_link
    keys = [""] * (2 * profile.devices)
    for number, group in enumerate(profile.host_links):
        for device in group:
            keys[2 * device] = f"{number}/OR" if single else f"{number}/O"
            keys[2 * device + 1] = f"{number}/OR" if single else f"{number}/R"
    return tuple(keys)


def check_link_order(schedule: Schedule, profile: CostProfile) -> None:
    """Refuse a link order that does not list exactly the transfers of its link.

    Raises:
        InvalidSchedule: names the link and an op that is missing, is none of its transfers, or is listed twice.
    """
    if not schedule.link_order:
        return
    keys = link_keys(profile)
    rows = np.flatnonzero(schedule.is_transfer)
    way = 2 * schedule.devices[rows] + (schedule.table[rows, 0] == R)
    for key, ops in schedule.link_order.items():
        if key not in keys:
            known = ", ".join(sorted(set(keys)))
            raise InvalidSchedule(f"link_order {key}: the profile has no such link; it has {known}")
        there = rows[np.isin(way, [at for at, name in enumerate(keys) if name == key])].tolist()
        if sorted(map(schedule.row, ops)) == there:
            continue
        on_link, listed = set(map(schedule.op, there)), set(ops)
        for problem, odd in (
            ("is no transfer of this link", listed - on_link),
            ("is missing", on_link - listed),
        ):
            if odd:
                raise InvalidSchedule(f"link_order {key}: {_first(odd)} {problem}")
        raise InvalidSchedule(f"link_order {key}: an op is listed twice")


def _first(ops: Iterable[Op]) -> Op:
    return min(ops)
