"""Levels of recomputation in a schedule: which activations are recomputed, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..errors import InvalidSchedule
from .shape import Shape

_ACTIVATION = re.compile(r"(\d{1,9})(?:\.(\d{1,9}))?")


class Levels(NamedTuple):
    """Which activations are recomputed, and at which level.

    `table` (stages, microbatches) has 0 for what is kept whole, else a number from 1 on: a place in
    `names`, counted from 1.
    """

    names: tuple[str, ...]
    table: np.ndarray


def read_levels(shape: Shape, recompute: Mapping[str, str]) -> Levels:
    """The levels in a mapping of the file format.

    Raises:
        InvalidSchedule: names the key that is no activation of this shape, or has no level.
    """
    table = np.zeros((shape.stages, shape.microbatches), np.int64)
    names: dict[str, int] = {}
    single = []
    for key, name in recompute.items():
        found = _ACTIVATION.fullmatch(key) if isinstance(key, str) else None
        if not found:
            raise InvalidSchedule(
                f"recompute: {key!r} is no activation: write a stage, as 3, or stage . microbatch, as 3.7"
            )
        if not isinstance(name, str) or not name:
            raise InvalidSchedule(
                f"recompute {key}: expected the name of a level of recomputation, got {name!r}"
            )
        stage, microbatch = int(found[1]), int(found[2] or 0)
        if stage >= shape.stages or microbatch >= shape.microbatches:
            raise InvalidSchedule(
                f"recompute {key}: is outside the shape: stages are 0 to {shape.stages - 1},"
                f" microbatches 0 to {shape.microbatches - 1}"
            )
        number = names.setdefault(name, len(names) + 1)
        if found[2] is None:
            table[stage] = number
        else:
            single.append((stage, microbatch, number))
    for stage, microbatch, number in single:
        table[stage, microbatch] = number
    return Levels(tuple(names), table)
