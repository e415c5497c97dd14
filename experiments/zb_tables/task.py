"""The published bubble rates in a profile's ``meta``, beside the simulated ones."""

from __future__ import annotations

from optpipe_sim.errors import ProfileError
from optpipe_sim.names import build
from optpipe_sim.schedules.greedy import device_limits
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import CostProfile, Row

VERSION = 1

# Automatic schedules may be better than the published rate, or worse by this much; the others must
# equal it to four decimals.
TOLERANCE = 0.0002
# Of the automatic ones, the memory: so many activations per device of the pipeline.
HELD = {"ZB-1p": 1, "ZB-2p": 2, "ZB-V": 2}


def run(profile: CostProfile) -> list[Row]:
    """A row per schedule of ``meta.published_bubble_rate``: rates to four decimals.

    ``published`` is what the paper prints; ``expected`` what a simulation should give: the same, but
    for 1F1B-I (see the profiles' ``meta.deviations``). Peak and limit are those of the fullest device,
    in bytes, static ones included; the limit is None where the schedule has none.

    Raises:
        ProfileError: where the meta of the profile lacks what a row needs.
    """
    for key in ("microbatches", "interleaved_chunks", "model", "published_bubble_rate"):
        if key not in profile.meta:
            raise ProfileError(f"{profile.name}: meta.{key}: missing")
    return [_row(profile, schedule) for schedule in profile.meta["published_bubble_rate"]]


def _row(profile: CostProfile, schedule: str) -> Row:
    meta = profile.meta
    options = {"chunks": meta["interleaved_chunks"]} if schedule == "1F1B-I" else {}
    built = build(schedule.lower(), profile, meta["microbatches"], **options)
    trace = simulate(built, profile, enforce=False)
    held = HELD.get(schedule, 0)
    limits = device_limits(trace.profile, None, held * profile.devices)
    over = [peak - limit for peak, limit in zip(trace.peak_bytes, limits, strict=True)]
    fullest = over.index(max(over))
    published = meta["published_bubble_rate"][schedule]
    expected = meta.get("full_edge_bubble_rate", {}).get(schedule, published)
    limit = limits[fullest] if held else None
    return {
        "table": 5 if profile.chunks == 1 else 8,
        "model": meta["model"]["parameters"],
        "devices": profile.devices,
        "microbatches": meta["microbatches"],
        "schedule": schedule,
        "published": published,
        "expected": expected,
        "simulated": round(trace.bubble_rate, 4),
        "difference": round(round(trace.bubble_rate, 4) - expected, 4),
        "match": matches(schedule, trace.bubble_rate, expected, trace.peak_bytes[fullest], limit),
        "peak_bytes": trace.peak_bytes[fullest],
        "limit_bytes": limit,
    }


def matches(schedule: str, rate: float, expected: float, peak: int, limit: int | None) -> bool:
    """Whether a rate is equal to 4 decimals; for the automatic schedules, no worse than the tolerance
    and within their memory."""
    if limit is not None and peak > limit:
        return False
    if schedule in HELD:
        return rate <= expected + TOLERANCE
    return round(round(rate, 4) - expected, 4) == 0
