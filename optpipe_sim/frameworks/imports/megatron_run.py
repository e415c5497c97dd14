"""The run in a trainer's log as the options of `evaluate`: Megatron-LM's by its arguments, the time of its iterations, and
its memory, or what others log.

It needs no timers: the lines that every run logs are enough.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from statistics import median

from ...costs.megatron_arguments import describes_model
from ...costs.models import Model
from ...errors import OptPipeError
from ...files import read_log_text
from ..megatron.layout import layers_in
from .logged_run import LoggedRun
from .megatron_lines import Log, read_lines
from .megatron_log import batch_of, layers_of, steady
from .megatron_options import beside, kernels, recomputation, sizes
from .other_logs import read_other

Path = str | os.PathLike[str]
_NEEDED = ("world_size", "pipeline_model_parallel_size", "seq_length", "micro_batch_size")
_COMPARED = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "experts": "num_experts",
}


def read_run(path: Path) -> LoggedRun:
    """Read the last run in a log that has iterations.

    Raises:
        OptPipeError: names the file and what is missing in it.
    """
    log = last_run(path)
    if not log.arguments:
        try:
            other = read_other(read_log_text(path), log)
        except OptPipeError as error:
            raise OptPipeError(f"{path}: {error}") from None
        if other is not None:
            return other
    return _run_of(log, path)


def _run_of(log: Log, path: Path) -> LoggedRun:
    """Return what the arguments and the iterations of a run say.

    Raises:
        OptPipeError: names the file and what is missing in it.
    """
    for key in _NEEDED:
        if log.number(key, 0) < 1:
            raise OptPipeError(
                f"{path}: no argument {key}; expected the arguments that Megatron-LM prints when it starts, or steps of"
                " torchtitan or NeMo"
            )
    timed = log.timed[1:]
    if not timed:
        what = log.unread or "no two iterations with their time"
        raise OptPipeError(
            f"{path}: {what}; expected lines such as iteration 2/ 100 | ... elapsed time per iteration (ms): 15230.0 |,"
            " of which the first, that of the warm-up, does not count"
        )
    same = steady(log, timed, path)
    batch = batch_of(log, same, path)
    options, notes = dict(sizes(log, batch)), []
    counts, why = _layers(log, path)
    options |= {"--layers": ",".join(map(str, counts))} if counts else {}
    notes += [why] if why else []
    options |= dict(recomputation(log, notes))
    options |= dict(kernels(log, notes))
    notes += beside(log)
    if len(timed) > len(same):
        notes.append(f"{len(timed) - len(same)} iterations with other global batch sizes")
    if log.peak_bytes is None:
        notes.append("peak memory: the log has no lines of memory")
    taken = median(one.elapsed_ms or 0.0 for one in same)
    return LoggedRun(
        options, round(taken * 1e6), len(same), peak_bytes=log.peak_bytes, notes=tuple(notes)
    )


def last_run(path: Path) -> Log:
    """Return the last run in a log that has iterations, or else the last one."""
    state = os.stat(path) if os.path.exists(path) else None
    return _read(os.fspath(path), state and (state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=1)
def _read(path: str, state: tuple[int, int] | None) -> Log:
    """Read a file in this state once, however often it is asked for."""
    runs = read_lines(read_log_text(path))
    logged = [run for run in runs if run.timed]
    return logged[-1] if logged else runs[-1]


def differs(model: Model, path: Path) -> str | None:
    """Return how a model differs from that of a log's arguments, in words; None where it does not, or
    the log does not describe one."""
    log = last_run(path)
    if not describes_model(log.arguments):
        return None
    for ours, theirs in _COMPARED.items():
        mine, said = getattr(model, ours), log.number(theirs, 0)
        if mine != said:
            return f"{theirs} {mine or 'None'}, but the log has {said or 'None'}"
    return None


def _layers(log: Log, path: Path) -> tuple[Sequence[int | str] | None, str]:
    """Return the decoder layers of each stage, and why they are not known."""
    stages = log.number("pipeline_model_parallel_size", 1)
    stages *= log.number("virtual_pipeline_model_parallel_size", 1)
    counts, layout = (
        layers_of(log, stages, path),
        log.arguments.get("pipeline_model_parallel_layout", "None"),
    )
    if counts is not None:
        return counts if layout == "None" else layers_in(layout), ""
    return (
        None,
        "layers: the arguments do not say how they are dealt to the stages; they are balanced here",
    )
