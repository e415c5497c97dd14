"""Placement of the copies of an offloading schedule: slots on engines and links, then the program.

The compute order is replayed without copies first. The copies are then planned against those
times, so that the plan is a timing in which nothing computes later; by its order, the schedule
replays no later than the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..codes import BW, B, F, O, R
from ..errors import InvalidSchedule
from ..ops import OpKind
from ..profile import CostProfile
from ..schedule import Schedule, encode
from ..sim import simulate
from ..sim.host_links import link_keys
from .copy_slots import NONE, plan_slots

ROUND_TRIPS = 3  # an activation whose lifetime is not longer than this stays on the device


class _Pairs(NamedTuple):
    """The activations that might be offloaded, one entry each: stage, unit and device, when the
    offload may start and when the reload must end, and the duration of the longer copy (ns)."""

    stage: np.ndarray
    unit: np.ndarray
    device: np.ndarray
    free_ns: np.ndarray
    due_ns: np.ndarray
    copy_ns: np.ndarray


class _Copies(NamedTuple):
    """Transfers in the order of their planned times (ns), one entry each."""

    time_ns: np.ndarray
    device: np.ndarray
    kind: np.ndarray
    stage: np.ndarray
    unit: np.ndarray


def require_offload(profile: CostProfile, what: str) -> None:
    """Raise if a profile has no offload section, which `what` needs.

    Raises:
        InvalidSchedule: says what the profile lacks.
    """
    if profile.offload is None:
        raise InvalidSchedule(
            f"the profile {profile.name} has no offload section, and {what} needs one:"
            " give t_offload_ms and t_reload_ms (or bandwidths) under offload"
        )


def copies_hide(
    costs: CostProfile, out_ns: Sequence[int], back_ns: Sequence[int], budget_ns: int
) -> bool:
    """Whether copies of these durations per device, out and back, occupy no engine and no host link
    for longer than the budget; an engine or link for both directions counts their sum."""
    for group in costs.host_links:
        out, back = ([times[device] for device in group] for times in (out_ns, back_ns))
        ways = zip(out, back, strict=True)
        engine = max(map(sum if costs.shares_copy_engine else max, ways))
        link = sum(out) + sum(back) if costs.shares_host_link else max(sum(out), sum(back))
        if max(engine, link) > budget_ns:
            return False
    return True


def with_copies(
    base: Schedule,
    costs: CostProfile,
    offloaded: int,
    slices: int | None = None,
    start_ns: np.ndarray | None = None,
) -> Schedule:
    """Offload the activations of each device's first `offloaded` chunks in `base`; of each
    microbatch only the first `slices`, if given.

    Per host link, time is cut into slots of the longest transfer. An offload takes the earliest
    free slot after its F, its reload the latest free slot that ends one B before its B. A slot is
    free where neither the device's copy engine nor the link is taken, so that offloads and reloads,
    and devices on one link, alternate. Short-lived activations stay on the device; so do
    activations without free slots, counted in ``meta["dropped"]``. The profile must have an offload
    section. `start_ns`: when each op of `base` starts without limit and copies, if known.
    """
    assert costs.offload is not None
    if start_ns is None:
        start_ns = simulate(base, costs, enforce=False).start_ns
    keys = link_keys(costs)
    link_order: dict[str, list[tuple[int, ...]]] = {}
    shared, dropped = costs.offload.copy_engines == "shared", 0
    # two engines on one link: an offload must not delay a reload that is due
    both_ways = costs.offload.host_link == "single" and not shared
    every = _pairs(base, costs, start_ns, offloaded, slices)
    of_device = {device: at for at, group in enumerate(costs.host_links) for device in group}
    link = np.array([of_device[device] for device in range(costs.devices)])[every.device]
    planned = []
    for at, group in enumerate(costs.host_links):
        pairs = _Pairs(*(entries[link == at] for entries in every))
        copies = _plan(pairs, keys, shared)
        dropped += len(pairs.stage) - len(copies.kind) // 2
        planned.append(copies)
        if len(group) > 1 or both_ways:
            for device, *op in np.column_stack(copies[1:]).tolist():
                link_order.setdefault(keys[2 * device + (op[0] == R)], []).append(tuple(op))
    table, offsets = _insert(
        base, start_ns, _Copies(*map(np.concatenate, zip(*planned, strict=True))), shared
    )
    op = base.shape.op
    return Schedule.from_table(
        base.shape,
        table,
        offsets,
        {key: [op(OpKind(kind), *at) for kind, *at in ops] for key, ops in link_order.items()},
        {**base.meta, "dropped": dropped},
        base.levels,
    )


def _pairs(
    base: Schedule, costs: CostProfile, start_ns: np.ndarray, offloaded: int, slices: int | None
) -> _Pairs:
    """Return the activations of each device's first `offloaded` chunks (and of each microbatch's
    first `slices`) that live long enough to be offloaded."""
    shape = base.shape
    stages = [stage for d in range(shape.devices) for stage in shape.stages_of(d)[:offloaded]]
    units = np.arange(shape.units)
    if slices is not None:
        units = units[units % shape.slices < slices]
    stage, unit = np.repeat(np.array(stages, np.int64), len(units)), np.tile(units, len(stages))
    parts = [cost.slices if shape.slices > 1 else [cost] for cost in costs.stages]
    times = np.array(
        [
            [(c.t_f_ns, c.t_b_ns, c.t_offload_ns or 0, c.t_reload_ns or 0) for c in of_stage]
            for of_stage in parts
        ],
        np.int64,
    )
    t_f_ns, t_b_ns, out_ns, back_ns = times[stage, unit % shape.slices].T
    backward = base.rows[encode(shape, B, stage, unit)]
    backward = np.where(backward < 0, base.rows[encode(shape, BW, stage, unit)], backward)
    free = start_ns[base.rows[encode(shape, F, stage, unit)]] + t_f_ns
    due = start_ns[backward] - t_b_ns
    lives = due - free > ROUND_TRIPS * (out_ns + back_ns)
    device = np.asarray(shape.placement)[stage]
    found = _Pairs(stage, unit, device, free, due, np.maximum(out_ns, back_ns))
    return _Pairs(*(entries[lives] for entries in found))


def _plan(pairs: _Pairs, keys: Sequence[str], shared: bool) -> _Copies:
    """Plan the transfers on one host link; pairs without free slots are left out. Pairs are served
    in the order of their F's; if some are then left out, the longest-lived ones are served first,
    as they save the most memory."""
    slot_ns = int(pairs.copy_ns.max(initial=1))
    number = {key: at for at, key in enumerate(dict.fromkeys(keys), len(keys))}
    link = np.array([number[key] for key in keys], np.int64)
    engines = np.column_stack((2 * pairs.device, 2 * pairs.device + (not shared)))
    links = np.column_stack((link[2 * pairs.device], link[2 * pairs.device + 1]))
    earliest, latest = -(-pairs.free_ns // slot_ns), pairs.due_ns // slot_ns - 1
    slots = np.full((len(pairs.stage), 2), NONE)
    for served in (pairs.free_ns, pairs.free_ns - pairs.due_ns):
        order = np.argsort(served, kind="stable")
        slots[order] = plan_slots(earliest[order], latest[order], engines[order], links[order])
        if (slots != NONE).all():
            break
    kind = np.tile((O, R), len(slots))
    every = slots.ravel(), *(np.repeat(part, 2) for part in (pairs.device, pairs.stage, pairs.unit))
    slot, device, stage, unit = every
    order = np.lexsort((unit, stage, kind, device, slot))
    order = order[slot[order] != NONE]
    return _Copies(slot[order] * slot_ns, device[order], kind[order], stage[order], unit[order])


def _insert(
    base: Schedule, start_ns: np.ndarray, copies: _Copies, shared: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Make the table and the offsets of `base` with copies: each R after the op that runs when it
    starts (its anchor), each O right after its F, or later on a shared engine if R's have earlier
    slots."""
    rows = base.rows[encode(base.shape, F, copies.stage, copies.unit)] + 1
    added, where = [], []
    for device in range(base.shape.devices):
        first, last = base.offsets[device : device + 2]
        here = np.flatnonzero(copies.device == device)
        reload = copies.kind[here] == R
        anchors = first + np.searchsorted(start_ns[first:last], copies.time_ns[here], "right")
        at = np.where(reload, anchors, rows[here])
        for queue in (reload | True,) if shared else (reload, ~reload):
            at[queue] = np.maximum.accumulate(at[queue])
        order = np.argsort(at, kind="stable")
        added.append(here[order])
        where.append(at[order])
    chosen = np.concatenate(added)
    copied = np.column_stack((copies.kind, copies.stage, copies.unit))[chosen]
    table = np.insert(base.table, np.concatenate(where), copied, axis=0)
    return table, base.offsets + np.cumsum([0, *map(len, added)])
