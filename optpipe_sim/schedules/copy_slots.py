"""Compiled: assign time slots to copies on the engines and links that they share."""

from __future__ import annotations

import numpy as np

from ..compiled import compiled, part

NONE = -1
SPREAD = 2654435761  # a prime: neighbouring slots are stored far apart


@part
def _place(taken, resource, slot):
    """Return the place of (resource, slot) in the hash table `taken`, or the free place for it."""
    at = ((slot * SPREAD + resource) * SPREAD >> 15) & (len(taken) - 1)
    while taken[at, 1] != NONE and (taken[at, 0] != resource or taken[at, 1] != slot):
        at = (at + 1) & (len(taken) - 1)
    return at


@part
def _is_free(taken, engine, link, slot):
    """Whether both an engine and a link are free in a slot."""
    return (
        taken[_place(taken, engine, slot), 1] == NONE
        and taken[_place(taken, link, slot), 1] == NONE
    )


@compiled
def plan_slots(earliest, latest, engines, links):
    """Assign slots to pairs of an offload and a reload, in the given order: the first free slot from
    `earliest` on, and the last one up to `latest`, if the reload's is the later one.

    Args:
        earliest, latest: (pairs,).
        engines, links: (pairs, 2) the numbers of the engine and of the link that the offload and the
            reload occupy; engines and links have different numbers.

    Returns:
        (pairs, 2) the slots; `NONE` for a pair without two free ones.
    """
    slots = np.full((len(earliest), 2), NONE)
    size = 16
    while size < 8 * len(earliest):  # at most half of it is in use
        size *= 2
    taken = np.full((size, 2), NONE)  # resource, slot
    for pair in range(len(earliest)):
        out, back = earliest[pair], latest[pair]
        while out < back and not _is_free(taken, engines[pair, 0], links[pair, 0], out):
            out += 1
        while out < back and not _is_free(taken, engines[pair, 1], links[pair, 1], back):
            back -= 1
        if out >= back:
            continue
        slots[pair, 0], slots[pair, 1] = out, back
        for way in range(2):
            for resource in (engines[pair, way], links[pair, way]):
                at = _place(taken, resource, slots[pair, way])
                taken[at, 0], taken[at, 1] = resource, slots[pair, way]
    return slots
