"""``evaluate``: predict the configuration that you run today, beside its measurements."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ....costs.layout import Layout
from ....costs.work import Work
from ....errors import OptPipeError
from ....option_fields import how, options_of
from ....units import counted, format_parameters, format_size, format_time
from ...options.fields import add_fields, as_words, same
from ...options.kinds import count, positive, real_size
from ...options.models import (
    PIPELINE,
    add_machine,
    add_model,
    add_work,
    model_and_machine,
    run_options,
)
from ...options.shared import add_outputs
from ...outputs.write import write_profile
from ...status import DONE, NO
from .closer_look import AS_RUN

if TYPE_CHECKING:
    from ....costs.advise.evaluate import Evaluation
    from ....costs.models import Model
    from ....frameworks.imports.logged_run import LoggedRun
    from ...outputs.show import Out

EXAMPLE = (
    "optpipe-sim evaluate --model llama3-70b --machine h100 --gpus 64 --pp 4 --tp 8 -m 32 --seq 8192"
    " --measured-ms 9500 --measured-gib 66"
)
SUMMARY = "predict the configuration that you run today, beside what you measured"
SAME = 0.02  # of the parameters: what a padded vocabulary adds
_CHOSEN = ("seq", "slices", "slice_by")  # of `Work`: given by name here, or no part of a run today


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `evaluate`."""
    parser.add_argument(
        "--log",
        dest="run_log",
        metavar="F.log",
        help="take options and measurements from this log of Megatron-LM (the model, too), torchtitan or NeMo. What you"
        " give beside it, as --model, goes first; what it does not say is asked for",
    )
    add_model(parser)
    add_machine(parser)
    parser.add_argument(
        "--gpus", type=count, required=True, metavar="N", help="GPUs in all, replicas included"
    )
    parser.add_argument("--seq", type=count, required=True, metavar="N", help="tokens per sequence")
    batch = parser.add_mutually_exclusive_group(required=True)
    batch.add_argument(
        "-m",
        "--microbatches",
        type=count,
        metavar="M",
        help="microbatches per iteration of one replica (gradient accumulation)",
    )
    batch.add_argument(
        "--global-batch", type=count, metavar="N", help="or: total sequences per iteration"
    )
    parser.add_argument("--pp", type=count, default=1, metavar="N", help=f"{PIPELINE} (1)")
    zero = {"default": None, "help": f"{how(options_of(Layout)['zero']).help} (1 with replicas)"}
    add_fields(parser, Layout, "tp", "cp", "ep", "etp", "zero", "chunks", "layers", zero=zero)
    parser.add_argument(
        "--schedule",
        metavar="NAME",
        help="by name (default: 1f1b, or 1f1b-i with --chunks). 1f1b:recompute=LEVEL is for a level of"
        " the profile that estimate makes",
    )
    add_work(parser, *(name for name in options_of(Work) if name not in _CHOSEN))
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=real_size,
        help="per device; default: all that is left",
    )
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument("--measured-ms", type=positive, metavar="MS", help="time of an iteration")
    measured.add_argument(
        "--measured-tokens-per-s", type=positive, metavar="N", help="or: total tokens per second"
    )
    parser.add_argument(
        "--measured-gib",
        type=positive,
        metavar="GIB",
        help="peak memory of the fullest GPU. It is that of torch.cuda.max_memory_allocated; nvidia-smi also"
        " counts what driver and libraries take",
    )
    measurement = (
        "write the measurements, for --calibrate of advise and estimate. A file with measurements gets a further row,"
        " or new numbers in the row of the same run"
    )
    add_outputs(
        parser,
        ("save-profile", "P.yaml", "write the estimated profile"),
        ("save", "S.json", "write the schedule"),
        ("save-measurement", "F.yaml", measurement),
    )


