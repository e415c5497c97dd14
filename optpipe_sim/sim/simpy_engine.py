"""The discrete-event simulator: SimPy processes for streams, memory, copy engines and links.

Each device has a process for the compute stream and one for each queue of transfers; `_Memory`
grants memory in program order; `_Link` serves the transfers of its devices. Every op runs
as early as dependencies, engines and memory allow. At one instant ends come first, then grants
and compute starts, then links are served: SimPy pops equal times by priority, then by age, and
links are served at the lowest priority.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import simpy

from ..errors import Deadlock
from ..op_costs import edges, op_costs
from ..ops import COMPUTE, O, R
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import format_size, format_time
from .host_links import link_keys

_LINKS_LAST = 2  # SimPy's own events have priority 0 and 1
_Process = Generator[simpy.Event, Any, None]


class _Memory:
    """The memory of one device: grants allocations in program order, each as soon as it fits."""

    def __init__(self, run: _Run, queue: list[int], level: int, limit: int | None) -> None:
        self.run, self.queue, self.level, self.limit = run, queue, level, limit
        self.head = 0
        self.asking: dict[int, simpy.Event] = {}

    def ask(self, row: int, event: simpy.Event) -> simpy.Event:
        """Trigger `event` at the grant of `row`."""
        self.asking[row] = event
        self.advance()
        return event

    def release(self, size: int) -> None:
        if size:
            self.level -= size
            if self.limit is not None:
                self.advance()

    def advance(self) -> None:
        """Grant memory in order, as far as it suffices. A compute op requests memory when it could
        start, an R when its anchor starts."""
        run, queue = self.run, self.queue
        while self.head < len(queue):
            row = queue[self.head]
            if row not in self.asking:
                return
            size = run.taken[row]
            if self.limit is not None and self.level + size > self.limit:
                return
            self.level += size
            self.head += 1
            run.grant[row] = run.now
            self.asking.pop(row).succeed()


class _Link:
    """A host link: one transfer at a time, first come first served or in a given order."""

    def __init__(self, run: _Run, order: Sequence[int] | None) -> None:
        self.run = run
        self.order = None if order is None else list(reversed(order))
        self.line: dict[int, tuple[tuple[int, int, int], simpy.Event]] = {}
        self.busy = False

    def join(self, row: int) -> simpy.Event:
        """Join the queue; the event is triggered at the start of the transfer."""
        run = self.run
        event = run.env.event()
        self.line[row] = ((run.now, run.device[row], run.kind[row]), event)
        run.serve_links(self)
        return event

    def serve(self) -> None:
        if self.busy or not self.line:
            return
        if self.order is None:
            row = min(self.line, key=lambda waiting: self.line[waiting][0])
        else:
            row = self.order[-1]
        if row not in self.line or not self.run.engine_free[self.run.queue_of[row]]:
            return
        if self.order is not None:
            self.order.pop()
        _, event = self.line.pop(row)
        self.busy = True
        self.run.transfer(row, self)
        event.succeed()


class _Run:
    """One simulation: the state that its processes share."""

    def __init__(
        self, schedule: Schedule, profile: CostProfile, limits: tuple[int, ...] | None
    ) -> None:
        self.env = simpy.Environment()
        self.schedule, self.profile, self.limits = schedule, profile, limits
        costs = op_costs(schedule, profile)
        self.kind: list[int] = schedule.table[:, 0].tolist()
        self.device: list[int] = schedule.devices.tolist()
        self.durations: list[int] = costs.duration_ns.tolist()
        self.taken: list[int] = costs.allocated_bytes.tolist()
        self.given: list[int] = costs.released_bytes.tolist()
        self.asks: list[bool] = costs.asks.tolist()
        self.second: list[bool] = schedule.second.tolist()  # the backward of a pair
        size = len(schedule)
        self.start, self.end, self.grant = [-1] * size, [-1] * size, [-1] * size
        self.needs: list[list[int]] = [[] for _ in range(size)]
        self.sends_to = [-1] * size  # the device that waits for this op's message
        for waiting, needed in zip(
            *(edge.tolist() for edge in edges(schedule, profile)), strict=True
        ):
            self.needs[waiting].append(needed)
            if self.device[waiting] != self.device[needed]:
                self.sends_to[needed] = self.device[waiting]
        self.ready = [-1] * size  # when the message of an op that has ended arrives
        self.pair_free: dict[tuple[int, int], int] = {}
        self.waiters: dict[int, list[simpy.Event]] = {}
        self.served_links: dict[_Link, None] = {}
        self._build(
            list(zip(schedule.offsets.tolist(), schedule.offsets[1:].tolist(), strict=False))
        )

    def _build(self, bounds: list[tuple[int, int]]) -> None:
        """Make the processes: compute streams and transfer queues."""
        env = self.env
        self.memory: list[_Memory] = []
        self.queues: list[list[int]] = []
        self.queue_of: dict[int, int] = {}
        self.link_of: dict[int, _Link] = {}
        self.compute: list[list[int]] = []
        # the R's that a compute op (or, at -1 - device, the start) anchors
        self.anchored: dict[int, list[int]] = {}
        shared = self.profile.shares_copy_engine
        order = {
            key: [self.schedule.row(op) for op in ops]
            for key, ops in self.schedule.link_order.items()
        }
        links = {key: _Link(self, order.get(key)) for key in sorted(set(link_keys(self.profile)))}
        for device, (first, last) in enumerate(bounds):
            anchor = -1 - device
            for row in range(first, last):
                if self.kind[row] in COMPUTE and not self.second[row]:
                    anchor = row
                elif self.kind[row] == R:
                    self.anchored.setdefault(anchor, []).append(row)
            rows = range(first, last)
            self.compute.append(
                [row for row in rows if self.kind[row] in COMPUTE and not self.second[row]]
            )
            self.memory.append(
                _Memory(
                    self,
                    [row for row in rows if self.asks[row]],
                    self.profile.static_bytes[device],
                    self.limits[device] if self.limits else None,
                )
            )
            for kinds in ((O, R),) if shared else ((O,), (R,)):
                queue = [row for row in rows if self.kind[row] in kinds]
                for row in queue:
                    key = link_keys(self.profile)[2 * device + (self.kind[row] == R)]
                    self.queue_of[row], self.link_of[row] = len(self.queues), links[key]
                self.queues.append(queue)
        self.engine_free = [True] * len(self.queues)
        self.started = [0] * len(self.queues)  # transfers, per queue
        self.reload_grant = {row: env.event() for rows in self.anchored.values() for row in rows}
        for device, rows_of in enumerate(self.compute):
            for row in self.anchored.get(-1 - device, ()):
                self.anchor_started(row)
            if rows_of:
                env.process(self.stream(device, rows_of))
        for queue in self.queues:
            if queue:
                env.process(self.transfers(queue))

    @property
    def now(self) -> int:
        return self.env.now  # type: ignore[return-value]

    # -- processes --------------------------------------------------------------------------------

    def stream(self, device: int, rows: list[int]) -> _Process:
        """The compute stream of a device: its ops one after the other."""
        env, memory = self.env, self.memory[device]
        for row in rows:
            for needed in self.needs[row]:
                if self.end[needed] < 0:
                    yield self.ended(needed)
                if self.device[needed] != device and self.ready[needed] > self.now:
                    yield env.timeout(self.ready[needed] - self.now)
            if self.asks[row]:
                yield memory.ask(row, env.event())
            else:
                self.grant[row] = self.now
            as_one = [row, row + 1] if self.second[row + 1 : row + 2] == [True] else [row]
            for part in as_one:
                self.start[part] = self.grant[part] = self.now
            for reload in self.anchored.get(row, ()):
                self.anchor_started(reload)
            yield env.timeout(self.durations[row])
            sending = 0  # the messages of a pair leave one after the other
            for part in as_one:
                self.finish(part, sending)
                sending += self.profile.sending_ns * (self.sends_to[part] >= 0)
            if sending:
                yield env.timeout(sending)

    def transfers(self, queue: list[int]) -> _Process:
        """A queue of transfers: the head requests its link when it may start, and stays the head until it
        starts."""
        for row in queue:
            for needed in self.needs[row]:
                if self.end[needed] < 0:
                    yield self.ended(needed)
            if self.kind[row] == R and self.grant[row] < 0:
                yield self.reload_grant[row]
            yield self.link_of[row].join(row)

    # -- what processes call ---------------------------------------------------------------------------

    def anchor_started(self, row: int) -> None:
        """The anchor of an R has started: its R's may be granted from now on."""
        self.memory[self.device[row]].ask(row, self.reload_grant[row])

    def transfer(self, row: int, link: _Link) -> None:
        """Start a transfer on its link; its end frees link and engine."""
        queue = self.queue_of[row]
        self.start[row] = self.now
        if self.kind[row] == O:
            self.grant[row] = self.now
        self.engine_free[queue] = False
        self.started[queue] += 1

        def over(_: simpy.Event) -> None:
            link.busy = False
            self.engine_free[queue] = True
            self.finish(row)
            # the head of its queue, on another link, may have waited for the freed engine only
            self.serve_links(link)
            if self.started[queue] < len(self.queues[queue]):
                self.serve_links(self.link_of[self.queues[queue][self.started[queue]]])

        timeout = self.env.timeout(self.durations[row])
        assert timeout.callbacks is not None
        timeout.callbacks.append(over)

    def ended(self, row: int) -> simpy.Event:
        """Return an event that is triggered at the end of `row`."""
        event = self.env.event()
        self.waiters.setdefault(row, []).append(event)
        return event

    def finish(self, row: int, sending: int = 0) -> None:
        """End an op: send its message, after another one for `sending` ns, release its memory, wake the
        processes that wait for it."""
        now = self.end[row] = self.now
        target = self.sends_to[row]
        if target >= 0:
            depart = now
            if self.profile.serial_links:
                pair = (self.device[row], target)
                depart = max(now, self.pair_free.get(pair, 0))
                self.pair_free[pair] = depart + self.profile.occupancy_ns
            self.ready[row] = depart + sending + self.profile.t_comm_ns
        self.memory[self.device[row]].release(self.given[row])
        for event in self.waiters.pop(row, ()):
            event.succeed()

    def serve_links(self, link: _Link) -> None:
        """Serve a link at the end of this instant, together with all others that changed."""
        if not self.served_links:
            event = self.env.event()
            event._ok, event._value = True, None
            assert event.callbacks is not None
            event.callbacks.append(self._serve)
            self.env.schedule(event, _LINKS_LAST)  # type: ignore[arg-type]
        self.served_links[link] = None

    def _serve(self, _: simpy.Event) -> None:
        links, self.served_links = self.served_links, {}
        for link in links:
            link.serve()


