"""Values of ops: prices per ns of each kind of op, from the configuration LP of one device.

Prices are *fair* when no configuration earns more per ns than 1: its ops' prices and that of the bytes it leaves
to what waits, together. Then all that is still to run, at these prices, is no more than the time it
takes (weak duality, over configurations), whatever else is true. The search adds them up for each node.
"""

from __future__ import annotations

import numpy as np

from ..configurations import Configuration, Part, add_ops, configurations, waits
from ..linear import Linear
from .device_bound import ENDS
from .moves import ONE
from .problem import OneDevice

KINDS = ("F", "B", "W", "BW", "O", "R")
BYTE = 1 << 80  # prices per byte are in 1 / BYTE


def prices(device: OneDevice) -> np.ndarray | None:
    """(sets, stages, 10) fair prices in 1/ONE, in the columns of `moves`, for a device whose
    microbatches are all to come, and for one that has them all on the host. None where the sums
    would not fit into 64 bits, or where activations may be recomputed: that search takes none."""
    if any(cost.recompute for cost in device.costs):
        return None
    longest = sum(cost.work_ns + sum(device.delay) for cost in device.costs)
    longest += sum((c.t_offload_ns or 0) + (c.t_reload_ns or 0) for c in device.costs)
    if longest * (device.microbatches + 1) * ONE >= 1 << 61:
        return None
    m = device.microbatches
    return np.array([_fair(device, m, 0), _fair(device, m, 0, device.after_ns)], np.int64)


def _fair(device: OneDevice, coming: int, hosted: int, free: int = 0) -> list[list[int]]:
    model = Linear(unit=max(1, device.microbatches * sum(c.work_ns for c in device.costs)))
    uses = [(one, model.variable()) for one in configurations(device)]
    after = [
        (Configuration((Part("W", s),), 0), model.variable()) for s in range(len(device.stages))
    ]
    waiting = [_waits(device, s) for s in range(len(device.stages))]
    add_ops(model, device, [*uses, *after], coming, hosted, waiting)
    model.at_least([(0, 1), *((variable, -1) for _, variable in uses)], 0)
    model.at_least([(variable, -1) for _, variable in after], -free)
    found, _ = model.dual(BYTE)
    per_byte = found[len(device.stages) * len(KINDS)]
    price = {
        Part(kind, s): found[s * len(KINDS) + k] * ONE // BYTE
        for s in range(len(device.stages))
        for k, kind in enumerate(KINDS)
    }
    # rounding may have made a configuration earn too much: all prices shrink in proportion
    earned = max(
        sum(price[part] for part in one.parts) * BYTE + per_byte * one.room * ONE for one, _ in uses
    )
    if earned > ONE * BYTE:
        price = {part: value * ONE * BYTE // earned for part, value in price.items()}
        per_byte = per_byte * ONE * BYTE // earned
    return [_columns(device, s, price, per_byte) for s in range(len(device.stages))]


def _waits(device: OneDevice, s: int) -> tuple[int, int]:
    """As `bounds.lp.waits`, but no more than the search itself assumes: offloaded activations are ready
    once reloaded, and at most ENDS of those that stay are distinguished."""
    act = device.costs[s].act_bytes
    if not act or device.capacity // act > ENDS:
        return 0, 0
    return waits(device, s)[0], 0


def _columns(device: OneDevice, s: int, price: dict[Part, int], per_byte: int) -> list[int]:
    """The columns of a stage: per ns of each kind, then per F to come, per backward to come, per
    weight gradient pending, per activation on the host. Where there is a choice, the cheaper."""
    cost = device.costs[s]
    own = {kind: price[Part(kind, s)] for kind in KINDS}
    back, weight = own["B"] * cost.t_b_ns, own["W"] * cost.t_w_ns
    copies = own["O"] * (cost.t_offload_ns or 0) + own["R"] * (cost.t_reload_ns or 0)
    stays, leaves = (waiting * per_byte * ONE // BYTE for waiting in _waits(device, s))
    waiting = min(stays, leaves + copies) if device.offloads and cost.offloadable else stays
    whole = back + weight
    if cost.fused_ns < cost.t_b_ns + cost.t_w_ns:
        whole = min(whole, own["BW"] * cost.fused_ns)
    return [
        *own.values(),
        own["F"] * cost.t_f_ns + waiting,
        whole,
        weight,
        own["R"] * (cost.t_reload_ns or 0),
    ]
