"""The compiled part of the search: evaluate a set of programs, change them a little, anneal.

A program is a row of op codes, ``kind << high | stage << low | microbatch``, in issue order, transfers
included, so that every wait points backwards: one pass gives all times. An R counts on releases
before it in the program only, so the times are those of the lowered program; the replay of the
same program under the ordinary rules is never later.

Compiled by numba; all times ns, all memory bytes, int64.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..sim.events import run_events

F, B, W, BW, O, R = range(6)  # noqa: E741  as in ops.OpKind, for the compiler
NEVER = 2**61


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
def evaluate_links(prog, length, costs, links, end, cause):
    """As `evaluate`, event by event, for transfers that share links, first come first served.

    `links`: (link of each device's O's and R's, how many there are, per code the codes it needs,
    padded with -1, and an array (codes,) to work in). Causes are not known: -1.
    """
    (
        lasts,
        act,
        held,
        moved,
        _place,
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
    link_of, count, needed, row_of = links
    devices = len(length)
    size = length.sum()
    kinds = np.empty(size, np.int64)
    device_of = np.empty(size, np.int64)
    offsets = np.zeros(devices + 1, np.int64)
    last, taken, given = (
        np.empty(size, np.int64),
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
    )
    codes = np.empty(size, np.int64)
    row_of[:] = -1
    row = 0
    for d in range(devices):
        for slot in range(length[d]):
            code = prog[d, slot]
            kind, stage = code >> high, (code & ((1 << high) - 1)) >> low
            row_of[code] = row
            codes[row], kinds[row], device_of[row] = code, kind, d
            last[row] = lasts[kind, stage]
            if kind == F:
                taken[row] = act[stage]
            elif kind == B:
                given[row] = act[stage] - held[stage]
            elif kind == W:
                given[row] = held[stage]
            elif kind == O:
                given[row] = moved[stage]
            else:
                taken[row] = moved[stage]
            row += 1
        offsets[d + 1] = row
    first = np.zeros(size + 1, np.int64)
    needs = np.empty(3 * size, np.int64)
    total = 0
    for row in range(size):
        for slot in range(needed.shape[1]):
            other = needed[codes[row], slot]
            if other >= 0 and row_of[other] >= 0:
                needs[total] = row_of[other]
                total += 1
        first[row + 1] = total
    _, ends, _, _, _ = run_events(
        kinds, device_of, offsets, last, taken, given, first, needs, static, limit, shared,
        link_of, count, np.zeros(count + 1, np.int64), np.zeros(0, np.int64), serial,
        lag - occupancy, occupancy,
    )  # fmt: skip
    makespan, span, all_ends = 0, 0, 0
    for d in range(devices):
        opened, closed = -1, 0
        for row in range(offsets[d], offsets[d + 1]):
            if ends[row] < 0:
                return NEVER, NEVER, 0
            end[codes[row]] = ends[row]
            cause[codes[row]] = -1
            makespan = max(makespan, ends[row])
            if kinds[row] < O:
                all_ends += ends[row]
                closed = ends[row]
                if opened < 0:
                    opened = ends[row] - last[row]
        span = max(span, closed - opened)
    return makespan, span, all_ends


@njit(cache=True)
def measure(prog, length, costs, links, space, end, ready, cause):
    """`evaluate`, or `evaluate_links` where there are links that are shared."""
    if links[1] > 0:
        return evaluate_links(prog, length, costs, links, end, cause)
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


@njit(cache=True)
def _blocks(one, two, low, high):
    """Whether `one` must stay before `two`, its neighbour in a program."""
    if (one ^ two) & ((1 << high) - 1) == 0:  # F, O, R, B, W of one microbatch and stage
        return True
    # one kind of a stage keeps its microbatches in order
    return one >> low == two >> low


@njit(cache=True)
def shift(prog, d, start, stop, low, high):
    """Move the op at `start` towards `stop`, as far as nothing forbids; returns where it is."""
    here = start
    while here < stop:
        if _blocks(prog[d, here], prog[d, here + 1], low, high):
            break
        prog[d, here], prog[d, here + 1] = prog[d, here + 1], prog[d, here]
        here += 1
    while here > stop:
        if _blocks(prog[d, here - 1], prog[d, here], low, high):
            break
        prog[d, here], prog[d, here - 1] = prog[d, here - 1], prog[d, here]
        here -= 1
    return here


@njit(cache=True)
def _find(prog, d, length, code):
    for slot in range(length):
        if prog[d, slot] == code:
            return slot
    return -1


@njit(cache=True)
def toggle(prog, length, d, unit, ahead, high):
    """Offload an activation that stays, its reload `ahead` ops before its B; or keep one that
    goes. Returns False where there is no room."""
    out, back = unit | O << high, unit | R << high
    gone = 0
    for slot in range(length[d]):
        code = prog[d, slot]
        if code in (out, back):
            gone += 1
        else:
            prog[d, slot - gone] = code
    if gone:
        length[d] -= gone
        return True
    forward = _find(prog, d, length[d], unit)
    backward = _find(prog, d, length[d], unit | B << high)
    where = max(forward + 1, backward - ahead)
    for slot in range(length[d] - 1, where - 1, -1):
        prog[d, slot + 2] = prog[d, slot]
    for slot in range(where, forward, -1):
        prog[d, slot + 1] = prog[d, slot]
    prog[d, forward + 1] = out
    prog[d, where + 1] = back
    length[d] += 2
    return True


@njit(cache=True)
def _copy_neighbour(prog, length, d, other, step):
    """Give device d the order of a neighbour, for one stage per device on both."""
    for slot in range(length[other]):
        prog[d, slot] = prog[other, slot] + step
    length[d] = length[other]


@njit(cache=True)
def _critical(end, cause, prog, length, path, high):
    """Ops on one critical path from the last end back; returns how many."""
    last = -1
    for d in range(len(length)):
        for slot in range(length[d] - 1, -1, -1):
            code = prog[d, slot]
            if code >> high < O:
                if last < 0 or end[code] > end[last]:
                    last = code
                break
    count = 0
    while last >= 0 and count < len(path):
        path[count] = last
        count += 1
        last = cause[last]
    return count


@njit(cache=True)
def seed_random(seed):
    """Seed the generator of the compiled code."""
    np.random.seed(seed)


@njit(cache=True)
def anneal(
    prog, length, costs, links, space, end, ready, cause, best_prog, best_length, best, steps, hot, cold,
    span_counts, mean_weight, offloads, alike, goal,
):  # fmt: skip
    """Anneal `prog` in place for `steps` evaluations, from temperature `hot` to `cold` (ns).

    `best_prog`, `best_length`: the best so far, kept up to date; `best`: its cost. `alike`: one
    stage per device. `goal`: stop at this cost.

    Returns:
        (best cost, evaluations done).
    """
    devices, m, stages = len(length), costs[11], len(costs[1])
    low, high = costs[12], costs[13]
    path = np.empty(4 * stages * m, np.int64)
    saved = prog.copy()
    saved_length = length.copy()

    makespan, span, total = measure(prog, length, costs, links, space, end, ready, cause)
    cost = span if span_counts else makespan
    score = cost + mean_weight * total
    on_path = 0 if links[1] else _critical(end, cause, prog, length, path, high)
    if cost < best:
        best = cost
        best_prog[:] = prog
        best_length[:] = length
    for step in range(steps):
        if best <= goal:
            return best, step
        temperature = hot * (cold / hot) ** (step / steps)
        draw = np.random.random()
        if on_path and draw < 0.7:
            code = path[np.random.randint(on_path)]
        else:
            d = np.random.randint(devices)
            code = prog[d, np.random.randint(length[d])]
        kind = code >> high
        unit = code & ((1 << high) - 1)
        stage, micro = unit >> low, unit & ((1 << low) - 1)
        d = costs[4][stage]
        many = False
        choice = np.random.random()
        if offloads and choice < 0.15:
            toggle(prog, length, d, unit, np.random.randint(1, 12), high)
        elif choice < 0.75:
            slot = _find(prog, d, length[d], code)
            move = np.random.randint(1, 9)
            if np.random.random() < 0.3:
                move = np.random.randint(1, 3)
            to = slot - move if np.random.random() < 0.5 else slot + move
            if shift(prog, d, slot, min(max(to, 0), length[d] - 1), low, high) == slot:
                continue
        elif choice < 0.97 or not alike or devices < 2:
            # the same change for a run of microbatches, here and perhaps on the devices near by
            many = True
            change = np.random.randint(1, 5)
            if np.random.random() < 0.5:
                change = -change
            run = np.random.randint(1, max(2, min(m, 12)))
            if np.random.random() < 0.2:
                run = m
            wide = np.random.random() < 0.4
            flip = offloads and np.random.random() < 0.25
            ahead = np.random.randint(1, 12)
            for other in range(stages):
                if other != stage and not wide:
                    continue
                if wide and abs(other - stage) > 3 and run < m:
                    continue
                for step_on in range(run):
                    j = micro + step_on if change < 0 else micro + run - 1 - step_on
                    if j >= m:
                        continue
                    where = costs[4][other]
                    if flip:
                        toggle(prog, length, where, other << low | j, ahead, high)
                        continue
                    slot = _find(prog, where, length[where], kind << high | other << low | j)
                    if slot >= 0:
                        to = min(max(slot + change, 0), length[where] - 1)
                        shift(prog, where, slot, to, low, high)
        else:
            other = d + 1 if np.random.random() < 0.5 else d - 1
            if other < 0 or other >= devices:
                continue
            _copy_neighbour(prog, length, d, other, (d - other) << low)
        makespan, span, total = measure(prog, length, costs, links, space, end, ready, cause)
        new = span if span_counts else makespan
        new_score = new + mean_weight * total
        if new < NEVER and (
            new_score <= score or np.random.random() < np.exp((score - new_score) / temperature)
        ):
            cost, score = new, new_score
            if many:
                saved[:] = prog
                saved_length[:] = length
            else:
                saved[d, : length[d]] = prog[d, : length[d]]
                saved_length[d] = length[d]
            on_path = 0 if links[1] else _critical(end, cause, prog, length, path, high)
            if cost < best:
                best = cost
                best_prog[:] = prog
                best_length[:] = length
        elif many:
            prog[:] = saved
            length[:] = saved_length
        else:
            length[d] = saved_length[d]
            prog[d, : length[d]] = saved[d, : length[d]]
    return best, steps
