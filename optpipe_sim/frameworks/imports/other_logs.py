"""Logs of trainers that do not print Megatron-LM's arguments: torchtitan's, NeMo's, and those with nothing but
iterations, as Megatron-Bridge writes. What they do not say of the run has to be given.

torchtitan's lines: torchtitan/components/metrics.py (``tps`` is the tokens of a replica over the time and the GPUs of
the replica; ``memory`` is what the allocator reserved), torchtitan/distributed/parallel_dims.py and
pipeline_parallel.py, torchtitan/trainer.py. NeMo's: the timing callback's ``train_step_timing in s``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from statistics import median

from ...costs.megatron_arguments import uncoloured
from ...errors import OptPipeError
from ...schedules import INTERLEAVED, PLAIN, REGISTRY
from .logged_run import LoggedRun
from .megatron_lines import Log

TITAN, NEMO, BARE = "torchtitan", "NeMo", "iterations without arguments (as Megatron-Bridge's)"
_RUN = ("--model", "--gpus", "--pp", "--tp", "--microbatch", "--global-batch", "--seq")

_STEP = re.compile(r"\bstep:\s*(\d+)\s.*?\btps:\s*([\d,]+)")
_RESERVED = re.compile(r"\bstep:\s*\d+\s.*?memory:\s*(\d+\.\d+)GiB")
_NEMO = re.compile(r"train_step_timing in s[:=]\s*(\d+(?:\.\d+)?)")
_NEMO_BATCH = re.compile(r"global_batch_size:\s*(\d+)")
_DEGREES = re.compile(r"Building device mesh with parallelism: ((?:\w+=\d+(?:, )?)+)")
_MESH = re.compile(r"D device mesh with \[([^\]]*)\], \[([\d, ]*)\]")
_BATCH = re.compile(r"local batch size:? (\d+), global batch size:? (\d+)")
_ACCUMULATED = re.compile(r"gradient[ _]accumulation[ _]steps:? (\d+)")
_SEQUENCE = re.compile(r"global batch size.*sequence length (\d+)")
_PIPELINE = re.compile(
    r"Using pipeline schedule (\w+) with (\d+) microbatches and (\d+) (local )?stages"
)
_CHECKPOINTING = re.compile(r"Applied '?(\w+?)(?:AC)?'? activation checkpointing")
_PARAMETERS = re.compile(r"Model .*size: .*?([\d,]{5,}) total parameters")
_SCHEDULES = {entry.torch or entry.torch_kin: name for name, entry in REGISTRY.items()}


def trainer_of(text: str) -> str:
    """Return which of these trainers wrote a log; empty: none of them."""
    if _STEP.search(uncoloured(text)):
        return TITAN
    return NEMO if _NEMO.search(text) else ""


def read_other(text: str, log: Log) -> LoggedRun | None:
    """Return the run of a log without Megatron-LM's arguments; None for a log of no known trainer.

    Args:
        log: what was read of the text as Megatron-LM's.

    Raises:
        OptPipeError: for a log with less than two steps; without the name of its file.
    """
    trainer = trainer_of(text)
    if trainer == TITAN:
        return _torchtitan(uncoloured(text))
    if trainer == NEMO:
        times = [float(one) * 1e9 for one in _NEMO.findall(text)]
        batches = _NEMO_BATCH.findall(text)
        return _bare(NEMO, times, batches[-1] if batches else None, None)
    timed = log.timed
    if not timed:
        return None
    batch = timed[-1].batch
    times = [
        (one.elapsed_ms or 0.0) * 1e6 for one in timed if one.batch == batch or one is timed[0]
    ]
    return _bare(BARE, times, str(batch) if batch else None, log.peak_bytes)


def _bare(trainer: str, times: list[float], batch: str | None, peak: int | None) -> LoggedRun:
    """Return a run of which nothing is known but how long its iterations take, in ns."""
    options = {"--global-batch": batch} if batch else {}
    return LoggedRun(
        options,
        round(median(_after_first(times))),
        len(times) - 1,
        None,
        peak,
        () if peak else ("peak memory: the log has no lines of it",),
        trainer,
        complete=False,
        needed=tuple(option for option in _RUN if option not in options),
    )


def _after_first(values: list[float]) -> list[float]:
    """Return what was logged of the steps that count.

    Raises:
        OptPipeError: if there is none.
    """
    if len(values) < 2:
        raise OptPipeError("no two logged steps; the first, which warms up, does not count")
    return values[1:]


def _torchtitan(text: str) -> LoggedRun:
    options, notes = _options(text)
    rates: dict[int, float] = {}  # every rank may log the same step
    for step, tokens in _STEP.findall(text):
        if int(step) == 1 and len(rates) > 1:
            rates.clear()  # another run
        rates[int(step)] = float(tokens.replace(",", ""))
    reserved = [float(size) for size in _RESERVED.findall(text)]
    if reserved:
        notes.append(
            f"peak memory: {max(reserved):.2f} GiB were reserved, by rank 0 if no other logs; tensors took less, how much is"
            " not logged (--measured-gib)"
        )
    counts = _after_first(list(rates.values()))
    parameters = _last(_PARAMETERS, text)
    return LoggedRun(
        options,
        None,
        len(counts),
        median(counts),
        None,
        tuple(notes),
        TITAN,
        TITAN,
        complete=False,
        needed=tuple(option for option in _RUN if option not in options),
        parameters=int(parameters[1].replace(",", "")) if parameters else None,
    )


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last place of a pattern: of several runs in a log the last one counts."""
    return next(reversed(list(pattern.finditer(text))), None)


