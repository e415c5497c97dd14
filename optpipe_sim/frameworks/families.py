"""The schedules that a framework can run, as a comparison needs them: their names, and why others are
refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..errors import OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..schedule import Schedule
from ..solvers.options import SolveOptions
from ..trace import Trace
from . import torchtitan, torchtitan_search
from .megatron import best_plan
from .megatron import family as megatron

Names = Callable[[CostProfile, int], Iterator[str]]


@dataclass(frozen=True)
class Family:
    """The schedules of one framework.

    Attributes:
        title: the name of the framework.
        names: yields the schedules to compare, for a profile and a number of microbatches; None: any
            schedule that is not refused.
        levels: returns the levels of recomputation that the framework has.
        refusal: returns why it cannot run a schedule exactly; None if it can.
        kind: returns the kind of a schedule name, whose options are alternatives of each other.
        best: returns the name and the replay of the fastest schedule with the stages of a profile.
    """

    title: str
    names: Names | None
    levels: Callable[[CostProfile], list[str]]
    refusal: Callable[[Schedule, CostProfile], str | None]
    kind: Callable[[str], str]
    best: Callable[[CostProfile, int, SolveOptions], tuple[str, Trace]]

    def best_that_fits(
        self, profile: CostProfile, microbatches: int, options: SolveOptions
    ) -> tuple[str, Trace] | None:
        """Return `best`, or None if nothing fits the profile's limit."""
        try:
            return self.best(profile, microbatches, options)
        except OutOfMemory:
            return None


def _megatron_names(profile: CostProfile, microbatches: int) -> Iterator[str]:
    """Yield all choices but those that recompute every layer at a level, which comparisons add."""
    for chunks in best_plan.chunk_counts(profile):
        try:
            found = list(megatron.choices(profile, microbatches, chunks))
        except OptPipeError:  # the stages do not divide into so many
            continue
        yield from (one.name for one in found if one.level is None or one.layers is not None)


def _megatron_levels(profile: CostProfile) -> list[str]:
    return list(dict.fromkeys(name for name, _ in megatron.levels_of(profile) if name))


def _megatron_refusal(schedule: Schedule, profile: CostProfile) -> str | None:
    if megatron.member(schedule, profile) is not None:
        return None
    return (
        "Megatron-LM runs 1F1B and interleaved 1F1B in groups, recomputes one level on all stages (or full but"
        " for some of the microbatches in flight), and offloads by its own rule"
    )


def _megatron_kind(name: str) -> str:
    choice = megatron.choice_of(name)
    if choice is None:
        return name
    fraction = choice.fraction and megatron.FRACTIONS[0]
    return megatron.Choice(choice.chunks, fraction=fraction, pairs=choice.pairs).name


def _torchtitan_levels(profile: CostProfile) -> list[str]:
    names = profile.level_names
    return [level for level in torchtitan.CHECKPOINTS if level in names]


def _torchtitan_refusal(schedule: Schedule, profile: CostProfile) -> str | None:
    if schedule.shape.slices > 1:
        return "torchtitan runs whole sequences"
    # what is lost does not depend on the limit
    lost = torchtitan.nearest(schedule, replace(profile, memory_limit=None)).in_words()
    return f"torchtitan cannot express {lost}" if lost else None


def _megatron_best(
    profile: CostProfile, microbatches: int, options: SolveOptions
) -> tuple[str, Trace]:
    whole = replace(profile, items=())  # the stages are what they are
    found = best_plan.best(
        whole, microbatches, chunks=[profile.chunks], objective=options.objective
    )
    return found.choice.name, found.trace


def _torchtitan_best(
    profile: CostProfile, microbatches: int, options: SolveOptions
) -> tuple[str, Trace]:
    found = torchtitan_search.best(replace(profile, items=()), microbatches, options)
    return found.name, found.trace


FAMILIES = {
    "megatron": Family(
        "Megatron-LM",
        _megatron_names,
        _megatron_levels,
        _megatron_refusal,
        _megatron_kind,
        _megatron_best,
    ),
    "torchtitan": Family(
        "torchtitan", None, _torchtitan_levels, _torchtitan_refusal, str, _torchtitan_best
    ),
}
