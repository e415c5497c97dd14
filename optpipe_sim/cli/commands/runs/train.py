"""``train``: a real training run on this machine that switches to better schedules."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import OptPipeError
from ....files import read_bytes, write_text
from ....processes.signals import sigterm_as_ctrl_c
from ....runtime.settings import Online
from ....units import counted, format_time
from ...options.fields import add_fields, given, same
from ...options.kinds import count, percent, positive, seconds, size, whole
from ...options.models import add_layers, add_levels, add_model, level_list
from ...options.shared import add_flags, add_numbers, add_outputs
from ...status import DONE, INTERRUPTED
from ..costs.profile import need_torch

if TYPE_CHECKING:
    from ....profile import CostProfile
    from ....runtime.train.task import TrainResult, TrainTask
    from ...outputs.show import Out

TINY = "experiments/models/tiny-llama.yaml"
EXAMPLE = f"optpipe-sim train --model {TINY} --stages 2 -m 8 --steps 300 --memory-limit 16MiB"
SUMMARY = (
    "train a small model on ranks of this machine, and switch to better schedules during the run"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `train`."""
    add_model(parser)
    parser.add_argument(
        "--stages", required=True, type=count, metavar="P", help="devices: a process each"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="of the stages (cpu); cuda: a GPU per stage, messages over NCCL; not yet run on any",
    )
    parser.add_argument(
        "-m", "--microbatches", required=True, type=count, metavar="M", help="per step"
    )
    parser.add_argument(
        "--memory-limit", type=size, metavar="SIZE", help="per device, as 16MiB; default: none"
    )
    parser.add_argument("--schedule", metavar="NAME", help="to start with (adaoffload)")
    parser.add_argument(
        "--profile", metavar="P.yaml", help="costs to start with; default: measured at the start"
    )
    add_numbers(
        parser,
        ("steps", 300, "of the optimizer"),
        ("seq", 64, "tokens per sequence"),
        ("microbatch", 4, "sequences per microbatch"),
    )
    add_fields(parser, Online, "warmup", group="")
    add_numbers(parser, ("every", 100, "steps between checkpoints"))
    add_layers(parser, "layers per stage; default: balanced")
    add_levels(parser)
    add_numbers(parser, ("seed", 0, "of weights, data and searches"), kind=whole)
    parser.add_argument("--lr", type=positive, default=3e-3, metavar="X", help="of AdamW (0.003)")
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="text to train on, byte by byte; default: the output of a Markov chain",
    )
    add_flags(parser, ("no-switch", "keep the schedule: neither solve nor watch"))
    typed = {"min_gain": percent, "drift": percent, "solver_s": seconds}
    changes = {name: {"type": kind} for name, kind in typed.items()}
    add_fields(parser, Online, *typed, "exact", group="", **changes)
    parser.add_argument("--checkpoint", metavar="FOLDER", help="where to keep the last state")
    add_flags(parser, ("resume", "continue from --checkpoint"))
    parser.add_argument(
        "--slow",
        type=_slow,
        metavar="STAGE:STEP:MS",
        help="make a stage's ops slower from a step on, to try drift detection",
    )
    add_flags(parser, ("compare", "train without a pipeline as well; compare losses"))
    add_outputs(
        parser,
        ("figure", "F.png", "draw loss and iteration times"),
        ("write", "STEM", "write STEM.csv, STEM.md and STEM.png; implies --compare"),
    )


@sigterm_as_ctrl_c()
def run(arguments: argparse.Namespace, out: Out) -> int:
    """Train, show, write."""
    need_torch("train")
    from ....runtime.train.train import switch_costs, train, unpipelined

    if arguments.resume and not arguments.checkpoint:
        raise OptPipeError("--resume: say from where with --checkpoint FOLDER")
    task = _task(arguments, out)
    losses: list[float] | None = None
    with out.progress("training") as progress:
        result = train(task, _news(progress, task.steps))
        if (arguments.compare or arguments.write) and not result.stopped:
            name = "the same without a pipeline"
            losses = unpipelined(
                task, len(result.rows), lambda step: progress(name, step + 1, task.steps)
            )
    worst = None
    if losses is not None:
        worst = max(abs(row["loss"] - loss) for row, loss in zip(result.rows, losses, strict=True))
    answer: dict[str, Any] = {
        "steps": len(result.rows),
        "stopped": result.stopped,
        "loss_first": result.rows[0]["loss"] if result.rows else None,
        "loss_last": result.rows[-1]["loss"] if result.rows else None,
        "loss_floor": task.tokens.floor,
        "greatest_difference": worst,
        "phases": result.phases,
        "switches": switch_costs(result),
        "events": result.events,
    }
    files = _write(arguments, task, result, losses, answer)
    out.result({**answer, "losses": [row["loss"] for row in result.rows], "files": files})
    _show(out, task, answer, files)
    return INTERRUPTED if result.stopped else DONE


