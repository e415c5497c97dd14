"""The best schedule over all numbers of chunks per device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import exp
from os import cpu_count

from ..bounds.bounds import Bound, lower_bound
from ..bounds.device.best_first import NEVER
from ..errors import Infeasible, NoSolution, OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import Size, counted
from .anneal.search import shares_links
from .covers import candidate_shapes, candidate_slices, covers
from .options import SolveOptions
from .problem import Problem, make_problem
from .race.cache import Cache, open_cache, recall, remember
from .race.compiling import compile_engines
from .race.first import run_adaoffload
from .race.portfolio import Race
from .race.rules import rules_of, run_rules
from .race.single import solve_problem
from .reports import Hooks
from .result import SolveResult, within
from .treatments import restrict

FLOOR_SHARE = 0.5  # largest share of the time for the published schedules of all shapes
QUICK_SHARE = 0.25  # the same of what is then left for AdaOffload with chosen levels on all shapes
SIMPLER_SHARE = 0.5  # share of it, if links are shared, for the same problem without copies
ROUNDS = (2, 1)  # shapes left in each round of the search; all rounds are equally long
OP_S = 50e-9  # about the time to evaluate one op of a program
# The search closes up to this share of the gap of a shape, most of it in so many evaluations per op (measured with p = 8 and 16).
CLOSED, ENOUGH = 0.5, 4.0
LEAST_S = 2.0  # at least for the published schedules: their time on a busy machine


def _problems(
    shapes: Sequence[CostProfile],
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
) -> tuple[list[Problem], list[tuple[int, OptPipeError]]]:
    """Make the problem of each shape that the limit admits, and for the other shapes the reason,
    with the least limit they need."""
    problems: list[Problem] = []
    reasons: list[tuple[int, OptPipeError]] = []
    for shaped in shapes:
        try:
            problem = make_problem(
                shaped, microbatches, memory_limit, options.objective, per_stage=options.per_stage
            )
            problems.append(problem)
        except OutOfMemory as error:
            reasons.append((max(shaped.least_limits), error))
    return problems, reasons


class _Common:
    """The common state of all shapes.

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
        self.bounds = [
            lower_bound(each.profile, each.microbatches, each.objective, each.limits)
            for each in problems
        ]
        self.races = [
            Race(problem, race.gap, race.began, watch=self.watcher(at))
            for at, problem in enumerate(problems)
        ]
        for own, bound in zip(self.races, self.bounds, strict=True):
            own.prove(*bound)
        self.prove(0, 0, "none")

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

    def quick(self, time_limit: float, processes: int) -> None:
        """Try the published schedules with every value of their options on every shape, for at most
        `FLOOR_SHARE` of the time but at least `LEAST_S`; then AdaOffload with levels chosen
        stage by stage on every shape that could still beat the incumbent, the best shape first."""
        whole = self.race
        run_adaoffload(self.races[0], 0)  # so that there is an incumbent soon
        rules = rules_of(self.problems, [bound.ns for bound in self.bounds])
        until = whole.seconds + max(FLOOR_SHARE * time_limit, LEAST_S)
        whole.untried = run_rules(
            self.races, rules, lambda: whole.optimal or whole.seconds > until, processes
        )
        left = time_limit - whole.seconds
        seconds = whole.seconds + QUICK_SHARE * left
        for at in self._by_promise(left):
            if self._open(at, seconds):
                run_adaoffload(self.races[at], seconds - whole.seconds)
        for own in self.races:
            self.reasons += own.failures.values()

    def _open(self, at: int, seconds: float) -> bool:
        """Whether a shape may still improve the incumbent, and there is time left or no incumbent yet."""
        in_time = self.race.seconds < seconds or self.race.best is None
        return in_time and not self.hopeless(at)

    def turns(self, time_limit: float) -> Iterator[tuple[int, float]]:
        """Yield the shape to solve next, and for how many seconds: successive halving.

        In each round the most promising shapes (see `promise`) have equal parts of the round's time,
        and fewer go on to the next. Shapes whose bound rules them out are skipped, rounds too short
        to improve even the first of them are left out, and rounds with a single shape left are
        merged into one. If none of these shapes has a schedule in the end, the others share the time
        left.
        """
        tried: set[int] = set()
        for rounds_left, most in zip(range(len(ROUNDS), 0, -1), ROUNDS, strict=True):
            left = time_limit - self.race.seconds
            order = [at for at in self._by_promise(left / 2) if not self.hopeless(at)][:most]
            if order and self._evaluations(order[0], left / rounds_left / most) < ENOUGH:
                order = order[:1]
            alone = len(order) == 1
            until = time_limit if alone else self.race.seconds + left / rounds_left
            for place, at in enumerate(order):
                seconds = (until - self.race.seconds) / (len(order) - place)
                if seconds <= 0 or self.race.interrupted:
                    return
                if not self.hopeless(at):
                    tried.add(at)
                    yield at, seconds
            if alone:
                break
        rest = [at for at in range(len(self.problems)) if at not in tried]
        for place, at in enumerate(rest if self.race.best is None else ()):
            seconds = (time_limit - self.race.seconds) / (len(rest) - place)
            if seconds > 0 and self.race.best is None and not self.race.interrupted:
                yield at, seconds

    def promise(self, at: int, seconds: float) -> float:
        """Estimate the cost that the search reaches on a shape in this time, ns: a share of the gap is
        closed, less if there is no time to try each op often. A good pattern may be hard to improve,
        and a shape may be good although no pattern suits it."""
        if self.starts[at] is None:
            return float("inf")
        share = CLOSED * (1 - exp(-self._evaluations(at, seconds) / ENOUGH))
        return self.costs[at] - share * (self.costs[at] - self.bounds[at].ns)

    def _evaluations(self, at: int, seconds: float) -> float:
        """About how many schedules per compute op the search can evaluate on a shape in this time."""
        shape = self.problems[at].shape
        return seconds / (OP_S * (3 * shape.stages * shape.units) ** 2)

    def _by_promise(self, seconds: float) -> list[int]:
        return sorted(range(len(self.problems)), key=lambda at: self.promise(at, seconds))

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


