"""The best schedule when the layers of each stage are free, too.

First the given layout is solved, as by `solve`; then layouts that bounds and work suggest, one for each
number of chunks and placement; then moves: a layer goes from one stage to another, the stages between pass
one on, and the best schedule so far is replayed in its order. Improvements are kept and searched
again, so the result is never slower than that of the given layout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations, takewhile
from typing import Any, TypeVar

import numpy as np

from ...bounds.bounds import Bound, naive, with_pairs
from ...bounds.device.node import NEVER
from ...errors import OptPipeError, OutOfMemory, ProfileError
from ...profile import CostProfile
from ...profile.items import StageMaker, deal_items, even_counts, layout_words
from ...profile.iteration import iteration_ns
from ...schedule import Schedule
from ...schedule.shape import expand_placement
from ...units import Size
from ..axes import MOST_CHUNKS, covers, problem_of, problems_of
from ..options import SolveOptions
from ..portfolio import solve_problems
from ..problem import Problem, leaves_pairs_out
from ..race.compiling import compile_engines
from ..reports import Hooks, no_report
from ..result import FEASIBLE, OPTIMAL, SolveResult, within
from ..treatments import restrict
from .bound import layout_bound

T = TypeVar("T")

GIVEN_SHARE = 0.35  # of the time, for the given layout
BOUND_SHARE = 0.1  # of it, at most, for the bounds of all layouts
OTHER_SHARE = 0.3  # of it, for layouts that bounds suggest
LEAST_S = 0.5  # for a search to be worth its start
MOST_STAGES = 128  # with more only the moves between neighbours are tried


@dataclass(frozen=True)
class LayersResult:
    """The best schedule found, with its layout.

    Attributes:
        result: as `solve` returns it; its bound holds for every layout.
        profile: the costs of the stages of its layout, before they are issued. `counts`: how many items each has.
        given: the result for the given layout. `given_counts`: that layout.
    """

    result: SolveResult
    profile: CostProfile
    counts: list[int]
    given: SolveResult
    given_counts: list[int]

    @property
    def words(self) -> list[str]:
        """The items of each stage, as ``embedding + 3``."""
        return layout_words(self.profile.items, self.counts)

    @property
    def saved(self) -> float:
        """The share of an iteration's time saved against the best schedule found for the given layout."""
        return 1 - self._iteration_ns(self.result.objective_ns) / self._iteration_ns(
            self.given.objective_ns
        )

    @property
    def surely_saved(self) -> float:
        """The proven share of an iteration's time saved against any schedule of the given layout."""
        bound = self._iteration_ns(self.given.lower_bound_ns)
        return max(0.0, 1 - self._iteration_ns(self.result.objective_ns) / bound)

    def _iteration_ns(self, pipeline_ns: int) -> float:
        return iteration_ns(self.profile, pipeline_ns)

    def measures(self) -> dict[str, Any]:
        """Plain data; the keys of ``solve --layers any --json``."""
        return {
            **self.result.measures(),
            "layout": self.words,
            "layers": self.counts,
            "layers_per_stage": self.profile.meta["layers_per_stage"],
            "given": {
                "layers": self.given_counts,
                "iteration_ns": round(self._iteration_ns(self.given.objective_ns)),
                "objective_ns": self.given.objective_ns,
                "lower_bound_ns": self.given.lower_bound_ns,
            },
            "saved": self.saved,
            "surely_saved": self.surely_saved,
        }


