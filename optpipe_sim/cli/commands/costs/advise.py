"""``advise``: how to split a model over a number of GPUs."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ....costs.layout import Layout
from ....costs.work import Work
from ....errors import OptPipeError
from ....units import format_size, format_time
from ...options.fields import add_fields, add_several, same
from ...options.groups import VARY
from ...options.kinds import count, counts, names, real_size
from ...options.models import (
    PIPELINE,
    add_machine,
    add_model,
    add_work,
    model_and_machine,
    run_options,
)
from ...options.shared import add_family, add_outputs, page_of
from ...options.solving import add_of_solve
from ...outputs.write import write_figure, write_page, write_profile, write_rows
from ...status import DONE
from .closer_look import AS_RUN, next_commands

if TYPE_CHECKING:
    from rich.table import Table

    from ....costs.advise.rows import Advice, Row
    from ...outputs.show import Out

EXAMPLE = (
    "optpipe-sim advise --model qwen3-8b --machine h100 --gpus 32 --global-batch 256 --seq 8192"
)
SUMMARY = "recommend how to split a model over a number of GPUs, and which schedule to run"
MFU_COUNTS = "model FLOPs over the peak, the causal half of the attention's scores counted, recomputation not"
HINTS_SHARE = 0.05  # of the time limit, beside it, for options that it does not search
_LONG = "those with 8192 tokens of it each"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `advise`."""
    add_model(parser)
    add_machine(parser)
    for name, text in (
        ("gpus", "GPUs in all"),
        ("global-batch", "sequences per iteration over all replicas"),
        ("seq", "tokens per sequence"),
    ):
        parser.add_argument(f"--{name}", type=count, required=True, metavar="N", help=text)
    parser.add_argument("--pp", type=counts, metavar="A,B,...", help=f"only these: {PIPELINE}")
    fields = ("tp", "cp", "ep", "dp", "etp", "zero", "chunks")
    add_several(parser, Layout, *fields, zero="1,2,3 with replicas", cp=_LONG, chunks="1,2,3,4")
    add_several(parser, Work, "microbatch", microbatch="1,2,4,8")
    slices = {
        "type": _slices,
        "metavar": "auto|A,B,...",
        "help": "slices of each sequence: only these numbers, or auto, those of 8192 tokens at least (1)",
    }
    add_fields(
        parser, Work, "slices", "slice_by", group=VARY, slices=slices, slice_by={"default": "time"}
    )
    parser.add_argument(
        "--recompute",
        type=names,
        metavar="A,B,...",
        help="only these of none, norms, full and Megatron-LM's modules, as in core_attn+mlp; default: the first three."
        " Norms include activation functions and dropout",
    )
    add_of_solve(
        parser,
        "treatments",
        "per_stage",
        "seed",
        "time_limit",
        treatments="what may be done with activations until their backward: some of keep,offload,recompute;"
        " default: all; --recompute says which levels",
        per_stage="only plans that treat all activations of a stage alike, as frameworks require",
        time_limit="seconds in all (20)",
    )
    parser.set_defaults(time_limit=20.0)
    parser.add_argument(
        "--schedules",
        type=names,
        metavar="A,B,...",
        help="only these; default: all, offloading ones where the machine has PCIe data",
    )
    add_family(parser, "only plans that this framework can run, ending in the options to paste")
    add_work(parser, *AS_RUN, "imbalance")
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=real_size,
        help="per device; default: what driver and libraries leave",
    )
    parser.add_argument("--top", type=count, default=5, metavar="N", help="rows of the answer (5)")
    add_outputs(
        parser,
        ("csv", "F.csv", "write every configuration replayed"),
        ("chart", "F.png", "draw time over memory of all of them"),
        page_of("time over memory of all of them, with the lanes of the best"),
        ("save-profile", "P.yaml", "write the profile of the best"),
        ("save", "S.json", "write the schedule of the best"),
    )
    parser.add_argument(
        "--scripts",
        metavar="FOLDER",
        help="with --family megatron: write a script for Slurm or torchrun for each of the first plans",
    )


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Search, show, write."""
    from ....costs.advise.advise import advise
    from ....costs.advise.hints import hints_for
    from ....frameworks import advised
    from ...outputs.show import show_hints

    if arguments.scripts and arguments.family != "megatron":
        raise OptPipeError("--scripts: start Megatron-LM; give --family megatron as well")
    model, machine, fitted = model_and_machine(arguments)
    options = run_options(arguments, model)
    del options["seq"]
    options |= advised.restrictions(arguments.family, vars(arguments), model.experts > 0)
    with out.progress("advising") as progress:
        found = advise(
            model,
            machine,
            arguments.gpus,
            arguments.global_batch,
            arguments.seq,
            time_limit=arguments.time_limit * advised.share_of_splits(arguments.family),
            calibration=fitted,
            on_progress=progress,
            on_wait=out.compiling,
            **same(arguments, "top", "memory_limit", "treatments", "per_stage", "seed"),
            **same(arguments, "pp", "execution"),
            **options,
        )
    if arguments.family:
        seconds = 0.0 if found.interrupted else arguments.time_limit - found.seconds
        began = time.monotonic()
        plan, best = advised.plan_in(arguments.family, found, seconds, vars(arguments))
        found = advised.with_row(found, best, plan.get("interrupted", False))
        found = replace(found, seconds=found.seconds + time.monotonic() - began)
    else:
        plan, best = advised.plan_over_slices(found), found.rows[0]
    files: dict[str, str] = {}
    commands = next_commands(arguments, best)
    left_s = 0.0 if found.interrupted else HINTS_SHARE * arguments.time_limit
    check = partial(advised.told_to, arguments.family)
    hints = hints_for(found.question, best, left_s, searched=True, check=check)
    hinted = {"hints": [one.to_json() for one in hints]}
    try:
        _write(arguments, found, best, files)
        if arguments.scripts:
            scripts, unsaid = advised.write_scripts(arguments.scripts, found, best)
            files |= scripts
            plan = {**plan, "notes": [*plan["notes"], *unsaid]}
    finally:  # the answer is given even if a file cannot be written
        out.result({**found.to_json(), **plan, **hinted, "files": files, "next": commands})
        _show(out, found, best)
        show_hints(out, hints)
        _show_plan(out, plan)
        out.written(files)
        for command in commands:
            out.next(command, code=True)
    return DONE


def _slices(text: str) -> str | int | tuple[int, ...]:
    numbers = text if text == "auto" else counts(text)
    return 1 if numbers == (1,) else numbers


def _write(arguments: argparse.Namespace, found: Advice, best: Row, files: dict[str, str]) -> None:
    """Write the requested files, and note each in `files`; `best`: the plan that was told."""
    if arguments.csv:
        _write_points(arguments.csv, found)
        files[arguments.csv] = f"{len(found.points)} configurations"
    files |= write_figure(
        arguments.chart, lambda plot: plot.advice_chart(found), "time over memory"
    )
    files |= write_page(arguments, lambda page, command: page.of_advice(found, command))
    files |= write_profile(arguments, best.profile, "the profile of the plan")
    if arguments.save:
        if arguments.family:
            best.trace.schedule.meta["family"] = arguments.family
        best.trace.schedule.save(arguments.save)
        files[arguments.save] = "the schedule of the plan"


def _write_points(path: str, found: Advice) -> None:
    """Write every configuration that was replayed, the fastest that fit first."""
    keys = [*asdict(found.rows[0].choice), "schedule", "iteration_ns", "peak_bytes", "fits"]
    rows = (
        {
            **asdict(point.choice),
            "schedule": point.schedule,
            "iteration_ns": round(point.iteration_ns),
            "peak_bytes": point.peak_bytes,
            "fits": str(point.fits).lower(),
        }
        for point in sorted(found.points, key=lambda point: (not point.fits, point.iteration_ns))
    )
    write_rows(path, keys, rows)


def _table(found: Advice) -> Table:
    """Print a row per plan, the fastest first; plans that may in reality be as fast are marked and not dimmed."""
    from ....costs.advise.rows import limited_by
    from ...outputs.show import plain_table

    more = ("cp", "ep", "etp", "slices")
    wide = [key for key in more if any((getattr(r.choice, key) or 0) > 1 for r in found.rows)]
    if found.question.etp and "etp" not in wide:
        wide.append("etp")
    marked = any(map(found.is_toss_up, found.rows))
    rows = []
    for row in found.rows:
        parts, choice = found.parts(row), asdict(row.choice)
        mark = "≈" if found.is_toss_up(row) else " " * marked
        rows.append(
            {
                **{key: choice[key] for key in ("pp", "tp", *wide, "dp", "zero")},
                "batch": f"{row.choice.microbatch}x{row.choice.microbatches}",
                "recompute": row.treatment,
                "schedule": row.schedule.partition(":")[0],
                "v": row.choice.chunks,
                "time": format_time(row.iteration_ns) + mark,
                "tokens/s": f"{row.tokens_per_s:,.0f}",
                "MFU": f"{row.mfu_causal:.1%}",
                "memory": format_size(row.peak_bytes),
                "limited by": f"{limited_by(parts)} {_share(parts)}",
            }
        )
    styles = ["bold", *("" if found.is_toss_up(row) else "dim" for row in found.rows[1:])]
    left = ("recompute", "schedule", "limited by")
    return plain_table(rows, left=left, gap=1, styles=styles)


def _show(out: Out, found: Advice, best: Row) -> None:
    from rich.text import Text

    from ...outputs.show import warn

    question = found.question
    told = f"{format_time(round(best.iteration_ns))} per iteration with {best.choice}, {best.schedule}:"
    out.text(
        f"{told} {format_size(best.peak_bytes)} of {format_size(question.limit_bytes)}",
        style="bold",
    )
    out.text(
        Text(f"{question.model.name} on {question.gpus} x {question.machine.title}:", "bold"),
        f"{question.global_batch} sequences of {question.seq} tokens per iteration,"
        f" {format_size(question.limit_bytes)} per device",
    )
    warn(out, found.rows[0].profile)
    out.print()
    out.print(_table(found))
    out.print()
    _show_best(out, found, best)
    _show_search(out, found)


def _show_best(out: Out, found: Advice, best: Row) -> None:
    """Print what the best plan's time is made of, how sure its prediction is, and what other plans give."""
    from ...outputs.show import fullest_text, issued

    text = parts_text(found.parts(best))
    out.labelled("shares of its iteration", text)
    layers = ", ".join(str(cost.layers or 0) for cost in best.profile.stages)
    out.labelled("layers per stage", f"{layers} (embedding and head count as one each)")
    fullest = fullest_text(best.trace)
    if fullest is not None:
        out.labelled(f"memory of rank {fullest[0]}, the fullest", fullest[1])
    text = f"MFU: {MFU_COUNTS}; with every score {best.mfu:.1%} for the best"
    out.text(text, style="dim")
    sure = "; ".join(filter(None, (best.trace.expected_text, found.basis)))
    out.labelled("how sure", sure)
    if any(map(found.is_toss_up, found.rows)):
        out.text(
            f"≈: a toss-up with the fastest; differences between two layouts of a model are ±{found.between:.1%} off in four cases of"
            " five (docs/how-true.md)",
            style="dim",
        )
    issued(out, best.trace.profile)
    for doubt in found.doubts(best):
        style = "yellow" if doubt.startswith(("not plausible", "do not plan")) else ""
        out.text(f"          {doubt}", style=style)
    strange = [row for row in found.rows if found.plausibility(row)[0] is False]
    if strange and found.plausibility(best)[0] is not False:
        out.print(f"          {len(strange)} other rows are beyond any published run")
    if best.gap > 0:
        more = "" if best.gap < 0.0005 else f"more than {best.gap:.1%} "
        out.labelled(
            "at best", f"no schedule of this split, with these layers per stage, is {more}faster"
        )
    plain = found.plainest
    if plain is not None and plain.iteration_ns > best.iteration_ns:
        slower = plain.iteration_ns / best.iteration_ns - 1
        what = f"{plain.schedule} (v {plain.choice.chunks}) on {plain.choice}, zero {plain.choice.zero}"
        out.labelled(
            "plainest",
            f"{what}, recompute {plain.choice.recompute}: {slower:.1%} slower"
            f"{' (a toss-up)' if slower <= found.between else ''}, in {format_size(plain.peak_bytes)}",
        )
    if found.steady is not None:
        out.labelled("to run", _steady(found, best))
    if found.fills_memory(best):
        out.labelled("with 5% to spare", _roomy(found, best))
    if found.question.slices != (1,):
        out.labelled("slices", slices_text(found))
    if found.memory:
        out.labelled("what memory buys", memory_text(found))


