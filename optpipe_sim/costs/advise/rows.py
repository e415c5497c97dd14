"""What `advise` answers: rows, what limits each, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

from ...profile import CostProfile
from ...schedules import those
from ...solvers.plain import PlainPlan
from ...solvers.steady import MOST_OPS, MOST_PLANS, standings, steadiest, toss_up
from ...trace import Trace
from ...units import counted, format_size, format_time, html_table
from ..calibrate import MEMORY, Calibration
from ..doubt import Doubt, between_layouts, caution, doubt, kind_of, plausibility
from ..provenance import iteration_ns, mfu
from .other_limits import Bought
from .replay import peak_of, profile_of
from .space import Choice, Question

# Median error of memory on measured rows that no rate was fitted to (results/costs_tables.md: Zero
# Bubble's table 4, PipeOffload's figure 15).
MEMORY_ERROR = 0.025
MFU_COUNTS = (
    "model FLOPs over the peak of the format; every attention score counts (mfu) or the causal half"
    " (mfu_causal); recomputation does not"
)
ROOM = 0.05  # of the memory: what a plan leaves free that is not refused for the error of its prediction
COMMON = those(lambda entry: entry.common)
LOSS = 0.05  # share of an iteration; smaller losses are not reported as its limit
LIMITS = {  # the causes of the parts of an iteration
    "bubble": ("bubble", "imbalance"),
    "communication": ("collectives", "messages", "gradients"),
    "memory": ("recompute", "waiting for memory"),
    "copies": ("reloads",),
}


class Point(NamedTuple):
    """A configuration that was replayed, for the figure."""

    iteration_ns: float
    peak_bytes: int
    choice: Choice
    schedule: str
    fits: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data, of one that fits."""
        return {
            **asdict(self.choice),
            "schedule": self.schedule,
            "iteration_ns": round(self.iteration_ns),
            "peak_bytes": self.peak_bytes,
        }


class Steady(NamedTuple):
    """The plan to run, out of some whose difference is a toss-up: how far it is behind the fastest of them, as a
    share, in the mean of some draws of costs that may be off, and how far the best row is."""

    row: Row
    regret: float
    regret_of_best: float
    plans: int
    draws: int


