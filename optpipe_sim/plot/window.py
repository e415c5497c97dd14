"""Which part of a trace is drawn: all of it, or from one instant to another."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import OptPipeError
from ..trace import Trace
from ..units import format_time, format_times, parse_instant

Instant = int | str  # nanoseconds, ``120ms``, or a share of the iteration: ``10%``


class Window(NamedTuple):
    """From one instant to another, in ns."""

    from_ns: int
    to_ns: int

    @property
    def length_ns(self) -> int:
        return self.to_ns - self.from_ns


def window_of(trace: Trace, start: Instant | None = None, end: Instant | None = None) -> Window:
    """The part of a trace between two instants; without them from its first op to its last end.

    Raises:
        OptPipeError: for what is no instant, a beginning after the last op ends, or an end that is
            not later than the beginning.
    """
    whole = trace.makespan_ns
    first = 0 if start is None else _instant(start, whole)
    last = whole if end is None else min(_instant(end, whole), whole)
    if first >= whole:
        raise OptPipeError(
            f"from {start}: the iteration ends at {format_time(whole)}; begin before that"
        )
    if first >= last:
        begin, until = format_times(first, last)
        raise OptPipeError(f"from {start} to {end}: {until} is not later than {begin}")
    return Window(first, last)


def _instant(value: Instant, whole_ns: int) -> int:
    number, is_share = parse_instant(value)
    return int(number * whole_ns) if is_share else int(number)
