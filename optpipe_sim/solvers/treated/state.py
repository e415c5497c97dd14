"""The working arrays of evaluations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# The state of a device between two ops of its program: when its compute stream is free, when
# memory was last granted, the last compute op, when it began and what it releases; when offloads
# and reloads end; bytes above the limit; the slot of the last O whose memory was reused; compute
# time so far, the sum of ends, the first start; then, for serial links, when each is free.
FREE, GRANTED, ANCHOR, ANCHOR_OP, GIVE, OUT, OUT_OP, BACK, BACK_OP, LEVEL, GIVEN = range(11)
DONE, SUM, BEGAN, SENT = range(11, 15)
EVERY = 8  # slots between two checkpoints
NEVER = 2**61
FAILED = -1


class Room(NamedTuple):
    """The times of each code, and for each device its checkpoints, its state and what a move changed."""

    end: np.ndarray  # (codes,) ns; -1: not yet
    ready: np.ndarray  # (codes,) when its message arrives, ns
    cause: np.ndarray  # (codes,) the op that decided its start, or -1
    slot: np.ndarray  # (codes,) its slot in the program of its device, or -1
    kept: np.ndarray  # (codes, 3) end, ready and cause before the move
    marks: np.ndarray  # (devices, marks, state) the state before every so many slots
    fresh: np.ndarray  # the same for the move under evaluation
    state: np.ndarray  # (devices, state)
    at: np.ndarray  # (devices,) the next slot
    begin: np.ndarray  # (devices,) slot from which the move is evaluated, a multiple of EVERY
    waits: np.ndarray  # (devices,) the op whose message it waits for, or -1
    stack: np.ndarray  # (devices,)
    work: np.ndarray  # (devices,) total compute time
    touched: np.ndarray  # (units, 2) units whose mode a move changed, and the mode before
    filled: np.ndarray  # (1,) the number of these


def make_room(codes: int, units: int, devices: int, slots: int, serial: bool) -> Room:
    """Make the arrays for these numbers of codes, units, devices and slots per device."""

    def ints(*size: int) -> np.ndarray:
        return np.zeros(size, np.int64)

    width = SENT + devices * serial
    marks = slots // EVERY + 2
    return Room(
        end=ints(codes) - 1, ready=ints(codes), cause=ints(codes) - 1, slot=ints(codes) - 1,
        kept=ints(codes, 3), marks=ints(devices, marks, width), fresh=ints(devices, marks, width),
        state=ints(devices, width), at=ints(devices), begin=ints(devices), waits=ints(devices),
        stack=ints(devices), work=ints(devices), touched=ints(4 * units, 2), filled=ints(1),
    )  # fmt: skip
