"""The rows of one device in the configuration LP (`lp`, where the proof is)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from .configurations import (
    Configuration,
    Part,
    configurations,
    duration_ns,
    empty,
    net_bytes,
    waits,
)
from .device.problem import OneDevice
from .linear import Linear
from .patterns import Waits
from .relief import kept_bytes

MANY = 1 << 70  # counts of ops are in 1/MANY where their times do not divide
COMPUTE = ("F", "B", "W", "BW", "C")
Event = tuple[str, str, int]  # first or last, F or B, stage
Terms = list[tuple[int, int]]


def less(terms: Iterable[tuple[int, int]]) -> Terms:
    return [(variable, -factor) for variable, factor in terms]


@dataclass
class DeviceRows:
    """The variables of one device: per phase, the time spent in each configuration."""

    model: Linear
    device: OneDevice
    events: Sequence[Event]
    above: int
    uses: list[list[tuple[Configuration, int]]] = field(init=False)
    timeless: dict[Part, list[int]] = field(init=False)  # ops that take no time, per phase
    # per stage and level, how many activations stay on the device: terms of the model, and a number
    staying: dict[tuple[int, int], tuple[Terms, int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        costs = self.device.costs
        every = [
            one
            for one in configurations(self.device)
            if all(duration_ns(self.device, part) for part in one.parts)
        ]
        self.uses = [
            [
                (one, self.model.variable())
                for one in every
                if all(self._may_run(part.kind, part.stage, k) for part in one.parts)
            ]
            for k in range(len(self.events))
        ]
        most = self.device.microbatches
        parts = [Part(kind, i) for i in range(len(costs)) for kind in ("W", "O", "R")]
        for i, cost in enumerate(costs):
            levels = range(1, len(cost.recompute) + 1)
            parts += [Part(kind, i, level) for level in levels for kind in ("C", "O", "R")]
        self.timeless = {
            part: [self.model.variable(most) for _ in self.events]
            for part in parts
            if not duration_ns(self.device, part)
        }

    @cached_property
    def at(self) -> dict[Event, int]:
        return {event: k for k, event in enumerate(self.events)}

    @cached_property
    def tracked(self) -> dict[int, int]:
        """The stages that have events, and their positions on the device."""
        return {s: i for i, s in enumerate(self.device.stages) if ("first", "F", s) in self.at}

    @cached_property
    def variables(self) -> list[dict[Part, list[int]]]:
        """Per phase, the times of all configurations in which an op runs."""
        found: list[dict[Part, list[int]]] = []
        for used in self.uses:
            found.append({})
            for one, variable in used:
                for part in one.parts:
                    found[-1].setdefault(part, []).append(variable)
        return found

    @property
    def low(self) -> int:
        return self.device.stages[0]

    @cached_property
    def known(self) -> list[int]:
        """The stages that have events, on any device."""
        return sorted({s for _, _, s in self.events})

    def _may_run(self, kind: str, i: int, k: int) -> bool:
        """Whether an op of a stage can run in a phase. Each F of the stage has ended when the last F of a
        later one starts, each backward when the last one of an earlier stage does."""
        s, at = self.device.stages[i], self.at
        if kind == "F" and any(k >= at["last", "F", t] for t in self.known if t > s):
            return False
        if kind != "W" and any(k >= at["last", "B", t] for t in self.known if t < s):
            return False
        if s not in self.tracked:
            return True
        if kind in ("F", "O", "R", "C"):
            return at["first", "F", s] <= k < at["last", "B", s]
        return k >= at["first", "B", s]

    def levels(self, i: int) -> range:
        """Return 0 (kept whole) and the levels of recomputation of a stage."""
        return range(len(self.device.costs[i].recompute) + 1)

    def times(self, part: Part, begin: int, end: int) -> Terms:
        """Return the time that an op runs in some phases; for ops of zero duration, their number."""
        if part in self.timeless:
            return [(variable, 1) for variable in self.timeless[part][begin:end]]
        return [
            (variable, 1) for phase in self.variables[begin:end] for variable in phase.get(part, [])
        ]

    def done(self, part: Part, end: int, *, up: bool = False) -> Terms:
        """Return how many of an op have run before a phase, in 1/MANY, rounded down or up."""
        duration = duration_ns(self.device, part) or 1
        each = -(-MANY // duration) if up else MANY // duration
        return [(variable, each) for variable, _ in self.times(part, 0, end)]

    def all_done(self, kinds: str, i: int, end: int, *, up: bool = False) -> Terms:
        """`done` for several kinds of a stage, at all levels."""
        return [
            term
            for kind in kinds.split()
            for level in self.levels(i)
            for term in self.done(Part(kind, i, level), end, up=up)
        ]

    def add_rows(self, phases: Sequence[int]) -> None:
        """Add all rows that concern only this device."""
        for phase, used in zip(phases, self.uses, strict=True):
            self.model.at_least([(phase, 1), *((variable, -1) for _, variable in used)], 0)
        self._add_ops()
        for k in range(1, len(self.events)):
            self._add_level(k)
        self._add_ends(phases)

    def _equal(self, terms: Terms, right: int) -> None:
        self.model.at_least(terms, right)
        self.model.at_least(less(terms), -right)

    def _add_ops(self) -> None:
        device, model, count = self.device, self.model, len(self.events)
        m, held = device.microbatches, empty(device)
        until = self.at["last", "B", self.low]  # from then on nothing waits
        room = [(variable, one.room) for used in self.uses[:until] for one, variable in used]
        waiting = Waits(m)
        for i, cost in enumerate(device.costs):
            moves = model.variable(m if device.offloads and cost.offloadable else 0)
            fused = model.variable(m if cost.fused_ns < cost.t_b_ns + cost.t_w_ns else 0)
            ways = [_Level(*(model.variable(m) for _ in range(4))) for _ in cost.recompute]
            again = [v for way in ways for v in (way.apart, way.split, way.fused)]
            inside = [v for way in ways for v in (way.split, way.fused)]
            rows: list[tuple[Part, int, list[int], int]] = [
                (Part("F", i), m, again, 1),
                (Part("B", i), m, [fused, *inside], 1),
                (Part("W", i), m, [fused, *(way.fused for way in ways)], 1),
                (Part("BW", i), 0, [fused], -1),
                (Part("O", i), 0, [moves], -1),
                (Part("R", i), 0, [moves], -1),
            ]
            for level, way in enumerate(ways, 1):
                rows += [
                    (Part("F", i, level), 0, [way.apart, way.split, way.fused], -1),
                    (Part("C", i, level), 0, [way.apart], -1),
                    (Part("B", i, level), 0, [way.split], -1),
                    (Part("BW", i, level), 0, [way.fused], -1),
                    (Part("O", i, level), 0, [way.moved], -1),
                    (Part("R", i, level), 0, [way.moved], -1),
                ]
            for part, number, variables, each in rows:
                duration = duration_ns(device, part) or 1
                terms = [(variable, each * duration) for variable in variables]
                self._equal([*self.times(part, 0, count), *terms], number * duration)
            if ways:
                model.at_least(less([(moves, 1), *((variable, 1) for variable in again)]), -m)
            for level, chosen, moved in (
                (0, less((v, 1) for v in again), moves),
                *((k, [(v, 1) for v in way[:3]], way.moved) for k, way in enumerate(ways, 1)),
            ):
                self.staying[i, level] = [*chosen, (moved, -1)], 0 if level else m
            stays, leaves = waits(device, i)
            held += m * stays
            room.append((moves, stays - leaves))
            if ways:
                self._add_waiting(waiting, i, moves, ways)
            for level, way in enumerate(ways, 1):
                room += self._add_waits(i, level, way, stays)
        model.at_least(room, held)
        if all(cost.recompute for cost in device.costs):
            rooms: dict[int, list[int]] = {}
            for used in self.uses[:until]:
                for one, variable in used:
                    rooms.setdefault(one.room, []).append(variable)
            waiting.constrain(model, rooms)
        for s, i in self.tracked.items():
            self._add_last(s, i)

    def _add_waits(self, i: int, level: int, way: _Level, whole: int) -> Terms:
        """Add the byte-ns that a level saves while activations wait; `whole`: of an activation that is kept."""
        cost = self.device.costs[i]
        chosen = [(way.apart, 1), (way.split, 1), (way.fused, 1)]
        offloads = self.device.offloads and cost.offloadable
        self.model.at_least([*(chosen if offloads else []), (way.moved, -1)], 0)
        stays, leaves = waits(self.device, i, level)
        keep = cost.recompute[level - 1].keep_bytes
        recomputed = keep * max(
            0, self.device.delay[i] - duration_ns(self.device, Part("C", i, level))
        )
        return [
            (way.apart, whole - recomputed),
            (way.split, whole - stays),
            (way.fused, whole - stays),
            (way.moved, stays - leaves),
        ]

    def _add_waiting(self, waiting: Waits, i: int, moves: int, ways: Sequence[_Level]) -> None:
        """How long activations of a stage wait at each of its sizes; see `patterns`."""
        cost, delay, m = self.device.costs[i], self.device.delay[i], self.device.microbatches
        again = [v for way in ways for v in (way.apart, way.split, way.fused)]
        waiting.add(cost.act_bytes, [(v, delay) for v in (moves, *again)], m * delay)
        for level, (way, keep) in enumerate(zip(ways, kept_bytes(cost)[1:], strict=True), 1):
            apart = max(0, delay - duration_ns(self.device, Part("C", i, level)))
            each = [(way.apart, -apart), (way.split, -delay), (way.fused, -delay)]
            waiting.add(keep, [*each, (way.moved, delay)])

    def _add_first(self) -> None:
        """One F of each stage has ended before the first F of a later one, one backward before the first
        backward of an earlier one."""
        for (s, i), (t, j) in pairwise(sorted(self.tracked.items())):
            for kinds, at, until in (("F", i, ("first", "F", t)), ("B BW", j, ("first", "B", s))):
                self.model.at_least(self.all_done(kinds, at, self.at[until], up=True), MANY)

    def _add_last(self, s: int, i: int) -> None:
        """From the start of the last F (B) of a stage on one F (B or BW) of it runs."""
        cost, count = self.device.costs[i], len(self.events)
        begin = self.at["last", "F", s]
        forwards = [
            t for level in self.levels(i) for t in self.times(Part("F", i, level), begin, count)
        ]
        self._equal(forwards, cost.t_f_ns)
        begin = self.at["last", "B", s]
        if not cost.recompute:
            whole = [(v, cost.t_b_ns) for v, _ in self.times(Part("BW", i), begin, count)]
            split = [(v, cost.fused_ns) for v, _ in self.times(Part("B", i), begin, count)]
            self._equal(whole + split, cost.t_b_ns * cost.fused_ns)
            return
        parts = [Part(kind, i, level) for level in self.levels(i) for kind in ("B", "BW")]
        for up in (True, False):  # any one of them, in 1/MANY rounded
            terms = [term for part in parts for term in self.runs(part, begin, up=up)]
            self.model.at_least(terms if up else less(terms), MANY if up else -MANY)

    def backward_times(self, s: int) -> Terms:
        """Return the duration of the last backward of a stage."""
        i, begin, count = self.tracked[s], self.at["last", "B", s], len(self.events)
        parts = [Part(kind, i, level) for level in self.levels(i) for kind in ("B", "BW")]
        return [term for part in parts for term in self.times(part, begin, count)]

    def runs(self, part: Part, begin: int, *, up: bool) -> Terms:
        """Return how many of an op run from a phase on, in 1/MANY, rounded down or up."""
        duration = duration_ns(self.device, part) or 1
        each = -(-MANY // duration) if up else MANY // duration
        return [(variable, each) for variable, _ in self.times(part, begin, len(self.events))]

    def _add_level(self, k: int) -> None:
        """Add the rows of memory at an event, and of the order of ops."""
        _, kind, s = self.events[k]
        starts = 0
        if kind == "F" and s in self.tracked:
            starts = self.device.costs[self.tracked[s]].least_running_bytes
        level: Terms = [(self.above, max(cost.act_bytes for cost in self.device.costs) * MANY)]
        for i in range(len(self.device.costs)):
            for number in self.levels(i):
                for name in ("B", "W", "BW", "O", "F", "R", "C"):
                    part = Part(name, i, number)
                    if (name == "C" and not number) or (name == "W" and number):
                        continue
                    size = -net_bytes(self.device, part)
                    terms = self.done(part, k, up=size >= 0)
                    level += [(variable, factor * size) for variable, factor in terms]
                self._add_order_of(i, number, k)
            ends = self.all_done("B", i, k, up=True)
            self.model.at_least(ends + less(self.done(Part("W", i), k)), 0)
        self.model.at_least(level, (starts - self.device.capacity) * MANY)

    def _add_order_of(self, i: int, level: int, k: int) -> None:
        """Require that no more activations leave a level than have entered it, those that stay on the device
        counted apart from those that an R, or a C, brings.

        `used` is how many of those that stay have left the level for a backward or a C; the others of
        them, and those still to be offloaded, are on the device. Each is offloaded once.
        """
        parts = {name: Part(name, i, level) for name in ("F", "R", "B", "BW", "O", "C")}
        up = {name: self.done(part, k, up=True) for name, part in parts.items()}
        taken = [t for name in ("B", "BW") for t in self.done(parts[name], k)]
        back = up["R"]
        if level:
            taken += self.done(parts["C"], k)
        else:
            again = [Part("C", i, other) for other in self.levels(i)[1:]]
            back = back + [t for part in again for t in self.done(part, k, up=True)]
        used = self.model.variable(self.device.microbatches)
        away = less(self.done(parts["O"], k))
        self.model.at_least([*up["F"], *away, (used, -MANY)], 0)
        self.model.at_least([*back, *less(taken), (used, MANY)], 0)
        self.model.at_least([*self.staying[i, level][0], (used, -1)], -self.staying[i, level][1])
        self.model.at_least(up["O"] + less(self.done(parts["R"], k)), 0)

    def _add_ends(self, phases: Sequence[int]) -> None:
        device, model, low = self.device, self.model, self.low
        last = self.at["last", "B", low]
        after = [
            term
            for i in range(len(device.stages))
            if Part("W", i) not in self.timeless
            for term in self.times(Part("W", i), last, len(self.events))
        ]
        model.at_least(less(after), -device.after_ns)
        if device.costs[0].recompute:  # these fit after the last backward, depending on how it runs
            admitted = [
                (variable, factor * drain.weights_ns)
                for drain in device.drains
                for variable, factor in self.runs(
                    Part("B" if drain.split else "BW", 0, drain.level), last, up=True
                )
            ]
            model.at_least(admitted + [(variable, -MANY) for variable, _ in after], 0)
        alone = [(Part("F", 0, level),) for level in self.levels(0)]
        others = {self.at["first", "F", s] for s in self.tracked} - {0}
        until = min({self.at["first", "B", low], *others})
        first = [
            (variable, 1)
            for used in self.uses[:until]
            for one, variable in used
            if one.parts in alone
        ]
        model.at_least(first, device.costs[0].t_f_ns)  # there is nothing to copy during the first F
        self._add_first()
        if len(device.stages) == 1 and self.at["first", "B", low] < self.at["last", "F", low]:
            before, final = self.at["first", "B", low], self.at["last", "F", low]
            self._add_idle(phases, self.at["first", "F", low], before, device.before_ns, ("F",))
            self._add_idle(phases, final, last, device.last.before)

    def _add_idle(
        self,
        phases: Sequence[int],
        begin: int,
        end: int,
        idle: int,
        kinds: Sequence[str] = COMPUTE,
    ) -> None:
        """Limit the compute in phases [begin, end) so that the given idle time is left."""
        self.model.at_least(
            [*((phase, 1) for phase in phases[begin:end]), *self.busy(begin, end, kinds)], idle
        )

    def busy(self, begin: int, end: int, kinds: Sequence[str] = COMPUTE) -> Terms:
        """Return minus the compute time in phases [begin, end)."""
        return [
            (variable, -1)
            for used in self.uses[begin:end]
            for one, variable in used
            if any(part.kind in kinds for part in one.parts)
        ]


class _Level(NamedTuple):
    """How many activations are recomputed at a level apart, inside B, inside BW, and offloaded."""

    apart: int
    split: int
    fused: int
    moved: int
