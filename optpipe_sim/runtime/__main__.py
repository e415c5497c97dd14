"""One rank of several, started by torchrun: over gloo on CPU, over NCCL on GPUs.

    torchrun --nproc-per-node 4 -m optpipe_sim.runtime 1f1b profile.yaml -m 8

(NCCL has been written without several GPUs to try it on.)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ..errors import OptPipeError, RuntimeFault
from ..units import format_size, format_time, written_size

BAD_INPUT, FAULT = 2, 1
NAME = "optpipe_sim.runtime"


def main(argv: Sequence[str] | None = None) -> int:
    """Do the part of one rank; rank 0 prints what was predicted and what was measured.

    Returns 0, or 2 for bad input, with one line of rank 0; a rank that fails says why in one line
    and ends with 1 at once, upon which torchrun ends the others.
    """
    arguments = _parser().parse_args(argv)
    rank = int(os.environ.get("RANK", 0))
    try:
        task = _task(arguments)
        _check_world(task.schedule.shape.devices)
    except (OptPipeError, OSError) as error:
        if rank == 0:  # the others have the same to say
            print(f"{NAME}: {error}", file=sys.stderr)
        return BAD_INPUT
    try:
        _meet(arguments.device)
        found = _measure(task, rank)
    except Exception as error:
        message = error if isinstance(error, OptPipeError) else f"{type(error).__name__}: {error}"
        message = str(message).split("\n")[0]  # CUDA adds advice
        prefix = "" if isinstance(error, RuntimeFault) else f"rank {rank}: "
        print(f"{NAME}: {prefix}{message}", file=sys.stderr, flush=True)
        os._exit(FAULT)  # threads and messages under way are not waited for
    if rank == 0:
        _show(arguments, found)
    _part()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"torchrun --nproc-per-node P -m {NAME}",
        description="run a schedule on P ranks and compare its measured times with the predicted ones",
    )
    parser.add_argument("schedule", help="a name, with its options, or a file")
    parser.add_argument("profile", help="a profile (.yaml or .json)")
    parser.add_argument("-m", "--microbatches", type=int, help="with the name of a schedule")
    parser.add_argument("--memory-limit", type=written_size, metavar="SIZE", help="per device")
    parser.add_argument(
        "--mode",
        choices=("synthetic", "gradient"),
        default="synthetic",
        help="ops that sleep as long as the profile says (default), or the real stages of --model",
    )
    parser.add_argument("--model", help="a name or a config; default: the profile's")
    parser.add_argument("--seq", type=int, help="tokens per sequence; default: the profile's")
    parser.add_argument("--microbatch", type=int, help="sequences; default: the profile's")
    parser.add_argument("--dtype", help="fp32, bf16 or fp16; default: the profile's")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the stages")
    parser.add_argument("--iterations", type=int, default=5, metavar="N", help="(5)")
    parser.add_argument("--trace", metavar="F.json", help="the fastest iteration, for Perfetto")
    parser.add_argument("--save-trace", metavar="F.json", help="the same as data (Trace.load)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser


def _task(arguments: argparse.Namespace) -> Any:
    from ..costs import load_model
    from ..frameworks.torch_csv import load_schedule
    from ..names import build
    from ..profile_io import load_profile
    from .confirm.case import plan_of
    from .execute.task import Task

    profile = load_profile(arguments.profile)
    if arguments.memory_limit is not None:
        profile = replace(
            profile, memory_limit=profile.limits(arguments.memory_limit, "--memory-limit")
        )
    if os.path.exists(arguments.schedule):
        schedule = load_schedule(arguments.schedule)
    elif arguments.microbatches is None:
        raise OptPipeError("-m: how many microbatches? (a schedule's file would say)")
    else:
        schedule = build(arguments.schedule, profile, arguments.microbatches)
    plan = None
    if arguments.mode == "gradient":
        plan = plan_of(
            profile,
            load_model(arguments.model) if arguments.model else None,
            seq=arguments.seq,
            microbatch=arguments.microbatch,
            dtype=arguments.dtype,
            slices=schedule.shape.slices,
        )
    return Task(
        schedule,
        profile,
        mode=arguments.mode,
        plan=plan,
        iterations=arguments.iterations,
        device=arguments.device,
    )


def _check_world(devices: int) -> None:
    world = os.environ.get("WORLD_SIZE")
    how = f"torchrun --nproc-per-node {devices} -m {NAME} ..."
    if world is None or "RANK" not in os.environ:
        raise OptPipeError(f"this is one rank of {devices}; start all of them: {how}")
    if int(world) != devices:
        raise OptPipeError(f"the schedule is for {devices} devices, not {world} ranks: {how}")


def _meet(device: str) -> None:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        from .device import take_device

        take_device(
            device, int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        )  # torchrun sets both
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["WORLD_SIZE"])))
    # what ranks agree on goes over gloo in any case; `transport.Nccl` makes its own groups
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))


def _measure(task: Any, rank: int) -> dict[str, Any]:
    """Return what rank 0 prints; for the other ranks, nothing."""
    import torch.distributed as dist

    from ..sim.difference import compare_traces
    from ..sim.lower import lower
    from .confirm.confirm import machine
    from .confirm.verdict import conditions
    from .execute.record import measured_trace

    result = task.perform(rank)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.gather_object((result.records, result.message_bytes), gathered if rank == 0 else None)
    if rank:
        return {}
    message_bytes = [size for _, size in gathered]
    gathered = [records for records, _ in gathered]
    lowered = lower(task.schedule, task.profile, task.memory_limit)
    traces = [measured_trace(lowered, records) for records in zip(*gathered, strict=True)]
    best = min(traces, key=lambda trace: trace.makespan_ns)
    difference = compare_traces(lowered, best, concurrent=task.mode == "gradient")
    corrected = difference.corrected
    static = lowered.profile.static_bytes
    facts: dict[str, Any] = {
        "mode": task.mode,
        "device": task.device,
        "ranks": len(gathered),
        "microbatches": task.schedule.shape.microbatches,
        "predicted_makespan_ns": difference.predicted.makespan_ns,
        "corrected_makespan_ns": None if corrected is None else corrected.makespan_ns,
        "measured_makespan_ns": best.makespan_ns,
        "ratio": difference.ratio,
        "iterations_ns": [trace.makespan_ns for trace in traces],
        "causes_ns": difference.causes_ns,
        "message_buffer_bytes": message_bytes,
        "conditions": conditions(task.profile, machine(task.device)),
    }
    if task.mode == "gradient":
        predicted = difference.predicted.peak_bytes
        facts |= {
            "loss": next(r[-1].loss for r in gathered if r[-1].loss is not None),
            "predicted_peak_bytes": [a - b for a, b in zip(predicted, static, strict=True)],
            "measured_peak_bytes": [max(r.peak_bytes for r in records) for records in gathered],
        }
    return {"facts": facts, "trace": best}


def _show(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    facts, trace = found["facts"], found["trace"]
    if arguments.trace:
        from ..frameworks.chrome_trace import save_chrome_trace

        save_chrome_trace(trace, arguments.trace)
    if arguments.save_trace:
        trace.save(arguments.save_trace)
    if arguments.json:
        print(json.dumps({"schedule": arguments.schedule, "profile": arguments.profile} | facts))
        return
    times = [facts["predicted_makespan_ns"], facts["measured_makespan_ns"]]
    print(
        f"{arguments.schedule} on {facts['ranks']} ranks ({facts['device']}, {facts['mode']}):"
        f" predicted {format_time(times[0])}, measured {format_time(times[1])}"
        f" ({facts['ratio'] - 1:+.1%}; the fastest of {len(facts['iterations_ns'])})"
    )
    if facts["corrected_makespan_ns"] is not None:
        slower = facts["corrected_makespan_ns"]
        print(
            f"  predicted with ops slowed down by copies and idle gaps: {format_time(slower)};"
            f" measured is {times[1] / slower - 1:+.1%} from that"
        )
    for text in facts["conditions"]:
        print(f"  {text}")
    causes = sorted(facts["causes_ns"].items(), key=lambda item: -abs(item[1]))
    print("  " + ", ".join(f"{cause} {format_time(time)}" for cause, time in causes))
    if facts["mode"] == "gradient":
        print(f"  loss {facts['loss']:.6f}; the times include the measuring of memory on CPU")
        peaks = zip(facts["predicted_peak_bytes"], facts["measured_peak_bytes"], strict=True)
        for rank, (said, held) in enumerate(peaks):
            print(f"  rank {rank}: peak predicted {format_size(said)}, held {format_size(held)}")
        if any(facts["message_buffer_bytes"]):
            sizes = ", ".join(map(format_size, facts["message_buffer_bytes"]))
            print(f"  beyond that, NCCL's communicators hold {sizes} per rank")


def _part() -> None:
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