def expanded(words: Sequence[str]) -> list[str]:
    """Return the words of `evaluate` with what ``--log`` says in their front, where what the user gives
    overrides it.

    Raises:
        OptPipeError: for a log that does not say the run.
    """
    path = next((one for word, one in pairwise([*words, ""]) if word == "--log"), "")
    path = next((word.partition("=")[2] for word in words if word.startswith("--log=")), path)
    if not path or path.startswith("--"):
        return list(words)
    from ....frameworks.imports.megatron_run import read_run

    found = read_run(path)
    given = {word.partition("=")[0] for word in words}
    given |= {"--global-batch"} if given & {"-m", "--microbatches"} else set()
    unsaid = [option for option in found.needed if option not in given]
    if unsaid:
        raise OptPipeError(
            f"{path}: a log of {found.trainer} does not say {', '.join(unsaid)}; give it beside --log"
        )
    said = dict(found.options)
    if given & {"--pp", "--chunks"}:  # its layers and groups are those of its own stages
        said.pop("--layers", None)
        said.pop("--schedule", None)
    if given & {"-m", "--microbatches"}:
        said.pop("--global-batch", None)
    if not given & {"--measured-ms", "--measured-tokens-per-s"}:
        said |= _measured_in(found, words)
    if found.peak_bytes is not None and "--measured-gib" not in given:
        said["--measured-gib"] = f"{found.peak_bytes / 2**30:.2f}"
    if found.complete and "--model" not in given:
        said["--model"] = path
    flat = [word for option, value in said.items() for word in (option, value) if word]
    return [words[0], *flat, *words[1:]]


