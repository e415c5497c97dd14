"""A plan in torchtitan's options: any order as a CSV, one kind of activation checkpointing, no offloads.

Names and rules as of torchtitan b5bcd76: torchtitan/config/configs.py,
torchtitan/distributed/pipeline_parallel.py, torchtitan/distributed/activation_checkpoint.py and
torchtitan/trainer.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import InvalidSchedule, OptPipeError
from ..execution import IDEAL
from ..ops import BW, C
from ..profile import CostProfile
from ..profile.iteration import extent
from ..schedule import Schedule
from ..schedule.shape import expand_placement
from ..schedules import INTERLEAVED, PLAIN, REGISTRY, build, those
from .losses import OFFLOADS
from .nearest import Nearest, compare, replay_unlimited
from .parts import UNKNOWN_LENGTHS, Part, parts_of, said

# Our name, torch's schedule of the same order, and its number of chunks (None: several).
SAME = tuple(
    (name, REGISTRY[name].torch, 1 if "one" in REGISTRY[name].runs else None)
    for name in those(lambda entry: entry.torch != "")
)
CHECKPOINTS = {None: "none", "selective": "selective", "full": "full"}
SELECTIVE = (
    "torchtitan's selective checkpointing saves attention and every second matmul; check that the"
    " level selective of the profile means the same"
)


def nearest(
    schedule: Schedule,
    profile: CostProfile,
    levels_of: Mapping[str | None, str] = CHECKPOINTS,
) -> Nearest:
    """Find the schedule that torchtitan runs instead of a schedule: the same order if stages lie in
    a loop or a vee (else 1F1B on as many chunks), every stage checkpointed alike, no offloads.

    The kind of checkpointing is one that the profile has costs for: the schedule's own if possible,
    else the fastest that fits, or the one with the least peak if none fits.

    Args:
        levels_of: the levels that the trainer has, with its names for them.

    Raises:
        InvalidSchedule: if the profile has costs for none of them.
    """
    shape = schedule.shape
    if _is_vee(schedule) or shape.placement == expand_placement(
        "loop", shape.devices, shape.chunks
    ):
        order = schedule.only(schedule.table[:, 0] != C) if C in schedule.table[:, 0] else schedule
        order = OFFLOADS.strip(order)
    else:
        name = PLAIN if shape.chunks == 1 else f"{INTERLEAVED}:chunks={shape.chunks}"
        order = build(name, profile, shape.microbatches)
    found = []
    costs = profile.for_shape(order.shape)
    for at, level in enumerate(levels_of):
        levels = {
            str(stage): level
            for stage, cost in enumerate(costs.stages)
            if level is not None and cost.level(level) is not None
        }
        if level is not None and not levels:
            continue
        changed = order.replace(recompute=levels)
        trace = replay_unlimited(changed, profile)
        rank = (0, trace.makespan_ns) if trace.fits else (1, max(trace.peak_bytes))
        found.append(((changed.recompute != schedule.recompute, *rank), at, changed, level))
    if not found:
        raise InvalidSchedule(
            f"profile {profile.name}: has no level {' or '.join(filter(None, levels_of))}, which this trainer always has one of"
        )
    _, _, changed, level = min(found)
    name = schedule.name
    if changed != schedule:
        name = f"{order.meta.get('name', 'its order')} with checkpointing {levels_of[level]}"
    notes = (SELECTIVE,) if level == "selective" else ()
    return compare(schedule, changed, name, profile, (*notes, *length_notes(profile)))


def issue_notes(execution: str) -> list[str]:
    """Return that the times under an execution (its name) are not known to be those of torchtitan, which none is fitted to."""
    if execution == IDEAL.name:
        return []
    return [
        f"no run of torch's pipelines was compared: ops and messages are taken to cost what they do as {execution} issues them;"
        " errors are those of that"
    ]


def length_notes(profile: CostProfile) -> Iterator[str]:
    """Yield what no option says of microbatches that differ."""
    lengths = extent(profile)
    if lengths is not None:
        least, most, sequence = lengths
        yield (
            f"num_tokens_per_microbatch_per_dp_rank is the longest microbatch: it has no option for microbatches of {least:,} to"
            f" {most:,} tokens, packed from sequences of at most {sequence:,}; the data loader has to yield these, and stages"
            " take messages of such lengths, or with padding each takes as long as the longest"
        )
    elif not profile.alike:
        yield UNKNOWN_LENGTHS


def options(
    schedule: Schedule,
    profile: CostProfile,
    csv: str | None,
    layers: Sequence[int] | None = None,
    levels_of: Mapping[str | None, str] = CHECKPOINTS,
) -> dict[str, Any]:
    """Return torchtitan's options for a schedule that `nearest` returned, by section; with the sizes of an
    estimated profile.

    Args:
        csv: the file with the order (`torch_csv`); None: torch's own schedule of that order.
        layers: see `parts.parts_of`. `levels_of`: see `nearest`.

    Raises:
        InvalidSchedule: if torch has no schedule of that order and no `csv` is given.
        OptPipeError: for a stage that torchtitan cannot build.
    """
    shape = schedule.shape
    training, sizes = _sizes(profile)
    parallelism: dict[str, Any] = {"pipeline_parallel_degree": shape.devices, **sizes}
    if csv is None:
        parallelism["pipeline_parallel_schedule"] = _torch_name(schedule, profile)
    else:  # the name only decides the placement
        loop = "1F1B" if shape.chunks == 1 else "Interleaved1F1B"
        parallelism["pipeline_parallel_schedule"] = "ZBVZeroBubble" if _is_vee(schedule) else loop
        parallelism["pipeline_parallel_schedule_csv"] = csv
    parts = parts_of(profile.for_shape(shape), layers)
    parallelism["module_fqns_per_model_part"] = list(map(_modules, range(len(parts)), parts))
    parallelism["num_pp_microbatches"] = shape.microbatches
    level = next(iter(schedule.recompute.values()), None)
    if levels_of is CHECKPOINTS:
        level = level or _baked_in(profile)
    _refuse(profile, shape.devices > 1)
    if shape.devices > 1:  # its CUDA graphs are on by default, and refuse a pipeline
        training["disable_cuda_graphs"] = True
    return {
        "training": training,
        "parallelism": parallelism,
        "activation_checkpoint": CHECKPOINTS.get(level, "none"),
    }


def _refuse(profile: CostProfile, pipeline: bool) -> None:
    """Raise for what an estimated profile's costs are of and torchtitan does otherwise."""
    work = said(profile, "work")
    narrow = work.get("dtype") == "fp16" and not work.get("accumulate_grads_in_fp32")
    for wrong, why in (
        (
            "tp-comm" in work.get("overlap", ()),
            "hide tensor parallelism's collectives as Megatron-LM does, which torchtitan has no option for; estimate"
            " without --overlap tp-comm",
        ),
        (
            work.get("grad_reduce_in_bf16"),
            "have gradients in bf16, which torchtitan reduces in fp32; estimate without --grad-reduce-in-bf16",
        ),
        (
            work.get("gradient_sums") == "cast",
            "cast gradients to add them up, which torchtitan does not; estimate with --gradient-sums apart",
        ),
        (
            narrow,
            "have gradients in fp16, which torchtitan reduces in fp32; estimate with --accumulate-grads-in-fp32",
        ),
        (
            pipeline and work.get("cuda_graphs"),
            "are of iterations that run as CUDA graphs, which torchtitan refuses with a pipeline; estimate without"
            " --cuda-graphs",
        ),
    ):
        if wrong:
            raise OptPipeError(f"profile {profile.name}: its costs {why}")