@dataclass(frozen=True)
class Row:
    """A configuration that fits.

    Attributes:
        choice, schedule: the split with its chunks; the schedule's name.
        profile, trace: its costs, under the limit; the replay.
        bound_ns: no schedule with this profile has a shorter iteration.
        tokens: of an iteration, over all replicas.
    """

    choice: Choice
    schedule: str
    profile: CostProfile = field(repr=False)
    trace: Trace = field(repr=False)
    bound_ns: float
    tokens: int

    def __repr__(self) -> str:
        return (
            f"<Row {self.choice}, {self.schedule}: {format_time(self.iteration_ns)},"
            f" MFU {self.mfu_causal:.1%} (causal), peak {format_size(self.peak_bytes)}>"
        )

    def _repr_html_(self) -> str:
        """Return a small table with a picture, for notebooks."""
        rows = {
            "split": self.choice,
            "time per iteration": format_time(self.iteration_ns),
            "tokens/s": f"{self.tokens_per_s:,.0f}",
            "MFU, causal": f"{self.mfu_causal:.1%}",
        }
        return html_table(rows) + self.trace._repr_html_()

    @cached_property
    def iteration_ns(self) -> float:
        """The schedule, what lies between ops, gradients and update."""
        return iteration_ns(self.profile, self.trace.cost_ns)

    @property
    def key(self) -> tuple[float, int, str]:
        """The sort key: time, then memory."""
        return self.iteration_ns, self.peak_bytes, f"{self.choice} {self.schedule}"

    @cached_property
    def peak_bytes(self) -> int:
        """Of the fullest device, the optimizer's step included."""
        return peak_of(self.trace)

    @property
    def treatment(self) -> str:
        """The treatment of activations: what the choice recomputes, and the shares that the schedule
        recomputes at levels and offloads."""
        trace, found = self.trace, []
        activations = trace.schedule.shape.activations
        if not trace.recomputed:
            found.append(self.choice.recompute)
        else:
            found.append(f"{trace.recomputed / activations:.0%}")
        if trace.offloaded:
            found.append(f"{trace.offloaded / activations:.0%} offloaded")
        return ", ".join(found)

    @property
    def tokens_per_s(self) -> float:
        """Over all GPUs."""
        return self.tokens / (self.iteration_ns * 1e-9)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, every score counted: see `provenance.mfu`."""
        return mfu(self.profile, self.iteration_ns, self.choice.microbatches)

    @property
    def mfu_causal(self) -> float:
        """The same with the causal half of the scores counted."""
        return mfu(self.profile, self.iteration_ns, self.choice.microbatches, causal=True)

    @property
    def gap(self) -> float:
        """The most that another schedule of this profile could shorten the iteration, as a share."""
        return 1 - self.bound_ns / self.iteration_ns

    def to_json(self, advice: Advice) -> dict[str, Any]:
        """Plain data; the keys of ``advise --json``."""
        parts, interval = advice.parts(self), self.trace.iteration_interval_ns
        difference = advice.difference_interval(self)
        return {
            **asdict(self.choice),
            "schedule": self.schedule,
            "levels": list(self.trace.schedule.levels.names),
            "offloaded": self.trace.offloaded,
            "recomputed": self.trace.recomputed,
            "iteration_ns": round(self.iteration_ns),
            "iteration_interval_ns": interval and list(interval),
            "difference_interval": difference and list(difference),
            "toss_up": advice.is_toss_up(self),
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "mfu_causal": self.mfu_causal,
            "plausible": advice.plausibility(self)[0],
            "peak_bytes": self.peak_bytes,
            "layers_per_stage": [cost.layers for cost in self.profile.stages],
            "bound_ns": round(self.bound_ns),
            "parts": parts,
            "limited_by": limited_by(parts),
            "doubt": advice.doubt(self).to_json(),
            "doubts": advice.doubts(self),
            "warnings": self.profile.meta.get("warnings", []),
        }


@dataclass(frozen=True)
class Advice:
    """The answer.

    Attributes:
        rows: the best configuration of each of the best splits, fastest first.
        searched: configurations replayed. `solved`: of those, by a search of its own.
        pruned: why others were not, and how many: ``memory`` (the least they need is above the
            limit), ``bound`` (no schedule can make them fast enough), ``shape`` (not admitted).
        unsearched: configurations that time did not allow to search further.
        hope_ns: a lower bound on their iteration times (None if none are left).
        seconds: what it took.
        points: everything replayed, fitting or not.
        calibration: what the machine's rates were fitted to for this question, if anything.
        interrupted: Ctrl-C has ended the search.
        memory: the time of the best row under other limits, the question's own among them; empty if
            no schedule is searched for, or there was no time.
        compiling_s: what compiling took, once, beside `seconds`.
    """

    question: Question = field(repr=False)
    rows: tuple[Row, ...]
    searched: int
    solved: int
    pruned: dict[str, int]
    unsearched: int
    hope_ns: float | None
    seconds: float
    points: tuple[Point, ...] = field(repr=False)
    calibration: Calibration | None = field(default=None, repr=False)
    interrupted: bool = False
    memory: tuple[Bought, ...] = ()
    compiling_s: float = 0.0

    def __repr__(self) -> str:
        question = self.question
        what = f"{question.model.name} on {question.gpus} x {question.machine.name}"
        strange = ", not plausible" * (self.plausibility(self.rows[0])[0] is False)
        return f"<Advice {what}: {len(self.rows)} rows, best {self.rows[0]!r}{strange}>"

    def _repr_html_(self) -> str:
        """Return the rows as a table, the best as a picture, for notebooks."""
        rows = {}
        for at, row in enumerate(self.rows, 1):
            time, size = format_time(row.iteration_ns), format_size(row.peak_bytes)
            what = f"{time}, MFU {row.mfu_causal:.1%} (causal), {size}"
            rows[f"{at}. {row.choice}, {row.schedule}"] = what
        rows |= {"how sure": self.basis, "doubts": "; ".join(self.doubts(self.rows[0])) or "none"}
        return html_table(rows) + self.rows[0]._repr_html_()

    @property
    def error(self) -> float | None:
        """The relative error of the best row's time; None where nothing comparable was measured."""
        return self.doubt(self.rows[0]).error

    @property
    def basis(self) -> str:
        """The basis of that error, or what is missing."""
        return self.doubt(self.rows[0]).basis

    @property
    def plainest(self) -> Point | None:
        """The fastest that fits under a published schedule that frameworks have, neither planned nor
        searched for; None if none fits."""
        plain = [p for p in self.points if p.fits and p.schedule in COMMON]
        return min(plain, key=lambda point: point[:2], default=None)

    @cached_property
    def steady(self) -> Steady | None:
        """Which of the rows whose difference to the best is a toss-up is least behind where costs are off; None
        where none is."""
        most = self.rows[0].iteration_ns * (1 + self.between)
        near = [row for row in self.rows if row.iteration_ns <= most][: 1 + MOST_PLANS]
        if len(near) == 1 or sum(len(row.trace.schedule) for row in near) > MOST_OPS:
            return None
        plans = [PlainPlan(_fanciness(row), str(at), row.trace) for at, row in enumerate(near)]
        found, draws = standings(plans, [row.profile for row in near], between=self.between)
        one = steadiest(found, near[0].trace.memory_limit)
        return Steady(near[int(one.plan.name)], one.regret, found[0].regret, len(near), draws)

    def fills_memory(self, row: Row) -> bool:
        """Whether a row fills its memory to within the usual error of its prediction."""
        return _near(row.peak_bytes, self.question.machine.usable_bytes)

    @property
    def near_limit(self) -> bool:
        """Whether the best row does."""
        return self.fills_memory(self.rows[0])

    @property
    def with_room(self) -> Point | None:
        """The fastest that was replayed and leaves `ROOM` of the memory free; None if none does."""
        most = self.question.machine.usable_bytes * (1 - ROOM)
        free = [point for point in self.points if point.fits and point.peak_bytes <= most]
        return min(free, key=lambda point: point[:2], default=None)

    @property
    def roomy(self) -> Point | None:
        """`with_room` where the best row is near the limit, else None."""
        return self.with_room if self.near_limit else None

    @property
    def by_slices(self) -> dict[int, Point]:
        """The fastest that was replayed and fits with each number of slices; one that bounds rule out for the
        rows is not replayed, so a number may do a little better than this, but not better than the rows."""
        found: dict[int, Point] = {}
        for point in sorted((one for one in self.points if one.fits), key=lambda one: one[:2]):
            found.setdefault(point.choice.slices, point)
        return dict(sorted(found.items()))

    def parts(self, row: Row) -> dict[str, float]:
        """Return the iteration's device time by cause, as shares that add up to 1."""
        return _parts(row, self.question)

    def doubt(self, row: Row) -> Doubt:
        """Return the error of measured runs that are comparable with this row."""
        if self.calibration is not None:
            return _of_calibration(self.calibration)
        question, choice = self.question, row.choice
        layout = question.layout(choice)
        imbalance = row.profile.meta["work"].get("imbalance", 1.0)
        work = replace(question.work_of(choice).on(layout), imbalance=imbalance)
        return doubt(
            question.model,
            question.machine,
            layout,
            work,
            offloads=bool(row.trace.offloaded),
        )

    def plausibility(self, row: Row) -> tuple[bool | None, str]:
        """Whether some published run reached the row's MFU, and which; None where none is known."""
        question = self.question
        return plausibility(
            question.machine, kind_of(question.model), question.work.dtype, row.mfu_causal
        )

    @property
    def between(self) -> float:
        """By how much the difference between two rows may be off, in four cases of five: by the errors of differences between layouts
        and of those between schedules, whichever is larger."""
        return max(toss_up(self.rows[0].trace), between_layouts())

    def difference_interval(self, row: Row) -> tuple[float, float] | None:
        """Return the interval of how much longer a row takes in reality than the best, relative to that, in four cases of five; None for
        the best itself."""
        if row is self.rows[0]:
            return None
        difference = row.iteration_ns / self.rows[0].iteration_ns - 1
        return difference - self.between, difference + self.between

    def is_toss_up(self, row: Row) -> bool:
        """Whether a row may in reality be as fast as the best."""
        interval = self.difference_interval(row)
        return interval is not None and interval[0] <= 0

    def doubts(self, row: Row) -> list[str]:
        """Return what makes this row less certain than the others, and whether it is plausible at all."""
        machine, choice = self.question.machine, row.choice
        plausible, reason = self.plausibility(row)
        known = self.doubt(row)
        text = caution(known.error, known.bias)
        found = [text] if text else []
        if plausible is not True:
            found.append(reason if plausible is None else f"not plausible: {reason}")
        if _near(row.peak_bytes, machine.usable_bytes):
            found.append(f"memory within {MEMORY_ERROR:.1%} of all there is, its usual error")
        if row.trace.recomputed:
            found.append("no run was compared that recomputes at levels")
        if row.trace.offloaded:
            found.append("copies rest on the data sheet's PCIe rates")
        parts = self.parts(row)
        if parts["gradients"] + parts["collectives"] > LOSS and "collective" not in _fitted(row):
            found.append("the rate of collectives is assumed")
        hides = self.question.work.overlap
        if parts["gradients"] > LOSS and "grad-reduce" not in hides:
            found.append("the gradients of replicas are hidden by nothing")
        if choice.tp > 1 and parts["collectives"] > LOSS and "tp-comm" not in hides:
            found.append("tensor parallelism's collectives are hidden by nothing")
        if choice.slices > 1:
            found.append(
                "no run over slices was compared in time: kernels of short slices are slower"
            )
        if choice.ep > 1:
            uneven = row.profile.meta.get("imbalance")
            found.append(
                f"the most loaded experts are taken to get {uneven['usual']:.3g} times the mean of tokens"
                if uneven and uneven["high"] > 1
                else "experts are taken as evenly loaded, as --moe-router-force-load-balancing has them (--imbalance)"
            )
            if self.question.work.exchange == "plain" and not row.trace.schedule.has_pairs:
                found.append("the exchange of tokens is hidden by nothing")
        if choice.pp > 1 and choice.pp * choice.tp * choice.cp > machine.devices_per_node:
            found.append("stages in different nodes, every message takes the mean over the links")
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data; the keys of ``advise --json``."""
        plain, roomy, steady = self.plainest, self.roomy, self.steady
        return {
            **self.question.to_json(),
            "treatments": list(self.question.treatments),
            "per_stage": self.question.per_stage,
            "rows": [row.to_json(self) for row in self.rows],
            "plainest": plain and plain.to_json(),
            "steady": steady and {**steady._asdict(), "row": self.rows.index(steady.row)},
            "near_limit": self.near_limit,
            "roomy": roomy and roomy.to_json(),
            "by_slices": [point.to_json() for point in self.by_slices.values()],
            "searched": self.searched,
            "solved": self.solved,
            "pruned": self.pruned,
            "unsearched": self.unsearched,
            "hope_ns": None if self.hope_ns is None else round(self.hope_ns),
            "seconds": self.seconds,
            "compiling_s": self.compiling_s,
            "memory": [one.to_json() for one in self.memory],
            "interrupted": self.interrupted,
            "mfu_counts": MFU_COUNTS,
            "error": self.error,
            "basis": self.basis,
            "unmeasured": list(self.doubt(self.rows[0]).unmeasured),
        }


def _fanciness(row: Row) -> int:
    """Return the rank of a row's plan: the lower, the plainer."""
    return (
        4 * (row.schedule.partition(":")[0] not in COMMON)
        + 2 * bool(row.trace.offloaded)
        + (row.choice.chunks > 1)
    )


