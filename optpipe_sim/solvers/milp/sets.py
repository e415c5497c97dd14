"""What the MILP ranges over: its ops, what precedence decides among them, and their time windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise

from ...ops import B, F, O, Op, OpKind, R, W
from ...sim.links import link_keys
from ..problem import Problem

KINDS = (F, B, W)


@dataclass(frozen=True)
class MilpOptions:
    """Accelerations of the MILP, each a switch; `fifo` apart they cut off no best schedule.

    Attributes:
        in_order: F's, B's and W's of a stage run in microbatch order, as far as that is no loss.
            Microbatches are alike, so where nothing is offloaded, sorting the times of each kind
            on each stage and dealing them out in order keeps every rule: the k-th smallest of
            numbers that are each at least so much above their partners is so much above the k-th
            smallest partner; engines and memory do not see who is who. With offloads the pairing
            of F, O, R and B matters (devices with shared copy engines and room for two
            activations exist where last in, first out is better), so that only two things are
            free: the names (F's in order on stage 0), and the W's, which follow their B's.
        fifo: all of `in_order` with offloads as well: a restriction that makes good schedules
            easier to find; the solver's bound is then no bound for the problem and is not used.
        fix: no binaries for what precedence decides; time windows fix further ones.
        drop: leave out rows and variables that cannot matter: memory and offloads of a device
            whose limit holds everything, F before B where a chain says so, ends of all but the
            last W, rows that the windows imply.
        triangles: transitivity of order, as rows.
        bounds: the closed-form bound (`bounds.bounds`) as a cut.
        adaoffload: start from AdaOffload where no better warm start is given.
        whole: the cost is a whole number of ticks, the common measure of all durations.
    """

    in_order: bool = True
    fifo: bool = False
    fix: bool = True
    drop: bool = True
    triangles: bool = True
    bounds: bool = True
    adaoffload: bool = True
    whole: bool = True


class Sets:
    """The index sets of the MILP of a problem; they depend on no bound.

    Attributes:
        durations: per kind and stage, ns. Where BW is cheaper than B + W, the durations of B and W are
            cut to B = min(B, BW), W = BW - B, so that a schedule with BW is a solution, too.
        room: per device, the limit less static bytes; None where memory cannot bind.
        away: the stages whose activations may be offloaded.
        chained: the (kind, stage) that run in microbatch order.
        follow: the W's of a stage run in the order of its B's.
    """

    def __init__(self, problem: Problem, options: MilpOptions) -> None:
        self.problem, self.options = problem, options
        costs = problem.profile
        self.m, self.stages, self.place = (
            problem.microbatches,
            range(problem.shape.stages),
            costs.placement,
        )
        self.devices = range(costs.devices)
        self.durations = {
            kind: list(map(int, costs.durations_ns[kind])) for kind in (F, B, W, O, R)
        }
        for s, cost in enumerate(costs.stages):
            if cost.fused_ns < cost.t_b_ns + cost.t_w_ns:
                self.durations[B][s] = min(cost.t_b_ns, cost.fused_ns)
                self.durations[W][s] = cost.fused_ns - self.durations[B][s]
        self.room = [self._room(d, options.drop) for d in self.devices]
        self.away = [s for s in self.stages if self._may_go(s, self.room)]
        everywhere = [self._room(d, True) for d in self.devices]
        gone = any(self._may_go(s, everywhere) for s in self.stages)
        self.exact_order = not gone  # microbatch order is no restriction
        if not options.in_order:
            self.mode = "none"
        else:
            self.mode = "free" if gone and not options.fifo else "all"
        self.chained = {
            "all": [(kind, s) for kind in KINDS for s in self.stages],
            "free": [(F, 0)],
            "none": [],
        }[self.mode]
        self.follow = self.mode == "free"
        self.keys = link_keys(costs)

    def _room(self, d: int, drop: bool) -> int | None:
        """The bytes that activations may take on a device; None where that is enough for all."""
        problem, costs = self.problem, self.problem.profile
        if problem.limits is None:
            return None
        room = problem.limits[d] - costs.static_bytes[d]
        most = self.m * sum(costs.stages[s].act_bytes for s in problem.shape.stages_of(d))
        return None if drop and most <= room else room

    def _may_go(self, s: int, room: list[int | None]) -> bool:
        return (
            self.problem.may_offload
            and self.problem.profile.stages[s].offloadable > 0
            and room[self.place[s]] is not None
        )

    # -- ops --------------------------------------------------------------------------------------

    def of(self, kind: OpKind, s: int) -> list[Op]:
        return [Op(kind, s, j) for j in range(self.m)]

    def dur(self, op: Op) -> int:
        return self.durations[op.kind][op.stage]

    def stages_of(self, d: int) -> tuple[int, ...]:
        return self.problem.shape.stages_of(d)

    def compute(self, d: int) -> list[Op]:
        return [op for kind in KINDS for s in self.stages_of(d) for op in self.of(kind, s)]

    def away_of(self, d: int) -> list[int]:
        return [s for s in self.away if self.place[s] == d]

    @cached_property
    def gone(self) -> list[Op]:
        """The offloads that may be; each stands for its activation."""
        return [op for s in self.away for op in self.of(O, s)]

    @cached_property
    def ops(self) -> list[Op]:
        kinds = [(kind, s) for s in self.stages for kind in KINDS]
        kinds += [(kind, s) for s in self.away for kind in (O, R)]
        return [op for kind, s in kinds for op in self.of(kind, s)]

    def latency(self, s: int, other: int) -> int:
        """What a message between two stages takes; on serial links it may take longer."""
        return self.problem.profile.t_comm_ns if self.place[s] != self.place[other] else 0

    @cached_property
    def flow(self) -> list[tuple[Op, Op, int]]:
        """(a, b, lag): b starts at least `lag` after the start of a, for compute ops."""
        rows = []
        for s in self.stages:
            for j in range(self.m):
                f, b, w = Op(F, s, j), Op(B, s, j), Op(W, s, j)
                last = s == self.stages[-1]
                if not last:
                    rows.append((f, Op(F, s + 1, j), self.dur(f) + self.latency(s, s + 1)))
                    above = Op(B, s + 1, j)
                    rows.append((above, b, self.dur(above) + self.latency(s, s + 1)))
                if last or not self.options.drop:
                    rows.append((f, b, self.dur(f)))
                rows.append((b, w, self.dur(b)))
        for kind, s in self.chained:
            rows += [(a, b, self.dur(a)) for a, b in pairwise(self.of(kind, s))]
        return rows

    # -- precedence -------------------------------------------------------------------------------

    @cached_property
    def _after(self) -> dict[Op, int]:
        """Per op the set (bits, by `_bit`) of the ops that precedence puts after it."""
        after = dict.fromkeys(self.ops, 0)
        for op in reversed(self.sorted_ops):
            for later, _ in self.successors[op]:
                after[op] |= after[later] | (1 << self._bit[later])
        return after

    @cached_property
    def _bit(self) -> dict[Op, int]:
        return {op: at for at, op in enumerate(self.ops)}

    @cached_property
    def successors(self) -> dict[Op, list[tuple[Op, int]]]:
        """Per op, what comes after it and the least time from start to start, offloaded or not."""
        found: dict[Op, list[tuple[Op, int]]] = {op: [] for op in self.ops}
        for a, b, lag in self.flow:
            found[a].append((b, lag))
        for out in self.gone:
            forward, back = out._replace(kind=F), out._replace(kind=R)
            found[forward].append((out, self.dur(forward)))
            found[out].append((back, 0))
            found[back].append((out._replace(kind=B), 0))
        return found

    @cached_property
    def sorted_ops(self) -> list[Op]:
        """The ops in an order that precedence allows."""
        missing = dict.fromkeys(self.ops, 0)
        for later in self.successors.values():
            for op, _ in later:
                missing[op] += 1
        order = [op for op, count in missing.items() if not count]
        for op in order:
            for then, _ in self.successors[op]:
                missing[then] -= 1
                if not missing[then]:
                    order.append(then)
        return order

    def precedes(self, a: Op, b: Op) -> bool:
        """Whether data flow (and the order of the chained) put a before b."""
        return bool(self._after[a] >> self._bit[b] & 1)

    def settled(self, a: Op, b: Op) -> bool:
        return self.options.fix and (self.precedes(a, b) or self.precedes(b, a))

    # -- pairs ------------------------------------------------------------------------------------

    @cached_property
    def pairs(self) -> list[tuple[Op, Op]]:
        """Pairs of compute ops on one device that have an order binary of their own."""
        return [
            (a, b)
            for d in self.devices
            for a, b in combinations(self.compute(d), 2)
            if not self.settled(a, b) and not self._borrows(a, b)
        ]

    @cached_property
    def borrowing(self) -> list[tuple[Op, Op]]:
        """Pairs of W's in the order of their B's."""
        if not self.follow:
            return []
        return [pair for s in self.stages for pair in combinations(self.of(W, s), 2)]

    def _borrows(self, a: Op, b: Op) -> bool:
        return self.follow and a.kind is W and b.kind is W and a.stage == b.stage

    def share(self, a: tuple[OpKind, int], b: tuple[OpKind, int]) -> bool:
        """Whether transfers of these kinds and stages need the same copy engine or host link."""
        offload = self.problem.profile.offload
        assert offload is not None
        one, two = self.place[a[1]], self.place[b[1]]
        same_engine = one == two and (a[0] is b[0] or offload.copy_engines == "shared")
        return same_engine or self.keys[2 * one + (a[0] is R)] == self.keys[2 * two + (b[0] is R)]

    @cached_property
    def sharing(self) -> list[tuple[Op, Op]]:
        """Pairs of transfers that must not overlap, apart from an O and its own R."""
        copies = [op for s in self.away for kind in (O, R) for op in self.of(kind, s)]
        return [
            (a, b)
            for a, b in combinations(copies, 2)
            if a[1:] != b[1:] and self.share(a[:2], b[:2])
        ]

    @cached_property
    def ways(self) -> list[tuple[Op, Op]]:
        """The pairs of `sharing`, either way round."""
        return [way for a, b in self.sharing for way in ((a, b), (b, a))]

    def forwards(self, d: int) -> list[Op]:
        """The F's of a device that take memory."""
        stages = self.problem.profile.stages
        return [op for s in self.stages_of(d) if stages[s].act_bytes for op in self.of(F, s)]

    def _too_late(self, allocation: Op, release: Op) -> bool:
        """Whether precedence puts `release` after `allocation` (or they are of one activation)."""
        if allocation[1:] == release[1:]:
            return True
        first = allocation if allocation.kind is F else allocation._replace(kind=B)
        then = release._replace(kind=F) if release.kind in (O, R) else release
        return self.options.fix and self.precedes(first, then)

    @cached_property
    def releases(self) -> list[tuple[Op, Op]]:
        """(release, allocation) that have a binary: ended before that starts. Releases are O's,
        B's and W's, allocations F's and R's; pairs with an order binary use that one."""
        costs, found = self.problem.profile, []
        for d in self.devices:
            outs = [op for s in self.away_of(d) for op in self.of(O, s)]
            backs = [op for s in self.away_of(d) for op in self.of(R, s)]
            found += [(o, f) for f in self.forwards(d) for o in outs if not self._too_late(f, o)]
            found += [
                (o, r)
                for r in backs
                for o in outs
                if o[1:] != r[1:] and not self.share(o[:2], r[:2])
            ]
            for kind in (B, W):
                for s in self.stages_of(d):
                    if costs.released_bytes[kind, s]:
                        found += [
                            (op, r)
                            for r in backs
                            for op in self.of(kind, s)
                            if not self._too_late(r, op)
                        ]
        return found

    @cached_property
    def overtakes(self) -> list[tuple[Op, Op]]:
        """(R, F) that have a binary: the reload takes its memory before the forward does."""
        return [
            (r, f)
            for d in self.devices
            for s in self.away_of(d)
            for r in self.of(R, s)
            for f in self.forwards(d)
            if not self._too_late(f, r)
        ]

    @cached_property
    def triangles(self) -> list[tuple[Op, Op, Op]]:
        """(a, b, c) with a before b for certain: if c is before a, it is before b."""
        if not self.options.triangles:
            return []
        chained = set(self.chained)
        found = []
        for d in self.devices:
            others = self.compute(d)
            for kind, s in sorted(chained):
                if self.place[s] == d:
                    found += [
                        (a, b, c)
                        for a, b in pairwise(self.of(kind, s))
                        for c in others
                        if c[:2] != a[:2] and not self.settled(a, c) and not self.settled(b, c)
                    ]
        return found

    @cached_property
    def cycles(self) -> list[tuple[Op, Op, Op]]:
        """Three ops of one kind and stage whose order is open: none before itself."""
        if not self.options.triangles:
            return []
        kinds = (F, B) if self.follow else KINDS
        free = [(kind, s) for kind in kinds for s in self.stages if (kind, s) not in self.chained]
        return [three for kind, s in free for three in combinations(self.of(kind, s), 3)]

    # -- host memory ------------------------------------------------------------------------------

    @cached_property
    def nodes(self) -> list[list[Op]]:
        """Per node whose pinned memory can bind, its offloads."""
        offload = self.problem.profile.offload
        if offload is None or offload.host_limit_bytes is None:
            return []
        per_node = offload.devices_per_node or len(self.devices)
        nodes: dict[int, list[Op]] = {}
        for op in self.gone:
            nodes.setdefault(self.place[op.stage] // per_node, []).append(op)
        sizes = self.problem.profile.stages
        return [
            outs
            for outs in nodes.values()
            if not self.options.drop
            or sum(sizes[op.stage].offloadable for op in outs) > offload.host_limit_bytes
        ]

    @cached_property
    def pinned(self) -> list[tuple[Op, Op]]:
        """Ordered pairs of offloads on one such node."""
        return [(a, b) for outs in self.nodes for a in outs for b in outs if a != b]

    # -- span -------------------------------------------------------------------------------------

    def first_stage(self, d: int) -> int:
        return self.stages_of(d)[0]

    @property
    def span(self) -> bool:
        return self.problem.objective == "span"

    @cached_property
    def prompt(self) -> bool:
        """Whether every device's first op is the F of microbatch 0 and starts as soon as its
        input can be there: microbatch order, and the first p stages on p devices."""
        firsts = {self.first_stage(d) for d in self.devices}
        return self.mode == "all" and firsts == set(self.devices)

    def finals(self) -> Iterator[Op]:
        """The ops that may be the last of their device."""
        for s in self.stages:
            ops = self.of(W, s)
            yield from ops[-1:] if self.options.drop and (W, s) in self.chained else ops
