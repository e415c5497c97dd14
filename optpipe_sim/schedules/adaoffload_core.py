"""The compiled event loop of AdaOffload; `adaoffload` says what it does and why it cannot deadlock.

All state lies in a few int64 arrays, so that a run costs a few milliseconds and a search can make
thousands. `play` is the entry; everything else is a step of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compiled import entry, pop, push, step

FOREVER = 2**62

# Rows of `Run.stage`.
DEVICE, ACT, WEIGHT, MOVED, SPARE, AHEAD, TOP, BOTTOM, ENDED_B, ENDED_W, STAGE_ROWS = range(11)
# Rows of `Run.device`.
FIRST, COUNT, CAPACITY, NEED, LINK_O, LINK_R, NODE, DEPTH, LEVEL, FLOOR, LAST, AWAKE, LOGGED = (
    range(13)
)
DEVICE_ROWS = 13
# Layers of `Run.micro`.
HELD, PROMISED, READY_F, READY_B, BELOW, MICRO_ROWS = range(6)
# What has become of the activation of (stage, microbatch).
ABSENT, FORWARD, RESIDENT, LEAVING, AWAY, COMING, BACK, BACKWARD, GONE = range(9)
# Columns of the log.
KIND, STAGE, MICROBATCH, START, END, SERIAL, LOG_COLUMNS = range(7)
# Entries of `Run.state`.
HEAP, TURN, ALL_LOGGED = range(3)
# Kinds of ops as `ops.OpKind` numbers them; engines of a device, and messages, as kinds of events.
_F, _B, _W, _O, _R = 0, 1, 2, 4, 5
_COMPUTE, _OUT, _IN, _ARRIVAL = range(4)


class Run(NamedTuple):
    """One run: costs, limits, parameters (see `adaoffload.Setting`) and where it stands."""

    stage: np.ndarray  # (STAGE_ROWS, S)
    device: np.ndarray  # (DEVICE_ROWS, p)
    stages: np.ndarray  # (S,) device by device, in model order
    lasts: np.ndarray  # (kinds, S) durations
    begun: np.ndarray  # (kinds, S) how many have started
    micro: np.ndarray  # (MICRO_ROWS, S, m)
    running: np.ndarray  # (3, p, 4) per engine: kind (-1: free), stage, microbatch, end
    host: np.ndarray  # (2, nodes) pinned bytes that may be reserved, and those that are
    busy: np.ndarray  # (links,)
    pair_free: np.ndarray  # (p, p) when a serial link is free again
    heap: np.ndarray  # (events, 2) time; engine * p + device
    log: np.ndarray  # (p, ops, LOG_COLUMNS)
    state: np.ndarray  # HEAP size, TURN: the device asked first, ALL_LOGGED
    shared: int  # one copy engine for both directions
    latency: int
    occupancy: int
    serial: int  # links between devices carry one message at a time
    prefer: int
    patience: int
    pending: int
    group: int
    headroom: int
    oldest: int
    keep: int
    reload_first: int
    due: np.ndarray  # (kinds, S, m) an order to follow, see `adaoffload_runs.Order`; or empty
    window: int  # how much later than what a device waits for an F may be due


@step
def _floor(r: Run, s: int, j: int) -> int:
    """What (s, j) holds at the least until its B ends."""
    held = r.micro[HELD, s, j]
    if held in (ABSENT, GONE):
        return 0
    if held <= AWAY and r.micro[PROMISED, s, j] > 0:
        return int(r.stage[ACT, s] - r.stage[MOVED, s])
    return int(r.stage[ACT, s])


@step
def _become(r: Run, s: int, j: int, held: int, promised: int) -> None:
    """Change what is held of (s, j), and the device's floor with it."""
    change = -_floor(r, s, j)
    r.micro[HELD, s, j] = held
    r.micro[PROMISED, s, j] = promised
    r.device[FLOOR, r.stage[DEVICE, s]] += change + _floor(r, s, j)


@step
def _oldest(r: Run, d: int) -> int:
    """The oldest microbatch that device d has not sent back."""
    return int(r.stage[ENDED_B, r.stages[r.device[FIRST, d]]])


@step
def _safe(r: Run, s: int, j: int, more: int) -> bool:
    """Whether the oldest microbatch of the device can still be finished when (s, j) is to hold
    `more` bytes for good."""
    d = r.stage[DEVICE, s]
    oldest = _oldest(r, d)
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
        total -= _floor(r, other, oldest)
        # once reloaded, a stage cannot leave again before the B's above it
        back = held >= COMING or (other == s and j == oldest and held == AWAY)
        if back and not top and r.stage[SPARE, other]:
            total += r.stage[MOVED, other]
        top = False
    return bool(total <= r.device[CAPACITY, d])