def _steady(found: Advice, best: Row) -> str:
    """Return the plan to run: of rows that are a toss-up the one that is least behind where costs are off."""
    steady = found.steady
    assert steady is not None
    row = steady.row
    what = (
        "the best row" if row is best else f"{row.schedule} (v {row.choice.chunks}) on {row.choice}"
    )
    text = (
        f"{what}: where costs are off ({steady.draws} draws) {steady.regret:.1%} behind the fastest of"
        f" {steady.plans} rows whose difference is a toss-up"
    )
    return text if row is best else f"{text}, the best row {steady.regret_of_best:.1%}"


def _roomy(found: Advice, best: Row) -> str:
    """Return the fastest plan that leaves some memory free, as a prediction of memory has an error."""
    roomy = found.with_room
    if roomy is None:
        return "none that was replayed; give a lower --memory-limit"
    slower = roomy.iteration_ns / best.iteration_ns - 1
    what = f"{roomy.schedule} on {roomy.choice}, recompute {roomy.choice.recompute}"
    return f"{what}: {slower:+.1%}, in {format_size(roomy.peak_bytes)}"


def _show_search(out: Out, found: Advice) -> None:
    """Print how many plans were searched, and how many are left."""
    from ...outputs.show import compiled

    pruned = ", ".join(f"{number} by {why}" for why, number in sorted(found.pruned.items()))
    numbers = f"{found.searched} replayed, {found.solved} solved, ruled out: {pruned or 'none'}"
    if found.interrupted:
        out.print("interrupted: the best so far", style="yellow")
    out.hint(f"searched in {found.seconds:.1f} s: {numbers}", style="dim")
    compiled(out, found.compiling_s)
    if found.unsearched:
        out.hint(
            f"{found.unsearched} configurations were not searched to the end, none of them below"
            f" {format_time(found.hope_ns or 0)}; more with --time-limit",
            style="dim",
        )


