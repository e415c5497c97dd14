"""The result folder of Megatron-LM's VPP simulator (``--simulate-result-dir``): measured chunks, as a profile.

Its tasks are forwards and backwards of chunks that ran one after the other on the GPUs of one pipeline
rank. Files and keys as of Megatron-LM ffef7bf (a pull request of June 2026):
megatron/training/simulation/vpp_simulate.py and task.py.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ...errors import InvalidSchedule, OptPipeError
from ...files import plain, read_mapping
from ...ops import BW, F, Op
from ...profile import CostProfile
from ...schedule import Schedule, Shape, validate
from ...sim import simulate
from ...stage_cost import StageCost
from ...trace import Trace

TASKS, MEMORY, LAYOUT = "finished_tasks.json", "static_memory_info.json", "all_pp_vpp_layout.json"
_KINDS = {"forward": F, "backward": BW}
_UNKNOWN = "the folder has the weights and gradients of each rank, but neither optimizer states nor activations"


@dataclass(frozen=True)
class SimulatedRun:
    """The tasks of a global batch.

    Attributes:
        trace: the replay of the folder's order with its profile, without messages.
        spread: the longest over the mean duration of the stage and kind that differ most between microbatches.
        unread: a sentence for each part that is not in the folder.
    """

    trace: Trace
    spread: float
    unread: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``import --json``."""
        profile, shape = self.trace.profile, self.trace.schedule.shape
        return {
            "devices": shape.devices,
            "chunks": shape.chunks,
            "microbatches": shape.microbatches,
            "layers": [cost.layers for cost in profile.stages],
            "t_f_ns": [cost.t_f_ns for cost in profile.stages],
            "t_bw_ns": [cost.fused_ns for cost in profile.stages],
            "static_bytes": [cost.static_bytes for cost in profile.stages],
            "memory_unknown": profile.memory_unknown,
            "replay_ns": self.trace.makespan_ns,
            "spread": round(self.spread, 6),
        }


