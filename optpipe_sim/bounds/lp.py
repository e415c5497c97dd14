"""The configuration LP: how long devices spend in each combination of concurrent ops.

The *events* of a device's stages are the starts of the first F and B, and of the last F and B, of each.
Dependencies put the first F's in model order, then the first B's in the reverse, and the last ones
likewise; how the two interleave is not known, so each way is a case (`orders`), and the least of what
they prove counts. All first events precede all last ones, unless all F's of the lowest stage start
before any B of it; that condition alone covers all other cases, too, and is quicker to solve. Events cut
the time into *phases*. Devices that share a host link go into one LP, with the events of them all.

Proof. Read off a schedule how long each configuration takes in each phase on each device, how many
microbatches of each stage are offloaded and how many use BW. These numbers satisfy the rows below, so the
least T that any numbers allow is a bound.

- *Kinds*: F, O and R of a stage run only between its first F and its last B, B and W only after its
  first B; from the start of the last F (B) on one F (B or BW) of the stage runs. When the first F of a later
  stage starts, one F of the stage has ended, and when the last one does, all have; backwards likewise, from
  later stages to earlier ones.
- *Ops*: F takes m times its time, O and R as often as microbatches are offloaded, B, W and BW likewise.
- *Chains*: between two events at least the chain of F's, B's and messages lies that leads from one stage to
  the other.
- *Levels*: at each event what has been allocated and not released fits; where an F starts, it as
  well. An op that runs counts as begun and as ended by the part of its time that is over:
  it allocates when it starts and releases when it ends, so that this makes it less. (Where they cannot
  hold, an activation above the limit costs more time than all work: that case is no cheaper.)
- *Order*: no more B's than F's, less those on the host, activations that stay counted apart from those that come
  back (`DeviceRows`); no more R's than O's, no more W's than B's; each F no more often than that of the stage
  before, each B no more often than that of the stage after.
- *Waiting*: from the end of F to the start of its backward passes at least ``delay``; an activation that
  stays holds act_bytes all the while, an offloaded one what cannot be moved, O and R aside. Summed up
  that is at most the room summed over time until the last B starts, less what is `empty`.
- *Ends*: what `ends` says about idle time before the first backward and after the last forward, and
  `OneDevice.after_ns` about W's after the last backward.
- *Links*: in each phase the transfers of devices on one link take turns.
- T is no less than the head and all phases, nor than the head, the phases up to the last B and its tail.
  For a span it is what lies between a device's own first F and last B, and what it computes from then on.

Where a stage has levels of recomputation, F, B, BW, C, O and R run at a level each (`phases`): how many
activations have which level, recomputed how, and offloaded or not, are variables; a level's activations
come from its F's and R's and go to its O's, backwards and C's, from which they are whole.

The LP is solved in floating point; its dual prices are then rounded and what they prove is worked out in
integers, so that no tolerance of the solver gets into the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..profile import CostProfile
from .bounds import fill_and_drain_parts, lower_bound
from .chains import Chains, back_ns
from .device.problem import OneDevice, one_device
from .linear import Linear
from .phases import DeviceRows, Event, less

MOST_STAGES = 6  # per device or link; with more there are thousands of configurations
FEW_STAGES = 2  # up to here all orders of events are distinguished: 14 of them


def configuration_bounds(
    profile: CostProfile,
    microbatches: int,
    objective: str = "flush",
    memory_limit: int | Sequence[int] | None = None,
) -> Iterator[int]:
    """Yield the bounds of the configuration LP, in ns, for one device or link after the other."""
    limits = profile.limits(memory_limit)
    if limits is None:
        return
    every = [
        one_device(profile, microbatches, d, objective, limits) for d in range(profile.devices)
    ]
    if not all(device.possible for device in every):
        return
    parts = fill_and_drain_parts(profile, microbatches, objective, limits)
    groups: list[tuple[int, ...]] = [(d,) for d in range(profile.devices)]
    if profile.offload is not None:
        groups += [tuple(sorted(link)) for link in profile.host_links if len(link) > 1]
    enough = lower_bound(profile, microbatches, objective, limits).ns
    for group in sorted(groups, key=lambda group: -max(parts[d].ns for d in group)):
        devices = [every[d] for d in group]
        if sum(len(device.stages) for device in devices) <= MOST_STAGES:
            bound = _group_bound(profile, devices, objective, enough)
            enough = max(enough, bound)
            yield bound


def _group_bound(
    profile: CostProfile, devices: Sequence[OneDevice], objective: str, enough: int
) -> int:
    """Return the bound of several devices together; perhaps less, where that is no more than `enough`."""
    chains = Chains(profile, objective)
    stages = sorted(s for device in devices for s in device.stages)
    low = min(devices, key=lambda device: device.stages[0])
    alone = early_order(stages[0])
    if low.microbatches == 1:
        return _bound(profile, chains, [low], alone)
    bound = _bound(profile, chains, devices, usual_order(stages))
    if bound <= enough:
        return bound
    other = _bound(profile, chains, [low], alone)
    levels = any(cost.recompute for device in devices for cost in device.costs)  # expensive LPs
    if other < bound and len(stages) <= FEW_STAGES and not levels:
        for order in orders(stages)[1:]:
            bound = min(bound, max(other, _bound(profile, chains, devices, order)))
            if bound <= max(enough, other):
                break
        return bound
    return min(bound, other)


def _half(stages: Sequence[int]) -> list[tuple[str, int]]:
    return [("F", s) for s in stages] + [("B", s) for s in reversed(stages)]


def usual_order(stages: Sequence[int]) -> list[Event]:
    """Return the order with all first events before all last ones."""
    return [(which, kind, s) for which in ("first", "last") for kind, s in _half(stages)]


def early_order(s: int) -> list[Event]:
    """Return the order with all F's of a stage before its first B."""
    return [("first", "F", s), ("last", "F", s), ("first", "B", s), ("last", "B", s)]


