"""StageCost: what one stage costs; stages divided and merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import accumulate
from typing import Any

from .errors import ProfileError
from .units import as_size, counted, exact, format_sizes, round_half_up

MAX_TIME_NS = 10**15  # 11 days for one op: beyond it sums of many ops could overflow
MAX_BYTES = 2**50
MAX_LAYERS = 2**20


@dataclass(frozen=True)
class RecomputeLevel:
    """One level of recomputation (activation checkpointing) of a stage: what is dropped after F.

    Attributes:
        name: what to call it; levels of the same name belong together across stages.
        t_ns: how long recomputing what was dropped takes.
        keep_bytes: what stays after F, never less than the stage's input; at most act_bytes.
        work_bytes: the most that is held beside it while the stage runs forward, or backward with
            the recomputation inside; None: act - keep, everything at once.
        b_work_bytes: the same for a split B, which ends holding w; None: as `work_bytes`.
        layers: how many of the stage's layers are recomputed, where that is whole layers.

    Raises:
        ProfileError: names the key and what is wrong with it.
    """

    name: str
    t_ns: int
    keep_bytes: int
    work_bytes: int | None = None
    b_work_bytes: int | None = None
    layers: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ProfileError(f"name: expected a text that names the level, got {self.name!r}")
        for entry in fields(self):
            value = _read_size(self, entry.name)
            if entry.name != "name" and not (value is None and entry.default is None):
                _check_amount(entry.name, value, int(entry.name == "layers"))

    def working_bytes(self, act_bytes: int) -> int:
        """What F, or a BW that recomputes inside, holds beside `keep_bytes`."""
        return act_bytes - self.keep_bytes if self.work_bytes is None else self.work_bytes

    def b_working_bytes(self, act_bytes: int, w_bytes: int) -> int:
        """What a B that recomputes inside allocates: its working memory, and at least what W needs."""
        work = self.working_bytes(act_bytes) if self.b_work_bytes is None else self.b_work_bytes
        return max(work, w_bytes - self.keep_bytes, 0)


def _read_size(cost: RecomputeLevel | StageCost, key: str) -> Any:
    """A field; sizes may be given as ``24GiB``."""
    value = getattr(cost, key)
    if key.endswith("_bytes") and isinstance(value, str):
        value = as_size(key, value)
        object.__setattr__(cost, key, value)
    return value


def _check_amount(key: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProfileError(f"{key}: must be a whole number, got {value!r}")
    most = MAX_TIME_NS if key.endswith("_ns") else MAX_BYTES
    most = MAX_LAYERS if key == "layers" else most
    if value < least:
        raise ProfileError(f"{key}: must be {'above' if least else 'at least'} 0, got {value}")
    if value > most:
        raise ProfileError(f"{key}: {value} is more than {most}, the most allowed")


@dataclass(frozen=True)
class StageCost:
    """One stage's share of one microbatch: times in ns, memory in bytes.

    `act_bytes` are held from F to B, `w_bytes` of them still from B to W; `offload_bytes` is what
    an offload moves (default: all of act). `t_bw_ns` is the fused backward (default: B + W).
    `static_bytes` stay for ever: weights, gradients, optimizer, reserve. A stage of so many
    `layers` (embedding and head may count as one each) divides only between them; one that does not
    say divides anywhere. `recompute` has the levels of recomputation, from the least that is dropped
    to the most. Where only the whole backward is known (`splits` is False), `t_b_ns` is all of it,
    `t_w_ns` and `w_bytes` are 0, and no schedule may run B and W of the stage apart.
    """

    t_f_ns: int
    t_b_ns: int
    t_w_ns: int
    act_bytes: int = 0
    w_bytes: int = 0
    offload_bytes: int | None = None
    static_bytes: int = 0
    t_bw_ns: int | None = None
    t_offload_ns: int | None = None
    t_reload_ns: int | None = None
    layers: int | None = None
    recompute: tuple[RecomputeLevel, ...] = ()
    splits: bool = True

    def __post_init__(self) -> None:
        if not self.splits and (self.t_w_ns or self.w_bytes or self.t_bw_ns is not None):
            raise ProfileError("splits: False asks for t_w and w of 0, and no t_bw beside t_b")
        if self.offload_bytes is None:
            object.__setattr__(self, "offload_bytes", self.act_bytes)
        for key in _AMOUNTS:
            value = _read_size(self, key)
            if value is not None:
                _check_amount(key, value, 1 if key in _POSITIVE else 0)
        if self.w_bytes > self.act_bytes:
            told, most = format_sizes(self.w_bytes, self.act_bytes)
            raise ProfileError(f"w_bytes: {told} is more than act_bytes, {most}")
        if self.offloadable > self.act_bytes:
            told, most = format_sizes(self.offloadable, self.act_bytes)
            raise ProfileError(f"offload_bytes: {told} is more than act_bytes, {most}")
        levels = tuple(self.recompute)
        if not self.splits:  # there is no split B whose working memory could differ
            levels = tuple(replace(level, b_work_bytes=None) for level in levels)
        object.__setattr__(self, "recompute", levels)
        names = [level.name for level in self.recompute]
        for at, level in enumerate(self.recompute):
            if level.name in names[:at]:
                raise ProfileError(f"recompute[{at}].name: {level.name} is there twice")
            if level.keep_bytes > self.act_bytes:
                told, most = format_sizes(level.keep_bytes, self.act_bytes)
                raise ProfileError(
                    f"recompute[{at}].keep_bytes: {told} is more than act_bytes, {most}"
                )

    @property
    def offloadable(self) -> int:
        """`offload_bytes`, as a number for certain."""
        return self.offload_bytes or 0

    @property
    def least_running_bytes(self) -> int:
        """The least that a device holds for one activation while its F and its backward run, under
        the treatment that needs least."""
        return min(
            [self.act_bytes]
            + [level.keep_bytes + level.working_bytes(self.act_bytes) for level in self.recompute]
        )

    def least_waiting_bytes(self, offloads: bool) -> int:
        """The least that a device holds for one activation between its F and its backward."""
        kept = [self.act_bytes, *(level.keep_bytes for level in self.recompute)]
        return min(keep - min(self.offloadable if offloads else 0, keep) for keep in kept)

    def level(self, name: str) -> RecomputeLevel | None:
        """The level of recomputation with that name, or None."""
        return next((level for level in self.recompute if level.name == name), None)

    @property
    def fused_ns(self) -> int:
        """What BW takes."""
        return self.t_b_ns + self.t_w_ns if self.t_bw_ns is None else self.t_bw_ns

    @property
    def work_ns(self) -> int:
        """The least compute time of one microbatch: F and the cheaper of B + W and BW."""
        return self.t_f_ns + min(self.t_b_ns + self.t_w_ns, self.fused_ns)


_POSITIVE = ("t_f_ns", "t_b_ns", "t_bw_ns", "layers")
_AMOUNTS = tuple(
    entry.name for entry in fields(StageCost) if entry.name not in ("recompute", "splits")
)


def evenly(count: int, parts: int) -> list[int]:
    """`count` layers in `parts` contiguous runs; the first ones get one more."""
    low, more = divmod(count, parts)
    return [low + (at < more) for at in range(parts)]


def divide(cost: StageCost, parts: int) -> list[StageCost]:
    """A stage in `parts` parts: equal ones, or whole layers where it says how many it has.

    Of L layers the first parts get one more where they do not divide equally. Every number n of a
    stage (times, bytes) goes to a part of k layers as floor(n * k / L), and what remains of the
    whole to the first part, so that the parts add up to the stage exactly; without layers each
    part counts as one of `parts`. Where that would give the first part more w or offload than act
    (by a few bytes), the excess moves on to the next one.

    Raises:
        ProfileError: for more parts than layers, or a part that would take less than 1 ns.
    """
    if parts == 1:
        return [cost]
    if cost.layers is not None and parts > cost.layers:
        raise ProfileError(
            f"a stage of {counted(cost.layers, 'layer')} cannot be divided into {parts} chunks:"
            f" it divides only between layers, into at most {cost.layers}"
        )
    return _cut(cost, [1] * parts if cost.layers is None else evenly(cost.layers, parts))


def _cut(cost: StageCost, weights: Sequence[int]) -> list[StageCost]:
    """The parts of a stage that have so many of its ``sum(weights)`` layers; see `divide`."""
    if len(weights) == 1:
        return [cost]
    total = sum(weights)
    if min(cost.t_f_ns, cost.t_b_ns, cost.fused_ns) * min(weights) < total:
        raise ProfileError(
            f"a stage of {cost.t_f_ns} ns cannot be divided into {len(weights)} chunks"
        )
    shares: dict[str, Sequence[int | None]] = {}
    for key in _AMOUNTS:
        value = getattr(cost, key)
        shares[key] = [None] * len(weights) if value is None else _share(value, weights)
    acts = _share(cost.act_bytes, weights)
    for key in ("w_bytes", "offload_bytes"):
        shares[key] = _within(_share(getattr(cost, key), weights), acts)
    levels = [_cut_level(level, weights, acts) for level in cost.recompute]
    return [
        StageCost(
            **{key: shares[key][at] for key in _AMOUNTS},  # type: ignore[arg-type]
            recompute=tuple(level[at] for level in levels),
            splits=cost.splits,
        )
        for at in range(len(weights))
    ]


def _share(value: int, weights: Sequence[int]) -> list[int]:
    """`value` by weight, rounded down; what remains goes to the first part."""
    later = [value * weight // sum(weights) for weight in weights[1:]]
    return [value - sum(later), *later]


def _within(shares: Sequence[int], most: Sequence[int]) -> list[int]:
    """`shares` with none above its `most`: the excess moves on to the next one."""
    fitting, rest = [], 0
    for share, limit in zip(shares, most, strict=True):
        fitting.append(min(share + rest, limit))
        rest += share - fitting[-1]
    return fitting


def _cut_level(
    level: RecomputeLevel, weights: Sequence[int], acts: Sequence[int]
) -> list[RecomputeLevel]:
    """A level of recomputation for each part of a stage, whose activations are `acts`.

    Time and kept bytes divide as all numbers do; given working bytes stay, at most act - keep of
    the part: a part works through its layers as the whole did. How many layers are recomputed is
    known of parts that get a whole number of them.
    """
    keeps = _within(_share(level.keep_bytes, weights), acts)

    def most(work: int | None, act: int, keep: int) -> int | None:
        return None if work is None else min(work, act - keep)

    return [
        RecomputeLevel(
            level.name,
            time,
            keep,
            most(level.work_bytes, act, keep),
            most(level.b_work_bytes, act, keep),
            None if level.layers is None else _whole(level.layers * weight, sum(weights)),
        )
        for time, keep, act, weight in zip(
            _share(level.t_ns, weights), keeps, acts, weights, strict=True
        )
    ]


def _whole(value: int, by: int) -> int | None:
    """`value` / `by` where that is a whole number above 0."""
    return value // by if value and value % by == 0 else None


def regroup(costs: Sequence[StageCost], parts: int) -> list[StageCost]:
    """Adjacent stages as `parts` stages: merged, divided, or cut where the new stages begin.

    Stages that all say their layers share them out: the first parts get one more. Others are each
    divided into `parts`, which then merge.

    Raises:
        ProfileError: see `divide`.
    """
    if len(costs) == 1:
        return divide(costs[0], parts)
    layers = [cost.layers for cost in costs if cost.layers is not None]
    if len(layers) < len(costs):
        pieces = [part for cost in costs for part in divide(cost, parts)]
        return [merge(pieces[at : at + len(costs)]) for at in range(0, len(pieces), len(costs))]
    if sum(layers) < parts:
        raise ProfileError(
            f"{len(costs)} stages of {counted(sum(layers), 'layer')} cannot make {parts}:"
            " stages divide only between layers"
        )
    ends = list(accumulate(evenly(sum(layers), parts)))
    groups: list[list[StageCost]] = [[] for _ in ends]
    first = 0
    for cost, count in zip(costs, layers, strict=True):
        shared = [
            min(end, first + count) - max(start, first)
            for start, end in zip([0, *ends], ends, strict=False)
        ]
        mine = [at for at, number in enumerate(shared) if number > 0]
        for at, piece in zip(mine, _cut(cost, [shared[at] for at in mine]), strict=True):
            groups[at].append(piece)
        first += count
    return [merge(group) for group in groups]


def merge(costs: Sequence[StageCost]) -> StageCost:
    """Adjacent stages as one."""
    if len(costs) == 1:
        return costs[0]
    total: dict[str, int | None] = {}
    for key in _AMOUNTS:
        values = [cost.fused_ns if key == "t_bw_ns" else getattr(cost, key) for cost in costs]
        total[key] = None if None in values else sum(values)
    splits = all(cost.splits for cost in costs)
    if not splits:  # what is known of the merged stage is its whole backward
        total |= {"t_b_ns": total["t_bw_ns"], "t_w_ns": 0, "w_bytes": 0}
    if not splits or all(cost.t_bw_ns is None for cost in costs):
        total["t_bw_ns"] = None
    return StageCost(**total, recompute=_merge_levels(costs), splits=splits)  # type: ignore[arg-type]


def _merge_levels(costs: Sequence[StageCost]) -> tuple[RecomputeLevel, ...]:
    """Levels merged by name; a stage without that name is kept whole."""
    names = dict.fromkeys(level.name for cost in costs for level in cost.recompute)
    merged = []
    for name in names:
        having = [(cost, level) for cost in costs for level in cost.recompute if level.name == name]
        whole = sum(cost.act_bytes for cost in costs if cost.level(name) is None)
        work = b_work = None
        if any(level.work_bytes is not None for _, level in having):
            work = max(level.working_bytes(cost.act_bytes) for cost, level in having)
        if any(level.b_work_bytes is not None for _, level in having):
            b_work = max(
                level.working_bytes(cost.act_bytes)
                if level.b_work_bytes is None
                else level.b_work_bytes
                for cost, level in having
            )
        counts = [level.layers for _, level in having]
        merged.append(
            RecomputeLevel(
                name,
                sum(level.t_ns for _, level in having),
                whole + sum(level.keep_bytes for _, level in having),
                work,
                b_work,
                None if None in counts else sum(count for count in counts if count),
            )
        )
    return tuple(merged)


def transfer_ns(size_bytes: int, gb_per_s: Any) -> int:
    """How long `size_bytes` take at a bandwidth in 10^9 bytes per second, rounded half up."""
    return round_half_up(Fraction(size_bytes) / exact(gb_per_s))
