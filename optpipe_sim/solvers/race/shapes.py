"""The race over several shapes: which of them is solved next, and the best schedule and bound of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import exp
from os import cpu_count

from ...bounds.bounds import Bound
from ...bounds.device.best_first import NEVER
from ...errors import Infeasible, NoSolution, OptPipeError
from ...schedule import Schedule
from ...units import counted
from ..options import SolveOptions
from ..problem import Problem
from ..result import SolveResult, within
from .cache import Cache, recall, remember
from .first import SEARCHES, run_adaoffload, run_adaoffloads
from .portfolio import Race
from .rules import rules_of, run_rules

RECALL_SHARE = 0.25  # largest share of the time for schedules from the cache
FLOOR_SHARE = 0.25  # largest share of the time for the published schedules of all shapes
# at least for these, in s: what they take on a busy machine; and the largest share of the time for that
LEAST_S, LEAST_SHARE = 2.0, 0.5
# largest share of the time then left, for AdaOffload with chosen levels on the best shapes
QUICK_SHARE = 0.2
ROUNDS = (3, 2, 1)  # shapes left in each round of the search; all rounds are equally long
# A search evaluates a move in about this time per device, and closes up to this share of the gap of a shape,
# most of it in so many moves per op (measured with 4 to 16 devices).
MOVE_S, CLOSED, ENOUGH = 0.3e-6, 0.6, 60.0
# A turn of a shape among others has at least so many moves per op, and seconds: to start it takes a tenth of one.
FEWEST, SHORTEST_S = 10.0, 0.25


class Shapes:
    """The common state of the races of all shapes.

    Attributes:
        race: the race of all shapes: the best schedule and its problem, and the least of the
            bounds.
        races: the race of each shape over its published schedules.
        costs, bounds, starts: per shape, the best cost, the bound and the best schedule.
        reasons: per shape without a schedule, why, in one line. `failed`: the shapes that have
            none.
    """

    def __init__(self, problems: Sequence[Problem], race: Race) -> None:
        self.problems, self.race = problems, race
        self.costs = [float("inf")] * len(problems)
        self.starts: list[Schedule | None] = [None] * len(problems)
        self.reasons: list[str] = []
        self.failed: set[int] = set()
        self.bounds = [each.lower_bound for each in problems]
        self.races = [
            Race(problem, race.gap, race.began, watch=self.watcher(at))
            for at, problem in enumerate(problems)
        ]
        for own, bound in zip(self.races, self.bounds, strict=True):
            own.prove(*bound)
        self.prove(0, 0, "none")

    @property
    def replay_s(self) -> float:
        """About how long it takes to replay the result."""
        return self.race.problem.replay_s

    def hopeless(self, at: int) -> bool:
        """Whether this shape cannot improve on the incumbent of all shapes."""
        return within(self.race.cost_ns, self.bounds[at].ns, self.race.gap)

    def watcher(self, at: int) -> Callable[[Race], None]:
        """Make the `watch` callback for the race of a shape."""

        def watch(race: Race) -> None:
            if race.best is not None:
                self.take(at, race.best, race.cost_ns, race.engine)
            self.prove(at, race.bound_ns, race.bound_name)
            self.race.notify()

        return watch

    def take(self, at: int, schedule: Schedule, cost_ns: int, engine: str) -> None:
        """Record the best schedule of a shape."""
        if cost_ns < self.costs[at]:
            self.costs[at], self.starts[at] = cost_ns, schedule
        if cost_ns < self.race.cost_ns:
            self.race.problem = self.problems[at]
            self.race.variables = self.race.constraints = 0  # until `solve` returns them
            self.race.take(schedule, cost_ns, engine)

    def offer(self, schedule: Schedule, engine: str) -> None:
        """Offer a schedule to the race of its shape."""
        for own in self.races:
            if own.problem.shape == schedule.shape:
                own.offer(schedule, engine)

    def prove(self, at: int, bound_ns: int, name: str) -> None:
        """Record a bound of one shape."""
        if bound_ns > self.bounds[at].ns:
            self.bounds[at] = Bound(bound_ns, name)
        least = min(self.bounds, key=lambda bound: bound.ns)
        if least.ns > self.race.bound_ns:  # not rounded up by `Race.prove`: units differ by shape
            self.race.bound_ns, self.race.bound_name = least
            self.race.bounds.append((self.race.seconds, least.ns))

    def recall(self, kept: Cache, seconds: float) -> None:
        """Start each shape from the cache, as long as there is time."""
        for own in self.races:
            if own.seconds < seconds and not self.race.proven:
                recall(own, kept)

    def quick(self, options: SolveOptions) -> None:
        """Try the published schedules with every value of their options on every shape, for at most
        `FLOOR_SHARE` of the time but at least `LEAST_S`; then AdaOffload with levels chosen stage by
        stage on the most promising shapes."""
        whole, time_limit = self.race, options.time_limit
        processes = options.workers or cpu_count() or 1
        run_adaoffload(self.races[0], 0)  # so that there is an incumbent soon
        bounds = [bound.ns for bound in self.bounds]
        rules = rules_of(self.problems, bounds, options.engine in SEARCHES)
        left = time_limit - whole.seconds
        floor_s = max(FLOOR_SHARE * left, min(LEAST_S, LEAST_SHARE * left))
        until = whole.seconds + floor_s
        whole.untried = run_rules(
            self.races, rules, lambda: whole.optimal or whole.seconds > until, processes
        )
        left = time_limit - whole.seconds
        order = self._by_promise(left)
        run_adaoffloads(self.races, order[: ROUNDS[0]], QUICK_SHARE * left, processes)
        for at in order[ROUNDS[0] :] if whole.best is None else ():
            if whole.seconds < time_limit:
                run_adaoffload(self.races[at], 0)
        for own in self.races:
            self.reasons += own.failures.values()

    def turns(self, time_limit: float) -> Iterator[tuple[int, float, bool]]:
        """Yield the shape to solve next, for how many seconds, and whether it may have another turn:
        successive halving.

        In each round the most promising shapes (see `promise`) have equal parts of the round's time,
        and fewer go on to the next. Shapes whose bound rules them out are skipped, rounds too short
        to improve even the first of them much are left out, and rounds with a single shape left are
        merged into one. If none of these shapes has a schedule in the end, the others share the time
        left.
        """
        tried: set[int] = set()
        for rounds_left, most in zip(range(len(ROUNDS), 0, -1), ROUNDS, strict=True):
            left = time_limit - self.race.seconds
            order = self._by_promise(left / 2)[:most]
            while len(order) > 1:
                each = left / rounds_left / len(order)
                if each >= SHORTEST_S and self._moves(order[0], each) >= FEWEST:
                    break
                order.pop()
            alone = len(order) == 1
            until = time_limit if alone else self.race.seconds + left / rounds_left
            for place, at in enumerate(order):
                seconds = (until - self.race.seconds) / (len(order) - place)
                if seconds <= 0 or self.race.interrupted:
                    return
                if not self.hopeless(at):
                    tried.add(at)
                    yield at, seconds, rounds_left > 1 and not alone
            if alone:
                break
        rest = [at for at in range(len(self.problems)) if at not in tried]
        for place, at in enumerate(rest if self.race.best is None else ()):
            seconds = (time_limit - self.race.seconds) / (len(rest) - place)
            if seconds > 0 and self.race.best is None and not self.race.interrupted:
                yield at, seconds, False

    def promise(self, at: int, seconds: float) -> float:
        """Estimate the cost that the search reaches on a shape in this time, ns: a share of the gap is
        closed, less if there is no time to try each op often. A good pattern may be hard to improve,
        and a shape may be good although no pattern suits it."""
        if self.starts[at] is None:
            return float("inf")
        share = CLOSED * (1 - exp(-self._moves(at, seconds) / ENOUGH))
        return self.costs[at] - share * (self.costs[at] - self.bounds[at].ns)

    def _moves(self, at: int, seconds: float) -> float:
        """About how many moves per compute op the search can try on a shape in this time."""
        shape = self.problems[at].shape
        return max(0.0, seconds) / (MOVE_S * shape.devices * 3 * shape.stages * shape.units)

    def _by_promise(self, seconds: float) -> list[int]:
        """Return the shapes that may improve on the incumbent, the most promising first; the one of the least bound
        is among the first two, as it is often the best in the end, whatever the patterns that suit it."""
        open_ones = [at for at in range(len(self.problems)) if not self.hopeless(at)]
        order = sorted(open_ones, key=lambda at: self.promise(at, seconds))
        least = min(order, key=lambda at: self.bounds[at].ns, default=None)
        if least is not None and least not in order[:2]:
            order.remove(least)
            order.insert(1, least)
        return order

    def solved(self, at: int, found: SolveResult) -> None:
        """Record the result of a shape; its schedule may have lost its useless offloads."""
        assert found.schedule is not None
        self.take(at, found.schedule, found.objective_ns, found.info["found_by"])
        self.prove(at, found.lower_bound_ns, found.bound_name)
        self.race.failures |= found.info["failures"]
        self.race.interrupted |= found.info["interrupted"]
        if self.race.problem is self.problems[at] and found.objective_ns <= self.race.cost_ns:
            self.race.best = found.schedule
            self.race.variables, self.race.constraints = found.variables, found.constraints

    def without(self, at: int, error: OptPipeError) -> None:
        """Record why a shape has no result."""
        self.failed.add(at)
        chunks = counted(self.problems[at].shape.chunks, "chunk")
        self.reasons.append(f"{chunks}: {error}")
        if not isinstance(error, NoSolution):
            self.race.failures[chunks] = str(error)
        if isinstance(error, Infeasible):
            self.prove(at, NEVER, "infeasible")

    def result(self, engine: str, covered: str, kept: Cache | None) -> SolveResult:
        """Return the best schedule over all shapes, which is stored in `kept`, and the bound over
        all.

        Args:
            engine: the requested engine. covered: the shapes that the bound covers; those that the
                limit rules out are among them.

        Raises:
            NoSolution: if no shape has a schedule.
        """
        whole = self.race
        if whole.best is None:
            kind = Infeasible if min(bound.ns for bound in self.bounds) >= NEVER else NoSolution
            raise kind("; ".join(self.reasons))
        whole.keep()
        if kept is not None:
            best = Race(whole.problem, best=whole.best, cost_ns=whole.cost_ns, began=whole.began)
            best.prove(*self.bounds[self.problems.index(whole.problem)])
            remember(best, kept)
        whole.bound_name += f", least over {covered}"
        found = whole.result(engine)
        return replace(found, info={**found.info, "covers": covered})
