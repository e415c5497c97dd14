"""The options of models and machines that `estimate`, `advise` and `profile` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import OptPipeError
from .kinds import dtype, names, recomputed
from .shared import add_execution

if TYPE_CHECKING:
    from ...costs.calibrate import Calibration
    from ...costs.imbalance import Imbalance
    from ...costs.machines import Machine
    from ...costs.models import Model

# how a model is split over GPUs
SPLIT = {
    "pp": "devices along the pipeline",
    "tp": "devices that share each layer's matrices",
    "cp": "devices that share the sequence",
    "ep": "devices that share the experts",
    "dp": "replicas of the model",
    "microbatch": "sequences per microbatch",
    "chunks": "stages per device of the pipeline",
}


def add_etp(parser: argparse.ArgumentParser, kind: Callable[[str], Any], metavar: str) -> None:
    """``--etp``."""
    text = "devices that share one expert, tp or 1 (tp if ep divides cp x dp, else 1)"
    parser.add_argument("--etp", type=kind, metavar=metavar, help=text)


def add_model(parser: argparse.ArgumentParser) -> None:
    """``--model``."""
    parser.add_argument(
        "--model",
        required=True,
        help="a name (llama2-7b, qwen3-8b, ...), a short config (.yaml) or a Hugging Face config.json",
    )


def add_slice_by(parser: argparse.ArgumentParser, default: str) -> None:
    """``--slice-by``."""
    parser.add_argument(
        "--slice-by",
        choices=("length", "time", "exchange"),
        default=default,
        help="slices of equal length, of equal time: later ones are shorter; or of equal length whose devices"
        f" exchange parts of the attention, as SlimPipe's do ({default})",
    )


def add_machine(parser: argparse.ArgumentParser) -> None:
    """``--machine`` and ``--calibrate``."""
    parser.add_argument(
        "--machine", required=True, help="a name (a100, h100, ...) or a machine file (.yaml)"
    )
    parser.add_argument(
        "--calibrate",
        metavar="FILE",
        help="fit the machine's rates to the measurements in this file first",
    )
    parser.add_argument(
        "--offload-to",
        choices=("host", "nvme"),
        help="where offloads go: the host's memory, or through it to the node's drives (the machine's"
        " nvme section); default: as the machine says, else host",
    )


def add_kernels(parser: argparse.ArgumentParser) -> None:
    """``--no-flash``, ``--no-sequence-parallel``, ``--exchange``, ``--context``, ``--dtype`` and ``--execution``."""
    add_execution(parser, "ideal, which machines' rates are fitted to")
    parser.add_argument(
        "--no-flash", action="store_true", help="attention scores go through memory"
    )
    parser.add_argument(
        "--no-sequence-parallel",
        action="store_true",
        help="with tp, norms and dropout are not shared: every device has them for all tokens",
    )
    parser.add_argument(
        "--exchange",
        default="plain",
        metavar="HOW",
        help="of tokens between experts: plain; per-node (once per node, as DeepEP does); overlapped"
        " (behind another microbatch's compute); per-node-overlapped",
    )
    parser.add_argument(
        "--context",
        default="ring",
        metavar="HOW",
        help="between devices that share a sequence: ring (keys and values); heads (all-to-all)",
    )
    parser.add_argument(
        "--dtype",
        type=dtype,
        default="bf16",
        metavar="TYPE",
        help="bf16, fp16, fp8, tf32 or fp32",
    )


def add_whole_run(parser: argparse.ArgumentParser) -> None:
    """``--cuda-graphs``, ``--loss-fusion``, and the formats of gradients and weights."""
    parser.add_argument(
        "--grad-reduce-in-bf16",
        action="store_true",
        help="gradients of weights are summed up, kept and reduced in bf16, not fp32",
    )
    parser.add_argument(
        "--accumulate-grads-in-fp32",
        action="store_true",
        help="with --dtype fp16: gradients of weights are summed up, kept and reduced in fp32, not fp16",
    )
    parser.add_argument(
        "--weights-in-fp32",
        action="store_true",
        help="weights are kept in fp32 and cast for the GEMMs, as torchtitan does: 16 bytes per weight, not 18",
    )
    parser.add_argument(
        "--loss-fusion",
        choices=("none", "native", "te"),
        default="",
        help="how the loss is computed: none (fp32); native, te (Megatron-LM's --cross-entropy-fusion-impl); default: as"
        " the machine file's logit_bytes says",
    )
    parser.add_argument(
        "--cuda-graphs",
        action="store_true",
        help="iterations run as CUDA graphs: layers with experts wait for no launches",
    )
    parser.add_argument(
        "--cuda-graph-modules",
        type=names,
        default=[],
        metavar="A,B,...",
        help="or these parts of layers with experts do: attn, moe_router, moe_preprocess; the host issues the rest (default: all of it)",
    )


def add_pairs(parser: argparse.ArgumentParser) -> None:
    """``--pairs``."""
    parser.add_argument(
        "--pairs",
        nargs="?",
        const="combined",
        default="none",
        choices=("none", "combined", "delayed-w"),
        help="a forward and a backward may run as one op that hides their exchange of tokens, replayed layer by layer; other ops pay"
        " all of it: combined (as --overlap-moe-expert-parallel-comm of Megatron-LM; without a word), delayed-w (--delay-wgrad-compute,"
        " too); none",
    )


def add_imbalance(parser: argparse.ArgumentParser) -> None:
    """``--imbalance``, ``--capacity-factor`` and ``--pad-to-capacity``; see `imbalance_of`."""
    parser.add_argument(
        "--imbalance",
        default="1",
        metavar="X|A..B|FILE",
        help="tokens of the GPU whose experts get most, over the mean: a number; a range; unknown (as runs without balance by force); or"
        " a file with the tokens of each expert, a line per layer (1: balanced, as by force)",
    )
    parser.add_argument(
        "--capacity-factor",
        type=float,
        metavar="X",
        help="an expert gets at most X times the mean of tokens, others are dropped (default: none are)",
    )
    parser.add_argument(
        "--pad-to-capacity",
        action="store_true",
        help="with --capacity-factor: every expert computes as many tokens",
    )


def imbalance_of(arguments: argparse.Namespace, model: Model) -> Imbalance:
    """Return how unevenly experts are loaded."""
    from ...costs.imbalance import as_imbalance, for_any_ep

    if isinstance(arguments.ep, int):
        given = as_imbalance(arguments.imbalance, model.experts, arguments.ep)
    else:  # it is chosen
        given = for_any_ep(arguments.imbalance, model.experts)
    return given.within(arguments.capacity_factor, arguments.pad_to_capacity)


def add_recompute(parser: argparse.ArgumentParser) -> None:
    """``--recompute``."""
    parser.add_argument(
        "--recompute",
        type=recomputed,
        default="none",
        metavar="none|norms|full|MODULE,...",
        help="what B recomputes: nothing; norms, activation functions and dropout; the whole layer; or"
        " modules by Megatron-LM's names, as in core_attn,mlp (none)",
    )


def add_overlap(parser: argparse.ArgumentParser) -> None:
    """``--overlap``."""
    parser.add_argument(
        "--overlap",
        type=names,
        default=[],
        metavar="A,B,...",
        help="what hides behind compute, as Megatron-LM can: grad-reduce, param-gather (gradients and weights of the"
        " replicas); tp-comm (tensor parallelism's collectives); default: none of them",
    )


def add_layers(parser: argparse.ArgumentParser) -> None:
    """``--layers``; see `layer_list`."""
    parser.add_argument("--layers", metavar="A,B,...", help="layers per stage; default: balanced")


def layer_list(text: str | None) -> list[int] | None:
    """Parse ``--layers``."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise OptPipeError(f"--layers {text}: expected whole numbers, as in 3,4,4,3") from None


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
    from ...costs import load_machine, load_model

    model, machine = load_model(arguments.model), load_machine(arguments.machine)
    if arguments.offload_to is not None:
        machine = replace(machine, offload_to=arguments.offload_to)
    if arguments.calibrate is None:
        return model, machine, None
    from ...costs.calibrate import calibrate, load_measurements

    measured = load_measurements(arguments.calibrate, machine)
    return model, machine, calibrate(measured, machine, arguments.calibrate)
