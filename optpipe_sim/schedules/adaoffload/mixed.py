"""AdaOffload with every treatment: keep, offload, recompute at any level, per activation.

The paper's greedy decides when to offload. Which activations are recomputed, and at which level, is
an input to it (`runs.Problem`) that is chosen here by trial. This is our extension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ...errors import NoSolution, OutOfMemory
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim import require_limit, simulate
from ...trace import OBJECTIVES
from ...units import Size
from . import progress
from .adaoffload import CHUNKED, LEAST_RUNS, MOST_WORK, SETTINGS, adaoffload, host_holds, rechunked
from .apart import apart_where_faster
from .runs import Greedy, Problem, Setting
from .waves import Wave, play

SHARES = tuple(
    Fraction(part, 8) for part in (2, 4, 6, 8)
)  # initial shares of a stage's microbatches
STEPS = tuple(Fraction(part, 8) for part in (2, -2, 1, -1))  # by which a stage's share then changes
FEW = 4  # settings with which a choice of levels is tried
STARTS = 8  # uniform mixes that are then changed stage by stage
EFFORT = 16  # times as many runs as AdaOffload


class Part(NamedTuple):
    """The level of a share of a stage's microbatches, evenly spread, and the level of the others:
    numbers among the stage's levels, from 1; 0: kept whole."""

    share: Fraction
    level: int
    other: int


Mix = tuple[Part, ...]  # one per stage


def table_of(mix: Mix, profile: CostProfile, microbatches: int) -> np.ndarray:
    """Return (S, m) the level of each activation; a stage with fewer levels uses its last one."""
    at = np.arange(microbatches + 1)
    rows = []
    for cost, (share, level, other) in zip(profile.stages, mix, strict=True):
        begun = at * share.numerator // share.denominator
        chosen = np.where(np.diff(begun) > 0, level, other)
        rows.append(np.minimum(chosen, len(cost.recompute)))
    return np.array(rows, np.int64)


def mixed(
    profile: CostProfile,
    microbatches: int,
    limit: Size | Sequence[Size] | None = None,
    chunks: int | None = None,
    objective: str = "flush",
    placement: str | None = None,
    over: Callable[[], bool] = lambda: False,
) -> Schedule:
    """Run AdaOffload with activations that may also be recomputed, each at its own level, inside
    backwards or by ops C of their own.

    Pairs of levels (no recomputation counts as one) are tried, at first with the same share of each
    stage's microbatches at the heavier level; then the shares of single stages grow or shrink as
    long as that shortens the iteration, or reduces recomputation at the same time. AdaOffload's
    greedy offloads of the rest whatever the memory limit requires. So copies are used if they can
    be hidden, and recomputation if they cannot. Finally recomputations move out of their
    backwards where a device would wait, see `apart`. At p = 4, m = 6, cells of 1, copies of 10, a level
    that recomputes all in 1, room for two activations::

        0 F0  F1  F2  F3  F4  F5  C0  BW0     BW1         C2  .   .   BW2     BW3         C4  C5  .   BW4     BW5
        1 .   F0  F1  .   .   .   B0  W0  B1  F2  W1  F3  .   .   B2  W2  B3  F4  W3  F5  .   .   B4  W4  B5  W5  .
        2 .   .   F0  F1  .   B0  W0  B1  W1  .   F2  .   F3  B2  W2  B3  W3  .   F4  .   F5  B4  W4  B5  W5  .   .
        3 .   .   .   F0  B0  F1  B1  W0  W1  .   .   F2  B2  F3  B3  W2  W3  .   .   F4  B4  F5  B5  W4  W5  .   .

    Args:
        profile: with its own chunks and placement, unless `chunks` is given; the offload section
            may be absent. Without levels this is `adaoffload`.
        microbatches: m.
        limit: bytes per device, static included: one number, or one per device. None: the profile's
            own; without a limit everything is kept. chunks, placement: re-chunk the profile, see
            `adaoffload.rechunked`.
        objective: ``flush`` (makespan) or ``span``. over: asked before every run; tells whether the time is up.

    Raises:
        OutOfMemory, NoSolution, InvalidSchedule: as `adaoffload`.

    Source: OptPipe's greedy (arXiv 2510.05186) as in `adaoffload`; recomputation is ours.
    """
    profile = rechunked(profile, chunks, placement)
    limits = profile.limits(limit, "limit")
    plain = profile.map_stages(lambda _, cost: replace(cost, recompute=()))
    if limits is None or not profile.has_levels or objective not in OBJECTIVES:
        return adaoffload(plain, microbatches, limits, None, objective, over=over)
    require_limit(profile, limits)
    search = _Search(profile, microbatches, limits, objective, over)
    search.run()
    found = []
    if search.best is not None and search.best.levels.any():
        schedule = search.best.schedule(microbatches)
        schedule.meta["setting"] = search.best.setting._asdict()
        if not search.best.offloads or host_holds(schedule, profile, limits):
            apart = apart_where_faster(schedule, profile, limits, objective)
            found.append(apart if host_holds(apart, profile, limits) else schedule)
    try:
        found.append(adaoffload(plain, microbatches, limits, None, objective, over=over))
    except (OutOfMemory, NoSolution):
        if not found:
            raise

    def cost_ns(schedule: Schedule) -> int:
        return simulate(schedule, profile, limits, objective=objective).cost_ns

    return min(found, key=cost_ns) if len(found) > 1 else found[0]


