"""Waiting patterns: which activations can wait on a device at the same time, counted whole.

In bytes, room for 1.3 activations serves 1.3 of them. But each waits in one piece: beside an op that
leaves room for 1.3 whole activations one can wait, or two that keep 46 %, and perhaps some that keep next to
nothing. A *pattern* says how many of each size wait; at any moment what waits fits into one of the
maximal patterns of the room that the configuration leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from .linear import Linear

MANY_PATTERNS = 60  # the most per room; with more, rounding down matters little
Pattern = tuple[int, ...]


class TooMany(Exception):
    """A room has more maximal patterns than are worth telling apart."""


def patterns(sizes: Sequence[int], most: Sequence[int], room: int) -> list[Pattern]:
    """Return the maximal numbers of activations of each size (bytes, descending) that fit together.

    Args:
        most: how many of each size there are at most.

    Raises:
        TooMany: above `MANY_PATTERNS`.
    """
    found: list[Pattern] = []

    def extend(pattern: Pattern, left: int) -> None:
        at = len(pattern)
        fits = min(most[at], left // sizes[at]) if at < len(sizes) else 0
        if at >= len(sizes):
            if not any(all(a <= b for a, b in zip(pattern, one, strict=True)) for one in found):
                found.append(pattern)
                if len(found) > MANY_PATTERNS:
                    raise TooMany
            return
        last = at == len(sizes) - 1
        for count in (fits,) if last else range(fits, -1, -1):
            extend((*pattern, count), left - count * sizes[at])

    extend((), room)
    return found


class Waits:
    """How long activations of each size wait on a device at least, over all, as terms of a model."""

    def __init__(self, microbatches: int) -> None:
        self.microbatches = microbatches
        self.rows: dict[int, list[tuple[int, int]]] = {}
        self.right: dict[int, int] = {}
        self.most: dict[int, int] = {}

    def add(self, size: int, terms: Iterable[tuple[int, int]], right: int = 0) -> None:
        """Add a kind of activations of `size` bytes; its waiting, in ns, is at least ``right - terms``."""
        if size:
            self.rows.setdefault(size, []).extend(terms)
            self.right[size] = self.right.get(size, 0) + right
            self.most[size] = self.most.get(size, 0) + self.microbatches

    def constrain(self, model: Linear, rooms: Mapping[int, Sequence[int]]) -> None:
        """Add the rows that make all waiting fit.

        Args:
            rooms: for each room, in bytes, the variables of the times at which a device has it.
        """
        sizes = sorted(self.rows, reverse=True)
        most = [self.most[size] for size in sizes]

        @cache
        def of(room: int) -> tuple[Pattern, ...]:
            return tuple(patterns(sizes, most, room))

        times: dict[tuple[Pattern, ...], list[int]] = {}
        try:
            for room, variables in rooms.items():
                times.setdefault(of(room), []).extend(variables)
        except TooMany:
            return
        for options, variables in times.items():
            chosen = [model.variable() for _ in options]
            spent = [(variable, -1) for variable in chosen]
            model.at_least([*((variable, 1) for variable in variables), *spent], 0)
            for variable, pattern in zip(chosen, options, strict=True):
                for size, count in zip(sizes, pattern, strict=True):
                    self.rows[size].append((variable, count))
        for size in sizes:
            model.at_least(self.rows[size], self.right[size])
