"""Comparison of many schedules on one profile: times, memory, speedup over 1F1B, optimality gap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..bounds.bounds import Bound, lower_bound
from ..errors import InvalidSchedule, NoSolution, OptPipeError, OutOfMemory, require
from ..execution import family_of
from ..frameworks.families import FAMILIES, Family
from ..frameworks.nearest import replay_unlimited
from ..names import ENTRIES, build, parse_name
from ..profile import CostProfile
from ..schedule import Schedule
from ..schedules import PLAIN, those
from ..sim import simulate_or_report
from ..solvers.starts.variants import recomputed_at
from ..solvers.treatments import require_alike, restrict
from ..trace import Trace
from ..units import Size, counted, format_sizes, format_time, html_table

# schedules that choose themselves what to recompute
CHOOSING = ("optpipe", *those(lambda entry: entry.recomputes))
# options of `optpipe` whose bounds do not hold for other rows
RESTRICTING = {"limit", "treatments", "per_stage", "margin", "pairs"}

# of schedules that share a lower bound
_Key = tuple[tuple[int, ...], int, bool, str, str]


@dataclass(frozen=True)
class Row:
    """One schedule's replay, compared with 1F1B and with the lower bound.

    Attributes:
        schedule: its name, options included.
        trace: the replay under the limit, or, if it does not fit, without the limit and marked
            ``fits = False``.
        bound: the lower bound on the time of schedules with these chunks.
        baseline: the replay of 1F1B under the same limit (without the limit if 1F1B does not fit).
        reason: why the schedule does not fit, in one line; None if it fits.
        plain: the name of the schedule without recomputation of which this is a variant; None: it
            is not a variant.
        fastest: the replay of the fastest schedule that fits; None: none does.
    """

    schedule: str
    trace: Trace
    bound: Bound
    baseline: Trace
    reason: str | None = None
    plain: str | None = None
    fastest: Trace | None = None

    def __repr__(self) -> str:
        fits = "" if self.trace.fits else ", does not fit"
        return (
            f"<Row {self.schedule}: {format_time(self.trace.iteration_ns)}, {self.speedup:.2f}x 1F1B,"
            f" peak {self.trace.peak_text}{fits}>"
        )

    @property
    def summary(self) -> str:
        """Its time, speed, peak and gap in one line."""
        fits = "" if self.trace.fits else ", does not fit"
        return (
            f"{format_time(self.trace.iteration_ns)}, {self.speedup:.2f}x 1F1B, peak {self.trace.peak_text}{fits},"
            f" at most {self.gap:.1%} above the best possible with its chunks"
        )

    def _repr_html_(self) -> str:
        """Return a small table with a picture, for notebooks."""
        rows = {"speed over 1F1B": f"{self.speedup:.2f}", "gap to the bound": f"{self.gap:.1%}"}
        return html_table(rows) + self.trace._repr_html_()

    @property
    def speedup(self) -> float:
        """Time of 1F1B over the time of this schedule."""
        return self.baseline.iteration_ns / self.trace.iteration_ns

    @property
    def gap(self) -> float:
        """The optimality gap: the time above the lower bound, as a share of the bound."""
        return (self.trace.cost_ns - self.bound.ns) / self.bound.ns

    @property
    def difference_interval(self) -> tuple[float, float] | None:
        """The interval of how much longer it takes in reality than the fastest that fits, relative to
        that, in four cases of five, by the errors of the execution on published runs; None where these
        are not known, and for the fastest itself."""
        difference = self._difference
        return None if difference is None else self.trace.profile.difference_interval(difference)

    @property
    def is_toss_up(self) -> bool:
        """Whether it may in reality be as fast as the fastest that fits."""
        difference = self._difference
        return (
            difference is not None and self.trace.fits and self.trace.profile.is_toss_up(difference)
        )

    @property
    def _difference(self) -> float | None:
        """How much longer it takes than the fastest that fits, relative to that; None for the fastest itself."""
        if self.fastest is None or self.fastest is self.trace:
            return None
        return self.trace.iteration_ns / self.fastest.iteration_ns - 1

    @property
    def levels(self) -> list[str]:
        """The levels at which it recomputes any activations."""
        return list(self.trace.schedule.levels.names)

    @property
    def fullest_device(self) -> int:
        """The device closest to its limit (or furthest above it); without limits, the one with the
        highest peak."""
        peaks = self.trace.peak_bytes
        limits = self.trace.memory_limit or (1,) * len(peaks)
        return max(range(len(peaks)), key=lambda device: peaks[device] / max(limits[device], 1))

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data; the keys are those of ``compare --json``."""
        difference = self.difference_interval
        return {
            "schedule": self.schedule,
            **self.trace.measures(),
            "chunks": self.trace.schedule.shape.chunks,
            "levels": self.levels,
            "gap": self.gap,
            "lower_bound_ns": self.bound.ns,
            "lower_bound_by": self.bound.name,
            "speedup": self.speedup,
            "difference_interval": difference and list(difference),
            "toss_up": self.is_toss_up,
            "baseline_fits": self.baseline.fits,
            "reason": self.reason,
        }


