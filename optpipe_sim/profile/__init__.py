"""CostProfile: what each stage costs in time and memory, and what connects the devices.

Times and sizes are integers (ns, bytes); only the keys of files have units (`profile_io`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import accumulate, pairwise
from math import gcd
from typing import Any

import numpy as np

from ..errors import InvalidSchedule, ProfileError
from ..execution import IDEAL, LINKS, Execution, Issue, family_of, load_execution
from ..op_table import KEEP, OpTable, make_part_tables, make_table
from ..schedule.shape import Shape, expand_placement
from ..stage_cost import (
    MAX_TIME_NS,
    StageCost,
    multiplied,
    with_overhead,
    without_overhead,
)
from ..units import (
    LEAST_PLAIN,
    Size,
    as_limit,
    as_size,
    counted,
    exact,
    format_size,
    format_time,
    html_table,
    round_half_up,
)
from .items import Item, StageMaker, adds_up, deal_items, decoder_layers, most_stages
from .offload import Nvme as Nvme
from .offload import Offload as Offload
from .offload import check_offload
from .parts import change, change_all, check_slices, cut_sequence, deal, deal_anew, regroup
from .streams import pair_hidden

MAX_FACTOR = 10**6  # of a microbatch that differs


@dataclass(frozen=True)
class CostProfile:
    """The model cut into S = devices * chunks stages, on devices joined by links.

    Attributes:
        name: what to call it.
        devices: p. `chunks`: v. `placement`: the device of each stage (``loop``, ``vee`` or a list).
        stages: one `StageCost` per stage, in model order.
        latency_ns, occupancy_ns: a message between devices takes their sum; with ``serial`` links a
            message occupies its directed device pair for the latter, with ``blocking`` links the
            compute stream of its sender.
        links: ``latency`` (any number of messages in flight), ``serial`` (one per directed pair) or
            ``blocking`` (the sender computes nothing while it sends).
        offload: copy engines and host links; None: no offloading.
        memory_limit: bytes per device, or None.
        microbatch_time, microbatch_bytes: a factor per microbatch, of the times of compute ops (but for
            the overhead), and of sizes and the times of copies; None: all 1. A schedule then needs as
            many microbatches.
        execution: how a trainer issues the work, or the name of one that ships; see `issued`.
        pair_hidden: what a pair, an F and a backward as one op, takes less than the two one after the
            other, in ns: one number, or by the stage of its F and that of its backward. It is at most
            the time of either.
        slices: into how many slices the sequence of a microbatch is cut; with more than one, every
            stage has the cost of each (`StageCost.slices`).
        meta: provenance and notes; plain data, not part of the costs. `items`: the model by layers.
        memory_unknown: why it is not known what stages hold, in a sentence; empty: it is. Limits are then refused.

    Raises:
        ProfileError: names the key and what is wrong with it.
    """

    name: str
    devices: int
    stages: tuple[StageCost, ...]
    chunks: int = 1
    placement: tuple[int, ...] = "loop"  # type: ignore[assignment]
    latency_ns: int = 0
    occupancy_ns: int = 0
    links: str = "latency"
    offload: Offload | None = None
    memory_limit: tuple[int, ...] | None = None
    slices: int = 1
    microbatch_time: tuple[Fraction, ...] | None = None
    microbatch_bytes: tuple[Fraction, ...] | None = None
    execution: Execution = IDEAL
    pair_hidden: int | tuple[tuple[int, ...], ...] = 0
    meta: dict[str, Any] = field(default_factory=dict, compare=False)
    items: tuple[Item, ...] = field(default=(), compare=False)
    memory_unknown: str = ""

    def __post_init__(self) -> None:
        for key in ("devices", "chunks"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096:
                raise ProfileError(f"{key}: must be a whole number from 1 to 4096, got {value!r}")
        try:
            placement = expand_placement(self.placement, self.devices, self.chunks)
        except InvalidSchedule as error:
            raise ProfileError(str(error)) from None
        object.__setattr__(self, "placement", placement)
        object.__setattr__(self, "stages", tuple(self.stages))
        count = self.devices * self.chunks
        if len(self.stages) != count:
            raise ProfileError(
                f"stages: lists {len(self.stages)}, but {self.devices} devices x {self.chunks} chunks make {count}"
            )
        if any(len(cost.slices or (cost,)) != self.slices for cost in self.stages):
            raise ProfileError(f"slices: not every stage has the costs of {self.slices}")
        for cost in self.stages:
            check_slices(cost)
        if self.links not in LINKS:
            raise ProfileError(f"links: expected latency, serial or blocking, got {self.links!r}")
        for key in ("latency_ns", "occupancy_ns"):
            if not 0 <= getattr(self, key) <= MAX_TIME_NS:
                raise ProfileError(
                    f"t_comm: must be from 0 to {format_time(MAX_TIME_NS)}, got"
                    f" {format_time(getattr(self, key))}"
                )
        if self.memory_limit is not None:
            self.require_memory("memory limit")
            limit = self._each(self.memory_limit, "memory_limit", as_size)
            if min(limit) < 0:
                raise ProfileError(f"memory_limit: must be at least 0, got {min(limit)}")
            object.__setattr__(self, "memory_limit", limit)
        if self.offload is not None:
            check_offload(self.offload, self.devices, self.stages, self.placement)
        object.__setattr__(self, "execution", load_execution(self.execution))
        self._settle_factors()
        self._check_hidden()

    def _check_hidden(self) -> None:
        given = self.pair_hidden
        rows = ((given,),) if isinstance(given, int) else tuple(map(tuple, given))
        count = len(self.stages)
        if not isinstance(given, int):
            if len(rows) != count or any(len(row) != count for row in rows):
                raise ProfileError(
                    f"pair_hidden: must be a number, or a list of {count} lists of {count}"
                )
            object.__setattr__(self, "pair_hidden", rows)
        if any(not 0 <= value <= MAX_TIME_NS for row in rows for value in row):
            raise ProfileError(f"pair_hidden: must be from 0 to {format_time(MAX_TIME_NS)}")

    def _settle_factors(self) -> None:
        """Check the factors of microbatches; factors that are all 1 are as none."""
        for key in ("microbatch_time", "microbatch_bytes"):
            given = getattr(self, key)
            if given is None:
                continue
            try:
                factors = tuple(map(exact, given))
            except (TypeError, ValueError) as error:
                raise ProfileError(f"{key}: expected a list of numbers: {error}") from None
            wrong = next((at for at, one in enumerate(factors) if not 0 < one <= MAX_FACTOR), None)
            if wrong is not None or not factors:
                what = (
                    f"[{wrong}]: must be above 0 and at most {MAX_FACTOR}" if factors else ": empty"
                )
                raise ProfileError(f"{key}{what}")
            object.__setattr__(self, key, None if set(factors) == {1} else factors)
        time, size = self.microbatch_time, self.microbatch_bytes
        if time is not None and size is not None and len(time) != len(size):
            raise ProfileError(
                f"microbatch_bytes: lists {len(size)} microbatches, microbatch_time {len(time)}"
            )

    def __repr__(self) -> str:
        each = self.stages[0]
        return (
            f"<CostProfile {self.name}: p={self.devices} v={self.chunks},"
            f" F {format_time(each.t_f_ns)}, act {format_size(each.act_bytes)} (stage 0)>"
        )

    def _repr_html_(self) -> str:
        """Return a small table, for notebooks."""
        times = [cost.work_ns for cost in self.stages]
        limit = self.memory_limit
        return html_table(
            {
                "profile": self.name,
                "devices": self.devices,
                "chunks per device": self.chunks,
                "F + B + W of a stage": f"{format_time(min(times))} to {format_time(max(times))}",
                **({"slices": self.slices} if self.slices > 1 else {}),
                "P2P latency": format_time(self.t_comm_ns),
                "activation of a stage": format_size(max(c.act_bytes for c in self.stages)),
                "offloading": "yes" if self.offload else "no",
                "levels of recomputation": ", ".join(
                    dict.fromkeys(one.name for c in self.stages for one in c.recompute)
                )
                or "none",
                "memory limit": format_size(max(limit)) if limit else "none",
            }
        )

    # -- what ops cost ----------------------------------------------------------------------------

    @property
    def t_comm_ns(self) -> int:
        """The time of one message between two devices, on a free link."""
        return self.latency_ns + self.occupancy_ns

    @cached_property
    def messages_ns(self) -> tuple[int, ...]:
        """The time of a message between each stage and the next, either way, on a free link; 0 on one device."""
        return tuple(self.t_comm_ns * (a != b) for a, b in pairwise(self.placement))

    def message_ns(self, stage: int, other: int) -> int:
        """Return the time of a message between neighbouring stages (see `messages_ns`); 0 if they are one, or one
        does not exist."""
        first, last = min(stage, other), max(stage, other)
        return self.messages_ns[first] if 0 <= first < last < len(self.stages) else 0

    @cached_property
    def op_table(self) -> OpTable:
        """Duration, allocation and release of every op, by kind, stage and treatment."""
        return make_table(self.stages)

    def hidden_ns(self, forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
        """Return `pair_hidden` of pairs of these stages, before it is limited to what either op takes."""
        if isinstance(self.pair_hidden, int):
            return np.full(np.shape(forward), self.pair_hidden, np.int64)
        found: np.ndarray = np.array(self.pair_hidden, np.int64)[forward, backward]
        return found

    @property
    def alike(self) -> bool:
        """Whether all microbatches cost the same."""
        return self.microbatch_time is None and self.microbatch_bytes is None

    @cached_property
    def factors(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """The (time, bytes) factors of the microbatches, one entry per microbatch; empty where all are alike."""
        count = len(self.microbatch_time or self.microbatch_bytes or ())
        ones = (Fraction(1),) * count
        return tuple(zip(self.microbatch_time or ones, self.microbatch_bytes or ones, strict=True))

    @cached_property
    def classes(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """The factors that occur: microbatches with the same ones cost the same."""
        return tuple(dict.fromkeys(self.factors)) or ((Fraction(1), Fraction(1)),)

    def stages_of(self, time: Fraction, size: Fraction) -> tuple[StageCost, ...]:
        """Return what the stages cost on a microbatch with these factors.

        Raises:
            ProfileError: for a factor that leaves an op no time.
        """
        if time == size == 1:
            return self.stages
        try:
            return change_all(self.stages, _by_factors(time, size))
        except ProfileError as error:
            raise ProfileError(
                f"microbatch_time: a microbatch of {float(time):g}: {error}"
            ) from None

    def of_class(self, time: Fraction, size: Fraction) -> CostProfile:
        """Return the profile of microbatches that all have these factors."""
        if self.alike:
            return self
        return replace(
            self,
            stages=self.stages_of(time, size),
            items=self._items_by(_by_factors(time, size)),
            microbatch_time=None,
            microbatch_bytes=None,
        )

    @cached_property
    def lightest(self) -> CostProfile:
        """The profile as if every microbatch had the least factors: a bound on its schedules holds for
        those of this one."""
        times, sizes = zip(*self.classes, strict=True)
        return self.of_class(min(times), min(sizes))

    @cached_property
    def part_tables(self) -> OpTable:
        """The same for each part of the work that has costs of its own, a slice of a class of microbatches:
        arrays (2, classes * slices, kinds, stages, treatments); see `op_table.make_part_tables`."""
        parts = []
        for time, size in self.classes:
            stages = self.stages_of(time, size)
            parts += [
                [(cost.slices or (cost,))[at] for cost in stages] for at in range(self.slices)
            ]
        return make_part_tables(parts)

    def parts_of(self, shape: Shape) -> np.ndarray:
        """Return (units,) the part of each unit of a shape: its place in `part_tables`."""
        units = np.arange(shape.units)
        number = {factors: at for at, factors in enumerate(self.classes)}
        classes = np.array([number[one] for one in self.factors] or [0] * shape.microbatches)
        return classes[units // self.slices] * self.slices + units % self.slices

    @property
    def durations_ns(self) -> np.ndarray:
        """(kinds, stages) int64: the duration of each op kind, where activations are kept whole."""
        return self.op_table.duration_ns[:, :, KEEP].copy()  # contiguous, whatever the levels

    @property
    def allocated_bytes(self) -> np.ndarray:
        """(kinds, stages) int64: what an op allocates, where activations are kept whole."""
        return self.op_table.allocated_bytes[:, :, KEEP].copy()  # contiguous, whatever the levels

    @property
    def released_bytes(self) -> np.ndarray:
        """(kinds, stages) int64: what an op releases, where activations are kept whole."""
        return self.op_table.released_bytes[:, :, KEEP].copy()  # contiguous, whatever the levels

    @cached_property
    def level_names(self) -> tuple[str, ...]:
        """The levels of recomputation that any stage has, from the first stage on."""
        names = (level.name for cost in self.stages for level in cost.recompute)
        return tuple(dict.fromkeys(names))

    @cached_property
    def level_numbers(self) -> dict[str, np.ndarray]:
        """By level of recomputation, (stages,) its number among those of each stage, from 1; 0 where a stage lacks it."""
        found = {name: np.zeros(len(self.stages), np.int64) for name in self.level_names}
        for stage, cost in enumerate(self.stages):
            for at, level in enumerate(cost.recompute, 1):
                found[level.name][stage] = at
        return found

    @property
    def has_levels(self) -> bool:
        """Whether any stage can be recomputed."""
        return any(cost.recompute for cost in self.stages)

    @cached_property
    def static_bytes(self) -> tuple[int, ...]:
        """Per device, the sum over its stages."""
        totals = [0] * self.devices
        for stage, device in enumerate(self.placement):
            totals[device] += self.stages[stage].static_bytes
        return tuple(totals)

    @cached_property
    def least_limits(self) -> tuple[int, ...]:
        """Per device, a memory limit below which no schedule stays.

        While F(s, j) or its backward runs, the device holds what the op needs under the cheapest
        treatment and, for the stages before s on that device, at least the part of microbatch j that can
        neither be offloaded nor dropped; with slices, of the slices up to its own, as F's of later ones
        need not have run there. One microbatch at a time needs no more than that, unless devices with
        several chunks run slices.
        """
        least, offloads = list(self.static_bytes), self.offload is not None
        for time, size in self.classes:
            rest = [[static] * self.slices for static in self.static_bytes]  # up to each slice
            for cost, device in zip(self.stages_of(time, size), self.placement, strict=True):
                own = waiting = 0  # of the slices before; own keys and values stay until the last F
                for at, part in enumerate(cost.slices or (cost,)):
                    least[device] = max(
                        least[device], rest[device][at] + own + part.least_running_bytes
                    )
                    own += part.least_waiting_bytes(offloads, leaves=part.kv_bytes)
                    waiting += part.least_waiting_bytes(offloads)
                    rest[device][at] += waiting
        return tuple(least)

    @property
    def overhead_ns(self) -> int:
        """The part of the time of every compute op that its kernels do not take; see `StageCost`."""
        return max(cost.overhead_ns for cost in self.stages) // self.slices

    @property
    def shares_copy_engine(self) -> bool:
        """Whether a device has one copy engine for both directions."""
        return self.offload is not None and self.offload.copy_engines == "shared"

    @property
    def shares_host_link(self) -> bool:
        """Whether a host link carries one transfer at a time in both directions together."""
        return self.offload is not None and self.offload.host_link == "single"

    @property
    def devices_per_node(self) -> int:
        """How many devices pin the memory of one host."""
        return (self.offload and self.offload.devices_per_node) or self.devices

    @property
    def nodes(self) -> int:
        """How many hosts the devices are on; the last may have fewer."""
        return -(-self.devices // self.devices_per_node)

    @property
    def serial_links(self) -> bool:
        """Whether a link carries one message at a time, per direction and pair of devices."""
        return self.links == "serial"

    @property
    def sending_ns(self) -> int:
        """How long a message keeps the compute stream of its sender busy."""
        return self.occupancy_ns if self.links == "blocking" else 0

    @property
    def host_links(self) -> tuple[tuple[int, ...], ...]:
        """The devices on each host link; see `Offload.links`."""
        return (self.offload or Offload()).links(self.devices)

    @property
    def tiny(self) -> bool:
        """Whether devices hold less than 1 MiB, as in synthetic profiles."""
        return max(self.least_limits) < LEAST_PLAIN

    def limits(
        self, memory_limit: Size | Sequence[Size] | None = None, name: str = "memory limit"
    ) -> tuple[int, ...] | None:
        """Return the limit of each device: `memory_limit` (for all or per device), else the profile's.

        Args:
            name: of the argument, for errors.

        Raises:
            OptPipeError: for anything but a size; see `as_limit`. ProfileError: for a list of the wrong
                length, and where it is not known what stages hold.
        """
        own = isinstance(memory_limit, tuple) and memory_limit == self.memory_limit
        if memory_limit is None or own:
            return self.memory_limit
        self.require_memory(name)
        return self._each(memory_limit, name, partial(as_limit, tiny=self.tiny))

    def _each(
        self, memory_limit: Size | Sequence[Size], name: str, parse: Callable[[str, Size], int]
    ) -> tuple[int, ...]:
        """Return the limit of each device, of one for all or of one per device."""
        if isinstance(memory_limit, str) or not isinstance(memory_limit, Iterable):
            return (parse(name, memory_limit),) * self.devices
        limits = tuple(parse(name, limit) for limit in memory_limit)
        if len(limits) != self.devices:
            raise ProfileError(f"{name}: {len(limits)} values for {self.devices} devices")
        return limits

    def require_memory(self, what: str) -> None:
        """Refuse `what` where it is not known what stages hold.

        Raises:
            ProfileError: says why it is not known, and what to do.
        """
        if self.memory_unknown:
            raise ProfileError(
                f"{what}: it is not known what the stages of {self.name} hold ({self.memory_unknown}); leave it"
                " out, or give act and static of each stage in the profile, and no memory_unknown"
            )

    # -- how a trainer issues it ------------------------------------------------------------------

    def issue(self, splits: bool) -> Issue:
        """Return how schedules of these chunks are issued, with backwards split into B and W or not."""
        return self.execution.issue(family_of(self.chunks, splits))

    def may_pair(self, splits: bool) -> bool:
        """Whether a forward and a backward may run as one op: pairs hide something, and the execution has them (an ideal one
        has whatever the profile says)."""
        return bool(np.any(self.pair_hidden)) and (
            self.execution == IDEAL or self.issue(splits).pairs
        )

    @property
    def objective(self) -> str:
        """What the time of an iteration is for plans that may split backwards: ``flush`` or ``span``;
        see `Issue`."""
        return self.issue(any(cost.splits for cost in self.stages)).objective

    @property
    def execution_notes(self) -> Mapping[str, Any]:
        """What is known of the execution that the costs are of, before or after `issued`: its name and errors."""
        found: Mapping[str, Any] = self.meta.get("execution") or self.execution.notes
        return found

    @property
    def time_interval(self) -> tuple[float, float] | None:
        """The `interval_of` a schedule that offloads nothing."""
        return self.interval_of(offloads=False)

    def interval_of(self, offloads: bool) -> tuple[float, float] | None:
        """Return what a measured time may be over a replayed one, in four cases of five: by the errors of the
        execution on runs that it was not fitted to, and, where the costs are estimated, by those of
        published runs that were compared; the wider of both, None where neither is known. An imbalance
        of experts that is not known exactly widens it, and offloading, which few of these runs had."""
        common, doubt = self.execution_notes["common"], self.meta.get("doubt")
        known = [] if common is None else [1 - common, 1 + common]
        if isinstance(doubt, Mapping):
            known += doubt.get("interval") or ()
            known += (doubt.get("interval_offloading") or ()) if offloads else ()
        if not known:
            return None
        low, high = (self.meta.get("imbalance") or {}).get("time", (1.0, 1.0))
        return min(known) * low, max(known) * high

    def difference_interval(self, difference: float) -> tuple[float, float] | None:
        """Return what a replayed difference of two times, relative to one of them, may be in reality, in
        four cases of five: by the errors of the execution on published runs; None where these are not
        known."""
        between = self.execution_notes["between"]
        return None if between is None else (difference - between, difference + between)

    def is_toss_up(self, difference: float) -> bool:
        """Whether a replayed difference of two times may in reality be none."""
        interval = self.difference_interval(difference)
        return interval is not None and interval[0] <= 0 <= interval[1]

    def toss_up_text(self, difference: float) -> str:
        """Return that a replayed difference may in reality be none, to follow it; empty where it may not."""
        if not self.is_toss_up(difference):
            return ""
        between = self.execution_notes["between"]
        return f"; in reality a toss-up: such differences are ±{between:.1%} off (docs/how-true.md)"

    @property
    def like_it(self) -> str:
        """The runs that `time_interval` is about, in words."""
        notes = self.execution_notes
        runs = "runs like it" if notes["common"] is None else f"runs as {notes['name']} issues them"
        return f"four of five {runs}"

    def spread_text(self, offloads: bool, of: str) -> str:
        """Return how many times `of` measured times may be, in words; empty where that is not known.

        `offloads`: whether any of the schedules that it is said of does.
        """
        kept, moved = self.interval_of(False), self.interval_of(offloads)
        if kept is None:
            return ""
        text = f"{kept[0]:.2f} to {kept[1]:.2f} times {of} in {self.like_it}"
        if moved is None or moved == kept:
            return text
        return f"{text}, {moved[0]:.2f} to {moved[1]:.2f} times where activations are offloaded"

    def issued(self, splits: bool) -> CostProfile:
        """Return the costs of an ideal machine on which a schedule takes as long as its execution takes
        on this one.

        Its execution is ideal, and named in its `meta`. `splits`: whether any backward is split into B and W.
        """
        if self.execution == IDEAL:
            return self
        if splits not in self._ideal:  # searches replay one profile again and again
            self._ideal[splits] = self._issued(self.issue(splits))
        return self._ideal[splits]

    @cached_property
    def _ideal(self) -> dict[bool, CostProfile]:
        """What `issued` has returned."""
        return {}

    def _issued(self, issue: Issue) -> CostProfile:
        def later(cost: StageCost) -> StageCost:
            if cost.splits and issue.split != 1:
                own, again = cost.overhead_ns, issue.split
                cost = replace(
                    cost,
                    t_b_ns=round_half_up((cost.t_b_ns - own) * again) + own,
                    t_w_ns=round_half_up((cost.t_w_ns - own) * again) + own,
                    t_bw_ns=cost.fused_ns,
                )
            return with_overhead(cost, issue.op_ns)

        links = issue.links or self.links
        extra = {"occupancy_ns" if links != "latency" else "latency_ns": issue.message_ns}
        return replace(
            self,
            stages=change_all(self.stages, later),
            links=links,
            **{key: getattr(self, key) + value for key, value in extra.items()},
            execution=IDEAL,
            meta={**self.meta, "execution": self.execution.notes},
        )

    # -- other shapes -----------------------------------------------------------------------------

    def shape(self, microbatches: int) -> Shape:
        """Return the shape of a schedule with the profile's own chunks and placement."""
        return Shape(self.devices, self.chunks, microbatches, self.placement, self.slices)

    def rechunk(self, chunks: int, placement: str | Sequence[int] = "loop") -> CostProfile:
        """Return the same model and devices with another number of chunks per device, or placement.

        Where the profile has the costs of its layers (`items`), they are dealt anew, so that devices
        have work as equal as whole layers allow: `dealing.deal_layers`. Otherwise adjacent stages merge
        (times, act, w, offload, static add up) or a stage divides equally, between its layers where
        their number is given, so that devices have as equal numbers of layers as that allows; see
        `parts.deal`, `parts.deal_anew` and `parts.divide`. Messages do not change.

        Raises:
            ProfileError: for more chunks than `most_chunks`, a stage too short to divide, or a
                placement that does not fit.
        """
        if not 1 <= chunks <= 4096:
            raise ProfileError(f"chunks: must be a whole number from 1 to 4096, got {chunks!r}")
        try:
            placed = expand_placement(placement, self.devices, chunks)
        except InvalidSchedule as error:
            raise ProfileError(str(error)) from None
        if chunks == self.chunks and placed == self.placement:
            return self
        if self.of_items:
            try:
                counts = deal_items(self.items, placed, self.name)
            except ProfileError as error:
                raise ProfileError(f"{error}{self._chunks_hint(chunks)}") from None
            return self.with_layout(counts, chunks, placed)
        shared = gcd(chunks, self.chunks)
        size, parts = self.chunks // shared, chunks // shared
        bare = [without_overhead(cost) for cost in self.stages]
        runs = [bare[at : at + size] for at in range(0, len(bare), size)]
        loop = placed == expand_placement("loop", self.devices, chunks)
        anew = deal_anew(runs, parts, self.devices) if loop else None
        if anew is None:
            numbers = deal(runs, parts, placed)
        else:  # the whole model is one run
            runs, parts, numbers = [bare], len(placed), [anew]
        stages: list[StageCost] = []
        for at, (run, dealt) in enumerate(zip(runs, numbers, strict=True)):
            try:
                stages += regroup(run, parts, dealt)
            except ProfileError as error:
                where = f"stages[{at * size}]"
                raise ProfileError(f"{where}: {error}{self._chunks_hint(chunks)}") from None
        return replace(
            self,
            chunks=chunks,
            placement=placed,
            stages=tuple(with_overhead(cost, self.overhead_ns) for cost in stages),
            pair_hidden=self.hidden_for([cost.layers or 0 for cost in stages]),
        )

    @cached_property
    def of_items(self) -> bool:
        """Whether the stages are what the items in them add up to, so that others can be made of these."""
        counts = [cost.layers or 0 for cost in self.stages]
        if not self.items or self.slices > 1 or sum(counts) != len(self.items) or not all(counts):
            return False
        maker = StageMaker(self.items, self.chunks)
        made = (maker.stage(a, b) for a, b in pairwise([0, *accumulate(counts)]))
        return all(map(adds_up, map(without_overhead, self.stages), made))

    def with_layout(
        self,
        counts: Sequence[int],
        chunks: int | None = None,
        placement: str | Sequence[int] | None = None,
        maker: StageMaker | None = None,
    ) -> CostProfile:
        """Return the profile with its items distributed again: `counts` of them on each stage, in model order.

        Args:
            chunks, placement: None: the profile's. `maker`: of the profile's items on so many chunks.

        Raises:
            ProfileError: for a wrong number of counts, or counts that do not add up to the items.
        """
        chunks = self.chunks if chunks is None else chunks
        if min(counts) < 1 or sum(counts) != len(self.items):
            raise ProfileError(
                f"layers: expected numbers of at least 1 that add up to {len(self.items)}, the items of"
                f" {self.name}; got {', '.join(map(str, counts))}"
            )
        maker = maker or StageMaker(self.items, chunks)
        bare = [maker.stage(first, last) for first, last in pairwise([0, *accumulate(counts)])]
        # without the notes on the layout before
        left = (
            "parameters_per_device",
            "weights_bytes_per_device",
            "static_by_stage",
            "step_bytes_per_device",
        )
        meta = {key: value for key, value in self.meta.items() if key not in left}
        return replace(
            self,
            chunks=chunks,
            placement=self.placement if placement is None else placement,  # type: ignore[arg-type]
            stages=tuple(with_overhead(cost, self.overhead_ns) for cost in bare),
            slices=1,
            pair_hidden=self.hidden_for(counts),
            meta={**meta, "layers_per_stage": decoder_layers(self.items, counts)},
        )

    def hidden_for(
        self, layers: Sequence[int], cut: Fraction | int = 1
    ) -> int | tuple[tuple[int, ...], ...]:
        """Return `pair_hidden` of the same model in stages of so many layers each, on sequences `cut`
        times as long.

        It is replayed layer by layer where the profile says what each does on the streams of a pair
        (`Item.streams`); else it is in proportion to the work of a stage.
        """
        if cut == 1 and sum(layers) == len(self.items) and any(one.streams for one in self.items):
            return pair_hidden(self.items, layers)
        count, old = len(layers), len(self.stages)
        if count == old and cut == 1:
            return self.pair_hidden

        def share(value: int) -> int:
            return round_half_up(Fraction(value * old, count) * cut)

        if isinstance(self.pair_hidden, int):
            return share(self.pair_hidden)
        at = [stage * old // count for stage in range(count)]
        return tuple(tuple(share(self.pair_hidden[one][other]) for other in at) for one in at)

    @cached_property
    def most_chunks(self) -> int | None:
        """The largest number of chunks per device that the stages' layers allow; None where no
        stage has a number of layers."""
        if self.of_items:
            return most_stages(self.items) // self.devices
        layers = [cost.layers for cost in self.stages]
        said = [count for count in layers if count is not None]
        if not said:
            return None
        if len(said) < len(
            layers
        ):  # some merged stages divide anywhere, those with a number of layers do not
            return self.chunks * min(said)
        for chunks in range(sum(said) // self.devices, self.chunks, -1):
            size = self.chunks // gcd(chunks, self.chunks)
            runs = range(0, len(said), size)
            if all(sum(said[at : at + size]) * self.chunks >= chunks * size for at in runs):
                return chunks
        return self.chunks

    def _chunks_hint(self, chunks: int) -> str:
        most = self.most_chunks
        if most is None or chunks <= most:
            return ""
        return f"; the layers of {self.name} make at most {counted(most, 'chunk')} per device"

    def for_shape(self, shape: Shape) -> CostProfile:
        """Return the profile with the chunks, placement and slices of a schedule's shape.

        Raises:
            InvalidSchedule: where the number of devices, or of microbatches that differ, is another; for
                other slices, `with_slices`.
        """
        if shape.devices != self.devices:
            raise InvalidSchedule(
                f"the schedule is for {shape.devices} devices, the profile {self.name} has {self.devices}"
            )
        self.require_microbatches(shape.microbatches)
        sliced = self.with_slices(shape.slices)
        if shape.placement == sliced.placement:
            return sliced
        return sliced.rechunk(shape.chunks, shape.placement)

    def require_microbatches(self, count: int) -> None:
        """Refuse a number of microbatches other than that of the factors, where microbatches differ.

        Raises:
            InvalidSchedule: says how many there are.
        """
        if not self.alike and len(self.factors) != count:
            key = "microbatch_time" if self.microbatch_time is not None else "microbatch_bytes"
            known = counted(len(self.factors), "microbatch", "microbatches")
            raise InvalidSchedule(
                f"{key}: the profile {self.name} has the factors of {known}, not of {count}; take {len(self.factors)}"
            )

    def with_slices(self, slices: int) -> CostProfile:
        """Return the profile with whole sequences, or with ones cut into so many equal slices.

        Raises:
            InvalidSchedule: where the profile has another number of slices.
        """
        if slices == self.slices:
            return self
        if slices < 1:
            raise InvalidSchedule(f"slices: must be at least 1, got {slices}")
        bare = [without_overhead(cost) for cost in self.stages]
        if slices == 1:
            stages = [replace(cost, slices=()) for cost in bare]
        elif self.slices == 1:
            stages = [cut_sequence(cost, slices) for cost in bare]
        else:
            raise InvalidSchedule(
                f"slices: the profile {self.name} has the costs of {self.slices} slices, not of"
                f" {slices}"
            )
        whole = tuple(with_overhead(cost, self.overhead_ns) for cost in stages)
        hidden = self.hidden_for(
            [cost.layers or 0 for cost in whole], Fraction(self.slices, slices)
        )
        return replace(self, slices=slices, stages=whole, pair_hidden=hidden)

    def map_stages(self, by: Callable[[int, StageCost], StageCost]) -> CostProfile:
        """Return the profile with each stage's cost changed, slice by slice: ``by(stage, cost) ->
        cost``; items are dropped."""
        stages = tuple(change(cost, partial(by, at)) for at, cost in enumerate(self.stages))
        return replace(self, stages=stages, items=())

    def _items_by(self, by: Callable[[StageCost], StageCost]) -> tuple[Item, ...]:
        """Return the items, each with its cost changed as those of all stages are; none where they have
        the streams of pairs, which that does not change."""
        if any(item.streams for item in self.items):
            return ()
        return tuple(item.costing(by(item.cost)) for item in self.items)

    def scale(
        self, compute: float = 1, comm: float = 1, copy: float = 1, memory: float = 1
    ) -> CostProfile:
        """Multiply the times of compute (but for the overhead in them), messages and copies, and the
        activation memory."""
        by = partial(
            multiplied, time=exact(compute), copies=exact(copy), size=exact(memory), least_ns=1
        )
        return replace(
            self.map_stages(lambda _, cost: by(cost)),
            items=self._items_by(by),
            latency_ns=round_half_up(self.latency_ns * exact(comm)),
            occupancy_ns=round_half_up(self.occupancy_ns * exact(comm)),
        )


def _by_factors(time: Fraction, size: Fraction) -> Callable[[StageCost], StageCost]:
    """Return what a microbatch with these factors makes of a cost."""
    return partial(multiplied, time=time, copies=size, size=size)
