"""Whether given times are valid: every rule of time and memory, applied to a finished trace."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise

from ..ops import COMPUTE, O, Op, R
from ..profile import CostProfile
from ..schedule import Schedule
from ..trace import Trace
from ..units import format_sizes, format_time, format_times
from .costs import Costs
from .ops import completeness, level_problems, link_problems, split_problems
from .stepped import anchors, engines, link_of, static


def check_times(trace: Trace, asap: bool = False) -> list[str]:
    """Return the problems of a trace, one sentence each with op, device and time; empty if it is valid.

    Checked: durations, dependencies with their messages, program order on streams and engines, one
    op at a time on each of them and on each host link, link orders, grants, the memory limit (unless
    the trace says that it does not fit), the pinned memory of the host.

    Args:
        asap: report as well ops that could have started or been granted memory earlier, and links that
            do not serve first come, first served. Replays never do either; plans may.
    """
    schedule, profile = trace.schedule, trace.profile
    if (profile.devices, profile.placement) != (schedule.shape.devices, schedule.shape.placement):
        return ["the profile of the trace has other devices, chunks or placement than its schedule"]
    problems = completeness(schedule) + level_problems(schedule, profile)
    problems += split_problems(schedule, profile)
    if profile.offload is None:
        if any(op.kind in (O, R) for program in schedule.flat_programs for op in program):
            problems.append(
                f"the trace offloads, but the profile {profile.name} has no offload section"
            )
    else:
        problems += link_problems(schedule, profile)
    if problems:
        return problems
    facts = _Facts(trace)
    for rule in (_durations, _halves, _inputs, _streams, _engines, _links, _grants, _memory):
        problems += rule(facts)
    problems += host_problems(schedule, profile, facts.start, facts.end)
    if asap:
        problems += [*_early_compute(facts), *_early_reloads(facts), *_early_transfers(facts)]
    return problems


class _Facts:
    """The times of a trace by op, and tables that several rules use."""

    def __init__(self, trace: Trace) -> None:
        self.schedule, self.profile = trace.schedule, trace.profile
        self.programs = self.schedule.flat_programs
        self.costs = Costs(self.schedule, self.profile)
        flat = [op for program in self.programs for op in program]
        self.start: dict[Op, int] = dict(zip(flat, trace.start_ns.tolist(), strict=True))
        self.end: dict[Op, int] = dict(zip(flat, trace.end_ns.tolist(), strict=True))
        self.grant: dict[Op, int] = dict(zip(flat, trace.grant_ns.tolist(), strict=True))
        self.device = {op: at for at, program in enumerate(self.programs) for op in program}
        self.limits = trace.memory_limit if trace.fits else None
        self.arrival = _arrivals(self)
        self.senders = {sender for sender, _ in self.arrival}
        self.queues = [
            (at, q) for at, ops in enumerate(self.programs) for q in engines(self.profile, ops)
        ]
        self.comes = _comes(self)
        self.links: dict[str, list[Op]] = {}
        for at, queue in self.queues:
            for op in queue:
                self.links.setdefault(link_of(self.profile, at, op), []).append(op)
        for key, ops in self.links.items():
            ordered = self.schedule.link_order.get(key)
            self.links[key] = list(ordered) if ordered else sorted(ops, key=self.when)

    def when(self, op: Op) -> tuple[int, int, int]:
        """Return the sort key of transfers in sequence; one of zero duration precedes others that start
        with it."""
        return self.start[op], self.end[op], self.comes[op]

    def sending(self, op: Op) -> int:
        """Return how long the message of a compute op blocks its device after its end."""
        if self.profile.links != "blocking":
            return 0
        halves = (op, self.costs.behind.get(op))
        return self.profile.occupancy_ns * sum(half in self.senders for half in halves)

    def name(self, op: Op) -> str:
        return f"device {self.device[op]}: {op}"

    def inputs(self, op: Op) -> Iterator[tuple[Op, int]]:
        """Return the inputs of `op`, and when each is available."""
        for need in self.costs.needs(op):
            if need in self.device:
                yield need, self.arrival.get((need, op), self.end[need])


def _comes(facts: _Facts) -> dict[Op, int]:
    """Return when each transfer requests its link: it is the head of its queue and has its input and,
    an R, its grant."""
    comes = {}
    for _, queue in facts.queues:
        heads = 0
        for op in queue:
            granted = facts.grant[op] if op.kind is R else 0
            comes[op] = max([heads, granted, *(there for _, there in facts.inputs(op))])
            heads = facts.start[op]
    return comes


def _arrivals(facts: _Facts) -> dict[tuple[Op, Op], int]:
    """Return when the message from an op to one on another device arrives."""
    sent: dict[tuple[int, int], list[tuple[int, Op, Op]]] = {}
    for op, to in facts.device.items():
        for need in facts.costs.needs(op):
            if need in facts.device and facts.device[need] != to:
                pair = (facts.device[need], to)
                sent.setdefault(pair, []).append((facts.end[need], need, op))
    found = {}
    sending = {need for messages in sent.values() for _, need, _ in messages}
    for messages in sent.values():
        free = 0
        for ready, need, op in sorted(messages):
            leaves = max(ready, free) if facts.profile.serial_links else ready
            if facts.profile.links == "blocking" and facts.costs.ahead.get(need) in sending:
                leaves += facts.profile.occupancy_ns  # the F of its pair has sent first
            free = leaves + facts.profile.occupancy_ns
            found[need, op] = free + facts.profile.latency_ns
    return found


def _durations(facts: _Facts) -> Iterator[str]:
    for op, start in facts.start.items():
        wanted, took = facts.costs.duration_ns(op), facts.end[op] - start
        if start < 0:
            yield f"{facts.name(op)} starts at {format_time(start)}, before time 0"
        if took != wanted:
            measured, planned = format_times(took, wanted)
            yield (
                f"{facts.name(op)} at {format_time(start)} lasts {measured}, by the profile {planned}"
            )


def _halves(facts: _Facts) -> Iterator[str]:
    for back, forward in facts.costs.ahead.items():
        if facts.start[back] != facts.start[forward]:
            at, other = format_times(facts.start[back], facts.start[forward])
            yield f"{facts.name(back)} starts at {at}, and {forward}, one op with it, at {other}"


def _inputs(facts: _Facts) -> Iterator[str]:
    for op, start in facts.start.items():
        for need, there in facts.inputs(op):
            if start < facts.end[need]:
                at, until = format_times(start, facts.end[need])
                yield f"{facts.name(op)} starts at {at}, before {need} ends at {until}"
            elif start < there:
                at, until = format_times(start, there)
                yield (
                    f"{facts.name(op)} starts at {at}, before the message of {need} arrives at"
                    f" {until}"
                )


def _streams(facts: _Facts) -> Iterator[str]:
    for program in facts.programs:
        yield from _one_at_a_time(
            facts, facts.costs.streamed(program), "the program", "the compute stream"
        )


def _engines(facts: _Facts) -> Iterator[str]:
    for _, queue in facts.queues:
        yield from _one_at_a_time(facts, queue, "the program", "the copy engine")


def _links(facts: _Facts) -> Iterator[str]:
    for key, ops in facts.links.items():
        yield from _one_at_a_time(facts, ops, f"link order {key}", f"host link {key}")


def _one_at_a_time(facts: _Facts, ops: list[Op], order: str, engine: str) -> Iterator[str]:
    """Check that `ops` run in order, each after the end of the previous one."""
    for before, op in pairwise(ops):
        start = facts.start[op]
        if start < facts.start[before]:
            yield (
                f"{facts.name(op)} starts at {format_time(start)}, before {before}, which stands"
                f" before it in {order}"
            )
        elif start < facts.end[before] + facts.sending(before):
            at, until = format_times(start, facts.end[before] + facts.sending(before))
            yield f"{facts.name(op)} starts at {at}, while {before} is on {engine} until {until}"


def _grants(facts: _Facts) -> Iterator[str]:
    for program in facts.programs:
        anchor = anchors(program)
        for op in program:
            grant, start = facts.grant[op], facts.start[op]
            granted, starts = format_times(grant, start)
            if op.kind is not R:
                if grant != start:
                    yield f"{facts.name(op)} is granted at {granted}, but starts at {starts}"
                continue
            if start < grant:
                yield f"{facts.name(op)} starts at {starts}, before it is granted at {granted}"
            before = anchor[op]
            if grant < (0 if before is None else facts.start[before]):
                yield (
                    f"{facts.name(op)} is granted at {granted}, before {before or 'time 0'}, which"
                    " precedes it, starts"
                )
        for earlier, op in pairwise([op for op in program if facts.costs.asks(op)]):
            if facts.grant[op] < facts.grant[earlier]:
                granted, first = format_times(facts.grant[op], facts.grant[earlier])
                yield (
                    f"{facts.name(op)} is granted at {granted}, before {earlier} at {first}, which"
                    " stands before it in the program"
                )


def _memory(facts: _Facts) -> Iterator[str]:
    """Check the bytes held at each instant, releases before allocations."""
    if facts.limits is None:
        return
    for device, program in enumerate(facts.programs):
        limit, level = facts.limits[device], static(facts.profile, device)
        if level > limit:
            reached, most = format_sizes(level, limit)
            yield f"device {device}: static memory of {reached} is above the limit of {most}"
        steps = [(facts.end[op], 0, -facts.costs.gives(op), op) for op in program]
        steps += [(facts.grant[op], 1, facts.costs.takes(op), op) for op in program]
        for time, _, change, op in sorted(steps):
            level += change
            if change > 0 and level > limit:
                reached, most = format_sizes(level, limit)
                yield (
                    f"{facts.name(op)} raises memory to {reached} at {format_time(time)}, above the"
                    f" limit of {most}"
                )


def host_problems(
    schedule: Schedule, profile: CostProfile, start: Mapping[Op, int], end: Mapping[Op, int]
) -> list[str]:
    """Return where a node pins more host memory than it may: from the start of an O to the end of its
    R; in front of drives, while either copies, or until what an O has copied is written behind it."""
    offload = profile.offload
    if offload is None:
        return []
    staged = offload.nvme is not None
    limit = offload.nvme.staging_bytes if offload.nvme is not None else offload.host_limit_bytes
    if limit is None:
        return []
    behind = offload.nvme if offload.nvme is not None and offload.nvme.write_behind else None
    size, costs, problems = profile.devices_per_node, Costs(schedule, profile), []
    for node in range(0, profile.devices, size):
        ops = [op for program in schedule.flat_programs[node : node + size] for op in program]
        bytes_of = {op: costs.moved(op) for op in ops}
        copies = [op for op in ops if op.kind in (O, R)]
        steps = [(end[op], 0, -bytes_of[op], op) for op in copies if staged or op.kind is R]
        steps += [(start[op], 1, bytes_of[op], op) for op in copies if staged or op.kind is O]
        if behind is not None:
            steps = _behind(copies, bytes_of, start, end, behind.write_bytes_per_s)
        level = 0
        for time, _, change, op in sorted(steps):
            level += change
            if change > 0 and level > limit:
                device = profile.placement[op.stage]
                reached, most = format_sizes(level, limit)
                problems.append(
                    f"device {device}: {op} raises the pinned memory of node {node // size} to"
                    f" {reached} at {format_time(time)}, above the host limit of {most}"
                )
                break
    return problems


def _behind(
    copies: list[Op],
    bytes_of: Mapping[Op, int],
    start: Mapping[Op, int],
    end: Mapping[Op, int],
    rate: int,
) -> list[tuple[int, int, int, Op]]:
    """Return what changes in a node's staging buffer, whose drives write one copy after the other, first in,
    first out; what is asked back before it is written stays there until it is back."""
    reloads = {(op.stage, op.microbatch, op.slice): op for op in copies if op.kind is R}
    outs, free, steps = [op for op in copies if op.kind is O], 0, []
    for op in sorted(outs, key=lambda op: end[op]):
        back, size = reloads[op.stage, op.microbatch, op.slice], bytes_of[op]
        needed = (2 * size * 10**9 + rate) // (2 * rate)  # ns, a half rounded up
        begun = max(free, end[op])
        steps += [(start[op], 1, size, op), (end[back], 0, -size, back)]
        if begun + needed <= start[back]:
            steps += [(begun + needed, 0, -size, op), (start[back], 1, size, back)]
        free = max(free, min(begun + needed, start[back]))
    return steps


# -- as soon as possible ------------------------------------------------------------------------------


def _room(facts: _Facts, device: int) -> dict[Op, int]:
    """Return when each op of a device that allocates fits at last: those before it hold theirs, and
    only ends that release memory make room for it. Without a limit always at 0."""
    program = facts.programs[device]
    asking = [op for op in program if facts.costs.asks(op)]
    if facts.limits is None:
        return dict.fromkeys(asking, 0)
    ends = sorted((facts.end[op], facts.costs.gives(op)) for op in program)
    freed = list(accumulate(size for _, size in ends))
    wanted = static(facts.profile, device) - facts.limits[device]
    room = {}
    for op in asking:
        wanted += facts.costs.takes(op)
        at = bisect_left(freed, wanted)
        room[op] = 0 if wanted <= 0 or at == len(ends) else ends[at][0]
    return room


def _late(facts: _Facts, op: Op, does: str, time: int, could: int) -> Iterator[str]:
    if time > could:
        did, might = format_times(time, could)
        yield f"{facts.name(op)} {does} at {did}, but could have at {might}"


def _early_compute(facts: _Facts) -> Iterator[str]:
    for device, program in enumerate(facts.programs):
        room, free, granted = _room(facts, device), 0, 0
        for op in program:
            if op.kind in COMPUTE and op not in facts.costs.ahead:
                could = max([free, *(there for _, there in facts.inputs(op))])
                if facts.costs.asks(op):
                    could = max(could, granted, room[op])
                yield from _late(facts, op, "starts", facts.start[op], could)
                free = facts.end[op] + facts.sending(op)
            if facts.costs.asks(op):
                granted = facts.grant[op]


def _early_reloads(facts: _Facts) -> Iterator[str]:
    for device, program in enumerate(facts.programs):
        room, anchor, granted = _room(facts, device), anchors(program), 0
        for op in program:
            if op.kind is R:
                before = anchor[op]
                started = 0 if before is None else facts.start[before]
                could = max(granted, room[op], started)
                yield from _late(facts, op, "is granted", facts.grant[op], could)
            if facts.costs.asks(op):
                granted = facts.grant[op]


def _early_transfers(facts: _Facts) -> Iterator[str]:
    comes, free = facts.comes, {}
    for _, queue in facts.queues:
        for before, op in pairwise(queue):
            free[op] = facts.end[before]
    for key, ops in facts.links.items():
        link = 0
        for op in ops:
            could = max(comes[op], free.get(op, 0), link)
            yield from _late(facts, op, "starts", facts.start[op], could)
            link = facts.end[op]
        if key in facts.schedule.link_order:
            continue
        for first, second in pairwise(ops):
            keys = [(comes[op], facts.device[op], op.kind) for op in (first, second)]
            # two requests at the very instant of a start may have been made one after the other
            tie = keys[0][0] == keys[1][0] == facts.start[first]
            if keys[1] < keys[0] and not tie:
                later, sooner = format_times(comes[second], comes[first])
                yield (
                    f"{facts.name(second)} comes to host link {key} at {later}, before {first} at"
                    f" {sooner}, but is served after it"
                )
