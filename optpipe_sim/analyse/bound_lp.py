"""The configuration LP: how long devices spend in each combination of what runs at the same time.

The *events* of a device's stages are the starts of the first F and B, and of the last F and B, of each.
Dependencies put the first F's in model order, then the first B's in the reverse, and the last ones
likewise; how the two interleave is not known, so each way is a case (`orders`), and the least of what
they prove counts. All the first come before all the last, unless all F's of the lowest stage start
before any B of it: that, taken alone, covers all other cases, too, and is quicker. Events cut the time into
*phases*. Devices that share a host link go into one LP, with the events of them all.

Proof. Read off a schedule how long each configuration lasts in each phase on each device, how many
microbatches of each stage are offloaded and how many have BW. These numbers satisfy the rows below, so the
least T that any numbers allow is a bound.

- *Kinds*: F, O and R of a stage run only between its first F and its last B, B and W only after its
  first B; from the start of the last F (B) on one F (B or BW) of the stage runs.
- *Ops*: F takes m times its time, O and R as often as microbatches are offloaded, B, W and BW likewise.
- *Chains*: between two events at least the chain of F's, B's and hops lies that leads from one stage to
  the other.
- *Levels*: at each event what has been allocated and not released fits; where an F starts, it as
  well. An op that runs counts as begun and as ended by the part of its time that is over:
  it allocates when it starts and releases when it ends, so that this makes it less. (Where they cannot
  hold, an activation above the limit costs more time than all work: that case is no cheaper.)
- *Order*: no more B's than F's, less those on the host; no more R's than O's, no more W's than B's; each F
  no more often than that of the stage before, each B no more often than that of the stage after.
- *Waiting*: from the end of F to the start of its backward passes at least ``delay``; an activation that
  stays holds act_bytes all the while, an offloaded one what cannot be moved, O and R aside. Summed up
  that is at most the room summed over time until the last B starts, less what is `empty`.
- *Ends*: what `ends` says about idle time before the first backward and after the last forward, and
  `OneDevice.after_ns` about W's after the last backward.
- *Links*: in each phase the transfers of devices on one link take turns.
- T is no less than the head and all phases, nor than the head, the phases up to the last B and its tail.
  For a span it is what lies between a device's own first F and last B, and what it computes from then on.

The LP is solved in floating point; its dual prices are then rounded and what they prove is worked out in
integers, so that no tolerance of the solver gets into the bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from ..profile import CostProfile
from .bounds import fill_and_drain_parts, lower_bound
from .chains import Chains, back_ns
from .configurations import Configuration, Part, configurations, empty, lasts_ns, waits
from .device import OneDevice, one_device
from .linear import Linear

MOST_STAGES = 6  # per device or link; with more there are thousands of configurations
FEW_STAGES = 2  # up to here all orders of events are told apart: 14 of them
MANY = 1 << 70  # counts of ops are in 1/MANY where their times do not divide
COMPUTE = ("F", "B", "W", "BW")
Event = tuple[str, str, int]  # first or last, F or B, stage
Terms = list[tuple[int, int]]


def configuration_bound(
    profile: CostProfile,
    microbatches: int,
    objective: str = "flush",
    memory_limit: int | Sequence[int] | None = None,
) -> int:
    """The best that the configuration LP proves, in ns; 0 without a limit."""
    return max(configuration_bounds(profile, microbatches, objective, memory_limit), default=0)


def configuration_bounds(
    profile: CostProfile,
    microbatches: int,
    objective: str = "flush",
    memory_limit: int | Sequence[int] | None = None,
) -> Iterator[int]:
    """What the configuration LP proves, in ns, of one device or link after the other."""
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
    """What devices prove together; perhaps less, where that is no more than `enough`."""
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
    if other < bound and len(stages) <= FEW_STAGES:
        for order in orders(stages)[1:]:
            bound = min(bound, max(other, _bound(profile, chains, devices, order)))
            if bound <= max(enough, other):
                break
        return bound
    return min(bound, other)


def _half(stages: Sequence[int]) -> list[tuple[str, int]]:
    return [("F", s) for s in stages] + [("B", s) for s in reversed(stages)]


def usual_order(stages: Sequence[int]) -> list[Event]:
    """All first events before all last ones."""
    return [(which, kind, s) for which in ("first", "last") for kind, s in _half(stages)]


def early_order(s: int) -> list[Event]:
    """All F's of a stage before its first B."""
    return [("first", "F", s), ("last", "F", s), ("first", "B", s), ("last", "B", s)]


