"""The compiled event loop of AdaOffload; `adaoffload` says what it does and why it cannot deadlock.

`play` is the entry point; the other functions are its steps. Their common state is in `progress`.
"""

from __future__ import annotations

from ...codes import B, F, O, R, W
from ...compiled import entry, pop, step
from ...ops import INPUTS
from .progress import (
    ACT,
    ARRIVAL,
    AWAKE,
    AWAKE_NOW,
    AWAY,
    BACK,
    BELOW,
    BOTTOM,
    CAPACITY,
    COMING,
    COMPUTE,
    COUNT,
    DEVICE,
    FIRST,
    FOREVER,
    FORWARD,
    HEAP,
    HELD,
    HELD_BEHIND,
    IN,
    LAST,
    LEAVING,
    LEVEL,
    LINK_O,
    LINK_R,
    MOVED,
    MOVES,
    NODE,
    OUT,
    PROMISED,
    READY,
    RESIDENT,
    SPARE,
    TOP,
    TURN,
    WOKEN,
    Run,
    admits,
    b_rank_of,
    become,
    begin,
    is_safe,
    needed_soon,
    oldest_of,
    rank_of,
    start,
    start_backward,
    start_forward,
    wake,
)


@step
def _compute(r: Run, d: int, now: int, forced: bool) -> None:
    """Start the next op of the compute stream of d, if any."""
    if r.running[COMPUTE, d, 0] >= 0:
        return
    m = r.micro.shape[2]
    chunks = r.device[COUNT, d]
    comes = FOREVER  # the earliest known start of the next F or B
    forward, forward_rank, reserve = -1, FOREVER, False
    backward, backward_rank = -1, FOREVER
    weight, weight_rank, pending = -1, FOREVER, 0
    for chunk in range(chunks):
        s = r.stages[r.device[FIRST, d] + chunk]
        j = r.begun[W, s]
        pending += r.ended[B, s] - j
        if j < r.ended[B, s] and (j + 1) * chunks - chunk < weight_rank:
            weight, weight_rank = s, (j + 1) * chunks - chunk
        j = r.begun[B, s]
        if j < m and r.micro[READY + B, s, j] < FOREVER:
            held, rank = r.micro[HELD, s, j], b_rank_of(r, s, chunk, chunks, j)
            if r.micro[READY + B, s, j] > now:
                comes = min(comes, r.micro[READY + B, s, j])
            elif held == COMING:
                comes = min(comes, r.running[IN, d, 3])
            elif held in (RESIDENT, BACK) and rank < backward_rank:
                backward, backward_rank = s, rank
        j = r.begun[F, s]
        if j < m and r.micro[READY + F, s, j] < FOREVER:
            rank = rank_of(r, chunk, chunks, j)
            if r.micro[READY + F, s, j] > now or rank < forward_rank:
                admitted = admits(r, s, j, forced)
                if admitted and r.micro[READY + F, s, j] > now:
                    comes = min(comes, r.micro[READY + F, s, j])
                elif admitted:
                    forward, forward_rank, reserve = s, rank, admitted == 2
    turn = backward < 0 or r.prefer == 2 or (r.prefer == 1 and r.device[LAST, d] == B)
    if forward >= 0 and turn and (weight < 0 or pending < r.pending):
        start_forward(r, forward, now, reserve)
        return
    if backward >= 0:
        start_backward(r, backward, now)
        return
    if weight >= 0:
        duration = r.duration[W, weight, r.begun[W, weight]]
        if forced or comes >= now + duration - duration * r.tolerance // 1000:
            start(r, W, weight, now)


@step
def _when(r: Run, kind: int, s: int, now: int) -> int:
    """Return the earliest known start of the next op of a kind at stage s, the compute stream aside."""
    j = r.begun[kind, s]
    if j == r.micro.shape[2]:
        return FOREVER
    held, ready = r.micro[HELD, s, j], int(r.micro[READY + kind, s, j])
    if INPUTS[kind] < 0 or held in (RESIDENT, BACK):
        return ready
    return max(ready, int(r.running[IN, r.stage[DEVICE, s], 3])) if held == COMING else FOREVER


