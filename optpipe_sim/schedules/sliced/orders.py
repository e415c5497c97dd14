"""Orders shared by the schedules over slices: the order of units, and the placement of W's.

A unit is a slice of a microbatch (`schedule.shape.Shape`). Forwards take the slices of a microbatch
in their order, backwards in reverse, as the keys and values of a slice collect gradients from all
later slices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from ...errors import InvalidSchedule
from ...op_costs import op_costs
from ...ops import B, F, Op, OpKind, W, dependencies
from ...profile import CostProfile
from ...schedule import Schedule, Shape
from ..classic import grouped_turns


def backward_units(shape: Shape) -> list[int]:
    """Return all units, microbatch by microbatch, each from its last slice to its first."""
    n = shape.slices
    return [j * n + k for j in range(shape.microbatches) for k in reversed(range(n))]


def interleaved(
    shape: Shape, rank: int, name: str, backward: OpKind
) -> tuple[list[Op], list[Op], int]:
    """Return the forwards and backwards of a device whose chunks take turns, and its number of
    warm-up forwards; with one chunk this is plain 1F1B.

    Units advance in groups of p through chunk after chunk, as in Megatron-LM's interleaved 1F1B.
    Backwards go group by group likewise; where a microbatch has more slices than a group, its
    groups come in reverse.

    Raises:
        InvalidSchedule: with several chunks, if groups would cut microbatches: the slices have to
            divide p or be a multiple of it, and p has to divide the units.
    """
    p, v, n = shape.devices, shape.chunks, shape.slices
    if v == 1:
        forwards = [shape.op(F, rank, unit) for unit in range(shape.units)]
        backwards = [shape.op(backward, rank, unit) for unit in backward_units(shape)]
        return forwards, backwards, min(p - rank - 1 + n - 1, shape.units)
    if (p % n and n % p) or shape.units % p:
        raise InvalidSchedule(
            f"{name}: with {v} chunks the slices have to divide the {p} devices or be a multiple of"
            f" them, and the microbatches times the slices a multiple of {p};"
            f" got {shape.microbatches} x {n}"
        )
    order = backward_units(shape)
    turns = grouped_turns(shape.units, v, p)
    forwards = [shape.op(F, chunk * p + rank, unit) for chunk, unit in turns]
    backwards = [
        shape.op(backward, (v - 1 - chunk) * p + rank, order[place]) for chunk, place in turns
    ]
    first = turns.index((v - 1, n - 1))  # the forward that the first backward needs
    return forwards, backwards, min(first + 2 * (p - rank - 1), len(turns))


def filled_with_weights(
    shape: Shape, costs: CostProfile, programs: Sequence[Sequence[Op]]
) -> Schedule:
    """Insert W's into programs of F's and B's: where a device would idle for at least as long, or
    once as many W's are pending as there are devices (they hold memory); the rest at the end.
    W's of slices are short enough for gaps that W's of whole microbatches cannot fill."""
    return _Filling(shape, costs, programs).run()


class _Filling:
    """A replay of F's and B's on latency links in which waiting devices run pending W's."""

    def __init__(self, shape: Shape, costs: CostProfile, programs: Sequence[Sequence[Op]]) -> None:
        self.shape, self.latency = shape, costs.t_comm_ns
        everything = [
            [*program, *(op._replace(kind=W) for op in program if op.kind is B)]
            for program in programs
        ]
        plain = Schedule(shape, everything)
        flat = [op for program in everything for op in program]
        self.durations = dict(zip(flat, op_costs(plain, costs).duration_ns.tolist(), strict=True))
        self.device = {op: at for at, program in enumerate(everything) for op in program}
        self.left = [list(reversed(program)) for program in programs]
        self.pending: list[deque[Op]] = [deque() for _ in programs]  # pending W's, the oldest first
        self.made: list[list[Op]] = [[] for _ in programs]
        self.end: dict[Op, int] = {}
        self.asleep: dict[Op, list[int]] = {}  # devices that wait for an op without a time yet

    def run(self) -> Schedule:
        moments = [(0, device) for device in range(len(self.left))]
        while moments:
            now, device = heappop(moments)
            for at, woken in self.step(now, device):
                heappush(moments, (at, woken))
        for program, pending in zip(self.made, self.pending, strict=True):
            program += pending
        return Schedule(self.shape, self.made)

    def step(self, now: int, device: int) -> Iterator[tuple[int, int]]:
        """Let a free device start an op at `now`; yields when which device is to be visited again."""
        if not self.left[device]:
            return
        if len(self.pending[device]) > len(self.left):
            yield self.put(self.pending[device].popleft(), now, device)
            return
        op = self.left[device][-1]
        needs = [need for need in dependencies(op) if need in self.device]
        unknown = next((need for need in needs if need not in self.end), None)
        ready = max([now, *(self.arrival(need, device) for need in needs if need in self.end)])
        if unknown is None and ready == now:
            self.left[device].pop()
        elif self.pending[device] and (
            unknown is not None or ready - now >= self.durations[self.pending[device][0]]
        ):
            op = self.pending[device].popleft()
        elif unknown is not None:
            self.asleep.setdefault(unknown, []).append(device)
            return
        else:
            yield ready, device
            return
        yield self.put(op, now, device)
        for other in self.asleep.pop(op, ()):
            yield self.arrival(op, other), other

    def put(self, op: Op, now: int, device: int) -> tuple[int, int]:
        """Start an op; returns when its device is free again."""
        self.made[device].append(op)
        self.end[op] = now + self.durations[op]
        if op.kind is B:
            self.pending[device].append(op._replace(kind=W))
        return self.end[op], device

    def arrival(self, op: Op, device: int) -> int:
        """Return when the result of an op is available on a device."""
        return self.end[op] + (self.latency if self.device[op] != device else 0)
