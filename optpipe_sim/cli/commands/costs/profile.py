"""``profile``: a profile measured on this machine, or counted on fake tensors."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....errors import OptPipeError
from ....units import format_size, format_time
from ...options.fields import same
from ...options.kinds import MOST_REPEATS, count, count_to, counts, whole
from ...options.models import add_layers, add_levels, add_model, level_list
from ...options.shared import add_numbers, add_outputs
from ...outputs.write import write_profile
from ...status import DONE

if TYPE_CHECKING:
    from ....profile import CostProfile
    from ...outputs.show import Out

EXAMPLE = (
    "optpipe-sim profile --model experiments/models/tiny-llama.yaml --device cpu --stages 2 --seq 256"
    " --save tiny.yaml"
)
SUMMARY = "measure a profile here, stage by stage (or count its bytes without a device)"
FAKE_MACHINE = "h100-sxm"
SEQ = 2048


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `profile`."""
    add_model(parser)
    parser.add_argument(
        "--device",
        required=True,
        choices=("cpu", "cuda", "fake"),
        help="measure on the CPU or a GPU (written, but not yet confirmed on one); fake: exact bytes"
        " of any size, times estimated",
    )
    parser.add_argument(
        "--stages",
        required=True,
        type=count,
        metavar="P",
        help="devices along the pipeline; each gets --chunks stages",
    )
    add_numbers(parser, ("chunks", 1, "stages per device"))
    parser.add_argument(
        "--seq",
        type=count,
        metavar="N",
        help=f"tokens per sequence ({SEQ}; with --lengths those of the longest)",
    )
    parser.add_argument(
        "--lengths",
        metavar="F",
        help="a file with the length of the sequence of each microbatch, one per line: the profile's microbatches then"
        " differ, by what at most eight of these lengths take here (default: all are of --seq tokens)",
    )
    samples = "samples", 30, "how often each op is measured"
    add_numbers(parser, samples, kind=count_to(MOST_REPEATS))
    parser.add_argument(
        "--microbatch",
        "--micro-batch",
        type=count,
        default=1,
        metavar="N",
        help="sequences per microbatch (1)",
    )
    warmup = "warmup", 5, "rounds before the samples"
    add_numbers(parser, warmup, ("seed", 0, "of the weights"), kind=whole)
    parser.add_argument(
        "--dtype", metavar="TYPE", help="fp32, bf16 or fp16; default: fp32 on cpu, else bf16"
    )
    add_layers(parser, "layers per stage; default: balanced")
    parser.add_argument(
        "--slices",
        type=counts,
        default=(),
        metavar="N|A,B,...",
        help="cut each sequence into N equal slices, or into slices of so many tokens; measure each",
    )
    parser.add_argument(
        "--machine",
        metavar="NAME_OR_FILE",
        help=f"estimate what cannot be measured for this one: the P2P latency between devices, and with"
        f" --device fake all times (there the default is {FAKE_MACHINE})",
    )
    parser.add_argument(
        "--optimizer-bytes",
        type=whole,
        metavar="N",
        help="per weight, in the static memory; default: Adam's 12 (8 with fp32)",
    )
    add_levels(parser)
    add_outputs(parser, ("save", "P.yaml", "write the profile"))


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Measure, show, save."""
    from ....costs import load_model
    from ....costs.lengths import with_measured_lengths
    from ....costs.slices import slice_lengths
    from ....profile_io import profile_to_json

    model = load_model(arguments.model)
    tokens = _tokens(arguments)
    seq = max(tokens, default=arguments.seq or SEQ)
    need_torch("profile")
    from ....runtime.device import check_device
    from ....runtime.measure.fake import fake_microbatch, fake_profile, with_latency
    from ....runtime.measure.footprint import USUAL_LEVELS, check_levels
    from ....runtime.measure.profiler import measure, measure_microbatch
    from ....runtime.model.plan import Plan

    fake = arguments.device == "fake"
    if not fake:
        check_device(arguments.device)
    levels = level_list(arguments.levels)
    check_levels(levels or ())
    slices = arguments.slices
    if len(slices) == 1:
        slices = () if slices == (1,) else slice_lengths(seq, slices[0])
    if slices and fake:
        raise OptPipeError("--slices: bytes and times of slices are measured: --device cpu or cuda")
    plan = Plan(
        model,
        arguments.stages,
        dtype=arguments.dtype or ("fp32" if arguments.device == "cpu" else "bf16"),
        seq=seq,
        slices=slices,
        **same(arguments, "chunks", "microbatch", "layers", "seed", "optimizer_bytes"),
    )
    with out.progress("profiling") as progress:
        machine = arguments.machine or FAKE_MACHINE
        how = arguments.device, arguments.samples, arguments.warmup, progress

        def microbatch(length: int) -> tuple[int, int]:
            shorter = replace(plan, seq=length)
            if fake:
                return fake_microbatch(shorter, machine)
            return measure_microbatch(shorter, *how)

        if fake:
            profile = fake_profile(plan, machine, progress, levels=levels)
        else:
            profile = measure(plan, *how, levels=() if levels is None else levels or USUAL_LEVELS)
            if arguments.machine:
                profile = with_latency(profile, plan, arguments.machine)
        if tokens:
            profile = with_measured_lengths(profile, tokens, microbatch)
    files = write_profile(arguments, profile, "the profile", "save")
    out.result(
        {
            "measured": not fake,
            "least_memory_bytes": list(profile.least_limits),
            "files": files,
            "profile": profile_to_json(profile),
        }
    )
    _show(out, profile, model.name, fake, files)
    return DONE


def _tokens(arguments: argparse.Namespace) -> tuple[int, ...]:
    """Return the tokens of the sequence of each microbatch, by `--lengths`; nothing without it."""
    from ....costs.lengths import one_each, read_lengths

    if not arguments.lengths:
        return ()
    if arguments.seq or arguments.slices or arguments.microbatch > 1:
        raise OptPipeError(
            "--lengths: each microbatch has one sequence, whole; leave out --seq, --slices and --microbatch"
        )
    return one_each(read_lengths(arguments.lengths), arguments.lengths)


def need_torch(command: str) -> None:
    """Raise if torch is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise OptPipeError(f"{command}: needs torch: pip install 'optpipe-sim[torch]'")


