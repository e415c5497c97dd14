"""``estimate``: a profile from a model, a machine and the parallelism."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from ....costs.layout import Layout
from ....costs.work import Work
from ....errors import OptPipeError
from ....option_fields import made_of
from ....units import counted, format_parameters, format_size, format_time
from ...options.fields import add_fields
from ...options.models import add_machine, add_model, add_work, model_and_machine, run_options
from ...options.shared import add_outputs
from ...outputs.write import write_figure, write_profile
from ...status import DONE, NO

if TYPE_CHECKING:
    from ....profile import CostProfile
    from ...outputs.show import Out

EXAMPLE = (
    "optpipe-sim estimate --model qwen3-8b --machine h100 --devices 8 --tp 2 --microbatch 1"
    " --seq 8192 --save P.yaml"
)
NOTHING = 0.005  # of the tokens' time: what is hidden less is none
SUMMARY = "estimate a profile from a model's shape and a machine's data sheet"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `estimate`."""
    add_model(parser)
    add_machine(parser)
    add_fields(parser, Layout)
    add_work(parser)
    parser.add_argument(
        "--lengths",
        metavar="F",
        help="a file with the lengths of the sequences of each microbatch, a line per microbatch: the profile's"
        " microbatches then differ, and solve searches their order too (default: all are of --seq tokens)",
    )
    parser.add_argument(
        "--encoder",
        metavar="P.yaml",
        help="a profile of an encoder of images or sounds, estimated on as many devices per stage and for what one microbatch"
        " has of these: its layers come in front of the model's, on the first stage unless solve --layers any spreads"
        " them (default: none)",
    )
    parser.add_argument(
        "--levels",
        action=argparse.BooleanOptionalAction,
        help="give the stages levels of recomputation (norms, attention, MLP, k of L layers), for"
        " schedules and solvers to choose from (default: unless --recompute says what is recomputed)",
    )
    parser.add_argument(
        "--offload",
        choices=("auto", "yes", "no"),
        default="auto",
        help="an offload section from the machine's PCIe data (auto: if there are any)",
    )
    add_outputs(
        parser,
        ("save", "P.yaml", "write the profile"),
        ("chart", "F.png", "with --pairs: draw a pair of the middle stage on its two streams"),
    )


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Estimate, show, save."""
    from ....costs.doubt import kind_of, plausibility
    from ....costs.estimating import estimated
    from ....costs.lengths import read_lengths, with_lengths
    from ....costs.provenance import mfu_ceiling

    model, machine, fitted = model_and_machine(arguments)
    if fitted is not None:
        machine = machine.with_rates(fitted.rates)
    layout, work = made_of(run_options(arguments, model), Layout, Work)
    offload = {"auto": None, "yes": True, "no": False}[arguments.offload]
    made = partial(
        estimated, model, machine, layout, levels=arguments.levels, items=True, offload=offload
    )
    profile = made(work)
    if arguments.lengths:
        lengths = read_lengths(arguments.lengths)
        each = partial(estimated, model, machine, levels=False, offload=offload)
        profile = with_lengths(profile, model, layout, work, lengths, each)
    if arguments.encoder:
        if arguments.lengths:
            raise OptPipeError(
                "--encoder: of what every microbatch has; leave out --lengths, by which its layers would differ too"
            )
        profile = _behind(profile, arguments.encoder)
    files = write_profile(arguments, profile, "the profile", "save")
    middle = len(profile.stages) // 2
    files |= write_figure(
        arguments.chart,
        lambda plot: plot.pair_chart(profile, middle),
        "a pair on its two streams",
    )
    plausible = plausibility(
        machine, kind_of(model), arguments.dtype, mfu_ceiling(profile, causal=True)
    )
    refused = bool(_refusal(profile))
    out.result(
        {
            "fits": not refused,
            **_facts(profile, model),
            "mfu_ceiling": mfu_ceiling(profile),
            "mfu_ceiling_causal": mfu_ceiling(profile, causal=True),
            "ceiling_plausible": plausible[0],
            "doubt": profile.meta["doubt"],
            "warnings": profile.meta.get("warnings", []),
            "files": files,
            "calibration": _residuals(fitted),
        }
    )
    _show(out, profile, model, fitted)
    _show_doubt(out, profile, plausible)
    out.written(files)
    return NO if refused else DONE


def _behind(profile: CostProfile, path: str) -> CostProfile:
    """Return the profile with an encoder in front."""
    from ....costs.encoder import with_encoder
    from ....profile_io import load_profile

    try:
        return with_encoder(profile, load_profile(path))
    except OptPipeError as error:
        raise OptPipeError(
            f"--{error}" if str(error).startswith("encoder:") else str(error)
        ) from None


def _facts(profile: CostProfile, model: Any) -> dict[str, Any]:
    from ....costs.models import active_parameters, mtp_parameters, parameters
    from ....profile_io import profile_to_json

    return {
        "parameters": parameters(model),
        "active_parameters": active_parameters(model),
        "mtp_parameters": mtp_parameters(model),
        "least_memory_bytes": list(profile.least_limits),
        "profile": profile_to_json(profile),
    }


def _residuals(fitted: Any) -> list[dict[str, Any]] | None:
    if fitted is None:
        return None
    return [
        {
            "measurement": after.label,
            "measured": after.measured,
            "before": before.estimated,
            "after": after.estimated,
            "error": after.error,
        }
        for before, after in zip(fitted.before, fitted.after, strict=True)
    ]


def _show(out: Out, profile: CostProfile, model: Any, fitted: Any) -> None:
    from rich.text import Text

    from ....costs.models import active_parameters, mtp_parameters, parameters
    from ....trace.wear import most_written
    from ...outputs.show import warn
    from ...outputs.stages import (
        answer_text,
        most_chunks_text,
        show_factors,
        show_levels,
        show_stages,
    )

    def times(stage: int) -> list[str]:
        cost = profile.stages[stage]
        return [format_time(t) for t in (cost.t_f_ns, cost.t_b_ns, cost.t_w_ns)]

    meta = profile.meta
    total, active = parameters(model), active_parameters(model)
    used = f" ({format_parameters(active)} per token)" if active != total else ""
    used += f", {format_parameters(mtp_parameters(model))} for further tokens," if model.mtp else ""
    refusal = _refusal(profile)
    if refusal:
        out.text(refusal, style="bold red")
    else:
        out.text(answer_text(profile))
    out.print(
        Text(model.name, "bold"),
        f"{total / 1e9:.4g}B parameters{used} on {meta['machine']['title']}",
    )
    spread = ", ".join(f"{key} {meta['parallel'][key]}" for key in ("tp", "cp", "ep", "dp", "zero"))
    work = meta["work"]
    out.print(
        f"pipeline of {counted(profile.devices, 'device')}, {counted(profile.chunks, 'chunk')} each; {spread};"
        f" sequences of {work['seq']}, {work['microbatch']} per microbatch; {work['dtype']},"
        f" recompute {work['recompute']}, {'flash' if work['flash'] else 'unfused'} attention"
    )
    warn(out, profile)
    out.print()
    show_stages(out, profile, ("F", "B", "W"), times)
    out.print()
    show_levels(out, profile)
    out.print(most_chunks_text(profile))
    once = meta["iteration"]
    limit = profile.memory_limit[0] if profile.memory_limit else 0
    out.print(
        f"P2P latency {format_time(profile.t_comm_ns)}; per iteration: gradients"
        f" {once['gradient_sync_ms']:.3g} ms, update {once['optimizer_ms']:.3g} ms; memory for"
        f" training {format_size(limit)} per device"
    )
    if meta["work"].get("pairs"):
        out.text(_pairs_text(profile))
    show_factors(out, profile)
    if profile.offload is not None and profile.offload.nvme is not None:
        out.print(
            f"offloads go to the node's drives: at most {format_size(most_written(profile))} per microbatch"
            " and node, for the devices of one pipeline"
        )
    if spent := meta.get("time_spent"):
        shares = ", ".join(f"{key} {share:.0%}" for key, share in spent.items() if share)
        out.print(f"compute time: {shares}")
    if encoder := meta.get("encoder"):
        out.text(
            f"{counted(encoder['layers'], 'layer')} of {encoder['model']['name']} in front, on the first stage; solve --layers"
            " any gives each stage its share"
        )
    if fitted is not None:
        names = ", ".join(f"{name} {getattr(fitted.rates, name):.3g}" for name in fitted.names)
        errors = [abs(one.error) for one in fitted.after]
        out.print(
            f"fitted: {names}; error of {len(errors)} measurements: median"
            f" {fitted.median_error():.1%}, largest {max(errors):.1%}"
        )
    else:
        out.hint(
            "estimated from data sheets; fit it to measurements with --calibrate FILE", style="dim"
        )


def _pairs_text(profile: CostProfile) -> str:
    """Say what a forward and a backward of the middle stage hide as one op, and whether the host is late with it."""
    from ....profile.streams import exchange_ns, lines_of, pair_times

    stage = len(profile.stages) // 2
    lines = lines_of(profile, stage)
    sent, times = exchange_ns(*lines), pair_times(*lines)
    if not sent:
        took = "as long as one after the other: with ep 1 no tokens are sent that they could hide"
    elif times.hidden < NOTHING * sent:
        took = f"as long as one after the other: they hide nothing of the {format_time(sent)} that tokens are on their way"
    else:
        took = (
            f"{format_time(times.hidden)} less than one after the other, {times.hidden / sent:.0%} of the"
            f" {format_time(sent)} that tokens are on their way"
        )
    kernels = format_time(round(times.kernels))
    if not times.host:
        host = f"{profile.meta['machine']['name']} has no host_us: whether the host is late is not known"
    elif times.host_is_late:
        would = format_time(round(times.alone - times.kernels))
        host = (
            f"the host is late: issuing both takes it {format_time(times.host)}, their kernels {kernels}, which would"
            f" hide {would} (graphs of modules, --cuda-graph-modules, leave it less to issue)"
        )
    else:
        host = f"the host is not late: issuing both takes it {format_time(times.host)}, their kernels {kernels}"
    return (
        f"an F and a backward of stage {stage} as one op take {took}; in the warm-up, in the cool-down and in schedules without"
        f" pairs nothing is hidden\n{host}"
    )


def _refusal(profile: CostProfile) -> str:
    """Return why no schedule fits this profile, and with how many chunks one may; empty if one may with these."""
    from ....solvers.axes import candidate_shapes

    limits = profile.memory_limit or profile.least_limits
    over = [least - limit for least, limit in zip(profile.least_limits, limits, strict=True)]
    worst = max(range(profile.devices), key=lambda device: over[device])
    if over[worst] <= 0:
        return ""
    chunks = counted(profile.chunks, "chunk")
    text = (
        f"does not fit under any schedule with {chunks} per device: device {worst} needs at least"
        f" {format_size(profile.least_limits[worst])} of {format_size(limits[worst])}"
    )
    others = [one for one in candidate_shapes(profile) if max(one.least_limits) <= min(limits)]
    return text + (f"; with {others[0].chunks} it may" if others else "")


def _show_doubt(out: Out, profile: CostProfile, plausible: tuple[bool | None, str]) -> None:
    """Print the largest MFU that it could reach, whether any published run did, and the comparisons."""
    from ....costs.doubt import caution
    from ....costs.provenance import mfu_ceiling
    from ...outputs.show import issued

    out.text(
        f"MFU without any bubble: {mfu_ceiling(profile):.1%} (every attention score counted; with the"
        f" causal half {mfu_ceiling(profile, causal=True):.1%})"
    )
    sure = profile.meta["doubt"]["basis"]
    if spread := profile.spread_text(True, "what is estimated"):
        sure = f"{spread}; {sure}"
    out.labelled("how sure", sure)
    issued(out, profile)
    if text := caution(profile.meta["doubt"]["error"], profile.meta["doubt"]["bias"]):
        out.text(f"          {text}", style="yellow")
    if plausible[0] is not True:
        text = f"expect less: {plausible[1]}" if plausible[0] is False else plausible[1]
        out.text(f"          {text}")
