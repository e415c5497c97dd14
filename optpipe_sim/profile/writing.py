"""Write profiles as mappings and files; `profile_io` reads them."""

from __future__ import annotations

import os
from dataclasses import asdict
from itertools import groupby
from typing import Any

from ..errors import require
from ..execution import IDEAL, execution_to_json
from ..files import write_mapping
from ..stage_cost import StageCost, without_overhead
from ..units import as_number
from . import CostProfile, Nvme, Offload


def profile_to_json(profile: CostProfile) -> dict[str, Any]:
    """Return the profile as a mapping of the file format, every number exact (ns and bytes)."""
    bare = [without_overhead(cost) for cost in profile.stages]
    stages = [_sliced_to_json(cost) if cost.slices else _to_json(cost) for cost in bare]
    if profile.memory_unknown:
        stages = [_without_unknown(stage) for stage in stages]
    shape = profile.shape(1)
    data: dict[str, Any] = {
        "name": profile.name,
        "devices": profile.devices,
        "chunks": profile.chunks,
        "placement": shape.placement_name,
        "stages": _alike(stages),
        **({"slices": profile.slices} if profile.slices > 1 else {}),
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
    if profile.overhead_ns:
        data["t_overhead_ns"] = profile.overhead_ns
    if profile.pair_hidden:
        hidden = profile.pair_hidden
        data["pair_hidden_ns"] = (
            hidden if isinstance(hidden, int) else [list(row) for row in hidden]
        )
    for key in ("microbatch_time", "microbatch_bytes"):
        if getattr(profile, key) is not None:
            data[key] = [as_number(factor) for factor in getattr(profile, key)]
    if profile.execution != IDEAL:
        data["execution"] = execution_to_json(profile.execution)
    if profile.memory_unknown:
        data["memory_unknown"] = profile.memory_unknown
    if profile.items:
        data["items"] = _items_to_json(profile)
    if profile.meta:
        data["meta"] = profile.meta
    return data


def _alike(values: list[Any]) -> Any:
    """Return one value where all are equal, else the list."""
    return values[0] if all(value == values[0] for value in values) else values


def _without_unknown(stage: dict[str, Any]) -> dict[str, Any]:
    """Return the mapping of a stage without sizes of 0, which stand for those that are not known."""
    return {key: value for key, value in stage.items() if value or not key.endswith("_bytes")}


def _to_json(cost: StageCost) -> dict[str, Any]:
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
    if cost.kv_bytes:
        entry["kv_bytes"] = cost.kv_bytes
    if cost.layers is not None:
        entry["layers"] = cost.layers
    if cost.recompute:
        entry["recompute"] = [
            {key: value for key, value in asdict(level).items() if value is not None}
            for level in cost.recompute
        ]
    return entry


def _items_to_json(profile: CostProfile) -> list[dict[str, Any]]:
    """Write the model layer by layer, runs of equal layers as one entry."""
    entries = []
    for item, run in groupby(profile.items):
        entry = {"name": item.name, "count": len(list(run)), **_to_json(item.cost)}
        del entry["layers"]
        if item.reserve_bytes:
            entry["reserve_bytes"] = item.reserve_bytes
        for key in ("t_offload_ns", "t_reload_ns") if profile.offload is not None else ():
            entry[key] = getattr(item.cost, key)
        if item.streams is not None:
            entry["streams"] = {
                key if key == "slower" else f"{key}_ns": list(value)
                for key, value in asdict(item.streams).items()
                if any(value)
            }
        entries.append(entry)
    return entries


_ABSENT = {"kv_bytes": 0}  # what a slice has that does not say; else: null, what is usual


def _sliced_to_json(cost: StageCost) -> dict[str, Any]:
    """Write a stage with a number, or a list of one per slice, for each key."""
    parts = [_to_json(part) for part in cost.slices]
    whole = _to_json(cost)
    keys = [key for key in whole if any(key in part for part in parts)]
    entry = {key: _alike([part.get(key, _ABSENT.get(key)) for part in parts]) for key in keys}
    entry |= {key: whole[key] for key in ("static_bytes", "layers") if key in whole}
    if cost.recompute:
        entry["recompute"] = [
            {
                key: value
                if key == "name"
                else _alike([part["recompute"][at].get(key) for part in parts])
                for key, value in level.items()
            }
            for at, level in enumerate(whole["recompute"])
        ]
    return entry


def _offload_to_json(profile: CostProfile, offload: Offload) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key in ("t_offload_ns", "t_reload_ns"):
        times = [
            _alike([getattr(part, key) for part in cost.slices or (cost,)])
            for cost in profile.stages
        ]  # a list is one of stages, whatever their slices
        data[key] = times if isinstance(times[0], list) else _alike(times)
    data["copy_engines"] = offload.copy_engines
    data["host_link"] = offload.host_link
    if offload.host_link_groups:
        data["host_link_groups"] = [list(group) for group in offload.host_link_groups]
    elif offload.nvme is not None and not offload.writes_behind and profile.devices > 1:
        # where a file says nothing, a node's devices share one
        data["host_link_groups"] = [[device] for device in range(profile.devices)]
    if offload.host_limit_bytes is not None:
        data["host_limit_bytes"] = offload.host_limit_bytes
    if offload.devices_per_node is not None:
        data["devices_per_node"] = offload.devices_per_node
    if offload.nvme is not None:
        data["nvme"] = _nvme_to_json(offload.nvme)
    return data


def _nvme_to_json(nvme: Nvme) -> dict[str, Any]:
    data: dict[str, Any] = {
        "write_gb_per_s": nvme.write_bytes_per_s / 10**9,
        "read_gb_per_s": nvme.read_bytes_per_s / 10**9,
    }
    if nvme.staging_bytes is not None:
        data["staging_bytes"] = nvme.staging_bytes
    if nvme.rated_bytes is not None:
        data["rated_tb_written"] = nvme.rated_bytes / 10**12
    if nvme.write_behind:
        data["write_behind"] = True
    return data


def save_profile(profile: CostProfile, path: str | os.PathLike[str]) -> None:
    """Write a profile as YAML (or JSON, by the ending); reading it back gives the same profile.

    Raises:
        OptPipeError: where the file cannot be written.
    """
    require("profile", profile, CostProfile, "read one with load_profile(PATH)")
    write_mapping(path, profile_to_json(profile))
