"""Settings of `confirm` and `train` that are options of the command line; light, as its parser reads them."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import OptPipeError
from ..option_fields import option


@dataclass(frozen=True)
class Tolerances:
    """What still counts as predicted, as shares; the fields say of what.

    Attributes:
        memory_bytes: what a peak may be above, beside its share.
        gradient: 0: bit by bit; None: by the dtype, see `GRADIENT_TOLERANCE`.
    """

    time: float = option(
        0.05,
        "how far the makespan may be from the predicted one (default: 5%)",
        metavar="SHARE",
        flag="time-tolerance",
    )
    memory: float = option(
        0.05,
        "how far the peak of a rank may be above the predicted one, 0.5 MiB aside (default: 5%)",
        metavar="SHARE",
        flag="memory-tolerance",
    )
    memory_bytes: int = 2**19
    gradient: float | None = option(
        None,
        "how far the gradient may be off, of its largest entry (default: 1e-5; bf16 2%, fp16 0.5%)",
        metavar="SHARE",
        flag="gradient-tolerance",
    )


@dataclass(frozen=True)
class Online:
    """How to search for a better schedule while training runs; the fields say what each means.

    Attributes:
        warmup: medians are over as many.
        drift: costs are measured again then, and the solver is restarted.
        solver_s, workers, seed: of the solver.
        exact: propose only schedules in which every stage adds up its weight gradients in the order
            of microbatches: then the losses are bitwise those of any other such schedule.
        settle_s: a schedule is proposed once the solver is done, or has found nothing better for this
            long, so that switches are few.
    """

    warmup: int = option(10, "iterations that costs are measured over", metavar="N")
    min_gain: float = option(0.01, "what a switch has to save by prediction", metavar="X%")
    drift: float = option(
        0.5,
        "measure and solve again when an op changes by this share of its stage's compute time",
        metavar="X%",
    )
    solver_s: float = option(20.0, "per solve", metavar="SECONDS", flag="solver-time")
    workers: int = 1
    seed: int = 0
    exact: bool = option(
        True,
        "only schedules that add up gradients in the order of microbatches",
        off="also schedules that add up gradients in another order: losses equal up to rounding",
        flag="any-order",
    )
    settle_s: float = 2.0

    def __post_init__(self) -> None:
        if self.warmup < 1:
            raise OptPipeError(f"warmup: must be at least 1 iteration, got {self.warmup}")
        if self.min_gain < 0 or not self.drift > 0:
            raise OptPipeError(
                f"min gain: must be at least 0, and drift above 0; got {self.min_gain}, {self.drift}"
            )
