"""``executions``: how trainers issue the work of a schedule, as far as it is known."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....errors import OptPipeError
from ....files import write_mapping
from ....units import counted, format_time
from ...options.shared import add_outputs
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
    add_outputs(parser, ("save", "F.yaml", "with --fit: write it, for --execution F.yaml"))


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
    rows = (
        {
            "execution": one.name if at == 0 else "",
            "of schedules": family,
            **_cells(issue),
            "error": _error(one) if at == 0 else "",
        }
        for one in found
        for at, (family, issue) in enumerate(one.families.items() or [("all", None)])
    )
    status = show_listing(out, arguments, "execution", plain_table(rows))
    if arguments.sources:
        for one in found:
            out.print()
            out.text(f"{one.name}: {one.source or 'no source'}")
            if one.fitted_to:
                out.text(f"  fitted to: {', '.join(one.fitted_to)}")
    out.hint(
        "use one with --execution NAME; one of your own: --execution FILE.yaml (docs/files.md)"
    )
    return status


def _fit(arguments: argparse.Namespace, out: Out) -> int:
    """Fit an execution to measured runs, and print how near it brings them."""
    from ....costs.issuing import FEWEST, Fit, fitted, load_runs, predicted
    from ....execution import execution_to_json
    from ....sim import simulate

    name, runs = load_runs(arguments.fit)
    with out.progress("fitting") as progress:
        progress("replays", 0, 1)
        found = fitted(
            name, f"fitted to {counted(len(runs), 'measured run')}, {arguments.fit}", runs
        )
    rows: list[dict[str, Any]] = []
    for run in runs:
        ideal = predicted(run, Fit(span=False))
        profile = replace(run.profile, execution=found)
        own = simulate(run.schedule, profile, enforce=False).iteration_ns
        rows.append(
            {"schedule": run.name, "measured_ns": run.time, "ideal_ns": ideal, "fitted_ns": own}
        )
    files = {}
    if arguments.save:
        write_mapping(arguments.save, execution_to_json(found))
        files[arguments.save] = "the execution"
    out.result({"execution": execution_to_json(found), "runs": rows, "files": files})
    issue = found.issue("split-interleaved")
    out.text(
        f"{found.name}: ops take {format_time(issue.op_ns)} beside their kernels, B and W apart"
        f" {float(issue.split) - 1:+.0%}; messages of plain schedules: {found.issue('plain').links}, of"
        f" interleaved ones {found.issue('interleaved').links}, of those with B and W apart {issue.links}"
    )
    out.print()
    cells = (
        {
            "run": row["schedule"],
            "measured": format_time(row["measured_ns"]),
            "ideal": format_time(row["ideal_ns"]),
            "": f"{row['ideal_ns'] / row['measured_ns'] - 1:+.1%}",
            "fitted": format_time(row["fitted_ns"]),
            " ": f"{row['fitted_ns'] / row['measured_ns'] - 1:+.1%}",
        }
        for row in rows
    )
    out.table(cells)
    out.print()
    if found.between is None:
        kinds = len({run.name for run in runs})
        said = (
            f"how far it is off is not known: that needs {FEWEST} schedules, of which one is left out in turn,"
            f" not {kinds}"
        )
    else:
        said = (
            f"each schedule left out in turn, four of five times are within {found.common:.1%}, differences"
            f" within {found.between:.1%}"
        )
    out.text(said, style="dim")
    out.written(files)
    if arguments.save:
        out.next(f"compare PROFILE -m M --execution {shlex.quote(arguments.save)}", code=True)
    else:
        out.next("keep it with --save my.yaml")
    return DONE


def _cells(issue: Issue | None) -> dict[str, str]:
    if issue is None:
        return {
            "links": "as profiled",
            "per op": "-",
            "per message": "-",
            "B + W": "-",
            "time": "makespan",
        }
    return {
        "links": issue.links or "as profiled",
        "per op": format_time(issue.op_ns) if issue.op_ns else "-",
        "per message": format_time(issue.message_ns) if issue.message_ns else "-",
        "B + W": f"{float(issue.split) - 1:+.1%}" if issue.split != 1 else "-",
        "time": "makespan" if issue.iteration == "makespan" else "longest span",
    }


def _error(one: Execution) -> str:
    if one.between is None:
        return "not known"
    common = "" if one.common is None else f", times ±{one.common:.1%}"
    return f"differences ±{one.between:.1%}{common}"


def _facts(one: Execution, data: Any) -> dict[str, Any]:
    facts = {"name": one.name} if isinstance(data, str) else data
    return {"source": one.source, "error": None, **facts}
