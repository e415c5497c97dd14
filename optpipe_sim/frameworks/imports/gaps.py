"""The time between the ops of a run: the host's delay before each kind of op, and messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ...ops import BW, B, F, Op, OpKind
from ...schedule import Shape

Times = Mapping[Op, tuple[int, int]]  # start and end, in ns


@dataclass(frozen=True)
class Gaps:
    """Mean times between ops, in ns. Means, not medians: a replay adds them up.

    Attributes:
        late: by stage and kind, how long after its inputs and the op before it an op began: the host's
            overhead. Ops of a kind that always waited for a message have the mean of all.
        mean: the mean of all. `message_ns`: the time of a message beyond the host's delay.
    """

    late: Mapping[tuple[int, OpKind], int]
    mean: int
    message_ns: int

    def before(self, stage: int, kind: OpKind) -> int:
        """Return the host's delay before ops of a stage and kind."""
        return self.late.get((stage, kind), self.mean)


def gaps(shape: Shape, iterations: Sequence[Sequence[Times]]) -> Gaps:
    """Measure the gaps of some iterations, each with the times of every rank.

    A message counts if its receiver was idle when it was sent. The host's delay counts if the op waited
    for no message: none was needed, or it was sent longer ago than a message usually takes.
    """
    delays: list[
        tuple[Op, int, int | None]
    ] = []  # of an op after the one before; since it was sent
    waits_ns: list[tuple[Op, int]] = []
    for iteration in iterations:
        times = {op: when for part in iteration for op, when in part.items()}
        sent: dict[Op, int] = {}
        for source, op in edges(shape, times):
            sent[op] = max(sent.get(op, 0), times[source][1])
        for part in iteration:
            free = None
            for op in sorted(part, key=lambda op: part[op][0]):
                start, came = part[op][0], sent.get(op)
                if came is not None and (free is None or came >= free):
                    waits_ns.append((op, start - came))
                if free is not None:
                    delays.append((op, max(0, start - free), None if came is None else free - came))
                free = part[op][1]
    usual = median([time for _, time in waits_ns] or [0])
    found: dict[tuple[int, OpKind], list[int]] = defaultdict(list)
    for op, delay, since in delays:
        if since is None or since >= usual:
            found[op.stage, op.kind].append(delay)
    late = {key: round(fmean(values)) for key, values in found.items()}
    known = Gaps(late, round(fmean([x for values in found.values() for x in values] or [0])), 0)
    beyond = [time - known.before(op.stage, op.kind) for op, time in waits_ns]
    return Gaps(late, known.mean, max(0, round(fmean(beyond or [0]))))


def edges(shape: Shape, times: Mapping[Op, object]) -> list[tuple[Op, Op]]:
    """Return producer and consumer of every message between devices."""
    found = []
    for op in times:
        step = -1 if op.kind is F else 1
        if op.kind not in (F, B, BW) or not 0 <= op.stage + step < shape.stages:
            continue
        if shape.placement[op.stage] == shape.placement[op.stage + step]:
            continue
        for kind in (F,) if op.kind is F else (B, BW):
            source = op._replace(kind=kind, stage=op.stage + step)
            if source in times:
                found.append((source, op))
    return found
