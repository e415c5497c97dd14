"""Levels of recomputation in a schedule: which activations are recomputed, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..errors import InvalidSchedule
from .shape import Shape

_ACTIVATION = re.compile(r"(\d{1,9})(?:\.(\d{1,9})(?:/(\d{1,9}))?)?")


class Levels(NamedTuple):
    """Which activations are recomputed, and at which level.

    `table` (stages, units) has 0 for activations kept whole, else the position in `names`,
    counted from 1.
    """

    names: tuple[str, ...]
    table: np.ndarray


def levels_by_stage(shape: Shape, levels: Sequence[str | None]) -> Levels:
    """Return every activation at the level of its stage; None: kept whole."""
    names = tuple(dict.fromkeys(level for level in levels if level is not None))
    number = np.array(
        [0 if level is None else names.index(level) + 1 for level in levels], np.int64
    )
    return Levels(names, np.repeat(number[:, None], shape.units, axis=1))


def read_levels(shape: Shape, recompute: Mapping[str, str]) -> Levels:
    """Return the levels in a mapping of the file format.

    Raises:
        InvalidSchedule: names the key that is no activation of this shape, or has no level.
    """
    table = np.zeros((shape.stages, shape.microbatches, shape.slices), np.int64)
    names: dict[str, int] = {}
    single = []
    like = "3, or stage . microbatch, as 3.7" + (
        ", or a slice of it, as 3.7/1" if shape.slices > 1 else ""
    )
    for key, name in recompute.items():
        found = _ACTIVATION.fullmatch(key) if isinstance(key, str) else None
        if not found:
            raise InvalidSchedule(f"recompute: {key!r} is no activation: write a stage, as {like}")
        if not isinstance(name, str) or not name:
            raise InvalidSchedule(
                f"recompute {key}: expected the name of a level of recomputation, got {name!r}"
            )
        at = tuple(int(number) for number in found.groups() if number is not None)
        if any(number >= most for number, most in zip(at, table.shape, strict=False)):
            raise InvalidSchedule(
                f"recompute {key}: is outside the shape: stages are 0 to {shape.stages - 1},"
                f" microbatches 0 to {shape.microbatches - 1}"
                + (f", slices 0 to {shape.slices - 1}" if shape.slices > 1 else "")
            )
        single.append((at, names.setdefault(name, len(names) + 1)))
    for at, number in sorted(
        single, key=lambda entry: len(entry[0])
    ):  # the narrower takes precedence
        table[at] = number
    return Levels(tuple(names), table.reshape(shape.stages, shape.units))
