"""How ops that run on one device at the same time slow each other down: measured factors, and a replay
corrected by them.

The replay lets every op take its profiled time, whatever runs beside it. On a real device a compute op takes
longer beside copies, a copy takes longer while the other direction copies too, and an op that follows an idle
gap starts on cold caches and lower clocks. A measured profile has these factors in its `meta`; the corrected
replay is reported beside the plain one and never replaces it: schedules are found and checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import ProfileError
from ..op_costs import op_costs
from ..ops import BW, B, C, F, O, OpKind, R, W
from ..profile import CostProfile
from ..trace import Trace
from .lower import Lowered

KEY = "interference"  # in a profile's meta
BESIDE = ("d2h", "h2d", "both")
IDLE = "idle"
ROUNDS = 20
# the measured op that represents a kind: recomputation runs the kernels of the forward
MEASURED_AS = {F: "F", B: "B", W: "W", BW: "BW", C: "F"}


@dataclass(frozen=True)
class Interference:
    """Measured factors of one profile, as its `meta` has them.

    Attributes:
        stages: per stage, by op and situation (``d2h``, ``h2d``, ``both``: beside copies that way;
            ``message``: beside copies within the device, as fast as its memory is; ``idle``: after an
            idle gap) the op's duration over that alone. Messages are not among what the replay is
            corrected by.
        copies: by direction, the duration of a copy while the other direction copies too, over that without.
        idle_ns: how long the gap was.
    """

    stages: tuple[Mapping[str, Mapping[str, float]], ...]
    copies: Mapping[str, float]
    idle_ns: int

    @classmethod
    def of(cls, profile: CostProfile) -> Interference | None:
        """Return the factors in a profile's `meta`; None if it has none.

        Raises:
            ProfileError: where its `meta` has something else under that name.
        """
        data = profile.meta.get(KEY)
        if data is None:
            return None
        try:
            stages = tuple(
                {op: {how: float(x) for how, x in one.items()} for op, one in stage.items()}
                for stage in data["stages"]
            )
            copies = {way: float(factor) for way, factor in data["copies"].items()}
            return cls(stages, copies, int(data["idle_ns"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProfileError(
                f"profile {profile.name}: meta.{KEY}: expected stages, copies and idle_ns as `optpipe-sim"
                f" profile` writes them ({type(error).__name__}: {error})"
            ) from None

    def factor(self, kind: OpKind, how: str, stage: int, stages: int) -> float:
        """Return the factor on an op's duration; at least 1, as anything below is noise.

        With another number of `stages` than was measured it is the median of all.
        """
        rows = [self.stages[stage]] if stages == len(self.stages) else self.stages
        name = MEASURED_AS[kind]
        found = [row[name][how] for row in rows if how in row.get(name, {})]
        return max(1.0, float(np.median(found))) if found else 1.0

    def lines(self) -> list[str]:
        """Return the factors as text: the median of the stages, op by op, and of copies."""
        said = []
        for op in dict.fromkeys(op for stage in self.stages for op in stage):
            known = [stage[op] for stage in self.stages if op in stage]
            factors = [
                f"{np.median(values):.3f} {'after idle' if how == IDLE else how}"
                for how in (*BESIDE, "message", IDLE)
                if (values := [one[how] for one in known if how in one])
            ]
            said.append(f"{op} {', '.join(factors)}")
        if self.copies:
            ways = ", ".join(f"{way} {factor:.3f}" for way, factor in self.copies.items())
            said.append(f"copies both ways at once: {ways}")
        return said


def replay_with_interference(
    lowered: Lowered, found: Interference, durations_ns: np.ndarray | None = None
) -> Trace:
    """Replay with every op as long as its neighbours in time make it.

    An op of d ns of which c run beside copies that slow it down by f takes ``d + c (1 - 1/f)``, a copy
    beside copies of the other direction likewise; after a gap of at least `idle_ns` on its device's compute
    stream an op takes d times that factor first. Which ops run beside which is taken from the previous replay,
    until durations no longer change (at most `ROUNDS` times).

    Args:
        durations_ns: of each op, by row, with nothing beside it; default: the profile's.
    """
    if durations_ns is None:
        durations_ns = op_costs(lowered.schedule, lowered.profile).duration_ns
    own = durations_ns.astype(float)
    trace, before = lowered.replay(durations_ns), own
    for _ in range(ROUNDS):
        durations = np.round(_stretched(own, trace, found))
        if np.array_equal(durations, before):
            break
        trace, before = lowered.replay(durations.astype(np.int64)), durations
    return trace


def _stretched(own: np.ndarray, trace: Trace, found: Interference) -> np.ndarray:
    """Return (ops,) the durations of ops that run beside each other as in this trace."""
    kinds = trace.schedule.table[:, 0]
    factors = {how: _factors(trace, found, how) for how in (*BESIDE, IDLE)}
    durations = own.copy()
    for device in range(trace.profile.devices):
        here = trace.schedule.devices == device
        rows = np.flatnonzero(here & ~trace.schedule.is_transfer)
        if len(rows):
            gaps = trace.start_ns[rows] - np.concatenate([[0], trace.end_ns[rows[:-1]]])
            durations[rows] *= np.where(gaps >= found.idle_ns, factors[IDLE][rows], 1.0)
        out, back = (np.flatnonzero(here & (kinds == kind)) for kind in (O, R))
        beside = _Copies(trace, out, back)
        for how in BESIDE:
            durations[rows] += beside.during(how, rows) * (1 - 1 / factors[how][rows])
        for way, copies in (("d2h", out), ("h2d", back)):
            slower = max(1.0, found.copies.get(way, 1.0))
            durations[copies] += beside.during("both", copies) * (1 - 1 / slower)
    return durations


def _factors(trace: Trace, found: Interference, how: str) -> np.ndarray:
    """Return (ops,) the factor of each compute op; 1 for transfers."""
    kinds, stages = trace.schedule.table[:, 0], trace.schedule.table[:, 1]
    factors = np.ones(len(kinds))
    for kind, stage in np.unique(trace.schedule.table[:, :2], axis=0).tolist():
        if kind in MEASURED_AS:
            rows = (kinds == kind) & (stages == stage)
            factors[rows] = found.factor(OpKind(kind), how, stage, trace.schedule.shape.stages)
    return factors


class _Copies:
    """How long a device copies only out (``d2h``), only back (``h2d``), or ``both`` ways, during an op."""

    def __init__(self, trace: Trace, out: np.ndarray, back: np.ndarray) -> None:
        self.trace = trace
        both = np.concatenate([out, back])
        self.points = np.unique(np.concatenate([[0], trace.start_ns[both], trace.end_ns[both]]))
        going, coming = (self._active(rows) for rows in (out, back))
        masks = {"d2h": going & ~coming, "h2d": coming & ~going, "both": going & coming}
        lengths = np.diff(self.points)
        self.total = {
            how: np.concatenate([[0], np.cumsum(lengths * mask)]) for how, mask in masks.items()
        }

    def _active(self, rows: np.ndarray) -> np.ndarray:
        """Return, for each span between two points, whether one of these copies runs."""
        first = self.points[:-1]
        begun = np.searchsorted(np.sort(self.trace.start_ns[rows]), first, "right")
        ended = np.searchsorted(np.sort(self.trace.end_ns[rows]), first, "right")
        return begun > ended

    def during(self, how: str, rows: np.ndarray) -> np.ndarray:
        """Return (rows,) the time beside copies of each kind, in ns."""
        ends, starts = (
            np.interp(times[rows], self.points, self.total[how])
            for times in (self.trace.end_ns, self.trace.start_ns)
        )
        return np.asarray(ends - starts)