def orders(stages: Sequence[int]) -> list[list[Event]]:
    """Return the orders in which the events of stages can occur: the first F's in the order of the model, then
    the first B's in the reverse; the last ones likewise, each after the first of its kind. The one that
    has all the first before all the last comes first."""
    half = _half(stages)

    def merged(first: int, last: int) -> Iterator[list[Event]]:
        """Yield the continuations after the given numbers of first and last events."""
        if last == len(half):
            yield []
        if first < len(half):
            yield from ([("first", *half[first]), *rest] for rest in merged(first + 1, last))
        if last < first:
            yield from ([("last", *half[last]), *rest] for rest in merged(first, last + 1))

    return list(merged(0, 0))


def _bound(
    profile: CostProfile, chains: Chains, devices: Sequence[OneDevice], events: Sequence[Event]
) -> int:
    work = max(d.microbatches * sum(cost.work_ns for cost in d.costs) for d in devices)
    model = Linear(unit=work)
    above = model.variable(sum(d.microbatches * len(d.stages) for d in devices))
    excess = (above, -work)  # an activation above the limit, where rows cannot hold otherwise
    phases = [model.variable() for _ in events]  # each from its event to the next, or to the end
    parts = [DeviceRows(model, device, events, above) for device in devices]
    first, low = {event: k for k, event in enumerate(events)}, events[0][2]
    for (which, kind, s), k in first.items():
        for later in range(k + 1, len(events)):
            if events[later][0] == which:
                chain = _start(chains, events[later]) - _start(chains, (which, kind, s))
                model.at_least([(phases[at], 1) for at in range(k, later)], chain)
                break
    if chains.objective == "flush":
        everything = [(0, 1), excess, *((phase, -1) for phase in phases)]
        model.at_least(everything, chains.head(low))
        tail = back_ns(profile.stages[low]) + (chains.tail(low) if low else 0)
        model.at_least(everything[:-1], chains.head(low) + tail)
        if profile.stages[low].recompute:  # the duration of the last backward
            below = chains.tail(low) if low else 0
            owner = next(part for part in parts if low in part.tracked)
            last = less(owner.backward_times(low))
            model.at_least([*everything[:-1], *last], chains.head(low) + below)
    for part in parts:
        part.add_rows(phases)
        if chains.objective == "span":
            begin, end = part.at["first", "F", part.low], part.at["last", "B", part.low]
            between = [(phases[k], -1) for k in range(begin, end)]
            model.at_least([(0, 1), excess, *between, *part.busy(end, len(events))], 0)
    _add_order(model, parts)
    if len(devices) > 1 and profile.offload is not None:
        single = profile.offload.host_link == "single"
        for kinds in (("O", "R"),) if single else (("O",), ("R",)):
            for k, phase in enumerate(phases):
                used = [
                    (variable, -sum(part.kind in kinds for part in one.parts))
                    for rows in parts
                    for one, variable in rows.uses[k]
                ]
                model.at_least([(phase, 1), *used], 0)
    return model.proven()


def _start(chains: Chains, event: Event) -> int:
    _, kind, s = event
    return chains.forward_from(s) if kind == "F" else chains.until_back(s)


def _add_order(model: Linear, parts: Sequence[DeviceRows]) -> None:
    """No stage is ahead of the one before it (F), or after it (B)."""
    place = {s: (part, i) for part in parts for s, i in part.tracked.items()}
    stages = sorted(place)
    for s, t in pairwise(stages):
        (below, i), (above, j) = place[s], place[t]
        for k in range(below.at["first", "F", t] + 1, below.at["last", "B", t] + 1):
            forwards = below.all_done("F", i, k, up=True)
            model.at_least([*forwards, *less(above.all_done("F", j, k))], 0)
            done = above.all_done("B BW", j, k, up=True)
            model.at_least(done + less(below.all_done("B BW", i, k)), 0)