def run_engine(
    schedule: Schedule, profile: CostProfile, limits: tuple[int, ...] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Simulate a valid schedule; returns starts, ends and grants (ns, by the rows of ``schedule.table``).

    Args:
        schedule: complete, as `validate` finds it.
        profile: with the schedule's chunks and placement.
        limits: bytes per device that grants must keep, or None.

    Raises:
        Deadlock: names the ops that can never start, where, and what they wait for.
    """
    run = _Run(schedule, profile, limits)
    run.env.run()
    if min(run.end) < 0:
        raise Deadlock(_explain_deadlock(run))
    return tuple(np.array(times, np.int64) for times in (run.start, run.end, run.grant))  # type: ignore[return-value]


def _explain_deadlock(run: _Run) -> str:
    """Name the ops that wait and what they wait for, device by device, in one line."""
    reasons = []
    for device, rows in enumerate(run.compute):
        row = next((row for row in rows if run.start[row] < 0), None)
        if row is not None:
            reasons.append(f"device {device}: {_waits(run, row)}")
    for queue in run.queues:
        row = next((row for row in queue if run.start[row] < 0), None)
        if row is not None:
            reasons.append(f"device {run.device[row]}: {_waits(run, row)}")
    # first the ops that wait for memory or in a cycle within the device: they cause the others to wait
    reasons.sort(key=lambda reason: "memory" not in reason)
    more = f"; and {len(reasons) - 4} more" if len(reasons) > 4 else ""
    done = sum(end >= 0 for end in run.end)
    return (
        f"deadlock at {format_time(run.now)} with {done} of {len(run.end)} ops done: "
        + "; ".join(reasons[:4])
        + more
    )


def _waits(run: _Run, row: int) -> str:
    """Say why an op that has not started cannot."""
    op, memory = run.schedule.op(row), run.memory[run.device[row]]
    asks = run.asks[row] and run.grant[row] < 0
    if not (asks and run.kind[row] == R):
        for needed in run.needs[row]:
            if run.end[needed] < 0:
                return f"{op} waits for {run.schedule.op(needed)}"
    if asks:
        head = memory.queue[memory.head]
        if head != row:
            return f"{op} waits for the grant of {run.schedule.op(head)} before it: {_waits(run, head)}"
        if row not in memory.asking:
            return f"{op} waits for the compute op before it in the program to start"
        return (
            f"{op} waits for memory: needs {format_size(run.taken[row])},"
            f" {format_size(memory.level)} of {format_size(memory.limit or 0)} are held"
        )
    if run.kind[row] in COMPUTE:
        return f"{op} waits for its turn"
    order = run.link_of[row].order
    if order and order[-1] != row:
        return f"{op} waits for its turn on the link after {run.schedule.op(order[-1])}"
    return f"{op} waits for its turn on the copy engine"
