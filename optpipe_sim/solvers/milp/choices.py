"""Choices: the combinations of an activation's treatment, a fused or split backward, and offloading."""

from __future__ import annotations

from typing import NamedTuple

from ...op_table import KEEP, apart, inside
from ...ops import BW, B, C, F, O, OpKind, R, W
from ...profile import CostProfile


class Choice(NamedTuple):
    """One way to treat an activation of a stage.

    Attributes:
        treatment: see `op_table`. `fused`: by a BW. `moved`: offloaded and reloaded.
        durations: ns per kind of op; 0 for ops that the choice does not have.
        entering: bytes held while F runs; `keep`: bytes held after F; `moved_bytes`: the part of these
            that is on the host between O and R; `back`: bytes held while the backward runs.
    """

    treatment: int
    fused: bool
    moved: bool
    durations: dict[OpKind, int]
    entering: int
    keep: int
    moved_bytes: int
    back: int

    @property
    def level(self) -> int:
        """The level of recomputation, from 1; 0: kept whole."""
        return (self.treatment + 1) // 2

    @property
    def apart(self) -> bool:
        return self.treatment != KEEP and self.treatment == apart(self.level)

    @property
    def name(self) -> str:
        way = f"l{self.level}{'apart' if self.apart else 'inside'}" if self.level else "keep"
        return way + "_BW" * self.fused + "_O" * self.moved

    def same_treatment(self, other: Choice) -> bool:
        """Whether two choices differ at most in the fused backward, which `per_stage` leaves free."""
        return (self.treatment, self.moved) == (other.treatment, other.moved)


def choices_of(profile: CostProfile, s: int, may_move: bool, drop: bool) -> list[Choice]:
    """Return the choices for an activation of a stage with levels; keeping it whole comes first.
    `drop`: leave out a BW that neither takes less time than B and W nor holds less than B: B and
    W in a row are equivalent, and successors of B start sooner."""
    table, cost = profile.op_table, profile.stages[s]
    levels = range(1, 1 + len(cost.recompute))
    treatments = [KEEP, *(way(level) for level in levels for way in (inside, apart))]
    found = []
    for treatment in treatments:
        duration, allocated, released, _ = (array[:, s, treatment].tolist() for array in table)
        keep = allocated[F] - released[F]
        held = {kind: keep + allocated[C] + allocated[kind] for kind in (B, BW)}
        faster = duration[BW] < duration[B] + duration[W]
        for fused in (False, True):
            if fused and drop and not faster and held[BW] >= held[B]:
                continue
            last = BW if fused else B
            for moved in (False, True):
                if moved and not (may_move and released[O]):
                    continue
                times = {F: duration[F], B: duration[last], W: duration[W] * (not fused)}
                times |= {C: duration[C], O: duration[O] * moved, R: duration[R] * moved}
                found.append(
                    Choice(
                        treatment,
                        fused,
                        moved,
                        times,
                        allocated[F],
                        keep,
                        released[O] * moved,
                        held[last],
                    )
                )
    return found
