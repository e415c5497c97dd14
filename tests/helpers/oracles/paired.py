"""The least makespan of a tiny problem in which forwards and backwards may run as one op, by trying every program. It owes
nothing to the package: times and bytes are given as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import le
from typing import NamedTuple

Unit = tuple[int, int]  # stage, microbatch


@dataclass(frozen=True)
class Tiny:
    """Times and bytes of each (stage, microbatch).

    Attributes:
        place: the device of each stage. splits: whether a backward may be two ops. alike: whether microbatches are.
    """

    place: tuple[int, ...]
    microbatches: int
    f: Callable[[int, int], int]
    b: Callable[[int, int], int]
    w: Callable[[int, int], int]
    bw: Callable[[int, int], int]
    act: Callable[[int, int], int]
    w_bytes: Callable[[int, int], int]
    hidden: Callable[[int, int], int]  # of the stages of a forward and of a backward
    latency: int
    limit: int | None
    splits: bool
    alike: bool

    @property
    def units(self) -> list[Unit]:
        return [(s, j) for s in range(len(self.place)) for j in range(self.microbatches)]


class _Entry(NamedTuple):
    """An entry of a program: what runs, from when on at the soonest, and for how long."""

    forward: Unit | None
    back: Unit | None
    weight: Unit | None
    whole: bool  # the backward and the weight gradient in one
    ready: int
    lasts: int


def least_makespan(world: Tiny) -> int | None:
    """The least makespan over all programs; None where none keeps the limit.

    Entries are appended to programs in the order of their starts, each as soon as its inputs and its device allow: every
    program has exactly one such order, up to ties.
    """
    best: list[int | None] = [None]
    devices = max(world.place) + 1
    ends: dict[tuple[str, Unit], int] = {}
    free, held = [0] * devices, [0] * devices
    seen: dict[object, list[tuple[int, ...]]] = {}

    def go(now: int) -> None:
        last = max([0, *ends.values()])
        if best[0] is not None and (last >= best[0] or _least(world, ends, free) >= best[0]):
            return
        if all(("W", unit) in ends for unit in world.units):
            best[0] = last
            return
        # with the same ops done, nothing is worse where everything was there at least as soon
        times = now, last, *free, *(end for _, end in sorted(ends.items()))
        known = seen.setdefault(frozenset(ends), [])
        if any(all(map(le, one, times)) for one in known):
            return
        known[:] = [one for one in known if not all(map(le, times, one))] + [times]
        found = []
        for entry in _entries(world, ends):
            unit = entry.forward or entry.back or entry.weight
            assert unit is not None
            found.append((max(free[world.place[unit[0]]], entry.ready), unit, entry))
        for start, unit, entry in sorted(found, key=lambda one: one[0]):
            device = world.place[unit[0]]
            took = 0 if entry.forward is None else world.act(*entry.forward)
            if start < now or (world.limit is not None and held[device] + took > world.limit):
                continue
            before, end = (free[device], held[device]), start + entry.lasts
            free[device], held[device] = end, held[device] + took
            made = []
            for kind, one in (("F", entry.forward), ("B", entry.back), ("W", entry.weight)):
                if one is not None:
                    made.append((kind, one))
            if entry.back is not None and entry.whole:
                made.append(("W", entry.back))
            for kind, one in made:
                ends[kind, one] = end
                if kind == "B":
                    held[device] -= world.act(*one) - world.w_bytes(*one)
                elif kind == "W":
                    held[device] -= world.w_bytes(*one)
            go(start)
            for key in made:
                del ends[key]
            free[device], held[device] = before

    go(0)
    return best[0]


def _entries(world: Tiny, ends: dict[tuple[str, Unit], int]) -> Iterator[_Entry]:
    """Every entry that could come next on its device."""
    forwards = {one: at for one in world.units if (at := _forward(world, ends, one)) is not None}
    backs = {one: at for one in world.units if (at := _back(world, ends, one)) is not None}
    for one, ready in forwards.items():
        yield _Entry(one, None, None, False, ready, world.f(*one))
    for other, since in backs.items():
        for whole in (False, True) if world.splits else (True,):
            lasts = world.bw(*other) if whole else world.b(*other)
            yield _Entry(None, other, None, whole, since, lasts)
            for one, ready in forwards.items():
                if world.place[one[0]] == world.place[other[0]]:
                    f = world.f(*one)
                    both = f + lasts - min(world.hidden(one[0], other[0]), f, lasts)
                    yield _Entry(one, other, None, whole, max(ready, since), both)
    for one in world.units:
        if ("B", one) in ends and ("W", one) not in ends:
            yield _Entry(None, None, one, False, 0, world.w(*one))


def _forward(world: Tiny, ends: dict[tuple[str, Unit], int], one: Unit) -> int | None:
    """When the input of a forward is there; None: it has run, or its input has not been made."""
    s, j = one
    if ("F", one) in ends:
        return None
    if s == 0:
        late = world.alike and j > 0 and ("F", (0, j - 1)) not in ends
        return None if late else 0
    end = ends.get(("F", (s - 1, j)))
    return None if end is None else end + world.latency * (world.place[s] != world.place[s - 1])


def _back(world: Tiny, ends: dict[tuple[str, Unit], int], one: Unit) -> int | None:
    s, j = one
    if ("B", one) in ends or ("F", one) not in ends:
        return None
    if s == len(world.place) - 1:
        return 0
    end = ends.get(("B", (s + 1, j)))
    return None if end is None else end + world.latency * (world.place[s] != world.place[s + 1])


def _least(world: Tiny, ends: dict[tuple[str, Unit], int], free: list[int]) -> int:
    """No device ends sooner: what is left of its work, every forward hiding all it can."""
    left = list(free)
    for s, j in world.units:
        device = world.place[s]
        if ("F", (s, j)) not in ends:
            most = max(world.hidden(s, t) for t, place in enumerate(world.place) if place == device)
            left[device] += max(0, world.f(s, j) - most)
        if ("B", (s, j)) not in ends:
            left[device] += min(world.b(s, j) + world.w(s, j), world.bw(s, j))
        elif ("W", (s, j)) not in ends:
            left[device] += world.w(s, j)
    return max(left)