def _baked_in(profile: CostProfile) -> str | None:
    """Return what every stage of an estimated profile already recomputes.

    Raises:
        OptPipeError: where torchtitan has no checkpointing like it.
    """
    level = said(profile, "work").get("recompute", "none")
    if level not in ("none", "full"):
        raise OptPipeError(
            f"profile {profile.name}: its costs are of recomputing {level}, which torchtitan's checkpointing"
            " does not do; estimate with --recompute none or full"
        )
    return None if level == "none" else level


def _sizes(profile: CostProfile) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what an estimated profile says for the sections training and parallelism."""
    parallel, work = said(profile, "parallel"), said(profile, "work")
    if not parallel or not work:
        return {}, {}
    training, sizes = {}, {}
    if {"seq", "microbatch"} <= set(work):
        lengths = extent(profile)
        most = lengths.most if lengths else work["microbatch"] * work["seq"]
        training["num_tokens_per_microbatch_per_dp_rank"] = most
        training["max_context_length"] = lengths.sequence if lengths else work["seq"]
    for key, name in (("tp", "tensor"), ("cp", "context"), ("ep", "expert")):
        if parallel.get(key, 1) > 1:
            sizes[f"{name}_parallel_degree"] = parallel[key]
    zero, dp = parallel.get("zero", 0), parallel.get("dp", 1)
    if zero == 0 and dp > 1:
        sizes |= {"data_parallel_replicate_degree": dp, "data_parallel_shard_degree": 1}
    elif dp > 1:
        sizes["data_parallel_shard_degree"] = dp
        sizes["fsdp_reshard_after_forward"] = "always" if zero == 3 else "never"
    return training, sizes


def _modules(stage: int, part: Part) -> list[str]:
    """The modules of a stage; raises for one that torchtitan cannot build."""
    if part.mtp:
        raise OptPipeError(
            f"stage {stage}: has layers that predict further tokens, which torchtitan's decoders have not; give a model"
            " with mtp: 0"
        )
    if not part.module_names():
        raise OptPipeError(
            f"stage {stage}: has no module; torchtitan needs one at least on every stage"
        )
    return part.module_names()


def command(options: Mapping[str, Any]) -> str:
    """Return the options as words of a command line.

    On it the list of modules has commas between those of a stage and blanks between stages, and ends at the
    next option only, so that `options` has it before another one.
    """
    return f"{sections(options)} activation_checkpoint:{options['activation_checkpoint']}"


def sections(options: Mapping[str, Any]) -> str:
    """Return the sections training and parallelism as words of a command line."""
    words = []
    for section in ("training", "parallelism"):
        for key, value in options[section].items():
            words.append(f"--{section}.{key}")
            if isinstance(value, list):
                words += [shlex.quote(",".join(names)) for names in value]
            elif value is not True:
                words.append(shlex.quote(str(value)))
    return " ".join(words)


def has_name(schedule: Schedule, profile: CostProfile) -> bool:
    """Whether torch has a schedule of that order."""
    return any(_same(schedule, profile))


def _torch_name(schedule: Schedule, profile: CostProfile) -> str:
    name = next(_same(schedule, profile), None)
    if name is None:
        raise InvalidSchedule(
            "torchtitan has no schedule of this order: give --csv FILE, which then holds the order"
        )
    return name


def _same(schedule: Schedule, profile: CostProfile) -> Iterator[str]:
    shape = schedule.shape
    for ours, theirs, chunks in SAME:
        if (shape.chunks == 1) != (chunks == 1) or (schedule.table[:, 0] > BW).any():
            continue
        if chunks == 1 and shape.microbatches < shape.stages:
            continue  # torch's schedules of one stage per rank refuse that; a CSV may hold it
        options = {} if chunks == 1 else {"chunks": shape.chunks}
        try:
            built = build(ours, profile, shape.microbatches, **options)
        except OptPipeError:
            continue
        if built.replace(recompute=schedule.levels) == schedule:
            yield theirs


def _is_vee(schedule: Schedule) -> bool:
    shape = schedule.shape
    return shape.chunks == 2 and shape.placement == expand_placement("vee", shape.devices, 2)