def _measured_in(found: LoggedRun, words: Sequence[str]) -> dict[str, str]:
    """Return what a log has measured, as an option: tokens per second of one GPU times those that are given or
    logged."""
    if found.tokens_per_s is None:
        return {"--measured-ms": f"{(found.iteration_ns or 0) / 1e6:.1f}"}
    options = dict(found.options)
    for word, value in pairwise([*words, ""]):
        name, equals, joined = word.partition("=")
        options |= {name: joined if equals else value} if name == "--gpus" else {}
    gpus = options["--gpus"]
    return (
        {"--measured-tokens-per-s": f"{found.tokens_per_s * int(gpus):.1f}"}
        if gpus.isdecimal()
        else {}
    )


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Predict, compare, show, write."""
    from ....costs.advise.evaluate import evaluate
    from ....costs.wrong_units import require_tokens
    from ....frameworks.advised import told_to
    from ...inputs import named

    model, machine, fitted = model_and_machine(arguments)
    logged = _logged(arguments, model)
    own = any(word.partition("=")[0].startswith("--measured-") for word in arguments.words)
    changed = [] if own or logged is None else _changed(arguments, logged)
    if arguments.save_measurement and changed:
        raise OptPipeError(
            f"--save-measurement: the log measured another run, with other {', '.join(changed)}; leave these"
            " out, or give what this run took: --measured-ms"
        )
    options = run_options(arguments, model)
    del options["seq"]
    gib = arguments.measured_gib
    time = "--measured-ms" if arguments.measured_ms else "--measured-tokens-per-s"
    keys = {"gpus": "--gpus", "global_batch": "--global-batch"}
    with named(measured_ns=time, measured_bytes="--measured-gib", **keys):
        again = partial(
            evaluate,
            model,
            machine,
            arguments.gpus,
            arguments.seq,
            calibration=fitted,
            **same(arguments, "microbatches", "global_batch", "pp", "schedule", "execution"),
            **same(arguments, "memory_limit"),
            **options,
        )
        found = again(
            measured_ns=_measured_ns(arguments),
            measured_bytes=None if gib is None else round(gib * 2**30),
        )
    if arguments.measured_tokens_per_s and found.time_ratio:
        require_tokens(time, arguments.measured_tokens_per_s, found.time_ratio, arguments.gpus)
    files = _write(arguments, found)
    # the run goes on with its trainer
    family = None if logged is None else logged.family
    hints = found.hints(check=partial(told_to, family))
    log = (
        {} if logged is None else {"log": {"options": logged.options, "notes": list(logged.notes)}}
    )
    hinted = {"hints": [one.to_json() for one in hints]}
    out.result({**found.to_json(), **log, **hinted, "files": files})
    _show(out, found, [] if out.json or out.quiet else _lighter(found, again))
    if logged is not None:
        _show_log(out, arguments, logged)
    from ...outputs.show import show_hints

    show_hints(out, hints)
    out.written(files)
    _next(out, arguments, family)
    return DONE if found.row.trace.fits else NO


def _logged(arguments: argparse.Namespace, model: Model) -> LoggedRun | None:
    """Return what ``--log`` says; None without it.

    Raises:
        OptPipeError: where the model is another than that of the log.
    """
    if arguments.run_log is None:
        return None
    from ....costs.models import parameters
    from ....frameworks.imports.megatron_run import differs, read_run

    other = differs(model, arguments.run_log)
    if other is not None:
        raise OptPipeError(f"--model {arguments.model}: has {other}: {arguments.run_log}")
    found = read_run(arguments.run_log)
    ours = parameters(model)
    if found.parameters is None or abs(found.parameters / ours - 1) < SAME:
        return found
    sizes = map(format_parameters, (found.parameters, ours))
    note = "parameters: {} in the log, {} of --model: is it the model of the run?".format(*sizes)
    return replace(found, notes=(*found.notes, note))


def _sequences(arguments: argparse.Namespace) -> int:
    """Return the sequences of an iteration, over all replicas."""
    replicas = arguments.gpus // (arguments.pp * arguments.tp * arguments.cp)
    of_replicas = replicas * arguments.microbatch * (arguments.microbatches or 0)
    return int(arguments.global_batch or of_replicas)


def _measured_ns(arguments: argparse.Namespace) -> float | None:
    if arguments.measured_ms is not None:
        return float(arguments.measured_ms * 1e6)
    if arguments.measured_tokens_per_s is None:
        return None
    return float(_sequences(arguments) * arguments.seq / arguments.measured_tokens_per_s * 1e9)


def _write(arguments: argparse.Namespace, found: Evaluation) -> dict[str, str]:
    files = write_profile(arguments, found.row.profile, "the profile")
    if arguments.save:
        found.row.trace.schedule.save(arguments.save)
        files[arguments.save] = "the schedule"
    if arguments.save_measurement:
        from ....costs.calibrate import add_row

        row = {**found.measurement(), "model": arguments.model}
        again = add_row(arguments.save_measurement, row)
        files[arguments.save_measurement] = (
            f"the measurement{', in the row of the same run' if again else ''}; give it to"
            " advise with --calibrate"
        )
    return files


def _lighter(found: Evaluation, again: Callable[..., Evaluation]) -> list[str]:
    """Return the fastest recomputation of everything or of some modules with which the run fits, if any does."""
    from ....costs.recompute.regions import RECOMPUTE
    from ...outputs.verdict import described

    rows = []
    for name in RECOMPUTE if not found.row.trace.fits else ():
        if name not in ("none", found.row.choice.recompute):
            row = again(recompute=name).row
            rows += [(row.iteration_ns, name, row.trace)] if row.trace.fits else []
    return [
        described(f"--recompute {name}", trace)
        for _, name, trace in sorted(rows, key=lambda one: one[:2])[:1]
    ]


def _show(out: Out, found: Evaluation, lighter: list[str]) -> None:
    from rich.text import Text

    from ...outputs.show import fullest_text, issued, warn
    from ...outputs.verdict import remedies, verdict
    from .advise import MFU_COUNTS, parts_text

    row, question, choice = found.row, found.advice.question, found.row.choice
    out.text(verdict(row.schedule, row.trace))
    if not row.trace.fits and not out.json and not out.quiet:
        limit, *others = remedies(None, row.trace)
        if max(row.trace.peak_bytes) > question.machine.usable_bytes:
            limit = f"{limit}, more than this device has"
        out.line("would fit", "; ".join([limit, *others, *lighter]))
    out.text(
        Text(f"{question.model.name} on {question.gpus} x {question.machine.title}:", "bold"),
        f"{choice}, zero {choice.zero}, {row.schedule}, {choice.microbatches} microbatches of"
        f" {choice.microbatch} x {question.seq} tokens, recompute {choice.recompute}",
    )
    warn(out, row.profile)
    out.print()
    time, tokens = found.time_ratio, found.measured_tokens_per_s
    mfus, peak = (found.measured_mfu(), found.measured_mfu(causal=True)), found.measured_bytes
    took = None if found.measured_ns is None else format_time(found.measured_ns)
    flops = (row.trace.flops_per_s or 0) / 1e12
    faster = None if time is None else 1 / time
    rows = (
        ("time per iteration", format_time(row.iteration_ns), took, time),
        ("  pipeline time", format_time(row.trace.cost_ns), None, None),
        ("  bubble of it", f"{row.trace.bubble:.1%}", None, None),
        ("  imbalance of it", f"{row.trace.imbalance:.1%}", None, None),
        ("tokens/s", f"{row.tokens_per_s:,.0f}", tokens and f"{tokens:,.0f}", faster),
        ("TFLOP/s per GPU", f"{flops:.0f}", time and f"{flops / time:.0f}", faster),
        ("MFU, causal", f"{row.mfu_causal:.1%}", mfus[1] and f"{mfus[1]:.1%}", faster),
        ("  every score", f"{row.mfu:.1%}", mfus[0] and f"{mfus[0]:.1%}", None),
        (
            "peak memory",
            format_size(row.peak_bytes),
            peak and format_size(peak),
            found.memory_ratio,
        ),
    )
    cells = (
        {
            "": name,
            "predicted": predicted,
            "measured": measured or "-",
            "measured / predicted": f"{ratio:.3f}" if ratio else "",
        }
        for name, predicted, measured, ratio in rows
    )
    out.table(cells)
    out.print()
    out.labelled("shares of the iteration", parts_text(found.advice.parts(row)))
    fullest = fullest_text(row.trace)
    if fullest is not None:
        out.labelled(f"memory of rank {fullest[0]}, the fullest", fullest[1])
    text = f"MFU: {MFU_COUNTS}; TFLOP/s as Megatron-LM logs them, with every score"
    out.text(text, style="dim")
    sure = "; ".join(filter(None, (row.trace.expected_text, found.advice.basis)))
    out.labelled("how sure", sure)
    issued(out, row.trace.profile)
    for text in (*found.advice.doubts(row), *found.findings()):
        loud = ("not plausible", "not to fit", "do not plan")
        style = "yellow" if any(words in text for words in loud) else ""
        out.text(f"          {text}", style=style)


# what every log of arguments says, by its silence as well
_SAID = (
    "--gpus", "--pp", "--tp", "--cp", "--ep", "--chunks", "--zero", "--microbatch", "--global-batch", "--seq",
    "--recompute", "--dtype",
)  # fmt: skip


def _changed(arguments: argparse.Namespace, logged: LoggedRun) -> list[str]:
    """Return the options that were given beside a log that has other values of them."""
    parser = arguments.parsers["evaluate"]
    found = []
    for option in (word.partition("=")[0] for word in arguments.words):
        if option not in (_SAID if logged.complete else logged.options):
            continue
        action = parser._option_string_actions[option]
        said = logged.options.get(option, action.default)
        theirs = parser._get_value(action, said) if isinstance(said, str) else said
        if theirs != getattr(arguments, action.dest):
            found.append(f"{option} ({said} in the log)")
    return found


def _show_log(out: Out, arguments: argparse.Namespace, logged: LoggedRun) -> None:
    """Print the options that the log stands for, and what it has that these cannot say."""
    words = [word for option, value in logged.options.items() for word in (option, value) if word]
    out.labelled(f"read from {arguments.run_log}", shlex.join(words))
    text = f"median of {counted(logged.iterations, 'logged iteration')}, without the first"
    text += ", those with the last global batch size" if logged.complete else ""
    out.labelled("measured", text)
    if changed := _changed(arguments, logged):
        out.text(
            f"warning: what was measured ran otherwise: {', '.join(changed)}; it says nothing of this run"
        )
    for note in logged.notes:
        out.line("not read", note)


def _next(out: Out, arguments: argparse.Namespace, family: str | None) -> None:
    """Print the next commands, with the measured numbers if there are any."""

    measured = _measured_ns(arguments) or arguments.measured_gib
    file = arguments.save_measurement or arguments.calibrate
    if arguments.run_log and measured and not file:
        file = "measured.yaml"
        again = ["evaluate", *arguments.words[1:], "--save-measurement", file]
        out.next(shlex.join(again), code=True)
    elif measured and not file:
        out.next("let advice go by what you measured: --save-measurement mine.yaml")
    words = ["advise", "--model", arguments.model, "--machine", arguments.machine]
    words += ["--gpus", str(arguments.gpus), "--seq", str(arguments.seq)]
    words += ["--global-batch", str(_sequences(arguments))]
    uneven = (
        () if Path(str(arguments.imbalance)).is_file() else ("imbalance",)
    )  # loads are of one ep
    words += as_words(arguments, Work, (*AS_RUN, *uneven))
    words += ["--execution", arguments.execution] if arguments.execution else []
    words += ["--calibrate", file] if file else []
    words += ["--family", family] if family else []
    out.next(shlex.join(words), code=True)
