"""Which limit and which treatment bind at the lower bound: how it changes if a limit is relaxed or
a treatment is forbidden.

Everything is computed from the closed forms of `bounds.bounds`, which hold for every order of
microbatches and every treatment of every activation that the profile has costs for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from ..bounds.bounds import Bound, lower_bound
from ..profile import CostProfile
from ..stage_cost import StageCost
from ..units import format_time

OFFLOAD, RECOMPUTE = "offload", "recompute"


class Eased(NamedTuple):
    """The bound (ns) with one limit relaxed."""

    how: str
    ns: int


@dataclass(frozen=True)
class Binding:
    """The limits and treatments that determine the closed-form bound.

    Attributes:
        bound: the bound itself.
        without: per treatment of the profile, the bound (ns) if it is forbidden; None if nothing
            fits then.
        eased: the bound for each relaxed limit.
        roomier: `without`, and the bound itself under "", with room for one more activation per device.
    """

    bound: Bound
    without: dict[str, int | None]
    eased: tuple[Eased, ...]
    roomier: dict[str, int | None]

    @property
    def binds(self) -> tuple[str, ...]:
        """The treatments without which the bound would be higher."""
        return _needed(self.without, self.bound.ns)

    @property
    def binds_with_more_room(self) -> tuple[str, ...]:
        """The same with room for one more activation per device."""
        return _needed(
            {name: ns for name, ns in self.roomier.items() if name}, self.roomier[""] or 0
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "closed_form_ns": self.bound.ns,
            "closed_form": self.bound.name,
            "binds": list(self.binds),
            "without_ns": self.without,
            "eased_ns": {one.how: one.ns for one in self.eased},
            "binds_with_more_room": list(self.binds_with_more_room),
        }


def _needed(without: dict[str, int | None], bound_ns: int) -> tuple[str, ...]:
    return tuple(name for name, ns in without.items() if ns is None or ns > bound_ns)


def analyse_binding(
    profile: CostProfile, microbatches: int, objective: str, limits: Sequence[int]
) -> Binding:
    """Find what binds under a memory limit per device."""
    profile = replace(profile, memory_limit=None)

    def bound(costs: CostProfile, limits: Sequence[int]) -> Bound:
        return lower_bound(costs, microbatches, objective, limits)

    def fewer(limits: Sequence[int]) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        for name, costs in _without(profile).items():
            fits = all(map(int.__le__, costs.least_limits, limits))
            found[name] = bound(costs, limits).ns if fits else None
        return found

    def room(activations: int) -> list[int]:
        each = (_activation(profile, device) for device in range(profile.devices))
        return [limit + activations * size for limit, size in zip(limits, each, strict=True)]

    more = room(1)
    eased = [
        Eased("with room for one more activation per device", bound(profile, more).ns),
        Eased("with room for all activations", bound(profile, room(microbatches)).ns),
    ]
    if profile.offload is not None:
        quick = _changed(profile, lambda cost: replace(cost, t_offload_ns=0, t_reload_ns=0))
        eased.append(Eased("if copies took no time", bound(quick, limits).ns))
    for name in profile.level_names:
        free = _changed(profile, partial(_free, name))
        eased.append(Eased(f"if recomputing {name!r} took no time", bound(free, limits).ns))
    return Binding(
        bound(profile, limits),
        fewer(limits),
        tuple(eased),
        {"": bound(profile, more).ns, **fewer(more)},
    )


def _without(profile: CostProfile) -> dict[str, CostProfile]:
    """Yield the profile without each one of its treatments."""
    found = {}
    if profile.offload is not None:
        found[OFFLOAD] = replace(profile, offload=None)
    if profile.has_levels:
        found[RECOMPUTE] = _changed(profile, lambda cost: replace(cost, recompute=()))
    return found


def _changed(profile: CostProfile, change: Callable[[StageCost], StageCost]) -> CostProfile:
    return profile.map_stages(lambda _, cost: change(cost))


def _free(name: str, cost: StageCost) -> StageCost:
    levels = (replace(one, t_ns=0) if one.name == name else one for one in cost.recompute)
    return replace(cost, recompute=tuple(levels))


def _activation(profile: CostProfile, device: int) -> int:
    """Return the bytes of one microbatch on a device, over all its stages."""
    stages = zip(profile.placement, profile.stages, strict=True)
    return sum(cost.act_bytes for place, cost in stages if place == device)


# -- in words -----------------------------------------------------------------------------------------

WORDS = {OFFLOAD: "offloading", RECOMPUTE: "recomputation"}


def describe_binding(found: Binding) -> list[str]:
    """Describe which treatments the bound depends on, and the gain from relaxing a limit."""
    lines = [
        f"The closed forms prove {format_time(found.bound.ns)} ({found.bound.name}), for every order of"
        " microbatches and every treatment that the profile has."
    ]
    for name, ns in found.without.items():
        if ns is None:
            lines.append(f"  Without {WORDS[name]} nothing fits at all.")
        elif ns > found.bound.ns:
            lines.append(
                f"  Without {WORDS[name]} they would prove {format_time(ns)}: it is what helps here."
            )
    if not found.binds:
        lines.append("  No treatment binds: not allowing one of them changes nothing.")
    rows = [f"  {format_time(one.ns):>9}  {one.how}" for one in found.eased]
    lines += [
        "It would be",
        *(row + _by(one, found) for row, one in zip(rows, found.eased, strict=True)),
    ]
    spared = set(found.binds) - set(found.binds_with_more_room)
    for name in sorted(spared):
        lines.append(
            f"With room for one more activation per device {WORDS[name]} is not needed for it."
        )
    return lines


def _by(one: Eased, found: Binding) -> str:
    less = found.bound.ns - one.ns
    return f" ({format_time(less)} less)" if less > 0 else " (no less)"
