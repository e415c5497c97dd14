"""Schedules as files: the fields of a mapping of the file format, checked by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidSchedule
from ..files import plain
from .shape import Shape

FORMAT, VERSION = "optpipe-schedule", 1
_KEYS = ("format", "version", "shape", "programs", "link_order", "recompute", "meta")
_SHAPE = ("devices", "chunks", "microbatches", "placement", "slices")


def read_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Schedule` in a mapping of the file format.

    Raises:
        InvalidSchedule: names the key and what is expected.
    """
    if data.get("format") != FORMAT:
        raise InvalidSchedule(f"format: expected {FORMAT!r}, got {data.get('format')!r}")
    if data.get("version") != VERSION:
        raise InvalidSchedule(
            f"version: this program reads version {VERSION}, the file has {data.get('version')!r}"
        )
    for key in data:
        if key not in _KEYS:
            raise InvalidSchedule(f"{key}: unknown key; known are {', '.join(sorted(_KEYS))}")
    programs, link_order = data.get("programs"), data.get("link_order") or {}
    shape = _read_shape(data.get("shape"))
    if not isinstance(programs, list) or not all(isinstance(ops, list) for ops in programs):
        raise InvalidSchedule("programs: expected a list with one list of ops per device")
    if not isinstance(link_order, Mapping) or not all(
        isinstance(ops, list) for ops in link_order.values()
    ):
        raise InvalidSchedule('link_order: expected a mapping such as {"0/O": ["O0.0", ...]}')
    if not isinstance(data.get("meta") or {}, Mapping):
        raise InvalidSchedule("meta: expected a mapping")
    if not isinstance(data.get("recompute") or {}, Mapping):
        raise InvalidSchedule('recompute: expected a mapping such as {"3": "full"}')
    return {
        "shape": shape,
        "programs": programs,
        "link_order": link_order,
        "meta": plain(data.get("meta")),
        "recompute": data.get("recompute"),
    }


def _read_shape(shape: Any) -> Shape:
    if not isinstance(shape, Mapping):
        raise InvalidSchedule(
            "shape: expected a mapping of devices, chunks, microbatches, placement"
        )
    for key in shape:
        if key not in _SHAPE:
            raise InvalidSchedule(f"shape.{key}: unknown key; known are {', '.join(_SHAPE)}")
    for key in ("devices", "microbatches"):
        if key not in shape:
            raise InvalidSchedule(f"shape.{key}: missing")
    return Shape(
        shape["devices"],
        shape.get("chunks", 1),
        shape["microbatches"],
        shape.get("placement", "loop"),
        shape.get("slices", 1),
    )
