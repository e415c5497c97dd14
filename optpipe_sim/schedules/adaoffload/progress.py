"""The state of a run of AdaOffload, and its memory rules; compiled.

All state is in a few int64 arrays, so that a run takes a few milliseconds and a search can make
thousands.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...codes import B, F, W
from ...compiled import packed, push, step
from ...ops import MESSAGES, OWN

FOREVER = 2**62

# Rows of `Run.stage`.
DEVICE, MOVES, SPARE, AHEAD, TOP, BOTTOM, STAGE_ROWS = range(7)
# Rows of `Run.device`.
FIRST, COUNT, CAPACITY, NEED, LINK_O, LINK_R, NODE, DEPTH, LEVEL, FLOOR, LAST, AWAKE, LOGGED = (
    range(13)
)
WOKEN = 13  # the devices that are awake, in order; `AWAKE_NOW` is their number
DEVICE_ROWS = 14
# Layers of `Run.micro`; from READY on of F, B and W: when what they wait for has arrived, copies aside.
HELD, PROMISED, BELOW, ACT, MOVED, READY = range(6)
MICRO_ROWS = READY + W + 1
# Where the activation of (stage, microbatch) is.
ABSENT, FORWARD, RESIDENT, LEAVING, AWAY, COMING, BACK, BACKWARD, GONE = range(9)
# Where it is once an op of each kind has ended.
HELD_BEHIND = (RESIDENT, GONE, GONE, GONE, RESIDENT, AWAY, BACK)
# Columns of the log.
KIND, STAGE, MICROBATCH, START, END, SERIAL, LOG_COLUMNS = range(7)
# Entries of `Run.state`.
HEAP, TURN, ALL_LOGGED, AWAKE_NOW = range(4)
# Engines of a device, and messages, as kinds of events.
COMPUTE, OUT, IN, ARRIVAL = range(4)


@packed
class Run(NamedTuple):
    """One run: costs, limits, parameters (see `runs.Setting`) and state."""

    stage: np.ndarray  # (STAGE_ROWS, S)
    device: np.ndarray  # (DEVICE_ROWS, p)
    stages: np.ndarray  # (S,) device by device, in model order
    duration: np.ndarray  # (kinds, S, m) durations
    released: np.ndarray  # (kinds, S, m) bytes, at the end
    begun: np.ndarray  # (kinds, S) how many have started
    ended: np.ndarray  # (kinds, S) and how many have ended
    micro: np.ndarray  # (MICRO_ROWS, S, m)
    running: np.ndarray  # (3, p, 4) per engine: kind (-1: free), stage, microbatch, end
    host: np.ndarray  # (2, nodes) pinned bytes that may be reserved, and those that are reserved
    busy: np.ndarray  # (links,)
    pair_free: np.ndarray  # (p, p) when a serial link is free again
    heap: np.ndarray  # (events, 2) time; engine * p + device
    log: np.ndarray  # (p, ops, LOG_COLUMNS)
    state: np.ndarray  # HEAP size, TURN: the device tried first, ALL_LOGGED, AWAKE_NOW
    shared: int  # one copy engine for both directions
    latency: int
    occupancy: int
    serial: int  # links between devices carry one message at a time
    prefer: int
    tolerance: int
    pending: int
    group: int
    headroom: int
    oldest: int
    keep: int
    reload_first: int
    due: np.ndarray  # (kinds, S, m) an order to follow, see `runs.Order`; or empty
    window: int  # how much later than the op that a device waits for an F may be due


@step
def floor_of(r: Run, s: int, j: int) -> int:
    """Return the least bytes that (s, j) holds until its B ends."""
    held = r.micro[HELD, s, j]
    if held in (ABSENT, GONE):
        return 0
    if held <= AWAY and r.micro[PROMISED, s, j] > 0:
        return int(r.micro[ACT, s, j] - r.micro[MOVED, s, j])
    return int(r.micro[ACT, s, j])


@step
def become(r: Run, s: int, j: int, held: int, promised: int) -> None:
    """Change the bytes held of (s, j), and the device's floor accordingly."""
    change = -floor_of(r, s, j)
    r.micro[HELD, s, j] = held
    r.micro[PROMISED, s, j] = promised
    r.device[FLOOR, r.stage[DEVICE, s]] += change + floor_of(r, s, j)


@step
def oldest_of(r: Run, d: int) -> int:
    """Return the oldest microbatch whose B's device d has not finished."""
    return int(r.ended[B, r.stages[r.device[FIRST, d]]])


@step
def is_safe(r: Run, s: int, j: int, more: int) -> bool:
    """Whether the oldest microbatch of the device can still be finished if (s, j) permanently holds
    `more` bytes."""
    d = r.stage[DEVICE, s]
    oldest = oldest_of(r, d)
    total = r.device[FLOOR, d] + r.device[NEED, d]
    if j != oldest:
        total += more
    top = True
    first = r.device[FIRST, d]
    for at in range(first + r.device[COUNT, d] - 1, first - 1, -1):
        other = r.stages[at]
        held = r.micro[HELD, other, oldest]
        if held == GONE:
            continue
        total -= floor_of(r, other, oldest)
        # once reloaded, an activation cannot be offloaded again before the B's of later stages
        back = held >= COMING or (other == s and j == oldest and held == AWAY)
        if back and not top and r.stage[SPARE, other]:
            total += r.micro[MOVED, other, oldest]
        top = False
    return bool(total <= r.device[CAPACITY, d])