@step
def _follow(r: Run, d: int, now: int, forced: bool) -> None:
    """As `_compute`, in the given order: start the op that is due first among those that could
    start. It skips ops whose inputs have not arrived and, so that memory does not block the
    rest, an F that does not fit. No op starts that would delay an op due before it by more than
    its tolerance."""
    if r.running[COMPUTE, d, 0] >= 0:
        return
    m = r.micro.shape[2]
    mine = r.stages[r.device[FIRST, d] : r.device[FIRST, d] + r.device[COUNT, d]]
    latest = FOREVER  # the latest due time of an F
    for s in mine:
        j = r.begun[B, s]
        if j < m and not forced:
            latest = min(latest, r.due[B, s, j] + r.window)
        j = r.begun[F, s]
        if j < m and not forced and r.micro[READY + F, s, j] > now:
            latest = min(latest, r.due[F, s, j] + r.window)
    best, op, reserve, first = -1, F, False, FOREVER
    for kind in (B, F, W):
        for s in mine:
            if _when(r, kind, s, now) > now:
                continue
            j = r.begun[kind, s]
            due = r.due[kind, s, j]
            if due >= first or (kind == F and due > latest):
                continue
            admitted = admits(r, s, j, forced) if kind == F else 1
            if admitted:
                best, op, reserve, first = s, kind, admitted == 2, due
    if best < 0:
        return
    duration = r.duration[op, best, r.begun[op, best]]
    ends = now + duration - duration * r.tolerance // 1000
    for kind in (B, F):
        for s in mine:
            when = _when(r, kind, s, now)
            if now < when < ends and r.due[kind, s, r.begun[kind, s]] < first and not forced:
                return
    if op == F:
        start_forward(r, best, now, reserve)
    elif op == B:
        start_backward(r, best, now)
    else:
        start(r, W, best, now)


@step
def _copies(r: Run, engine: int, d: int) -> bool:
    """Whether a transfer of this direction could start."""
    if r.busy[r.device[LINK_O + engine - OUT, d]] or r.running[engine, d, 0] >= 0:
        return False
    return not (r.shared and r.running[OUT + IN - engine, d, 0] >= 0)


@step
def _transfer(r: Run, engine: int, kind: int, s: int, j: int, now: int) -> None:
    d = r.stage[DEVICE, s]
    r.busy[r.device[LINK_O + engine - OUT, d]] = 1
    r.state[TURN] = d + 1  # the next device of the link is tried first
    begin(r, engine, kind, s, j, now)


@step
def _reload(r: Run, d: int, now: int, forced: bool) -> None:
    """Start a reload, if one is due and fits."""
    if not _copies(r, IN, d):
        return
    chunks = r.device[COUNT, d]
    best, best_j, best_rank = -1, -1, FOREVER
    for chunk in range(chunks):
        s = r.stages[r.device[FIRST, d] + chunk]
        if r.begun[O, s] == r.begun[R, s]:
            continue
        j = r.begun[B, s]
        end = min(max(needed_soon(r, s), j + 1 if forced else 0), r.micro.shape[2])
        while j < end and r.micro[HELD, s, j] != AWAY:
            j += 1
        if j >= end:
            continue
        rank, moved = b_rank_of(r, s, chunk, chunks, j), r.micro[MOVED, s, j]
        fits = r.device[LEVEL, d] + moved <= r.device[CAPACITY, d]
        if fits and rank < best_rank and is_safe(r, s, j, moved):
            best, best_j, best_rank = s, j, rank
    if best < 0:
        return
    become(r, best, best_j, COMING, r.micro[PROMISED, best, best_j])
    r.device[LEVEL, d] += r.micro[MOVED, best, best_j]
    _transfer(r, IN, R, best, best_j, now)
    return


@step
def _short(r: Run, d: int, now: int, forced: bool) -> bool:
    """Whether device d should offload an activation: little memory is left and some op will need it
    (forced: some op waits for it)."""
    room = r.device[CAPACITY, d] - r.device[LEVEL, d]
    m = r.micro.shape[2]
    wished, left = 0, False
    for at in range(r.device[FIRST, d], r.device[FIRST, d] + r.device[COUNT, d]):
        s = r.stages[at]
        j, k = r.begun[F, s], r.begun[B, s]
        if forced:
            if j < m and r.micro[READY + F, s, j] <= now and r.micro[ACT, s, j] > room:
                return True
            if k < m and r.micro[HELD, s, k] == AWAY and r.micro[MOVED, s, k] > room:
                return True
        wished = max(wished, r.micro[ACT, s, min(j, m - 1)])
        left = left or j < m or r.begun[R, s] < r.begun[O, s]
    return not forced and left and room < r.headroom * wished


@step
def _candidate(r: Run, s: int, forced: bool) -> int:
    """Return the microbatch of stage s that should be offloaded first, or -1."""
    low, high = r.begun[B, s], r.begun[F, s]
    if forced:
        for j in range(high - 1, low - 1, -1):
            if r.micro[HELD, s, j] == RESIDENT and _may_move(r, s, j):
                return j
        return -1
    low = max(low, needed_soon(r, s))
    j = r.stage[TOP, s]
    if r.oldest:
        j = max(low, r.stage[BOTTOM, s])
        while j < high and _never(r, s, j):
            j += 1
        r.stage[BOTTOM, s] = j
    else:
        while j >= 0 and _never(r, s, j):
            j = r.micro[BELOW, s, j]
        r.stage[TOP, s] = j
        if j >= 0 and r.micro[HELD, s, j] == FORWARD:
            top, j = j, r.micro[BELOW, s, j]
            while j >= 0 and _never(r, s, j):
                j = r.micro[BELOW, s, j]
            r.micro[BELOW, s, top] = j
    found = low <= j < high and r.micro[HELD, s, j] == RESIDENT and _may_move(r, s, j)
    return j if found else -1


