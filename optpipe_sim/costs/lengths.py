"""Microbatches of sequences of different lengths: what each costs beside one of the usual length.

Most of the work of a layer grows with the tokens, attention with the square of each sequence: a
microbatch packed from two halves costs less than one whole sequence. Launches and latencies are the same
for all, and kernels reach less of their rates in short ones; so each is estimated, or measured, as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from ..errors import OptPipeError
from ..files import read_rows
from ..profile import CostProfile
from ..profile.iteration import ALL_FLOPS, ALL_FLOPS_CAUSAL, LENGTHS
from ..stage_cost import without_overhead
from ..units import exact
from .layout import Layout
from .models import Model, beyond_context
from .provenance import model_flops
from .work import Work

DIGITS = 4  # of factors: microbatches that differ by less count as alike
MEASURED = 8  # lengths at most: of each, all stages that differ run a few dozen times


def read_lengths(path: str | os.PathLike[str]) -> list[tuple[int, ...]]:
    """Read the lengths, in tokens, of the sequences of each microbatch.

    A text has a line per microbatch, with a number per sequence that is packed into it; JSON a list of
    numbers or of lists of them. A line that begins with ``#`` is a comment.

    Raises:
        OptPipeError: one line with the file, the line and what is expected.
    """
    rows = [one if isinstance(one, list) else [one] for one in read_rows(path)]
    if not rows:
        raise OptPipeError(f"{path}: no lengths; a line per microbatch, such as 4096 2048 2048")
    return [
        tuple(_length(value, f"{path}: microbatch {at} (of 0 to {len(rows) - 1})") for value in row)
        for at, row in enumerate(rows)
    ]


def _length(value: Any, where: str) -> int:
    tokens = int(value) if isinstance(value, str) and value.isdigit() else value
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= 10**9:
        raise OptPipeError(f"{where}: expected tokens of a sequence, from 1 to 10^9, got {value!r}")
    return tokens


def one_each(microbatches: Sequence[Sequence[int]], where: str) -> tuple[int, ...]:
    """Return the tokens of microbatches that have one sequence each, as stages that run here do.

    Raises:
        OptPipeError: begins with `where`, and names one that is packed from several.
    """
    for at, lengths in enumerate(microbatches):
        if len(lengths) > 1:
            raise OptPipeError(
                f"{where}: microbatch {at} is packed from {len(lengths)} sequences; stages that run here take one"
                " each, those of `estimate --lengths` any number"
            )
    return tuple(one for (one,) in microbatches)


def with_lengths(
    profile: CostProfile,
    model: Model,
    layout: Layout,
    work: Work,
    microbatches: Sequence[Sequence[int]],
    estimated: Callable[[Layout, Work], CostProfile],
) -> CostProfile:
    """Return the profile of one usual microbatch as that of microbatches packed from sequences of so many tokens.

    Their factors are those of `CostProfile`: of the compute time of all stages (but for the overhead of ops, which
    is the same for all), and of what these hold. Static memory is that of the largest, as its working memory is part of it.

    Args:
        work: of the usual microbatch. microbatches: the lengths of the sequences in each.
        estimated: the estimate of this model; called for other work on the same layers per stage.

    Raises:
        OptPipeError: names a microbatch that is empty or cannot be estimated.
    """
    if work.slices > 1:
        raise OptPipeError("--lengths: of whole sequences; leave out --slices")
    layout = replace(layout, layers=profile.meta["layers_per_stage"])
    shares = layout.cp * (layout.tp if work.on(layout).sequence_parallel else 1)
    known: dict[Work, CostProfile] = {}
    works = []
    for at, lengths in enumerate(microbatches):
        if not lengths:
            raise OptPipeError(f"lengths: microbatch {at} has no sequences")
        one = packed(work, lengths, shares)
        works.append(one)
        if one not in known:
            try:
                known[one] = estimated(layout, one)
            except OptPipeError as error:
                tokens = f"microbatch {at}, of {sum(lengths)} tokens"
                raise OptPipeError(f"lengths: {tokens}: {error}") from None
    time, size = _work_ns(profile), _held_bytes(profile)
    factors = {
        one: (_rounded(_work_ns(made), time), _rounded(_held_bytes(made), size))
        for one, made in known.items()
    }
    largest = max(known.values(), key=lambda made: sum(made.static_bytes))
    times, sizes = zip(*(factors[one] for one in works), strict=True)
    return replace(
        _reserving(profile, largest),
        microbatch_time=times,
        microbatch_bytes=sizes,
        meta=_told(profile.meta, model, work.seq, microbatches),
    )


def with_measured_lengths(
    profile: CostProfile, tokens: Sequence[int], measured: Callable[[int], tuple[int, int]]
) -> CostProfile:
    """Return a measured profile as that of microbatches with a sequence each, of so many `tokens`.

    At most `MEASURED` lengths are measured; what others take lies on the line between their neighbours.

    Args:
        profile: of the longest sequence.
        measured: of a shorter one, the compute time of a microbatch in all stages, in ns, and the bytes that these hold.
    """
    lengths = sorted(set(tokens))
    last = len(lengths) - 1
    parts = min(last, MEASURED - 1)
    chosen = [lengths[round(at * last / parts)] for at in range(parts)] + lengths[-1:]
    rows = [measured(one) for one in chosen[:-1]] + [(_work_ns(profile), _held_bytes(profile))]
    times, sizes = (
        [_rounded(between, part[-1]) for between in np.interp(tokens, chosen, part).tolist()]
        for part in zip(*rows, strict=True)
    )
    return replace(
        profile,
        microbatch_time=tuple(times),
        microbatch_bytes=tuple(sizes),
        meta={
            **profile.meta,
            "work": {**profile.meta["work"], LENGTHS: [[one] for one in tokens]},
            "lengths_measured": chosen,
        },
    )


def packed(work: Work, lengths: Sequence[int], shares: int = 1) -> Work:
    """Return the work of a microbatch packed from sequences of these lengths, padded so that `shares` devices can
    share its tokens: each token attends to those of its own sequence."""
    tokens = sum(lengths)
    attended = 0.0 if len(lengths) == 1 else sum(one * one for one in lengths) / tokens
    return replace(work, microbatch=1, seq=-(-tokens // shares) * shares, attended=attended)


def _work_ns(profile: CostProfile) -> int:
    """The compute time of one microbatch, the overhead of ops left out."""
    return sum(without_overhead(cost).work_ns for cost in profile.stages)


def _held_bytes(profile: CostProfile) -> int:
    return sum(cost.act_bytes for cost in profile.stages)


def _rounded(part: float, usual: int) -> Fraction:
    return exact(max(10**-DIGITS, round(part / usual, DIGITS)))


def _reserving(profile: CostProfile, largest: CostProfile) -> CostProfile:
    """Return the profile with the static memory of another one of the same stages and layers."""
    stages = [
        replace(cost, static_bytes=other.static_bytes)
        for cost, other in zip(profile.stages, largest.stages, strict=True)
    ]
    items = [
        replace(
            item,
            cost=replace(item.cost, static_bytes=other.cost.static_bytes),
            reserve_bytes=other.reserve_bytes,
        )
        for item, other in zip(profile.items, largest.items, strict=False)  # neither may have any
    ]
    return replace(profile, stages=tuple(stages), items=tuple(items))


def _told(
    meta: dict[str, Any], model: Model, seq: int, microbatches: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Return the provenance with the lengths, and the model FLOPs of all microbatches; where it warns of the usual
    sequence, of `seq` tokens, it warns of the longest instead."""
    flops = [
        model_flops(model, one.microbatch, one.seq, one.attended)
        for one in map(_bare, microbatches)
    ]
    every, causal = map(sum, zip(*flops, strict=True))
    usual, longest = (beyond_context(model, one) for one in (seq, max(map(max, microbatches))))
    warnings = [text for text in meta.get("warnings", ()) if text != usual]
    warnings += [longest] if longest else []
    told = {key: value for key, value in meta.items() if key != "warnings"}
    return {
        **told,
        **({"warnings": warnings} if warnings else {}),
        "work": {**meta["work"], LENGTHS: [list(one) for one in microbatches]},
        "iteration": {**meta["iteration"], ALL_FLOPS: every, ALL_FLOPS_CAUSAL: causal},
    }


def _bare(lengths: Sequence[int]) -> Work:
    return packed(Work(), lengths)
