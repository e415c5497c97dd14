"""Which values of a schedule's options searches try: the grids in its entry of the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import gcd
from typing import Any, Protocol

from ..profile import CostProfile
from ..schedule import Shape
from ..units import size_text

# Tiers of `Trial`, in the order in which they are tried. `advise` tries what is AS_NAMED as well, so that
# its options have no functions as values.
AS_NAMED, USUAL, UNUSUAL, CHOOSING = 1, 2, 3, 4
FITTED = "fitted"  # right behind AS_NAMED: for the problem's limit
LIMITS = "limits"  # in the time of UNUSUAL: for smaller limits, as long as these gain something
SLICED = "sliced"  # where sequences are cut
STARTS = "starts"  # only to start from: all others are among the variants of GIS and PipeOffload

PAIR, OFFLOAD, RECOMPUTE = "pair", "offload", "recompute"

SHARES = ("0.25", "0.5", "0.75", "1")  # of activations that Megatron-LM's rule offloads
MOST_LIMITS = 48  # limits to plan for, if there are more sums of activations than this


class Setting(Protocol):
    """What grids of options are asked for: a problem of `solve`."""

    @property
    def profile(self) -> CostProfile: ...
    @property
    def microbatches(self) -> int: ...
    @property
    def limits(self) -> tuple[int, ...] | None: ...
    @property
    def shape(self) -> Shape: ...


Values = Sequence[str] | Callable[[Setting], Iterable[object]]


@dataclass(frozen=True)
class Trial:
    """A grid of values of a schedule's options that searches try together.

    Attributes:
        tier: when it is tried. options: the values of each option, as text or a function of the problem; an empty one leaves the
            option out. The first varies slowest.
        needs: tried where solutions may `PAIR`, `OFFLOAD` or `RECOMPUTE`; empty: everywhere.
        on: as `Entry.runs`; None: wherever the schedule runs.
    """

    tier: int | str = AS_NAMED
    options: Mapping[str, Values] = field(default_factory=dict)
    needs: str = ""
    on: tuple[str, ...] | None = None

    @property
    def place(self) -> int:
        """Its place among those of its tier: what needs more comes later."""
        return ("", PAIR, OFFLOAD, RECOMPUTE).index(self.needs)

    def admits(self, setting: object) -> bool:
        """Whether solutions of a problem, or plans of a question of `advise`, may have what it needs."""
        return not self.needs or bool(getattr(setting, f"may_{self.needs}"))

    def names(self, name: str, setting: Any) -> Iterator[str]:
        """Yield the name of a schedule with each combination of the values for a `Setting`."""
        grid = [
            [str(value) for value in (values(setting) if callable(values) else values)]
            for values in self.options.values()
        ]
        for chosen in product(*grid):
            given = zip(self.options, chosen, strict=True)
            text = ",".join(f"{key}={value}" for key, value in given if value)
            yield f"{name}:{text}" if text else name


def groups(usual: bool) -> Callable[[Setting], list[int]]:
    """Return the function for interleaved 1F1B's sizes of groups but the default one, p: those that divide m, and 2p,
    or all others that leave no rest, or one of at least p."""

    def sizes(setting: Setting) -> list[int]:
        p, m = setting.profile.devices, setting.microbatches
        known = (size for size in range(p + 1, m + 1) if not 0 < m % size < p)
        return [size for size in known if (m % size == 0 or size == 2 * p) is usual]

    return sizes


def few_groups(setting: Setting) -> list[int]:
    """Return some of the sizes of groups of more than one microbatch that GIS and PipeOffload may have."""
    p = setting.profile.devices
    return sorted({2, p // 4, p // 2, p} - {0, 1})


def chunks(setting: Setting) -> range:
    """Return the numbers of chunks that may be offloaded."""
    return range(1, setting.shape.chunks + 1)


def slices(setting: Setting) -> range:
    """Return the numbers of slices that may be offloaded."""
    return range(1, setting.shape.slices + 1)


def own_slices(setting: Setting) -> list[int]:
    """Return the problem's number of slices."""
    return [setting.shape.slices]


def own_limit(setting: Setting) -> list[str]:
    """Return the problem's memory limit, if it has one."""
    return [] if setting.limits is None else [size_text(min(setting.limits))]


def one_activation(setting: Setting) -> list[str]:
    """Return none, and the bytes of the largest activation."""
    return ["", f"{max(cost.act_bytes for cost in setting.profile.stages)}B"]


def limits(setting: Setting) -> list[str]:
    """Return limits up to the problem's own, and up to twice the memory of 1F1B, from the largest:
    each sum of activations, or a fixed number of them evenly spread."""
    costs = setting.profile
    sizes = {size for cost in costs.stages for size in (cost.act_bytes, cost.w_bytes) if size}
    if not sizes:
        return []
    most = 2 * costs.devices * max(cost.act_bytes for cost in costs.stages) * costs.chunks
    step = gcd(*sizes)
    if most // step > MOST_LIMITS:
        step = -(-most // MOST_LIMITS)
    top = max(costs.static_bytes) + most
    own = top if setting.limits is None else max(setting.limits)
    found = (top - step * at for at in range(most // step))
    return [size_text(limit) for limit in found if limit <= own]
