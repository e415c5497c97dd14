"""What evaluations work in, and how a change is taken back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# The state of a device between two ops of its program: when its compute stream is free, when memory
# was last granted, the last compute op, when it began and what it gives back; when the copies out
# and back end; bytes above the limit; the slot of the last O whose memory was used again; compute
# time so far, the sum of ends, the first start; then, for serial links, when each is free.
FREE, GRANTED, ANCHOR, ANCHOR_OP, GIVE, OUT, OUT_OP, BACK, BACK_OP, LEVEL, GIVEN = range(11)
DONE, SUM, BEGAN, SENT = range(11, 15)
EVERY = 8  # slots between two marks
NEVER = 2**61
FAILED = -1


class Room(NamedTuple):
    """Of each code its times, and of each device its marks, its state and what a change touched."""

    end: np.ndarray  # (codes,) ns; -1: not yet
    ready: np.ndarray  # (codes,) when its message arrives, ns
    cause: np.ndarray  # (codes,) the op that decided its start, or -1
    slot: np.ndarray  # (codes,) where it stands in the program of its device, or -1
    kept: np.ndarray  # (codes, 3) end, ready and cause before the change
    marks: np.ndarray  # (devices, marks, state) the state before every so many slots
    fresh: np.ndarray  # the same of the change that is being looked at
    state: np.ndarray  # (devices, state)
    at: np.ndarray  # (devices,) the next slot
    begin: np.ndarray  # (devices,) from where on the change is evaluated, a multiple of EVERY
    waits: np.ndarray  # (devices,) the op whose message it waits for, or -1
    stack: np.ndarray  # (devices,)
    work: np.ndarray  # (devices,) compute time in all
    touched: np.ndarray  # (units, 2) units whose mode a change changed, and what it was
    filled: np.ndarray  # (1,) how many they are


def make_room(codes: int, units: int, devices: int, slots: int, serial: bool) -> Room:
    """Arrays for so many codes, units, devices and slots per device."""

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