def _options(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the options of a run of torchtitan, and what they cannot say of it."""
    notes: list[str] = []
    options = dict(_degrees(text, notes))
    local = 0
    if batch := _last(_BATCH, text):
        local, options["--global-batch"] = int(batch[1]), batch[2]
    if length := _last(_SEQUENCE, text):
        options["--seq"] = length[1]
    if options.get("--pp") == "1" and local:
        options["--microbatch"] = str(local)
    if pipeline := _last(_PIPELINE, text):
        options |= _pipeline(pipeline, local, options, notes)
        if (accumulated := _last(_ACCUMULATED, text)) and int(accumulated[1]) > 1:
            notes.append(
                f"gradient accumulation: {accumulated[1]} pipelines, one after the other; all of their microbatches"
                " are taken to be in one"
            )
    if checkpointing := _last(_CHECKPOINTING, text):
        if checkpointing[1].lower() == "full":
            options["--recompute"] = "full"
        else:
            notes.append(f"recomputation: {checkpointing[1]}; none is assumed (--recompute)")
    return {**options, "--weights-in-fp32": ""}, notes


def _pipeline(
    said: re.Match[str], local: int, options: Mapping[str, str], notes: list[str]
) -> dict[str, str]:
    """Return the options in the line of a pipeline's schedule, for a local batch (0: not known)."""
    name, m, stages, of_rank = said.groups()
    found = {"--microbatch": str(max(1, local // int(m)))} if local else {}
    chunks = int(stages) if of_rank else int(stages) // int(options.get("--pp", stages))
    if chunks > 1:
        found["--chunks"] = str(chunks)
    ours = _SCHEDULES.get(name)
    if ours is None:
        notes.append(f"schedule: {name}, which has no name here; 1F1B's is taken (--schedule)")
    elif ours not in (PLAIN, INTERLEAVED):
        found["--schedule"] = ours
        if not REGISTRY[ours].torch:
            notes.append(f"schedule: {name} of torch may order some ops otherwise than {ours}")
    return found


def _degrees(text: str, notes: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the parallel sizes of a run of torchtitan."""
    named = [re.findall(r"(\w+)=(\d+)", one) for one in _DEGREES.findall(text)]
    named += [
        list(zip(re.findall(r"\w+", names), re.findall(r"\d+", sizes), strict=False))
        for names, sizes in _MESH.findall(text)
    ]
    if not named:
        return
    sizes = {name: int(size) for name, size in named[-1]}
    of_world = [size for name, size in sizes.items() if name not in ("ep", "etp")]
    pp, replicate = sizes.get("pp", 1), sizes.get("dp_replicate", 1)
    shard = prod(size for name, size in sizes.items() if name.startswith(("dp_shard", "dp_mod")))
    yield "--gpus", str(prod(of_world))
    for option in ("pp", "tp", "cp", "ep"):
        if option in ("pp", "tp") or sizes.get(option, 1) > 1:
            yield f"--{option}", str(sizes.get(option, 1))
    if shard > 1:
        # a pipeline gathers FSDP's weights and reduces its gradients once per iteration
        yield "--zero", "3" if pp == 1 else "1"
        if replicate > 1:
            notes.append(
                f"sharding: over {shard} of {shard * replicate} replicas; over all is assumed"
            )
    elif replicate > 1:
        yield "--zero", "0"
