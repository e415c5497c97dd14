"""The offload section of profile files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..stage_cost import StageCost, transfer_ns
from ..units import BYTE_UNITS, TIME_UNITS, Reader, exact
from .items import Item
from .offload import Nvme, Offload
from .parts import join

COPIES = {"t_offload": "d2h_gb_per_s", "t_reload": "h2d_gb_per_s"}


def read_offload(
    reader: Reader, devices: int, stages: list[StageCost], items: tuple[Item, ...]
) -> tuple[Offload, list[StageCost], tuple[Item, ...]]:
    """Return the offload section of a profile, and its stages and layers with the times of their copies.

    Raises:
        ProfileError: one line with the key, what is wrong and what would be right.
    """
    rated = [stem for stem, bandwidth in COPIES.items() if bandwidth in reader.left]
    costs = {}
    for stem, bandwidth in COPIES.items():
        times = _copy_times(reader, stem, bandwidth, stages)
        costs[f"{stem}_ns"] = times  # per stage, its slices
    groups = reader.take("host_link_groups")
    groups = [] if groups is None else groups
    if not isinstance(groups, list) or not all(
        isinstance(group, list)
        and all(isinstance(item, int) and not isinstance(item, bool) for item in group)
        for group in groups
    ):
        raise reader.fail(
            "host_link_groups", f"expected lists of devices, as [[0, 1], [2, 3]], got {groups!r}"
        )
    nvme, per_node = _nvme(reader), reader.count("devices_per_node", None)
    # the drives are a link of their node, unless they write behind the copies
    if nvme is not None and not nvme.write_behind and not groups and devices > 1:
        size = max(1, per_node or devices)
        groups = [list(range(at, min(at + size, devices))) for at in range(0, devices, size)]
    offload = Offload(
        copy_engines=reader.take("copy_engines", "separate"),
        host_link=reader.take("host_link"),
        host_link_groups=tuple(tuple(group) for group in groups if group),
        host_limit_bytes=reader.amount("host_limit", BYTE_UNITS),
        devices_per_node=per_node,
        nvme=nvme,
    )
    reader.finish(
        "t_offload_ms or d2h_gb_per_s, t_reload_ms or h2d_gb_per_s, copy_engines, host_link,"
        " host_link_groups, host_limit_gib, devices_per_node, nvme"
    )

    def driven(cost: StageCost) -> StageCost:
        """Return a cost whose copies, where bandwidths give their times, are no faster than the drives."""
        least = dict(zip(COPIES, offload.drive_ns(devices, cost.offloadable), strict=True))
        slower = {f"{stem}_ns": max(getattr(cost, f"{stem}_ns"), least[stem]) for stem in rated}
        return replace(cost, **slower)

    timed = []
    for at, cost in enumerate(stages):
        parts = [
            replace(part, **{key: times[at][k] for key, times in costs.items()})  # type: ignore[arg-type]
            for k, part in enumerate(cost.slices or (cost,))
        ]
        timed.append(join([driven(part) for part in parts], cost.static_bytes, cost.layers))
    return offload, timed, tuple(replace(item, cost=driven(item.cost)) for item in items)


def _nvme(reader: Reader) -> Nvme | None:
    """Return the drives of a node."""
    data = reader.take("nvme")
    if data is None:
        return None
    inner = Reader(data, f"{reader.where}.nvme")

    def rate(key: str) -> int:
        if key not in inner.left:
            raise inner.fail(key, "missing: the rate of all drives of a node together")
        return max(1, inner.whole(key, bandwidth_of(inner, key, inner.take(key)), 10**9))

    rates = rate("write_gb_per_s"), rate("read_gb_per_s")
    staging, rated = inner.amount("staging", BYTE_UNITS), inner.take("rated_tb_written")
    if rated is not None:
        rated = inner.whole("rated_tb_written", rated, 10**12, positive=True)
    behind = inner.take("write_behind", False)
    if not isinstance(behind, bool):
        raise inner.fail("write_behind", f"expected true or false, got {behind!r}")
    inner.finish("write_gb_per_s, read_gb_per_s, staging_gib, write_behind, rated_tb_written")
    return Nvme(*rates, staging, rated, behind)


def _copy_times(
    reader: Reader, stem: str, bandwidth: str, stages: list[StageCost]
) -> list[list[int]]:
    found = reader.quantity(stem, TIME_UNITS)
    rate = reader.take(bandwidth)
    if (found is None) == (rate is None):
        raise reader.fail(f"{stem}_ms", f"give {stem}_ms or {bandwidth}, and not both")
    key, value = (found[0], found[1]) if found else (bandwidth, rate)
    values = value if isinstance(value, list) else [value] * len(stages)
    if len(values) != len(stages):
        raise reader.fail(key, f"lists {len(values)} stages, expected {len(stages)}")
    times = []
    for cost, entry in zip(stages, values, strict=True):
        parts = cost.slices or (cost,)
        several = isinstance(entry, list) and cost.slices
        entries = entry if several else [entry] * len(parts)
        if len(entries) != len(parts):
            raise reader.fail(key, f"lists {len(entries)} slices, expected {len(parts)}")
        times.append(
            [
                reader.whole(key, one, found[2])
                if found
                else transfer_ns(part.offloadable, bandwidth_of(reader, key, one))
                for part, one in zip(parts, entries, strict=True)
            ]
        )
    return times


def bandwidth_of(reader: Reader, key: str, value: Any) -> Any:
    """Return a bandwidth in 10^9 bytes per second, above 0."""
    try:
        number = exact(value)
    except ValueError as error:
        raise reader.fail(key, str(error)) from None
    if number <= 0:
        raise reader.fail(key, f"must be above 0, got {value}")
    return number
