"""The published schedules with every value of their options: no result is worse than the best of
these.

They are grouped in *rules*: a family of schedules on one shape with one way to recompute. All rules
are tried, in parallel processes, or skipped if a bound proves that they cannot beat the incumbent;
rules that are cheap to build and may be fast come first. Last come rules that are not published: GIS
and PipeOffload with F's earlier and W's later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from ...bounds.bounds import fill_and_drain, naive, residency
from ...errors import OptPipeError
from ...processes.workers import Newest, Report, Workers, next_places, shared_numbers
from ...schedule import Schedule
from ...schedules import ADAOFFLOAD, REGISTRY, those
from ...schedules.adaoffload.adaoffload import adaoffload
from ...schedules.recompute import at_level
from ...schedules.trials import AS_NAMED, CHOOSING, LIMITS, UNUSUAL, USUAL
from ...trace import Trace
from ..problem import Problem
from ..starts.published import plain_schedules, tried, tried_schedules
from ..starts.sliced import in_slices, sliced_schedules, whole
from ..starts.variants import (
    FAMILIES,
    Way,
    grouped_variants,
    levels_of,
    limited_variants,
    stretched_variants,
    work_ns,
)
from .race import Race

Built = Iterable[tuple[str, Schedule]]
BestNs = Callable[[], float]
PUBLISHED = "published schedules"
STRETCHED = 9


class Rule(NamedTuple):
    """Published schedules of one shape that are built together.

    Attributes:
        tier: as in `schedules.trials`; lower ones are cheaper to build; `STRETCHED` is not published. estimate_ns: an estimate of
            the makespan of the fastest. bound_ns: a proven lower bound on all of them. at: the number of
            their shape. built: the function of (best_ns, over) that builds them; `best_ns` is the cost that they
            have to beat, `over` tells whether the time is up. ours: whether it is a greedy of this project, or the
            paper's that it reconstructs, and no published rule.
    """

    tier: int
    estimate_ns: int
    bound_ns: int
    at: int
    built: Callable[[BestNs, Callable[[], bool]], Built]
    ours: bool = False

    @property
    def published(self) -> bool:
        """Whether its schedules are published ones of others."""
        return self.tier < STRETCHED and not self.ours


def rules_of(
    problems: Sequence[Problem],
    bounds_ns: Sequence[int],
    stretched: bool = True,
    ours: bool = True,
) -> list[Rule]:
    """Return all rules of some shapes, the most promising first.

    Args:
        bounds_ns: the bound of each shape. stretched: whether stretched ones, which are not published, are
            among them. ours: whether AdaOffload is.
    """
    rules: list[Rule] = []
    for at, (problem, bound_ns) in enumerate(zip(problems, bounds_ns, strict=True)):
        if problem.shape.slices > 1:
            rules += _of_slices(problem, bound_ns, at, stretched, ours)
            continue
        rules += [
            Rule(tier, bound_ns, bound_ns, at, built, of_us)
            for tier, built, of_us in _without_levels(problem)
        ]
        for level in (None, *levels_of(problem)):
            about = least = bound_ns  # what these two do is of ops one by one
            if not problem.may_pair:
                about = max(bound_ns, _about_ns(problem, level))
                least = about if level is None else max(bound_ns, work_ns(problem, level))
            rules += [
                Rule(tier, about, least, at, built) for tier, built in _at_level(problem, level)
            ]
    kept = (
        rule for rule in rules if (stretched or rule.tier < STRETCHED) and (ours or not rule.ours)
    )
    return sorted(kept, key=lambda rule: rule[:4])


def _of_slices(
    problem: Problem, bound_ns: int, at: int, stretched: bool, ours: bool
) -> Iterator[Rule]:
    """Yield the published schedules over slices, and those of whole sequences slice by slice."""
    for level in (None, *levels_of(problem)):
        about = bound_ns
        if level is not None and not problem.may_pair:
            about = max(bound_ns, work_ns(whole(problem), level))
        yield Rule(1, about, bound_ns, at, partial(_sliced, problem, level))
    for rule in rules_of([whole(problem)], [bound_ns], stretched, ours):
        cut = partial(_cut, rule.built, problem.shape.slices)
        yield rule._replace(tier=rule.tier + 1, bound_ns=bound_ns, at=at, built=cut)


def _sliced(problem: Problem, level: str | None, *_: Any) -> Built:
    return sliced_schedules(problem, level)


def _cut(built: Callable[..., Built], slices: int, *given: Any) -> Built:
    return ((name, in_slices(schedule, slices)) for name, schedule in built(*given))


def _about_ns(problem: Problem, level: str | None) -> int:
    """Estimate the cost of the best schedule that recomputes every activation at a level, by bounds
    with the costs that a pattern plans with; without recomputation this is a bound itself."""
    if level is None:
        profile = problem.profile.map_stages(lambda _, cost: replace(cost, recompute=()))
    else:
        profile = at_level(problem.profile, level)
    given = (profile, problem.microbatches, problem.objective)
    return max(
        naive(*given),
        fill_and_drain(*given, problem.limits),
        residency(*given, problem.limits),
    )


def _without_levels(problem: Problem) -> Iterator[tuple[int, Any, bool]]:
    """Yield the rules that do not depend on one level of recomputation, and whether they are ours."""
    yield 0, partial(_adaoffload, problem), True
    # AdaOffload-R takes seconds: it runs on the best shapes alone
    for name in those(lambda entry: not entry.ours):
        if choosing := tried(problem, CHOOSING, [name]):
            yield CHOOSING, partial(_named, problem, None, choosing), False


def _at_level(problem: Problem, level: str | None) -> Iterator[tuple[int, Any]]:
    yield AS_NAMED, partial(_plain, problem, level)
    if limits := tried(problem, LIMITS):
        yield UNUSUAL, partial(limited_variants, problem, limits, level)
    # last those that a low cost rules out
    for name in sorted(REGISTRY, key=lambda name: bool(REGISTRY[name].bound)):
        for tier in (USUAL, UNUSUAL):
            if variants := tried(problem, tier, [name]):
                yield tier, partial(_named, problem, level, variants)
    if problem.shape.placement_name == "loop":
        for way in [None] if level is None else [Way(level, False), Way(level, True)]:
            yield AS_NAMED, partial(_grouped, problem, way, True)
            yield UNUSUAL, partial(_grouped, problem, way, False)
            if problem.shape.chunks > 1:
                yield STRETCHED, partial(stretched_variants, problem, way)


def _plain(problem: Problem, level: str | None, *_: Any) -> Built:
    return plain_schedules(problem, level)


def _named(
    problem: Problem, level: str | None, names: Sequence[str], best_ns: BestNs, _: Any
) -> Built:
    return tried_schedules(problem, names, level, best_ns)


def _grouped(
    problem: Problem, way: Way | None, usual: bool, best_ns: BestNs, over: Callable[[], bool]
) -> Built:
    found = grouped_variants([problem], best_ns, over, FAMILIES, [way], [usual])
    return ((name, schedule) for _, name, schedule in found)


def _adaoffload(problem: Problem, *_: Any) -> Built:
    plain = problem.profile.map_stages(lambda _, cost: replace(cost, recompute=()))
    try:
        best = adaoffload(plain, problem.microbatches, problem.limits, None, problem.objective)
    except OptPipeError:  # no schedule fits without recomputation, or host memory is too scarce
        return
    yield ADAOFFLOAD, best


class _Try(NamedTuple):
    """A problem that rules are tried on, and the places of the races that take what is found: its own, then the one
    without copies, if there is one."""

    problem: Problem
    takers: tuple[int, ...]

    def replayed(self, schedule: Schedule) -> Iterator[tuple[int, Trace]]:
        """Yield the place of each race that a schedule is for, and its replay; nothing where it does not fit."""
        try:
            trace = self.problem.replay(schedule)
        except OptPipeError:
            return
        for taker in self.takers[:1] if trace.offloaded else self.takers:
            yield taker, trace


def run_rules(
    races: Sequence[Race],
    rules: Sequence[Rule],
    over: Callable[[], bool],
    processes: int,
    without_copies: Mapping[int, Race] = MappingProxyType({}),
) -> int:
    """Try the rules, each in the race of its shape, until `over`; returns how many published ones were left that may
    hold a better schedule, for all that their bounds say.

    Args:
        processes: with 1 the rules run in this process, always in the same order.
        without_copies: for the place of a race, the one of the same problem without offloading: what offloads nothing
            is for both.
    """
    if not rules:
        return 0
    takers = [*races, *without_copies.values()]
    simpler = {at: len(races) + place for place, at in enumerate(without_copies)}
    tries = [
        _Try(race.problem, (at, simpler[at]) if at in simpler else (at,))
        for at, race in enumerate(races)
    ]
    if processes == 1:
        left = _run_here(tries, takers, rules, over)
    else:
        left = _run_apart(tries, takers, rules, over, processes)
    best_ns = min(race.cost_ns for race in races)
    return sum(rule.published and rule.bound_ns < best_ns for rule in left)


def _run_here(
    tries: Sequence[_Try], takers: Sequence[Race], rules: Sequence[Rule], over: Callable[[], bool]
) -> Sequence[Rule]:
    """Run the rules in this process; returns those that were left."""

    def best_ns() -> float:
        return min(race.cost_ns for race in takers[: len(tries)])

    for place, rule in enumerate(rules):
        if rule.bound_ns >= best_ns():
            continue
        for name, schedule in rule.built(best_ns, over):
            for taker, trace in tries[rule.at].replayed(schedule):
                takers[taker].take(trace.schedule, trace.cost_ns, name)
            if over():
                break
        if over():
            return rules[place:]
    return []


def _run_apart(
    tries: Sequence[_Try],
    takers: Sequence[Race],
    rules: Sequence[Rule],
    over: Callable[[], bool],
    processes: int,
) -> Sequence[Rule]:
    """Run the rules in processes; returns those that were left."""
    # the costs of the takers, then the place of the next rule
    shared = shared_numbers([*(race.cost_ns for race in takers), 0])
    first, left = takers[0], dict(enumerate(rules))
    workers = Workers()
    try:
        workers.start([partial(_work, tries, rules, shared)] * min(processes, len(rules)))
        for _, message in workers.messages(over, first.notify):
            if message[0] == "done":
                del left[message[1]]
            elif message[0] == "failed":
                first.failures[PUBLISHED] = message[1]
            else:
                takers[message[1]].take(*message[2:])
    finally:
        for how in workers.end().values():
            first.failures[PUBLISHED] = how
    return list(left.values())


def _work(
    tries: Sequence[_Try], rules: Sequence[Rule], shared: Any, report: Report, _: Newest
) -> None:
    """Take the next rule until none is left."""

    def best_ns() -> float:
        return float(min(shared[: len(tries)]))

    for place in next_places(shared, len(rules)):
        rule = rules[place]
        try:
            if rule.bound_ns < best_ns():
                for name, schedule in rule.built(best_ns, lambda: False):
                    for taker, trace in tries[rule.at].replayed(schedule):
                        if trace.cost_ns < shared[taker]:
                            shared[taker] = trace.cost_ns
                            # a copy without the values that the replay cached
                            report("found", taker, trace.schedule.replace(), trace.cost_ns, name)
        except (BrokenPipeError, EOFError):
            raise
        except Exception as error:  # as text: not every exception can be pickled
            report("failed", f"{type(error).__name__}: {error}")
        else:
            report("done", place)