def read_folder(folder: str | os.PathLike[str], name: str = "megatron-vpp") -> SimulatedRun:
    """Read the tasks of a folder.

    Raises:
        OptPipeError: names the file, the task and what is wrong.
    """
    path = Path(folder) / TASKS
    if not path.is_file():
        raise OptPipeError(
            f"{folder}: has no {TASKS}; expected the folder of --simulate-result-dir"
        )
    ranks = _ranks(path)
    p = len(ranks)
    programs: list[list[Op]] = [[] for _ in range(p)]
    lasted: dict[Op, float] = {}
    for rank, tasks in enumerate(ranks):
        for at, task in enumerate(tasks):
            op, ms = _op(task, p, rank, f"{path}: {rank}[{at}]")
            programs[rank].append(op)
            lasted[op] = ms
    stages, microbatches = (
        1 + max(getattr(op, key) for op in lasted) for key in ("stage", "microbatch")
    )
    shape = Shape(
        p, -(-stages // p), microbatches, tuple(stage % p for stage in range(-(-stages // p) * p))
    )
    schedule = Schedule(shape, programs, meta={"name": name})
    try:
        validate(schedule)
    except InvalidSchedule as error:
        raise OptPipeError(f"{path}: not the tasks of a whole global batch: {error}") from None
    profile, spread = _profile(shape, lasted, Path(folder), name)
    unread = [
        "t_comm: the simulator does not time messages; here they take no time",
        "w: backwards are fused in Megatron-LM",
        f"memory: {_UNKNOWN}",
        "gradients, update and what lies between ops: not in it, so the time is the pipeline's",
    ]
    if spread > 1.02:
        unread.append(
            f"microbatches differ by up to {spread - 1:.0%} of the mean: their means are taken"
        )
    return SimulatedRun(simulate(schedule, profile, enforce=False), spread, tuple(unread))


def _ranks(path: Path) -> list[list[Any]]:
    """Return the tasks by pipeline rank, which are numbered from 0."""
    data = plain(read_mapping(path))
    if sorted(data) != sorted(map(str, range(len(data)))) or not data:
        raise OptPipeError(
            f"{path}: expected pipeline ranks from 0 as keys, got {', '.join(map(str, list(data)[:9]))}"
        )
    ranks = [data[str(rank)] for rank in range(len(data))]
    for rank, tasks in enumerate(ranks):
        if not isinstance(tasks, list) or not tasks:
            raise OptPipeError(f"{path}: {rank}: expected a list of tasks")
    return ranks


def _op(task: Any, p: int, rank: int, where: str) -> tuple[Op, float]:
    """Return the op of a task, and its duration in ms."""
    if not isinstance(task, Mapping):
        raise OptPipeError(f"{where}: expected a task, got {task!r}")
    kind = _KINDS.get(str(task.get("task_type")))
    numbers: list[Any] = [task.get(key) for key in ("pp_rank", "microbatch_id", "model_chunk_id")]
    whole = all(
        isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 2**20 for one in numbers
    )
    if kind is None or not whole or numbers[0] != rank:
        raise OptPipeError(
            f"{where}: expected task_type forward or backward, pp_rank {rank}, microbatch_id and model_chunk_id"
        )
    ms = task.get("duration")
    if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 < ms < 1e9:
        raise OptPipeError(f"{where}: duration: expected ms above 0, got {ms!r}")
    return Op(kind, numbers[2] * p + rank, numbers[1]), float(ms)


def _profile(
    shape: Shape, lasted: Mapping[Op, float], folder: Path, name: str
) -> tuple[CostProfile, float]:
    """Return the means of each stage, and how far a duration is from its mean at most."""
    by_stage: dict[tuple[int, Any], list[float]] = defaultdict(list)
    for op, ms in lasted.items():
        by_stage[op.stage, op.kind].append(ms)
    means = {key: fmean(each) for key, each in by_stage.items()}
    spread = max(max(each) / means[key] for key, each in by_stage.items())
    static, layers = _static(folder, shape), _layers(folder, shape)
    stages = tuple(
        StageCost(
            max(1, round(means[stage, F] * 1e6)),
            max(1, round(means[stage, BW] * 1e6)),
            0,
            splits=False,
            static_bytes=static[stage],
            layers=layers[stage],
        )
        for stage in range(shape.stages)
    )
    meta = {
        "source": f"optpipe-sim import: the folder {folder} of Megatron-LM's VPP simulator",
        "provenance": {
            "t_f, t_b": "measured: chunks alone on the GPUs of one pipeline rank",
            "act": "not known",
            "static": "weights and gradients, without optimizer states",
        },
    }
    profile = CostProfile(
        name, shape.devices, stages, shape.chunks, meta=meta, memory_unknown=_UNKNOWN
    )
    return profile, spread


def _static(folder: Path, shape: Shape) -> list[int]:
    """Return the bytes of weights and gradients of each stage: a rank's are on its first."""
    found = [0] * shape.stages
    if not (folder / MEMORY).is_file():
        return found
    data = plain(read_mapping(folder / MEMORY))
    for rank in range(shape.devices):
        try:
            sizes = data["executor_0"][str(rank)]["static"]
            gib = float(sizes["params_memory_gb"]) + float(sizes["grads_memory_gb"])
        except (KeyError, TypeError, ValueError):
            raise OptPipeError(
                f"{folder / MEMORY}: executor_0.{rank}.static: expected params_memory_gb and grads_memory_gb"
            ) from None
        if not 0 <= gib < 2**20:
            raise OptPipeError(f"{folder / MEMORY}: executor_0.{rank}.static: {gib} GiB is no size")
        found[rank] = round(gib * 2**30)  # its "gb" are 2^30 bytes
    return found


def _layers(folder: Path, shape: Shape) -> list[int | None]:
    """Return the decoder layers of each stage; None where the folder does not say them."""
    if not (folder / LAYOUT).is_file():
        return [None] * shape.stages
    data = plain(read_mapping(folder / LAYOUT))
    found: list[int | None] = []
    for stage in range(shape.stages):
        chunk, rank = divmod(stage, shape.devices)
        parts = data.get(str(rank), {})
        items = parts.get(str(chunk)) if isinstance(parts, Mapping) else None
        if not isinstance(items, list):
            raise OptPipeError(f"{folder / LAYOUT}: {rank}.{chunk}: expected a list of layers")
        found.append(sum(isinstance(item, list) for item in items) or None)
    return found
