"""A plain replay for the checker: instant by instant, written independently of the simulator.

It shares nothing with `optpipe_sim.sim`, so that the two check each other. At every instant with an event it
visits the devices on which something ended, started or arrived: ops that have ended, ops that can be granted
memory or start, and last the transfers that the links serve.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from ..ops import COMPUTE, O, Op, R
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import format_sizes
from .costs import Costs


@dataclass
class Times:
    """Start, end and grant (F, R) of each op that was reached, in ns; `stuck` has a clause per
    device on what the others wait for."""

    start_ns: dict[Op, int] = field(default_factory=dict)
    end_ns: dict[Op, int] = field(default_factory=dict)
    grant_ns: dict[Op, int] = field(default_factory=dict)
    stuck: tuple[str, ...] = ()
    last_ns: int = 0


def link_of(profile: CostProfile, device: int, op: Op) -> str:
    """Return the host link of a transfer, as link orders name it: ``0/O``, ``0/R`` or ``0/OR``."""
    assert profile.offload is not None
    grouped = [device for group in profile.offload.host_link_groups for device in group]
    if device in grouped:
        number = next(
            at for at, group in enumerate(profile.offload.host_link_groups) if device in group
        )
    else:
        lone = [other for other in range(profile.devices) if other not in grouped]
        number = len(profile.offload.host_link_groups) + lone.index(device)
    return f"{number}/{'OR' if profile.offload.host_link == 'single' else op.kind.name}"


def static(profile: CostProfile, device: int) -> int:
    """Return the bytes that a device holds all the time."""
    return sum(
        cost.static_bytes
        for cost, owner in zip(profile.stages, profile.placement, strict=True)
        if owner == device
    )


def engines(profile: CostProfile, program: tuple[Op, ...]) -> list[list[Op]]:
    """Return a device's transfers by copy engine, each in program order."""
    shared = profile.shares_copy_engine
    queues = [
        [op for op in program if op.kind in kinds]
        for kinds in ([(O, R)] if shared else [(O,), (R,)])
    ]
    return [queue for queue in queues if queue]


def anchors(program: tuple[Op, ...]) -> dict[Op, Op | None]:
    """Return the compute op that precedes each R in the program; None if there is none."""
    found: dict[Op, Op | None] = {}
    before = None
    for op in program:
        if op.kind in COMPUTE:
            before = op
        elif op.kind is R:
            found[op] = before
    return found


def step_through(schedule: Schedule, profile: CostProfile, limits: tuple[int, ...] | None) -> Times:
    """Replay a complete schedule; `limits` are bytes per device that grants keep, or None."""
    world = _World(schedule, profile, limits)
    while True:
        world.settle()
        if not world.moments:
            break
        world.now = heappop(world.moments)
    times = world.times
    times.last_ns = world.now
    if len(times.end_ns) < len(world.device):
        times.stuck = tuple(world.reasons())
    return times


