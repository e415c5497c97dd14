"""Ways to bear long sequences: the fastest named schedule of each that fits, by estimated costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

from optpipe_sim.costs import estimate, load_machine
from optpipe_sim.costs.provenance import iteration_ns, mfu
from optpipe_sim.errors import Deadlock, InvalidSchedule, OptPipeError, OutOfMemory
from optpipe_sim.profile import CostProfile
from optpipe_sim.schedules import build
from optpipe_sim.schedules.sliced.exchange import with_context_exchange
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import Count, Row
from optpipe_sim.trace import Trace

VERSION = 3
GIB = 2**30
TP = 8  # all devices of a node
OVERHEAD = 0.078  # of an iteration in no op, as it was assumed when the table was made
SHORTEST = 8192  # tokens of a slice, on each of the devices that share it
SLICES = (4, 8, 16, 32, 64)
SLICE_BY = ("length", "time")
CONTEXT = (2, 4, 8)
CHUNKS = (1, 2, 4)
WHOLE = ("1f1b", "1f1b-i", "zb-h1", "zb-v")
SLICED = ("seq1f1b", "seq1f1b-i", "mepipe", "slimpipe")
LEVELLED = "slimpipe"  # its context exchange makes slices of equal length take equal time
OFFLOADED = ("po-h", "po-f")


class Way(NamedTuple):
    """A candidate: devices that share a sequence, slices, chunks, a schedule, where offloads go,
    whether the slices are levelled by SlimPipe's context exchange, and what they have equal, length or
    time."""

    schedule: str
    cp: int = 1
    slices: int = 1
    chunks: int = 1
    level: str = ""
    target: str = "host"
    levelled: bool = False
    by: str = "length"

    def __str__(self) -> str:
        level = f":recompute={self.level}" if self.level else ""
        more = [f"cp {self.cp}"] * (self.cp > 1) + [f"{self.slices} slices"] * (self.slices > 1)
        more += [f"{self.chunks} chunks"] * (self.chunks > 1)
        more += ["levelled"] * self.levelled + ["equal time"] * (self.by == "time")
        return ", ".join([self.schedule + level, *more])


def run(model: str, machine: str, devices: Count, seq: Count, tokens: Count, way: str) -> Row:
    """The fastest schedule of a way that fits the machine's devices, and the fastest in 40 GiB of each.

    One replica; tensor parallelism within a node, the pipeline over the rest. `tokens`: of an
    iteration, at least one sequence. `way`: ``nothing``, ``recompute``, ``offload``, ``slices``,
    ``drives``, ``context`` (parallelism), or several of these joined by ``+``.
    Without a limit first; what peaks above it and offloads is then replayed under the limit.

    Returns:
        per limit the schedule, milliseconds of an iteration, MFU (causal half of the attention
        counted) and GiB of the fullest device and host; ``least_gib``: that the most frugal
        candidate needs; how many were tried. None where nothing fits.
    """
    microbatches = max(1, tokens // seq)
    tried = [
        (candidate, profile, trace)
        for candidate in _ways(way, seq)
        for profile in [_profile(model, machine, devices, seq, candidate)]
        if profile is not None
        for trace in [_replay(candidate, profile, microbatches)]
        if trace is not None
    ]
    row: Row = {"tried": len(tried), "least_gib": None}
    if tried:
        row["least_gib"] = min(max(trace.peak_bytes) for _, _, trace in tried) / GIB
    for suffix, most in (("", None), ("_40", 40 * GIB)):
        fitting = [
            (iteration_ns(profile, fits.makespan_ns), str(candidate), profile, fits)
            for candidate, profile, trace in tried
            for fits in [_within(trace, profile, most)]
            if fits is not None
        ]
        best = min(fitting, key=lambda one: one[:2], default=None)
        row |= dict.fromkeys(
            [f"{key}{suffix}" for key in ("schedule", "ms", "mfu", "peak_gib", "host_gib", "years")]
        )
        if best is None:
            continue
        time, schedule, profile, trace = best
        row |= {
            f"schedule{suffix}": schedule,
            f"ms{suffix}": time / 1e6,
            f"mfu{suffix}": mfu(profile, time, microbatches, causal=True),
            f"peak_gib{suffix}": max(trace.peak_bytes) / GIB,
            f"host_gib{suffix}": trace.host_peak_bytes / GIB,
            f"years{suffix}": None if trace.wear is None else trace.wear.years,
        }
    return row


def _ways(way: str, seq: int) -> Iterator[Way]:
    """The candidates of a way; what a model cannot be split into is dropped later."""
    parts = way.split("+")
    known = {"nothing", "recompute", "offload", "slices", "context", "drives"}
    if not set(parts) <= known:
        raise OptPipeError(f"way: expected some of {', '.join(sorted(known))}, got {way!r}")
    shared = CONTEXT if "context" in parts else (1,)
    cuts = SLICES if "slices" in parts else (1,)
    for cp, slices in product(shared, cuts):
        if slices > 1 and seq // (cp * slices) < SHORTEST:
            continue
        if {"offload", "drives"} & set(parts):
            yield from _offloading(cp, slices, "nvme" if "drives" in parts else "host")
        else:
            yield from _keeping(
                cp, slices, SLICED if "slices" in parts else WHOLE, "recompute" in parts
            )


def _offloading(cp: int, slices: int, target: str) -> Iterator[Way]:
    """The candidates that offload."""
    if slices == 1:
        for name, v in product(OFFLOADED, CHUNKS[1:]):
            yield Way(name, cp, slices, v, target=target)
        return
    for count in ("", f":offloaded={slices - 1}", f":offloaded={slices}"):
        plain = Way(f"sppo{count}", cp, slices, target=target)
        yield from (plain, plain._replace(levelled=True), plain._replace(by="time"))


def _keeping(cp: int, slices: int, names: Sequence[str], recompute: bool) -> Iterator[Way]:
    """The candidates that keep, or recompute."""
    for name in names:
        levelled = name == LEVELLED
        for v in {"1f1b-i": CHUNKS[1:], "seq1f1b-i": (2,), "zb-v": (2,)}.get(name, (1,)):
            for by in SLICE_BY if slices > 1 and not levelled else SLICE_BY[:1]:
                plain = Way(name, cp, slices, v, levelled=levelled, by=by)
                if not recompute:
                    yield plain
                elif name in ("1f1b", "1f1b-i", "seq1f1b", LEVELLED):
                    yield from (plain._replace(level=level) for level in ("norms", "full"))


def _profile(model: str, machine: str, devices: int, seq: int, way: Way) -> CostProfile | None:
    """The costs of a candidate; None where the model has too few layers for its stages."""
    profile = _estimated(
        model, machine, devices, seq, way.cp, way.slices, way.by, way.chunks, bool(way.level),
        way.target,
    )  # fmt: skip
    if profile is not None and way.levelled:
        return with_context_exchange(profile)
    return profile


@cache
def _estimated(
    model: str, machine: str, devices: int, seq: int, cp: int, slices: int, by: str, chunks: int,
    levels: bool, target: str,
) -> CostProfile | None:  # fmt: skip
    try:
        made_on = load_machine(machine)
        rates = replace(made_on.rates, overhead=OVERHEAD)
        return estimate(
            model, replace(made_on, offload_to=target, rates=rates), devices, tp=TP, cp=cp, zero=1,
            seq=seq, slices=slices, slice_by=by, chunks=chunks, levels=levels, execution="ideal",
        )  # fmt: skip
    except OptPipeError as error:
        if "layers" in str(error):
            return None
        raise


def _replay(way: Way, profile: CostProfile, microbatches: int) -> Trace | None:
    """The replay without a limit; None where the schedule wants other numbers of microbatches or slices, or
    where one that should offload finds that no copy pays."""
    options = {"recompute": way.level} if way.level else {}
    try:
        schedule = build(way.schedule, profile, microbatches, **options)
    except InvalidSchedule:
        return None
    trace = simulate(schedule, profile, enforce=False)
    offloads = way.schedule.startswith(("po-", "sppo"))
    return trace if trace.offloaded or not offloads else None


def _within(trace: Trace, profile: CostProfile, most: int | None) -> Trace | None:
    """The trace, or its replay under the limit: `most` bytes, or the machine's; None if it does not fit."""
    limits = profile.limits(most)
    assert limits is not None
    offload = profile.offload
    host = offload.host_limit_bytes if offload else None
    if host is not None and trace.host_peak_bytes > host:
        return None
    if all(peak <= limit for peak, limit in zip(trace.peak_bytes, limits, strict=True)):
        return trace
    if not trace.offloaded:
        return None
    try:
        return simulate(trace.schedule, profile, limits)
    except (Deadlock, OutOfMemory):
        return None
