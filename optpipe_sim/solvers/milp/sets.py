"""The pairs of ops that have a binary in the MILP: those whose order precedence leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import combinations, pairwise

from ...ops import B, C, F, O, Op, OpKind, R, W
from .precedence import Precedence


class Sets(Precedence):
    """The index sets of the MILP of a problem; independent of any bound."""

    @cached_property
    def pairs(self) -> list[tuple[Op, Op]]:
        """Pairs of compute ops on one device that have their own order binary."""
        return [
            (a, b)
            for d in self.devices
            for a, b in combinations(self.compute(d), 2)
            if not self.settled(a, b) and not self._borrows(a, b)
        ]

    @cached_property
    def borrowing(self) -> list[tuple[Op, Op]]:
        """Pairs of W's that use the order binary of their B's."""
        following = filter(self.follows, self.stages)
        return [pair for s in following for pair in combinations(self.of(W, s), 2)]

    def _borrows(self, a: Op, b: Op) -> bool:
        return a.kind is W and b.kind is W and a.stage == b.stage and self.follows(a.stage)

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

    def largest(self, s: int) -> int:
        """Return the most bytes that an activation of a stage ever holds."""
        held = (max(one.entering, one.back) for one in self.choices.get(s, ()))
        return max([self.problem.profile.stages[s].act_bytes, *held])

    def sizes(self, d: int) -> Iterator[int]:
        """Yield the numbers of bytes that activations of a device allocate and release."""
        for s in self.stages_of(d):
            cost = self.problem.profile.stages[s]
            yield from (cost.act_bytes, cost.w_bytes)
            for one in self.choices.get(s, ()):
                yield from (one.entering, one.keep, one.moved_bytes, one.back)
            if s not in self.choices:
                yield cost.offloadable

    def forwards(self, d: int) -> list[Op]:
        """Return the F's of a device that allocate memory; each also names its activation."""
        return [op for s in self.stages_of(d) if self.largest(s) for op in self.of(F, s)]

    def takers(self, d: int) -> list[Op]:
        """Return the compute ops of a device that may allocate memory."""
        chosen = [s for s in self.stages_of(d) if s in self.choices and self.largest(s)]
        return self.forwards(d) + [op for s in chosen for kind in (C, B) for op in self.of(kind, s)]

    def backs(self, d: int) -> list[Op]:
        """Return the R's of a device."""
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
        starts. Releases are O's, B's and W's, and F's where there are choices; allocations
        `takers` and R's; pairs with an order binary use that one."""
        found = []
        for d in self.devices:
            outs = [op for s in self.offloadable_of(d) for op in self.of(O, s)]
            backs = self.backs(d)
            found += [(o, q) for q in self.takers(d) for o in outs if not self._too_late(q, o)]
            found += [
                (o, r)
                for r in backs
                for o in outs
                if o[1:] != r[1:] and not self.share(o[:2], r[:2])
            ]
            for kind, s in self.freeing(d):
                found += [
                    (op, r) for r in backs for op in self.of(kind, s) if not self._too_late(r, op)
                ]
        return found

    def freeing(self, d: int) -> list[tuple[OpKind, int]]:
        """Return the kinds and stages of compute ops that release memory for which an R may wait."""
        released = self.problem.profile.released_bytes
        return [
            (kind, s)
            for kind in (F, B, W)
            for s in self.stages_of(d)
            if (self.largest(s) if s in self.choices else kind is not F and released[kind, s])
        ]

    @cached_property
    def overtakes(self) -> list[tuple[Op, Op]]:
        """(R, q) with a binary: whether the reload allocates before a compute op does."""
        return [
            (r, q)
            for d in self.devices
            for r in self.backs(d)
            for q in self.takers(d)
            if not self._too_late(q, r)
        ]

    @cached_property
    def holdings(self) -> list[tuple[Op, Op]]:
        """(activation, allocation) of a device for activations with choices, named by their F: a
        variable has the bytes held when the allocation takes place."""
        return [
            (a, q)
            for d in self.devices
            for q in self.takers(d) + self.backs(d)
            for a in self.forwards(d)
            if a.stage in self.choices and a[1:] != q[1:]
        ]

    @cached_property
    def triangles(self) -> list[tuple[Op, Op, Op]]:
        """(a, b, c) with a certainly before b: if c is before a, it is before b."""
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
        """Three ops of one kind and stage whose order is open: their order must not be cyclic."""
        if not self.options.triangles:
            return []
        free = [
            (kind, s)
            for s in self.stages
            for kind in self.kinds_of(s)
            if (kind, s) not in self.chained and not (kind is W and self.follows(s))
        ]
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
        for op in self.offloads:
            nodes.setdefault(self.place[op.stage] // per_node, []).append(op)
        sizes = self.problem.profile.stages
        return [
            outs
            for outs in nodes.values()
            if not self.options.drop
            or sum(sizes[op.stage].offloadable for op in outs) > offload.host_limit_bytes
        ]

    def pinned_sizes(self, out: Op) -> list[int]:
        """Return the possible sizes of an offload on the host, in bytes."""
        if out.stage not in self.choices:
            return [self.problem.profile.stages[out.stage].offloadable]
        return [one.moved_bytes for one in self.choices[out.stage] if one.moved]

    @cached_property
    def pinned(self) -> list[tuple[Op, Op]]:
        """Ordered pairs of offloads on one such node."""
        return [(a, b) for outs in self.nodes for a in outs for b in outs if a != b]