def _near(peak_bytes: int, usable_bytes: int) -> bool:
    """Whether a peak that fits may not fit, by the usual error of its prediction."""
    return usable_bytes * (1 - MEMORY_ERROR) < peak_bytes <= usable_bytes


def limited_by(parts: dict[str, float]) -> str:
    """Return the largest loss besides computing: ``bubble``, ``communication``, ``memory`` or ``copies``;
    ``compute`` if none of them is above 5 %."""
    losses = {name: sum(parts[key] for key in keys) for name, keys in LIMITS.items()}
    worst = max(losses, key=lambda name: losses[name])
    return worst if losses[worst] >= LOSS else "compute"


def _of_calibration(calibration: Calibration) -> Doubt:
    """Of rates that were fitted to measurements of one's own; nothing of those is held out."""
    times = [one.error for one in calibration.after if one.kind != MEMORY]
    peaks = [one.error for one in calibration.after if one.kind == MEMORY]
    told = (_left(what, errors) for what, errors in (("time", times), ("peak", peaks)) if errors)
    return Doubt(
        median(map(abs, times)) if times else None,
        median(times) if times else None,
        max(times, key=abs, default=None),
        len(times),
        f"rates fitted to {' and '.join(told)}, which is no test of them; what these runs do not contain was not"
        " measured",
        (),
    )


