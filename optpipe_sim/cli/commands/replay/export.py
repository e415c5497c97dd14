"""``export``: a schedule for torch, its trace for Perfetto, or a plan in a framework's own options;
refused where it would not be whole."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ....errors import InvalidSchedule, OptPipeError
from ....files import write_together
from ....units import format_size
from ...options.kinds import framework
from ...options.models import add_layers
from ...options.shared import (
    add_flags,
    add_outputs,
    add_profile,
    add_schedule,
    add_schedule_problem,
)
from ...status import DONE
from ..examples import OFFLOADING

if TYPE_CHECKING:
    from ....frameworks.losses import Cost, Loss
    from ....profile import CostProfile
    from ....schedule import Schedule
    from ...outputs.show import Out

EXAMPLE = f"optpipe-sim export best.json {OFFLOADING} --memory-limit 24GiB --format perfetto"
SUMMARY = "write a schedule for torch, Megatron-LM or TransformerEngine, or its trace for Perfetto"
# of plans, with the endings of default names
PLANS = {
    "megatron": ".megatron.yaml",
    "torchtitan": ".torchtitan.yaml",
    "graph-trainer": ".graph-trainer.yaml",
    "te": ".te.yaml",
}
FORMATS = {"torch-csv": ".csv", "perfetto": ".trace.json", **PLANS}
LEAVES_OUT = {
    "offloads": "offloads and reloads",
    "recomputation": "recomputation",
}  # as `losses.CANNOT_SAY`, without its imports
WHAT = {
    "torch-csv": "compute orders for torch, where our B is I",
    "perfetto": "trace; open it at https://ui.perfetto.dev",
}
MOST_DEVICES = 16  # devices that are listed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `export`."""
    add_schedule(parser)
    add_profile(
        parser,
        nargs="?",
        help="profile (YAML or JSON); needed for names, and for every format but torch-csv",
    )
    parser.add_argument(
        "--format",
        required=True,
        type=framework,
        choices=tuple(FORMATS),
        help="torch-csv: compute orders for torch.distributed.pipelining; perfetto: a trace for"
        " https://ui.perfetto.dev; megatron, torchtitan, graph-trainer (an experiment of torchtitan): the plan in"
        " their options; te: its offloads as calls of TransformerEngine",
    )
    usual = "the schedule's name with the ending of the format, unless there is such a file"
    add_outputs(parser, ("-o --out", "FILE", f"the file; default: {usual}"))
    add_flags(parser, ("force", "overwrite a file that has the default name"))
    parser.set_defaults(default_endings=FORMATS)
    but = "which torch-csv cannot express: the schedule then needs more memory"
    for name, what in LEAVES_OUT.items():
        add_flags(parser, (f"without-{name}", f"leave out {what}, {but}"))
    parts = "with torch-csv: write the names of the modules of each stage; needs PROFILE"
    add_outputs(parser, ("parts", "F.json", parts))
    add_layers(
        parser, "decoder layers of each stage, in model order (default: what the profile says)"
    )
    nearest = (
        "megatron, torchtitan, graph-trainer, te: export the nearest plan that the framework can run, and report what is"
        " lost; without this a schedule is exported exactly or not at all"
    )
    add_flags(parser, ("nearest", nearest))
    order = "torchtitan, graph-trainer: the file for the order, if torch has no such schedule"
    add_outputs(parser, ("csv", "F.csv", order))
    modules = "megatron: whose inputs are offloaded (default: all that can be)"
    parser.add_argument("--offload-modules", metavar="A,B,...", help=modules)
    add_outputs(parser, ("script", "F.sh", "megatron: write a script that starts the plan"))
    add_schedule_problem(parser)


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Write the file, and report what it leaves out and what that costs."""
    _check_options(arguments)
    if arguments.format in PLANS:
        from . import export_plan

        return export_plan.run(arguments, out)
    from ....frameworks.losses import leave_out, losses_of
    from ...inputs import read_profile, read_schedule

    profile = read_profile(arguments) if arguments.profile else None
    if profile is None and arguments.format == "perfetto":
        raise OptPipeError("PROFILE: perfetto needs the profile as well: export SCHEDULE PROFILE")
    schedule = read_schedule(arguments.schedule, arguments.microbatches, profile)
    without = [name for name in LEAVES_OUT if getattr(arguments, f"without_{name}")]
    losses = losses_of(schedule, arguments.format)
    exported = cost = None
    if losses:
        names = [loss.name for loss in losses]
        exported = leave_out(schedule, arguments.format, names)
        cost = _cost(schedule, exported, profile)
        if not set(names) <= set(without):
            raise InvalidSchedule(_refusal(arguments, schedule, exported, losses, cost))
    files = _write(arguments, exported or schedule, profile)
    out.result(
        {
            "schedule": arguments.schedule,
            "format": arguments.format,
            "path": arguments.out,
            "lost": {loss.name: count for loss, count in losses.items()},
            "cost": cost and cost.to_json(),
        }
    )
    if losses and exported is not None:
        _show(out, schedule, exported, losses, cost)
    out.written(files)
    return DONE


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise for options that belong to another format."""
    plan = arguments.format in PLANS
    given = {
        "--without-offloads": arguments.without_offloads and plan,
        "--without-recomputation": arguments.without_recomputation and plan,
        "--parts": arguments.parts and arguments.format != "torch-csv",
        "--layers": arguments.layers and not (plan or arguments.parts),
        "--nearest": arguments.nearest and arguments.format not in PLANS,
        "--csv": arguments.csv and arguments.format not in ("torchtitan", "graph-trainer"),
        "--script": arguments.script and arguments.format != "megatron",
        "--offload-modules": arguments.offload_modules and arguments.format != "megatron",
    }
    for option, wrong in given.items():
        if wrong:
            hint = "; --nearest exports what can be said" if option.startswith("--without") else ""
            raise OptPipeError(f"{option}: is nothing for --format {arguments.format}{hint}")


