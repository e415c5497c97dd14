"""The inputs and the state of the compiled replay in `events`. Times are int64 ns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..codes import O, R
from ..compiled import compiled, copy, packed

COMPUTE, GRANTS, OUT, BACK = range(4)  # queues of a device: rows in program order


@packed
class Ops(NamedTuple):
    """The ops to be replayed; arrays by row of the schedule's table unless said otherwise."""

    kind: np.ndarray
    device: np.ndarray
    offsets: np.ndarray  # (devices + 1,) where the program of each device begins
    duration_ns: np.ndarray
    taken: np.ndarray  # bytes allocated at the grant
    given: np.ndarray  # bytes released at the end
    asks: np.ndarray  # whether it is granted memory in program order
    second: (
        np.ndarray
    )  # whether it is the backward of a pair, which starts and ends with the row before
    need_first: np.ndarray  # row r waits for the rows needs[need_first[r]:need_first[r + 1]]
    needs: np.ndarray


@packed
class World(NamedTuple):
    """The devices and links of a replay."""

    static: np.ndarray  # (devices,) bytes
    limits: np.ndarray  # (devices,) bytes, below 0: none
    shared: bool  # one copy engine for O and R
    link_of: np.ndarray  # (devices, 2) the host link of a device's O's and R's
    link_first: (
        np.ndarray
    )  # (links + 1,) the given order of link l is link_rows[link_first[l]:...],
    link_rows: np.ndarray  # empty where it serves first come, first served
    serial: bool  # a directed pair of devices carries one message at a time
    latency: int  # ns, of a message
    occupancy: int
    sending: int  # how long a message keeps the compute stream of its sender busy


@packed
class State(NamedTuple):
    """The state of a replay, and its results."""

    start: np.ndarray  # per row, -1: not yet
    end: np.ndarray
    grant: np.ndarray
    granted_as: np.ndarray  # its position in the sequence of all grants and ends
    ended_as: np.ndarray
    ready: np.ndarray  # when the message of a row arrives
    target: np.ndarray  # the device that its message goes to, or -1
    anchor: np.ndarray  # the compute op before an R, or -1
    queue: np.ndarray  # (4, rows)
    head: np.ndarray  # (4, devices) the position of each queue
    stop: np.ndarray  # (4, devices)
    level: np.ndarray  # (devices,) bytes held
    computing: np.ndarray  # (devices,)
    copying: np.ndarray  # (2, devices)
    came: np.ndarray  # (2, devices) when the head of a copy queue joined its link, -1: not yet
    pair_free: np.ndarray  # (devices ** 2,) when a serial link is free
    link_busy: np.ndarray  # (links,)
    link_head: np.ndarray  # (links,) the next transfer in its given order
    dirty: (
        np.ndarray
    )  # (devices,) whether phase 2 has to visit a device, and the devices to visit in order
    dirty_order: np.ndarray
    link_dirty: np.ndarray  # (links,) the same for links, in phase 3
    link_order: np.ndarray
    member_first: np.ndarray  # (links + 1,) who uses a link: 2 device + (0 for O, 1 for R)
    members: np.ndarray
    heap_time: np.ndarray  # events: an op ends (row), a message arrives (rows + row), a compute
    heap_row: np.ndarray  # stream has sent its message (2 rows + row)
    counts: np.ndarray  # HAPPENED, DIRTY, LINKS_DIRTY, WAITING


HAPPENED, DIRTY, LINKS_DIRTY, WAITING = range(4)


@compiled
def begin(ops, world):
    """The state at time 0."""
    size, devices, links = len(ops.kind), len(ops.offsets) - 1, len(world.link_first) - 1
    queue = np.empty((4, size), np.int64)
    head = np.empty((4, devices), np.int64)
    stop = np.empty((4, devices), np.int64)
    anchor = np.full(size, -1, np.int64)
    fill = np.zeros(4, np.int64)
    # 1. the queues of each device
    for device in range(devices):
        copy(head[:, device], fill)
        last = -1
        for row in range(ops.offsets[device], ops.offsets[device + 1]):
            kind = ops.kind[row]
            if ops.second[row]:
                continue
            which = COMPUTE if kind < O else BACK if kind == R and not world.shared else OUT
            queue[which, fill[which]] = row
            fill[which] += 1
            if kind < O:
                last = row
            if ops.asks[row]:
                queue[GRANTS, fill[GRANTS]] = row
                fill[GRANTS] += 1
                anchor[row] = last
        copy(stop[:, device], fill)
    # 2. where messages go
    target = np.full(size, -1, np.int64)
    for row in range(size):
        for slot in range(ops.need_first[row], ops.need_first[row + 1]):
            if ops.device[ops.needs[slot]] != ops.device[row]:
                target[ops.needs[slot]] = ops.device[row]
    # 3. who uses each link
    member_first = np.zeros(links + 1, np.int64)
    members = np.empty(2 * devices, np.int64)
    at = 0
    for link in range(links):
        for device in range(devices):
            for which in range(2):
                if world.link_of[device, which] == link:
                    members[at] = 2 * device + which
                    at += 1
        member_first[link + 1] = at
    counts = np.zeros(4, np.int64)
    pairs = devices * devices if world.serial else 1
    counts[DIRTY] = devices
    return State(
        start=np.full(size, -1, np.int64),
        end=np.full(size, -1, np.int64),
        grant=np.full(size, -1, np.int64),
        granted_as=np.full(size, -1, np.int64),
        ended_as=np.full(size, -1, np.int64),
        ready=np.full(size, -1, np.int64),
        target=target,
        anchor=anchor,
        queue=queue,
        head=head,
        stop=stop,
        level=world.static.copy(),
        computing=np.zeros(devices, np.bool_),
        copying=np.zeros((2, devices), np.bool_),
        came=np.full((2, devices), -1, np.int64),
        pair_free=np.zeros(pairs, np.int64),
        link_busy=np.zeros(links, np.bool_),
        link_head=world.link_first[:-1].copy(),
        dirty=np.ones(devices, np.bool_),
        dirty_order=np.arange(devices),
        link_dirty=np.zeros(links, np.bool_),
        link_order=np.empty(links, np.int64),
        member_first=member_first,
        members=members,
        heap_time=np.empty(3 * size + 2, np.int64),
        heap_row=np.empty(3 * size + 2, np.int64),
        counts=counts,
    )