def _show_plan(out: Out, plan: dict[str, Any]) -> None:
    """Print the plan, what the family costs, and the options to paste."""
    from ...outputs.show import environment

    if "told" in plan:
        text = f"{plan['told']}: {format_time(plan['told_iteration_ns'])}, MFU {plan['told_mfu_causal']:.1%},"
        out.line("plan", f"{text} {format_size(plan['told_peak_bytes'])}")
    if "free_ns" in plan:
        slower = f"{plan['slower_than_free']:+.1%}"
        out.line("free of the family", f"{format_time(plan['free_ns'])} (the plan: {slower})")
        bound = format_time(plan["layout_bound_ns"])
        text = f"{bound}, for any schedule of this split and chunks, whatever the layers per stage"
        if "memory" in plan["layout_bound_by"]:
            text += "; it counts their work alone, not the cost of fitting the memory"
        out.line("bound", text)
    for note in plan.get("notes", ()):
        out.text(f"note: {note}")
    if plan.get("command"):
        environment(out, plan.get("environment", {}))
        out.text(plan["command"])


def parts_text(parts: dict[str, float]) -> str:
    """Format the shares of the time, the largest first."""
    spent = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {share:.1%}" for name, share in spent if share >= 0.001)


def slices_text(found: Advice) -> str:
    """Format the time of the fastest that was replayed with each number of slices, relative to the best row."""
    best = found.rows[0].iteration_ns
    parts = [
        f"{'whole sequences' if slices == 1 else slices} {point.iteration_ns / best - 1:+.1%}"
        for slices, point in found.by_slices.items()
    ]
    return f"{', '.join(parts)} (the fastest that was replayed and fits with each number, over the best row)"


def memory_text(found: Advice) -> str:
    """Format the time of the best split under other limits, relative to its time under the given one."""
    own = found.question.limit_bytes
    now = next((one.iteration_ns for one in found.memory if one.limit_bytes == own), None)
    parts = []
    for one in found.memory:
        if one.limit_bytes == own or now is None:
            continue
        more = f"{(one.limit_bytes - own) // 2**30:+d} GiB"
        if one.bound_ns is None:
            parts.append(f"{more}: nothing fits")
        elif one.iteration_ns is None:
            parts.append(f"{more}: none found")
        else:
            parts.append(
                f"{more}: {one.iteration_ns / now - 1:+.1%} (bound {one.bound_ns / now - 1:+.1%})"
            )
    return f"{'; '.join(parts)}; beside the time under {format_size(own)}"


def _share(parts: dict[str, float]) -> str:
    from ....costs.advise.rows import LIMITS, limited_by

    keys = LIMITS.get(limited_by(parts), ("compute",))
    return f"{sum(parts[key] for key in keys):.0%}"
