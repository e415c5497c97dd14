"""What a rank measured in one iteration, and the trace of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import RuntimeFault
from ...ops import Op, R
from ...sim.lower import Lowered
from ...trace import Trace

Times = dict[Op, tuple[int, int]]


@dataclass
class Record:
    """What one rank measured in one iteration.

    Attributes:
        times_ns: start and end of every op, in ns after the common start.
        granted_ns: of every R, when its memory was allocated.
        held: (ns, bytes) around every compute op, and after changes of memory between them; empty without a
            meter.
        loss: of the last stage's rank.
    """

    rank: int
    times_ns: Times = field(default_factory=dict)
    granted_ns: dict[Op, int] = field(default_factory=dict)
    held: list[tuple[int, int]] = field(default_factory=list)
    loss: float | None = None

    @property
    def peak_bytes(self) -> int:
        """The most that was held at a boundary between ops."""
        return max((held for _, held in self.held), default=0)


def measured_trace(lowered: Lowered, records: Sequence[Record]) -> Trace:
    """Return what all ranks measured in one iteration, as a trace: for figures, Perfetto, explanations.

    Raises:
        RuntimeFault: where an op was not measured.
    """
    schedule = lowered.schedule
    times: Times = {}
    grants: dict[Op, int] = {}
    for record in records:
        times |= record.times_ns
        grants |= record.granted_ns
    ops = [op for program in schedule.flat_programs for op in program]
    missing = [op for op in ops if op not in times]
    if missing:
        raise RuntimeFault(f"{missing[0]} was not measured")
    start, end = np.array([times[op] for op in ops], np.int64).T
    grant = [grants.get(op, times[op][0]) if op.kind is R else times[op][0] for op in ops]
    return Trace(
        schedule,
        lowered.profile,
        start.copy(),
        end.copy(),
        np.array(grant, np.int64),
        memory_limit=lowered.memory_limit,
    )
