"""StageCost: what one stage costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

from .errors import ProfileError
from .units import as_size, exact, format_sizes, round_half_up

MAX_TIME_NS = 10**15  # 11 days for one op: beyond it sums of many ops could overflow
MAX_BYTES = 2**50
MAX_LAYERS = 2**20


@dataclass(frozen=True)
class RecomputeLevel:
    """One level of recomputation (activation checkpointing) of a stage: what is dropped after F.

    Attributes:
        name: what to call it; levels of the same name belong together across stages.
        t_ns: how long it takes to recompute what was dropped.
        keep_bytes: what stays after F, never less than the stage's input; at most act_bytes.
        work_bytes: working memory beside it while the stage runs forward, or backward with
            the recomputation inside; None: act - keep, all recomputed at once.
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
        _check_amounts(self, _OF_LEVELS, needed=("t_ns", "keep_bytes"))

    def working_bytes(self, act_bytes: int) -> int:
        """Return what F, or a BW that recomputes inside, holds beside `keep_bytes`."""
        return act_bytes - self.keep_bytes if self.work_bytes is None else self.work_bytes

    def b_working_bytes(self, act_bytes: int, w_bytes: int) -> int:
        """Return what a B that recomputes inside allocates: its working memory, and at least what W needs."""
        work = self.working_bytes(act_bytes) if self.b_work_bytes is None else self.b_work_bytes
        return max(work, w_bytes - self.keep_bytes, 0)


def _read_size(cost: RecomputeLevel | StageCost, key: str) -> Any:
    """Return a field; sizes may be given as ``24GiB``."""
    value = getattr(cost, key)
    if key.endswith("_bytes") and isinstance(value, str):
        value = as_size(key, value)
        object.__setattr__(cost, key, value)
    return value


def _most(key: str) -> int:
    if key == "layers":
        return MAX_LAYERS
    return MAX_TIME_NS if key.endswith("_ns") else MAX_BYTES


def _check_amounts(
    cost: RecomputeLevel | StageCost,
    ranges: Mapping[str, tuple[int, int]],
    needed: Sequence[str] = (),
) -> None:
    """Check the fields that have a range; what is not `needed` may be None."""
    for key, (low, high) in ranges.items():
        value = getattr(cost, key)
        # nearly always one of these: searches and estimates make costs and levels by the thousand
        if type(value) is int and low <= value <= high:
            continue
        if value is None and key not in needed:
            continue
        _check_amount(key, _read_size(cost, key), low, high)