def orders(stages: Sequence[int]) -> list[list[Event]]:
    """The orders in which the events of stages can come: the first F's in the order of the model, then
    the first B's in the reverse; the last ones likewise, each after the first of its kind. The one that
    has all the first before all the last comes first."""
    half = _half(stages)

    def merged(first: int, last: int) -> Iterator[list[Event]]:
        """What can follow so many first and last events."""
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
    dear = (
        above,
        -work,
    )  # so dear is an activation above the limit, where rows cannot hold otherwise
    phases = [model.variable() for _ in events]  # each from its event to the next, or to the end
    parts = [_Device(model, device, events, above) for device in devices]
    first, low = {event: k for k, event in enumerate(events)}, events[0][2]
    for (which, kind, s), k in first.items():
        for later in range(k + 1, len(events)):
            if events[later][0] == which:
                chain = _start(chains, events[later]) - _start(chains, (which, kind, s))
                model.at_least([(phases[at], 1) for at in range(k, later)], chain)
                break
    if chains.objective == "flush":
        everything = [(0, 1), dear, *((phase, -1) for phase in phases)]
        model.at_least(everything, chains.head(low))
        tail = back_ns(profile.stages[low]) + (chains.tail(low) if low else 0)
        model.at_least(everything[:-1], chains.head(low) + tail)
    for part in parts:
        part.add_rows(phases)
        if chains.objective == "span":
            begin, end = part.at["first", "F", part.low], part.at["last", "B", part.low]
            between = [(phases[k], -1) for k in range(begin, end)]
            model.at_least([(0, 1), dear, *between, *part.busy(end, len(events))], 0)
    _add_order(model, parts)
    if len(devices) > 1 and profile.offload is not None:
        single = profile.offload.host_link == "single"
        for kinds in (("O", "R"),) if single else (("O",), ("R",)):
            for k, phase in enumerate(phases):
                used = [
                    (variable, -sum(kind in kinds for kind, _ in one.parts))
                    for part in parts
                    for one, variable in part.uses[k]
                ]
                model.at_least([(phase, 1), *used], 0)
    return model.proven()


def _start(chains: Chains, event: Event) -> int:
    _, kind, s = event
    return chains.forward_from(s) if kind == "F" else chains.until_back(s)


def _add_order(model: Linear, parts: Sequence[_Device]) -> None:
    """No stage is ahead of the one before it (F), or after it (B)."""
    place = {s: (part, i) for part in parts for s, i in part.tracked.items()}
    stages = sorted(place)
    for s, t in pairwise(stages):
        (below, i), (above, j) = place[s], place[t]
        for k in range(below.at["first", "F", t] + 1, below.at["last", "B", t] + 1):
            model.at_least([*below.done("F", i, k, up=True), *_less(above.done("F", j, k))], 0)
            done = above.done("B", j, k, up=True) + above.done("BW", j, k, up=True)
            model.at_least(done + _less(below.done("B", i, k) + below.done("BW", i, k)), 0)


def _less(terms: Iterable[tuple[int, int]]) -> Terms:
    return [(variable, -factor) for variable, factor in terms]


