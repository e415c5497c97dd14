"""The ops of the MILP, the orders that precedence decides, and the pairs of ops that have a binary."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np

from ...ops import BW, B, F, O, Op, OpKind, R, W
from ...sim.host_links import link_keys
from ..problem import Problem
from .options import MilpOptions

KINDS = (F, B, W)  # on the compute stream; a BW is a B followed by a W


class Sets:
    """The index sets of a problem's MILP; independent of any bound.

    Attributes:
        m: the microbatches of the model; fewer than the problem's where only the size is asked for.
        room: per device, the limit less static bytes; None if memory cannot bind.
        offloadable: the stages whose activations may be offloaded.
        durations: per kind and stage, ns. If BW is cheaper than B + W, the durations of B and W are
            cut to B = min(B, BW), W = BW - B, so that a schedule with BW is also a solution.
        chained: the (kind, stage) whose ops run in microbatch order.
        follow: the W's of a stage run in the order of its B's.
    """

    def __init__(self, problem: Problem, options: MilpOptions, m: int | None = None) -> None:
        self.problem, self.options = problem, options
        costs = problem.profile
        self.m = m or problem.microbatches
        self.stages, self.place = range(problem.shape.stages), costs.placement
        self.devices = range(costs.devices)
        self.room = [self._room(d, options.drop) for d in self.devices]
        self.offloadable = [s for s in self.stages if self._may_go(s, self.room)]
        self.durations = self._durations()
        everywhere = [self._room(d, True) for d in self.devices]
        unlike = any(self._may_go(s, everywhere) for s in self.stages)
        self.exact_order = not unlike  # microbatch order loses nothing
        if not options.in_order:
            self.mode = "none"
        else:
            self.mode = "free" if unlike and not options.fifo else "all"
        self.chained = {
            "all": [(kind, s) for kind in KINDS for s in self.stages],
            "free": [(F, 0)],
            "none": [],
        }[self.mode]
        self.follow = self.mode == "free"
        self.keys = link_keys(costs)

    def _durations(self) -> dict[OpKind, list[int]]:
        durations = self.problem.profile.durations_ns
        durations[B] = np.minimum(durations[B], durations[BW])
        durations[W] = np.minimum(durations[W], durations[BW] - durations[B])
        return {kind: durations[kind].tolist() for kind in (*KINDS, O, R)}

    def _room(self, d: int, drop: bool) -> int | None:
        """Return the bytes for activations on a device; None if all activations fit."""
        problem, costs = self.problem, self.problem.profile
        if problem.limits is None:
            return None
        room = problem.limits[d] - costs.static_bytes[d]
        most = problem.microbatches * sum(costs.stages[s].act_bytes for s in self.stages_of(d))
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
        """Return the duration of an op; of a transfer, if it takes place."""
        return self.durations[op.kind][op.stage]

    def stages_of(self, d: int) -> tuple[int, ...]:
        return self.problem.shape.stages_of(d)

    def compute(self, d: int) -> list[Op]:
        return [op for kind in KINDS for s in self.stages_of(d) for op in self.of(kind, s)]

    def offloadable_of(self, d: int) -> list[int]:
        return [s for s in self.offloadable if self.place[s] == d]

    @cached_property
    def offloads(self) -> list[Op]:
        """The possible offloads; each stands for its activation."""
        return [op for s in self.offloadable for op in self.of(O, s)]

    @cached_property
    def ops(self) -> list[Op]:
        kinds = [(kind, s) for s in self.stages for kind in KINDS]
        kinds += [(kind, s) for s in self.offloadable for kind in (O, R)]
        return [op for kind, s in kinds for op in self.of(kind, s)]

    @cached_property
    def flow(self) -> list[tuple[Op, Op, int]]:
        """(a, b, latency): b starts at least `latency` after the end of a, for compute ops."""
        rows = []
        for s in self.stages:
            latency, last = self.problem.profile.message_ns(s, s + 1), s == self.stages[-1]
            for j in range(self.m):
                f, b, w = (Op(kind, s, j) for kind in KINDS)
                if not last:
                    rows.append((f, Op(F, s + 1, j), latency))
                    rows.append((Op(B, s + 1, j), b, latency))
                if last or not self.options.drop:
                    rows.append((f, b, 0))
                rows.append((b, w, 0))
        for kind, s in self.chained:
            rows += [(a, b, 0) for a, b in pairwise(self.of(kind, s))]
        return rows

    # -- precedence -------------------------------------------------------------------------------

    @cached_property
    def after(self) -> dict[Op, int]:
        """Per op, the set (bits, by `bit`) of the ops that precedence puts after it."""
        after = dict.fromkeys(self.ops, 0)
        for op in reversed(self.sorted_ops):
            for later, _ in self.successors[op]:
                after[op] |= after[later] | (1 << self.bit[later])
        return after

    @cached_property
    def bit(self) -> dict[Op, int]:
        return {op: at for at, op in enumerate(self.ops)}

    @cached_property
    def successors(self) -> dict[Op, list[tuple[Op, int]]]:
        """Per op, its successors and the least time from start to start."""
        found: dict[Op, list[tuple[Op, int]]] = {op: [] for op in self.ops}
        for a, b, latency in self.flow:
            found[a].append((b, self.dur(a) + latency))
        for out in self.offloads:
            f, b, back = (out._replace(kind=kind) for kind in (F, B, R))
            found[f].append((out, self.dur(f)))
            found[out].append((back, 0))
            found[back].append((b, 0))
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
        return bool(self.after[a] >> self.bit[b] & 1)

    def settled(self, a: Op, b: Op) -> bool:
        return self.options.fix and (self.precedes(a, b) or self.precedes(b, a))

    # -- order on the compute stream --------------------------------------------------------------

    @cached_property
    def pairs(self) -> list[tuple[Op, Op]]:
        """Pairs of compute ops on one device that have their own order binary."""
        return [
            (a, b)
            for d in self.devices
            for a, b in combinations(self.compute(d), 2)
            if not self.settled(a, b) and not self.borrows(a, b)
        ]

    @cached_property
    def borrowing(self) -> list[tuple[Op, Op]]:
        """Pairs of W's that use the order binary of their B's."""
        stages = self.stages if self.follow else ()
        return [pair for s in stages for pair in combinations(self.of(W, s), 2)]

    def borrows(self, a: Op, b: Op) -> bool:
        return self.follow and a.kind is W and b.kind is W and a.stage == b.stage

    @cached_property
    def triangles(self) -> list[tuple[Op, Op, Op]]:
        """(a, b, c) with a certainly before b: if c is before a, it is before b."""
        if not self.options.triangles:
            return []
        return [
            (a, b, c)
            for kind, s in sorted(self.chained)
            for a, b in pairwise(self.of(kind, s))
            for c in self.compute(self.place[s])
            if c[:2] != a[:2] and not self.settled(a, c) and not self.settled(b, c)
        ]

    @cached_property
    def cycles(self) -> list[tuple[Op, Op, Op]]:
        """Three ops of one kind and stage whose order is open: their order must not be cyclic."""
        if not self.options.triangles:
            return []
        free = [
            (kind, s)
            for s in self.stages
            for kind in KINDS
            if (kind, s) not in self.chained and not (kind is W and self.follow)
        ]
        return [three for kind, s in free for three in combinations(self.of(kind, s), 3)]

    # -- copies -----------------------------------------------------------------------------------

    def share(self, a: tuple[OpKind, int], b: tuple[OpKind, int]) -> bool:
        """Whether transfers of these kinds and stages need the same copy engine or host link."""
        offload = self.problem.profile.offload
        assert offload is not None
        one, two = self.place[a[1]], self.place[b[1]]
        same_engine = one == two and (a[0] is b[0] or offload.copy_engines == "shared")
        return same_engine or self.keys[2 * one + (a[0] is R)] == self.keys[2 * two + (b[0] is R)]

    @cached_property
    def sharing(self) -> list[tuple[Op, Op]]:
        """Pairs of transfers that must not overlap, except an O and its own R."""
        copies = [op for s in self.offloadable for kind in (O, R) for op in self.of(kind, s)]
        return [
            (a, b)
            for a, b in combinations(copies, 2)
            if a[1:] != b[1:] and self.share(a[:2], b[:2])
        ]

    @cached_property
    def ways(self) -> list[tuple[Op, Op]]:
        """The pairs of `sharing` in both orders."""
        return [way for a, b in self.sharing for way in ((a, b), (b, a))]

    # -- memory -----------------------------------------------------------------------------------

    def forwards(self, d: int) -> list[Op]:
        """Return the F's of a device that allocate memory; each also names its activation."""
        sizes = self.problem.profile.stages
        return [op for s in self.stages_of(d) if sizes[s].act_bytes for op in self.of(F, s)]

    def reloads(self, d: int) -> list[Op]:
        return [op for s in self.offloadable_of(d) for op in self.of(R, s)]

    def _too_late(self, allocation: Op, release: Op) -> bool:
        """Whether precedence puts `release` after `allocation` (or they are of one activation)."""
        if allocation[1:] == release[1:]:
            return True
        first = allocation._replace(kind=B) if allocation.kind is R else allocation
        then = release._replace(kind=F) if release.kind in (O, R) else release
        return self.options.fix and self.precedes(first, then)

    @cached_property
    def releases(self) -> list[tuple[Op, Op]]:
        """(release, allocation) with a binary: whether the release has ended when the allocation
        starts. Releases are O's, B's and W's, allocations F's and R's; pairs with an order binary
        use that one."""
        found: list[tuple[Op, Op]] = []
        freed = self.problem.profile.released_bytes
        for d in self.devices:
            outs = [op for s in self.offloadable_of(d) for op in self.of(O, s)]
            forwards, backs = self.forwards(d), self.reloads(d)
            found += [(o, q) for q in forwards for o in outs if not self._too_late(q, o)]
            found += [
                (o, r)
                for r in backs
                for o in outs
                if o[1:] != r[1:] and not self.share(o[:2], r[:2])
            ]
            ends = [op for op in self.compute(d) if op.kind is not F and freed[op[:2]]]
            found += [(op, r) for r in backs for op in ends if not self._too_late(r, op)]
        return found

    @cached_property
    def overtakes(self) -> list[tuple[Op, Op]]:
        """(R, F) with a binary: whether the reload allocates before the forward does."""
        return [
            (r, f)
            for d in self.devices
            for r in self.reloads(d)
            for f in self.forwards(d)
            if not self._too_late(f, r)
        ]

    # -- host memory ------------------------------------------------------------------------------

    @cached_property
    def nodes(self) -> list[list[Op]]:
        """Per node whose pinned memory can bind, its offloads."""
        offload = self.problem.profile.offload
        if offload is None or offload.host_limit_bytes is None:
            return []
        per_node = offload.devices_per_node or len(self.devices)
        nodes: dict[int, list[int]] = {}
        for s in self.offloadable:
            nodes.setdefault(self.place[s] // per_node, []).append(s)
        sizes, m = self.problem.profile.stages, self.problem.microbatches
        return [
            [op for s in stages for op in self.of(O, s)]
            for stages in nodes.values()
            if not self.options.drop
            or m * sum(sizes[s].offloadable for s in stages) > offload.host_limit_bytes
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
        """Whether every device's first op is the F of microbatch 0 and starts as soon as its input
        can arrive: with microbatch order, and the first p stages on p devices."""
        firsts = {self.first_stage(d) for d in self.devices}
        return self.mode == "all" and firsts == set(self.devices)

    def finals(self) -> Iterator[Op]:
        """Yield the ops that may run last on their device."""
        for s in self.stages:
            ops = self.of(W, s)
            yield from ops[-1:] if self.options.drop and (W, s) in self.chained else ops
