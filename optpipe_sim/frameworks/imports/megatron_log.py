"""Megatron-LM's logs: timers, memory lines and arguments of a run, as a profile of its stages.

Timers of one iteration are summed over its microbatches (``--timing-log-level 2``); with
``--timing-log-option all`` there is one per rank, else only that of the slowest rank (until 2022: of
the last), which is then used for all. Each stops the device before and after an op.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import fmean, linear_regression, median
from typing import Any

from ...costs.parallelism import decoder_counts
from ...errors import OptPipeError
from ...files import read_log_text
from ...names import build
from ...profile import CostProfile
from ...schedules import INTERLEAVED, PLAIN
from ...sim import simulate
from ...stage_cost import StageCost
from ...units import format_sizes
from ..megatron.layout import layers_in
from .megatron_lines import LAST, SLOWEST, WANTED, Block, Log, read_lines
from .megatron_options import described
from .other_logs import trainer_of

Path = str | os.PathLike[str]
_SIZES = (
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "log_interval",
    "data_parallel_size",
    "world_size",
    "global_batch_size",
    "micro_batch_size",
)


@dataclass(frozen=True)
class LogProfile:
    """A profile from a log, and what it was read from.

    Attributes:
        microbatches: of each iteration of `profile`, with sequences of `batch` in all.
        iteration_ns: the median of those that count; None: not logged. `replay_ns`: what the profile says
            of the same run, without the optimizer's step and what else lies between pipelines; None: not
            replayed, as for numbers of microbatches that interleaving cannot have.
        unread: a sentence for each part that is not in the log.
    """

    profile: CostProfile
    microbatches: int
    batch: int
    iteration_ns: int | None
    replay_ns: int | None
    unread: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``import --json``; sizes are null where they are not known."""
        stages, known = self.profile.stages, not self.profile.memory_unknown
        off = self.iteration_ns and self.replay_ns and self.replay_ns / self.iteration_ns - 1
        return {
            "devices": self.profile.devices,
            "chunks": self.profile.chunks,
            "microbatches": self.microbatches,
            "global_batch": self.batch,
            "layers": [cost.layers for cost in stages],
            "t_f_ns": [cost.t_f_ns for cost in stages],
            "t_bw_ns": [cost.fused_ns for cost in stages],
            "act_bytes": [cost.act_bytes for cost in stages] if known else None,
            "static_bytes": [cost.static_bytes for cost in stages] if known else None,
            "memory_unknown": self.profile.memory_unknown or None,
            "iteration_ns": self.iteration_ns,
            "replay_ns": self.replay_ns,
            "replay_off": None if off is None else round(off, 6),
        }


def read_log(path: Path, name: str = "megatron-log") -> LogProfile:
    """Read the profile of a run from its log; of several runs in it, the last that has timers.

    Raises:
        OptPipeError: names the file and what is missing in it, or what its timers cannot be used for.
    """
    text = read_log_text(path)
    runs = read_lines(text)
    timed = [run for run in runs if all(map(run.has, WANTED))]
    log = timed[-1] if timed else runs[-1]
    missing = [timer for timer in WANTED if not log.has(timer)]
    if missing:
        if not log.arguments and (other := trainer_of(text)):
            raise OptPipeError(
                f"{path}: no timer {missing[0]}: a log of {other}, whose steps evaluate --log reads"
            )
        raise OptPipeError(
            f"{path}: no timer {missing[0]}; a run logs it with --timing-log-level 2 (and, for each"
            " rank, --timing-log-option all); evaluate --log reads logs without timers"
        )
    _check(log, path)
    p = log.number("pipeline_model_parallel_size", 1)
    v = log.number("virtual_pipeline_model_parallel_size", 1)
    blocks, left_out = _counting(log, path)
    batch = batch_of(log, blocks, path)
    m = _microbatches(log, batch, path)
    ranks = _ranks(log, p)
    costs = [_stage(blocks, at, ranks, m * v, path) for at in range(p)]
    counts = _in_flight(log, p, v, m)
    unknown = _memory_unknown(log, ranks, counts)
    layers = layers_of(log, p * v, path)
    stages = [
        replace(
            _with_memory(costs[at % p], log, ranks[at % p], counts[at % p], at < p, unknown),
            layers=layers[at] if layers else None,
        )
        for at in range(p * v)
    ]
    elapsed = [block.elapsed_ms for block in blocks if block.elapsed_ms is not None]
    profile = CostProfile(
        name,
        p,
        tuple(stages),
        v,
        meta=_meta(blocks, str(path), unknown, described(log, batch, name)),
        memory_unknown=unknown,
    )
    if len(runs) > 1:
        left_out.append(f"{len(runs)} runs are in this log: only the last with timers is read")
    return LogProfile(
        profile,
        m,
        batch,
        round(median(elapsed) * 1e6) if elapsed else None,
        _replay_ns(log, profile, m),
        (*_unread(log, blocks, ranks, profile), *left_out),
    )


