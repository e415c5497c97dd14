"""``explain``: why devices wait, or why one op waits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ...options.shared import (
    add_flags,
    add_objective_of_schedule,
    add_outputs,
    add_profile,
    add_schedule,
    add_schedule_problem,
)
from ...outputs.write import write_figure
from ...status import DONE, NO
from ..examples import OFFLOADING

if TYPE_CHECKING:
    from ....bounds.bounds import Bound
    from ....schedule import Schedule
    from ....trace import Trace
    from ...outputs.show import Out

EXAMPLE = f"optpipe-sim explain best.json {OFFLOADING} --memory-limit 24GiB --op F3.7"
SUMMARY = "explain why devices wait, or why one op waits"


BOUND_S = 3.0  # seconds for `--solution` to search for a better bound


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `explain`."""
    add_schedule(parser)
    add_profile(parser)
    parser.add_argument("--op", metavar="F3.7", help="why this op starts when it does")
    solution = "what it offloads, and how much of its idle time any schedule must have"
    add_flags(parser, ("solution", solution))
    chart = "draw that idle time, and the forced part (.png .svg .pdf)"
    add_outputs(parser, ("chart", "F.png", chart))
    add_objective_of_schedule(parser)
    add_schedule_problem(parser)


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Explain in sentences why devices wait, or why one op waits."""
    from ....ops import parse_op
    from ....reasons.explain import explain as explained
    from ....reasons.explain import why
    from ...inputs import read_profile, read_trace
    from ...outputs.verdict import show_verdict, would_fit

    op = parse_op(arguments.op) if arguments.op else None
    profile = read_profile(arguments)
    trace, reason = read_trace(
        arguments.schedule, arguments.microbatches, profile, arguments.objective
    )
    schedule = trace.schedule
    answer: dict[str, Any] = {"schedule": arguments.schedule, "op": op and str(op)}
    if out.json:
        from ....reasons.data import explain_data, why_data

        answer["explanation"] = explain_data(trace)
        answer["why"] = op and why_data(trace, op)
    text = why(trace, op) if op else explained(trace)
    files: dict[str, str] = {}
    if arguments.solution or arguments.chart:
        from ....reasons.solution import analyse_solution, explain_solution

        bound = _bound(schedule, trace, out)
        solution = explain_solution(trace, bound)
        text = f"{text.rstrip()}\n\n{solution}" if op else solution
        found = analyse_solution(trace, bound)
        answer["solution"] = found.to_json()
        files |= write_figure(
            arguments.chart,
            lambda plot: plot.solution_chart(found),
            "idle time, and how much of it is forced",
        )
    fitting = would_fit(arguments.schedule, trace)
    fits = {"fits": trace.fits, "reason": reason, "would_fit": fitting}
    out.result({**answer, "text": text, **fits, "files": files})
    if not (op and trace.fits):
        show_verdict(out, arguments.schedule, trace, fitting)
    if trace.fits and not op:
        out.print()
    out.text(text.rstrip("\n"))
    out.written(files)
    return DONE if trace.fits else NO


def _bound(schedule: Schedule, trace: Trace, out: Out) -> Bound:
    """Return the best bound for a replayed schedule: known, or found in a few seconds."""
    from ....bounds.bounds import lower_bound
    from ....solvers.known import known_bound
    from ....solvers.problem import make_problem

    m = schedule.shape.microbatches
    if not trace.fits:  # it is not a schedule of the problem
        return lower_bound(trace.profile, m, trace.objective)
    problem = make_problem(trace.profile, m, trace.memory_limit, trace.objective)
    with out.progress("looking for a better bound"):
        return known_bound(problem, schedule, trace.cost_ns, BOUND_S)