class Rows(list[Row]):
    """The rows of `compare`; they show themselves as a table."""

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'row')}: {', '.join(map(repr, self[:3]))}{', ...' * (len(self) > 3)}>"

    def _repr_html_(self) -> str:
        """Return a table with a line per row, for notebooks."""
        return html_table({row.schedule: row.summary for row in self})


@dataclass(frozen=True)
class Comparison:
    """`rows`: those that fit first, fastest first; `refused`: the other schedules, and why they
    were refused; `baseline`: the replay of 1F1B; `interrupted`: whether Ctrl-C ended it, and
    `left_out`: the schedules left then; `every_level`: whether all levels of recomputation were
    requested; `replayed`: how many schedules were, of which some may have no row."""

    rows: list[Row]
    refused: dict[str, str]
    baseline: Trace
    memory_limit: tuple[int, ...] | None = field(default=None)
    left_out: tuple[str, ...] = ()
    interrupted: bool = False
    every_level: bool = False
    replayed: int = 0

    @property
    def shown(self) -> list[Row]:
        """The best row of each schedule over its levels of recomputation: one that fits, and the
        fastest of these. All rows if treatments were requested."""
        if self.every_level:
            return self.rows
        first = {row.plain or row.schedule: row for row in reversed(self.rows)}
        return [row for row in self.rows if first[row.plain or row.schedule] is row]

    def __repr__(self) -> str:
        best = self.rows[0]
        return f"<Comparison of {len(self.rows)} schedules: best {best.schedule}, {format_time(best.trace.iteration_ns)}>"


def compare(
    profile: CostProfile,
    microbatches: int,
    schedules: Sequence[str | Schedule] | None = None,
    memory_limit: Size | Sequence[Size] | None = None,
    objective: str | None = None,
    time_limit: float = 10.0,
    treatments: Iterable[str] | None = None,
    per_stage: bool = False,
) -> Rows:
    """Compare schedules: a row per schedule, those that fit first, fastest first.

    Schedules that the profile or the number of microbatches does not admit are left out;
    `compare_all` tells which and why.

    Args:
        schedules: names (``gis:group=6``) or schedules; None: every one of the registry.
        memory_limit: bytes per device (one number, or one per device); None: the profile's own.
        objective: ``flush`` or ``span``, see `Trace.cost_ns`; None: what an iteration takes under the
            profile's execution.
        time_limit: seconds for each schedule that is found by a search (``optpipe``).
        treatments: the allowed treatments of activations, out of ``keep, offload, recompute``. With
            ``recompute`` every schedule is also compared with each level of recomputation of the
            profile; None: only schedules that do not fit, with the lightest level at which they
            fit.
        per_stage: only schedules that treat all activations of a stage alike; ``optpipe`` searches
            among these.

    Raises:
        InvalidSchedule: for an unknown name or option, or if no schedule is left to compare.
    """
    found = compare_all(
        profile, microbatches, schedules, memory_limit, objective, time_limit, treatments, per_stage
    )
    return Rows(found.rows)


