"""The pinned host memory of an evaluated set of programs, compiled.

An offloaded activation is on the host from the start of its O to the end of its R. Both engines of a
device serve its program in order, so the O's and the R's of each device are already in the order of time.
All times ns, all memory bytes, int64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...codes import O, R
from ...compiled import packed, part
from ..problem import Problem
from .times import NEVER, copied, duration


@packed
class Host(NamedTuple):
    """The host's memory, and working arrays."""

    limit: int  # bytes per node; `NEVER` if it cannot bind
    node: np.ndarray  # (devices,)
    begin: np.ndarray  # (units,) when the O of an offloaded activation starts
    size: np.ndarray  # (units,) the bytes that it moves
    at: np.ndarray  # (2, devices) the slot of the next O and of the next R of each device
    due: np.ndarray  # (2, devices) when that starts or ends; `NEVER`: there is none left
    pinned: np.ndarray  # (nodes,) bytes


def writes_behind(problem: Problem) -> bool:
    """Whether drives have to write copies behind them, as the memory in front of them does not take all.
    The compiled code does not follow what they have written; the replay of a better plan does."""
    offload = problem.profile.offload
    return problem.host_limit is not None and offload is not None and offload.writes_behind


def make_host(problem: Problem, units: int) -> Host:
    """Make the host of a problem for the compiled code; `units`: the number of encoded activations."""
    profile, limit = problem.profile, problem.host_limit
    devices = profile.devices
    return Host(
        limit=NEVER if limit is None or writes_behind(problem) else limit,
        node=np.arange(devices) // profile.devices_per_node,
        begin=np.zeros(units, np.int64),
        size=np.zeros(units, np.int64),
        at=np.zeros((2, devices), np.int64),
        due=np.zeros((2, devices), np.int64),
        pinned=np.zeros(profile.nodes, np.int64),
    )


@part
def exceeds(plan, costs, host, t):
    """Return whether an evaluated plan pins more than the limit on a node at some time."""
    return host.limit < NEVER and _exceeds(plan, costs, host, t)


@part
def _exceeds(plan, costs, host, t):
    high, mask, most = costs.high, (1 << costs.high) - 1, 0
    # 1. if it all fits at once, times do not matter
    for which in range(len(host.pinned)):
        host.pinned[which] = 0
    for d in range(len(plan.length)):
        for slot in range(plan.length[d]):
            code = plan.prog[d, slot]
            if code >> high == O:
                unit = code & mask
                host.begin[unit] = t.end[code] - duration(code, plan, costs, t)
                host.size[unit] = costs.gives[O, unit >> costs.low, copied(unit, plan, costs, t)]
                host.pinned[host.node[d]] += host.size[unit]
        most = max(most, host.pinned[host.node[d]])
    if most <= host.limit:
        return False
    # 2. all O's and R's in the order of time; what ends makes room for what starts at the same time
    for which in range(len(host.pinned)):
        host.pinned[which] = 0
    for d in range(len(plan.length)):
        host.at[0, d] = host.at[1, d] = -1
        _advance(plan, high, 0, d, host, t)
        _advance(plan, high, 1, d, host, t)
    while True:
        soonest, way, device = NEVER, 0, -1
        for d in range(len(plan.length)):
            if host.due[1, d] < soonest or (host.due[1, d] == soonest and way == 0 and device >= 0):
                soonest, way, device = host.due[1, d], 1, d
            if host.due[0, d] < soonest:
                soonest, way, device = host.due[0, d], 0, d
        if device < 0:
            return False
        size = host.size[plan.prog[device, host.at[way, device]] & mask]
        node = host.node[device]
        if way == 0:
            host.pinned[node] += size
            if host.pinned[node] > host.limit:
                return True
        else:
            host.pinned[node] -= size
        _advance(plan, high, way, device, host, t)


@part
def _advance(plan, high, way, d, host, t):
    """Go on to the next O (way 0) or R (way 1) of a device."""
    kind, slot = (R if way else O), host.at[way, d] + 1
    while slot < plan.length[d] and plan.prog[d, slot] >> high != kind:
        slot += 1
    host.at[way, d], host.due[way, d] = slot, NEVER
    if slot < plan.length[d]:
        code = plan.prog[d, slot]
        host.due[way, d] = t.end[code] if way else host.begin[code & (1 << high) - 1]