@dataclass
class _Device:
    """The variables of one device: for each phase its configurations and how long each lasts."""

    model: Linear
    device: OneDevice
    events: Sequence[Event]
    above: int
    uses: list[list[tuple[Configuration, int]]] = field(init=False)
    timeless: dict[Part, list[int]] = field(init=False)  # kinds that take no time, per phase

    def __post_init__(self) -> None:
        every = [
            one
            for one in configurations(self.device)
            if all(lasts_ns(self.device.costs[s], kind) for kind, s in one.parts)
        ]
        self.uses = [
            [
                (one, self.model.variable())
                for one in every
                if all(self._may_run(kind, i, k) for kind, i in one.parts)
            ]
            for k in range(len(self.events))
        ]
        most = self.device.microbatches
        self.timeless = {
            (kind, i): [self.model.variable(most) for _ in self.events]
            for i, cost in enumerate(self.device.costs)
            for kind in ("W", "O", "R")
            if not lasts_ns(cost, kind)
        }

    @cached_property
    def at(self) -> dict[Event, int]:
        return {event: k for k, event in enumerate(self.events)}

    @cached_property
    def tracked(self) -> dict[int, int]:
        """The stages that have events, and which of the device they are."""
        return {s: i for i, s in enumerate(self.device.stages) if ("first", "F", s) in self.at}

    @property
    def low(self) -> int:
        return self.device.stages[0]

    def _may_run(self, kind: str, i: int, k: int) -> bool:
        s = self.device.stages[i]
        if s not in self.tracked:
            return True
        if kind in ("F", "O", "R"):
            return self.at["first", "F", s] <= k < self.at["last", "B", s]
        return k >= self.at["first", "B", s]

    def times(self, kind: str, i: int, begin: int, end: int) -> Terms:
        """What an op's runs in some phases last; where they take no time, how many they are."""
        if (kind, i) in self.timeless:
            return [(variable, 1) for variable in self.timeless[kind, i][begin:end]]
        return [
            (variable, 1)
            for used in self.uses[begin:end]
            for one, variable in used
            if (kind, i) in one.parts
        ]

    def done(self, kind: str, i: int, end: int, *, up: bool = False) -> Terms:
        """How many of an op have run before a phase, in 1/MANY, rounded down or up."""
        lasts = lasts_ns(self.device.costs[i], kind) or 1
        each = -(-MANY // lasts) if up else MANY // lasts
        return [(variable, each) for variable, _ in self.times(kind, i, 0, end)]

    def add_rows(self, phases: Sequence[int]) -> None:
        """All rows that tell of this device alone."""
        for phase, used in zip(phases, self.uses, strict=True):
            self.model.at_least([(phase, 1), *((variable, -1) for _, variable in used)], 0)
        self._add_ops()
        for k in range(1, len(self.events)):
            self._add_level(k)
        self._add_ends(phases)

    def _equal(self, terms: Terms, right: int) -> None:
        self.model.at_least(terms, right)
        self.model.at_least(_less(terms), -right)

    def _add_ops(self) -> None:
        device, model, count = self.device, self.model, len(self.events)
        m, held = device.microbatches, empty(device)
        until = self.at["last", "B", self.low]  # from then on nothing waits
        room = [(variable, one.room) for used in self.uses[:until] for one, variable in used]
        for i, cost in enumerate(device.costs):
            moves = model.variable(m if device.offloads and cost.offloadable else 0)
            fused = model.variable(m if cost.fused_ns < cost.t_b_ns + cost.t_w_ns else 0)
            for kind, number, variable, each in (
                ("F", m, fused, 0),
                ("B", m, fused, 1),
                ("W", m, fused, 1),
                ("BW", 0, fused, -1),
                ("O", 0, moves, -1),
                ("R", 0, moves, -1),
            ):
                lasts = lasts_ns(cost, kind) or 1
                self._equal(
                    [*self.times(kind, i, 0, count), (variable, each * lasts)], number * lasts
                )
            stays, leaves = waits(device, i)
            held += m * stays
            room.append((moves, stays - leaves))
        model.at_least(room, held)
        for s, i in self.tracked.items():
            cost = device.costs[i]
            begin = self.at["last", "F", s]
            self._equal(self.times("F", i, begin, count), cost.t_f_ns)
            begin = self.at["last", "B", s]
            whole = [(v, cost.t_b_ns) for v, _ in self.times("BW", i, begin, count)]
            split = [(v, cost.fused_ns) for v, _ in self.times("B", i, begin, count)]
            self._equal(whole + split, cost.t_b_ns * cost.fused_ns)

    def _add_level(self, k: int) -> None:
        """Memory when an event comes, and which ops come after which."""
        _, kind, s = self.events[k]
        starts = (
            self.device.costs[self.tracked[s]].act_bytes if kind == "F" and s in self.tracked else 0
        )
        level: Terms = [(self.above, max(cost.act_bytes for cost in self.device.costs) * MANY)]
        for i, cost in enumerate(self.device.costs):
            forward, back = self.done("F", i, k), self.done("B", i, k)
            out, home = self.done("O", i, k), self.done("R", i, k)
            for terms, size in (
                (self.done("B", i, k, up=True), cost.act_bytes - cost.w_bytes),
                (self.done("W", i, k, up=True), cost.w_bytes),
                (self.done("BW", i, k, up=True), cost.act_bytes),
                (self.done("O", i, k, up=True), cost.offloadable),
                (forward, -cost.act_bytes),
                (home, -cost.offloadable),
            ):
                level += [(variable, factor * size) for variable, factor in terms]
            up = {name: self.done(name, i, k, up=True) for name in ("F", "B", "O", "R")}
            backs = back + self.done("BW", i, k)
            self.model.at_least(up["F"] + up["R"] + _less(backs + out), 0)
            self.model.at_least(up["O"] + _less(home), 0)
            self.model.at_least(up["B"] + _less(self.done("W", i, k)), 0)
        self.model.at_least(level, (starts - self.device.capacity) * MANY)

    def _add_ends(self, phases: Sequence[int]) -> None:
        device, model, low = self.device, self.model, self.low
        last = self.at["last", "B", low]
        after = [
            term
            for i in range(len(device.stages))
            if ("W", i) not in self.timeless
            for term in self.times("W", i, last, len(self.events))
        ]
        model.at_least(_less(after), -device.after_ns)
        first = [
            (variable, 1)
            for used in self.uses[: self.at["first", "B", low]]
            for one, variable in used
            if one.parts == (("F", 0),)
        ]
        model.at_least(first, device.costs[0].t_f_ns)  # there is nothing to copy during the first F
        if len(device.stages) == 1 and self.at["first", "B", low] < self.at["last", "F", low]:
            before, final = self.at["first", "B", low], self.at["last", "F", low]
            self._add_idle(phases, self.at["first", "F", low], before, device.before_ns)
            self._add_idle(phases, final, last, device.last.before)

    def _add_idle(self, phases: Sequence[int], begin: int, end: int, idle: int) -> None:
        """No more compute in phases [begin, end) than leaves so much idle time."""
        self.model.at_least(
            [*((phase, 1) for phase in phases[begin:end]), *self.busy(begin, end)], idle
        )

    def busy(self, begin: int, end: int) -> Terms:
        """Less the compute time in phases [begin, end)."""
        return [
            (variable, -1)
            for used in self.uses[begin:end]
            for one, variable in used
            if any(kind in COMPUTE for kind, _ in one.parts)
        ]
