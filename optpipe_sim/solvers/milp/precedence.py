"""The ops of the MILP, their least durations, and the orders that precedence decides."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

from ...ops import B, C, F, O, Op, OpKind, R, W
from ...sim.links import link_keys
from ..problem import Problem
from .choices import Choice, choices_of
from .options import MilpOptions

KINDS = (F, B, W, C)  # on the compute stream; a BW is a B followed by a W of zero duration


class Precedence:
    """The ops of a problem's MILP; independent of any bound.

    Attributes:
        room: per device, the limit less static bytes; None if memory cannot bind.
        offloadable: the stages whose activations may be offloaded.
        choices: per stage with levels whose memory can bind, the choices for one of its
            activations. Each of these has an op C, of zero duration unless the choice recomputes by
            a separate op.
        durations: per kind and stage, ns; with choices, the least of all choices. Otherwise, if BW
            is cheaper than B + W, the durations of B and W are cut to B = min(B, BW), W = BW - B,
            so that a schedule with BW is also a solution.
        chained: the (kind, stage) whose ops run in microbatch order.
        follow: the W's of a stage run in the order of its B's, if none is part of a BW.
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
        self.room = [self._room(d, options.drop) for d in self.devices]
        self.offloadable = [s for s in self.stages if self._may_go(s, self.room)]
        self.choices = {
            s: choices_of(costs, s, s in self.offloadable, options.drop)
            for s in self.stages
            if self._may_recompute(s, self.room)
        }
        self.durations = {kind: self._durations(kind) for kind in (*KINDS, O, R)}
        everywhere = [self._room(d, True) for d in self.devices]
        unlike = any(
            self._may_go(s, everywhere) or self._may_recompute(s, everywhere) for s in self.stages
        )
        self.exact_order = not unlike  # microbatch order loses nothing
        if not options.in_order:
            self.mode = "none"
        else:
            self.mode = "free" if unlike and not options.fifo else "all"
        self.chained = {
            "all": [(kind, s) for kind in (F, B, W) for s in self.stages],
            "free": [(F, 0)],
            "none": [],
        }[self.mode]
        self.follow = self.mode == "free"
        self.keys = link_keys(costs)

    def _durations(self, kind: OpKind) -> list[int]:
        found = []
        for s, cost in enumerate(self.problem.profile.stages):
            back = min(cost.t_b_ns, cost.fused_ns)
            plain = {
                F: cost.t_f_ns,
                B: back,
                W: min(cost.t_w_ns, cost.fused_ns - back),
                O: cost.t_offload_ns or 0,
                R: cost.t_reload_ns or 0,
            }
            if s not in self.choices:
                found.append(plain.get(kind, 0))
                continue
            copied = kind in (O, R)  # the least duration if there are choices
            found.append(
                min(
                    (one.durations[kind] for one in self.choices[s] if one.moved or not copied),
                    default=0,
                )
            )
        return found

    def _room(self, d: int, drop: bool) -> int | None:
        """Return the bytes for activations on a device; None if all activations fit."""
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

    def _may_recompute(self, s: int, room: list[int | None]) -> bool:
        return (
            self.problem.may_recompute
            and bool(self.problem.profile.stages[s].recompute)
            and room[self.place[s]] is not None
        )

    # -- ops --------------------------------------------------------------------------------------

    def of(self, kind: OpKind, s: int) -> list[Op]:
        return [Op(kind, s, j) for j in range(self.m)]

    def dur(self, op: Op) -> int:
        """Return the least duration of an op; of a transfer, if it takes place."""
        return self.durations[op.kind][op.stage]

    def longest(self, op: Op) -> int:
        if op.stage not in self.choices:
            return self.dur(op)
        return max(one.durations[op.kind] for one in self.choices[op.stage])

    @property
    def every_duration(self) -> Iterator[int]:
        """All possible durations of ops."""
        for s in self.stages:
            yield from (self.durations[kind][s] for kind in self.durations)
            for one in self.choices.get(s, ()):
                yield from one.durations.values()

    def fusible(self, s: int) -> bool:
        """Whether a BW is among the choices of a stage."""
        return any(one.fused for one in self.choices.get(s, ()))

    def follows(self, s: int) -> bool:
        """Whether the W's of a stage run in the order of its B's."""
        return self.follow and not self.fusible(s)

    def stages_of(self, d: int) -> tuple[int, ...]:
        return self.problem.shape.stages_of(d)

    def kinds_of(self, s: int) -> tuple[OpKind, ...]:
        """Return the kinds of compute ops of a stage."""
        return KINDS if s in self.choices else KINDS[:3]

    def compute(self, d: int) -> list[Op]:
        groups = [
            (kind, s) for kind in KINDS for s in self.stages_of(d) if kind in self.kinds_of(s)
        ]
        return [op for kind, s in groups for op in self.of(kind, s)]

    def offloadable_of(self, d: int) -> list[int]:
        return [s for s in self.offloadable if self.place[s] == d]

    def choices_of(self, op: Op) -> list[Choice]:
        """Return the choices for the activation of an op; empty if it can only be kept or offloaded."""
        return self.choices.get(op.stage, [])

    @cached_property
    def treated(self) -> list[Op]:
        """The activations with choices, each named by its F."""
        return [op for s in self.choices for op in self.of(F, s)]

    @cached_property
    def offloads(self) -> list[Op]:
        """The possible offloads; each stands for its activation."""
        return [op for s in self.offloadable for op in self.of(O, s)]

    @cached_property
    def ops(self) -> list[Op]:
        kinds = [(kind, s) for s in self.stages for kind in self.kinds_of(s)]
        kinds += [(kind, s) for s in self.offloadable for kind in (O, R)]
        return [op for kind, s in kinds for op in self.of(kind, s)]

    def latency(self, s: int, other: int) -> int:
        """Return the latency of a message between two stages; on serial links it may take longer."""
        return self.problem.profile.t_comm_ns if self.place[s] != self.place[other] else 0

    @cached_property
    def flow(self) -> list[tuple[Op, Op, int]]:
        """(a, b, latency): b starts at least `latency` after the end of a, for compute ops."""
        rows = []
        for s in self.stages:
            for j in range(self.m):
                f, b, w, again = (Op(kind, s, j) for kind in KINDS)
                last = s == self.stages[-1]
                if not last:
                    rows.append((f, Op(F, s + 1, j), self.latency(s, s + 1)))
                    rows.append((Op(B, s + 1, j), b, self.latency(s, s + 1)))
                if s in self.choices:
                    rows += [(f, again, 0), (again, b, 0)]
                elif last or not self.options.drop:
                    rows.append((f, b, 0))
                rows.append((b, w, 0))
        for kind, s in self.chained:
            rows += [(a, b, 0) for a, b in pairwise(self.of(kind, s))]
        return rows

    def after_reload(self, op: Op) -> Op:
        """Return the ops that wait for the reload of an activation."""
        return op._replace(kind=C if op.stage in self.choices else B)

    # -- precedence -------------------------------------------------------------------------------

    @cached_property
    def _after(self) -> dict[Op, int]:
        """Per op, the set (bits, by `_bit`) of the ops that precedence puts after it."""
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
        """Per op, its successors and the least time from start to start over all choices."""
        found: dict[Op, list[tuple[Op, int]]] = {op: [] for op in self.ops}
        for a, b, latency in self.flow:
            found[a].append((b, self.dur(a) + latency))
        for out in self.offloads:
            forward, back = out._replace(kind=F), out._replace(kind=R)
            found[forward].append((out, self.dur(forward)))
            found[out].append((back, 0))
            found[back].append((self.after_reload(out), 0))
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
