"""Plans in the family of SAPP's balancer: layers per chunk and stage, and how many of them recompute what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from random import Random
from typing import Any, NamedTuple

from optpipe_sim.ops import BW, F, Op
from optpipe_sim.profile import CostProfile
from optpipe_sim.profile_io import load_profile
from optpipe_sim.schedule import Schedule
from optpipe_sim.schedules import build
from optpipe_sim.sim import simulate
from optpipe_sim.trace import Trace

Counts = tuple[int, ...]  # layers of a chunk by kind of recomputation, the least first
MIB = 2**20
LOSS = 0.01  # by which a division may be worse than the best one in the middle of a search


class Kind(NamedTuple):
    """What recomputing a layer adds to its backward, and what it keeps."""

    name: str
    extra: int
    keep_mb: int


class Balancer:
    """The problem: `facts` as in ``sapp_llama2_70b.yaml``.

    `memory`: how memory is counted, ``sapp``: as SAPP's constraint counts it, with the parameters of the
    tail on the first stage as well; ``replay``: as interleaved 1F1B does.

    A chunk of a stage is a *slot*, chunk by chunk: slot c p + s is chunk c of stage s, so slots are
    in model order.
    """

    def __init__(self, facts: Mapping[str, Any], memory: str) -> None:
        self.facts, self.as_sapp = facts, memory == "sapp"
        self.p, self.v, self.m = facts["stages"], facts["chunks"], facts["microbatches"]
        self.slots = self.p * self.v
        forward = facts["layer"]["time"]
        self.kinds = [
            Kind(name, round(2 * forward * kind["overhead"]), kind["activation_mb"])
            for name, kind in facts["kinds"].items()
        ]
        self._recomputed: dict[tuple[int, Counts], tuple[Counts, ...] | None] = {}

    def in_flight(self, s: int) -> list[tuple[int, ...]]:
        """The numbers of microbatches whose activations the slots of a stage hold at once in interleaved 1F1B;
        dominated ones are left out."""
        if not self.as_sapp:
            return self._in_flight[s]
        more = self.p - 2 * s - 1
        first, last = self.p + max(0, more), self.p + min(0, more)
        middle = [self.p] * (self.v - 2)
        return [tuple(min(self.m, count) for count in (first, *middle, last))]

    @cached_property
    def even(self) -> list[int]:
        """The even division."""
        return [self.facts["layers"] // self.slots] * self.slots

    @cached_property
    def schedule(self) -> Schedule:
        """Interleaved 1F1B, the same for every division."""
        plan = [self.ways[layers][0] for layers in self.even]
        return build("1f1b-i", self.profile(plan), self.m, chunks=self.v)

    @cached_property
    def _in_flight(self) -> list[list[tuple[int, ...]]]:
        found = []
        for program in self.schedule.programs:
            held, seen = [0] * self.v, set()
            for op in program:
                assert isinstance(op, Op)  # 1F1B has no pairs
                held[op.stage // self.p] += {F: 1, BW: -1}[op.kind]
                seen.add(tuple(held))
            found.append([one for one in seen if not any(_exceeds(two, one) for two in seen)])
        return found

    def mine(self, s: int) -> range:
        """The slots of a stage."""
        return range(s, self.slots, self.p)

    def static_mb(self, slot: int, layers: int) -> int:
        """Parameters of a slot, those of head and tail with them."""
        mb = layers * int(self.facts["layer"]["parameter_mb"])
        if slot == 0:
            mb += self.facts["head"]["parameter_mb"]
        if slot == self.slots - 1 or (slot == 0 and self.as_sapp):
            mb += self.facts["tail"]["parameter_mb"]
        return mb

    def own_time(self, slot: int) -> int:
        """The forward of a slot's parts beside its layers."""
        time = self.facts["head"]["time"] if slot == 0 else 0
        return int(time + (self.facts["tail"]["time"] if slot == self.slots - 1 else 0))

    def time(self, slot: int, counts: Counts) -> int:
        """Forward and backward of a slot together."""
        layer = int(self.facts["layer"]["time"])
        return 3 * (sum(counts) * layer + self.own_time(slot)) + self.extra(counts)

    def extra(self, counts: Counts) -> int:
        return sum(kind.extra * count for kind, count in zip(self.kinds, counts, strict=True))

    def keep_mb(self, counts: Counts) -> int:
        return sum(kind.keep_mb * count for kind, count in zip(self.kinds, counts, strict=True))

    @cached_property
    def ways(self) -> list[list[Counts]]:
        """For each number of layers, the ways to recompute them that no other beats in time and bytes."""
        most = self.facts["layers"] // self.p + self.v
        found: list[list[Counts]] = []
        for layers in range(most + 1):
            every = [
                counts
                for counts in product(range(layers + 1), repeat=len(self.kinds))
                if sum(counts) == layers
            ]
            kept: list[Counts] = []
            for counts in sorted(every, key=lambda one: (self.extra(one), self.keep_mb(one))):
                if not kept or self.keep_mb(counts) < self.keep_mb(kept[-1]):
                    kept.append(counts)
            found.append(kept)
        return found

    def recomputed(self, s: int, layers: Sequence[int]) -> tuple[Counts, ...] | None:
        """The recomputation of a stage's slots, with so many layers each, that fits and takes the least time; among
        equal ones that with the shortest slot. None where none fits."""
        key = s, tuple(layers)
        if key not in self._recomputed:
            room = self.facts["limit_mb"] - sum(
                self.static_mb(slot, count)
                for slot, count in zip(self.mine(s), layers, strict=True)
            )
            fitting = [
                choice
                for choice in product(*(self.ways[count] for count in layers))
                if self._holds_mb(s, choice) <= room
            ]
            self._recomputed[key] = min(fitting, key=lambda one: self._load(s, one), default=None)
        return self._recomputed[key]

    def _holds_mb(self, s: int, choice: Sequence[Counts]) -> int:
        kept = [self.keep_mb(one) for one in choice]
        return max(
            sum(count * mb for count, mb in zip(counts, kept, strict=True))
            for counts in self.in_flight(s)
        )

    def _load(self, s: int, choice: Sequence[Counts]) -> tuple[int, int]:
        times = [self.time(slot, one) for slot, one in zip(self.mine(s), choice, strict=True)]
        return sum(times), max(times)

    def plan(self, layers: Sequence[int]) -> tuple[Counts, ...] | None:
        """The recomputation of all slots for so many layers each; None where a stage does not fit."""
        plan: list[Counts] = [()] * self.slots
        for s in range(self.p):
            mine = self.mine(s)
            choice = self.recomputed(s, [layers[slot] for slot in mine])
            if choice is None:
                return None
            for slot, counts in zip(mine, choice, strict=True):
                plan[slot] = counts
        return tuple(plan)

    def least_load(self) -> tuple[int, list[int]]:
        """The least work of the busiest stage for one microbatch, over all divisions (each
        slot at least a layer), and a division that reaches it: a dynamic program over stages."""
        most = len(self.ways) - 1
        best: dict[int, tuple[int, list[tuple[int, ...]]]] = {0: (0, [])}
        for s in range(self.p):
            loads: dict[int, tuple[tuple[int, int], tuple[int, ...]]] = {}
            for layers in product(range(1, most + 1), repeat=self.v):
                choice = self.recomputed(s, layers) if sum(layers) <= most else None
                if choice is not None:
                    option = self._load(s, choice), layers
                    loads[sum(layers)] = min(loads.get(sum(layers), option), option)
            following: dict[int, tuple[int, list[tuple[int, ...]]]] = {}
            for done, (busiest, division) in best.items():
                for count, ((load, _), layers) in loads.items():
                    entry = max(busiest, load), [*division, layers]
                    known = following.get(done + count, entry)
                    following[done + count] = min(known, entry)
            best = following
        busiest, division = best[self.facts["layers"]]
        return busiest, [division[slot % self.p][slot // self.p] for slot in range(self.slots)]

    # -- what a plan takes --------------------------------------------------------------------------

    def profile(self, plan: Sequence[Counts], levels: bool = False) -> CostProfile:
        """The plan as a profile, a unit of time as a microsecond: its recomputation in the backwards and
        activations or, with `levels`, every way to recompute a slot as a level of it."""
        stages = []
        for slot, counts in enumerate(plan):
            layers = sum(counts)
            forward = layers * self.facts["layer"]["time"] + self.own_time(slot)
            whole = (layers, *[0] * (len(self.kinds) - 1))
            used = whole if levels else counts
            stage: dict[str, Any] = {
                "t_f_us": forward,
                "t_b_us": 2 * forward + self.extra(used),
                "t_w_us": 0,
                "act_bytes": self.keep_mb(used) * MIB,
                "w_bytes": 0,
                "static_bytes": self.static_mb(slot, layers) * MIB,
            }
            if levels:
                stage["recompute"] = [
                    {
                        "name": self.level_name(way),
                        "t_us": self.extra(way),
                        "keep_bytes": self.keep_mb(way) * MIB,
                        "work_bytes": 0,
                    }
                    for way in self.ways[layers]
                    if way != whole
                ]
            stages.append(stage)
        return load_profile(
            {
                "name": "sapp-llama2-70b",
                "devices": self.p,
                "chunks": self.v,
                "placement": "loop",
                "stages": stages,
                "t_comm_us": 0,
                "memory_limit_bytes": self.facts["limit_mb"] * MIB,
            }
        )

    def level_name(self, counts: Counts) -> str:
        """As ``select 1, full 2``; empty for what recomputes nothing."""
        named = zip(self.kinds[1:], counts[1:], strict=True)
        return ", ".join(f"{kind.name} {count}" for kind, count in named if count)

    def replay(self, plan: Sequence[Counts]) -> Trace:
        """Interleaved 1F1B with a plan."""
        return simulate(self.schedule, self.profile(plan), enforce=False)

    def search(self, tries: int, seed: int = 0) -> tuple[Counts, ...]:
        """The best plan that moving single layers from slot to slot finds, from the even division and from
        that with the least load; each division is recomputed as its stages need, and replayed."""
        random = Random(seed)
        found: list[tuple[int, tuple[Counts, ...]]] = []
        for start in (self.even, self.least_load()[1]):
            plan = self.plan(start)
            if plan is not None:
                found.append((self.replay(plan).makespan_ns, plan))
        least, best = min(found)
        cost, layers = least, [sum(counts) for counts in best]
        for _ in range(tries):
            changed = list(layers)
            for _ in range(random.choice((1, 1, 2, 3))):
                source, target = random.sample(range(self.slots), 2)
                changed[source] -= 1
                changed[target] += 1
            sizes = [sum(changed[slot] for slot in self.mine(s)) for s in range(self.p)]
            if min(changed) < 1 or max(sizes) >= len(self.ways):
                continue
            plan = self.plan(changed)
            if plan is None:
                continue
            new = self.replay(plan).makespan_ns
            if new <= cost or new < least * (1 + LOSS * random.random()):
                layers, cost = changed, new
            if new < least:
                best, least = plan, new
        return best


def _exceeds(one: Counts, two: Counts) -> bool:
    return one != two and all(a >= b for a, b in zip(one, two, strict=True))
