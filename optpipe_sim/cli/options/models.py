"""The options of models and machines that `estimate`, `advise`, `evaluate` and `profile` share, beside those of
`fields`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...costs.layout import Layout, layer_list
from ...costs.work import Work
from ...errors import OptPipeError
from .fields import add_fields, given
from .shared import add_execution, add_flags

if TYPE_CHECKING:
    from ...costs.calibrate import Calibration
    from ...costs.imbalance import Imbalance
    from ...costs.machines import Machine
    from ...costs.models import Model

PIPELINE = "devices along the pipeline"  # ``--pp``, of which `Layout` has all devices


def add_model(parser: argparse.ArgumentParser) -> None:
    """``--model``."""
    parser.add_argument(
        "--model",
        required=True,
        help="a name (llama2-7b, qwen3-8b, ...), a short config (.yaml) or a Hugging Face config.json",
    )


def add_machine(parser: argparse.ArgumentParser) -> None:
    """``--machine`` and ``--calibrate``."""
    parser.add_argument(
        "--machine", required=True, help="a name (a100, h100, ...) or a machine file (.yaml)"
    )
    parser.add_argument(
        "--calibrate",
        metavar="FILE",
        help="fit the machine's rates to this file's measurements",
    )
    parser.add_argument(
        "--offload-to",
        choices=("host", "nvme"),
        help="where offloads go: the host's memory, or through it to the node's drives (the machine's"
        " nvme section); default: as the machine says, else host",
    )


def add_work(parser: argparse.ArgumentParser, *only: str, **changes: Any) -> None:
    """Add how layers run, all of `Work` or these fields, and how the work is issued."""
    add_execution(parser, "the machine's, which its rates go with")
    add_fields(parser, Work, *only, **changes)
    parser.add_argument(
        "--capacity-factor",
        type=float,
        metavar="X",
        help="an expert gets at most X times the mean of tokens, others are dropped (default: none are)",
    )
    padded = "with --capacity-factor: every expert computes as many tokens"
    add_flags(parser, ("pad-to-capacity", padded))


def run_options(arguments: argparse.Namespace, model: Model) -> dict[str, Any]:
    """Return the fields of `Layout` and `Work` that a command was given, as `estimate`, `evaluate` and `advise`
    take them."""
    options = given(arguments, Layout, Work)
    return {**options, "imbalance": _imbalance_of(arguments, model)}


def _imbalance_of(arguments: argparse.Namespace, model: Model) -> Imbalance:
    """Return how unevenly experts are loaded."""
    from ...costs.imbalance import as_imbalance, for_any_ep

    if arguments.capacity_factor is not None and not model.experts:
        raise OptPipeError(f"capacity factor: {model.name} has no experts")
    if isinstance(arguments.ep, int):
        said = as_imbalance(arguments.imbalance, model.experts, arguments.ep)
    else:  # it is chosen
        said = for_any_ep(arguments.imbalance, model.experts)
    return said.within(arguments.capacity_factor, arguments.pad_to_capacity)


def add_layers(parser: argparse.ArgumentParser, help: str) -> None:
    """``--layers`` of a model as it is, without marks."""
    add_fields(parser, Layout, "layers", layers={"read": layer_list, "help": help})


def add_levels(parser: argparse.ArgumentParser) -> None:
    """``--levels``; see `level_list`."""
    parser.add_argument(
        "--levels",
        nargs="?",
        const="",
        metavar="NAME,...",
        help="measure levels of recomputation too, for schedules and solvers to choose from: norms,"
        " qkv, attention, mlp, experts (joined by +), full, full-50%% (of the layers), stage; without"
        " names some of them",
    )


def level_list(text: str | None) -> list[str] | None:
    """Parse ``--levels``: an empty list for the usual ones."""
    return None if text is None else list(filter(None, text.split(",")))


def model_and_machine(
    arguments: argparse.Namespace,
) -> tuple[Model, Machine, Calibration | None]:
    """Return the model and the machine, with rates fitted by ``--calibrate``."""
    from ...costs import load_machine, load_model, model_names
    from ...costs.machine_files import is_built_in

    if is_built_in(arguments.model) and arguments.machine in model_names():
        raise OptPipeError(
            f"--model {arguments.model}: is a machine, and {arguments.machine} a model: exchange the two"
        )
    model, machine = load_model(arguments.model), load_machine(arguments.machine)
    if arguments.offload_to is not None:
        machine = replace(machine, offload_to=arguments.offload_to)
    if arguments.execution is not None:  # what is measured is fitted under it, too
        machine = replace(machine, execution=arguments.execution)
    if arguments.calibrate is None:
        return model, machine, None
    from ...costs.calibrate import calibrate, load_measurements

    measured = load_measurements(arguments.calibrate, machine)
    return model, machine, calibrate(measured, machine, arguments.calibrate)
