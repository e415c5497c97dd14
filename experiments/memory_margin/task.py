"""The least memory a schedule can run with, and the margin that suffices when activations vary in size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from optpipe_sim.errors import InvalidSchedule, NoSolution, OutOfMemory
from optpipe_sim.names import ENTRIES, build, parse_name
from optpipe_sim.ops import TRANSFERS
from optpipe_sim.profile import CostProfile as Profile
from optpipe_sim.schedule import Schedule
from optpipe_sim.sim import simulate, simulate_or_report
from optpipe_sim.sim.lower import Lowered, lower
from optpipe_sim.study.tasks import CostProfile, Count, Limit, Row, ScheduleName
from optpipe_sim.trace import Trace

VERSION = 1
ALIKE = ("activation", "microbatch", "all")


def run(
    profile: CostProfile,
    microbatches: Count,
    schedule: ScheduleName,
    memory_limit: Limit = None,
    shares: list[float] | None = None,
    margins: list[float] | None = None,
    spreads: list[float] | None = None,
    samples: Count = 100,
    seed: int = 0,
) -> list[Row]:
    """Two questions about the schedule that is made for `memory_limit` (or for none).

    With `shares`: replays of it, its order unchanged, under limits of what is static plus a share
    of what it holds beyond that (``part`` ``limit``); the least such limit, to the byte (``part``
    ``least``); and, where the schedule plans for a limit, one made anew for each (``part``
    ``anew``).

    With `margins` and `spreads` (``part`` ``noise``): made for a limit below `memory_limit`, such
    that what is held beyond what is static may grow by the margin, it is lowered and run with every
    activation larger or smaller by up to the spread: each one on its own, all of a microbatch alike
    (longer sequences), or all alike (a wrong profile). Copies take time in proportion to their bytes, all else is
    as profiled. ``fits_share``: of the samples within `memory_limit`; ``excess_*``: quantiles of
    the memory needed beyond the plan, as a share: the margin that would have sufficed.
    """
    rows: list[Row] = []
    if shares:
        rows += _less(profile, microbatches, schedule, memory_limit, shares)
    if margins and spreads:
        rows += _noise(
            profile, microbatches, schedule, memory_limit, margins, spreads, samples, seed
        )
    return rows


# -- less memory ----------------------------------------------------------------------------------


def _less(
    profile: Profile, microbatches: int, name: str, limit: int | None, shares: Sequence[float]
) -> list[Row]:
    made = _made(name, profile, microbatches, limit)
    assert made is not None  # complained about where the limit is too low
    planned = simulate(made, profile, limit)
    free = simulate(made, profile, enforce=False)
    need, static = max(zip(planned.peak_bytes, planned.profile.static_bytes, strict=True))
    common = {
        "need_bytes": need,
        "static_bytes": static,
        "planned_ns": planned.makespan_ns,
        "free_peak_bytes": max(free.peak_bytes),
        "offloaded": planned.offloaded,
    }

    def row(part: str, at: int, trace: Trace | None) -> Row:
        share = (at - static) / (need - static)
        fits = trace is not None and trace.fits
        time = trace.makespan_ns if trace is not None and fits else None
        return {"part": part, "limit_bytes": at, "share": share, "fits": fits, "makespan_ns": time} | common  # fmt: skip

    def replay(at: int) -> Trace:
        return simulate_or_report(made, profile, at)[0]

    rows = []
    plans = "limit" in ENTRIES[parse_name(name)[0]].options
    for share in shares:
        at = static + round(share * (need - static))
        rows.append(row("limit", at, replay(at)))
        if plans:
            anew = _made(name, profile, microbatches, at)
            trace = None if anew is None else simulate(anew, profile, at)
            rows.append(row("anew", at, trace))
    fails, works = -1, need
    while works - fails > 1:
        middle = (fails + works) // 2
        fails, works = (fails, middle) if replay(middle).fits else (middle, works)
    rows.append(row("least", works, replay(works)))
    return rows


def _made(name: str, profile: Profile, microbatches: int, limit: int | None) -> Schedule | None:
    """The schedule for a limit, which it fits; None where none is found.

    Raises:
        InvalidSchedule: for what the profile does not admit.
    """
    if limit is not None:
        profile = replace(profile, memory_limit=(limit,) * profile.devices)
    options = {}
    if limit is not None and "limit" in ENTRIES[parse_name(name)[0]].options:
        options["limit"] = limit
    try:
        made = build(name, profile, microbatches, **options)
    except (OutOfMemory, NoSolution):
        return None
    return made if simulate_or_report(made, profile)[1] is None else None


# -- activations of other sizes -------------------------------------------------------------------


def _noise(
    profile: Profile,
    microbatches: int,
    name: str,
    limit: int | None,
    margins: Sequence[float],
    spreads: Sequence[float],
    samples: int,
    seed: int,
) -> list[Row]:
    rows: list[Row] = []
    limits = profile.limits(limit)
    if limits is None:
        raise InvalidSchedule("memory_limit: give one; a margin is kept below it")
    most = min(limits)
    whole = _made(name, profile, microbatches, most)
    # where least is static, most is held beyond it, and most can be added to it
    static = min((profile if whole is None else profile.for_shape(whole.shape)).static_bytes)
    for margin in margins:
        planned = static + int((most - static) / (1 + margin))
        made = whole if planned == most else _made(name, profile, microbatches, planned)
        common: Row = {"part": "noise", "margin": margin, "limit_bytes": planned}
        if made is None:
            rows.append({**common, "fits": False})
            continue
        lowered = lower(made, profile, planned)
        common |= {"fits": True, "makespan_ns": lowered.replay().makespan_ns}
        for spread in spreads:
            for alike in ALIKE:
                peaks, times = noisy_peaks(lowered, spread, alike, samples, seed)
                statics = np.array(lowered.profile.static_bytes)
                # excess of the dynamic part over the plan, on the worst device
                excess = ((peaks - statics) / (planned - statics) - 1).max(1)
                rows.append(
                    {
                        **common,
                        "spread": spread,
                        "alike": alike,
                        "fits_share": float((peaks.max(1) <= most).mean()),
                        "excess_median": float(np.median(excess)),
                        "excess_99": float(np.quantile(excess, 0.99)),
                        "excess_most": float(excess.max()),
                        "mean_ns": int(times.mean()),
                    }
                )
    return rows


def noisy_peaks(
    lowered: Lowered, spread: float, alike: str, samples: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Peaks in bytes, (samples, devices), and makespans in ns, (samples,), of runs in which each
    activation is larger or smaller, evenly spread over ``1 - spread`` to ``1 + spread``: its act, w
    and offload bytes and the time of its copies alike.

    `alike`: which activations have a factor in common: none (``activation``), those of a
    ``microbatch``, or ``all``.
    """
    random = np.random.default_rng(seed)
    table, profile = lowered.schedule.table, lowered.profile
    kinds, stages, js = table[:, 0], table[:, 1], table[:, 2]
    shape = lowered.schedule.shape
    size = {
        "activation": (shape.stages, shape.microbatches),
        "microbatch": (1, shape.microbatches),
        "all": (1, 1),
    }[alike]
    durations = profile.durations_ns[kinds, stages]
    copies = np.isin(kinds, TRANSFERS)
    taken = profile.allocated_bytes[kinds, stages]
    given = profile.released_bytes[kinds, stages]
    peaks = np.empty((samples, profile.devices), np.int64)
    times = np.empty(samples, np.int64)
    for sample in range(samples):
        factor = random.uniform(1 - spread, 1 + spread, size)
        of_op = np.broadcast_to(factor, (shape.stages, shape.microbatches))[stages, js]
        trace = lowered.replay(
            np.where(copies, np.rint(durations * of_op).astype(np.int64), durations)
        )
        times[sample] = trace.makespan_ns
        change = of_op * taken, of_op * given
        for device in range(profile.devices):
            rows = slice(*lowered.schedule.offsets[device : device + 2])
            peaks[sample, device] = profile.static_bytes[device] + most_held(
                trace.grant_ns[rows], trace.end_ns[rows], change[0][rows], change[1][rows]
            )
    return peaks, times


def most_held(start: np.ndarray, end: np.ndarray, taken: np.ndarray, given: np.ndarray) -> int:
    """Return the most bytes held at once, where ops allocate at their start and release at their
    end; at one instant releases come first."""
    when = np.concatenate((start, end))
    change = np.concatenate((taken, -given))
    order = np.lexsort((change > 0, when))
    return max(0, round(float(np.cumsum(change[order]).max())))