def compare_all(
    profile: CostProfile,
    microbatches: int,
    schedules: Sequence[str | Schedule] | None = None,
    memory_limit: Size | Sequence[Size] | None = None,
    objective: str | None = None,
    time_limit: float = 10.0,
    treatments: Iterable[str] | None = None,
    per_stage: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    family: str | None = None,
) -> Comparison:
    """As `compare`; also returns the refused schedules and the baseline.

    Args:
        progress: called before each schedule with its name, the number done, and the total.
        family: ``megatron`` or ``torchtitan``: only schedules that this framework can run, replayed as
            it runs them: no op waits for memory. Without `schedules`, all of its family, with a row for
            each kind and number of chunks: its fastest that fits.

    Ctrl-C ends it with the rows so far; it is raised if there are none yet.
    """
    require("profile", profile, CostProfile, "read one with load_profile(PATH)")
    if isinstance(schedules, str):
        raise OptPipeError(f"schedules: expected a list of names, got {schedules!r}")
    if family is not None and family not in FAMILIES:
        raise OptPipeError(f"family: expected one of {', '.join(FAMILIES)}, got {family!r}")
    own = None if family is None else FAMILIES[family]
    limits = profile.limits(memory_limit)
    treatments = None if treatments is None else tuple(treatments)
    profile = restrict(profile, treatments)
    profile = replace(profile, memory_limit=limits)  # the limit for which schedules plan
    wanted = _everything(profile, microbatches, own) if schedules is None else list(schedules)
    for name in wanted:
        if isinstance(name, str):
            parse_name(name)
    run = _Run(profile, microbatches, objective, time_limit, own, per_stage)
    baseline, _ = run.replay(build(PLAIN, profile, microbatches))
    names = list(dict.fromkeys(map(_name_of, wanted)))
    interrupted = False
    try:
        for done, entry in enumerate(wanted):
            if progress:
                progress(_name_of(entry), done, len(wanted))
            if run.add(entry):
                interrupted = True
                break
            if treatments is None:
                run.add_lightest(entry)
            elif "recompute" in treatments:
                run.add_levels(entry)
    except KeyboardInterrupt:
        if not run.found:
            raise
        interrupted = True
    if not run.found:
        name, reason = next(iter(run.refused.items()), ("schedules", "none were given"))
        raise InvalidSchedule(reason if reason.startswith(f"{name}: ") else f"{name}: {reason}")
    rows = run.rows(baseline)
    if own is not None and schedules is None:
        rows = list({own.kind(row.schedule): row for row in reversed(rows)}.values())[::-1]
        rows.sort(key=_by_time)
    left_out = tuple(name for name in names if name not in (*run.found, *run.refused))
    every = treatments is not None
    count = len(run.found)
    return Comparison(rows, run.refused, baseline, limits, left_out, interrupted, every, count)


def _everything(profile: CostProfile, microbatches: int, family: Family | None) -> list[str]:
    """Return every name of a family, or of the registry; those over slices only if the profile has slices."""
    if family is not None and family.names is not None:
        return list(family.names(profile, microbatches))
    if family is not None:
        names = (name for name, entry in ENTRIES.items() if not entry.sliced and name != "optpipe")
        return [*names, "optpipe:treatments=keep"]
    if profile.slices == 1:
        return [name for name, entry in ENTRIES.items() if not entry.sliced]
    over_slices = [
        f"{name}:slices={profile.slices}"
        for name in those(lambda entry: "slices" in entry.options and not entry.sliced)
    ]
    return [*ENTRIES, *over_slices]


