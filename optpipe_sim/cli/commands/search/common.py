"""Parts that ``solve``, its variants (``--noise``, ``--layers``, ``--family``) and ``frontier`` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ....errors import OptPipeError
from ....profile import CostProfile
from ....schedules import ADAOFFLOAD
from ....solvers.axes import candidate_shapes
from ....solvers.microbatch_order import ordered
from ....solvers.result import status_of
from ....solvers.solve import solve
from ....solvers.steady import Beside, beside
from ....trace import Trace
from ....units import parse_size, size_above
from ...outputs.show import Out
from ...outputs.verdict import described
from ...outputs.write import write_trace, write_trace_page
from ...status import DONE


def finish(
    arguments: argparse.Namespace,
    out: Out,
    trace: Trace,
    answer: dict[str, Any],
    files: dict[str, str],
    show: Callable[[], None],
    error: OptPipeError | KeyboardInterrupt | None = None,
    waits: bool = True,
) -> int:
    """Write the requested files (they join `files`) and print the answer, even if one of them cannot be written.

    Args:
        answer: for ``--json``. `show`: prints it for people. `error`: of an earlier file that could not
            be written. `waits`: whether ops of the plan wait for memory, which frameworks do not.
    """
    try:
        files |= write_trace(arguments, trace)
        files |= write_trace_page(arguments, trace)
        if error is not None:
            raise error
    finally:
        chunks = trace.schedule.shape.chunks
        common: dict[str, Any] = {"chunks": chunks, "reason": None, "files": files}
        found = ordered(trace, waits) if out.json else None
        common |= {} if found is None else {"microbatch_order": found.to_json()}
        out.result({"schedule": "optpipe", **answer, **common})
        if not out.json:
            show()
    return DONE


MANY_OPS = 200_000  # of a plan beside which no plainer one is built


NOTHING_BESIDE: dict[str, None] = {"plainest": None, "steady": None}


def plain_beside(
    profile: CostProfile,
    best: Trace,
    names: Sequence[str] | None = None,
    chunks: int | None = None,
) -> Beside | None:
    """Return what stands beside the best plan: see `steady.beside`; None for plans over slices, and very large
    ones. `names`, `chunks`: only these schedules, with so many chunks per device."""
    if len(best.schedule) > MANY_OPS or profile.slices > 1:
        return None
    return beside(profile, best, "this plan", names, chunks)


def needs_profile(arguments: argparse.Namespace) -> None:
    """Refuse to save a schedule for stages other than the given ones without their profile."""
    if arguments.save and not arguments.save_profile:
        raise OptPipeError(
            f"--save: the schedule is for other stages than those of {arguments.profile}; give"
            " --save-profile Q.yaml as well"
        )


WAYS_OUT_S = 3.0  # seconds for each question that is asked again, with less in its way
STEPS_UP = (1.0, 1.02, 1.05, 1.1, 1.2)  # times the least limit


def refuse(
    arguments: argparse.Namespace, out: Out, profile: CostProfile, error: OptPipeError
) -> NoReturn:
    """Print the answer for ``--json`` where there is no schedule, and raise `error` with what would fit
    in its message.

    Args:
        profile: as read, without the restrictions of the command line.
    """
    found = _ways_out(arguments, profile)
    out.result({**nothing(arguments, error), "would_fit": found})
    raise type(error)(f"{error}. It fits {', or '.join(found)}" if found else str(error)) from None


def _ways_out(arguments: argparse.Namespace, profile: CostProfile) -> list[str]:
    """Return what would fit, each as a replay of what a short search found: the question without each of its
    restrictions (or without all of them, where one is not enough), and a limit little above the least of any
    schedule."""
    chunks = arguments.chunks or "any"
    asked = {
        "chunks": "own" if chunks == "profile" else chunks,
        "treatments": arguments.treatments,
        "per_stage": arguments.per_stage,
    }
    looser: dict[str, dict[str, Any]] = {}
    if arguments.treatments:
        looser["without --treatments"] = {"treatments": None}
    if chunks != "any" or getattr(arguments, "placement", None):
        looser["with --chunks any"] = {"chunks": "any"}
    if arguments.per_stage:
        looser["without --per-stage"] = {"per_stage": False}
    if getattr(arguments, "family", None):
        looser[f"without --family {arguments.family}"] = {}
    limits, m = profile.memory_limit, arguments.microbatches
    tried = {name: _briefly(profile, m, limits, {**asked, **less}) for name, less in looser.items()}
    if len(looser) > 1 and not any(tried.values()):
        free = {"chunks": "any", "treatments": None, "per_stage": False}
        tried[", ".join(looser)] = _briefly(profile, m, limits, free)
    least = min(max(shape.least_limits) for shape in candidate_shapes(profile))
    if limits is not None and least > min(limits):
        free = {"chunks": "any", "treatments": None, "per_stage": False}
        for more in STEPS_UP:  # with so little a schedule may exist that no short search finds
            size = size_above(round(least * more))
            found = _briefly(profile, m, (parse_size(size),) * profile.devices, free)
            if found:
                tried[f"with --memory-limit {size}"] = found
                break
    return [f"{name} ({text})" for name, text in tried.items() if text]


def _briefly(
    profile: CostProfile, microbatches: int, limits: tuple[int, ...] | None, options: dict[str, Any]
) -> str | None:
    """Return what a short search finds, with its time and its peak; None: nothing."""
    try:
        found = solve(
            profile, microbatches, limits, engine=ADAOFFLOAD, time_limit=WAYS_OUT_S, **options
        )
    except OptPipeError:
        return None
    assert found.trace is not None  # solve raises without one
    return described(found.info["found_by"], found.trace)


def nothing(arguments: argparse.Namespace, error: OptPipeError) -> dict[str, Any]:
    """Return the answer for ``--json`` where there is no schedule."""
    return {
        "schedule": "optpipe",
        "status": status_of(error),
        "engine": arguments.engine,
        "objective_ns": None,
        "lower_bound_ns": None,
        "gap": None,
        "fits": False,
        "reason": str(error),
    }