@step
def admits(r: Run, s: int, j: int, forced: bool) -> int:
    """Whether F(s, j) may allocate its memory: 0 no, 1 yes, 2 yes with host memory reserved."""
    d = r.stage[DEVICE, s]
    oldest = oldest_of(r, d)
    first = r.device[FIRST, d]
    if s == r.stages[first] and j - oldest >= r.device[DEPTH, d]:
        return 0
    room = r.device[CAPACITY, d] - r.device[LEVEL, d] - r.micro[ACT, s, j]
    if room < 0:
        return 0
    if j == oldest:
        return 1
    if r.keep and not forced:
        for at in range(first, first + r.device[COUNT, d]):
            other = r.stages[at]
            k = r.begun[B, other]
            if k < r.micro.shape[2] and r.micro[HELD, other, k] == AWAY:
                room -= r.micro[MOVED, other, k]
        if room < 0:
            return 0
    moved, node = r.micro[MOVED, s, j], r.device[NODE, d]
    bounded = r.host[0, node] < FOREVER
    if (bounded or moved == 0) and is_safe(r, s, j, r.micro[ACT, s, j]):
        return 1
    if moved > 0 and r.host[1, node] + moved <= r.host[0, node]:
        return 2 if is_safe(r, s, j, r.micro[ACT, s, j] - moved) else 0
    return 0


@step
def needed_soon(r: Run, s: int) -> int:
    """Return the microbatch below which B's at s are due soon: those whose B has started AHEAD
    stages later, or is within as many B's of the last stage."""
    last = r.stage.shape[1] - 1
    at = s + r.stage[AHEAD, s]
    return int(r.begun[B, at] if at <= last else r.begun[B, last] + at - last)


@step
def rank_of(r: Run, chunk: int, chunks: int, j: int) -> int:
    """Return the rank of an op among those of its kind on a device: groups of microbatches, chunk
    by chunk."""
    return (j // r.group * chunks + chunk) * r.group + j % r.group


@step
def b_rank_of(r: Run, s: int, chunk: int, chunks: int, j: int) -> int:
    """Return the rank of a B among those of its device."""
    if len(r.due):
        return int(r.due[B, s, max(0, min(j, r.micro.shape[2] - 1))])
    return rank_of(r, chunks - 1 - chunk, chunks, j)


@step
def begin(r: Run, engine: int, kind: int, s: int, j: int, now: int) -> int:
    """Start an op on an engine of its device and log it; returns its end."""
    d = r.stage[DEVICE, s]
    end = now + int(r.duration[kind, s, j])
    r.running[engine, d, 0], r.running[engine, d, 1] = kind, s
    r.running[engine, d, 2], r.running[engine, d, 3] = j, end
    r.begun[kind, s] += 1
    push(r.heap, r.state[HEAP], end, engine * r.device.shape[1] + d)
    r.state[HEAP] += 1
    at = r.device[LOGGED, d]
    r.log[d, at, KIND], r.log[d, at, STAGE], r.log[d, at, MICROBATCH] = kind, s, j
    r.log[d, at, START], r.log[d, at, END], r.log[d, at, SERIAL] = now, end, r.state[ALL_LOGGED]
    r.device[LOGGED, d] += 1
    r.state[ALL_LOGGED] += 1
    return end


@step
def send(r: Run, s: int, other: int, end: int) -> int:
    """Return when the message that an op of stage s sends at `end` arrives at stage `other`."""
    d, target = r.stage[DEVICE, s], r.stage[DEVICE, other]
    if d == target:
        return end
    if r.serial:
        end = max(end, r.pair_free[d, target])
        r.pair_free[d, target] = end + r.occupancy
    arrival = end + r.latency + r.occupancy
    push(r.heap, r.state[HEAP], arrival, ARRIVAL * r.device.shape[1] + target)
    r.state[HEAP] += 1
    return arrival


@step
def start(r: Run, kind: int, s: int, now: int) -> None:
    """Start the next compute op of a kind at stage s, and note when its result arrives at those that wait for it."""
    j, stages = r.begun[kind, s], r.stage.shape[1]
    end, reader = begin(r, COMPUTE, kind, s, j, now), s - MESSAGES[kind]
    if reader != s and 0 <= reader < stages:
        r.micro[READY + kind, reader, j] = send(r, s, reader, end)
    for then in range(B, W + 1):
        source = s + MESSAGES[then]
        if OWN[then] == kind and source in (
            s,
            stages,
        ):  # others wait for a message, which comes later
            r.micro[READY + then, s, j] = end


@step
def start_forward(r: Run, s: int, now: int, reserve: bool) -> None:
    j = r.begun[F, s]
    d = r.stage[DEVICE, s]
    r.device[LEVEL, d] += r.micro[ACT, s, j]
    r.device[LAST, d] = F
    if reserve:
        r.host[1, r.device[NODE, d]] += r.micro[MOVED, s, j]
    become(r, s, j, FORWARD, 1 if reserve else 0)
    r.micro[BELOW, s, j] = r.stage[TOP, s]
    r.stage[TOP, s] = j
    start(r, F, s, now)


@step
def start_backward(r: Run, s: int, now: int) -> None:
    j = r.begun[B, s]
    d = r.stage[DEVICE, s]
    r.device[LAST, d] = B
    if r.micro[HELD, s, j] == RESIDENT and r.micro[PROMISED, s, j] == 1:
        r.host[1, r.device[NODE, d]] -= r.micro[MOVED, s, j]  # it was never offloaded
    become(r, s, j, BACKWARD, 0)
    start(r, B, s, now)


@step
def wake(r: Run, d: int) -> None:
    """Wake device d: it may have an op to start."""
    if r.device[AWAKE, d]:
        return
    r.device[AWAKE, d] = 1
    at = r.state[AWAKE_NOW]
    while at > 0 and r.device[WOKEN, at - 1] > d:
        r.device[WOKEN, at] = r.device[WOKEN, at - 1]
        at -= 1
    r.device[WOKEN, at] = d
    r.state[AWAKE_NOW] += 1
