"""How unevenly experts are loaded: tokens of the GPU whose experts get most, over the mean of the GPUs
that share a layer's experts.

All of them wait for the most loaded one wherever they exchange tokens, in every layer; and it holds most.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import OptPipeError
from ..files import read_rows

# Where nothing is known of a router that was not balanced by force: up to what two published runs took longer than with
# balance, whose times the same imbalance gives (`balance` of `published/experts.yaml`; experiment `experts`).
UNKNOWN = (1.0, 1.56)


class Imbalance(NamedTuple):
    """The most loaded GPU over the mean: between `low` and `high`, costs are those of `usual`.

    `capacity`: the most tokens of an expert over the mean, None: all that come; `padded`: every expert
        computes as many. See `within`.
    """

    low: float
    usual: float
    high: float
    capacity: float | None = None
    padded: bool = False

    @property
    def spread(self) -> bool:
        """Whether it is not known exactly."""
        return self.low < self.high

    def to_json(self) -> dict[str, Any]:
        """Plain data, of an estimated profile's meta."""
        found: dict[str, Any] = {
            key: round(getattr(self, key), 4) for key in ("low", "usual", "high")
        }
        if self.capacity is not None:
            found |= {"capacity": self.capacity, "padded": self.padded}
        return found

    def within(self, capacity: float | None, padded: bool = False) -> Imbalance:
        """Return it where an expert gets at most `capacity` times the mean of tokens, and others are
        dropped (Megatron-LM's ``--moe-expert-capacity-factor``); `padded`: every expert computes and is
        sent as many.

        Raises:
            OptPipeError: for a capacity below 1, or padding without one.
        """
        if capacity is None:
            if padded:
                raise OptPipeError("pad to capacity: needs a capacity factor")
            return self
        if isinstance(capacity, bool) or not isinstance(capacity, int | float) or not capacity >= 1:
            raise OptPipeError(f"capacity factor: must be at least 1, got {capacity!r}")
        most = float(capacity)
        low, usual, high = (most if padded else min(one, most) for one in self[:3])
        return Imbalance(low, usual, high, most, padded)


EVEN = Imbalance(1.0, 1.0, 1.0)


def as_imbalance(given: Any, experts: int, ep: int) -> Imbalance:
    """Return what is given for a layer of `experts` on `ep` GPUs.

    Args:
        given: an `Imbalance`, which is even on one GPU, as that has all experts; a number; two, or a
            text ``1.1..1.6``, for a range whose middle costs are taken at; ``unknown`` for `UNKNOWN`; or
            a file with the tokens of each expert, a line per layer (or JSON).

    Raises:
        OptPipeError: one line with what is wrong and what would be right.
    """
    if isinstance(given, Imbalance):
        return given if ep > 1 else EVEN
    if isinstance(given, str):
        words = given.split("..")
        if given == "unknown":
            given = UNKNOWN
        elif len(words) <= 2 and all(map(_is_number, words)):
            given = tuple(map(float, words))
        elif not Path(given).exists():
            raise OptPipeError(
                f"imbalance: expected a number from 1, a range 1.1..1.6, unknown, or a file with the tokens of each expert; got {given!r}"
            )
        else:
            return _of_file(given, experts, ep)
    values = [given] if isinstance(given, int | float) else list(given)
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(numbers) != len(values) or len(values) not in (1, 2) or not 1 <= values[0] <= values[-1]:
        got = "..".join(map(str, values))
        raise OptPipeError(
            f"imbalance: expected a number from 1, or two in order (1.1..1.6), the most loaded GPU over the mean; got {got}"
        )
    if values[-1] > ep:
        raise OptPipeError(
            f"imbalance: {values[-1]:g}, but with ep {ep} the most loaded GPU gets at most {ep:g} times the mean"
        )
    low, high = float(values[0]), float(values[-1])
    return Imbalance(low, (low + high) / 2, high)


def for_any_ep(given: Any, experts: int) -> Imbalance:
    """Return what is given for whatever number of GPUs will share a layer's `experts`.

    Raises:
        OptPipeError: as `as_imbalance`, and for a file, whose loads depend on that number.
    """
    if isinstance(given, str) and Path(given).is_file():
        raise OptPipeError(
            f"imbalance: {given} says another one for each ep, which is chosen here; give a number, a range or unknown"
        )
    return as_imbalance(given, experts, max(1, experts))


def _is_number(word: str) -> bool:
    try:
        return float(word) == float(word)
    except ValueError:
        return False


def _of_file(path: str | os.PathLike[str], experts: int, ep: int) -> Imbalance:
    """Return the mean over the layers of a file: each of them waits for its own most loaded GPU."""
    rows = read_rows(path)
    if rows and not isinstance(rows[0], list):
        rows = [rows]
    if not rows:
        raise OptPipeError(
            f"{path}: no loads; a line per layer with the tokens of its {experts} experts"
        )
    loads = [_loads(row, f"{path}: layer {at}", experts) for at, row in enumerate(rows)]
    middle = sum(over_mean(row, ep) for row in loads) / len(loads)
    return Imbalance(middle, middle, middle)


def over_mean(loads: Sequence[float], ep: int) -> float:
    """Return the most loaded of `ep` GPUs over the mean, each with as many experts, in order."""
    each = len(loads) // ep
    ranks = [sum(loads[at : at + each]) for at in range(0, len(loads), each)]
    return max(ranks) * ep / sum(ranks)


def _loads(row: Any, where: str, experts: int) -> list[float]:
    if not isinstance(row, list) or len(row) != experts:
        found = len(row) if isinstance(row, list) else row
        raise OptPipeError(f"{where}: expected the tokens of {experts} experts, got {found!r}")
    loads = []
    for value in row:
        usable = isinstance(value, int | float) or (isinstance(value, str) and _is_number(value))
        if isinstance(value, bool) or not usable or not 0 <= float(value) < 1e15:
            raise OptPipeError(f"{where}: expected tokens of an expert, got {value!r}")
        loads.append(float(value))
    if not sum(loads):
        raise OptPipeError(f"{where}: no tokens at all")
    return loads