def _check(log: Log, path: Path) -> None:
    """Refuse logs without the sizes of the run, and runs whose timers do not say how long F and B took, or
    whose ranks are not p per pipeline."""
    for key in _SIZES:
        if log.number(key, 0) < 1 and not (key.startswith("virtual") and key in log.arguments):
            raise OptPipeError(
                f"{path}: no argument {key}; expected the arguments that Megatron-LM prints when it"
                " starts"
            )
    if log.unread and all(block.elapsed_ms is None for block in log.blocks):
        raise OptPipeError(
            f"{path}: {log.unread}: not the time of an iteration as Megatron-LM writes it, such as elapsed time"
            " per iteration (ms): 15230.0"
        )
    if log.arguments.get("overlap_moe_expert_parallel_comm") == "True":
        raise OptPipeError(
            f"{path}: overlap_moe_expert_parallel_comm: the timer of a forward includes the backward"
            " that runs with it; log a run without this option"
        )
    if log.number("encoder_pipeline_model_parallel_size", 0) > 0:
        raise OptPipeError(
            f"{path}: encoder_pipeline_model_parallel_size: pipelines with an encoder are not read"
        )


# -- iterations -----------------------------------------------------------------------------------


def _counting(log: Log, path: Path) -> tuple[list[Block], list[str]]:
    """Return the blocks that count: past the warm-up, all with the same global batch size.

    Every block is divided by the interval between two, also a first one that is of fewer iterations.
    Since Megatron-LM 0.16 the first iteration is logged at once, and is part of the next block, too.
    """
    timed = [block for block in map(_paired, log.blocks) if block.timers]
    blocks = _whole(log, timed)
    left_out: list[str] = []
    if len(blocks) < len(timed):
        left_out.append(f"{len(timed) - len(blocks)} iterations with damaged lines")
    if len(blocks) < 3:
        raise OptPipeError(
            f"{path}: {len(blocks)} logged iterations have all lines of {' and '.join(WANTED)}; expected"
            " at least three, as the first warms up and may be part of the second"
        )
    grew = all(blocks[1].timers.get(key, ms) >= ms for key, ms in blocks[0].timers.items())
    after = blocks[2 if grew else 1 :]
    same = steady(log, after, path)
    if others := sum(block.batch != same[-1].batch for block in after):
        left_out.append(f"{others} iterations with other global batch sizes")
    for block in same:
        _plausible(block, path)
    return same, left_out


def steady(log: Log, blocks: Sequence[Block], path: Path) -> list[Block]:
    """Return the last blocks in a row with the same global batch size, which may grow along a log
    (``--rampup-batch-size``); where no two are, one of an iteration of its own.

    Raises:
        OptPipeError: where every block may be a mean over iterations of several sizes.
    """
    runs = [list(run) for _, run in groupby(blocks, lambda block: block.batch)]
    if len(runs) == 1:
        return runs[0]
    # the first block of a size may be a mean over iterations of two
    own = [run[1:] if at else run for at, run in enumerate(runs)]
    found = next((run for run in reversed(own) if len(run) > 1), None)
    found = found or next((run for run in reversed(own) if run), None)
    if found is None and log.number("log_interval", 1) == 1:
        found = runs[-1]
    if not found:
        raise OptPipeError(
            f"{path}: no two logged iterations in a row have the same global batch size; log more of them"
            " (--log-interval 1)"
        )
    return found


