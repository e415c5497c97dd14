"""``import``: a config, a log or traces of a real run, as a model, a profile or a measured trace."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....errors import OptPipeError
from ...outputs.trace import write_profile
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
    parser.add_argument(
        "--save", metavar="F.yaml", help="write the model or the profile that was read"
    )
    parser.add_argument(
        "--save-trace",
        metavar="T.json",
        help="torch-trace: write the measured trace, which explain and report take",
    )
    parser.add_argument("--name", help="name of the profile (default: that of the file)")


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Read, write, and report what was not read."""
    from ...outputs.show import line, written

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
        line(out, "not read", sentence)
    written(out, files)
    return DONE


_Read = tuple[dict[str, Any], list[str], dict[str, str]]


def _config(arguments: argparse.Namespace, out: Out) -> _Read:
    from dataclasses import replace

    from ....costs.models import parameters
    from ....files import write_mapping
    from ....frameworks.imports.hf_config import model_data, read_config
    from ....units import format_parameters
    from ...outputs.show import line

    model, unread = read_config(arguments.other_files[0])
    model = replace(model, name=arguments.name or model.name)
    data = model_data(model)
    files = {}
    if arguments.save:
        write_mapping(arguments.save, data)
        files[arguments.save] = "the model; --model takes it"
    line(
        out, model.name, f"{format_parameters(parameters(model))} parameters, {model.layers} layers"
    )
    if model.head != "vocab":
        line(
            out,
            "head",
            f"{model.hidden} x {model.labels}, per {model.head}" if model.labels else "none",
        )
    if model.source:
        line(out, "taken", model.source)
    return {"model": data, "parameters": parameters(model)}, unread, files


def _log(arguments: argparse.Namespace, out: Out) -> _Read:
    from ....frameworks.imports.megatron_log import read_log
    from ....units import counted, format_size, format_time
    from ...outputs.show import line

    found = read_log(arguments.other_files[0], arguments.name or "megatron-log")
    profile = found.profile
    files = write_profile(arguments, profile, "the profile", "save")
    answer = found.to_json()
    chunks = f" of {profile.chunks} chunks" if profile.chunks > 1 else ""
    batch = f"{counted(found.microbatches, 'microbatch', 'microbatches')} of a global batch of {found.batch}"
    taken = "not logged" if found.iteration_ns is None else format_time(found.iteration_ns)
    line(out, "time per iteration", f"{taken}, measured" if found.iteration_ns else taken)
    line(out, profile.name, f"{counted(profile.devices, 'rank')}{chunks}, {batch}")
    if found.replay_ns is not None:
        off = answer["replay_off"]
        beside = "" if off is None else f" ({off:+.1%} of the measured iteration)"
        line(
            out,
            "pipeline time",
            f"{format_time(found.replay_ns)}{beside}, replayed; the optimizer's step is not in it",
        )
    line(out, "F of a stage", _from_to(answer["t_f_ns"], format_time))
    line(out, "BW of a stage", _from_to(answer["t_bw_ns"], format_time))
    if profile.stages[0].layers is not None:
        line(out, "layers of a stage", _from_to(answer["layers"], str))
    if profile.memory_unknown:
        line(out, "memory", "not known")
    else:
        line(out, "activation", _from_to(answer["act_bytes"], format_size))
        line(out, "static", _from_to(profile.static_bytes, format_size))
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
    from ....units import format_time
    from ...outputs.show import line

    shape = found.trace.schedule.shape
    line(out, "pipeline time", f"{format_time(answer['makespan_ns'])}, measured")
    line(out, "run", f"{shape.devices} ranks, {shape.chunks} chunks, m = {shape.microbatches}")
    line(
        out,
        "replay",
        f"{format_time(answer['replay_ns'])} ({answer['replay_off']:+.1%} of the mean iteration that its"
        f" durations are from); with each op's own time {answer['replay_of_ops_off']:+.1%}",
    )
    for device, idle in enumerate(answer["idle_by_device_ns"]):
        parts = [f"{cause} {format_time(time)}" for cause, time in idle.items() if time]
        line(out, f"rank {device} idle", ", ".join(parts) or "never")
    if any(found.shifted_ns):
        shifts = ", ".join(f"{shift / 1e3:+.0f}" for shift in found.shifted_ns)
        line(out, "clocks", f"shifted by {shifts} us, so that messages arrive after they are sent")


def _spans(arguments: argparse.Namespace, out: Out) -> _Read:
    from ....frameworks.imports.megatron_spans import read_spans
    from ....units import counted, format_time
    from ...outputs.show import hint, line

    found = read_spans(arguments.other_files[0])
    text = f"{format_time(found.iteration_ns)}, measured: the median of {counted(found.iterations, 'iteration')}"
    line(out, "time per iteration", text)
    if found.microbatches:
        chunks = counted(found.chunks, "chunk")
        line(out, "run", f"m = {found.microbatches}, {chunks} per rank")
    words = [word for pair in found.options.items() for word in pair]
    words += ["--measured-ms", f"{found.iteration_ns / 1e6:.1f}"]
    line(out, "options", shlex.join(words))
    hint(out, f"evaluate --model MODEL --machine MACHINE {shlex.join(words)}", code=True)
    return found.to_json(), list(found.unread), {}


def _vpp(arguments: argparse.Namespace, out: Out) -> _Read:
    from ....frameworks.imports.megatron_vpp import read_folder
    from ....units import counted, format_size, format_time
    from ...outputs.show import line

    found = read_folder(arguments.other_files[0], arguments.name or "megatron-vpp")
    answer, profile = found.to_json(), found.trace.profile
    files = write_profile(arguments, profile, "the profile", "save")
    chunks = f" of {profile.chunks} chunks" if profile.chunks > 1 else ""
    ranks = counted(profile.devices, "rank")
    time = f"{format_time(found.trace.makespan_ns)}, replayed in the folder's order"
    line(out, "pipeline time", time)
    batch = counted(answer["microbatches"], "microbatch", "microbatches")
    line(out, profile.name, f"{ranks}{chunks}, {batch}")
    line(out, "F of a stage", _from_to(answer["t_f_ns"], format_time))
    line(out, "BW of a stage", _from_to(answer["t_bw_ns"], format_time))
    line(out, "weights, gradients", _from_to(profile.static_bytes, format_size))
    return answer, list(found.unread), files


def _activations(arguments: argparse.Namespace, out: Out) -> _Read:
    from ....frameworks.imports.torchtitan_activations import notes, read_activations
    from ....units import counted, format_size
    from ...outputs.show import plain_table

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
    out.print(plain_table(rows, ["listing", "layers", "tensors", *ways], left=("layers",)))
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
