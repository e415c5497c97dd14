"""AdaOffload with every treatment: keep, offload, recompute at any level, per activation.

The paper's greedy decides when to offload; which activations are recomputed, and how much of them,
is given to it (`runs.Problem`), and chosen here by trying. This is an extension of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from . import state
from .adaoffload import CHUNKED, LEAST_RUNS, MOST_WORK, SETTINGS, adaoffload, host_holds
from .runs import Greedy, Problem, Setting

SHARES = tuple(
    Fraction(part, 8) for part in (2, 4, 6, 8)
)  # of a stage's microbatches, to begin with
STEPS = tuple(Fraction(part, 8) for part in (2, -2, 1, -1))  # by which a stage's share then changes
FEW = 4  # settings that a choice of levels is tried with
STARTS = 8  # mixes that are the same for all stages and then changed stage by stage
EFFORT = 16  # times as many runs as AdaOffload


class Part(NamedTuple):
    """The level of a share of a stage's microbatches, evenly spread, and of the others: by their
    places among the stage's levels, from 1; 0: kept whole."""

    share: Fraction
    level: int
    other: int


Mix = tuple[Part, ...]  # one per stage


def table_of(mix: Mix, profile: CostProfile, microbatches: int) -> np.ndarray:
    """(S, m) the level of each activation; a stage has none beyond its last."""
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
    limit: int | Sequence[int] | None = None,
    chunks: int | None = None,
    objective: str = "flush",
) -> Schedule:
    """AdaOffload where activations may also be recomputed, each at its own level, inside backwards.

    Pairs of levels (no recomputation counts as one) are tried, at first with the same share of each
    stage's microbatches at the heavier one; then the shares of single stages grow or shrink as long
    as that makes the iteration shorter, or as short with less to recompute. AdaOffload's greedy
    offloads of what is left whatever memory asks for. So copies are used where they hide,
    recomputation where they do not. At p = 4, m = 6, cells of 1, copies of 10, a level that
    recomputes all in 1, room for two activations::

        0 F0  F1  F2  F3  F4  F5  .   BW0         BW1         .   .   BW2         BW3         .   .   BW4         BW5
        1 .   F0  F1  .   .   .   B0  W0  B1  F2  W1  F3  .   .   B2  W2  B3  F4  W3  F5  .   .   B4  W4  B5  W5  .   .   .
        2 .   .   F0  F1  .   B0  W0  B1  W1  .   F2  .   F3  B2  W2  B3  W3  .   F4  .   F5  B4  W4  B5  W5  .   .   .   .
        3 .   .   .   F0  B0  F1  B1  W0  W1  .   .   F2  B2  F3  B3  W2  W3  .   .   F4  B4  F5  B5  W4  W5  .   .   .   .

    Args:
        profile: with its own chunks and placement, unless `chunks` is given; the offload section
            may be absent. Without levels this is `adaoffload`.
        microbatches: m.
        limit: bytes per device, static included: one number, or one per device. None: the
            profile's own; without one everything is kept.
        chunks: re-chunk the profile to so many per device, placed in a loop.
        objective: ``flush`` (makespan) or ``span``.

    Raises:
        OutOfMemory, NoSolution, InvalidSchedule: as `adaoffload`.

    Source: OptPipe's greedy (arXiv 2510.05186) as in `adaoffload`; recomputation is ours.
    """
    if chunks is not None:
        profile = profile.rechunk(chunks)
    limits = profile.limits(limit)
    plain = profile.map_stages(lambda _, cost: replace(cost, recompute=()))
    if limits is None or not profile.has_levels or objective not in OBJECTIVES:
        return adaoffload(plain, microbatches, limits, None, objective)
    require_limit(profile, limits)
    search = _Search(profile, microbatches, limits, objective)
    search.run()
    found = []
    if search.best is not None and search.best.levels.any():
        schedule = search.best.schedule(microbatches)
        schedule.meta["setting"] = search.best.setting._asdict()
        if not search.best.offloads or host_holds(schedule, profile, limits):
            found.append(schedule)
    try:
        found.append(adaoffload(plain, microbatches, limits, None, objective))
    except (OutOfMemory, NoSolution):
        if not found:
            raise

    def cost_ns(schedule: Schedule) -> int:
        return simulate(schedule, profile, limits, objective=objective).cost_ns

    return min(found, key=cost_ns) if len(found) > 1 else found[0]


class _Tried(NamedTuple):
    """What a mix costs with its best setting, and how long it recomputes (ns)."""

    cost_ns: int
    recomputing_ns: int
    setting: Setting


class _Search:
    """Mixes tried one after the other; `best` is the run that costs least, and of these the one
    that recomputes least."""

    def __init__(
        self, profile: CostProfile, microbatches: int, limits: Sequence[int], objective: str
    ) -> None:
        self.profile, self.microbatches = profile, microbatches
        self.limits, self.objective = limits, objective
        self.settings = SETTINGS if profile.chunks == 1 else CHUNKED
        self.runs = EFFORT * max(LEAST_RUNS, MOST_WORK // (len(profile.stages) * microbatches))
        self.best: Greedy | None = None
        self.least = state.FOREVER, 0
        self.tried: dict[Mix, _Tried | None] = {}

    def run(self) -> None:
        """The same for all stages at first; then changes of single stages of the best few of these;
        in the end the best mix with every setting."""
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
        """Pairs of levels with each share of the heavier one."""
        most = max(len(cost.recompute) for cost in self.profile.stages)
        pairs = combinations(range(most + 1), 2)
        mixed = [Part(share, level, other) for other, level in pairs for share in SHARES]
        return [Part(Fraction(0), 0, 0), *mixed]

    def _try(self, mix: Mix, settings: Sequence[Setting]) -> _Tried | None:
        """Run a mix; None where no setting comes to an end, or no runs are left."""
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
                self.runs -= 1
                found = problem.play(setting)
                if found is None:
                    continue
                tried = _Tried(found.cost_ns(self.objective), recomputing_ns, setting)
                least = min(least or tried, tried)
                if tried[:2] < self.least:
                    self.best, self.least = found, tried[:2]
        self.tried[mix] = least
        return least

    def _climb(self, mix: Mix) -> None:
        """Change one stage after the other, as long as one becomes better for it."""
        known, better = self.tried[mix], True
        while better and known is not None and self.runs > 0:
            better = False
            for s in range(len(mix)):
                for part in self._near(mix[s]):
                    changed = (*mix[:s], part, *mix[s + 1 :])
                    if changed in self.tried:
                        continue
                    tried = self._try(changed, [known.setting])
                    if tried is not None and tried[:2] < known[:2]:
                        mix, known, better = changed, tried, True

    def _near(self, part: Part) -> list[Part]:
        """A little more or less of the heavier level, or other levels in these shares."""
        share, level, other = part
        shares = [share + step for step in STEPS if 0 <= share + step <= 1]
        shares += [Fraction(0), Fraction(1)]  # on the way more working memory is set aside
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
