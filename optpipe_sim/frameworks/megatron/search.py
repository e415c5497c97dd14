"""The best plan that Megatron-LM can run: a search over its family by replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import OptPipeError, OutOfMemory
from ...profile import CostProfile
from ...schedule import Schedule
from ...trace import Trace
from ...units import format_size
from ..told import unheld
from .family import Choice, choices

MOST_CHUNKS = 8  # more chunks only add messages


@dataclass(frozen=True)
class Found:
    """The fastest of the family that fits.

    Attributes:
        choice: its choice. `trace`: its replay, in which no op waits for memory.
        tried: how many were replayed. `fitting`: how many of them fit.
    """

    choice: Choice
    trace: Trace
    tried: int
    fitting: int

    def to_json(self) -> dict[str, Any]:
        return {"told": self.choice.name, "tried": self.tried, "fitting": self.fitting}


def chunk_counts(profile: CostProfile) -> Sequence[int]:
    """Return the numbers of chunks per device to try: up to one layer each if stages give their
    layers, else the profile's own, 1 and 2."""
    layers = [cost.layers for cost in profile.stages]
    if None in layers:
        return sorted({1, 2, profile.chunks})
    return range(1, min(MOST_CHUNKS, sum(filter(None, layers)) // profile.devices) + 1)


def best(
    profile: CostProfile,
    microbatches: int,
    *,
    chunks: Sequence[int] | None = None,
    offload: bool = True,
    recompute: bool = True,
    objective: str = "flush",
    on_progress: Callable[[int], None] = lambda tried: None,
) -> Found:
    """Find the fastest of the family under the profile's memory limit; ties go to the lower peak.

    Args:
        chunks: the numbers to try; None: `chunk_counts`.
        offload, recompute: whether activations may be offloaded or recomputed. `objective`: flush
            or span.
        on_progress: called with the number of replays.

    Raises:
        OutOfMemory: if none fits; names the one with the least peak.
        OptPipeError: if the family is empty for this profile and number of microbatches.
    """
    seen: list[tuple[tuple[int, int], int, Choice, Trace]] = []
    least: tuple[int, Choice] | None = None
    tried = 0
    for choice, schedule in _family(profile, microbatches, chunks or chunk_counts(profile)):
        if (choice.fraction is not None and not offload) or (choice.level and not recompute):
            continue
        trace = replace(unheld(schedule, profile), objective=objective)
        tried += 1
        on_progress(tried)
        peak = max(trace.peak_bytes)
        if least is None or peak < least[0]:
            least = peak, choice
        if trace.fits:
            seen.append(((trace.cost_ns, peak), tried, choice, trace))
    if least is None:
        raise OptPipeError(
            f"Megatron-LM runs nothing on {profile.devices} ranks with {microbatches} microbatches"
        )
    if not seen:
        raise OutOfMemory(
            f"no schedule of Megatron-LM fits: the least peak is {format_size(least[0])},"
            f" with {least[1].name}"
        )
    _, _, choice, trace = min(seen, key=lambda one: one[:2])
    return Found(choice, trace, tried, len(seen))


def _family(
    profile: CostProfile, microbatches: int, chunks: Sequence[int]
) -> Iterator[tuple[Choice, Schedule]]:
    """Build all schedules of the family that can be built."""
    for count in chunks:
        try:
            profile.rechunk(count)
        except OptPipeError:
            continue
        for choice in choices(profile, microbatches, count):
            try:
                yield choice, choice.build(profile, microbatches)
            except OptPipeError:
                continue
