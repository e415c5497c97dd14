"""The phases of the CP-SAT engine, one per model, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import OptPipeError
from ..problem import Problem
from .model import may_move
from .order import FIFO, FREE, RANKS, WINDOWS

# microbatches up to which a proof is likely, so that first in, first out has less of the time, and memory is stated by
# order (from nothing, at p = 4, m = 8, the engine then took 0.4 s of CPU time, else 7.3; one run each)
FEW = 8
MOST_PAIRS = 60_000  # events on a device beyond which the models of the proof are too large


@dataclass(frozen=True)
class CpsatOptions:
    """The options of the CP-SAT engine.

    Attributes:
        order: ``auto`` (first in, first out, then the proof for the rest), ``fifo`` (the search
            alone; with offloading its bound does not cover other orders) or ``free`` (one model
            with no order of microbatches: simple and slow).
        quantum_ns: round times down to multiples of it; the bound stays valid, optimal schedules
            may be missed. None: exact.
        deterministic: let several workers take turns in a fixed order.
        parameters: further parameters of CP-SAT, by name.
    """

    order: str = "auto"
    quantum_ns: int | None = None
    deterministic: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.order not in ("auto", FIFO, FREE):
            raise OptPipeError(f"order: expected auto, fifo, free, got {self.order!r}")


@dataclass(frozen=True)
class Phase:
    """One model of a run.

    Attributes:
        order: of microbatches; see `order`.
        share: its share of the time left.
        prompt: whether devices start as in a replay (for ``span``). strict: whether only costs below
            the incumbent are allowed.
        covers: whether its bound holds for every schedule.
    """

    order: str
    share: float = 1.0
    prompt: bool = False
    strict: bool = False
    covers: bool = True


def phases(problem: Problem, options: CpsatOptions) -> list[Phase]:
    """Return the phases in order."""
    span = problem.objective == "span"
    if options.order == FREE:
        return [Phase(FREE)]
    if problem.decides:
        return [Phase(FIFO, 0.4, prompt=span, covers=False), Phase(FREE, strict=True)]
    share = 0.4 if problem.microbatches <= FEW else 0.75
    planned = [Phase(FIFO, share, prompt=span, covers=False)]
    if not any(may_move(problem, s) for s in range(problem.shape.stages)):
        # first in, first out loses nothing; for ``span`` the proof must also cover delayed starts
        planned = [*planned[:span], Phase(FIFO, strict=span)]
    pairs = 10 * problem.shape.devices * (problem.shape.chunks * problem.microbatches) ** 2
    if not planned[-1].covers and options.order == "auto" and pairs <= MOST_PAIRS:
        if not span and options.quantum_ns is None:
            planned += [Phase(WINDOWS, 0.6, strict=True)]
        planned += [Phase(RANKS, 0.5, strict=True), Phase(FREE, strict=True)]
    return [*planned[:-1], replace(planned[-1], share=1.0)]