def _show(out: Out, profile: CostProfile, name: str, fake: bool, files: dict[str, str]) -> None:
    from rich.text import Text

    from ...outputs.stages import (
        answer_text,
        most_chunks_text,
        show_factors,
        show_levels,
        show_stages,
    )

    meta = profile.meta
    facts = meta["stages"]

    def times(stage: int) -> list[str]:
        cost = profile.stages[stage]
        if fake:
            return [f"{format_time(t)} est." for t in (cost.t_f_ns, cost.t_b_ns, cost.t_w_ns)]
        return [_with_spread(facts[stage]["times_us"][op]) for op in ("F", "B", "W", "BW")]

    work, device = meta["work"], meta["device"]
    where = "fake tensors" if fake else device["name"]
    out.text(answer_text(profile))
    out.print(
        Text(name, "bold"),
        f"on {where}: pipeline of {profile.devices} devices, {profile.chunks} chunks each;"
        f" sequences of {work['seq']}, {work['microbatch']} per microbatch; {work['dtype']}",
    )
    out.print()
    show_stages(
        out,
        profile,
        ("F", "B", "W") if fake else ("F", "B", "W", "BW"),
        times,
        ("reserve", lambda stage: format_size(facts[stage]["static_bytes"]["reserve"])),
    )
    out.print()
    out.print(most_chunks_text(profile))
    show_factors(out, profile)
    show_levels(out, profile)
    if fake:
        out.print(
            f"bytes are exact; times, copies and limit are estimated for {meta['machine']['title']}"
        )
    else:
        out.print(_copies(meta["copies"]))
        source = meta["provenance"]["t_comm"]
        if source == "not measured":
            out.hint("no P2P latency: give --machine for an estimate of it", style="dim")
        else:
            out.print(f"P2P latency {format_time(profile.t_comm_ns)} ({source})")
    out.written(files)


def _with_spread(times: dict[str, float]) -> str:
    """Format a median with half of the relative interquartile range."""
    half = (times["high"] - times["low"]) / 2 / times["median"] if times["median"] else 0.0
    return f"{format_time(times['median'] * 1e3)} ±{half:.1%}"


def _copies(modes: dict[str, Any]) -> str:
    parts = [
        f"{mode} {both['d2h']['gb_per_s']:.3g} and {both['h2d']['gb_per_s']:.3g}"
        for mode, both in modes.items()
    ]
    return f"copies to and from the host, GB/s: {'; '.join(parts)} (loaded: beside GEMMs)"
