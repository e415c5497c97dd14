"""The portfolio of `solve`: the problems of all shapes share its time, its incumbent and its bound.

One loop for one problem and for many: what the cache knows, AdaOffload and the published schedules come
first; then the engines race on the most promising problems in turns; then what is useless in the best
schedule is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import exp, inf
from os import cpu_count

from ..bounds.device.node import NEVER
from ..errors import Infeasible, NoSolution, OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..schedule import Schedule
from ..schedules import ADAOFFLOAD, is_published
from ..sim import require_limit
from ..units import Size, counted
from .anneal.annealer import shares_links
from .axes import covers, problems_of, shapes_of
from .options import SolveOptions
from .problem import Problem, leaves_pairs_out
from .race.cache import Cache, open_cache, recall, remember
from .race.compiling import compile_engines
from .race.first import (
    SEARCHES,
    may_choose_levels,
    run_adaoffload,
    run_each,
    run_recomputing,
)
from .race.jobs import compete, require_engine
from .race.race import Race
from .race.rules import rules_of, run_rules
from .race.tidy import tidy
from .reports import Hooks
from .result import SolveResult, within
from .starts.published import told_schedules
from .treatments import restrict

TOLD_SHARE = 0.1  # largest share of the time for the plans that are most likely run today
RECALL_SHARE = 0.25  # largest share of the time for schedules from the cache
SIMPLER_SHARE = 0.5  # share of the time, if links are shared, for the same problems without copies
FIXED_SHARE = 0.3  # largest share of a problem's time for AdaOffload
# Largest share of the time for the published schedules of one problem, but at least so many seconds; few problems
# need a tenth. For those of all shapes: what they take on a busy machine, up to a share of the time.
FLOOR_SHARE, FLOOR_S = 0.5, 1.0
FLOORS_SHARE, FLOORS_S, LEAST_SHARE = 0.25, 2.0, 0.5
# Largest share of the time then left for AdaOffload-R, which takes a second or so for a shape, the best shapes first; later
# for AdaOffload at several choices of levels, on the best shapes alone.
RECOMPUTING_SHARE, QUICK_SHARE = 0.1, 0.2
# Rounds of the search: most shapes that are left, and the share of the time that is then left.
ROUNDS = ((3, 0.3), (2, 0.25), (1, 1.0))
# A search evaluates a move in about this time per device, and closes up to this share of the gap of a shape,
# most of it in so many moves per op (measured with 4 to 16 devices); of what its first turn leaves so much more.
MOVE_S, CLOSED, ENOUGH, CLOSED_AFTER = 0.3e-6, 0.6, 60.0, 0.15
# A turn of a shape among others has at least so many moves per op, and seconds: to start it takes a tenth of one.
FEWEST, SHORTEST_S = 10.0, 0.25
TIDY_SHARE = 0.1  # share of the time limit, in addition to it, to drop useless offloads
TIDY_REPLAYS = 4  # it begins and ends with one: with time for fewer it is left out
TIDY_TRIES = 1000  # the same if evaluations are limited instead of time


def solve_settled(
    profile: CostProfile,
    microbatches: int,
    memory_limit: Size | Sequence[Size] | None,
    options: SolveOptions,
    start: Schedule | str | None,
    hooks: Hooks,
) -> SolveResult:
    """Run `solve` on a profile that already has the requested treatments and number of chunks, over all that the
    options leave open.

    Raises: as `solve`.
    """
    several = "any" in (options.chunks, options.slices)
    if several and start not in (None, "none"):
        raise OptPipeError("warm start: a schedule is of one shape; expected 'none' for any shape")
    if isinstance(start, str) and start != "none":
        raise OptPipeError(f"warm start: expected a schedule or 'none', got {start!r}")
    shapes = shapes_of(profile, options)
    problems = problems_of(shapes, microbatches, memory_limit, options)
    covered = covers(shapes, [leaves_pairs_out(shape, options.pairs) for shape in shapes])
    return solve_problems(problems, options, start, hooks, covered if several else None)


def solve_problems(
    problems: Sequence[Problem],
    options: SolveOptions,
    start: Schedule | str | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008  (frozen)
    covered: str | None = None,
) -> SolveResult:
    """Find the best schedule of some problems, one per shape, and a bound on the schedules of all of them.

    The result is never worse than a published schedule that fits, with any options, provided that half of the time
    (of several problems a quarter, or up to two seconds) is enough to build those that could be better
    (``info["untried"]`` of the result is 0).

    Args:
        options: its chunks, placement, slices and treatments are those of the problems already.
        start: a schedule of one of these shapes; ``none``: the engines start without one.
        hooks: `Hooks.watch` is called with one race for all problems.
        covered: the shapes that the bound covers, in words; those that the limit rules out may be among them.

    Raises:
        Infeasible, NoSolution: if no problem has a schedule. OptPipeError: as `solve`.
    """
    if len(problems) == 1:
        require_engine(problems[0], options)
    elif options.engine == "milp":
        from .milp.solvers import require_solver

        require_solver(options.solver)
    simpler = without_copies(problems, options) if start is None else []
    compiling_s = sum(compile_engines(each, hooks.on_wait) for each in [*problems, *simpler])
    portfolio = Portfolio(problems, options, hooks, compiling_s, simpler)
    whole = portfolio.whole
    kept = open_cache() if options.cache else None
    try:
        given = isinstance(start, Schedule) and portfolio.offer(start, "warm start")
        if kept is not None and start != "none":
            portfolio.recall(kept)
        portfolio.run(cold=start == "none", given=given)
    except KeyboardInterrupt:
        whole.interrupted = True
        if whole.best is None:
            raise
    with suppress(KeyboardInterrupt):  # a second interrupt
        whole.keep()
        if kept is not None and whole.best is not None:
            remember(portfolio.leader, kept)
    return portfolio.result(covered)


def without_copies(problems: Sequence[Problem], options: SolveOptions) -> list[Problem]:
    """Return the same problems without offloading, where several choose among all treatments and links are shared:
    there the search only approximates copies (`anneal.stand_ins`), and may end worse than one without them. Those
    that nothing fits then are left out."""
    approximates = any(problem.may_recompute and shares_links(problem) for problem in problems)
    if len(problems) == 1 or not approximates or SIMPLER_SHARE * options.time_limit < FLOORS_S:
        return []
    found = []
    for problem in problems:
        profile = restrict(problem.profile, ("keep", "recompute"))
        with suppress(OutOfMemory):
            if problem.limits is not None:
                require_limit(profile, problem.limits)
            found.append(replace(problem, profile=profile))
    return found


class Portfolio:
    """The races of some problems, and what is known of all of them.

    Attributes:
        races: one per problem.
        whole: the best schedule of all and its problem, and the least of the bounds; of a single problem
            it is its race.
        simpler: the same problems `without_copies`, or none.
        reasons: why problems have no schedule, in one line each.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        options: SolveOptions,
        hooks: Hooks = Hooks(),  # noqa: B008  (frozen)
        compiling_s: float = 0.0,
        simpler: Sequence[Problem] = (),
    ) -> None:
        self.options = options
        self.simpler = simpler
        self.reasons: list[str] = []
        self.whole = whole = Race(
            problems[0],
            options.gap,
            save=hooks.save,
            on_incumbent=hooks.on_incumbent,
            watch=hooks.watch,
            compiling_s=compiling_s,
        )
        self.alone = len(problems) == 1
        self.races = (
            [whole] if self.alone else [Race(one, whole.gap, whole.began) for one in problems]
        )
        for race in self.races:
            race.prove(*race.problem.lower_bound)
        if not self.alone:
            for race in self.races:
                race.watch = self._follow
            self._follow(self.races[0])

    def _follow(self, race: Race) -> None:
        """Take what is new in the race of one problem."""
        whole = self.whole
        if race.best is not None and race.cost_ns < whole.cost_ns:
            whole.problem = race.problem
            whole.take(race.best, race.cost_ns, race.engine)
        least = min(self.races, key=lambda each: each.bound_ns)
        if least.bound_ns > whole.bound_ns:  # not rounded up by `Race.prove`: units differ by shape
            whole.bound_ns, whole.bound_name = least.bound_ns, least.bound_name
            whole.bounds.append((whole.seconds, least.bound_ns))
        whole.notify()

    @property
    def leader(self) -> Race:
        """The race of the problem that the best schedule solves."""
        return next(race for race in self.races if race.problem is self.whole.problem)

    def offer(self, schedule: Schedule, engine: str) -> bool:
        """Offer a schedule to the race of its shape; return whether it is the best of that race now."""
        same = [race for race in self.races if race.problem.shape == schedule.shape]
        return any(race.offer(schedule, engine) for race in same)

    def hopeless(self, race: Race) -> bool:
        """Whether a problem cannot improve on the best schedule of all."""
        return race.infeasible or within(self.whole.cost_ns, race.bound_ns, self.whole.gap)

    # -- what is known, and what is simple ------------------------------------------------------------

    def recall(self, kept: Cache) -> None:
        """Start each problem from the cache, as long as there is time."""
        for race in self.races:
            if race.seconds < RECALL_SHARE * self.options.time_limit and not self.whole.proven:
                recall(race, kept)

    def run(self, cold: bool, given: bool) -> None:
        """Try AdaOffload and the published schedules, let the engines compete, and tidy up, until the
        time limit or a proof.

        Args:
            cold: the engines start without a schedule. given: whether the caller gave one that fits; one from the
                cache replaces no step.
        """
        until, engine = inf, self.options.engine
        if self.options.evaluations is None:  # the result is replayed in the end
            limit = self.options.time_limit
            until = max(limit / 2, limit - self.whole.problem.replay_s)
        self._search(until, cold, given)
        by_name = engine not in ("auto", ADAOFFLOAD)
        if self.alone and by_name and not self.whole.turns and not self.whole.proven:
            self.whole.failures[engine] = "no time was left for it"
        if self.whole.best is not None and engine != ADAOFFLOAD:
            self._tidy()

    def _search(self, until: float, cold: bool, given: bool) -> None:
        """Try what is simple, then let the engines compete. See `run`."""
        if not self.whole.proven:
            self._first(until, given)
        for race, seconds, brief in self.turns(until):
            self._compete(race, seconds, cold, brief)

    def _first(self, until: float, given: bool) -> None:
        """Try AdaOffload, then the published schedules with every value of their options, each for a share of the
        time; of several problems then, for shares of what is left, AdaOffload-R, the search of those without copies, and
        AdaOffload at several choices of levels on the most promising."""
        whole, options = self.whole, self.options
        processes = 1 if options.evaluations is not None else options.workers or cpu_count() or 1
        if options.published:
            self._told(until)
        simpler = self._simplified() if self.simpler else None
        if not self.alone:
            run_adaoffload(self.races[0], 0)  # so that there is an incumbent soon
        elif options.published or not given or options.engine == ADAOFFLOAD:
            run_recomputing(whole, RECOMPUTING_SHARE * until)
            run_adaoffload(whole, FIXED_SHARE * until)
        if self.alone and options.engine == ADAOFFLOAD:
            return
        if options.published and not whole.optimal:
            left = until - whole.seconds
            if self.alone:
                seconds = max(FLOOR_SHARE * until, FLOOR_S)
            else:
                seconds = max(FLOORS_SHARE * left, min(FLOORS_S, LEAST_SHARE * left))
            ends = whole.seconds + seconds
            rules = rules_of(
                [race.problem for race in self.races],
                [race.bound_ns for race in self.races],
                options.engine in SEARCHES,
            )
            whole.untried = run_rules(
                self.races,
                rules,
                lambda: whole.optimal or whole.seconds > ends,
                processes,
                self._beside(simpler),
            )
            if whole.best is not None and is_published(whole.engine):
                whole.published = whole.engine, whole.best
        if self.alone:
            return
        left = until - whole.seconds
        seconds = RECOMPUTING_SHARE * left
        choosing = [race for race in self._by_promise(left) if may_choose_levels(race)]
        run_each(run_recomputing, choosing, seconds, seconds, processes)
        if simpler is not None and not whole.proven:
            seconds = SIMPLER_SHARE * (until - whole.seconds)
            with suppress(NoSolution):
                simpler._search(simpler.whole.seconds + seconds, cold=False, given=False)
        left = until - whole.seconds
        order, first = self._by_promise(left), ROUNDS[0][0]
        best, seconds = order[:first], QUICK_SHARE * left
        each = seconds * min(processes, len(best)) / max(1, len(best))
        run_each(run_adaoffload, best, seconds, each, processes)
        for race in order[first:] if whole.best is None else ():
            if whole.seconds < until:
                run_adaoffload(race, 0)
        for race in self.races:
            self.reasons += race.failures.values()

    def _simplified(self) -> Portfolio:
        """Return the portfolio of the `simpler` problems, whose schedules are offered here."""

        def take(race: Race) -> None:
            if race.best is not None and race.cost_ns < self.whole.cost_ns:
                self.offer(race.best, race.engine)

        options = replace(self.options, cache=False, published=False)
        return Portfolio(self.simpler, options, Hooks(watch=take))

    def _beside(self, simpler: Portfolio | None) -> dict[int, Race]:
        """Return the race of another portfolio that has the shape of the race at each place, where one has."""
        others = {} if simpler is None else {race.problem.shape: race for race in simpler.races}
        places = enumerate(race.problem.shape for race in self.races)
        return {at: others[shape] for at, shape in places if shape in others}

    def _told(self, until: float) -> None:
        """Replay the plans that are most likely run today, before all else and in this process: however busy the
        machine, and however long the bounds have taken, the answer is no worse than these."""
        ends = self.whole.seconds + TOLD_SHARE * until
        for race in self.races:
            for name, schedule in told_schedules(race.problem):
                race.offer(schedule, name)
            if race.seconds > ends:
                return

    # -- the engines -------------------------------------------------------------------------------------

    def _compete(self, race: Race, seconds: float, cold: bool, brief: bool) -> None:
        """Let the engines compete on one problem, from its best schedule so far; the error of one of
        several problems is noted."""
        until = race.seconds + seconds
        try:
            if not self.alone:
                require_engine(race.problem, self.options)
                if race.best is None or self.options.engine == ADAOFFLOAD:
                    run_adaoffload(race, FIXED_SHARE * seconds)
            if self.options.engine != ADAOFFLOAD and not race.proven:
                compete(race, self.options, until, cold, brief)
            race.require_best()
        except OptPipeError as error:  # the MILP may be too large for one shape but not for another
            if self.alone:
                raise
            chunks = counted(race.problem.shape.chunks, "chunk")
            self.reasons.append(f"{chunks}: {error}")
            if not isinstance(error, NoSolution):
                self.whole.failures[chunks] = str(error)
            if isinstance(error, Infeasible):
                race.bound_ns, race.bound_name = NEVER, "infeasible"
                race.notify()

    def turns(self, time_limit: float) -> Iterator[tuple[Race, float, bool]]:
        """Yield the race to run next, for how many seconds, and whether it may have another turn:
        successive halving.

        In each round the most promising problems (see `promise`) have equal parts of the round's time,
        and fewer go on to the next: only such as may end below the incumbent. Those whose bound rules them out are
        skipped, rounds too short to improve even the first of them much are left out, and rounds with a single
        problem left are merged into one. If none of these has a schedule in the end, the others share the time left.
        """
        if self.alone and self.options.engine == ADAOFFLOAD:
            return
        for most, share in ROUNDS:
            left = time_limit - self.whole.seconds
            again = any(race.turns for race in self.races)
            order = [race for race in self._by_promise(left / 2) if race.turns or not again][:most]
            while len(order) > 1:
                each = share * left / len(order)
                if each >= SHORTEST_S and self._moves(order[0], each) >= FEWEST:
                    break
                order.pop()
            last = len(order) == 1
            until = time_limit if last else self.whole.seconds + share * left
            for place, race in enumerate(order):
                seconds = (until - self.whole.seconds) / (len(order) - place)
                if seconds <= 0:
                    return
                if not self.hopeless(race):
                    yield race, seconds, not last
                    race.turns += 1
            if last:
                break
        rest = [race for race in self.races if not race.turns and not race.infeasible]
        for place, race in enumerate(rest):
            seconds = (time_limit - self.whole.seconds) / (len(rest) - place)
            if seconds > 0 and self.whole.best is None:
                yield race, seconds, False
                race.turns += 1

    def promise(self, race: Race, seconds: float) -> float:
        """Estimate the cost that the search reaches on a problem in this time, ns: a share of the gap is
        closed, less if there is no time to try each op often, and less of what a first turn has left. A good
        pattern may be hard to improve, and a shape may be good although no pattern suits it."""
        if race.best is None:
            return inf
        most = CLOSED_AFTER if race.turns else CLOSED
        share = most * (1 - exp(-self._moves(race, seconds) / ENOUGH))
        return race.cost_ns - share * (race.cost_ns - race.bound_ns)

    def _moves(self, race: Race, seconds: float) -> float:
        """About how many moves per compute op the search can try on a problem in this time."""
        shape = race.problem.shape
        return max(0.0, seconds) / (MOVE_S * shape.devices * 3 * shape.activations)

    def _by_promise(self, seconds: float) -> list[Race]:
        """Return the races that may improve on the incumbent, the most promising first; before any has run, the one that
        has the incumbent and the one of the least bound come next: they may be the best in the end, whatever they promise."""
        promised = {
            race: self.promise(race, seconds) for race in self.races if not self.hopeless(race)
        }
        ahead: list[Race] = []
        if promised and not any(race.turns for race in self.races):
            least = min(promised, key=lambda race: race.bound_ns)
            ahead = [race for race in (self.leader, least) if race in promised]
        # one that is not known yet may, whatever it promises; the leader's own is no more than its cost
        order = [
            race
            for race, cost in promised.items()
            if race.best is None or cost <= self.whole.cost_ns or race in ahead
        ]
        order.sort(key=promised.__getitem__)
        return list(dict.fromkeys([*order[:1], *ahead, *order]))

    # -- the end -----------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Drop offloads and recomputations that gain nothing; they only cost power, host memory and
        PCIe traffic."""
        race = self.leader
        assert race.best is not None
        seconds = min(1.0, TIDY_SHARE * self.options.time_limit)
        limited = self.options.evaluations is not None
        if not limited and seconds < TIDY_REPLAYS * race.problem.replay_s:
            return
        limits = (inf, TIDY_TRIES) if limited else (seconds, None)
        tidied = tidy(race.problem, race.best, *limits)
        if tidied is not race.best and not race.offer(tidied, race.engine):
            self.whole.best = race.best = tidied

    def result(self, covered: str | None) -> SolveResult:
        """Return the best schedule of all problems, and the bound on all.

        Raises:
            Infeasible, NoSolution: if no problem has a schedule.
        """
        whole = self.whole
        if whole.best is None and not self.alone:
            proven = min(race.bound_ns for race in self.races) >= NEVER
            raise (Infeasible if proven else NoSolution)("; ".join(self.reasons))
        whole.require_best()
        for race in self.races:
            race.failures.pop(ADAOFFLOAD, None)  # other engines have found one
            whole.failures |= race.failures
        whole.variables, whole.constraints = self.leader.variables, self.leader.constraints
        if covered is not None:
            whole.bound_name += f", least over {covered}"
        found = whole.result(self.options.engine)
        return found if covered is None else replace(found, info={**found.info, "covers": covered})
