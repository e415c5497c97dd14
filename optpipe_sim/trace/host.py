"""Host memory that copies hold over time, and when drives behind it have written them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..op_costs import moved_bytes
from ..ops import O, R
from ..profile import CostProfile
from ..schedule import Schedule
from .steps import Steps, step_function


class Written(NamedTuple):
    """What drives do with the copies that wait in the host's memory; arrays by row of the schedule's table.

    Attributes:
        begun: O's whose bytes the drives begin to write. done: those that they have written when the R
            starts. end_ns: when they have; of other rows 0.
    """

    begun: np.ndarray
    done: np.ndarray
    end_ns: np.ndarray


def written_behind(
    schedule: Schedule, profile: CostProfile, start_ns: np.ndarray, end_ns: np.ndarray
) -> Written:
    """Return what the drives have written, where they write behind the copies.

    Each node's drives write one copy at a time, in the order in which their O's end (ties by rank). A copy
    whose R starts before it is written is read from the host's memory and not written any further.
    """
    assert profile.offload is not None
    assert profile.offload.nvme is not None
    drives = profile.offload.nvme
    moved = moved_bytes(schedule, profile)
    node = schedule.devices // profile.devices_per_node
    back = _reload_of(schedule)
    size = len(schedule.table)
    found = Written(np.zeros(size, bool), np.zeros(size, bool), np.zeros(size, np.int64))
    free = [0] * profile.nodes
    out = np.flatnonzero(schedule.table[:, 0] == O)
    for row in out[np.argsort(end_ns[out], kind="stable")].tolist():
        at, reload = int(node[row]), int(start_ns[back[row]])
        begin = max(free[at], int(end_ns[row]))
        end = begin + drives.write_ns(int(moved[row]))
        found.begun[row] = begin < reload
        found.done[row] = end <= reload
        found.end_ns[row] = end if end <= reload else 0
        if begin < reload:
            free[at] = min(end, reload)
    return found


def host_memory(
    schedule: Schedule, profile: CostProfile, start_ns: np.ndarray, end_ns: np.ndarray
) -> tuple[Steps, ...]:
    """Return per node the pinned host bytes over time.

    From the start of an O to the end of its R. With drives, those of copies under way, which stream through
    the host unless they go past it. Where drives write behind the copies, from the start of an O until its
    bytes are written, and those of an R that reads from the drives; of one that does not, from the start of
    the O to the end of the R.
    """
    kinds, moved = schedule.table[:, 0], moved_bytes(schedule, profile)
    node = schedule.devices // profile.devices_per_node
    nvme = None if profile.offload is None else profile.offload.nvme
    out, back, freed_ns = kinds == O, kinds == R, end_ns
    if nvme is None:
        takes, gives = out, back
    elif nvme.staging_bytes is None:
        takes = gives = np.zeros_like(out)
    elif nvme.write_behind:
        behind, reload = written_behind(schedule, profile, start_ns, end_ns), _reload_of(schedule)
        read = np.zeros_like(back)
        read[reload[behind.done]] = True
        takes, gives = out | read, back | behind.done
        freed_ns = np.where(behind.done, behind.end_ns, end_ns)
    else:
        takes = gives = out | back
    steps = []
    for at in range(profile.nodes):
        some, others = takes & (node == at), gives & (node == at)
        steps.append(
            step_function(
                np.concatenate((start_ns[some], freed_ns[others])),
                np.concatenate((moved[some], -moved[others])),
                0,
            )
        )
    return tuple(steps)


def _reload_of(schedule: Schedule) -> np.ndarray:
    """Return per row the row of its R, of an O; of other rows the row itself."""
    table = schedule.table
    found = np.arange(len(table))
    out, back = (np.flatnonzero(table[:, 0] == kind) for kind in (O, R))
    by_place = [rows[np.lexsort(table[rows, 1:].T)] for rows in (out, back)]
    found[by_place[0]] = by_place[1]
    return found
