"""Costs observed while training runs: medians over the last iterations, a profile of them, and how far it drifts.

Within an iteration the mean over microbatches is used, as it adds up to the iteration's time; over iterations
the median, which a few outliers do not move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...op_costs import op_costs
from ...ops import BW, COMPUTE, B, C, F, O, OpKind, R, W
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim.interference import KEY as INTERFERENCE
from ...stage_cost import StageCost

KINDS = tuple(OpKind)


class Sample(NamedTuple):
    """One iteration, measured.

    Attributes:
        duration_ns: (kind, stage), the mean over microbatches; nan where the schedule has no such op.
        latency_ns: the median time of a result to the next device; nan where no op waited for one.
        makespan_ns: from the first start to the last end.
    """

    duration_ns: np.ndarray
    latency_ns: float
    makespan_ns: float


def sample(schedule: Schedule, start_ns: np.ndarray, end_ns: np.ndarray) -> Sample:
    """Return a sample from the times of all ops, by the rows of the schedule, on one clock."""
    durations = _means(schedule, end_ns - start_ns)
    makespan = float(end_ns.max() - start_ns.min())
    return Sample(durations, _latency_ns(schedule, start_ns, end_ns), makespan)


def expected_ns(schedule: Schedule, profile: CostProfile) -> np.ndarray:
    """Return the durations of a schedule's ops by a profile, (kind, stage) as in `Sample.duration_ns`."""
    return _means(schedule, op_costs(schedule, profile).duration_ns)


def _means(schedule: Schedule, duration_ns: np.ndarray) -> np.ndarray:
    kinds, stages = schedule.table[:, 0], schedule.table[:, 1]
    means = np.full((len(KINDS), schedule.shape.stages), np.nan)
    for kind in KINDS:
        for stage in range(schedule.shape.stages):
            here = (kinds == kind) & (stages == stage)
            if here.any():
                means[kind, stage] = np.mean(duration_ns[here])
    return means


def _latency_ns(schedule: Schedule, start_ns: np.ndarray, end_ns: np.ndarray) -> float:
    """Return the median between ops of two devices of which the second waited for nothing else."""
    waiting, needed = schedule.edges
    ready = np.zeros(len(schedule), np.int64)  # by what is on the same device
    compute = ~schedule.is_transfer
    for device in range(schedule.shape.devices):
        rows = np.flatnonzero(compute & (schedule.devices == device))
        ready[rows[1:]] = end_ns[rows[:-1]]
    across = schedule.devices[waiting] != schedule.devices[needed]
    for row, other in zip(waiting[~across].tolist(), needed[~across].tolist(), strict=True):
        ready[row] = max(ready[row], end_ns[other])
    waiting, needed = waiting[across], needed[across]
    last = end_ns[needed] > ready[waiting]
    gaps = (start_ns[waiting] - end_ns[needed])[last]
    return float(max(0.0, np.median(gaps))) if len(gaps) else float("nan")


class Window:
    """The last `size` samples, and their medians."""

    def __init__(self, size: int) -> None:
        self.samples: deque[Sample] = deque(maxlen=size)

    @property
    def full(self) -> bool:
        """Whether it holds `size` samples."""
        return len(self.samples) == self.samples.maxlen

    def medians(self) -> Sample:
        """Return the median of every number."""
        durations = np.array([one.duration_ns for one in self.samples])
        latencies = [one.latency_ns for one in self.samples if one.latency_ns == one.latency_ns]
        return Sample(
            np.median(durations, 0),  # nan is nan in all samples of one schedule
            float(np.median(latencies)) if latencies else float("nan"),
            float(np.median([one.makespan_ns for one in self.samples])),
        )


def measured_profile(given: CostProfile, measured: Sample, schedule: Schedule) -> CostProfile:
    """Return `given` with the times that were measured of a schedule, for the same stages.

    Of compute ops that the schedule does not have (a fused BW where it has B and W) the given times
    are scaled as the stage's others; copies that it does not have stay as given. Where a stage's
    activations are treated differently, an op's times are all scaled as their mean. Recomputing is
    scaled as C, or else as the backward that it is part of. Bytes stay. Factors of interference go: what
    runs beside an op is in its time.
    """
    expected = expected_ns(schedule, given)

    def change(stage: int, cost: StageCost) -> StageCost:
        new, was = measured.duration_ns[:, stage], expected[:, stage]
        has = {kind for kind in KINDS if not np.isnan(new[kind])}
        seen = [kind for kind in has if kind in COMPUTE]
        ratio = new[seen].sum() / max(1.0, was[seen].sum()) if seen else 1.0

        def scale(kind: OpKind) -> float:
            return float(new[kind] / was[kind] if kind in has and was[kind] else ratio)

        def time(kind: OpKind, old: int, least: int = 1) -> int:
            exact = kind in has and was[kind] in (0, old)
            return max(least, round(float(new[kind]) if exact else old * scale(kind)))

        def copy_time(kind: OpKind, old: int | None) -> int | None:
            return time(kind, old, 0) if old is not None and kind in has else old

        again = next((kind for kind in (C, B, BW) if kind in has), C)
        keeps_bw = cost.splits and (BW in has or cost.t_bw_ns is not None)
        return replace(
            cost,
            t_f_ns=time(F, cost.t_f_ns),
            t_b_ns=time(B if cost.splits else BW, cost.t_b_ns),
            t_w_ns=time(W, cost.t_w_ns, 0),
            t_bw_ns=time(BW, cost.fused_ns) if keeps_bw else None,
            t_offload_ns=copy_time(O, cost.t_offload_ns),
            t_reload_ns=copy_time(R, cost.t_reload_ns),
            recompute=tuple(
                replace(level, t_ns=max(1, round(level.t_ns * scale(again))))
                for level in cost.recompute
            ),
        )

    meta = {key: value for key, value in given.meta.items() if key != INTERFERENCE}
    meta["provenance"] = "times measured while training; bytes as given"
    stages = tuple(change(stage, cost) for stage, cost in enumerate(given.stages))
    profile = replace(given, stages=stages, meta=meta)
    if np.isnan(measured.latency_ns):
        return profile
    return replace(profile, latency_ns=round(measured.latency_ns), occupancy_ns=0)


class Drift(NamedTuple):
    """How far a stage's costs are from the profile's: `share` of its compute time per microbatch."""

    share: float
    stage: int
    what: str


def drift(profile: CostProfile, measured: Sample, schedule: Schedule) -> Drift:
    """Return the largest change of any op of a schedule, or of a stage's compute ops together, in shares of
    what the stage computes per microbatch."""
    found: list[Drift] = []
    before = expected_ns(schedule, profile)
    for stage in range(len(profile.stages)):
        change = measured.duration_ns[:, stage] - before[:, stage]
        there = [kind for kind in KINDS if not np.isnan(change[kind])]
        compute: Sequence[OpKind] = [kind for kind in there if kind in COMPUTE]
        work = float(sum(before[kind, stage] for kind in compute))
        if not work:
            continue
        found += [Drift(abs(float(change[kind])) / work, stage, kind.name) for kind in there]
        total = abs(float(sum(change[kind] for kind in compute)))
        found.append(Drift(total / work, stage, "compute"))
    return max(found, default=Drift(0.0, 0, "compute"))