@step
def _admits(r: Run, s: int, j: int, forced: bool) -> int:
    """Whether F(s, j) may have its memory: 0 no, 1 yes, 2 yes with host memory reserved."""
    d = r.stage[DEVICE, s]
    oldest = _oldest(r, d)
    first = r.device[FIRST, d]
    if s == r.stages[first] and j - oldest >= r.device[DEPTH, d]:
        return 0
    room = r.device[CAPACITY, d] - r.device[LEVEL, d] - r.stage[ACT, s]
    if room < 0:
        return 0
    if j == oldest:
        return 1
    if r.keep and not forced:
        for at in range(first, first + r.device[COUNT, d]):
            other = r.stages[at]
            k = r.begun[_B, other]
            if k < r.micro.shape[2] and r.micro[HELD, other, k] == AWAY:
                room -= r.stage[MOVED, other]
        if room < 0:
            return 0
    moved, node = r.stage[MOVED, s], r.device[NODE, d]
    bounded = r.host[0, node] < FOREVER
    if (bounded or moved == 0) and _safe(r, s, j, r.stage[ACT, s]):
        return 1
    if moved > 0 and r.host[1, node] + moved <= r.host[0, node]:
        return 2 if _safe(r, s, j, r.stage[ACT, s] - moved) else 0
    return 0


@step
def _soon(r: Run, s: int) -> int:
    """The microbatches below this one have their B at s soon: AHEAD stages on it has started, or
    as many B's of the last stage away."""
    last = r.stage.shape[1] - 1
    at = s + r.stage[AHEAD, s]
    return int(r.begun[_B, at] if at <= last else r.begun[_B, last] + at - last)