def solve_shapes(
    profile: CostProfile,
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
    warm_start: Schedule | str | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008  (frozen)
    shapes: Sequence[CostProfile] = (),
) -> SolveResult:
    """Run `solve` over all numbers of chunks, up to one layer per stage, and all placements. The
    result is never worse than a published schedule that fits, with any options, provided that
    half of the time is enough to build those that could be better (``info["untried"]`` of the
    result is 0).

    The published schedules are tried on every candidate shape; the most promising of those that
    their bound does not rule out are then solved in rounds, each with fewer shapes and for longer.
    The lower bound covers all shapes: it is the least of their bounds, and its name says which
    chunks and placements it covers.

    Args:
        warm_start: only ``none`` is accepted: the engines then start without a schedule, not even
            the best published one.
        hooks: `Hooks.watch` is called with one race for all shapes. The cache keeps the best
            schedule with its own shape.
        shapes: the profiles to choose from; none: `candidate_shapes`, and of each `candidate_slices` if
            `options.slices` is ``any``.

    Raises:
        OutOfMemory, NoSolution: if no shape has a schedule; names the shape that needs least
            memory.
        OptPipeError: for a warm start, or a MILP solver that is not installed.
    """
    if warm_start not in (None, "none"):
        raise OptPipeError("warm start: a schedule is of one shape; expected 'none' for any shape")
    if options.engine == "milp":
        from .milp.solvers import require_solver

        require_solver(options.solver)
    given = shapes
    if not shapes:
        one = options.slices == "any" and options.chunks != "any"
        shapes = [profile] if one else candidate_shapes(profile)
        if options.slices == "any":
            shapes = [cut for shape in shapes for cut in candidate_slices(shape)]
    problems, reasons = _problems(shapes, microbatches, memory_limit, options)
    if not problems:
        raise min(reasons, key=lambda reason: reason[0])[1]
    for problem in problems:
        compile_engines(problem, hooks.on_wait)
    whole = Race(
        problems[0],
        options.gap,
        save=hooks.save,
        on_incumbent=hooks.on_incumbent,
        watch=hooks.watch,
    )
    common = _Common(problems, whole)
    kept = open_cache() if options.cache else None
    try:
        if kept is not None and warm_start != "none":
            common.recall(kept, QUICK_SHARE * options.time_limit)
        if warm_start is None and _simpler_first(common, options):
            _solve_without_copies(common, profile, memory_limit, options, given)
        common.quick(options.time_limit, options.workers or cpu_count() or 1)
        _solve_each(common, options, warm_start)
    except KeyboardInterrupt:
        whole.interrupted = True
        if whole.best is None:
            raise
    return common.result(options.engine, covers(shapes), kept)