class _World:
    """The running and waiting ops and the memory held at the instant `now`."""

    def __init__(
        self, schedule: Schedule, profile: CostProfile, limits: tuple[int, ...] | None
    ) -> None:
        self.profile, self.limits, self.times, self.now = profile, limits, Times(), 0
        self.costs = Costs(schedule, profile)
        programs = schedule.flat_programs
        self.device = {op: at for at, program in enumerate(programs) for op in program}
        self.needs = {
            op: [need for need in self.costs.needs(op) if need in self.device] for op in self.device
        }
        self.sent_to: dict[Op, int] = {}
        for op, needs in self.needs.items():
            for need in needs:
                if self.device[need] != self.device[op]:
                    self.sent_to[need] = self.device[op]
        # each list is processed from its end
        self.compute = [self.costs.streamed(ops)[::-1] for ops in programs]
        self.grants = [[op for op in reversed(ops) if self.costs.asks(op)] for ops in programs]
        self.queues = [
            (at, queue[::-1]) for at, ops in enumerate(programs) for queue in engines(profile, ops)
        ]
        self.anchor = {op: found for ops in programs for op, found in anchors(ops).items()}
        self.link = {op: link_of(profile, at, op) for at, queue in self.queues for op in queue}
        self.order = {key: list(reversed(ops)) for key, ops in schedule.link_order.items()}
        self.line: dict[str, list[tuple[int, int, int, Op]]] = {
            key: [] for key in sorted(set(self.link.values()))
        }
        self.engine = {op: at for at, (_, queue) in enumerate(self.queues) for op in queue}
        self.at_work: list[Op | None] = [None] * len(programs)
        self.copying: list[Op | None] = [None] * len(self.queues)
        self.on_link: dict[str, Op | None] = dict.fromkeys(self.line)
        self.held = [static(profile, at) for at in range(len(programs))]
        self.arrival: dict[Op, int] = {}
        self.pair_free: dict[tuple[int, int], int] = {}
        # (end, device) of messages that block their device
        self.sending: list[tuple[int, int]] = []
        self.moments: list[int] = []  # instants to look at, a heap
        self.ending: dict[int, list[Op]] = {}
        # devices whose next ops may be able to go on: now, and when messages arrive
        self.touched = set(range(len(programs)))
        self.arriving: dict[int, set[int]] = {}

    def settle(self) -> None:
        """Process the instant `now`: ends; grants and starts until no more are possible; links."""
        while self.end_now() | self.grant_and_compute() or self.serve_links():
            pass

    def begin(self, op: Op) -> None:
        self.times.start_ns[op] = self.now
        self.touched.add(self.device[op])
        end = self.now + self.costs.duration_ns(op)
        if end not in self.ending:
            self.ending[end] = []
            heappush(self.moments, end)
        self.ending[end].append(op)

    def end_now(self) -> bool:
        for time, at in self.sending:
            if time == self.now:
                self.at_work[at] = None
                self.touched.add(at)
                self.sending.remove((time, at))
                return True
        ended = self.ending.pop(self.now, [])
        for op in ended:
            at = self.device[op]
            self.touched.add(at)
            self.times.end_ns[op] = self.now
            self.held[at] -= self.costs.gives(op)
            if op.kind in COMPUTE:
                self.end_compute(op, at)
                continue
            self.copying[self.engine[op]] = None
            self.on_link[self.link[op]] = None
        return bool(ended)

    def end_compute(self, op: Op, at: int) -> None:
        """Send what a compute op, or the two halves of a pair, have to send, one after the other."""
        halves = [op, self.costs.behind[op]] if op in self.costs.behind else [op]
        for half in halves[1:]:
            self.times.end_ns[half] = self.now
            self.held[at] -= self.costs.gives(half)
        until = self.now
        for half in halves:
            if half in self.sent_to:
                self.send(half, (at, self.sent_to[half]), until)
                until += self.profile.occupancy_ns
        if self.profile.links == "blocking" and any(half in self.sent_to for half in halves):
            self.sending.append((until, at))
            heappush(self.moments, until)
        else:
            self.at_work[at] = None

    def send(self, op: Op, pair: tuple[int, int], after: int) -> None:
        leaves = after if self.profile.links == "blocking" else self.now
        if self.profile.serial_links:
            leaves = max(leaves, self.pair_free.get(pair, 0))
            self.pair_free[pair] = leaves + self.profile.occupancy_ns
        self.arrival[op] = leaves + self.profile.occupancy_ns + self.profile.latency_ns
        self.arriving.setdefault(self.arrival[op], set()).add(pair[1])
        heappush(self.moments, self.arrival[op])

    def arrived(self, op: Op, at: int) -> bool:
        """Whether the result of `op` is available on device `at`."""
        if op not in self.times.end_ns:
            return False
        return self.device[op] == at or self.arrival[op] <= self.now

    def grant_and_compute(self) -> bool:
        done = False
        visited = sorted(self.touched | self.arriving.pop(self.now, set()))
        self.touched.clear()
        for at in visited:
            compute = self.compute[at]
            while self.grants[at] and self.may_grant(self.grants[at][-1], at):
                op = self.grants[at].pop()
                self.times.grant_ns[op] = self.now
                self.held[at] += self.costs.takes(op)
                done = True
                if op.kind in COMPUTE:
                    self.start_compute(at)
            if compute and not self.costs.asks(compute[-1]) and self.may_compute(compute[-1], at):
                self.start_compute(at)
                done = True
        return done

    def may_compute(self, op: Op, at: int) -> bool:
        return (
            self.at_work[at] is None
            and self.compute[at][-1] == op
            and all(self.arrived(need, at) for need in self.needs[op])
        )

    def start_compute(self, at: int) -> None:
        op = self.compute[at].pop()
        self.at_work[at] = op
        self.begin(op)
        if op in self.costs.behind:
            self.times.start_ns[self.costs.behind[op]] = self.now

    def may_grant(self, op: Op, at: int) -> bool:
        """Whether the next op of the program that allocates can be granted its memory now."""
        if op.kind in COMPUTE:
            asks = bool(self.compute[at]) and self.may_compute(op, at)
        else:
            anchor = self.anchor[op]
            asks = anchor is None or anchor in self.times.start_ns
        fits = self.limits is None or self.held[at] + self.costs.takes(op) <= self.limits[at]
        return asks and fits

    def serve_links(self) -> bool:
        """Ready transfers join the queue of their link; each free link serves the first one."""
        for at, queue in self.queues:
            if queue and self.comes(queue[-1]):
                op = queue[-1]
                joins = (self.now, at, op.kind.value, op)
                if all(op != waiting[-1] for waiting in self.line[self.link[op]]):
                    self.line[self.link[op]].append(joins)
        started = []
        for key, line in self.line.items():
            entry: tuple[int, int, int, Op] | None
            if key in self.order:
                entry = next((one for one in line if one[-1] == self.order[key][-1]), None)
            else:
                entry = min(line, default=None)
            if (
                entry is not None
                and self.on_link[key] is None
                and self.copying[self.engine[entry[-1]]] is None
            ):
                line.remove(entry)
                started.append(entry[-1])
        for op in started:
            if self.link[op] in self.order:
                self.order[self.link[op]].pop()
            self.on_link[self.link[op]] = self.copying[self.engine[op]] = op
            self.queues[self.engine[op]][1].pop()
            self.begin(op)
        return bool(started)

    def comes(self, op: Op) -> bool:
        return all(need in self.times.end_ns for need in self.needs[op]) and (
            op.kind is O or op in self.times.grant_ns
        )

    # -- where it stopped ------------------------------------------------------------------------

    def reasons(self) -> list[str]:
        """For each blocked device, what its next compute op or transfer waits for."""
        found = []
        for at, compute in enumerate(self.compute):
            if compute:
                found.append(f"device {at}: {self.reason(compute[-1], at)}")
        for at, queue in self.queues:
            if queue:
                found.append(f"device {at}: {self.reason(queue[-1], at)}")
        # lack of memory is the root cause; the others wait behind it
        return sorted(found, key=lambda reason: not reason.endswith("are held"))

    def reason(self, op: Op, at: int) -> str:
        if op.kind is not R or op in self.times.grant_ns:
            for need in self.needs[op]:
                if need not in self.times.end_ns:
                    return f"{op} waits for {need}"
        if self.costs.asks(op) and op not in self.times.grant_ns:
            head = self.grants[at][-1]
            if head != op and not (head.kind in COMPUTE and op.kind in COMPUTE):
                return f"{op} waits for {head} before it in the program to be granted"
            anchor = self.anchor.get(op)
            if anchor is not None and anchor not in self.times.start_ns:
                return f"{op} waits for {anchor} before it in the program to start"
            limit = self.limits[at] if self.limits is not None else 0
            needs, held, most = format_sizes(self.costs.takes(op), self.held[at], limit)
            return f"{op} needs {needs} where {held} of {most} are held"
        order = self.order.get(self.link.get(op, ""))
        if order:
            return f"{op} waits for {order[-1]} before it in the link order"
        return f"{op} waits for its turn"