class _Tried(NamedTuple):
    """The cost of a mix with its best setting, and its total recomputation time (ns)."""

    cost_ns: int
    recomputing_ns: int
    setting: Setting | Wave


class _Search:
    """A search over mixes; `best` is the run with the least cost, and of equal ones the one that
    recomputes least."""

    def __init__(
        self,
        profile: CostProfile,
        microbatches: int,
        limits: Sequence[int],
        objective: str,
        over: Callable[[], bool],
    ) -> None:
        self.profile, self.microbatches = profile, microbatches
        self.limits, self.objective, self.over = limits, objective, over
        self.settings: Sequence[Setting | Wave] = SETTINGS if profile.chunks == 1 else CHUNKED
        self.runs = EFFORT * max(LEAST_RUNS, MOST_WORK // (len(profile.stages) * microbatches))
        self.best: Greedy | None = None
        self.least = progress.FOREVER, 0
        self.tried: dict[Mix, _Tried | None] = {}

    def run(self) -> None:
        """Try uniform mixes; then change single stages of the best few; finally run the best mix
        with every setting."""
        count = len(self.profile.stages)
        uniform = [(part,) * count for part in self._parts()]
        found = {mix: self._try(mix, self.settings[:FEW]) for mix in uniform}
        known = [mix for mix in uniform if found[mix] is not None]
        for mix in sorted(known, key=lambda mix: found[mix] or ())[:STARTS]:
            self._climb(mix)
        if self.best is not None:
            best = min(
                (mix for mix, tried in self.tried.items() if tried),
                key=lambda mix: self.tried[mix] or (),
            )
            self.runs = len(self.settings)
            self._try(best, self.settings)

    def _parts(self) -> list[Part]:
        """Yield pairs of levels with each share of the heavier one."""
        most = max(len(cost.recompute) for cost in self.profile.stages)
        pairs = combinations(range(most + 1), 2)
        mixed = [Part(share, level, other) for other, level in pairs for share in SHARES]
        return [Part(Fraction(0), 0, 0), *mixed]

    def _try(
        self, mix: Mix, settings: Sequence[Setting | Wave], stop_ns: int = progress.FOREVER
    ) -> _Tried | None:
        """Run a mix; None if no setting completes by `stop_ns`, or no runs are left."""
        levels = table_of(mix, self.profile, self.microbatches)
        recomputing_ns = sum(
            int((levels[s] == number).sum()) * level.t_ns
            for s, cost in enumerate(self.profile.stages)
            for number, level in enumerate(cost.recompute, 1)
        )
        least: _Tried | None = None
        with suppress(NoSolution):
            problem = Problem(self.profile, self.microbatches, self.limits, levels=levels)
            for setting in settings[: max(0, self.runs)]:
                if self.over():
                    break
                self.runs -= 1
                found = play(
                    problem, setting, stop_ns if self.objective == "flush" else progress.FOREVER
                )
                if found is None:
                    continue
                tried = _Tried(found.cost_ns(self.objective), recomputing_ns, setting)
                least = min(least or tried, tried)
                stop_ns = min(stop_ns, tried.cost_ns)
                if tried[:2] < self.least:
                    self.best, self.least = found, tried[:2]
        self.tried[mix] = least
        return least

    def _climb(self, mix: Mix) -> None:
        """Change one stage after the other, as long as that improves the mix."""
        known, better = self.tried[mix], True
        while better and known is not None and self.runs > 0 and not self.over():
            better = False
            for s in range(len(mix)):
                for part in self._near(mix[s]):
                    changed = (*mix[:s], part, *mix[s + 1 :])
                    if changed in self.tried:
                        continue
                    tried = self._try(changed, [known.setting], known.cost_ns)
                    if tried is not None and tried[:2] < known[:2]:
                        mix, known, better = changed, tried, True

    def _near(self, part: Part) -> list[Part]:
        """Yield neighbours: a little more or less of the heavier level, or other levels in the same
        shares."""
        share, level, other = part
        shares = [share + step for step in STEPS if 0 <= share + step <= 1]
        shares += [Fraction(0), Fraction(1)]  # intermediate steps reserve more working memory
        most = max(len(cost.recompute) for cost in self.profile.stages)
        pairs = [pair for pair in combinations(range(most + 1), 2) if pair != (other, level)]
        return [
            *(Part(one, level, other) for one in shares),
            *(
                Part(share, two, one)
                for one, two in pairs
                if abs(one - other) + abs(two - level) < 2
            ),
        ]
