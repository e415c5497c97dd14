"""StageCost: what one stage costs; stages divided and merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from .errors import ProfileError
from .units import exact, round_half_up

MAX_TIME_NS = 10**15  # 11 days for one op: beyond it sums of many ops could overflow
MAX_BYTES = 2**50


@dataclass(frozen=True)
class StageCost:
    """One stage's share of one microbatch: times in ns, memory in bytes.

    `act_bytes` are held from F to B, `w_bytes` of them still from B to W; `offload_bytes` is what
    an offload moves (default: all of act). `t_bw_ns` is the fused backward (default: B + W).
    `static_bytes` stay for ever: weights, gradients, optimizer, reserve.
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

    def __post_init__(self) -> None:
        if self.offload_bytes is None:
            object.__setattr__(self, "offload_bytes", self.act_bytes)
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ProfileError(f"{entry.name}: must be a whole number, got {value!r}")
            least = 1 if entry.name in ("t_f_ns", "t_b_ns", "t_bw_ns") else 0
            most = MAX_TIME_NS if entry.name.endswith("_ns") else MAX_BYTES
            if value < least:
                raise ProfileError(
                    f"{entry.name}: must be {'above' if least else 'at least'} 0, got {value}"
                )
            if value > most:
                raise ProfileError(f"{entry.name}: {value} is more than {most}, the most allowed")
        if self.w_bytes > self.act_bytes:
            raise ProfileError(f"w_bytes: {self.w_bytes} is more than act_bytes, {self.act_bytes}")
        if self.offloadable > self.act_bytes:
            raise ProfileError(
                f"offload_bytes: {self.offload_bytes} is more than act_bytes, {self.act_bytes}"
            )

    @property
    def offloadable(self) -> int:
        """`offload_bytes`, as a number for certain."""
        return self.offload_bytes or 0

    @property
    def fused_ns(self) -> int:
        """What BW takes."""
        return self.t_b_ns + self.t_w_ns if self.t_bw_ns is None else self.t_bw_ns

    @property
    def work_ns(self) -> int:
        """The least compute time of one microbatch: F and the cheaper of B + W and BW."""
        return self.t_f_ns + min(self.t_b_ns + self.t_w_ns, self.fused_ns)


_ADDITIVE = tuple(entry.name for entry in fields(StageCost))


def divide(cost: StageCost, parts: int) -> list[StageCost]:
    """`parts` equal parts of a stage; the remainder of every number goes to the first.

    Where that would give the first part more w or offload than act (by a few bytes), what is too
    much moves on to the next one.
    """
    if parts == 1:
        return [cost]
    if min(cost.t_f_ns, cost.t_b_ns, cost.fused_ns) < parts:
        raise ProfileError(f"a stage of {cost.t_f_ns} ns cannot be divided into {parts} chunks")
    shares: dict[str, list[int | None]] = {}
    for key in _ADDITIVE:
        value = getattr(cost, key)
        if value is None:
            shares[key] = [None] * parts
        else:
            shares[key] = [value // parts + value % parts] + [value // parts] * (parts - 1)
    for key in ("w_bytes", "offload_bytes"):
        rest = 0
        for at in range(parts):
            wanted = (shares[key][at] or 0) + rest
            shares[key][at] = min(wanted, shares["act_bytes"][at] or 0)
            rest = wanted - (shares[key][at] or 0)
    return [
        StageCost(**{key: shares[key][at] for key in _ADDITIVE})  # type: ignore[arg-type]
        for at in range(parts)
    ]


def merge(costs: Sequence[StageCost]) -> StageCost:
    """Adjacent stages as one."""
    if len(costs) == 1:
        return costs[0]
    total: dict[str, int | None] = {}
    for key in _ADDITIVE:
        values = [cost.fused_ns if key == "t_bw_ns" else getattr(cost, key) for cost in costs]
        total[key] = None if None in values else sum(values)
    if all(cost.t_bw_ns is None for cost in costs):
        total["t_bw_ns"] = None
    return StageCost(**total)  # type: ignore[arg-type]


def transfer_ns(size_bytes: int, gb_per_s: Any) -> int:
    """How long `size_bytes` take at a bandwidth in 10^9 bytes per second, rounded half up."""
    return round_half_up(Fraction(size_bytes) / exact(gb_per_s))