@step
def _never(r: Run, s: int, j: int) -> bool:
    """Whether (s, j) can no longer be offloaded, or never could."""
    return bool(r.micro[HELD, s, j] > RESIDENT or r.micro[MOVED, s, j] == 0)


@step
def _may_move(r: Run, s: int, j: int) -> bool:
    return bool(r.micro[MOVED, s, j] > 0 and _reserves(r, s, j) > 0)


@step
def _reserves(r: Run, s: int, j: int) -> int:
    """Return which host memory (s, j) may use: 0 none, 1 reserved memory, 2 the spare part, which
    only the oldest microbatch uses."""
    if r.micro[PROMISED, s, j]:
        return int(r.micro[PROMISED, s, j])
    d = r.stage[DEVICE, s]
    node = r.device[NODE, d]
    if r.host[1, node] + r.micro[MOVED, s, j] <= r.host[0, node]:
        return 1
    return 2 if r.stage[SPARE, s] and j == oldest_of(r, d) else 0


@step
def _offload(r: Run, d: int, now: int, forced: bool) -> None:
    """Start an offload, if memory is short and an activation may be offloaded."""
    if not _copies(r, OUT, d) or not _short(r, d, now, forced):
        return
    chunks = r.device[COUNT, d]
    best, best_j, best_rank = -1, -1, FOREVER
    for chunk in range(chunks):
        s = r.stages[r.device[FIRST, d] + chunk]
        j = _candidate(r, s, forced) if r.stage[MOVES, s] else -1
        rank = b_rank_of(r, s, chunk, chunks, j)
        if forced or not r.oldest:
            rank = -rank
        if j >= 0 and rank < best_rank:
            best, best_j, best_rank = s, j, rank
    if best < 0:
        return
    how = _reserves(r, best, best_j)
    if how == 1 and r.micro[PROMISED, best, best_j] == 0:
        r.host[1, r.device[NODE, d]] += r.micro[MOVED, best, best_j]
    become(r, best, best_j, LEAVING, how)
    _transfer(r, OUT, O, best, best_j, now)
    return


@step
def _finish(r: Run, engine: int, d: int) -> None:
    """End an op: update its memory, its engine and link, and wake the devices that may continue."""
    kind, s, j = r.running[engine, d, 0], r.running[engine, d, 1], r.running[engine, d, 2]
    r.running[engine, d, 0] = -1
    promised = r.micro[PROMISED, s, j]
    r.ended[kind, s] += 1
    become(r, s, j, HELD_BEHIND[kind], promised)
    r.device[LEVEL, d] -= r.released[kind, s, j]
    if kind == R and promised == 1:
        r.host[1, r.device[NODE, d]] -= r.micro[MOVED, s, j]
    if engine == COMPUTE:
        return
    link = r.device[LINK_O + engine - OUT, d]
    r.busy[link] = 0
    bounded = r.host[0, r.device[NODE, d]] < FOREVER
    for other in range(r.device.shape[1]):
        same = r.device[LINK_O, other] == link or r.device[LINK_R, other] == link
        if same or (bounded and r.device[NODE, other] == r.device[NODE, d]):
            wake(r, other)


@entry
def play(r: Run, stop: int) -> bool:
    """Simulate a fresh run to its end; False if it would end after `stop`, or deadlocks."""
    p = r.device.shape[1]
    now = 0
    forced = False
    while True:
        if forced:
            for d in range(p):
                wake(r, d)
        awake, first = r.state[AWAKE_NOW], 0
        while first < awake and r.device[WOKEN, first] < r.state[TURN]:
            first += 1
        for turn in range(first, first + awake):
            d = r.device[WOKEN, turn if turn < awake else turn - awake]
            for part in range(3):
                if part == (0 if r.reload_first else 2):
                    _reload(r, d, now, forced)
                elif part == 1 and len(r.due):
                    _follow(r, d, now, forced)
                elif part == 1:
                    _compute(r, d, now, forced)
            _offload(r, d, now, forced)
            r.device[AWAKE, d] = 0
        r.state[AWAKE_NOW] = 0
        if r.state[HEAP] == 0:
            if forced:
                break
            forced = True  # no event is left: run what was deferred
            continue
        forced = False
        now = r.heap[0, 0]
        if now > stop:
            break
        while r.state[HEAP] > 0 and r.heap[0, 0] == now:
            code = pop(r.heap, r.state[HEAP])
            r.state[HEAP] -= 1
            wake(r, code % p)
            if code // p != ARRIVAL:
                _finish(r, code // p, code % p)
    done = 0
    for s in range(r.stage.shape[1]):
        done += r.ended[W, s]
    return bool(done == r.stage.shape[1] * r.micro.shape[2])
