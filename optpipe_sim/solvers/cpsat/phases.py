"""What the CP-SAT engine solves in turn: options, and one phase per model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import OptPipeError
from ..problem import Problem
from . import model as cpsat_model
from .order import FIFO, FREE, PASSING, RANKS, WINDOWS

BY_ORDER = 8  # microbatches up to which memory is told by order: stronger, but it grows fast
MOST_PAIRS = 60_000  # of events on a device; beyond it the models of the proof are too large


@dataclass(frozen=True)
class CpsatOptions:
    """How to set CP-SAT to work.

    Attributes:
        order: ``auto`` (first in, first out, then the proof for the rest), ``fifo`` (the search
            alone; with offloading its bound says nothing of other orders) or ``free`` (one model
            with no order of microbatches: simple and slow).
        memory: ``auto``, ``cumulative`` or ``order``; see `memory.memory`.
        quantum_ns: round times down to multiples of it; the bound stays one, optimal schedules may
            be missed. None: exact.
        deterministic: with several workers, let them take turns in a fixed order.
        parameters: further parameters of CP-SAT, by name.
    """

    order: str = "auto"
    memory: str = "auto"
    quantum_ns: int | None = None
    deterministic: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, known in (
            ("order", ("auto", FIFO, FREE)),
            ("memory", ("auto", "cumulative", "order")),
        ):
            value = getattr(self, name)
            if value not in known:
                raise OptPipeError(f"{name}: expected {', '.join(known)}, got {value!r}")


@dataclass(frozen=True)
class Phase:
    """One model of a run.

    Attributes:
        order: of microbatches; see `order`.
        share: of the time left that it may take.
        heads: whether devices start as in a replay (for ``span``).
        strict: whether only costs below the best count.
        covers: what its bound holds for: ``all`` schedules, those ``sorted``, those ``passing``, or
            ``none``.
    """

    order: str
    share: float = 1.0
    heads: bool = False
    strict: bool = False
    covers: str = "all"


def phases(problem: Problem, options: CpsatOptions) -> list[Phase]:
    """What to solve, in turn."""
    if options.order == FREE:
        return [Phase(FREE)]
    if problem.may_recompute:
        heads = problem.objective == "span"
        return [
            Phase(FIFO, 0.4, heads=heads, covers="none"),
            Phase(FREE, strict=True),
        ]
    moves = any(cpsat_model.may_move(problem, s) for s in range(problem.shape.stages))
    share = 0.4 if problem.microbatches <= BY_ORDER else 0.75
    planned = [Phase(FIFO, share if moves else 1.0, covers="sorted" if moves else "all")]
    if problem.objective == "span":
        # first what a replay can do; the proof must cover starts that are delayed
        planned = [
            Phase(FIFO, share, heads=True, covers="none"),
            replace(planned[0], strict=True),
        ]
    pairs = 10 * problem.shape.devices * (problem.shape.chunks * problem.microbatches) ** 2
    if moves and options.order == "auto" and pairs <= MOST_PAIRS:
        if problem.objective == "flush" and options.quantum_ns is None:
            planned += [Phase(WINDOWS, 0.6, strict=True)]
        planned += [Phase(RANKS, 0.5, strict=True)]
        planned += [Phase(PASSING, strict=True, covers="passing")]
    return [*planned[:-1], replace(planned[-1], share=1.0)]
