"""The times of a set of programs, compiled: what the search evaluates.

A program is a row of op codes, ``kind << high | stage << low | microbatch``, in issue order, transfers
included, so that every wait points backwards: one pass gives all times. An R counts on releases
before it in the program only, so the times are those of the lowered program; the replay of the
same program under the ordinary rules is never later.

Compiled by numba; all times ns, all memory bytes, int64.
"""

from __future__ import annotations

from numba import njit

from .search_links import NEVER as NEVER
from .search_links import B as B
from .search_links import F as F
from .search_links import O as O
from .search_links import R as R
from .search_links import W as W
from .search_links import evaluate_links


@njit(cache=True)
def evaluate(prog, length, costs, space, end, ready, cause):
    """The times of a set of programs.

    Args:
        prog, length: (devices, room) codes and how many of them count.
        costs: see `search.Costs`. `space`: what it works in.
        end: (codes,) filled with the end of each op, -1 for those that are not there.
        ready: (codes,) filled with the arrival of the message of each op.
        cause: (codes,) filled with the op whose end (or start) decided the start, or -1.

    Returns:
        (makespan, longest span, sum of ends), ``NEVER`` first where it cannot go on or exceeds
        the limit.
    """
    (
        lasts,
        act,
        held,
        moved,
        place,
        limit,
        static,
        lag,
        occupancy,
        serial,
        shared,
        _,
        low,
        high,
    ) = costs
    (at, free, queue, granted, anchor, anchor_op, stack, inside, level, queued, q_head, q_tail, first,
     pair) = space  # fmt: skip
    devices = len(length)
    stages = len(act)
    mask = (1 << high) - 1
    above = 1 << low
    end[:] = -1
    for d in range(devices):
        at[d] = free[d] = granted[d] = anchor[d] = 0
        anchor_op[d] = -1
        queue[d, 0] = queue[d, 1] = 0
        level[d] = static[d] - limit[d]  # above 0: over the limit
        q_head[d] = q_tail[d] = 0
        first[d] = -1
        stack[d] = devices - 1 - d
        inside[d] = True
        for other in range(devices):
            if serial:
                pair[d, other] = 0
    depth = devices
    done = 0
    makespan = 0
    total = 0
    while depth > 0:
        depth -= 1
        d = stack[depth]
        inside[d] = False
        while at[d] < length[d]:
            code = prog[d, at[d]]
            kind = code >> high
            unit = code & mask
            stage = unit >> low
            if kind == O:
                time = end[unit]
                why = unit
                if time < 0:
                    return NEVER, NEVER, 0
                if queue[d, 0] > time:
                    time = queue[d, 0]
                    why = cause[code]
                finish = time + lasts[O, stage]
                queue[d, 0] = finish
                queued[d, q_tail[d]] = code
                q_tail[d] += 1
                end[code] = finish
                cause[code] = why
                at[d] += 1
                done += 1
                continue
            if kind == R:
                out = unit | O << high
                if end[out] < 0:
                    return NEVER, NEVER, 0
                # the anchor's release counts from its end on; alternatively O's alone may do
                give = 0
                if anchor_op[d] >= 0:
                    give = _given(anchor_op[d], low, high, act, held)
                base = max(anchor[d], granted[d])
                need = level[d] + moved[stage]
                best = NEVER
                best_head = q_head[d]
                best_why = anchor_op[d]
                for use in range(2):
                    rest = need + (give if use == 0 else 0)
                    time = base if use == 0 else max(base, free[d])
                    why = anchor_op[d]
                    head = q_head[d]
                    while rest > 0 and head < q_tail[d]:
                        released = queued[d, head]
                        rest -= moved[(released & mask) >> low]
                        if end[released] > time:
                            time = end[released]
                            why = released
                        head += 1
                    if rest <= 0 and time < best:
                        best, best_head, best_why = time, head, why
                if best == NEVER:
                    return NEVER, NEVER, 0
                for slot in range(q_head[d], best_head):
                    level[d] -= moved[(queued[d, slot] & mask) >> low]
                q_head[d] = best_head
                level[d] += moved[stage]
                granted[d] = best
                way = 0 if shared else 1
                time, why = best, best_why
                if end[out] > time:
                    time, why = end[out], out
                if queue[d, way] > time:
                    time, why = queue[d, way], -2
                finish = time + lasts[R, stage]
                queue[d, way] = finish
                end[code] = finish
                cause[code] = why
                at[d] += 1
                done += 1
                continue
            time = free[d]
            why = anchor_op[d]
            if kind == F:
                if stage > 0:
                    before = unit - above
                    if end[before] < 0:
                        break
                    if place[stage - 1] != d and ready[before] > time:
                        time, why = ready[before], before
                need = level[d] + act[stage]
                if granted[d] > time:
                    time = granted[d]
                while need > 0 and q_head[d] < q_tail[d]:
                    released = queued[d, q_head[d]]
                    q_head[d] += 1
                    size_out = moved[(released & mask) >> low]
                    need -= size_out
                    level[d] -= size_out
                    if end[released] > time:
                        time, why = end[released], released
                if need > 0:
                    return NEVER, NEVER, 0
                level[d] += act[stage]
                granted[d] = time
            elif kind == B:
                if end[unit] < 0:
                    return NEVER, NEVER, 0
                if stage < stages - 1:
                    after = code + above
                    if end[after] < 0:
                        break
                    if place[stage + 1] != d and ready[after] > time:
                        time, why = ready[after], after
                back = unit | R << high
                if end[unit | O << high] >= 0:
                    if end[back] < 0:
                        return NEVER, NEVER, 0
                    if end[back] > time:
                        time, why = end[back], back
                level[d] -= act[stage] - held[stage]
            else:
                if end[unit | B << high] < 0:
                    return NEVER, NEVER, 0
                level[d] -= held[stage]
            finish = time + lasts[kind, stage]
            if first[d] < 0:
                first[d] = time
            anchor[d] = time
            anchor_op[d] = code
            free[d] = finish
            end[code] = finish
            cause[code] = why
            total += finish
            if finish > makespan:
                makespan = finish
            at[d] += 1
            done += 1
            target = -1
            if kind == F and stage < stages - 1:
                target = place[stage + 1]
            elif kind == B and stage > 0:
                target = place[stage - 1]
            if target >= 0:
                if target != d:
                    depart = finish
                    if serial:
                        depart = max(depart, pair[d, target])
                        pair[d, target] = depart + occupancy
                    ready[code] = depart + lag
                    if not inside[target]:
                        inside[target] = True
                        stack[depth] = target
                        depth += 1
                else:
                    ready[code] = finish
    expected = 0
    span = 0
    for d in range(devices):
        expected += length[d]
        span = max(span, free[d] - first[d])
    if done < expected:
        return NEVER, NEVER, 0
    return makespan, span, total


@njit(cache=True)
def measure(prog, length, costs, links, space, end, ready, cause):
    """`evaluate`, or `evaluate_links` where there are links that are shared."""
    if links[1] > 0:
        return evaluate_links(prog, length, costs, links, space, end, ready, cause)
    return evaluate(prog, length, costs, space, end, ready, cause)


@njit(cache=True)
def _given(code, low, high, act, held):
    """What a compute op gives back at its end."""
    kind = code >> high
    stage = (code & ((1 << high) - 1)) >> low
    if kind == B:
        return act[stage] - held[stage]
    if kind == W:
        return held[stage]
    return 0