def solve_layers(
    profile: CostProfile,
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None = None,
    *,
    watch: Callable[[Any], None] | None = None,
    on_wait: Callable[[], None] = no_report,
    **options: Any,
) -> LayersResult:
    """Find the best schedule over all layouts of the profile's items on its stages, and a bound for all of them.

    Args:
        profile: with `items`. The layout of its own stages is the given one.
        options: of `solve` (see `SolveOptions`), except margins and evaluations. With ``chunks``
            ``any`` every number of chunks and placement has layouts of its own.
        watch, on_wait: as for `solve`.

    Raises:
        ProfileError: for a profile without items.
        OptPipeError: as `solve`, where no layout has a schedule, or for other options.
    """
    chosen = SolveOptions(**options)
    if chosen.margin is not None or chosen.evaluations is not None:
        raise OptPipeError("layers: neither with margins nor with a number of evaluations")
    counts_of(profile)  # refuses one without items
    limits = profile.limits(memory_limit)
    profile = restrict(replace(profile.with_slices(1), memory_limit=limits), chosen.treatments)
    profile = one_by_one(profile) if chosen.pairs is False else profile
    return _Search(profile, microbatches, chosen, watch, on_wait).run()


class _Search:
    """The search for one problem."""

    def __init__(
        self,
        profile: CostProfile,
        microbatches: int,
        options: SolveOptions,
        watch: Callable[[Any], None] | None,
        on_wait: Callable[[], None],
    ) -> None:
        self.profile, self.microbatches = profile, microbatches
        self.objective = options.objective or profile.objective
        self.options, self.watch = replace(options, objective=self.objective), watch
        self.on_wait = on_wait
        self.best: SolveResult | None = None
        self.incumbents: list[tuple[float, int]] = []
        self.makers: dict[int, StageMaker] = {}

    def run(self) -> LayersResult:
        """Run the whole search."""
        given = self._given()
        for one in given:
            with suppress(OutOfMemory):
                compile_engines(self._problem(one), self.on_wait)
        self.began = time.monotonic()
        first: SolveResult | None = None
        error: OptPipeError | None = None
        try:
            first = self._solve(given, GIVEN_SHARE)
        except OptPipeError as failed:  # another layout may fit
            error = failed
        bounds, suggested = self._bounds(given)
        bound = min(bounds, key=lambda one: one.ns)
        fresh = [one for one in suggested if one not in given]
        if fresh and not self._done(bound):
            with suppress(OptPipeError):
                self._solve(fresh, OTHER_SHARE)
        if self.best is None:
            raise error or OptPipeError("layers: no layout has a schedule")
        while not self._done(bound) and self._move():
            pass
        return self._result(first, bound, given)

    # -- layouts ----------------------------------------------------------------------------------

    def _given(self) -> list[CostProfile]:
        """Return the given layout with each number of chunks and placement that may be chosen: its stages
        merged or divided if possible, else an even share."""
        own, count = self.profile, len(self.profile.items)
        if self.options.chunks == "any":
            most = min(MOST_CHUNKS, count // own.devices)
            names = [(v, "loop") for v in range(1, most + 1)] + [(2, "vee")] * (most > 1)
            shapes = [(v, expand_placement(name, own.devices, v)) for v, name in names]
            shapes.insert(0, (own.chunks, own.placement))
        else:
            one = self.options.rechunked(own)
            shapes = [(one.chunks, one.placement)]
        found: list[CostProfile] = []
        for chunks, placement in shapes:
            try:
                counts = counts_of(own.rechunk(chunks, placement))
            except ProfileError:
                counts = even_counts(count, own.devices * chunks)
            layout = self._layout(counts, chunks, placement)
            found += [layout] if layout not in found else []
        return found

    def _layout(
        self, counts: Sequence[int], chunks: int, placement: tuple[int, ...]
    ) -> CostProfile:
        maker = self.makers.setdefault(chunks, StageMaker(self.profile.items, chunks))
        return self.profile.with_layout(counts, chunks, placement, maker)

    def _problem(self, layout: CostProfile) -> Problem:
        return problem_of(layout, self.microbatches, None, self.options)

    def _dealt(self, one: CostProfile, pairs: bool = False) -> list[int]:
        return deal_items(self.profile.items, one.placement, pairs=pairs)

    def _bounds(self, given: Sequence[CostProfile]) -> tuple[list[Bound], list[CostProfile]]:
        """Return, per shape, a bound for all of its layouts; and layouts that may be better than the
        given ones."""
        bounds, found = [], []
        share = BOUND_SHARE * self.options.time_limit / len(given)
        for one in given:
            bound, counts = layout_bound(one, self.microbatches, self.objective, None, share)
            bounds.append(bound)
            if bound.ns < NEVER and not self._done(bound):
                counts = counts or self._dealt(one)
                found.append(self._layout(counts, one.chunks, one.placement))
                if np.any(one.pair_hidden):
                    counts = self._dealt(one, pairs=True)
                    paired = self._layout(counts, one.chunks, one.placement)
                    found += [paired] if paired not in found else []
        return bounds, found

    # -- searches ---------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.options.time_limit - (time.monotonic() - self.began)

    def _done(self, bound: Bound) -> bool:
        """Whether the time is up, or the incumbent is within the gap of the bound."""
        if self.best is None:
            return False
        done = within(self.best.objective_ns, bound.ns, self.options.gap)
        return done or self.left < LEAST_S or bool(self.best.info["interrupted"])

    def _solve(
        self, shapes: Sequence[CostProfile], share: float, start: Schedule | None = None
    ) -> SolveResult:
        """Search some layouts for a share of the time."""
        seconds = max(LEAST_S, min(share * self.options.time_limit, self.left))
        own = replace(self.options, time_limit=seconds, chunks="own", placement="own")
        passed = time.monotonic() - self.began
        if start is not None:
            own = replace(own, published=False)
        problems = problems_of(shapes, self.microbatches, None, own)
        found = solve_problems(problems, own, start, Hooks(watch=self.watch), self._covers(shapes))
        for seconds, cost_ns in found.incumbents:
            if not self.incumbents or cost_ns < self.incumbents[-1][1]:
                self.incumbents.append((passed + seconds, cost_ns))
        if self.best is None or found.objective_ns < self.best.objective_ns:
            self.best = found
        return found

    def _move(self) -> bool:
        """Move layers of the incumbent as long as that helps, then search again; return whether any move
        helped."""
        assert self.best is not None
        assert self.best.trace is not None
        trace = self.best.trace
        until = time.monotonic() + self.left / 2
        layout, schedule, moved = trace.profile, trace.schedule, False
        cost = trace.cost_ns
        while (better := self._better(layout, schedule, cost, until)) is not None:
            (layout, cost), moved = better, True
        if self.left < LEAST_S:
            share = LEAST_S / self.options.time_limit
        else:
            share = 0.5 * self.left / self.options.time_limit if moved else 1.0
        self._solve([layout], share, schedule)
        return moved

    def _better(
        self, layout: CostProfile, schedule: Schedule, cost_ns: int, until: float
    ) -> tuple[CostProfile, int] | None:
        """Return the first layout one move away in which the same order takes less time, and that time."""
        load = device_work(layout, pairs=schedule.has_pairs)
        for counts in moves(_counts(layout), layout, load):
            if time.monotonic() > until:
                return None
            other = self._layout(counts, layout.chunks, layout.placement)
            if _least_ns(other, self.microbatches, self.objective) >= cost_ns:
                continue
            with suppress(OptPipeError):
                trace = self._problem(other).replay(schedule)
                if trace.cost_ns < cost_ns:
                    return other, trace.cost_ns
        return None

    def _covers(self, shapes: Sequence[CostProfile]) -> str:
        """Describe what a bound on some layouts covers."""
        return covers(shapes, [leaves_pairs_out(shape, self.options.pairs) for shape in shapes])

    def _result(
        self, given: SolveResult | None, bound: Bound, shapes: Sequence[CostProfile]
    ) -> LayersResult:
        assert self.best is not None
        assert self.best.trace is not None
        layout = self.best.trace.profile
        covered = f"{self._covers(shapes)}, and any layout of its {len(layout.items)} layers"
        proven = self.best.objective_ns <= bound.ns
        result = replace(
            self.best,
            status=OPTIMAL if proven else FEASIBLE,
            lower_bound_ns=min(bound.ns, self.best.objective_ns),
            bound_name=f"{bound.name}, least over {covered}",
            bounds=((self.best.seconds, bound.ns),),
            seconds=time.monotonic() - self.began,
            incumbents=tuple(self.incumbents),
            info={**self.best.info, "covers": covered},
        )
        first = given or self.best
        assert first.trace is not None
        if first.trace.profile == layout:  # gains from searching longer are not due to the layout
            first = self.best
        before = layout if first.trace is None else first.trace.profile
        counts = _counts(layout)
        given_costs = self._layout(counts, layout.chunks, layout.placement)  # not issued
        return LayersResult(result, given_costs, counts, first, _counts(before))


def counts_of(profile: CostProfile) -> list[int]:
    """Return how many items each stage of `profile` has: as its stages say, else an even share.

    Raises:
        ProfileError: for a profile without items, or with fewer than stages.
    """
    if not profile.items:
        raise ProfileError(
            f"items: the profile {profile.name} has no costs per layer; estimate writes them, or give"
            " them as items: [{name: embedding, t_f_ms: ...}, {name: layer, count: 32, ...}, ...]"
        )
    said = [cost.layers or 0 for cost in profile.stages]
    if sum(said) == len(profile.items) and min(said) > 0:
        return said
    return even_counts(len(profile.items), len(profile.stages))


def one_by_one(profile: CostProfile) -> CostProfile:
    """Return the profile where no pair hides anything, in whatever layout."""
    items = tuple(replace(item, streams=None) for item in profile.items)
    return replace(profile, pair_hidden=0, items=items)


def _counts(layout: CostProfile) -> list[int]:
    return [cost.layers or 0 for cost in layout.stages]


def moves(
    counts: Sequence[int], layout: CostProfile, load: Sequence[int] | None = None
) -> Iterator[list[int]]:
    """Yield layouts with one item less on one stage and one more on another: first from the busiest to the
    idlest devices (by `load`; None: by work), and with many stages only between neighbours."""
    busy = device_work(layout) if load is None else load
    work = [busy[device] for device in layout.placement]
    pairs = sorted((work[b] - work[a], abs(a - b), a, b) for a, b in _pairs(counts))
    return (_moved(counts, a, b) for _, _, a, b in pairs)


def climb(
    first: T,
    layouts: Callable[[T], Iterable[Sequence[int]]],
    replayed: Callable[[Sequence[int]], T | None],
    key: Callable[[T], Any],
    until: float,
) -> list[T]:
    """Return `first` and each better plan that other layouts lead to, the best last.

    Args:
        layouts: those one move away from a plan's. replayed: the plan on a layout; None: there is none.
        key: less is better. until: the last instant.
    """
    found = [first]
    while True:
        asked = takewhile(lambda _: time.monotonic() <= until, layouts(found[-1]))
        others = (one for one in map(replayed, asked) if one is not None)
        better = next((one for one in others if key(one) < key(found[-1])), None)
        if better is None:
            return found
        found.append(better)


def _pairs(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the stages from and to which an item may move; with many stages only neighbours."""
    for a, b in permutations(range(len(counts)), 2):
        if counts[a] > 1 and (len(counts) <= MOST_STAGES or abs(a - b) == 1):
            yield a, b


def _moved(counts: Sequence[int], a: int, b: int) -> list[int]:
    moved = list(counts)
    moved[a] -= 1
    moved[b] += 1
    return moved


def _least_ns(layout: CostProfile, microbatches: int, objective: str) -> int:
    """Return a bound that is quick to compute."""
    if np.any(layout.pair_hidden):
        return with_pairs(layout, microbatches, objective).ns
    return naive(layout, microbatches, objective)


def device_work(layout: CostProfile, pairs: bool = False) -> list[int]:
    """Return, per device, the work of a microbatch in ns; with `pairs` less what stages hide of
    themselves as one op."""
    busy = [0] * layout.devices
    at = np.arange(len(layout.stages))
    hidden = layout.hidden_ns(at, at) if pairs else np.zeros(len(at), int)
    for device, cost, less in zip(layout.placement, layout.stages, hidden.tolist(), strict=True):
        busy[device] += cost.work_ns - less
    return busy
