"""Placement of the copies of an offloading schedule: slots on engines and links, then the program.

The compute order is replayed without copies first. The copies are then planned against those
times, so that the plan is a timing in which nothing computes later; by its order, the schedule
replays no later than the plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import InvalidSchedule
from ..ops import BW, B, F, O, Op, R
from ..profile import CostProfile
from ..schedule import Schedule
from ..sim import simulate
from ..sim.links import link_keys
from ..stage_cost import StageCost

ROUND_TRIPS = 3  # an activation whose lifetime is not longer than this stays on the device


@dataclass(frozen=True)
class _Pair:
    """An activation that might be offloaded: when its offload may start, and when its reload must end."""

    forward: Op
    device: int
    free_ns: int
    due_ns: int


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
    base: Schedule, costs: CostProfile, offloaded: int, slices: int | None = None
) -> Schedule:
    """Offload the activations of each device's first `offloaded` chunks in `base`; of each
    microbatch only the first `slices`, if given.

    Per host link, time is cut into slots of the longest transfer. An offload takes the earliest
    free slot after its F, its reload the latest free slot that ends one B before its B. A slot is
    free where neither the device's copy engine nor the link is taken, so that offloads and reloads,
    and devices on one link, alternate. Short-lived activations stay on the device; so do
    activations without free slots, counted in ``meta["dropped"]``. The profile must have an offload
    section.
    """
    assert costs.offload is not None
    trace = simulate(base, costs, enforce=False)
    begin = dict(
        zip((op for ops in base.programs for op in ops), trace.start_ns.tolist(), strict=True)
    )
    keys = link_keys(costs)
    after: list[list[tuple[int, Op]]] = [[] for _ in base.programs]
    link_order: dict[str, list[Op]] = {}
    shared, dropped = costs.offload.copy_engines == "shared", 0
    # two engines on one link: an offload must not delay a reload that is due
    both_ways = costs.offload.host_link == "single" and not shared
    for group in costs.host_links:
        pairs = [pair for d in group for pair in _pairs(base, costs, begin, d, offloaded, slices)]
        parts = [_cost(costs, pair.forward) for pair in pairs]
        slot_ns = max([1, *(max(part.t_offload_ns or 0, part.t_reload_ns or 0) for part in parts)])
        plan = _plan(pairs, keys, shared, slot_ns)
        dropped += len(pairs) - len(plan) // 2
        for slot, device, op in sorted(plan):
            after[device].append((slot * slot_ns, op))
            if len(group) > 1 or both_ways:
                link_order.setdefault(keys[2 * device + (op.kind is R)], []).append(op)
    programs = [
        _insert(ops, [begin[op] for op in ops], copies, shared)
        for ops, copies in zip(base.programs, after, strict=True)
    ]
    return Schedule(base.shape, programs, link_order, {**base.meta, "dropped": dropped})


def _cost(costs: CostProfile, op: Op) -> StageCost:
    """Return the costs of an op's stage, or of its slice."""
    stage = costs.stages[op.stage]
    return stage if op.slice is None else stage.slices[op.slice]


def _pairs(
    base: Schedule,
    costs: CostProfile,
    begin: dict[Op, int],
    device: int,
    offloaded: int,
    slices: int | None,
) -> list[_Pair]:
    """Return the activations of a device's first `offloaded` chunks (and of each microbatch's first
    `slices`) that live long enough to be offloaded."""
    pairs, shape = [], base.shape
    for stage in shape.stages_of(device)[:offloaded]:
        for unit in range(shape.units):
            if slices is not None and unit % shape.slices >= slices:
                continue
            forward = shape.op(F, stage, unit)
            cost = _cost(costs, forward)
            shortest = ROUND_TRIPS * ((cost.t_offload_ns or 0) + (cost.t_reload_ns or 0))
            back = forward._replace(kind=B)
            back = back if back in begin else back._replace(kind=BW)
            free, due = begin[forward] + cost.t_f_ns, begin[back] - cost.t_b_ns
            if due - free > shortest:
                pairs.append(_Pair(forward, device, free, due))
    return pairs


class _Link:
    """The slots of a host link and of the copy engines of its devices."""

    def __init__(self, keys: Sequence[str], shared: bool) -> None:
        self.keys, self.shared = keys, shared
        self.taken: set[tuple[str | int, int]] = set()  # (engine or link, slot)
        self.skip: dict[tuple[int, bool, int], int] = {}  # from a taken slot on to a later one

    def resources(self, device: int, reload: bool) -> tuple[int, str]:
        return 2 * device + (reload and not self.shared), self.keys[2 * device + reload]

    def free(self, device: int, reload: bool, slot: int) -> int:
        """Return the first free slot of an offload from `slot` on, or the last of a reload up to `slot`."""
        engine, link = self.resources(device, reload)
        passed = []
        while True:
            onward = self.skip.get((device, reload, slot))
            if onward is None:
                if (engine, slot) not in self.taken and (link, slot) not in self.taken:
                    break
                onward = slot - 1 if reload else slot + 1
            passed.append(slot)
            slot = onward
        for at in passed:
            self.skip[device, reload, at] = slot
        return slot

    def take(self, device: int, reload: bool, slot: int) -> None:
        for resource in self.resources(device, reload):
            self.taken.add((resource, slot))


def _plan(
    pairs: Sequence[_Pair], keys: Sequence[str], shared: bool, slot_ns: int
) -> list[tuple[int, int, Op]]:
    """Plan (slot, device, op) of the transfers on one host link; pairs without free slots are left
    out. Pairs are served in the order of their F's; if some are then left out, the longest-lived
    ones are served first, as they save the most memory."""
    plan: list[tuple[int, int, Op]] = []
    orders: tuple[Callable[[_Pair], int], ...] = (
        lambda pair: pair.free_ns,
        lambda pair: pair.free_ns - pair.due_ns,
    )
    for order in orders:
        link = _Link(keys, shared)
        plan = []
        for pair in sorted(pairs, key=order):
            device = pair.device
            out = link.free(device, False, -(-pair.free_ns // slot_ns))
            back = link.free(device, True, pair.due_ns // slot_ns - 1)
            if out < back:
                link.take(device, False, out)
                link.take(device, True, back)
                plan.append((out, device, pair.forward._replace(kind=O)))
                plan.append((back, device, pair.forward._replace(kind=R)))
        if len(plan) == 2 * len(pairs):
            break
    return plan


def _insert(
    ops: Sequence[Op], begin: Sequence[int], copies: Sequence[tuple[int, Op]], shared: bool
) -> list[Op]:
    """Make a device's program: each R after the op that runs when it starts (its anchor), each O
    right after its F, or later on a shared engine if R's have earlier slots."""
    place = {op: at + 1 for at, op in enumerate(ops)}
    behind: list[list[Op]] = [[] for _ in range(len(ops) + 1)]
    earliest = {O: 0, R: 0}
    for time, op in copies:
        at = bisect_right(begin, time) if op.kind is R else place[op._replace(kind=F)]
        at = max(at, *earliest.values()) if shared else max(at, earliest[op.kind])
        earliest[op.kind] = at
        behind[at].append(op)
    program = list(behind[0])
    for op, later in zip(ops, behind[1:], strict=True):
        program += [op, *later]
    return program
