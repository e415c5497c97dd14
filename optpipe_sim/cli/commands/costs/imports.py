"""``import``: a config, a log or traces of a real run, as a model, a profile or a measured trace."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....errors import OptPipeError
from ....files import write_mapping
from ....units import counted, format_parameters, format_size, format_time
from ...options.shared import add_outputs
from ...outputs.write import write_profile
from ...status import DONE

if TYPE_CHECKING:
    from ....frameworks.imports.measured import Measured
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim import trace/rank*.json --from torch-trace --save P.yaml --save-trace T.json"
SUMMARY = "read a config, a log or traces of a framework"
SOURCES = (
    "hf-config",
    "torch-trace",
    "megatron-log",
    "megatron-spans",
    "megatron-vpp",
    "torchtitan-activations",
)
NO_PROFILE = ("megatron-spans", "torchtitan-activations")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `import`."""
    parser.add_argument("other_files", metavar="FILE", nargs="+", help="what to read")
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        choices=SOURCES,
        help="hf-config: a config.json of Hugging Face, to a model; torch-trace: Kineto traces of"
        " torch.profiler, one per rank, to a profile and a measured trace; megatron-log: the"
        " log of Megatron-LM, to a profile; megatron-vpp: the result folder of its VPP simulator, to a profile;"
        " megatron-spans: its OpenTelemetry spans, to the time of an iteration; torchtitan-activations: the log"
        " of graph_trainer's memory policy, to bytes of each layer",
    )
    trace = "torch-trace: write the measured trace, which explain and report take"
    add_outputs(
        parser,
        ("save", "F.yaml", "write the model or the profile that was read"),
        ("save-trace", "T.json", trace),
    )
    parser.add_argument("--name", help="name of the profile (default: that of the file)")


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Read, write, and report what was not read."""

    if arguments.save_trace and arguments.source != "torch-trace":
        raise OptPipeError(
            f"--save-trace: {arguments.source} does not say when ops began; only torch-trace does"
        )
    if arguments.save and arguments.source in NO_PROFILE:
        raise OptPipeError(f"--save: {arguments.source} has no costs of ops; leave it out")
    if arguments.source != "torch-trace" and len(arguments.other_files) > 1:
        raise OptPipeError(f"FILE: {arguments.source} takes one, got {len(arguments.other_files)}")
    answer, unread, files = _READ[arguments.source](arguments, out)
    out.result(
        {
            "from": arguments.source,
            "read": arguments.other_files,
            **answer,
            "unread": list(unread),
            "files": files,
        }
    )
    for sentence in unread:
        out.line("not read", sentence)
    out.written(files)
    return DONE


_Read = tuple[dict[str, Any], list[str], dict[str, str]]


def _config(arguments: argparse.Namespace, out: Out) -> _Read:
    from dataclasses import replace

    from ....costs import load_model
    from ....costs.models import parameters

    model = load_model(arguments.other_files[0])
    model = replace(model, name=arguments.name or model.name)
    data = model.to_json()
    files = {}
    if arguments.save:
        write_mapping(arguments.save, data)
        files[arguments.save] = "the model; --model takes it"
    out.line(
        model.name, f"{format_parameters(parameters(model))} parameters, {model.layers} layers"
    )
    if model.head != "vocab":
        out.line(
            "head", f"{model.hidden} x {model.labels}, per {model.head}" if model.labels else "none"
        )
    if model.source:
        out.line("taken", model.source)
    return {"model": data, "parameters": parameters(model)}, model.warnings, files


def _log(arguments: argparse.Namespace, out: Out) -> _Read:
    from ....frameworks.imports.megatron_log import read_log

    found = read_log(arguments.other_files[0], arguments.name or "megatron-log")
    profile = found.profile
    files = write_profile(arguments, profile, "the profile", "save")
    answer = found.to_json()
    chunks = f" of {profile.chunks} chunks" if profile.chunks > 1 else ""
    batch = f"{counted(found.microbatches, 'microbatch', 'microbatches')} of a global batch of {found.batch}"
    taken = "not logged" if found.iteration_ns is None else format_time(found.iteration_ns)
    out.line("time per iteration", f"{taken}, measured" if found.iteration_ns else taken)
    out.line(profile.name, f"{counted(profile.devices, 'rank')}{chunks}, {batch}")
    if found.replay_ns is not None:
        off = answer["replay_off"]
        beside = "" if off is None else f" ({off:+.1%} of the measured iteration)"
        out.line(
            "pipeline time",
            f"{format_time(found.replay_ns)}{beside}, replayed; the optimizer's step is not in it",
        )
    out.line("F of a stage", _from_to(answer["t_f_ns"], format_time))
    out.line("BW of a stage", _from_to(answer["t_bw_ns"], format_time))
    if profile.stages[0].layers is not None:
        out.line("layers of a stage", _from_to(answer["layers"], str))
    if profile.memory_unknown:
        out.line("memory", "not known")
    else:
        out.line("activation", _from_to(answer["act_bytes"], format_size))
        out.line("static", _from_to(profile.static_bytes, format_size))
    return answer, list(found.unread), files


def _from_to(values: Sequence[Any], text: Callable[[Any], str]) -> str:
    """Return the least and the largest value, or the one that all have."""
    least, most = text(min(values)), text(max(values))
    return least if least == most else f"{least} to {most}"


def _traces(arguments: argparse.Namespace, out: Out) -> _Read:
    from ....frameworks.imports.kineto import read_kineto
    from ....frameworks.imports.measured import read_run

    found = read_run(
        [read_kineto(path) for path in arguments.other_files], arguments.name or "measured"
    )
    files = write_profile(arguments, found.profile, "the profile", "save")
    if arguments.save_trace:
        found.trace.save(arguments.save_trace)
        files[arguments.save_trace] = "the measured trace; explain and report take it"
    answer = found.to_json()
    unread = answer.pop("unread")
    if not out.json:
        _show(out, found, answer)
    return answer, unread, files


def _show(out: Out, found: Measured, answer: dict[str, Any]) -> None:
    shape = found.trace.schedule.shape
    out.line("pipeline time", f"{format_time(answer['makespan_ns'])}, measured")
    out.line("run", f"{shape.devices} ranks, {shape.chunks} chunks, m = {shape.microbatches}")
    out.line(
        "replay",
        f"{format_time(answer['replay_ns'])} ({answer['replay_off']:+.1%} of the mean iteration that its"
        f" durations are from); with each op's own time {answer['replay_of_ops_off']:+.1%}",
    )
    for device, idle in enumerate(answer["idle_by_device_ns"]):
        parts = [f"{cause} {format_time(time)}" for cause, time in idle.items() if time]
        out.line(f"rank {device} idle", ", ".join(parts) or "never")
    if any(found.shifted_ns):
        shifts = ", ".join(f"{shift / 1e3:+.0f}" for shift in found.shifted_ns)
        out.line("clocks", f"shifted by {shifts} us, so that messages arrive after they are sent")


def _spans(arguments: argparse.Namespace, out: Out) -> _Read:
    from ....frameworks.imports.megatron_spans import read_spans

    found = read_spans(arguments.other_files[0])
    text = f"{format_time(found.iteration_ns)}, measured: the median of {counted(found.iterations, 'iteration')}"
    out.line("time per iteration", text)
    if found.microbatches:
        chunks = counted(found.chunks, "chunk")
        out.line("run", f"m = {found.microbatches}, {chunks} per rank")
    words = [word for pair in found.options.items() for word in pair]
    words += ["--measured-ms", f"{found.iteration_ns / 1e6:.1f}"]
    out.line("options", shlex.join(words))
    out.next(f"evaluate --model MODEL --machine MACHINE {shlex.join(words)}", code=True)
    return found.to_json(), list(found.unread), {}


def _vpp(arguments: argparse.Namespace, out: Out) -> _Read:
    from ....frameworks.imports.megatron_vpp import read_folder

    found = read_folder(arguments.other_files[0], arguments.name or "megatron-vpp")
    answer, profile = found.to_json(), found.trace.profile
    files = write_profile(arguments, profile, "the profile", "save")
    chunks = f" of {profile.chunks} chunks" if profile.chunks > 1 else ""
    ranks = counted(profile.devices, "rank")
    time = f"{format_time(found.trace.makespan_ns)}, replayed in the folder's order"
    out.line("pipeline time", time)
    batch = counted(answer["microbatches"], "microbatch", "microbatches")
    out.line(profile.name, f"{ranks}{chunks}, {batch}")
    out.line("F of a stage", _from_to(answer["t_f_ns"], format_time))
    out.line("BW of a stage", _from_to(answer["t_bw_ns"], format_time))
    out.line("weights, gradients", _from_to(profile.static_bytes, format_size))
    return answer, list(found.unread), files


def _activations(arguments: argparse.Namespace, out: Out) -> _Read:
    from ....frameworks.imports.torchtitan_activations import notes, read_activations

    listings = read_activations(arguments.other_files[0])
    ways = ("kept", "recomputed", "offloaded")
    rows = []
    for at, groups in enumerate(listings):
        for one in groups:
            last = (one.first or 0) + one.count - 1
            layers = "in none" if one.first is None else str(one.first)
            layers += f"-{last}" if one.first is not None and one.count > 1 else ""
            sizes = {way: format_size(one.bytes_by_way.get(way, 0)) for way in ways}
            rows.append({"listing": at, "layers": layers, "tensors": one.tensors, **sizes})
    out.print(f"{counted(len(listings), 'listing')}, bytes of one layer and microbatch")
    out.table(rows, ["listing", "layers", "tensors", *ways], left=("layers",))
    answer = {"listings": [[one.to_json() for one in groups] for groups in listings]}
    return answer, list(notes(listings)), {}


_READ = {
    "hf-config": _config,
    "megatron-log": _log,
    "megatron-spans": _spans,
    "megatron-vpp": _vpp,
    "torch-trace": _traces,
    "torchtitan-activations": _activations,
}
