"""Step functions of time, for bytes held."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Steps(NamedTuple):
    """A step function: from ``times_ns[k]`` on the value is ``bytes[k]``."""

    times_ns: np.ndarray
    bytes: np.ndarray

    @property
    def peak(self) -> int:
        return int(self.bytes.max())

    def until(self, end_ns: int) -> Steps:
        """Return the same with its last value again at an end, up to which a curve is drawn."""
        return Steps(np.append(self.times_ns, end_ns), np.append(self.bytes, self.bytes[-1]))


def step_function(times: np.ndarray, changes: np.ndarray, level: int) -> Steps:
    """Return the step function that starts at `level` at 0 and has these changes; changes of one instant
    are one step, so releases count before allocations of the same instant."""
    times, changes = times[changes != 0], changes[changes != 0]
    instants, where = np.unique(np.concatenate(([0], times)), return_inverse=True)
    total = np.zeros(len(instants), np.int64)
    np.add.at(total, where[1:], changes)
    return Steps(instants, level + np.cumsum(total))
