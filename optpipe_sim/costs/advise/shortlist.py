"""The search behind `advise`.

Best first: every split, microbatch size and recomputation has a bound that is almost free to compute
(its work, evenly spread). Those not excluded are bounded better (`bounds.bounds`) and replayed under the
published schedules; those that could still win are planned greedily (AdaOffload, the automatic
zero-bubble schedules, offloading), and only the rows of the answer are solved.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ...bounds.bounds import fill_and_drain, lower_bound, naive, one_microbatch
from ...errors import Deadlock, InvalidSchedule, NoSolution, OptPipeError, OutOfMemory
from ...names import parse_name
from ...profile import CostProfile
from ...profile.streams import exchange_ns, lines_of
from ...schedules.recompute import with_level
from ...solvers.race.compiling import compile_first
from ...solvers.solve import solve
from ...units import format_size
from ..calibrate import Calibration
from ..provenance import iteration_ns
from ..recompute.regions import RECOMPUTE
from ..work import Work
from .other_limits import Bought, what_memory_buys
from .replay import PLANNED, UNDER_LIMIT, may_fit, profile_of, replayed, trace_of
from .rows import Advice, Point, Row
from .space import Choice, Question

FEWEST = 100  # choices that are estimated whatever the time
RANKING = 0.6  # of the time until the published ones are done: until the estimates are
# of the time: until the published ones, the planned ones, those that are solved are done
SHARES = (0.4, 0.62, 0.8)
LATEST = 0.85  # however late the first that fits is found
FIRST = 0.5  # of what is left to solve rows: for the first of them
SOLVE_SECONDS = 3.0  # for one row, at most
MANY_CELLS = 8000  # stages x microbatches: planning takes seconds beyond this
PATIENCE = 1.03  # how much better another split has to look than one more shape of the same

OnProgress = Callable[[str, int, int], None]
Split = tuple[int, ...]


class Candidate(NamedTuple):
    """A choice with its chunks that could still be in the answer, with its lower bound."""

    bound: float
    choice: Choice
    profile: CostProfile
    names: tuple[str, ...]


class Search:
    """The search for one question; start with `run`."""

    def __init__(
        self,
        question: Question,
        top: int,
        seconds: float,
        tolerance: float,
        report: OnProgress,
        wait: Callable[[], None] = lambda: None,
    ) -> None:
        if not seconds > 0:
            raise OptPipeError(f"time limit: must be above 0 seconds, got {seconds}")
        self.question, self.top, self.seconds = question, top, seconds
        self.tolerance, self.report, self.wait = tolerance, report, wait
        self.began = self.found = time.monotonic()  # the latter: the first that fits
        self.best: dict[Split, Row] = {}  # per split
        self.points: list[Point] = []
        self.pruned: Counter[str] = Counter()
        self.left: list[float] = []  # bounds of what time did not allow
        self.solved = 0
        self.least: tuple[int, Choice] | None = None
        self.compiling_s = 0.0

    def run(self, calibration: Calibration | None = None) -> Advice:
        """Run the whole search, within the time as nearly as single steps allow.

        Ctrl-C ends it with the best so far; where nothing was found yet, it is raised.
        """
        interrupted = False
        bought: tuple[Bought, ...] = ()
        searches = "optpipe" in [parse_name(name)[0] for name in self.question.names]
        self._not_counted(compile_first(self.wait))
        later: Sequence[Choice] = self._choices()
        try:
            while later and not self.best:
                ranked, later = self._ranked(later)
                self._plan(self._publish(ranked))
            if searches:
                interrupted = self._solve()
            if searches and self.best and not interrupted:
                bought = self._memory()
        except KeyboardInterrupt:
            if not self.best:
                raise
            interrupted = True
        rows = sorted(self.best.values(), key=lambda row: row.key)[: self.top]
        if not rows:
            raise self._nothing()
        # no choice can beat all GPUs at their peak rate
        self.left += [rows[0].iteration_ns * rows[0].mfu_causal] * len(later)
        worst = rows[-1].iteration_ns if len(rows) == self.top else float("inf")
        hopes = [bound for bound in self.left if bound < worst]
        return Advice(
            self.question,
            tuple(rows),
            len(self.points),
            self.solved,
            dict(self.pruned),
            len(hopes),
            min(hopes, default=None),
            time.monotonic() - self.began,
            tuple(self.points),
            calibration,
            interrupted,
            bought,
            self.compiling_s,
        )

    # -- steps ------------------------------------------------------------------------------------

    def _choices(self) -> list[Choice]:
        """Return all choices so that the first ones are from everywhere among them: if there is no time
        for all, every split has had its turn."""
        choices = self.question.choices()
        if not any(True for choice in choices for _ in self.question.shapes(choice)):
            raise OptPipeError(
                f"schedules: none of {', '.join(self.question.names)} runs with"
                f" {'/'.join(map(str, self.question.chunks))} chunks on such a pipeline"
            )
        steps = max(1, round(len(choices) ** 0.5))
        return [choice for first in range(steps) for choice in choices[first::steps]]

    def _ranked(
        self, choices: Sequence[Choice]
    ) -> tuple[list[tuple[float, Choice]], Sequence[Choice]]:
        """Return every choice whose weights fit, in search order, each with a time that no chunks and no
        schedule can beat: its work, evenly spread over the pipeline; and the choices for which a share of
        the time did not suffice."""
        works: dict[Work, int] = {}
        wholes: dict[Choice, CostProfile] = {}  # of uncut sequences
        promised = []
        later: Sequence[Choice] = ()
        until = self.began + RANKING * self._publishing() * self.seconds
        for at, choice in enumerate(choices):
            if at % 50 == 0:
                self.report("estimating", at, len(choices))
            if at >= FEWEST and time.monotonic() > until:
                later = choices[at:]
                break
            uncut = replace(choice, slices=1)
            if uncut not in wholes:
                wholes[uncut] = profile_of(self.question, uncut, items=False)
            profile = wholes[uncut]
            static = sum(profile.static_bytes) // choice.pp
            # of some device, however it is chunked
            if static > self.question.limit_bytes and choice.slices == 1:
                self.pruned["memory"] += len(list(self.question.shapes(choice)))
                self._note_least(static, choice)
                continue
            # one stage, no exchange of weights: the least these ops can take
            one = replace(choice, pp=1, zero=min(choice.zero, 1))
            work = self.question.work_of(one).on(self.question.layout(one))
            if work not in works:
                whole = profile_of(self.question, one, items=False)
                works[work] = sum(c.t_f_ns + c.t_b_ns + c.t_w_ns for c in whole.stages)
                if whole.pair_hidden:  # pairs hide no more than the exchange of tokens
                    works[work] -= exchange_ns(*lines_of(whole, 0))
            # each op was rounded to a ns
            rounding = 2 * choice.pp * choice.slices * max(self.question.chunks)
            whole_ns = (works[work] - rounding) * choice.microbatches / choice.pp
            least = whole_ns / (1 - self.question.machine.rates.overhead)
            units = choice.microbatches * choice.slices
            likely = iteration_ns(profile, naive(profile, units) // choice.slices)
            promised.append((likely, least, choice))
        promised.sort(key=lambda entry: entry[:2])
        turns: Counter[Split] = Counter()
        ordered = []
        for likely, least, choice in promised:
            turns[choice.split] += 1
            ordered.append((likely * PATIENCE ** turns[choice.split], least, choice))
        ordered.sort(key=lambda entry: entry[:2])
        return [(least, choice) for _, least, choice in ordered], later

    def _publishing(self) -> float:
        """Return the share of the time after which no published schedule is begun: all of it where nothing comes after them."""
        bases = {parse_name(name)[0] for name in self.question.names}
        return SHARES[0] if bases & {*PLANNED, "optpipe"} else 1.0

    def _publish(self, ranked: Sequence[tuple[float, Choice]]) -> list[Candidate]:
        """Replay the published schedules of candidates that bounds do not exclude; return what is left to plan."""
        left: list[Candidate] = []
        at = 0
        share = self._publishing()
        try:
            for at, (least, choice) in enumerate(ranked):
                if not self._open(least, choice):
                    self.pruned["bound"] += 1
                elif self._spent(share):
                    self.left.append(least)
                else:
                    self.report(f"replaying, {self._so_far()}", at, len(ranked))
                    left += self._try_published(choice, share)
        except KeyboardInterrupt:
            self.left += [least for least, choice in ranked[at:] if self._open(least, choice)]
            self.left += [one.bound for one in left]
            raise
        return left

    def _try_published(self, choice: Choice, share: float) -> list[Candidate]:
        """Replay a choice with every shape that it may have, within this share of the time; those
        that could fit and be in the answer."""
        found = []
        for shaped, names in self.question.shapes(choice):
            candidate = self._bounded(shaped, names)
            if candidate is None:
                continue
            found.append(candidate)
            for name in candidate.names:
                if parse_name(name)[0] in (*PLANNED, "optpipe"):
                    continue
                if self._spent(share):
                    self.left.append(candidate.bound)
                    return found
                self._try(candidate, name)
        return found

    def _bounded(self, choice: Choice, names: tuple[str, ...]) -> Candidate | None:
        """Return a choice with its profile and the bounds that cost little; None where it is out."""
        try:
            profile = profile_of(self.question, choice)
        except OptPipeError:
            self.pruned["shape"] += 1
            return None
        needed = max(profile.least_limits)
        if needed > self.question.limit_bytes:
            self.pruned["memory"] += 1
            self._note_least(needed, choice)
            return None
        m = choice.microbatches
        free, held = may_fit(names, profile, m, self.question.limit_bytes)
        self.pruned["memory"] += len(names) - len(free)
        if names and not free:
            self._note_least(held, choice)
            return None
        if choice.slices > 1 or profile.pair_hidden:
            # costs little; those of whole sequences and single ops do not hold
            bound = lower_bound(profile, m, pairs=True).ns
        else:
            goal = profile.objective
            bound = max(
                naive(profile, m, goal),
                one_microbatch(profile, goal),
                fill_and_drain(profile, m, goal),
            )
        whole = iteration_ns(profile, bound)
        if not self._open(whole, choice):
            self.pruned["bound"] += 1
            return None
        return Candidate(whole, choice, profile, free)

    def _plan(self, candidates: Sequence[Candidate]) -> None:
        """The schedules that are planned for the limit, where they could still win; the most
        promising first, large problems last."""
        turns: Counter[Split] = Counter()
        ordered = []
        for one in sorted(candidates, key=lambda one: one.bound):
            choice = one.choice
            turns[choice.split] += 1
            own = self.best.get(choice.split)
            between = (one.bound * (own.iteration_ns if own else one.bound)) ** 0.5
            large = choice.pp * choice.chunks * choice.microbatches > MANY_CELLS
            ordered.append((large, between * PATIENCE ** turns[choice.split], one))
        ordered.sort(key=lambda entry: entry[:2])
        at = 0
        try:
            for at, (_, _, one) in enumerate(ordered):
                self._plan_one(one, at, len(ordered))
        except KeyboardInterrupt:
            self.left += [one.bound for _, _, one in ordered[at:]]
            raise

    def _plan_one(self, one: Candidate, at: int, number: int) -> None:
        """The planned schedules of one candidate, where they could still win."""
        slack = 1 + self.tolerance
        planned = [name for name in one.names if parse_name(name)[0] in PLANNED]
        planned.sort(key=lambda name: PLANNED.index(parse_name(name)[0]))
        if not planned or not self._open(one.bound * slack, one.choice):
            return
        if self._spent(SHARES[1]):
            self.left.append(one.bound)
            return
        self.report(f"planning, {self._so_far()}", at, number)
        tight = _tight_ns(one.profile, one.choice.microbatches)
        for name in planned:
            if self._spent(SHARES[1]):
                self.left.append(tight)
                return
            if self._open(tight * slack, one.choice):
                self._try(one._replace(bound=tight), name)

    def _solve(self) -> bool:
        """Search each row that its bound leaves room for, over all treatments; return whether Ctrl-C ended one."""
        rows = sorted(self.best.values(), key=lambda row: row.key)[: self.top]
        for at, row in enumerate(rows):
            left = SHARES[2] * self.seconds - (time.monotonic() - self.began)
            if left <= 0.2:
                break
            if row.choice.exchanges:
                continue
            self.report(f"solving, {self._so_far()}", at, len(rows))
            if row.choice.pp == 1:
                continue  # one device has nothing to order
            free = self._free(row)
            m = free.choice.microbatches
            tight = _tight_ns(free.profile, m)
            if tight * (1 + self.tolerance) >= row.iteration_ns:
                continue
            seconds = left * FIRST if at < len(rows) - 1 else left
            try:
                found = solve(
                    free.profile,
                    m,
                    engine="search",
                    chunks="own",
                    time_limit=min(SOLVE_SECONDS, seconds),
                    warm_start=free.trace.schedule if free.trace.fits else None,
                    published=False,
                    pairs=self.question.may_pair,
                    per_stage=self.question.per_stage,
                    seed=self.question.seed,
                    on_wait=self.wait,
                )
                assert found.schedule is not None
                trace = trace_of(found.schedule, free.profile, enforce=True)
            except (OutOfMemory, NoSolution, Deadlock, InvalidSchedule):
                continue
            self.solved += 1
            self._not_counted(found.info["compiling_s"])
            bound = iteration_ns(free.profile, found.lower_bound_ns)
            self._offer(replace(free, schedule="optpipe", trace=trace, bound_ns=bound))
            if found.info.get("interrupted"):
                return True
        return False

    def _free(self, row: Row) -> Row:
        """Return a row whose profile has levels of recomputation, and its schedule at the level that stands
        for what the row recomputes (which may not fit, by what is rounded). As it is, where what to
        recompute was said, or that nothing may be."""
        if set(self.question.recompute) != set(RECOMPUTE):
            return row
        choice = replace(row.choice, recompute="none")
        profile = profile_of(self.question, choice, levels=True)
        trace = replace(row.trace, fits=False)
        with suppress(OptPipeError):
            schedule = row.trace.schedule
            if row.choice.recompute != "none":
                schedule = with_level(schedule, profile, row.choice.recompute, apart=False)
            trace = trace_of(schedule, profile, parse_name(row.schedule)[0] in UNDER_LIMIT)
        return replace(row, choice=choice, profile=profile, trace=trace)

    def _memory(self) -> tuple[Bought, ...]:
        """Return what memory buys the best row, in the time that is left."""
        best = min(self.best.values(), key=lambda row: row.key)
        if best.choice.exchanges:
            return ()
        free = self._free(best)
        fitting = [row.trace for row in (free, best) if row.trace.fits]
        known = min(fitting, key=lambda trace: trace.cost_ns)
        return what_memory_buys(
            free.profile,
            known,
            free.choice.microbatches,
            self.question.limit_bytes,
            self.seconds - (time.monotonic() - self.began),
            self.question.per_stage,
            self.question.seed,
            lambda done, of: self.report(f"other limits, {self._so_far()}", done, of),
        )

    def _try(self, one: Candidate, name: str) -> None:
        try:
            name, trace = replayed(
                one.profile, one.choice.microbatches, name, self.question.per_stage
            )
        except (InvalidSchedule, OutOfMemory, NoSolution, Deadlock) as error:
            self.pruned["memory" if isinstance(error, OutOfMemory) else "shape"] += 1
            return
        tokens = self.question.global_batch * self.question.seq
        self._offer(Row(one.choice, name, one.profile, trace, one.bound, tokens))

    def _offer(self, row: Row) -> None:
        fits = row.trace.fits
        self.points.append(Point(row.iteration_ns, row.peak_bytes, row.choice, row.schedule, fits))
        known = self.best.get(row.choice.split)
        if fits and not self.best:
            self.found = time.monotonic()
        if fits and (known is None or row.key < known.key):
            self.best[row.choice.split] = row

    def _note_least(self, needed: int, choice: Choice) -> None:
        if self.least is None or needed < self.least[0]:
            self.least = needed, choice

    # -- bounds -----------------------------------------------------------------------------------

    def _worst(self) -> float:
        """Return the slowest row that would be in the answer now."""
        times = sorted(row.iteration_ns for row in self.best.values())
        return times[self.top - 1] if len(times) >= self.top else float("inf")

    def _open(self, bound: float, choice: Choice) -> bool:
        """Whether something with this bound could still be a row of the answer."""
        own = self.best.get(choice.split)
        return bound <= self._worst() and (own is None or bound <= own.iteration_ns)

    def _spent(self, share: float) -> bool:
        until = max(self.began, self.found - share * self.seconds / 2) + share * self.seconds
        until = min(until, self.began + max(share, LATEST) * self.seconds)
        return bool(self.best) and time.monotonic() > until

    def _not_counted(self, compiling_s: float) -> None:
        """Take what compiling took, once per machine, out of the search's time."""
        self.compiling_s += compiling_s
        self.began += compiling_s
        self.found += compiling_s

    def _so_far(self) -> str:
        if not self.best:
            return "none fits so far"
        return f"best {min(row.iteration_ns for row in self.best.values()) / 1e9:.3g} s"

    def _nothing(self) -> OptPipeError:
        limit = format_size(self.question.limit_bytes)
        where = f"{self.question.gpus} GPUs with {limit} each"
        if self.least is None:
            return NoSolution(f"{self.question.model.name}: no schedule fits {where}")
        needed, choice = self.least
        return OutOfMemory(
            f"{self.question.model.name} does not fit on {where}: the least that was tried,"
            f" {choice} zero {choice.zero}, {choice.recompute} recompute, needs {format_size(needed)}"
        )


def _tight_ns(profile: CostProfile, microbatches: int) -> float:
    """Return a bound on an iteration of a choice, its pairs included."""
    least = lower_bound(profile, microbatches, pairs=True)
    return iteration_ns(profile, least.ns)