def _whole(log: Log, blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks whose lines are all there: the same timers as in most blocks, and no
    iteration missing after it, whose lines could be this one's."""
    if not blocks or all(block.iteration is None for block in blocks):
        return list(blocks)
    usual = Counter(tuple(block.names) for block in blocks).most_common(1)[0][0]
    interval = max(1, log.number("log_interval", 1))
    following = dict(pairwise(block.iteration for block in log.blocks))
    return [
        block
        for block in blocks
        if block.iteration is not None
        and tuple(block.names) == usual
        and following.get(block.iteration) in (None, (block.iteration // interval + 1) * interval)
    ]


def _paired(block: Block) -> Block:
    """Return only the ranks with both timers: where one is missing, its lines may be the other's."""
    ranks = [rank for name, rank in block.timers if name == WANTED[0]]
    whole = [rank for rank in ranks if (WANTED[1], rank) in block.timers]
    return replace(block, timers={k: ms for k, ms in block.timers.items() if k[1] in whole})


def _plausible(block: Block, path: Path) -> None:
    """Refuse timers that exceed the iteration: they are not what is known of any version."""
    for rank in {rank for _, rank in block.timers}:
        times = [block.timers.get((timer, rank), 0.0) for timer in WANTED]
        busy = max(times) if rank == SLOWEST else sum(times)
        if block.elapsed_ms is not None and busy > 1.02 * block.elapsed_ms:
            raise OptPipeError(
                f"{path}: iteration {block.iteration}: {' and '.join(WANTED)} take {busy:.1f} ms, the"
                f" whole iteration {block.elapsed_ms:.1f} ms; these timers cannot be means of it"
            )


def batch_of(log: Log, blocks: Sequence[Block], path: Path) -> int:
    """Return the global batch size of the blocks: as logged, as consumed, or the argument's."""
    if blocks[-1].batch:
        return blocks[-1].batch
    counted = [block for block in blocks if block.iteration is not None and block.consumed]
    for before, after in pairwise(reversed(counted)):
        samples = (before.consumed or 0) - (after.consumed or 0)
        iterations = (before.iteration or 0) - (after.iteration or 0)
        if iterations > 0 and samples > 0 and samples % iterations == 0:
            return samples // iterations
    if log.arguments.get("rampup_batch_size", "None") != "None":
        raise OptPipeError(
            f"{path}: rampup_batch_size: the global batch size grows, and no line of an iteration says it;"
            " expected global batch size: N in these lines"
        )
    return log.number("global_batch_size", 1)


def _microbatches(log: Log, total: int, path: Path) -> int:
    each = log.number("micro_batch_size", 1) * log.number("data_parallel_size", 1)
    each *= log.number("gtp_weight_remat_size", 1)
    if total % each:
        raise OptPipeError(f"{path}: global_batch_size {total} is not a multiple of {each}")
    return total // each


# -- ranks and stages -----------------------------------------------------------------------------


def _ranks(log: Log, p: int) -> list[int]:
    """Return the rank of each stage with the first tensor and data parallel rank."""
    step = max(1, log.number("world_size", p) // p)
    if log.arguments.get("use_tp_pp_dp_mapping") == "True":
        step = log.number("tensor_model_parallel_size", 1) * log.number("context_parallel_size", 1)
    return [at * step for at in range(p)]


def _stage(
    blocks: Sequence[Block], at: int, ranks: Sequence[int], calls: int, path: Path
) -> StageCost:
    """Return the times of one chunk of a rank: medians over the blocks."""
    times = {}
    for timer in WANTED:
        there = {rank for block in blocks for name, rank in block.timers if name == timer}
        own = next((rank for rank in (ranks[at], SLOWEST, LAST) if rank in there), None)
        if own is None:
            known = ", ".join(map(str, sorted(there))) or "none"
            raise OptPipeError(
                f"{path}: {timer} of rank {ranks[at]} (pipeline rank {at}): no line that could be read;"
                f" those of ranks {known} can"
            )
        seen = [block.timers[timer, own] for block in blocks if (timer, own) in block.timers]
        times[timer] = max(1, round(median(seen) * 1e6 / calls))
    return StageCost(times["forward-compute"], times["backward-compute"], 0, splits=False)


def _in_flight(log: Log, p: int, v: int, m: int) -> list[int]:
    """Return how many activations of one chunk each rank holds at its peak, by Megatron-LM's warm-up."""
    if v == 1:
        return [min(p - rank, m) for rank in range(p)]
    group = log.number("microbatch_group_size_per_vp_stage", p)
    return [min(2 * (p - rank - 1) + (v - 1) * group + 1, m * v) for rank in range(p)]


def _memory_unknown(log: Log, ranks: Sequence[int], counts: Sequence[int]) -> str:
    """Return why the log does not say what stages hold; empty: it does.

    The peak that is logged is that of the whole iteration, the optimizer's step included. It is that of
    activations if it grows with their number from rank to rank. First and last rank also hold embedding and
    logits, so that those between them are compared where there are two.
    """
    beyond = {
        at: log.memory[rank][1] - log.memory[rank][0]
        for at, rank in enumerate(ranks)
        if rank in log.memory
    }
    if not beyond:
        return "the log has no lines of memory, which Megatron-LM writes after the first logged iteration"
    why = ""
    if silent := [at for at in range(len(ranks)) if at not in beyond]:
        why = f"the log has no line of the memory of pipeline ranks {', '.join(map(str, silent))}"
    middle = [at for at in beyond if 0 < at < len(ranks) - 1]
    alike = middle if len({counts[at] for at in middle}) > 1 else list(beyond)
    held, peaks = [counts[at] for at in alike], [beyond[at] for at in alike]
    if len(set(held)) < 2:
        return why
    if linear_regression(held, peaks).slope < fmean(peaks) / fmean(held) / 2:
        least, most = format_sizes(min(peaks), max(peaks))
        above = least if least == most else f"{least} to {most}"
        why = (
            f"the peak is {above} above what is allocated between iterations on ranks that hold {min(held)}"
            f" to {max(held)} activations: it does not come from these but from another part of the iteration,"
            " such as the optimizer's step"
        )
    return why


def _with_memory(
    cost: StageCost, log: Log, rank: int, count: int, first: bool, unknown: str
) -> StageCost:
    known = log.memory.get(rank)
    if known is None:
        return cost
    allocated, most = known
    return replace(
        cost,
        act_bytes=0 if unknown else max(0, most - allocated) // count,
        offload_bytes=None,
        static_bytes=allocated if first else 0,
    )


def layers_of(log: Log, stages: int, path: Path) -> list[int] | None:
    """Return the decoder layers of each stage, as the arguments deal them; None where they do not say.

    Raises:
        OptPipeError: for a layout that is not one of these stages.
    """
    layers = log.number("num_layers", 0) or log.number("encoder_num_layers", 0)
    layout = log.arguments.get("pipeline_model_parallel_layout", "None")
    if layout != "None":
        counts = decoder_counts(layers_in(layout))
        if len(counts) != stages:
            raise OptPipeError(
                f"{path}: pipeline_model_parallel_layout: {layout!r} is not a layout of {stages} stages"
            )
        return counts
    front = log.number("decoder_first_pipeline_num_layers", 0)
    back = log.number("decoder_last_pipeline_num_layers", 0)
    if front or back:
        if log.number("virtual_pipeline_model_parallel_size", 1) > 1:
            return None
        inner = stages - bool(front) - bool(back)
        each, over = divmod(layers - front - back, max(1, inner))
        found = [front] * bool(front) + [each] * inner + [back] * bool(back)
    else:
        ends = [
            log.arguments.get(f"account_for_{end}_in_pipeline_split") == "True"
            for end in ("embedding", "loss")
        ]
        each, over = divmod(layers + sum(ends), stages)
        found = [each] * stages
        found[0] -= ends[0]
        found[-1] -= ends[1]
    return None if over or min(found) < 1 or sum(found) != layers else found


def _replay_ns(log: Log, profile: CostProfile, m: int) -> int | None:
    """Return the time of the run's schedule with the profile; None where it cannot be built."""
    name = PLAIN
    if profile.chunks > 1:
        group = log.number("microbatch_group_size_per_vp_stage", profile.devices)
        name = f"{INTERLEAVED}:chunks={profile.chunks},group={group}"
    try:
        return simulate(build(name, profile, m), profile).makespan_ns
    except OptPipeError:
        return None


# -- what is said of it ---------------------------------------------------------------------------


def _meta(blocks: Sequence[Block], path: str, unknown: str, run: dict[str, Any]) -> dict[str, Any]:
    numbers = [block.iteration for block in blocks if block.iteration is not None]
    of = f", iterations {numbers[0]} to {numbers[-1]}" if numbers else ""
    return {
        "source": f"optpipe-sim import: the log {path}{of}",
        **run,
        "provenance": {
            "t_f, t_b": "measured: Megatron-LM's timers over the microbatches",
            "act": "derived: peak less what is allocated between iterations, over the activations in"
            " flight"
            if not unknown
            else "not known",
            "static": "measured: allocated between iterations",
        },
    }


def _unread(
    log: Log, blocks: Sequence[Block], ranks: Sequence[int], profile: CostProfile
) -> list[str]:
    notes = [
        "t_comm: not in a log; messages take no time here",
        "w: backwards are fused in Megatron-LM",
    ]
    there = {rank for block in blocks for _, rank in block.timers}
    if not there & set(ranks):
        whose = "slowest" if SLOWEST in there else "last"
        notes.append(
            f"times of each rank: those of the {whose} rank are used for all"
            " (--timing-log-option all logs each)"
        )
    if profile.chunks > 1:
        notes.append("times of each chunk: those of a rank are divided equally between its chunks")
    if profile.memory_unknown:
        notes.append(f"memory: {profile.memory_unknown}")
    if profile.stages[0].layers is None:
        notes.append(
            f"layers: the arguments do not say how {log.number('num_layers', 0) or 'its'} layers are dealt to"
            f" {len(profile.stages)} stages"
        )
    if log.arguments.get("recompute_granularity", "None") != "None":
        notes.append("recomputation: it is part of the backwards' times and of what is kept")
    if log.arguments.get("fine_grained_activation_offloading") == "True":
        notes.append("offloading: it is part of the ops' times and of what is kept")
    return notes
