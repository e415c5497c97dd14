"""What each op of a trace waited for, and the chain of reasons that leads to the last end."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

import numpy as np

from ..checker.stepped import anchors, engines, link_of
from ..op_costs import edges, op_costs
from ..ops import COMPUTE, O, Op, R
from ..trace import Trace


class Reason(NamedTuple):
    """One reason for the wait of an op: until `until_ns`, because of `by`.

    `cause` is one of stream (`by` is on the compute stream), sending (the message of `by` keeps the
    compute stream busy, with blocking links), input (`by`, on the same device), neighbour (`by`, on
    another device, whose message takes no time), communication (its message does: `lag_ns` after
    its end), reload, memory (freed by the end of `by`), anchor (a reload waits for the start of the
    compute op before it), engine, link; or start: nothing (time 0). The program order of memory
    grants is never a separate reason: a later request does not fit earlier, given that all requests
    before it hold their memory.
    """

    cause: str
    by: Op | None
    until_ns: int
    lag_ns: int = 0


class Step(NamedTuple):
    """A step of the critical path: `op` takes from `start_ns` to `until_ns`, and started then for
    `cause` (see `Reason`; ``slack`` where nothing forced it): `by`, then `lag_ns` of message.

    `until_ns` is the end of the op, or its start where only that mattered (a reload's anchor).
    """

    op: Op
    device: int
    start_ns: int
    until_ns: int
    cause: str
    by: Op | None
    lag_ns: int


class Reasons:
    """The reasons in a trace, op by op, with shared tables that are built once."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        schedule = trace.schedule
        flat = [op for program in schedule.flat_programs for op in program]
        self.start: dict[Op, int] = dict(zip(flat, trace.start_ns.tolist(), strict=True))
        self.end: dict[Op, int] = dict(zip(flat, trace.end_ns.tolist(), strict=True))
        self.grant: dict[Op, int] = dict(zip(flat, trace.grant_ns.tolist(), strict=True))
        costs = op_costs(schedule, trace.profile)
        self.allocates: dict[Op, int] = dict(zip(flat, costs.allocated_bytes.tolist(), strict=True))
        self.releases: dict[Op, int] = dict(zip(flat, costs.released_bytes.tolist(), strict=True))
        self.asks: dict[Op, bool] = dict(zip(flat, costs.asks.tolist(), strict=True))
        self.device = dict(zip(flat, schedule.devices.tolist(), strict=True))
        waiting, needed = (edge.tolist() for edge in edges(schedule, trace.profile))
        self.needs: dict[Op, list[Op]] = {op: [] for op in flat}
        for row, need in zip(waiting, needed, strict=True):
            self.needs[flat[row]].append(flat[need])
        messages = trace.messages
        self.arrival: dict[tuple[Op, Op], int] = {
            (flat[need], flat[op]): time
            for need, op, time in zip(
                messages.producer.tolist(),
                messages.consumer.tolist(),
                messages.arrive_ns.tolist(),
                strict=True,
            )
        }
        self.sends = {sender for sender, _ in self.arrival}

    @cached_property
    def ahead(self) -> dict[Op, Op]:
        """For each backward that is one op with a forward, that forward."""
        schedule = self.trace.schedule
        rows = np.flatnonzero(schedule.second).tolist()
        return {schedule.op(row): schedule.op(row - 1) for row in rows}

    @cached_property
    def behind(self) -> dict[Op, Op]:
        """For each forward that is one op with a backward, that backward."""
        return {forward: backward for backward, forward in self.ahead.items()}

    @cached_property
    def before(self) -> dict[Op, Op]:
        """For each op, the op before it on the compute stream or the copy engine."""
        found = {}
        for program in self.trace.schedule.flat_programs:
            compute = [op for op in program if op.kind in COMPUTE and op not in self.ahead]
            for queue in (compute, *engines(self.trace.profile, program)):
                found.update({op: before for before, op in pairwise(queue)})
        return found

    @cached_property
    def link_of(self) -> dict[Op, str]:
        """For each transfer, its host link."""
        return {
            op: link_of(self.trace.profile, device, op)
            for op, device in self.device.items()
            if op.kind in (O, R)
        }

    @cached_property
    def link_before(self) -> dict[Op, list[Op]]:
        """For each transfer, those that its host link served before it: the previous one, and,
        without a link order, those of zero duration at the same instant, any of which may have
        been first."""
        served: dict[str, list[Op]] = {}
        for op in sorted(self.link_of, key=lambda op: (self.start[op], self.end[op])):
            served.setdefault(self.link_of[op], []).append(op)
        found: dict[Op, list[Op]] = {}
        for key, ops in served.items():
            order = self.trace.schedule.link_order.get(key)
            found.update({op: [before] for before, op in pairwise(order or ops)})
            for _, group in groupby([] if order else ops, key=self.start.__getitem__):
                together = list(group)
                for op in together if len(together) > 1 else ():
                    first = found.get(together[0], [])[:1]
                    found[op] = first + [one for one in together if self.end[one] <= self.start[op]]
                    found[op] = [one for one in found[op] if one != op]
        return found

    @cached_property
    def anchor(self) -> dict[Op, Op | None]:
        """For each R, the compute op before it in its program."""
        programs = self.trace.schedule.flat_programs
        return {op: found for program in programs for op, found in anchors(program).items()}

    @cached_property
    def freed_by(self) -> dict[Op, Op]:
        """For each op that allocates and did not fit from the start, the op whose end made it fit,
        given that the ops before it in the program hold their memory."""
        trace, found = self.trace, {}
        if trace.memory_limit is None or not trace.fits:
            return {}
        profile = trace.profile
        for device, program in enumerate(trace.schedule.flat_programs):
            ends = sorted(
                (op for op in program if self.releases[op]),
                key=lambda op: (self.end[op], self.start[op]),
            )
            freed = list(accumulate(self.releases[op] for op in ends))
            wanted = profile.static_bytes[device] - trace.memory_limit[device]
            for op in program:
                if self.asks[op]:
                    wanted += self.allocates[op]
                    at = bisect_left(freed, wanted)
                    if wanted > 0 and at < len(ends):
                        found[op] = ends[at]
        return found

    def entry(self, op: Op) -> str:
        """Return an op as its program has it: of a pair, both."""
        forward = self.ahead.get(op, op)
        return f"{forward}+{self.behind[forward]}" if forward in self.behind else str(op)

    def sending(self, before: Op) -> list[Reason]:
        """Return the reason that the messages of an op are to what comes behind it on the compute stream, if
        any: with blocking links they keep the stream busy, of a pair one after the other, the last by its backward."""
        halves = (before, self.behind.get(before))
        senders = [half for half in halves if half in self.sends]
        taken = len(senders) * self.trace.profile.sending_ns
        return [Reason("sending", senders[-1], self.end[before] + taken, taken)] if taken else []

    def of_start(self, op: Op) -> list[Reason]:
        """Return all reasons for the start of `op`, the last (binding) one first; of a pair, those of
        its forward."""
        op = self.ahead.get(op, op)
        return _sorted([*self._start(op), *(self._grant(op) if self.asks[op] else ())])

    def _start(self, op: Op) -> Iterator[Reason]:
        before = self.before.get(op)
        if before is not None:
            yield Reason("stream" if op.kind in COMPUTE else "engine", before, self.end[before])
            yield from self.sending(before)
        for need in self.needs[op]:
            time = self.arrival.get((need, op), self.end[need])
            lag = time - self.end[need]
            cause = "communication" if lag else "neighbour"
            if self.device[need] == self.device[op]:
                cause = "reload" if need.kind is R else "input"
            yield Reason(cause, need, time, lag)
        for served in self.link_before.get(op, ()):
            if served != before:
                yield Reason("link", served, self.end[served])

    def _grant(self, op: Op) -> Iterator[Reason]:
        anchor = self.anchor.get(op)
        if anchor is not None:
            yield Reason("anchor", anchor, self.start[anchor])
        if op in self.freed_by:
            yield Reason("memory", self.freed_by[op], self.end[self.freed_by[op]])


def _sorted(reasons: Iterator[Reason] | list[Reason]) -> list[Reason]:
    """Sort reasons, the last first; among equal ones those that explain most first."""
    rank = (
        "stream",
        "sending",
        "reload",
        "communication",
        "neighbour",
        "input",
        "memory",
        "engine",
        "link",
    )
    return sorted(
        [*reasons, Reason("start", None, 0)],
        key=lambda reason: (
            -reason.until_ns,
            rank.index(reason.cause) if reason.cause in rank else len(rank),
        ),
    )


def last_reason(reasons: Reasons, op: Op) -> Reason:
    """Return the last reason of `op`; followed from op to op (`by`) it leads back to an op that
    waited for nothing.

    Of reasons that end at one instant it is one on the shortest path to an earlier time, so that
    ops of zero duration that start together never form a cycle.
    """
    return _chain(reasons, op)[0][1]


def critical_path(trace: Trace) -> list[Step]:
    """Return the critical path: the steps from the last end back to time 0.

    Each step starts when the next one in the list (the previous one in time) ends, plus its
    message: ``start_ns - lag_ns`` of a step is ``until_ns`` of the next, and 0 for the last. So the
    lengths and lags add up to the makespan.
    """
    reasons = Reasons(trace)
    op = max(reasons.end, key=lambda op: (reasons.end[op], reasons.start[op]))
    steps: list[Step] = []
    time = reasons.end[op]
    while True:
        for one, reason in _chain(reasons, op):
            start, lag, cause = reasons.start[one], reason.lag_ns, reason.cause
            if reason.until_ns < start:
                lag, cause = lag + start - reason.until_ns, "slack"
            steps.append(Step(one, reasons.device[one], start, time, cause, reason.by, lag))
            time = start - lag
        if reason.by is None:
            return steps
        op = reason.by


def _chain(reasons: Reasons, op: Op) -> list[tuple[Op, Reason]]:
    """Return the shortest chain of reasons from the start of `op` back to something that began earlier:
    of one link, unless ops of no length or a reload's anchor start at that very instant too."""
    start = reasons.start[op]
    chains: dict[Op, list[tuple[Op, Reason]]] = {op: []}
    queue = deque([op])
    while queue:
        current = queue.popleft()
        now = [reason for reason in reasons.of_start(current) if reason.until_ns == start]
        for reason in now:
            chain = [*chains[current], (current, reason)]
            if reason.by is None or reasons.start[reason.by] < start:
                return chain
            if reason.by not in chains:
                chains[reason.by] = chain
                queue.append(reason.by)
    # no reason: the trace is a plan, not a replay
    earlier = (reason for reason in reasons.of_start(op) if reason.until_ns < start)
    return [(op, next(earlier))]