class _Run:
    """A running comparison, schedule by schedule."""

    def __init__(
        self,
        profile: CostProfile,
        microbatches: int,
        objective: str | None,
        time_limit: float,
        family: Family | None,
        per_stage: bool,
    ) -> None:
        self.profile, self.microbatches, self.family = profile, microbatches, family
        self.objective, self.per_stage = objective, per_stage
        # of searches, unless their names say otherwise
        self.search = {"objective": objective, "time_limit": time_limit, "per_stage": per_stage}
        self.found: dict[str, tuple[Trace, _Key, str | None]] = {}
        self.refused: dict[str, str] = {}
        self.plain: dict[str, str] = {}  # for names with a level, the name without it
        names = profile.level_names
        known = names if family is None else family.levels(profile)
        self.levels = [name for name in names if name in known]
        self.bounds: dict[_Key, Bound] = {}

    def add(self, entry: str | Schedule) -> bool:
        """Replay a schedule unless it has been; return whether Ctrl-C has ended the search for it."""
        name, microbatches = _name_of(entry), self.microbatches
        if name in self.refused or name in self.found:
            return False
        try:
            schedule = (
                _build(entry, self.profile, microbatches, self.search)
                if isinstance(entry, str)
                else entry
            )
            if schedule.shape.microbatches != microbatches:
                raise InvalidSchedule(f"is for {schedule.shape.microbatches} microbatches")
            reason = self.family and self.family.refusal(schedule, self.profile)
            if reason:
                raise InvalidSchedule(reason)
            if self.per_stage:
                require_alike(schedule)
            trace, reason = self.replay(schedule)
        except (InvalidSchedule, OutOfMemory, NoSolution) as error:
            self.refused[name] = str(error)
            return False
        # A replay without the limit is compared with the bound without the limit.
        costs = trace.profile
        family = family_of(costs.chunks, schedule.issued_split)
        key = (costs.placement, costs.slices, trace.fits, family, trace.objective)
        if key not in self.bounds:
            free = trace.profile if trace.fits else replace(trace.profile, memory_limit=None)
            # all that the profile admits: pairs, too, although this schedule may have none
            self.bounds[key] = lower_bound(free, microbatches, objective=trace.objective)
        given = self.profile.for_shape(schedule.shape)
        if given.may_pair(splits=True) or not costs.may_pair(splits=True):
            self.bounds[key] = max(self.bounds[key], _proven(entry, schedule, trace.objective))
        self.found[name] = (trace, key, reason)
        return isinstance(entry, str) and bool(schedule.meta.get("interrupted"))

    def add_levels(self, entry: str | Schedule) -> None:
        """Add a named schedule with each level of recomputation that it admits."""
        for level in self.levels:
            self._add_level(entry, level)

    def add_lightest(self, entry: str | Schedule) -> None:
        """Add a named schedule that does not fit with the level at which it fits that takes the least time.

        All levels are tried in turn: one that more is dropped at may hold more on some device, where other stages
        lack it (``full-75%`` is of the stages whose layers divide so), or recompute more at once.
        """
        known = self.found.get(_name_of(entry))
        if known is not None and known[0].fits:
            return
        for level in sorted(self.levels, key=self._recomputing_ns):
            if self._add_level(entry, level):
                return

    def _recomputing_ns(self, level: str) -> int:
        """Return what recomputing a microbatch at a level takes on all stages together."""
        found = (cost.level(level) for cost in self.profile.stages)
        return sum(one.t_ns for one in found if one is not None)

    def _add_level(self, entry: str | Schedule, level: str) -> bool:
        """Replay a schedule with a level; returns whether it fits. Schedules that admit no levels
        are left out."""
        if not isinstance(entry, str):
            return False
        base, options = parse_name(entry)
        if base in CHOOSING or "recompute" in options or "tuned" in options:
            return False
        name = recomputed_at(entry, level)
        self.plain[name] = entry
        self.add(name)
        self.refused.pop(name, None)
        return name in self.found and self.found[name][0].fits

    def rows(self, baseline: Trace) -> list[Row]:
        """Return the rows, those that fit first, fastest first."""
        fitting = [trace for trace, _, _ in self.found.values() if trace.fits]
        fastest = min(fitting, key=lambda trace: trace.iteration_ns, default=None)
        rows = [
            Row(name, trace, self.bounds[key], baseline, why, self.plain.get(name), fastest)
            for name, (trace, key, why) in self.found.items()
        ]
        return sorted(rows, key=_by_time)

    def replay(self, schedule: Schedule) -> tuple[Trace, str | None]:
        """Replay a schedule, and say why it does not fit; in a family no op waits for memory."""
        if self.family is None:
            return simulate_or_report(schedule, self.profile, objective=self.objective)
        trace = replay_unlimited(schedule, self.profile)
        trace = replace(trace, objective=self.objective or trace.objective)
        if trace.fits:
            return trace, None
        peaks, limits = trace.peak_bytes, trace.memory_limit or trace.peak_bytes
        worst = max(range(len(peaks)), key=lambda device: peaks[device] - limits[device])
        peak, limit = format_sizes(peaks[worst], limits[worst])
        return trace, f"device {worst} peaks at {peak}, above its limit of {limit}"


def _by_time(row: Row) -> tuple[bool, int, str]:
    """Return what fits first, then the fastest."""
    return not row.trace.fits, row.trace.cost_ns, row.schedule


def _build(
    name: str, profile: CostProfile, microbatches: int, defaults: Mapping[str, Any]
) -> Schedule:
    """Build a schedule by name; for one that is found by a search, fill in the options missing in
    the name."""
    base, options = parse_name(name)
    if base != "optpipe":
        return build(name, profile, microbatches)
    return build(name, profile, microbatches, **{**defaults, **options})


def _proven(name: str | Schedule, schedule: Schedule, objective: str) -> Bound:
    """Return the bound that the search for a schedule has proven under this limit and objective; none where
    its name restricts it to fewer schedules than are compared."""
    if not isinstance(name, str) or RESTRICTING & parse_name(name)[1].keys():
        return Bound(0, "")
    same = schedule.meta.get("objective") == objective
    return Bound(schedule.meta["lower_bound_ns"], schedule.meta["bound"]) if same else Bound(0, "")


def _name_of(entry: str | Schedule) -> str:
    return entry if isinstance(entry, str) else entry.name
