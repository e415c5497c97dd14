"""What the nodes of the compiled searches of one device have in common.

A node is a row: the state at time ``T`` after everything that has started so far. First come the fields
named here, then what `moves` counts per stage and level, with the ends of the F's whose activations wait
on the device (at most ``keep`` of them, oldest first).

All times ns, all memory bytes, int64; nothing here allocates.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from ...compiled import step

# fields of a node; TC, TO, TR: until when the compute stream, the O and the R engine are busy; KC, SO, SR: with
# which op; GC, GO: bytes released at the end of the compute op, of the O
T, TC, GC, KC, TO, GO, SO, TR, SR, LEVEL, COST = range(11)
FIELDS = 11
NEVER = 1 << 60
NONE = -1


@step
def begin(node, release):
    """Make the first node: nothing has started, and nothing can before `release`."""
    for k in range(len(node)):
        node[k] = 0
    for k in (T, TC, TO, TR):
        node[k] = release
    for k in (KC, SO, SR):
        node[k] = NONE


@step
def fits_at(node, size, capacity, earliest):
    """Return when `size` more bytes fit, given the running ops; NONE if only ops that have not started can free
    enough."""
    need = node[LEVEL] + size - capacity
    if need <= 0:
        return earliest
    by_copy, by_compute = node[GO], node[GC]
    when = np.int64(NEVER)
    if need <= by_copy:
        when = node[TO]
    if need <= by_compute and node[TC] < when:
        when = node[TC]
    if need <= by_copy + by_compute:
        when = min(when, max(node[TO], node[TC]))
    if when == NEVER:
        return np.int64(NONE)
    return max(when, earliest)


@step
def reload_start(node, code, on_host, size, capacity, shared):
    """Return the earliest start of an R of a stage's (and level's) `code`, or NONE."""
    if on_host == 0:
        return np.int64(NONE)
    when = node[TR]
    if shared or (on_host == 1 and node[SO] == code):
        when = max(when, node[TO])
    return fits_at(node, size, capacity, when)


@step
def offload_start(node, forward, waiting, at_once, shared):
    """Return the earliest start of an O, or NONE: of the F that runs, if `at_once`, or else of the newest that
    has ended; `forward` is the value of KC while an F of the stage (and level) runs."""
    if waiting == 0:
        return np.int64(NONE)
    runs = node[KC] == forward and node[TC] > node[T]
    when = max(node[T], node[TO])
    if shared:
        when = max(when, node[TR])
    if at_once:
        return max(when, node[TC]) if runs and node[TC] > when else np.int64(NONE)
    if runs and node[TC] > when and waiting == 1:
        return np.int64(NONE)
    return when


@step
def forward_outlasts(node, forward, shared):
    """Whether an F runs and will still be running when the next O can start."""
    runs = node[KC] == forward and node[TC] > max(node[T], node[TO])
    if shared and runs:
        runs = node[TC] > node[TR]
    return runs


@step
def settle(node, when):
    """Advance a node to a time: ops that have ended by then release their memory and their engine."""
    if node[TC] <= when:
        node[LEVEL] -= node[GC]
        node[GC], node[KC] = 0, NONE
    if node[TO] <= when:
        node[LEVEL] -= node[GO]
        node[GO], node[SO] = 0, NONE
    if node[TR] <= when:
        node[SR] = NONE
    node[T] = when


@step
def remove(node, stay, ages, keep, place):
    """Remove one of the ends of F's. Ends that are not stored are no earlier than the newest one that is."""
    count = node[stay]
    kept = min(count, keep)
    newest = node[ages + kept - 1]
    for k in range(place, kept - 1):
        node[ages + k] = node[ages + k + 1]
    node[ages + kept - 1] = newest if count > keep else 0
    node[stay] = count - 1


@step
def remove_newest(node, stay, ages, keep, but_one):
    """Remove the newest of the ends of F's, or the one before it."""
    if node[stay] > keep:
        node[stay] -= 1
    else:
        remove(node, stay, ages, keep, node[stay] - (2 if but_one else 1))


@step
def forget_past(node):
    """Forget since when engines are idle, which does not matter."""
    for field in (TC, TO, TR):
        node[field] = max(node[field], node[T])


@step
def forget_ages(node, stay, ages, keep, before):
    """Forget when F's ended, if that was before a time from which on it does not matter."""
    for k in range(min(node[stay], keep)):
        node[ages + k] = max(node[ages + k], before)


@step
def no_later(one, other):
    """Whether in `one` no engine is busy for longer than in `other`, nor memory released later."""
    for k in (T, TC, TO, TR, COST):
        if one[k] > other[k]:
            return False
    now = other[T]
    if one[GC] > other[GC] and one[TC] > now:
        return False
    if one[GO] > other[GO] and one[TO] > now:
        return False
    return not (
        (one[SO] != other[SO] and one[TO] > now) or (one[SR] != other[SR] and one[TR] > now)
    )


@step
def no_younger(one, other, stay, ages, keep):
    """Whether no F of those that wait ended later in `one` than in `other`."""
    for k in range(min(one[stay], keep)):  # noqa: SIM110 (compiled)
        if one[ages + k] > other[ages + k]:
            return False
    return True


@step
def earliest(one, into):
    """Change `into` so that no engine is busy for longer than in one of two nodes with the same counts, nor memory
    released later; an engine that runs different ops in the two runs a nameless one."""
    base = into[LEVEL] - into[GC] - into[GO]
    for k in (T, TC, TO, TR, COST, GC, GO):
        into[k] = min(one[k], into[k])
    for k in (KC, SO, SR):
        if one[k] != into[k]:
            into[k] = NONE
    into[LEVEL] = base + into[GC] + into[GO]


@step
def apart(one, other):
    """Return how much the engines of two nodes differ: in time, and where they run different ops, which a merged
    node takes to have released their memory."""
    total = np.int64(0)
    for k in (T, TC, TO, TR):
        total += abs(one[k] - other[k])
    for k, until in ((KC, TC), (SO, TO), (SR, TR)):
        if one[k] != other[k]:
            total += max(one[until] - one[T], other[until] - other[T])
    return total


@step
def earliest_ages(one, into, stay, ages, keep):
    """Change the ends of the F's of `into` to the earlier of those of two nodes with the same counts."""
    for k in range(min(one[stay], keep)):
        into[ages + k] = min(one[ages + k], into[ages + k])


@step
def ages_apart(one, other, stay, ages, keep):
    """Return how much the ends of the F's of two nodes with the same counts differ."""
    total = np.int64(0)
    for k in range(min(one[stay], keep)):
        total += abs(one[ages + k] - other[ages + k])
    return total
