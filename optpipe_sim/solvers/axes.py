"""What may be chosen beside the order of ops: the chunks, placements and slices that are tried if they
are free, the problem of each, and how a bound names them all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..errors import OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..units import Size, counted
from .options import SolveOptions
from .problem import Problem, make_problem

EQUAL_SLICES = (2, 4, 8)
MOST_CHUNKS = 8  # in a loop, if no stage gives its number of layers


def candidate_shapes(profile: CostProfile) -> list[CostProfile]:
    """Return the profile as it is; with each number of chunks in a loop, up to one layer per stage
    (up to `MOST_CHUNKS` if stages do not give their layers); and with two chunks in a V. On one device there is
    nothing to interleave: the profile alone."""
    if profile.devices == 1:
        return [profile]
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


def candidate_slices(profile: CostProfile) -> list[CostProfile]:
    """Return the profile with whole sequences, and with its own slices; of one without slices with 2, 4 and 8
    equal ones."""
    found = [profile.with_slices(1)]
    for slices in (profile.slices,) if profile.slices > 1 else EQUAL_SLICES:
        with suppress(OptPipeError):  # too short a stage to cut
            found.append(profile.with_slices(slices))
    return found


def shapes_of(profile: CostProfile, options: SolveOptions) -> list[CostProfile]:
    """Return the profile with all the chunks, placements and slices that the options leave open; it has those that
    they give (`SolveOptions.rechunked`)."""
    shapes = candidate_shapes(profile) if options.chunks == "any" else [profile]
    if options.slices != "any":
        return shapes
    return [cut for shape in shapes for cut in candidate_slices(shape)]


def problem_of(
    profile: CostProfile,
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
) -> Problem:
    """Make the problem of a profile, which has the options' chunks and treatments already.

    Raises: as `make_problem`.
    """
    return make_problem(
        profile,
        microbatches,
        memory_limit,
        options.objective,
        per_stage=options.per_stage,
        pairs=options.pairs,
    )


def problems_of(
    shapes: Sequence[CostProfile],
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
) -> list[Problem]:
    """Make the problem of each shape that the limit admits.

    Raises:
        OutOfMemory: if it admits none; names the least limit that any of them needs.
        OptPipeError: as `make_problem`.
    """
    problems: list[Problem] = []
    reasons: list[tuple[int, OutOfMemory]] = []
    for shaped in shapes:
        try:
            problems.append(problem_of(shaped, microbatches, memory_limit, options))
        except OutOfMemory as error:
            reasons.append((max(shaped.least_limits), error))
    if not problems:
        raise min(reasons, key=lambda reason: reason[0])[1]
    return problems


def covers(profiles: Sequence[CostProfile], without_pairs: Sequence[bool] = ()) -> str:
    """Describe the chunks and placements of profiles, for the name of a bound on all of them: ``1
    to 8 chunks per device in a loop, or 2 in a V``; their numbers of slices, if there are any; and of which
    no plans with pairs are covered (`without_pairs`), although these could gain something."""
    shapes = dict.fromkeys((each.chunks, _placed(each)) for each in profiles)
    loops = [chunks for chunks, where in shapes if where == "in a loop"]
    said = []
    if loops:
        said.append(
            f"{_ranges(loops)} {'chunk' if loops == [1] else 'chunks'} per device in a loop"
        )
    for chunks, where in shapes:
        if where != "in a loop":
            count = str(chunks) if said else f"{counted(chunks, 'chunk')} per device"
            said.append(f"{count} {where}")
    cuts = sorted({each.slices for each in profiles})
    cut = "" if cuts == [1] else f", in {_ranges(cuts)} slices"
    left_out = ""
    if any(without_pairs):  # trainers that have pairs have them on several chunks
        left_out = " (without pairs)" if all(without_pairs) else " (pairs only with several chunks)"
    return ", or ".join(said) + cut + left_out


def _placed(profile: CostProfile) -> str:
    name = profile.shape(1).placement_name
    known = {"loop": "in a loop", "vee": "in a V"}
    return known.get(name, "") if isinstance(name, str) else "in the profile's placement"


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
