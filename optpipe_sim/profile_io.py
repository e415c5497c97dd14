"""Profiles as files: units in the keys, one clear line for whatever is wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from .errors import InvalidSchedule, ProfileError, require
from .files import plain, read_mapping, write_mapping
from .profile import CostProfile, Offload
from .schedule.shape import require_stages
from .stage_cost import RecomputeLevel, StageCost, transfer_ns
from .units import BYTE_UNITS, TIME_UNITS, Reader, exact, is_plain

LONGEST_NAME = 255  # as of a file
_STAGE_TIMES = ("t_f", "t_b", "t_w", "t_bw")
_STAGE_BYTES = ("act", "w", "offload", "static")


def load_profile(source: str | os.PathLike[str] | Mapping[str, Any]) -> CostProfile:
    """The profile in a YAML or JSON file, or in a mapping of the same form.

    Raises:
        OptPipeError: for a file that cannot be read.
        ProfileError: one line with the file, the key, what is wrong and what would be right.
    """
    if isinstance(source, Mapping):
        return _profile(source)
    if not isinstance(source, str | os.PathLike):
        raise ProfileError(f"profile: expected a path or a mapping, got a {type(source).__name__}")
    data = read_mapping(source)
    stem = os.path.splitext(os.path.basename(source))[0]
    data.setdefault("name", stem if is_plain(stem) else "profile")
    try:
        return _profile(data)
    except ProfileError as error:
        raise ProfileError(f"{source}: {error}") from None


def _profile(data: Mapping[str, Any]) -> CostProfile:
    reader = Reader(data, "")
    devices = reader.count("devices", None)
    if devices is None:
        raise reader.fail("devices", "missing: the number of devices")
    chunks = reader.count("chunks", 1) or 0
    if not (1 <= devices <= 4096 and 1 <= chunks <= 4096):
        key, value = ("chunks", chunks) if 1 <= devices <= 4096 else ("devices", devices)
        raise reader.fail(key, f"must be a whole number from 1 to 4096, got {value}")
    try:
        require_stages(devices, chunks)
    except InvalidSchedule as error:
        raise ProfileError(str(error)) from None
    name = reader.take("name", "profile")
    if not isinstance(name, str):
        raise reader.fail("name", f"expected a text, got {name!r}")
    if len(name) > LONGEST_NAME or not is_plain(name):
        raise reader.fail(
            "name",
            f"must be of at most {LONGEST_NAME} characters, none of them a control character",
        )
    stages = _stages(reader, devices * chunks)
    latency_ns, occupancy_ns = _comm(reader)
    limit = _limit(reader, devices)
    offload = None
    if reader.left.get("offload") is not None:
        offload, stages = _offload(Reader(reader.take("offload"), "offload"), stages)
    reader.take("offload")
    meta = reader.take("meta", {})
    if not isinstance(meta, Mapping):
        raise reader.fail("meta", f"expected a mapping, got {meta!r}")
    profile = CostProfile(
        name=name,
        devices=devices,
        chunks=chunks,
        placement=reader.take("placement", "loop"),
        stages=tuple(stages),
        latency_ns=latency_ns,
        occupancy_ns=occupancy_ns,
        links=reader.take("links", "latency"),
        offload=offload,
        memory_limit=limit,
        meta=plain(dict(meta)),
    )
    reader.finish(
        "name, devices, chunks, placement, stages, t_comm_ms, links, offload, memory_limit_gib, meta"
        " (times end in _s, _ms, _us or _ns; bytes in _bytes, _mib or _gib)"
    )
    return profile


def _stages(reader: Reader, count: int) -> list[StageCost]:
    data = reader.take("stages")
    if data is None:
        raise reader.fail(
            "stages", "missing: one mapping for all stages, or a list with one per stage"
        )
    if isinstance(data, Mapping):
        return [_stage(Reader(data, "stages"))] * count
    if not isinstance(data, list):
        raise reader.fail("stages", f"expected a mapping or a list of {count}, got {data!r}")
    if len(data) != count:
        raise reader.fail(
            "stages", f"lists {len(data)} stages, expected devices x chunks = {count}"
        )
    return [_stage(Reader(entry, f"stages[{at}]")) for at, entry in enumerate(data)]


def _stage(reader: Reader) -> StageCost:
    values: dict[str, int | None] = {}
    for stem in _STAGE_TIMES:
        values[f"{stem}_ns"] = reader.amount(
            stem, TIME_UNITS, positive=stem != "t_w", needed=stem == "t_f"
        )
    splits = _check_backward(reader, values)
    for stem in _STAGE_BYTES:
        amount = reader.amount(stem, BYTE_UNITS, needed=stem == "act")
        values[f"{stem}_bytes"] = 0 if amount is None and stem in ("w", "static") else amount
    values["layers"] = reader.count("layers", None)
    levels = _levels(reader)
    if not splits:
        _refuse_split_memory(reader, values, levels)
    reader.finish(
        "t_f_ms, t_b_ms, t_w_ms, t_bw_ms, act_mib, w_mib, offload_mib, static_mib, layers,"
        " recompute"
    )
    try:
        return StageCost(**values, recompute=levels, splits=splits)  # type: ignore[arg-type]
    except ProfileError as error:
        raise ProfileError(f"{reader.where}.{error}") from None


def _check_backward(reader: Reader, values: dict[str, int | None]) -> bool:
    """Whether the backward is split: t_b and t_w. Where t_bw stands alone it becomes all of t_b."""
    missing = [stem for stem in ("t_b", "t_w") if values[f"{stem}_ns"] is None]
    if len(missing) == 2 and values["t_bw_ns"] is not None:
        values |= {"t_b_ns": values["t_bw_ns"], "t_w_ns": 0, "t_bw_ns": None}
        return False
    if missing:
        options = ", ".join(missing[0] + unit for unit in TIME_UNITS)
        raise reader.fail(
            f"{missing[0]}_ms",
            f"missing (one of {options}); or give t_bw_ms alone, the backward as one",
        )
    return True


def _refuse_split_memory(
    reader: Reader, values: dict[str, int | None], levels: tuple[RecomputeLevel, ...]
) -> None:
    """What is held between B and W is no number of a backward that is one."""
    if values["w_bytes"]:
        raise reader.fail("w_mib", "is held from B to W: give t_b_ms and t_w_ms, or leave it out")
    for at, level in enumerate(levels):
        if level.b_work_bytes is not None:
            raise reader.fail(
                f"recompute[{at}].b_work_mib",
                "is of B alone: give t_b_ms and t_w_ms, or leave it out",
            )


def _levels(reader: Reader) -> tuple[RecomputeLevel, ...]:
    """The levels of recomputation of a stage."""
    data = reader.take("recompute")
    if data is None:
        return ()
    if not isinstance(data, list):
        raise reader.fail(
            "recompute",
            f"expected a list of levels, as [{{name: full, t_ms: 18.5, keep_mib: 24}}], got {data!r}",
        )
    levels = []
    for at, entry in enumerate(data):
        inner = Reader(entry, f"{reader.where}.recompute[{at}]")
        values: dict[str, Any] = {
            "name": inner.take("name"),
            "t_ns": inner.amount("t", TIME_UNITS, positive=True, needed=True),
            "keep_bytes": inner.amount("keep", BYTE_UNITS, needed=True),
            "work_bytes": inner.amount("work", BYTE_UNITS),
            "b_work_bytes": inner.amount("b_work", BYTE_UNITS),
            "layers": inner.take("layers"),
        }
        inner.finish("name, t_ms, keep_mib, work_mib, b_work_mib, layers")
        try:
            levels.append(RecomputeLevel(**values))
        except ProfileError as error:
            raise ProfileError(f"{inner.where}.{error}") from None
    return tuple(levels)


def _comm(reader: Reader) -> tuple[int, int]:
    """(latency, occupancy) of one hop; a plain time is all occupancy."""
    found = reader.quantity("t_comm", {"": 1, **TIME_UNITS})
    if found is None:
        return 0, 0
    key, value, factor = found
    if not isinstance(value, Mapping):
        if key == "t_comm":
            raise reader.fail("t_comm", "unknown key; write t_comm_ms (or _s, _us, _ns)")
        return 0, reader.whole(key, value, factor)
    inner = Reader(value, key)
    latency = inner.amount("latency", TIME_UNITS) or 0
    size = inner.amount("message", BYTE_UNITS) or 0
    bandwidth = inner.take("gb_per_s")
    inner.finish("latency_us, gb_per_s, message_mib")
    if size and bandwidth is None:
        raise inner.fail("gb_per_s", "missing: the bandwidth that carries message_*")
    return latency, transfer_ns(size, _bandwidth(inner, "gb_per_s", bandwidth)) if size else 0


def _bandwidth(reader: Reader, key: str, value: Any) -> Any:
    try:
        number = exact(value)
    except ValueError as error:
        raise reader.fail(key, str(error)) from None
    if number <= 0:
        raise reader.fail(key, f"must be above 0, got {value}")
    return number


def _limit(reader: Reader, devices: int) -> tuple[int, ...] | None:
    found = reader.quantity("memory_limit", BYTE_UNITS)
    if found is None or found[1] is None:
        return None
    key, value, factor = found
    if not isinstance(value, list):
        return (reader.whole(key, value, factor),) * devices
    if len(value) != devices:
        raise reader.fail(key, f"lists {len(value)} devices, but there are {devices}")
    return tuple(reader.whole(f"{key}[{at}]", entry, factor) for at, entry in enumerate(value))


def _offload(reader: Reader, stages: list[StageCost]) -> tuple[Offload, list[StageCost]]:
    costs = {}
    for stem, bandwidth in (("t_offload", "d2h_gb_per_s"), ("t_reload", "h2d_gb_per_s")):
        times = _copy_times(reader, stem, bandwidth, stages)
        costs[f"{stem}_ns"] = times
    groups = reader.take("host_link_groups") or []
    if not isinstance(groups, list) or not all(
        isinstance(group, list)
        and all(isinstance(item, int) and not isinstance(item, bool) for item in group)
        for group in groups
    ):
        raise reader.fail(
            "host_link_groups", f"expected lists of devices, as [[0, 1], [2, 3]], got {groups!r}"
        )
    offload = Offload(
        copy_engines=reader.take("copy_engines", "separate"),
        host_link=reader.take("host_link"),
        host_link_groups=tuple(tuple(group) for group in groups if group),
        host_limit_bytes=reader.amount("host_limit", BYTE_UNITS),
        devices_per_node=reader.count("devices_per_node", None),
    )
    reader.finish(
        "t_offload_ms or d2h_gb_per_s, t_reload_ms or h2d_gb_per_s, copy_engines, host_link,"
        " host_link_groups, host_limit_gib, devices_per_node"
    )
    return offload, [
        replace(cost, **{key: times[at] for key, times in costs.items()})  # type: ignore[arg-type]
        for at, cost in enumerate(stages)
    ]


def _copy_times(reader: Reader, stem: str, bandwidth: str, stages: list[StageCost]) -> list[int]:
    found = reader.quantity(stem, TIME_UNITS)
    rate = reader.take(bandwidth)
    if (found is None) == (rate is None):
        raise reader.fail(f"{stem}_ms", f"give {stem}_ms or {bandwidth}, and not both")
    key, value = (found[0], found[1]) if found else (bandwidth, rate)
    values = value if isinstance(value, list) else [value] * len(stages)
    if len(values) != len(stages):
        raise reader.fail(key, f"lists {len(values)} stages, expected {len(stages)}")
    if found:
        return [reader.whole(key, entry, found[2]) for entry in values]
    return [
        transfer_ns(cost.offloadable, _bandwidth(reader, key, entry))
        for cost, entry in zip(stages, values, strict=True)
    ]


def profile_to_json(profile: CostProfile) -> dict[str, Any]:
    """The profile as a mapping of the file format, every number exact (ns and bytes)."""
    stages = []
    for cost in profile.stages:
        entry: dict[str, Any] = {
            "t_f_ns": cost.t_f_ns,
            "t_b_ns": cost.t_b_ns,
            "t_w_ns": cost.t_w_ns,
            "act_bytes": cost.act_bytes,
            "w_bytes": cost.w_bytes,
            "offload_bytes": cost.offload_bytes,
            "static_bytes": cost.static_bytes,
        }
        if not cost.splits:
            entry["t_bw_ns"] = entry.pop("t_b_ns")
            del entry["t_w_ns"], entry["w_bytes"]
        elif cost.t_bw_ns is not None:
            entry["t_bw_ns"] = cost.t_bw_ns
        if cost.layers is not None:
            entry["layers"] = cost.layers
        if cost.recompute:
            entry["recompute"] = [
                {key: value for key, value in asdict(level).items() if value is not None}
                for level in cost.recompute
            ]
        stages.append(entry)
    shape = profile.shape(1)
    data: dict[str, Any] = {
        "name": profile.name,
        "devices": profile.devices,
        "chunks": profile.chunks,
        "placement": shape.placement_name,
        "stages": stages[0] if stages.count(stages[0]) == len(stages) else stages,
        "links": profile.links,
    }
    if profile.latency_ns:
        data["t_comm"] = {
            "latency_ns": profile.latency_ns,
            # at 1 GB/s a message takes as many ns as it has bytes
            "message_bytes": profile.occupancy_ns,
            "gb_per_s": 1,
        }
    else:
        data["t_comm_ns"] = profile.occupancy_ns
    if profile.offload is not None:
        data["offload"] = _offload_to_json(profile, profile.offload)
    if profile.memory_limit is not None:
        limit = profile.memory_limit
        data["memory_limit_bytes"] = limit[0] if len(set(limit)) == 1 else list(limit)
    if profile.meta:
        data["meta"] = profile.meta
    return data


def _offload_to_json(profile: CostProfile, offload: Offload) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key in ("t_offload_ns", "t_reload_ns"):
        times = [getattr(cost, key) for cost in profile.stages]
        data[key] = times[0] if len(set(times)) == 1 else times
    data["copy_engines"] = offload.copy_engines
    data["host_link"] = offload.host_link
    if offload.host_link_groups:
        data["host_link_groups"] = [list(group) for group in offload.host_link_groups]
    if offload.host_limit_bytes is not None:
        data["host_limit_bytes"] = offload.host_limit_bytes
    if offload.devices_per_node is not None:
        data["devices_per_node"] = offload.devices_per_node
    return data


def save_profile(profile: CostProfile, path: str | os.PathLike[str]) -> None:
    """Write a profile as YAML (or JSON, by the ending); reading it back gives the same profile.

    Raises:
        OptPipeError: where the file cannot be written.
    """
    require("profile", profile, CostProfile, "read one with load_profile(PATH)")
    write_mapping(path, profile_to_json(profile))