def _left(what: str, errors: Sequence[float]) -> str:
    """Return how many measurements rates are fitted to, and how far off these are left."""
    off = f"{median(map(abs, errors)):.1%} off"
    worst = "" if len(errors) == 1 else f" in the median, at worst {max(errors, key=abs):+.1%}"
    return f"{counted(len(errors), what)} (now {off}{worst})"


def _fitted(row: Row) -> set[str]:
    rates = row.profile.meta["rates"]
    return {key for key, rate in rates.items() if str(rate["is"]).startswith("fitted")}


def _parts(row: Row, question: Question) -> dict[str, float]:
    """Busy time is split in proportion to what the same ops cost without ZeRO's exchange and
    without recomputation."""
    choice, trace = row.choice, row.trace
    split = replace(choice, zero=min(choice.zero, 1))
    plain, alone = (
        profile_of(question, replace(split, recompute=what)) for what in ("none", choice.recompute)
    )
    whole = _work(row.profile)
    again = max(0, _work(alone) - _work(plain)) / whole
    sent = max(0, whole - _work(alone)) / whole
    sent += plain.meta["time_spent"]["messages"] * _work(plain) / whole
    if trace.schedule.has_pairs:  # what they hide is a part of what is sent
        left = sum(trace.busy_ns) / (choice.microbatches * whole)
        again, sent = again / left, max(0.0, sent - (1 - left)) / left
    devices, total = row.profile.devices, row.iteration_ns
    busy = sum(trace.busy_ns) / devices / total
    # levels of recomputation are no part of the profile's own ops
    levels = sum(trace.recompute_ns) / max(1, sum(trace.busy_ns))
    again, sent = again * (1 - levels) + levels, sent * (1 - levels)
    idle = {cause: ns / devices / total for cause, ns in trace.idle_ns.items()}
    waiting = idle["fill"] + idle["drain"] + idle["neighbour"]
    imbalance = min(waiting, trace.imbalance * trace.cost_ns / total)
    once = row.profile.meta["iteration"]
    keys = ("gradient_sync_ms", "optimizer_ms", "exposed_exchange_ms")
    gradients, update, exposed = (once.get(key, 0.0) * 1e6 for key in keys)
    return {
        "compute": max(0.0, busy * (1 - again - sent)),
        "collectives": busy * sent + exposed / total,
        "recompute": busy * again,
        "bubble": waiting - imbalance,
        "imbalance": imbalance,
        "messages": idle["communication"],
        "waiting for memory": idle["memory"],
        "reloads": idle["reload"],
        "gradients": gradients / total,
        "update": update / total,
        "between ops": (total - gradients - update - exposed - trace.cost_ns) / total,
    }


def _work(profile: CostProfile) -> int:
    """F, B and W of one microbatch on all stages, ns."""
    return sum(cost.t_f_ns + cost.t_b_ns + cost.t_w_ns for cost in profile.stages)
