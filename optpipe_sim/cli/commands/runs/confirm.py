"""``confirm``: compare a schedule's predicted time and memory with real runs on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ....errors import OptPipeError, RuntimeFault
from ....option_fields import options_of
from ....processes.signals import sigterm_as_ctrl_c
from ....processes.torchrun import torchrun_rank
from ....runtime.settings import Tolerances
from ...options.fields import add_fields, given, same
from ...options.kinds import MOST_REPEATS, count, count_to, share, whole
from ...options.models import add_layers
from ...options.shared import (
    add_flags,
    add_numbers,
    add_outputs,
    add_profile,
    add_schedule,
    add_schedule_problem,
)
from ...outputs.write import write_figure
from ...status import DONE, NO

if TYPE_CHECKING:
    from ....costs.models import Model
    from ....profile import CostProfile
    from ....runtime.confirm.verdict import Confirmation
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim confirm zb-h1 tiny.yaml -m 8 --mode replay --figure confirm.png"
SUMMARY = "compare a schedule's predicted time and memory with real runs on this machine"
MODES = ("synthetic", "gradient", "replay", "loop")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `confirm`."""
    add_schedule(parser)
    add_profile(parser, help="profile of costs; best one that `profile` has written")
    parser.add_argument(
        "--mode",
        required=True,
        choices=MODES,
        help="what runs, and what is compared. Synthetic: processes whose ops sleep as predicted (time); gradient:"
        " processes with real stages (results, memory); replay: all stages in one process, op by op (results, memory,"
        " what each op costs); loop: each rank's whole program alone, its neighbours played back"
        " (time, memory, results)",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where replay and loop run, and gradient on ranks of torchrun (default: cpu; cuda is written, but not yet"
        " confirmed on one)",
    )
    add_schedule_problem(parser)
    add_numbers(
        parser,
        (
            "iterations",
            5,
            "iterations of synthetic (the fastest counts), replay (the median counts), and gradient on ranks of torchrun"
            " or with --kineto",
        ),
        ("sweeps", 6, "maximum number of sweeps over the ranks in loop mode"),
        ("stretch", 1, "synthetic: multiply all times by N, for ops too short to sleep exactly"),
        kind=count_to(MOST_REPEATS),
    )
    parser.add_argument(
        "--model",
        help="a name or a config, as for `profile`; default: the one that the profile was measured on",
    )
    for name, text in (("seq", "tokens per sequence"), ("microbatch", "sequences per microbatch")):
        parser.add_argument(
            f"--{name}", type=count, metavar="N", help=f"{text}; default: the profile's"
        )
    parser.add_argument(
        "--dtype", metavar="TYPE", help="fp32, bf16 or fp16; default: the profile's"
    )
    add_layers(parser, "layers per stage; default: the profile's")
    add_numbers(parser, ("seed", 0, "of the batch"), kind=whole)
    shares = {name: {"type": share} for name in options_of(Tolerances)}
    add_fields(parser, Tolerances, group="", **shares)
    kernels = "kernels that give the same gradients every time (slower; the times are theirs)"
    add_flags(
        parser,
        ("memory-fraction", "loop on cuda: no more can be allocated than the limit allows"),
        ("deterministic", f"choose {kernels}"),
    )
    runs = "add the measured time to a list of runs, to which `executions --fit` fits how this machine issues work"
    add_outputs(
        parser,
        ("figure", "F.png", "draw both timelines, one over the other"),
        ("trace", "F.json", "write the measured trace for https://ui.perfetto.dev"),
        ("save-trace", "F.json", "write the measured trace as data (Trace.load)"),
        ("save-run", "RUNS.yaml", runs),
    )
    parser.add_argument(
        "--kineto",
        metavar="FOLDER",
        help="synthetic, gradient: write what torch.profiler records, a file per rank (`import` reads"
        " them); it slows the ops down",
    )


@sigterm_as_ctrl_c()
def run(arguments: argparse.Namespace, out: Out) -> int:
    """Run, compare, print."""
    from ...inputs import read_problem
    from ...outputs.confirm import show_confirmation
    from ..costs.profile import need_torch

    profile, schedule = read_problem(arguments)
    _check_mode(arguments, profile)
    need_torch("confirm")
    from ....runtime.confirm.case import Case, plan_of
    from ....runtime.confirm.confirm import confirm, task_of
    from ....runtime.device import check_device, prepare_cuda
    from ....runtime.execute.launch import JoinedRanks

    if arguments.deterministic:
        prepare_cuda(deterministic=True)
    check_device(arguments.device)
    plan = None
    if arguments.mode != "synthetic":
        plan = plan_of(
            profile,
            _model(arguments),
            slices=schedule.shape.slices,
            **same(arguments, "seq", "microbatch", "dtype", "layers"),
        )
    elif arguments.stretch > 1:
        profile = profile.scale(*(arguments.stretch,) * 3)
    case = Case(
        schedule,
        profile,
        plan=plan,
        tolerances=Tolerances(**given(arguments, Tolerances)),
        cap_memory=arguments.memory_fraction,
        **same(arguments, "device", "iterations", "sweeps", "seed", "kineto"),
    )
    ranks = None
    if torchrun_rank() is not None:
        ranks = JoinedRanks(schedule.shape.devices, arguments.device)
        # refuses what cannot run, before the ranks meet
        task = task_of(case, arguments.mode, ranks)
        if ranks.rank:
            with _ends_all(ranks.rank):
                ranks.run(task)
            return DONE
    with out.progress("confirming") as progress:
        with nullcontext() if ranks is None else _ends_all(ranks.rank):
            found = confirm(case, arguments.mode, ranks, progress)
        files = _write(arguments, found)
    if arguments.kineto:
        files[arguments.kineto] = "torch.profiler's traces, a file per rank"
    out.result(
        {
            "schedule": arguments.schedule,
            "profile": profile.name,
            "microbatches": schedule.shape.microbatches,
            "stretch": arguments.stretch,
            **found.to_json(),
            "files": files,
        }
    )
    show_confirmation(out, arguments, profile, found, files)
    return DONE if found.holds else NO


@contextmanager
def _ends_all(rank: int) -> Iterator[None]:
    """Have a rank that fails say why in one line and end at once, upon which torchrun ends the others: threads and
    messages under way are not waited for."""
    try:
        yield
    except Exception as error:
        said = str(error) if isinstance(error, OptPipeError) else f"{type(error).__name__}: {error}"
        prefix = "" if isinstance(error, RuntimeFault) else f"rank {rank}: "
        line = said.split("\n")[0]  # CUDA adds advice
        print(f"optpipe-sim: {prefix}{line}", file=sys.stderr, flush=True)
        os._exit(NO)


def _check_mode(arguments: argparse.Namespace, profile: CostProfile) -> None:
    """Refuse options that this mode would ignore."""
    mode = arguments.mode
    if torchrun_rank() is not None and mode not in ("synthetic", "gradient"):
        raise OptPipeError(f"--mode {mode}: runs in one process; start it without torchrun")
    if arguments.save_run and mode not in ("replay", "loop"):
        raise OptPipeError(f"--save-run: ops of {mode} are not timed; take --mode loop")
    if arguments.stretch > 1 and mode != "synthetic":
        raise OptPipeError(f"--stretch: only for --mode synthetic; ops of {mode} are real")
    if arguments.kineto and mode not in ("synthetic", "gradient"):
        raise OptPipeError(f"--kineto: only for --mode synthetic and gradient, not {mode}")
    if arguments.memory_fraction:
        if mode != "loop" or arguments.device != "cuda":
            raise OptPipeError("--memory-fraction: only for --mode loop --device cuda")
        if profile.memory_limit is None:
            raise OptPipeError("--memory-fraction: needs a --memory-limit")


def _model(arguments: argparse.Namespace) -> Model | None:
    from ....costs import load_model

    return load_model(arguments.model) if arguments.model else None


def _write(arguments: argparse.Namespace, found: Confirmation) -> dict[str, str]:
    """Write the requested files."""
    trace: Any = found.difference.measured
    files = write_figure(
        arguments.figure,
        lambda plot: plot.confirm_figure(found.difference),
        "predicted and measured, one over the other",
    )
    if arguments.trace:
        from ....frameworks.chrome_trace import save_chrome_trace

        save_chrome_trace(trace, arguments.trace)
        files[arguments.trace] = "the measured trace; open it at https://ui.perfetto.dev"
    if arguments.save_trace:
        trace.save(arguments.save_trace)
        files[arguments.save_trace] = "the measured trace"
    if arguments.save_run:
        from ....costs.issuing import add_run

        row = {
            "profile": os.path.abspath(arguments.profile),
            "schedule": arguments.schedule,
            "microbatches": trace.schedule.shape.microbatches,
            "iteration_ns": trace.makespan_ns,
        }
        add_run(arguments.save_run, row)
        files[arguments.save_run] = "the runs that `executions --fit` reads"
    return files
