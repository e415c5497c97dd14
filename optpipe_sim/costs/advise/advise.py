"""`advise`: how to split a model over these GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import OptPipeError
from ...execution import Execution
from ...option_fields import made_of, takes
from ...solvers.options import TREATMENTS
from ...units import Size, as_limit
from ..calibrate import Calibration
from ..imbalance import for_any_ep
from ..layout import Layout
from ..machine_files import load_machine
from ..machines import Machine
from ..model_files import load_model
from ..models import Model
from ..recompute.regions import RECOMPUTE, choice_of
from ..work import Work
from .rows import Advice
from .shortlist import OnProgress, Search
from .space import Question, as_choices

Source = str | os.PathLike[str] | Mapping[str, Any]
Several = int | Sequence[int]


# what may be chosen out of several, and what choices have of their own
CHOSEN = ("tp", "cp", "dp", "ep", "etp", "zero", "chunks", "microbatch")
LEFT_OUT = ("devices", "placement", "layers")


@takes(Layout, Work, without=LEFT_OUT, several=CHOSEN, slice_by="time")
def advise(
    model: Model | Source,
    machine: Machine | Source,
    gpus: int,
    global_batch: int,
    seq: int,
    *,
    top: int = 5,
    time_limit: float = 20.0,
    memory_limit: Size | None = None,
    margin: float = 0.0,
    tolerance: float = 0.005,
    recompute: Sequence[str] | None = None,
    treatments: Sequence[str] | None = None,
    per_stage: bool = False,
    seed: int = 0,
    schedules: Sequence[str] | None = None,
    calibration: Calibration | None = None,
    on_progress: OnProgress | None = None,
    on_wait: Callable[[], None] = lambda: None,
    pp: Several | None = None,
    slices: Several | str = 1,
    execution: Execution | str | None = None,
    **options: Any,
) -> Advice:
    """Return the best configuration of each of the `top` best splits of a model over GPUs.

    Args:
        model, machine: names, files, mappings, or what `load_model` and `load_machine` return.
        gpus: in all. `global_batch`: sequences per iteration, in all.
        seq: tokens of each.
        time_limit: seconds; what is not searched by then is counted, with the best it could be.
        memory_limit: bytes per device; None: what driver and libraries leave, as in `evaluate` and
            `estimate`, less `margin` of it.
        tolerance: what could be faster by no more than this is not planned or solved further;
            0 searches all that a bound does not exclude.
        recompute, schedules: what to choose from; None: all that make sense (offloading only where
            the machine has PCIe data).
        treatments: the allowed treatments of activations, out of ``keep, offload, recompute``; None: all.
            `per_stage`: all activations of a stage get the same treatment. `seed`: of the searches.
        calibration: what `calibrate` returned; its rates are used, and its errors reported.
        on_progress: called with what is going on, how much of it is done, and of how much. `on_wait`: called
            before the engines are compiled, once on a machine, which takes longer than `time_limit`.
        pp: devices along the pipeline: what may be chosen, a number or several, as of each field of `Layout` and
            `microbatch`. By default whatever divides; `etp` is one size unless given, and devices share sequences
            (cp) where each has 8,192 tokens of one at least.
        slices: of each sequence, a number, several, or ``auto``: those with 8,192 tokens per device at least.
        execution: as for `evaluate`.
        options: the fields of `Layout` and `Work`, as for `estimate`; an imbalance of a file is for `evaluate`.

    Raises:
        OutOfMemory: where nothing fits; names what needs the least.
        OptPipeError: one line, for what can never be.
    """
    model = model if isinstance(model, Model) else load_model(model)
    machine = machine if isinstance(machine, Machine) else load_machine(machine)
    if calibration is not None:
        machine = machine.with_rates(calibration.rates)
    _check(top, margin)
    lists = {"pp": pp, **{key: options.pop(key, None) for key in CHOSEN}}
    listed = {key: as_choices(key, value) for key, value in lists.items() if value is not None}
    slice_by = options.pop("slice_by")
    if isinstance(slices, str) and slices != "auto":
        raise OptPipeError(f"slices: expected auto or numbers of at least 1, got {slices!r}")
    allowed = as_choices("treatments", treatments) or TREATMENTS
    levels = tuple(map(choice_of, as_choices("recompute", recompute) or RECOMPUTE))
    if "recompute" not in allowed:
        levels = tuple(name for name in levels if name == "none")
    imbalance = for_any_ep(options.pop("imbalance", 1.0), model.experts)
    (work,) = made_of(options, Work, seq=seq, imbalance=imbalance)
    question = Question(
        model,
        machine,
        gpus,
        global_batch,
        work,
        _limit(machine, margin, memory_limit),
        recompute=levels,
        schedules=as_choices("schedules", schedules),
        execution=machine.issued_as(execution),
        slices=None if slices == "auto" else as_choices("slices", slices),
        slice_by=slice_by,
        treatments=allowed,
        per_stage=per_stage,
        seed=seed,
        **listed,  # type: ignore[arg-type]
    )
    report = on_progress or (lambda *_: None)
    return Search(question, top, time_limit, tolerance, report, on_wait).run(calibration)


def _check(top: int, margin: float) -> None:
    """Refuse what can never be."""
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise OptPipeError(f"top: must be a whole number of at least 1, got {top!r}")
    if not 0 <= margin < 1:
        raise OptPipeError(f"margin: must be from 0 to 1, got {margin}")


def _limit(machine: Machine, margin: float, given: Size | None) -> int:
    """Return the limit as given, else what the machine leaves, less `margin` of it."""
    if given is not None:
        return as_limit("memory limit", given)
    return int(machine.limit_bytes() * (1 - margin))