def _check_amount(key: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProfileError(f"{key}: must be a whole number, got {value!r}")
    if value < least:
        raise ProfileError(f"{key}: must be {'above' if least else 'at least'} 0, got {value}")
    if value > most:
        raise ProfileError(f"{key}: {value} is more than {most}, the most allowed")


@dataclass(frozen=True)
class StageCost:
    """One stage's share of one microbatch: times in ns, memory in bytes.

    `act_bytes` are held from F to B, `w_bytes` of them still from B to W; `offload_bytes` is what
    an offload moves (default: all of act). `t_bw_ns` is the fused backward (default: B + W).
    `static_bytes` are always held: weights, gradients, optimizer, reserve. A stage of so many
    `layers` (embedding and head may count as one each) divides only between them; without `layers`
    it divides anywhere. `recompute` has the levels of recomputation, from the one that drops least
    to the one that drops most. Where only the whole backward is known (`splits` is False), `t_b_ns` is all of it,
    `t_w_ns` and `w_bytes` are 0, and no schedule may run B and W of the stage apart. Where
    sequences are cut, `slices` has the cost of each slice in order (see `join`), and the numbers of
    the stage are those of a whole microbatch; `kv_bytes` of a slice's act are its keys and values,
    which later slices read.

    Times are those of ops as they run. `overhead_ns` of each is what its kernels do not take (launches,
    the host): it stays whole where the stage divides, merges or works on a smaller microbatch. A level's
    `t_ns` is without it.
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
    kv_bytes: int = 0
    slices: tuple[StageCost, ...] = ()
    overhead_ns: int = 0

    def __post_init__(self) -> None:
        if not self.splits and (self.t_w_ns or self.w_bytes or self.t_bw_ns is not None):
            raise ProfileError("splits: False asks for t_w and w of 0, and no t_bw beside t_b")
        if self.offload_bytes is None:
            object.__setattr__(self, "offload_bytes", self.act_bytes)
        _check_amounts(self, _RANGES)
        if self.w_bytes > self.act_bytes:
            size, most = format_sizes(self.w_bytes, self.act_bytes)
            raise ProfileError(f"w_bytes: {size} is more than act_bytes, {most}")
        if self.offloadable > self.act_bytes:
            size, most = format_sizes(self.offloadable, self.act_bytes)
            raise ProfileError(f"offload_bytes: {size} is more than act_bytes, {most}")
        levels = tuple(self.recompute)
        if not self.splits:  # there is no split B whose working memory could differ
            levels = tuple(replace(level, b_work_bytes=None) for level in levels)
        object.__setattr__(self, "recompute", levels)
        names = [level.name for level in self.recompute]
        for at, level in enumerate(self.recompute):
            if level.name in names[:at]:
                raise ProfileError(f"recompute[{at}].name: {level.name} is there twice")
            if level.keep_bytes > self.act_bytes:
                size, most = format_sizes(level.keep_bytes, self.act_bytes)
                raise ProfileError(
                    f"recompute[{at}].keep_bytes: {size} is more than act_bytes, {most}"
                )
            if level.keep_bytes < self.kv_bytes:
                size, least = format_sizes(level.keep_bytes, self.kv_bytes)
                raise ProfileError(
                    f"recompute[{at}].keep_bytes: {size} is less than kv_bytes, {least}, which are"
                    " never dropped"
                )
        if self.kv_bytes > self.act_bytes:
            size, most = format_sizes(self.kv_bytes, self.act_bytes)
            raise ProfileError(f"kv_bytes: {size} is more than act_bytes, {most}")

    @property
    def offloadable(self) -> int:
        """`offload_bytes` as a number, never None."""
        return self.offload_bytes or 0

    @property
    def least_running_bytes(self) -> int:
        """The least that a device holds for one activation while its F and its backward run, under
        the treatment that needs least."""
        return min(
            [self.act_bytes]
            + [level.keep_bytes + level.working_bytes(self.act_bytes) for level in self.recompute]
        )

    def least_waiting_bytes(self, offloads: bool, leaves: int = 0) -> int:
        """Return the least that a device holds for one activation between its F and its backward, where
        an offload `leaves` so many bytes behind (keys and values that have still to be read)."""
        kept = [self.act_bytes, *(level.keep_bytes for level in self.recompute)]
        return min(keep - min(self.offloadable if offloads else 0, keep - leaves) for keep in kept)

    def level(self, name: str) -> RecomputeLevel | None:
        """Return the level of recomputation with that name, or None."""
        return next((level for level in self.recompute if level.name == name), None)

    @property
    def fused_ns(self) -> int:
        """The duration of BW."""
        if self.t_bw_ns is not None:
            return self.t_bw_ns
        return self.t_b_ns + self.t_w_ns - (self.overhead_ns if self.splits else 0)

    @property
    def work_ns(self) -> int:
        """The least compute time of one microbatch: F and the cheaper of B + W and BW."""
        return self.t_f_ns + min(self.t_b_ns + self.t_w_ns, self.fused_ns)


def with_overhead(cost: StageCost, overhead_ns: int) -> StageCost:
    """Return a stage each of whose compute ops takes so much longer, slice by slice; see
    `StageCost.overhead_ns`."""
    if not overhead_ns:
        return cost
    count = max(1, len(cost.slices))
    more = count * overhead_ns
    return replace(
        cost,
        t_f_ns=cost.t_f_ns + more,
        t_b_ns=cost.t_b_ns + more,
        t_w_ns=cost.t_w_ns + (more if cost.splits else 0),
        t_bw_ns=None if cost.t_bw_ns is None else cost.t_bw_ns + more,
        overhead_ns=cost.overhead_ns + more,
        slices=tuple(with_overhead(part, overhead_ns) for part in cost.slices),
    )


def without_overhead(cost: StageCost) -> StageCost:
    """Return what the kernels of a stage take: the stage as it divides and merges."""
    return with_overhead(cost, -cost.overhead_ns // max(1, len(cost.slices)))


def multiplied(
    cost: StageCost, time: Fraction, copies: Fraction, size: Fraction, least_ns: int = 0
) -> StageCost:
    """Return a stage of whole sequences, or a slice, with the times of compute ops multiplied by `time`
    (but for the overhead in them), those of copies by `copies`, and what a microbatch holds by `size`,
    each product rounded half up.

    Args:
        least_ns: what is left at least of ops that may not take no time.

    Raises:
        ProfileError: for a factor that leaves such an op less than 1 ns.
    """
    bare = without_overhead(cost)
    levels = [
        replace(
            level,
            t_ns=_product(level.t_ns, time) or 0,
            keep_bytes=_product(level.keep_bytes, size) or 0,
            work_bytes=_product(level.work_bytes, size),
            b_work_bytes=_product(level.b_work_bytes, size),
        )
        for level in bare.recompute
    ]
    changed: dict[str, Any] = {"recompute": tuple(levels)}
    for keys, factor in ((_OF_WORK, time), (_OF_COPIES, copies), (_OF_SIZE, size)):
        for key in keys:
            product = _product(getattr(bare, key), factor)
            shortest = least_ns if key in _POSITIVE else 0
            changed[key] = None if product is None else max(shortest, product)
    return with_overhead(replace(bare, **changed), cost.overhead_ns)


def _product(value: int | None, factor: Fraction) -> int | None:
    return None if value is None else round_half_up(value * factor)


_OF_WORK = ("t_f_ns", "t_b_ns", "t_w_ns", "t_bw_ns")
_OF_COPIES = ("t_offload_ns", "t_reload_ns")
_OF_SIZE = ("act_bytes", "w_bytes", "offload_bytes", "kv_bytes")
_POSITIVE = ("t_f_ns", "t_b_ns", "t_bw_ns", "layers")
AMOUNTS = tuple(
    entry.name
    for entry in fields(StageCost)
    if entry.name not in ("recompute", "splits", "slices", "overhead_ns")
)
_OF_LEVELS = {
    entry.name: (int(entry.name == "layers"), _most(entry.name))
    for entry in fields(RecomputeLevel)
    if entry.name != "name"
}
_RANGES = {key: (int(key in _POSITIVE), _most(key)) for key in AMOUNTS}


def transfer_ns(size_bytes: int, gb_per_s: Any) -> int:
    """Return how long `size_bytes` take at a bandwidth in 10^9 bytes per second, rounded half up."""
    return round_half_up(Fraction(size_bytes) / exact(gb_per_s))
