"""What ratios of measured to profiled times depend on besides the ops: the host, clocks, and memory that torch's
allocator does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...profile import CostProfile
from ...units import format_size, format_time
from ..measure.footprint import OPS

BOUND = 0.9  # of an op's duration: the host issues no faster than the device works


def conditions(profile: CostProfile, machine: Mapping[str, Any]) -> list[str]:
    """Return what a measured profile and the machine of a run say of these, a sentence each.

    Args:
        machine: as `confirm.machine` returns it.
    """
    return [*_issue(profile), *_clocks(_part(profile.meta, "device"), machine), *_reserved(profile)]


def _issue(profile: CostProfile) -> Iterator[str]:
    """Yield how long the host takes to issue each op of a GPU, of the stage where that is the largest
    share of it."""
    if _part(profile.meta, "device").get("kind") in (None, "cpu", "fake"):
        return  # on a CPU the host itself computes
    most: dict[str, tuple[float, float, float]] = {}
    for stage in profile.meta.get("stages") or ():
        for op in OPS:
            times = _part(_part(stage, "times_us"), op)
            issue, took = (times.get(key) for key in ("issue", "median"))
            if issue and took:
                most[op] = max(most.get(op, (0.0, 0.0, 0.0)), (issue / took, issue, took))
    if not most:
        return
    each = [
        f"{op} {format_time(round(1e3 * issue))} of {format_time(round(1e3 * took))}"
        for op, (_, issue, took) in most.items()
    ]
    bound = [op for op, (share, _, _) in most.items() if share >= BOUND]
    slow = f"; {', '.join(bound)} as long as the host takes" if bound else ""
    yield f"profiled, the host issues {', '.join(each)}{slow}"


def _clocks(profiled: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the clocks when the profile was measured, and at the run."""
    before, now = _clock(profiled), _clock(run)
    if before and now:
        yield f"clocks: {before} when profiled, {now} at the run"


def _clock(facts: Mapping[str, Any]) -> str | None:
    load, cores = _part(facts, "clocks_under_load"), _part(facts, "clocks_mhz")
    if load.get("clocks.sm"):
        return f"SM {load['clocks.sm']} MHz"
    if cores.get("most"):
        return f"{cores['least']:g} to {cores['most']:g} MHz"
    return None


def _reserved(profile: CostProfile) -> Iterator[str]:
    """Yield the memory of a GPU outside of torch's allocator."""
    found = _part(profile.meta, "reserved_bytes")
    if found:
        each = [
            f"{what} {size if isinstance(size, str) else format_size(size)}"
            for what, size in (
                ("the CUDA context", found.get("context")),
                ("a communicator of NCCL", found.get("communicator")),
            )
            if size is not None
        ]
        yield f"outside of torch's allocator: {', '.join(each)}"


def _part(data: Any, key: str) -> Mapping[str, Any]:
    """Return a mapping in another; an empty one where there is none."""
    found = data.get(key) if isinstance(data, Mapping) else None
    return found if isinstance(found, Mapping) else {}
