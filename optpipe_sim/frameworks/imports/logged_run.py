"""What a trainer's log says of a run, as the options of `evaluate` and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoggedRun:
    """What a log says of a run.

    Attributes:
        options: of `evaluate`, by name; an empty text for a flag.
        iteration_ns: the median of the iterations that count, `iterations` of them; None: not logged.
            `tokens_per_s`: of one GPU, where that is logged instead.
        peak_bytes: of the fullest rank; None: not logged.
        notes: what the options cannot say of the run, in sentences.
        trainer: what wrote the log. `family`: whose options the trainer has, of ``--family``.
        complete: an option that the log does not have was not given to the run either.
        needed: options without a default that the log does not say.
        parameters: of the whole model; None: not logged.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    iteration_ns: int | None = None
    iterations: int = 0
    tokens_per_s: float | None = None
    peak_bytes: int | None = None
    notes: tuple[str, ...] = ()
    trainer: str = "Megatron-LM"
    family: str = "megatron"
    complete: bool = True
    needed: tuple[str, ...] = ()
    parameters: int | None = None
