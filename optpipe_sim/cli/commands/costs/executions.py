"""``executions``: how trainers issue the work of a schedule, as far as it is known."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .listing import add_listing, having, show_listing

if TYPE_CHECKING:
    from ....execution import Execution, Issue
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim executions --sources"
SUMMARY = "list how trainers issue the work: what ops and messages cost beside their times"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `executions`."""
    add_listing(parser, "name", "each execution, and what it was fitted to,")


def run(arguments: argparse.Namespace, out: Out) -> int:
    """List them; returns 1 if none matches the search."""
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