@step
def _rank(r: Run, chunk: int, chunks: int, j: int) -> int:
    """The order of ops of one kind on a device: groups of microbatches, chunk by chunk."""
    return (j // r.group * chunks + chunk) * r.group + j % r.group


@step
def _b_rank(r: Run, s: int, chunk: int, chunks: int, j: int) -> int:
    """The order of the B's of a device."""
    if len(r.due):
        return int(r.due[_B, s, max(0, min(j, r.micro.shape[2] - 1))])
    return _rank(r, chunks - 1 - chunk, chunks, j)


@step
def _begin(r: Run, engine: int, kind: int, s: int, j: int, now: int) -> int:
    """Start an op on an engine of its device and log it; returns its end."""
    d = r.stage[DEVICE, s]
    end = now + int(r.lasts[kind, s])
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
def _send(r: Run, s: int, other: int, end: int) -> int:
    """When what an op of stage s sends at its end is there for stage `other`."""
    d, target = r.stage[DEVICE, s], r.stage[DEVICE, other]
    if d == target:
        return end
    if r.serial:
        end = max(end, r.pair_free[d, target])
        r.pair_free[d, target] = end + r.occupancy
    arrival = end + r.latency + r.occupancy
    push(r.heap, r.state[HEAP], arrival, _ARRIVAL * r.device.shape[1] + target)
    r.state[HEAP] += 1
    return arrival


@step
def _forward(r: Run, s: int, now: int, reserve: bool) -> None:
    j = r.begun[_F, s]
    d = r.stage[DEVICE, s]
    r.device[LEVEL, d] += r.stage[ACT, s]
    r.device[LAST, d] = _F
    if reserve:
        r.host[1, r.device[NODE, d]] += r.stage[MOVED, s]
    _become(r, s, j, FORWARD, 1 if reserve else 0)
    r.micro[BELOW, s, j] = r.stage[TOP, s]
    r.stage[TOP, s] = j
    end = _begin(r, _COMPUTE, _F, s, j, now)
    if s + 1 < r.stage.shape[1]:
        r.micro[READY_F, s + 1, j] = _send(r, s, s + 1, end)
    else:
        r.micro[READY_B, s, j] = end


@step
def _backward(r: Run, s: int, now: int) -> None:
    j = r.begun[_B, s]
    d = r.stage[DEVICE, s]
    r.device[LAST, d] = _B
    if r.micro[HELD, s, j] == RESIDENT and r.micro[PROMISED, s, j] == 1:
        r.host[1, r.device[NODE, d]] -= r.stage[MOVED, s]  # it never left
    _become(r, s, j, BACKWARD, 0)
    end = _begin(r, _COMPUTE, _B, s, j, now)
    if s > 0:
        r.micro[READY_B, s - 1, j] = _send(r, s, s - 1, end)


@step
def _compute(r: Run, d: int, now: int, forced: bool) -> None:
    """Start what the compute stream of d does next, if anything."""
    if r.running[_COMPUTE, d, 0] >= 0:
        return
    m = r.micro.shape[2]
    chunks = r.device[COUNT, d]
    comes = FOREVER  # when the next F or B is known to be possible
    forward, forward_rank, reserve = -1, FOREVER, False
    backward, backward_rank = -1, FOREVER
    weight, weight_rank, pending = -1, FOREVER, 0
    for chunk in range(chunks):
        s = r.stages[r.device[FIRST, d] + chunk]
        j = r.begun[_W, s]
        pending += r.stage[ENDED_B, s] - j
        if j < r.stage[ENDED_B, s] and (j + 1) * chunks - chunk < weight_rank:
            weight, weight_rank = s, (j + 1) * chunks - chunk
        j = r.begun[_B, s]
        if j < m and r.micro[READY_B, s, j] < FOREVER:
            held, rank = r.micro[HELD, s, j], _b_rank(r, s, chunk, chunks, j)
            if r.micro[READY_B, s, j] > now:
                comes = min(comes, r.micro[READY_B, s, j])
            elif held == COMING:
                comes = min(comes, r.running[_IN, d, 3])
            elif held in (RESIDENT, BACK) and rank < backward_rank:
                backward, backward_rank = s, rank
        j = r.begun[_F, s]
        if j < m and r.micro[READY_F, s, j] < FOREVER:
            rank = _rank(r, chunk, chunks, j)
            if r.micro[READY_F, s, j] > now or rank < forward_rank:
                admitted = _admits(r, s, j, forced)
                if admitted and r.micro[READY_F, s, j] > now:
                    comes = min(comes, r.micro[READY_F, s, j])
                elif admitted:
                    forward, forward_rank, reserve = s, rank, admitted == 2
    turn = backward < 0 or r.prefer == 2 or (r.prefer == 1 and r.device[LAST, d] == _B)
    if forward >= 0 and turn and (weight < 0 or pending < r.pending):
        _forward(r, forward, now, reserve)
        return
    if backward >= 0:
        _backward(r, backward, now)
        return
    if weight >= 0:
        lasts = r.lasts[_W, weight]
        if forced or comes >= now + lasts - lasts * r.patience // 1000:
            _begin(r, _COMPUTE, _W, weight, r.begun[_W, weight], now)
            return
    return


@step
def _when(r: Run, kind: int, s: int, now: int) -> int:
    """When the next op of a kind at stage s can start, but for the compute stream, as far as is
    known yet."""
    j = r.begun[kind, s]
    if j == r.micro.shape[2]:
        return FOREVER
    if kind == _W:
        return now if j < r.stage[ENDED_B, s] else FOREVER
    if kind == _F:
        return int(r.micro[READY_F, s, j])
    held, ready = r.micro[HELD, s, j], int(r.micro[READY_B, s, j])
    if held == COMING:
        return max(ready, int(r.running[_IN, r.stage[DEVICE, s], 3]))
    return ready if held in (RESIDENT, BACK) else FOREVER


@step
def _follow(r: Run, d: int, now: int, forced: bool) -> None:
    """As `_compute`, in the order given: start what is due first of all that could start. Passed
    over is what has not come yet and, so that memory does not hold up the rest, an F that does not
    fit. Nothing starts that would, by more than its patience, delay something due before it."""
    if r.running[_COMPUTE, d, 0] >= 0:
        return
    m = r.micro.shape[2]
    mine = r.stages[r.device[FIRST, d] : r.device[FIRST, d] + r.device[COUNT, d]]
    latest = FOREVER  # that an F may be due
    for s in mine:
        j = r.begun[_B, s]
        if j < m and not forced:
            latest = min(latest, r.due[_B, s, j] + r.window)
        j = r.begun[_F, s]
        if j < m and not forced and r.micro[READY_F, s, j] > now:
            latest = min(latest, r.due[_F, s, j] + r.window)
    best, op, reserve, first = -1, _F, False, FOREVER
    for kind in (_B, _F, _W):
        for s in mine:
            if _when(r, kind, s, now) > now:
                continue
            j = r.begun[kind, s]
            due = r.due[kind, s, j]
            if due >= first or (kind == _F and due > latest):
                continue
            admitted = _admits(r, s, j, forced) if kind == _F else 1
            if admitted:
                best, op, reserve, first = s, kind, admitted == 2, due
    if best < 0:
        return
    ends = now + r.lasts[op, best] - r.lasts[op, best] * r.patience // 1000
    for kind in (_B, _F):
        for s in mine:
            when = _when(r, kind, s, now)
            if now < when < ends and r.due[kind, s, r.begun[kind, s]] < first and not forced:
                return
    if op == _F:
        _forward(r, best, now, reserve)
    elif op == _B:
        _backward(r, best, now)
    else:
        _begin(r, _COMPUTE, _W, best, r.begun[_W, best], now)


@step
def _copies(r: Run, engine: int, d: int) -> bool:
    """Whether a transfer of this direction could start."""
    if r.busy[r.device[LINK_O + engine - _OUT, d]] or r.running[engine, d, 0] >= 0:
        return False
    return not (r.shared and r.running[_OUT + _IN - engine, d, 0] >= 0)


@step
def _transfer(r: Run, engine: int, kind: int, s: int, j: int, now: int) -> None:
    d = r.stage[DEVICE, s]
    r.busy[r.device[LINK_O + engine - _OUT, d]] = 1
    r.state[TURN] = d + 1  # the next device of the link is asked first
    _begin(r, engine, kind, s, j, now)


@step
def _reload(r: Run, d: int, now: int, forced: bool) -> None:
    """Start a reload, if one is due and fits."""
    if not _copies(r, _IN, d):
        return
    chunks = r.device[COUNT, d]
    best, best_j, best_rank = -1, -1, FOREVER
    for chunk in range(chunks):
        s = r.stages[r.device[FIRST, d] + chunk]
        if r.begun[_O, s] == r.begun[_R, s]:
            continue
        j = r.begun[_B, s]
        end = min(max(_soon(r, s), j + 1 if forced else 0), r.micro.shape[2])
        while j < end and r.micro[HELD, s, j] != AWAY:
            j += 1
        rank = _b_rank(r, s, chunk, chunks, j)
        fits = r.device[LEVEL, d] + r.stage[MOVED, s] <= r.device[CAPACITY, d]
        if j < end and fits and rank < best_rank and _safe(r, s, j, r.stage[MOVED, s]):
            best, best_j, best_rank = s, j, rank
    if best < 0:
        return
    _become(r, best, best_j, COMING, r.micro[PROMISED, best, best_j])
    r.device[LEVEL, d] += r.stage[MOVED, best]
    _transfer(r, _IN, _R, best, best_j, now)
    return


@step
def _short(r: Run, d: int, now: int, forced: bool) -> bool:
    """Whether device d should offload something: little room is left and something will want it
    (forced: something waits for it)."""
    room = r.device[CAPACITY, d] - r.device[LEVEL, d]
    m = r.micro.shape[2]
    wished, left = 0, False
    for at in range(r.device[FIRST, d], r.device[FIRST, d] + r.device[COUNT, d]):
        s = r.stages[at]
        j, k = r.begun[_F, s], r.begun[_B, s]
        if forced:
            if j < m and r.micro[READY_F, s, j] <= now and r.stage[ACT, s] > room:
                return True
            if k < m and r.micro[HELD, s, k] == AWAY and r.stage[MOVED, s] > room:
                return True
        wished = max(wished, r.stage[ACT, s])
        left = left or j < m or r.begun[_R, s] < r.begun[_O, s]
    return not forced and left and room < r.headroom * wished


@step
def _candidate(r: Run, s: int, forced: bool) -> int:
    """The microbatch of stage s that should be offloaded first, or -1."""
    low, high = r.begun[_B, s], r.begun[_F, s]
    if forced:
        for j in range(high - 1, low - 1, -1):
            if r.micro[HELD, s, j] == RESIDENT and _reserves(r, s, j) > 0:
                return j
        return -1
    low = max(low, _soon(r, s))
    j = r.stage[TOP, s]
    if r.oldest:
        j = max(low, r.stage[BOTTOM, s])
        while j < high and r.micro[HELD, s, j] > RESIDENT:
            j += 1
        r.stage[BOTTOM, s] = j
    else:
        while j >= 0 and r.micro[HELD, s, j] > RESIDENT:
            j = r.micro[BELOW, s, j]
        r.stage[TOP, s] = j
        if j >= 0 and r.micro[HELD, s, j] == FORWARD:
            top, j = j, r.micro[BELOW, s, j]
            while j >= 0 and r.micro[HELD, s, j] > RESIDENT:
                j = r.micro[BELOW, s, j]
            r.micro[BELOW, s, top] = j
    found = low <= j < high and r.micro[HELD, s, j] == RESIDENT and _reserves(r, s, j) > 0
    return j if found else -1


@step
def _reserves(r: Run, s: int, j: int) -> int:
    """Where (s, j) may go on the host: 0 nowhere, 1 reserved memory, 2 the spare part, which only
    the oldest microbatch uses."""
    if r.micro[PROMISED, s, j]:
        return int(r.micro[PROMISED, s, j])
    d = r.stage[DEVICE, s]
    node = r.device[NODE, d]
    if r.host[1, node] + r.stage[MOVED, s] <= r.host[0, node]:
        return 1
    return 2 if r.stage[SPARE, s] and j == _oldest(r, d) else 0


@step
def _offload(r: Run, d: int, now: int, forced: bool) -> None:
    """Start an offload, if memory is short and something may leave."""
    if not _copies(r, _OUT, d) or not _short(r, d, now, forced):
        return
    chunks = r.device[COUNT, d]
    best, best_j, best_rank = -1, -1, FOREVER
    for chunk in range(chunks):
        s = r.stages[r.device[FIRST, d] + chunk]
        j = _candidate(r, s, forced) if r.stage[MOVED, s] > 0 else -1
        rank = _b_rank(r, s, chunk, chunks, j)
        if forced or not r.oldest:
            rank = -rank
        if j >= 0 and rank < best_rank:
            best, best_j, best_rank = s, j, rank
    if best < 0:
        return
    how = _reserves(r, best, best_j)
    if how == 1 and r.micro[PROMISED, best, best_j] == 0:
        r.host[1, r.device[NODE, d]] += r.stage[MOVED, best]
    _become(r, best, best_j, LEAVING, how)
    _transfer(r, _OUT, _O, best, best_j, now)
    return


@step
def _finish(r: Run, engine: int, d: int) -> None:
    """An op has ended: its memory, its engine and link, and who may go on because of it."""
    kind, s, j = r.running[engine, d, 0], r.running[engine, d, 1], r.running[engine, d, 2]
    r.running[engine, d, 0] = -1
    promised = r.micro[PROMISED, s, j]
    held = r.micro[HELD, s, j]
    release = 0
    if kind == _F:
        held = RESIDENT
    elif kind == _B:
        held, release = GONE, r.stage[ACT, s] - r.stage[WEIGHT, s]
        r.stage[ENDED_B, s] += 1
    elif kind == _W:
        release = r.stage[WEIGHT, s]
        r.stage[ENDED_W, s] += 1
    elif kind == _O:
        held, release = AWAY, r.stage[MOVED, s]
    else:
        held = BACK
        if promised == 1:
            r.host[1, r.device[NODE, d]] -= r.stage[MOVED, s]
    _become(r, s, j, held, promised)
    r.device[LEVEL, d] -= release
    if engine == _COMPUTE:
        return
    link = r.device[LINK_O + engine - _OUT, d]
    r.busy[link] = 0
    bounded = r.host[0, r.device[NODE, d]] < FOREVER
    for other in range(r.device.shape[1]):
        same = r.device[LINK_O, other] == link or r.device[LINK_R, other] == link
        if same or (bounded and r.device[NODE, other] == r.device[NODE, d]):
            r.device[AWAKE, other] = 1


@entry
def play(r: Run, stop: int) -> bool:
    """Play a fresh run to its end; False where it would end after `stop`, or cannot go on."""
    p = r.device.shape[1]
    now = 0
    forced = False
    while True:
        first = r.state[TURN]
        for turn in range(p):
            d = (first + turn) % p
            if not (r.device[AWAKE, d] or forced):
                continue
            for part in range(3):
                if part == (0 if r.reload_first else 2):
                    _reload(r, d, now, forced)
                elif part == 1 and len(r.due):
                    _follow(r, d, now, forced)
                elif part == 1:
                    _compute(r, d, now, forced)
            _offload(r, d, now, forced)
            r.device[AWAKE, d] = 0
        if r.state[HEAP] == 0:
            if forced:
                break
            forced = True  # nothing will come by itself: do what was put off
            continue
        forced = False
        now = r.heap[0, 0]
        if now > stop:
            break
        while r.state[HEAP] > 0 and r.heap[0, 0] == now:
            code = pop(r.heap, r.state[HEAP])
            r.state[HEAP] -= 1
            r.device[AWAKE, code % p] = 1
            if code // p != _ARRIVAL:
                _finish(r, code // p, code % p)
    done = 0
    for s in range(r.stage.shape[1]):
        done += r.stage[ENDED_W, s]
    return bool(done == r.stage.shape[1] * r.micro.shape[2])
