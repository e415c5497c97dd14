"""Compiled: which releases a grant has to wait for."""

from __future__ import annotations

import numpy as np

from ..codes import O, R
from ..compiled import compiled


@compiled
def find_waits(kinds, asks, offsets, taken, given, static, limits, granted_as, ended_as):
    """Find the releases that each allocating op has to wait for, so that its device keeps its limit under any
    durations.

    Of the releases that preceded a grant in one feasible run it takes as few as suffice, in their order there;
    those before it on its own stream, and those that an earlier grant waits for, need no further wait.

    Returns:
        (rows that wait, rows whose end they wait for), -1 in the latter if all releases before the grant
        do not suffice (an infeasible run).
    """
    size = len(kinds)
    waiting = np.empty(2 * size, np.int64)
    needed = np.empty(2 * size, np.int64)
    count = 0
    for device in range(len(offsets) - 1):
        if limits[device] < 0:
            continue
        begin, stop = offsets[device], offsets[device + 1]
        compute = np.empty(stop - begin, np.int64)
        copies = np.empty(stop - begin, np.int64)
        n_compute, n_copies = 0, 0
        for row in range(begin, stop):
            if kinds[row] < O:
                compute[n_compute] = row
                n_compute += 1
            elif kinds[row] == O:
                copies[n_copies] = row
                n_copies += 1
        need = static[device] - limits[device]
        ahead = 0  # compute ops before this point of the program
        done, out = 0, 0  # compute ops and O's that have certainly ended
        freed, moved = 0, 0  # bytes that these have released
        for row in range(begin, stop):
            kind = kinds[row]
            if asks[row]:
                need += taken[row]
                surely = ahead if kind != R else max(ahead - 1, 0)
                while done < surely:
                    freed += given[compute[done]]
                    done += 1
                done_before, out_before = done, out
                freed_before, moved_before = freed, moved
                while freed + moved < need:
                    next_done = done < n_compute and 0 <= ended_as[compute[done]] < granted_as[row]
                    next_out = out < n_copies and 0 <= ended_as[copies[out]] < granted_as[row]
                    if next_done and (
                        not next_out or ended_as[compute[done]] < ended_as[copies[out]]
                    ):
                        freed += given[compute[done]]
                        done += 1
                    elif next_out:
                        moved += given[copies[out]]
                        out += 1
                    else:
                        waiting[0], needed[0] = row, -1
                        return waiting[:1], needed[:1]
                # if one stream alone suffices, the other wait is left out; and neither waits longer than needed
                if freed_before + moved >= need:
                    done, freed = done_before, freed_before
                if freed + moved_before >= need:
                    out, moved = out_before, moved_before
                while out > out_before and freed + moved - given[copies[out - 1]] >= need:
                    out -= 1
                    moved -= given[copies[out]]
                while done > done_before and freed + moved - given[compute[done - 1]] >= need:
                    done -= 1
                    freed -= given[compute[done]]
                if done > done_before:
                    waiting[count], needed[count] = row, compute[done - 1]
                    count += 1
                if out > out_before:
                    waiting[count], needed[count] = row, copies[out - 1]
                    count += 1
            if kind < O:
                ahead += 1
    return waiting[:count], needed[:count]
