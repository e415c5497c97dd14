"""The numbers of chunks and the placements that are tried if they are free, and how a bound names them."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import OptPipeError
from ..profile import CostProfile
from ..units import counted

MOST_CHUNKS = 8  # in a loop, if no stage gives its number of layers


def candidate_shapes(profile: CostProfile) -> list[CostProfile]:
    """Return the profile as it is; with each number of chunks in a loop, up to one layer per stage
    (up to `MOST_CHUNKS` if stages do not give their layers); and with two chunks in a V."""
    most = profile.most_chunks or max(MOST_CHUNKS, profile.chunks)
    found = [profile]
    for chunks, placement in [*((v, "loop") for v in range(1, most + 1)), (2, "vee")]:
        try:
            other = profile.rechunk(chunks, placement)
        except OptPipeError:  # a stage too short to divide, or layers that do not divide evenly
            continue
        if other not in found:
            found.append(other)
    return found


def covers(profiles: Sequence[CostProfile]) -> str:
    """Describe the chunks and placements of profiles, for the name of a bound on all of them: ``1
    to 8 chunks per device in a loop, or 2 in a V``."""
    loops, others = [], []
    for each in profiles:
        name = each.shape(1).placement_name
        if name == "loop":
            loops.append(each.chunks)
        else:
            others.append(
                (each.chunks, "in a V" if name == "vee" else "in the profile's placement")
            )
    said = []
    if loops:
        said.append(
            f"{_ranges(loops)} {'chunk' if loops == [1] else 'chunks'} per device in a loop"
        )
    for chunks, where in others:
        said.append(
            f"{chunks} {where}" if said else f"{counted(chunks, 'chunk')} per device {where}"
        )
    return ", or ".join(said)


def _ranges(numbers: Sequence[int]) -> str:
    """``1 to 4 and 6`` for 1, 2, 3, 4 and 6."""
    parts: list[str] = []
    left = sorted(numbers)
    while left:
        run = 1
        while run < len(left) and left[run] == left[0] + run:
            run += 1
        parts.append(f"{left[0]} to {left[run - 1]}" if run > 1 else str(left[0]))
        left = left[run:]
    return " and ".join(parts)
