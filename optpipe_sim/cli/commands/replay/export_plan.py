"""``export`` to frameworks with their own options or calls: the nearest plan that they can express."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from ....errors import InvalidSchedule, OptPipeError
from ....files import write_mapping, write_text
from ....frameworks import graph_trainer, torchtitan
from ....frameworks import transformer_engine as te
from ....frameworks.megatron.family import nearest, plan_of
from ....frameworks.megatron.launch import script
from ....frameworks.nearest import Nearest
from ....frameworks.torch_csv import torch_csv
from ....profile import CostProfile
from ....schedule import Schedule
from ....solvers.microbatch_order import order_in
from ...inputs import read_problem
from ...outputs.show import Out, environment
from ...status import DONE

WRITES = {"megatron": "starts the plan"}
NAMES = {
    "megatron": "Megatron-LM",
    "torchtitan": "torchtitan",
    "graph-trainer": "torchtitan's graph_trainer",
    "te": "TransformerEngine",
}


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Write the plan; raises if it differs from the schedule and --nearest is not given."""
    if not arguments.profile:
        raise OptPipeError(
            f"PROFILE: {arguments.format} needs the profile as well: export SCHEDULE PROFILE"
        )
    profile, schedule = read_problem(arguments)
    found, data, files = _MAKE[arguments.format](arguments, schedule, profile)
    if found.lost and not arguments.nearest:
        raise InvalidSchedule(
            f"{arguments.schedule}: {NAMES[arguments.format]} cannot express {found.in_words()}. The"
            f" nearest that it can: {found.cost()}. Export that with --nearest"
        )
    answer = {**data, **found.to_json()}
    for path, text in files.items():
        write_text(path, text)
    write_mapping(arguments.out, {"format": arguments.format, **answer})
    paths = dict.fromkeys(files, WRITES.get(arguments.format, "the order of ops"))
    out.result(
        {
            "schedule": arguments.schedule,
            "format": arguments.format,
            "path": arguments.out,
            **answer,
            "files": [arguments.out, *paths],
        }
    )
    if "command" in data:  # the answer, to paste
        environment(out, data.get("environment", {}))
        out.text(data["command"])
    if found.lost:
        out.line("runs", found.cost())
        whole = found.before.iteration_ns == found.before.makespan_ns
        time = "time" if whole else "pipeline time"
        for step in found.lost:
            slower = "deadlocks" if step.slower is None else f"{step.slower:+.1%} {time}"
            out.line("lost", f"{step.thing}: {slower} without")
    for note in found.notes:
        out.line("note", note)
    out.written({arguments.out: f"the plan for {NAMES[arguments.format]}", **paths})
    return DONE


_Made = tuple["Nearest", dict[str, Any], dict[str, str]]


def _megatron(arguments: argparse.Namespace, schedule: Schedule, profile: CostProfile) -> _Made:
    choice, found = nearest(schedule, profile)
    order = None if profile.alike else order_in(schedule)
    modules = arguments.offload_modules and arguments.offload_modules.split(",")
    plan, notes = plan_of(choice, profile, schedule.shape.microbatches, arguments.layers, modules)
    data = {
        "told": choice.name,
        "microbatches": schedule.shape.microbatches,
        **({} if order is None else {"microbatch_order": order}),
        "options": plan.options(),
        **({"fields": fields} if (fields := plan.fields()) else {}),
        "environment": plan.environment(),
        "command": plan.command(),
    }
    files = {}
    if arguments.script:
        files[arguments.script] = script(plan, profile, [f"{choice.name}: {profile.name}"])
    if order is not None and order != sorted(order):
        told = " ".join(map(str, order))
        notes = (*notes, f"the data has to come in the plan's order of microbatches: {told}")
    return replace(found, notes=notes), data, files


def _torchtitan(arguments: argparse.Namespace, schedule: Schedule, profile: CostProfile) -> _Made:
    trainer = graph_trainer if arguments.format == "graph-trainer" else torchtitan
    found = trainer.nearest(schedule, profile)
    config = trainer.options(found.schedule, profile, arguments.csv, arguments.layers)
    order = found.schedule.replace(recompute={})
    files = {arguments.csv: torch_csv(order)} if arguments.csv else {}
    return found, {"options": config, "command": trainer.command(config)}, files


def _te(arguments: argparse.Namespace, schedule: Schedule, profile: CostProfile) -> _Made:
    found = te.nearest(schedule, profile)
    made = te.programs(found.schedule, profile, arguments.layers)
    return found, te.to_plain(*made), {}


_MAKE = {
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "graph-trainer": _torchtitan,
    "te": _te,
}