def _write(
    arguments: argparse.Namespace, schedule: Schedule, profile: CostProfile | None
) -> dict[str, str]:
    """Write the files; returns them with their descriptions."""
    if arguments.format == "torch-csv":
        from ....frameworks.torch_csv import torch_csv

        contents = {arguments.out: torch_csv(schedule).encode()}
        if arguments.parts:
            contents[arguments.parts] = _module_names(arguments, schedule, profile)
        write_together(contents)
    else:
        from ....frameworks.chrome_trace import save_chrome_trace
        from ....sim import simulate

        assert profile is not None
        save_chrome_trace(simulate(schedule, profile), arguments.out)
    files = {arguments.out: WHAT[arguments.format]}
    return {**files, arguments.parts: "the modules of each stage"} if arguments.parts else files


def _module_names(
    arguments: argparse.Namespace, schedule: Schedule, profile: CostProfile | None
) -> bytes:
    from ....frameworks.parts import parts_of

    if profile is None:
        raise OptPipeError("PROFILE: --parts needs the profile as well: export SCHEDULE PROFILE")
    parts = parts_of(profile.for_shape(schedule.shape), arguments.layers)
    return (json.dumps([part.module_names() for part in parts]) + "\n").encode()


def _cost(schedule: Schedule, exported: Schedule, profile: CostProfile | None) -> Cost | None:
    from ....frameworks.losses import cost_of

    return None if profile is None else cost_of(schedule, exported, profile)


def _held(schedule: Schedule, exported: Schedule) -> str:
    """Describe the memory without a profile: numbers of activations."""
    from ....frameworks.losses import most_held

    now, before = most_held(exported), most_held(schedule)
    device = max(range(len(now)), key=lambda device: now[device] - before[device])
    return (
        f"device {device} holds up to {now[device]} activations (before: {before[device]});"
        " give PROFILE to see bytes and times"
    )


def _refusal(
    arguments: argparse.Namespace,
    schedule: Schedule,
    exported: Schedule,
    losses: dict[Loss, int],
    cost: Cost | None,
) -> str:
    from ....frameworks.losses import in_words

    options = " ".join(f"--without-{loss.name}" for loss in losses)
    return (
        f"{arguments.schedule}: {arguments.format} cannot express {in_words(losses)}. Without them"
        f" {cost or _held(schedule, exported)}. Leave them out with {options}"
    )


def _show(
    out: Out,
    schedule: Schedule,
    exported: Schedule,
    losses: dict[Loss, int],
    cost: Cost | None,
) -> None:
    """Report what was left out, and the memory of each device with and without it."""
    from rich.text import Text

    from ....frameworks.losses import in_words
    from ...outputs.show import percent

    effect: Any = cost or _held(schedule, exported)
    out.text(f"left out: {in_words(losses)}; without them {effect}", style="yellow")
    if cost is None:
        return
    order = sorted(range(len(cost.peak_bytes)), key=lambda device: -cost.peak_bytes[device])
    for device in sorted(order[:MOST_DEVICES]):
        text = f"{format_size(cost.peak_bytes[device])}"
        if cost.memory_limit is not None:
            limit = cost.memory_limit[device]
            share = percent(cost.peak_bytes[device] / max(limit, 1))
            text += f", {share} of its limit of {format_size(limit)}"
        style = "red" if device in cost.above else ""
        out.line(f"device {device}", Text(text, style))
    if len(order) > MOST_DEVICES:
        out.line("", f"and {len(order) - MOST_DEVICES} devices with less")
