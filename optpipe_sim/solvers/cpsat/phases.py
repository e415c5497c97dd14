"""The phases of the CP-SAT engine, one per model, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import OptPipeError
from ..problem import Problem
from . import model as cpsat_model
from .order import FIFO, FREE, PASSING, RANKS, WINDOWS

BY_ORDER = 8  # microbatches up to which memory is formulated by order: stronger, but it grows fast
MOST_PAIRS = 60_000  # events on a device beyond which the models of the proof are too large


@dataclass(frozen=True)
class CpsatOptions:
    """The options of the CP-SAT engine.

    Attributes:
        order: ``auto`` (first in, first out, then the proof for the rest), ``fifo`` (the search
            alone; with offloading its bound does not cover other orders) or ``free`` (one model
            with no order of microbatches: simple and slow).
        memory: ``auto``, ``cumulative`` or ``order``; see `memory.memory`.
        quantum_ns: round times down to multiples of it; the bound stays valid, optimal schedules
            may be missed. None: exact.
        deterministic: let several workers take turns in a fixed order.
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
        share: its share of the time left.
        heads: whether devices start as in a replay (for ``span``). strict: whether only costs below
            the incumbent are allowed.
        covers: the schedules that its bound covers: ``all``, the ``sorted`` ones, the ``passing``
            ones, or ``none``.
    """

    order: str
    share: float = 1.0
    heads: bool = False
    strict: bool = False
    covers: str = "all"


def phases(problem: Problem, options: CpsatOptions) -> list[Phase]:
    """Return the phases in order."""
    if options.order == FREE:
        return [Phase(FREE)]
    if problem.decides:
        heads = problem.objective == "span"
        return [
            Phase(FIFO, 0.4, heads=heads, covers="none"),
            Phase(FREE, strict=True),
        ]
    moves = any(cpsat_model.may_move(problem, s) for s in range(problem.shape.stages))
    share = 0.4 if problem.microbatches <= BY_ORDER else 0.75
    planned = [Phase(FIFO, share if moves else 1.0, covers="sorted" if moves else "all")]
    if problem.objective == "span":
        # first starts as in a replay; the proof must also cover delayed starts
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
