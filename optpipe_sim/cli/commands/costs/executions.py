"""``executions``: how trainers issue the work of a schedule, as far as it is known."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....errors import OptPipeError
from ...status import DONE
from .listing import add_listing, having, show_listing

if TYPE_CHECKING:
    from ....execution import Execution, Issue
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim executions --sources"
SUMMARY = "list how trainers issue the work: what ops and messages cost beside their times"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `executions`."""
    add_listing(parser, "name", "each execution, and what it was fitted to,")
    parser.add_argument(
        "--fit",
        metavar="RUNS.yaml",
        help="make one's own: fit it to measured runs of one schedule or, better, several (a list of profile, schedule,"
        " iteration_ms; `confirm --save-run` adds to it)",
    )
    parser.add_argument(
        "--save", metavar="F.yaml", help="with --fit: write it, for --execution F.yaml"
    )


def run(arguments: argparse.Namespace, out: Out) -> int:
    """List them; returns 1 if none matches the search. With ``--fit``, make one."""
    if arguments.fit:
        return _fit(arguments, out)
    if arguments.save:
        raise OptPipeError("--save: is for --fit RUNS.yaml")
    from ....execution import IDEAL, execution_to_json, load_execution, shipped_names
    from ...outputs.show import plain_table

    names = (IDEAL.name, *(name for name in shipped_names() if name != IDEAL.name))
    found = having(arguments.search, map(load_execution, names), lambda one: one.name)
    out.result({"executions": [_facts(one, execution_to_json(one)) for one in found]})
    table = plain_table(
        "execution", "of schedules", "links", "per op", "per message", "B + W", "time", "error"
    )
    for one in found:
        for at, (family, issue) in enumerate(one.families.items() or [("all", None)]):
            table.add_row(
                one.name if at == 0 else "", family, *_row(issue), _error(one) if at == 0 else ""
            )
    status = show_listing(out, arguments, "execution", found, table)
    if arguments.sources:
        for one in found:
            out.print()
            out.print(f"{one.name}: {one.source or 'no source'}", soft_wrap=True)
            if one.fitted_to:
                out.print(f"  fitted to: {', '.join(one.fitted_to)}", soft_wrap=True)
    out.hint(
        "use one with --execution NAME; one of your own: --execution FILE.yaml (docs/files.md)"
    )
    return status


def _fit(arguments: argparse.Namespace, out: Out) -> int:
    """Fit an execution to measured runs, and print how near it brings them."""
    from rich.text import Text

    from ....costs.issuing import FEWEST, Fit, fitted, load_runs, predicted
    from ....execution import execution_to_json
    from ....files import write_mapping
    from ....sim import simulate
    from ....units import counted, format_time
    from ...outputs.show import hint, plain_table, written

    name, runs = load_runs(arguments.fit)
    with out.progress("fitting") as progress:
        progress("replays", 0, 1)
        found = fitted(
            name, f"fitted to {counted(len(runs), 'measured run')}, {arguments.fit}", runs
        )
    rows = []
    table = plain_table("run", "measured", "ideal", "", "fitted", "", left=("run",))
    for run in runs:
        ideal = predicted(run, Fit(span=False))
        own = simulate(
            run.schedule, replace(run.profile, execution=found), enforce=False, explain=False
        ).iteration_ns
        off = [time / run.time - 1 for time in (ideal, own)]
        rows.append(
            {"schedule": run.name, "measured_ns": run.time, "ideal_ns": ideal, "fitted_ns": own}
        )
        table.add_row(
            run.name,
            *map(format_time, (run.time, ideal)),
            f"{off[0]:+.1%}",
            format_time(own),
            f"{off[1]:+.1%}",
        )
    files = {}
    if arguments.save:
        write_mapping(arguments.save, execution_to_json(found))
        files[arguments.save] = "the execution"
    out.result({"execution": execution_to_json(found), "runs": rows, "files": files})
    issue = found.issue("split-interleaved")
    out.print(
        f"{found.name}: ops take {format_time(issue.op_ns)} beside their kernels, B and W apart {float(issue.split) - 1:+.0%};"
        f" messages of plain schedules: {found.issue('plain').links}, of interleaved ones {found.issue('interleaved').links}, of those"
        f" with B and W apart {issue.links}",
        soft_wrap=True,
    )
    out.print()
    out.print(table)
    out.print()
    if found.between is None:
        kinds = len({run.name for run in runs})
        said = f"how far it is off is not known: that needs {FEWEST} schedules, of which one is left out in turn, not {kinds}"
    else:
        said = f"each schedule left out in turn, four of five times are within {found.common:.1%}, differences within {found.between:.1%}"
    out.print(Text(said, "dim"), soft_wrap=True)
    written(out, files)
    if arguments.save:
        hint(
            out,
            f"optpipe-sim compare PROFILE -m M --execution {shlex.quote(arguments.save)}",
            code=True,
        )
    else:
        hint(out, "keep it with --save my.yaml")
    return DONE


def _row(issue: Issue | None) -> tuple[str, ...]:
    from ....units import format_time

    if issue is None:
        return "as profiled", "-", "-", "-", "makespan"
    return (
        issue.links or "as profiled",
        format_time(issue.op_ns) if issue.op_ns else "-",
        format_time(issue.message_ns) if issue.message_ns else "-",
        f"{float(issue.split) - 1:+.1%}" if issue.split != 1 else "-",
        "makespan" if issue.iteration == "makespan" else "longest span",
    )


def _error(one: Execution) -> str:
    if one.between is None:
        return "not known"
    common = "" if one.common is None else f", times ±{one.common:.1%}"
    return f"differences ±{one.between:.1%}{common}"


def _facts(one: Execution, data: Any) -> dict[str, Any]:
    facts = {"name": one.name} if isinstance(data, str) else data
    return {"source": one.source, "error": None, **facts}
