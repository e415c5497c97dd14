"""Read profiles from files: units in the keys, every error in one clear line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from .errors import InvalidSchedule, OptPipeError, ProfileError
from .execution import load_execution
from .files import plain, read_mapping
from .profile import CostProfile
from .profile.items import MOST_ITEMS, Item, StageMaker, even_counts
from .profile.offload_file import COPIES, bandwidth_of, read_offload
from .profile.parts import join
from .profile.streams import PARTS, Streams
from .profile.writing import profile_to_json as profile_to_json
from .profile.writing import save_profile as save_profile
from .schedule.shape import require_stages
from .stage_cost import RecomputeLevel, StageCost, transfer_ns, with_overhead
from .units import BYTE_UNITS, TIME_UNITS, Reader, is_plain

LONGEST_NAME = 255  # as of a file
_STAGE_TIMES = ("t_f", "t_b", "t_w", "t_bw")
_STAGE_BYTES = ("act", "w", "offload", "static", "kv")


_LOGS = (".log", ".out", ".err", ".txt")


def load_profile(source: str | os.PathLike[str] | Mapping[str, Any]) -> CostProfile:
    """Read a profile from a YAML or JSON file, or from a mapping of the same form.

    Raises:
        OptPipeError: for a file that cannot be read.
        ProfileError: one line with the file, the key, what is wrong and what is expected.
    """
    if isinstance(source, Mapping):
        return _profile(source)
    if not isinstance(source, str | os.PathLike):
        raise ProfileError(f"profile: expected a path or a mapping, got a {type(source).__name__}")
    try:
        data = read_mapping(source, "a profile")
    except OptPipeError:
        if str(source).endswith(_LOGS):
            raise ProfileError(
                f"{source}: is not a profile (YAML or JSON); import --from megatron-log makes one of a log with"
                " timers, evaluate --log compares any"
            ) from None
        raise
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
    slices = reader.count("slices", 1) or 0
    if not 1 <= slices <= 4096:
        raise reader.fail("slices", f"must be a whole number from 1 to 4096, got {slices}")
    items = _items(reader)
    unknown = reader.take("memory_unknown", "")
    if not isinstance(unknown, str) or not is_plain(unknown):
        raise reader.fail("memory_unknown", f"expected why, a text on one line, got {unknown!r}")
    stages = _stages(reader, devices, chunks, slices, items, sized=not unknown)
    latency_ns, occupancy_ns = _comm(reader)
    limit = _limit(reader, devices)
    offload = None
    if reader.left.get("offload") is not None:
        section = Reader(reader.take("offload"), "offload")
        offload, stages, items = read_offload(section, devices, stages, items)
    reader.take("offload")
    overhead = reader.amount("t_overhead", TIME_UNITS) or 0
    hidden, meta = _hidden(reader), reader.take("meta", {})
    if not isinstance(meta, Mapping):
        raise reader.fail("meta", f"expected a mapping, got {meta!r}")
    profile = CostProfile(
        name=name,
        devices=devices,
        chunks=chunks,
        placement=reader.take("placement", "loop"),
        stages=tuple(with_overhead(cost, overhead) for cost in stages),
        latency_ns=latency_ns,
        occupancy_ns=occupancy_ns,
        links=reader.take("links", "latency"),
        offload=offload,
        memory_limit=limit,
        slices=slices,
        microbatch_time=_factors(reader, "microbatch_time"),
        microbatch_bytes=_factors(reader, "microbatch_bytes"),
        execution=load_execution(reader.take("execution", "ideal")),
        pair_hidden=hidden or 0,
        meta=plain(dict(meta)),
        items=items,
        memory_unknown=unknown,
    )
    if hidden is None:  # what its layers hide, if they say what they do on two streams
        layers = [cost.layers or 0 for cost in profile.stages]
        profile = replace(profile, pair_hidden=profile.hidden_for(layers))
    reader.finish(
        "name, devices, chunks, placement, stages, slices, t_comm_ms, links, offload, memory_limit_gib, t_overhead_us,"
        " pair_hidden_ms, microbatch_time, microbatch_bytes, execution, items, memory_unknown, meta"
        " (times end in _s, _ms, _us or _ns; bytes in _bytes, _mib or _gib)"
    )
    return profile


def _items(reader: Reader) -> tuple[Item, ...]:
    """Return the model layer by layer."""
    data = reader.take("items")
    if data is None:
        return ()
    if not isinstance(data, list) or not data:
        raise reader.fail("items", f"expected a list of layers, got {data!r}")
    section = reader.left.get("offload")
    section = section if isinstance(section, Mapping) else {}
    found: list[Item] = []
    for at, entry in enumerate(data):
        inner = Reader(entry, f"items[{at}]")
        name, count = inner.take("name", "layer"), inner.count("count", 1) or 0
        if not 1 <= count <= MOST_ITEMS - len(found):
            raise inner.fail("count", f"must be from 1 to {MOST_ITEMS} in all, got {count}")
        reserve = inner.amount("reserve", BYTE_UNITS) or 0
        copies = {f"{stem}_ns": inner.amount(stem, TIME_UNITS) for stem in COPIES}
        streams = _streams(inner)
        cost = _stage(inner)
        for stem, bandwidth in COPIES.items():
            if copies[f"{stem}_ns"] is None and section.get(bandwidth) is not None:
                rate = bandwidth_of(inner, bandwidth, section[bandwidth])
                copies[f"{stem}_ns"] = transfer_ns(cost.offloadable, rate)
            elif section and copies[f"{stem}_ns"] is None:
                raise inner.fail(f"{stem}_ms", f"missing: offload gives no {bandwidth}")
        try:
            found += [Item(name, replace(cost, **copies), reserve, streams)] * count  # type: ignore[arg-type]
        except ProfileError as error:
            raise ProfileError(f"items[{at}].{error}") from None
    return tuple(found)


def _streams(reader: Reader) -> Streams | None:
    """Return what a layer does on the streams of a pair, or None."""
    data = reader.take("streams")
    if data is None:
        return None
    inner = Reader(data, f"{reader.where}.streams")
    found: dict[str, tuple[Any, ...]] = {}
    for stem, parts in PARTS.items():
        got = inner.quantity(stem, {"": 1} if stem == "slower" else TIME_UNITS)
        if got is None:
            continue
        key, value, factor = got
        if not isinstance(value, list) or len(value) != len(parts):
            raise inner.fail(key, f"expected a list of {', '.join(parts)}; got {value!r}")
        if stem == "slower":
            found[stem] = tuple(plain(value))
        else:
            found[stem] = tuple(
                inner.whole(f"{key}[{at}]", one, factor) for at, one in enumerate(value)
            )
    for stem in ("forward", "backward"):
        if stem not in found:
            raise inner.fail(f"{stem}_ms", f"missing: a list of {', '.join(PARTS[stem])}")
    inner.finish("forward_ms, backward_ms, weights_ms, again_ms, host_ms, slower")
    try:
        return Streams(**found)
    except ProfileError as error:
        raise ProfileError(f"{inner.where}.{error}") from None


def _stages(
    reader: Reader, devices: int, chunks: int, slices: int, items: tuple[Item, ...], sized: bool
) -> list[StageCost]:
    """Return the stages; those that are not `sized` may leave out what they hold."""
    data, count = reader.take("stages"), devices * chunks
    if data is None and items and slices == 1:
        borders = pairwise([0, *accumulate(even_counts(len(items), count))])
        maker = StageMaker(items, chunks)
        return [maker.stage(first, last) for first, last in borders]
    if data is None:
        raise reader.fail(
            "stages", "missing: one mapping for all stages, or a list with one per stage"
        )
    if isinstance(data, Mapping):
        return [_sliced(data, "stages", slices, sized)] * count
    if not isinstance(data, list):
        raise reader.fail("stages", f"expected a mapping or a list of {count}, got {data!r}")
    if len(data) != count:
        raise reader.fail(
            "stages", f"lists {len(data)} stages, expected devices x chunks = {count}"
        )
    return [_sliced(entry, f"stages[{at}]", slices, sized) for at, entry in enumerate(data)]


def _sliced(data: Any, where: str, slices: int, sized: bool) -> StageCost:
    """Return a stage; with slices, its numbers may be lists of one number per slice."""
    if slices == 1 or not isinstance(data, Mapping):
        return _stage(Reader(data, where), sized)
    known = _stage(Reader(_of_slice(data, 0, slices, where), where), sized)
    try:
        return join(
            [
                replace(
                    _stage(Reader(_of_slice(data, at, slices, where), where), sized),
                    static_bytes=0,
                    layers=None,
                )
                for at in range(slices)
            ],
            known.static_bytes,
            known.layers,
        )
    except ProfileError as error:
        text = str(error)
        raise ProfileError(text if text.startswith(where) else f"{where}.{text}") from None


def _of_slice(data: Mapping[str, Any], at: int, slices: int, where: str) -> dict[str, Any]:
    """Return the mapping of a stage, or of a level of its recomputation, with the numbers of one slice."""
    found = dict(data)
    for key, value in data.items():
        if key == "recompute" and isinstance(value, list):
            found[key] = [
                _of_slice(level, at, slices, f"{where}.recompute[{number}]")
                if isinstance(level, Mapping)
                else level
                for number, level in enumerate(value)
            ]
        elif isinstance(value, list) and not str(key).startswith(("static", "layers")):
            if len(value) != slices:
                raise ProfileError(f"{where}.{key}: lists {len(value)} slices, expected {slices}")
            found[key] = value[at]
    return {key: value for key, value in found.items() if value is not None}


def _stage(reader: Reader, sized: bool = True) -> StageCost:
    values: dict[str, int | None] = {}
    for stem in _STAGE_TIMES:
        values[f"{stem}_ns"] = reader.amount(
            stem, TIME_UNITS, positive=stem != "t_w", needed=stem == "t_f"
        )
    splits = _check_backward(reader, values)
    for stem in _STAGE_BYTES:
        amount = reader.amount(stem, BYTE_UNITS, needed=sized and stem == "act")
        values[f"{stem}_bytes"] = 0 if amount is None and stem != "offload" else amount
    values["layers"] = reader.count("layers", None)
    levels = _levels(reader)
    if not splits:
        _refuse_split_memory(reader, values, levels)
    reader.finish(
        "t_f_ms, t_b_ms, t_w_ms, t_bw_ms, act_mib, w_mib, offload_mib, static_mib, kv_mib,"
        " layers, recompute"
    )
    try:
        return StageCost(**values, recompute=levels, splits=splits)  # type: ignore[arg-type]
    except ProfileError as error:
        raise ProfileError(f"{reader.where}.{error}") from None


def _check_backward(reader: Reader, values: dict[str, int | None]) -> bool:
    """Whether the backward is split into t_b and t_w. A t_bw given alone becomes t_b."""
    missing = [stem for stem in ("t_b", "t_w") if values[f"{stem}_ns"] is None]
    if len(missing) == 2 and values["t_bw_ns"] is not None:
        values |= {"t_b_ns": values["t_bw_ns"], "t_w_ns": 0, "t_bw_ns": None}
        return False
    if missing:
        raise reader.missing(missing[0], TIME_UNITS, "; or give t_bw_ms alone, the backward as one")
    return True


def _refuse_split_memory(
    reader: Reader, values: dict[str, int | None], levels: tuple[RecomputeLevel, ...]
) -> None:
    """Refuse `w` and its like where only the whole backward is given: nothing is held between B and W."""
    if values["w_bytes"]:
        key = reader.key_of("w")
        raise reader.fail(key, "is held from B to W: give t_b_ms and t_w_ms, or leave it out")
    for at, level in enumerate(levels):
        if level.b_work_bytes is not None:
            raise reader.fail(
                f"recompute[{at}].b_work",
                "is of B alone: give t_b_ms and t_w_ms, or leave it out",
            )


def _levels(reader: Reader) -> tuple[RecomputeLevel, ...]:
    """Return the levels of recomputation of a stage."""
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
    """Return (latency, occupancy) of one message; a plain time is all occupancy."""
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
    return latency, transfer_ns(size, bandwidth_of(inner, "gb_per_s", bandwidth)) if size else 0


def _hidden(reader: Reader) -> int | tuple[tuple[int, ...], ...] | None:
    """Return what pairs hide: a number, or one by the stages of the two; None where that is not given."""
    found = reader.quantity("pair_hidden", TIME_UNITS)
    if found is None or found[1] is None:
        return None
    key, value, factor = found
    if not isinstance(value, list):
        return reader.whole(key, value, factor)
    rows = []
    for at, row in enumerate(value):
        if not isinstance(row, list):
            raise reader.fail(f"{key}[{at}]", f"expected a list with a time per stage, got {row!r}")
        rows.append(
            tuple(reader.whole(f"{key}[{at}][{to}]", entry, factor) for to, entry in enumerate(row))
        )
    return tuple(rows)


def _factors(reader: Reader, key: str) -> tuple[Any, ...] | None:
    """Return the factors of the microbatches, or None."""
    given = reader.take(key)
    if given is None:
        return None
    if not isinstance(given, list):
        raise reader.fail(key, f"expected a list with a factor per microbatch, got {given!r}")
    return tuple(given)


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