def _task(arguments: argparse.Namespace, out: Out) -> TrainTask:
    from ....costs import load_model
    from ....names import build
    from ....profile_io import load_profile
    from ....runtime.device import take_device
    from ....runtime.model.plan import Plan
    from ....runtime.model.tokens import Tokens
    from ....runtime.train.task import Slow, TrainTask
    from ....schedule import Schedule
    from ....schedules import ADAOFFLOAD

    model = load_model(arguments.model)
    plan = Plan(
        model,
        arguments.stages,
        **same(arguments, "seq", "microbatch", "layers", "seed"),
    )
    levels = level_list(arguments.levels)
    if levels is not None and arguments.profile:
        raise OptPipeError("--levels: the levels are those of --profile")
    take_device(arguments.device, 0, arguments.stages)
    text = read_bytes(arguments.text) if arguments.text else None
    profile = (
        load_profile(arguments.profile)
        if arguments.profile
        else _measured(plan, levels, out, arguments.device)
    )
    if not profile.alike:
        raise OptPipeError(
            f"--profile {arguments.profile}: its microbatches differ; those of this training are alike"
            " (`confirm` runs such a profile)"
        )
    limit = profile.limits(arguments.memory_limit, "--memory-limit")
    profile = replace(profile, memory_limit=limit)
    name = arguments.schedule or ADAOFFLOAD
    schedule = build(name, profile, arguments.microbatches)
    schedule.meta["name"] = name
    if schedule.shape.chunks != 1 or schedule.shape.devices != arguments.stages:
        plan = replace(plan, chunks=schedule.shape.chunks, layers=None)
    online = Online(**given(arguments, Online), seed=arguments.seed)
    task = TrainTask(
        schedule,
        profile,
        plan,
        Tokens(model.vocab if text is None else 256, arguments.seed, text),
        limit=limit,
        online=None if arguments.no_switch else online,
        # as ranks see it, whatever their working folder
        checkpoints=arguments.checkpoint and str(Path(arguments.checkpoint).absolute()),
        slow=None if arguments.slow is None else Slow(*arguments.slow),
        **same(arguments, "steps", "lr", "every", "resume", "device"),
    )
    if arguments.resume:
        meta = task.checkpoint(arguments.checkpoint)
        kept = Schedule.from_json(meta["schedule"], arguments.checkpoint)
        task = replace(task, schedule=kept)
    return task


def _measured(plan: Any, levels: list[str] | None, out: Out, device: str) -> CostProfile:
    """Measure bytes, copies and first times of the stages, each by itself."""
    from ....runtime.measure.footprint import USUAL_LEVELS
    from ....runtime.train.train import first_costs

    with out.progress("profiling") as progress:
        known = () if levels is None else levels or USUAL_LEVELS
        return first_costs(plan, progress, known, device)


def _news(progress: Any, steps: int) -> Any:
    """Shows rows and events on the bar as they arrive."""
    last = "starting"
    step = 0

    def news(row: dict[str, Any]) -> None:
        nonlocal last, step
        if "loss" in row:
            step = row["step"] + 1
            last = f"step {step} of {steps}  loss {row['loss']:.4f}"
            last += f"  {row['wall_ns'] / 1e6:.0f} ms"
        else:
            last += f"  {row['event']}"
        progress(last, step, steps)

    return news


def _write(
    arguments: argparse.Namespace,
    task: TrainTask,
    result: TrainResult,
    losses: list[float] | None,
    answer: dict[str, Any],
) -> dict[str, str]:
    from ....plot.style import save
    from ....plot.training import training_chart
    from ...outputs.train import markdown, write_steps

    files: dict[str, str] = {}
    pictures = [arguments.figure] if arguments.figure else []
    if arguments.write:
        write_steps(f"{arguments.write}.csv", result.rows, losses)
        files[f"{arguments.write}.csv"] = "every step"
        write_text(f"{arguments.write}.md", markdown(arguments, task, answer))
        files[f"{arguments.write}.md"] = "the report of the run"
        pictures.append(f"{arguments.write}.png")
    for path in pictures:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        floor = task.tokens.floor
        save(training_chart(result.rows, result.phases, result.events, losses, floor), path)
        files[path] = "loss and iteration times"
    return files


def _show(out: Out, task: TrainTask, answer: dict[str, Any], files: dict[str, str]) -> None:
    from rich.text import Text

    from ...outputs.train import HEADS, phase_cells, sentences

    last = answer["phases"][-1] if answer["phases"] else None
    if last is not None:
        time = "not measured" if last["makespan_ns"] is None else format_time(last["makespan_ns"])
        runs = counted(len(answer["switches"]), "switch", "switches")
        out.text(f"{time} per iteration with {last['schedule']} at the end, after {runs}")
    out.print(Text(task.plan.model.name, "bold"), f"on {task.plan.devices} ranks of this CPU")
    out.print()
    rows = (dict(zip(HEADS, phase_cells(phase), strict=True)) for phase in answer["phases"])
    out.table(rows, HEADS, left=["schedule"])
    out.print()
    for sentence in sentences(answer):
        out.text(sentence)
    out.written(files)
    if answer["stopped"]:
        kept = task.checkpoints is not None
        out.next("stopped; continue with --resume" if kept else "stopped; nothing was kept")


def _slow(text: str) -> tuple[int, int, int]:
    try:
        stage, step, ms = text.split(":")
        return int(stage), int(step), round(float(ms) * 1e6)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be STAGE:STEP:MS, got {text!r}") from None