def _simpler_first(common: _Common, options: SolveOptions) -> bool:
    """Whether to solve the problem without copies first: on shared links the search over all
    treatments only approximates copies (`treated.stand_ins`) and may end worse than a search
    without them."""
    return SIMPLER_SHARE * options.time_limit >= LEAST_S and any(
        each.may_recompute and shares_links(each) for each in common.problems
    )


def _solve_without_copies(
    common: _Common,
    profile: CostProfile,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
    shapes: Sequence[CostProfile],
) -> None:
    """Offer the result of `solve` without offloading, in a share of the time."""
    own = replace(options, time_limit=SIMPLER_SHARE * options.time_limit, cache=False)
    without = ("keep", "recompute")
    kept, shapes = restrict(profile, without), [restrict(each, without) for each in shapes]
    microbatches = common.problems[0].microbatches

    def take(race: Race) -> None:
        if race.best is not None and race.cost_ns < common.race.cost_ns:
            common.offer(race.best, race.engine)

    with suppress(OptPipeError):  # no schedule fits without copies
        hooks = Hooks(watch=take)
        found = solve_shapes(kept, microbatches, memory_limit, own, None, hooks, shapes)
        assert found.schedule is not None
        common.offer(found.schedule, found.info["found_by"])
        if found.info["interrupted"]:
            raise KeyboardInterrupt


def _solve_each(common: _Common, options: SolveOptions, warm_start: Schedule | str | None) -> None:
    """Solve the shapes in turn, each from its best schedule so far."""
    for at, seconds in common.turns(options.time_limit):
        own = replace(
            options,
            time_limit=seconds,
            published=False,
            cache=False,
            chunks="own",
            slices="own",
        )
        hooks = Hooks(watch=common.watcher(at))
        try:
            found = solve_problem(
                common.problems[at], own, warm_start or common.starts[at], hooks,
                () if warm_start else common.races[at].starts,
            )  # fmt: skip
        except OptPipeError as error:  # the MILP may be too large for one shape but not for another
            common.without(at, error)
        else:
            common.solved(at, found)


def solve_settled(
    profile: CostProfile,
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
    warm_start: Schedule | str | None,
    hooks: Hooks,
) -> SolveResult:
    """Run `solve` on a profile that already has the requested treatments and number of chunks; over
    all shapes with ``chunks=any`` or ``slices=any``.

    Raises: as `solve`.
    """
    if "any" in (options.chunks, options.slices):
        return solve_shapes(profile, microbatches, memory_limit, options, warm_start, hooks)
    if isinstance(warm_start, str) and warm_start != "none":
        raise OptPipeError(f"warm start: expected a schedule or 'none', got {warm_start!r}")
    problem = make_problem(
        profile, microbatches, memory_limit, options.objective, per_stage=options.per_stage
    )
    return solve_problem(problem, options, warm_start, hooks)
