"""A plan over slices of the sequence in Seq1F1B's fork of Megatron-LM, the only framework with options for slices.

Names and rules as of github.com/thunlp/Seq1F1B 6893466: megatron/arguments.py and
megatron/core/pipeline_parallel/{schedules,sp_utils}.py.
"""

from __future__ import annotations

from typing import Any

from ..errors import InvalidSchedule
from ..profile import CostProfile
from ..schedule import Schedule
from ..schedules import SLICED, SLICED_INTERLEAVED, build
from .megatron.options import words

ORDERS = {False: SLICED, True: SLICED_INTERLEAVED}  # by whether there are several chunks
NAMED = "Seq1F1B's fork of Megatron-LM (github.com/thunlp/Seq1F1B)"


def options(schedule: Schedule, profile: CostProfile) -> tuple[dict[str, Any], list[str]]:
    """Return the fork's options for a schedule over slices, and what it then does otherwise.

    Args:
        profile: an estimated one, which says how the model is spread and what is recomputed.

    Raises:
        InvalidSchedule: for what the fork has no option for.
    """
    shape, spread, work = schedule.shape, profile.meta["parallel"], profile.meta["work"]
    name = ORDERS[shape.chunks > 1]
    order = {} if shape.chunks == 1 else {"chunks": shape.chunks}
    if shape.slices == 1:
        raise InvalidSchedule("the schedule runs whole sequences")
    if build(name, profile, shape.microbatches, **order) != schedule:
        raise InvalidSchedule(f"it runs the order of {name} only, and keeps every activation")
    if spread["cp"] > 1 or spread["ep"] > 1 or spread["zero"] > 1:
        raise InvalidSchedule(
            "it has no context or expert parallelism, and shards no more than ZeRO 1"
        )
    if work.get("slice_by") == "exchange":
        raise InvalidSchedule("its devices exchange no context, as SlimPipe's do")
    if work.get("overlap"):
        raise InvalidSchedule("no options of it are known that hide the communication of --overlap")
    if work.get("grad_reduce_in_bf16"):
        raise InvalidSchedule("no option of it is known that has gradients in bf16")
    if work.get("gradient_sums") == "cast":
        raise InvalidSchedule("it casts no gradients to add them up")
    if work.get("weights_in_fp32"):
        raise InvalidSchedule("it keeps weights as GEMMs take them, and has no option for fp32")
    if work["recompute"] not in ("none", "full"):
        raise InvalidSchedule(f"it does not recompute {work['recompute']}")
    lengths = work["slices"]
    found: dict[str, Any] = {
        "--pipe-sp-splits": shape.slices,
        "--pipe-sp-strategy": "average" if len(set(lengths)) == 1 else "uniform_comp",
        "--pipeline-model-parallel-size": shape.devices,
        "--tensor-model-parallel-size": spread["tp"],
        "--seq-length": work["seq"],
        "--micro-batch-size": work["microbatch"],
        "--global-batch-size": work["microbatch"] * shape.microbatches * spread["dp"],
        "--use-flash-attn": True,
        "--sequence-parallel": spread["tp"] > 1,
        "--use-distributed-optimizer": spread["zero"] == 1,
    }
    notes = []
    layers = [cost.layers or 0 for cost in profile.stages]
    inner = sum(layers) - 2  # embedding and head count as one each
    each, rest = divmod(inner, shape.stages)
    if shape.chunks > 1:
        found["--num-layers-per-virtual-pipeline-stage"] = each
    own = [count - (at in (0, shape.stages - 1)) for at, count in enumerate(layers)]
    if rest:
        raise InvalidSchedule(
            f"its stages have equally many layers; {inner} are not a multiple of {shape.stages}"
        )
    if own != [each] * shape.stages:
        notes.append(
            f"every stage gets {each} layers there; the plan has {', '.join(map(str, own))}"
        )
    if work["recompute"] == "full":
        found |= {"--recompute-granularity": "full", "--recompute-method": "uniform"}
        notes.append("no published run of the fork recomputes over slices")
    if found["--pipe-sp-strategy"] == "uniform_comp":
        tokens = ", ".join(map(str, lengths))
        notes.append(
            f"it chooses the slices' lengths by FLOPs itself; the plan has {tokens} tokens"
        )
    return found, notes


def command(found: dict[str, Any]) -> str:
    """Return the options as words of a command line."""
    return " ".join(words({key[2:]: value for key, value in found.items() if value is not False}))
