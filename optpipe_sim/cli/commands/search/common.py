"""Parts that ``solve``, its variants (``--noise``, ``--layers``, ``--family``) and ``frontier`` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....errors import OptPipeError
from ...status import DONE

if TYPE_CHECKING:
    from ....trace import Trace
    from ...outputs.show import Out

COMPILING = "compiling the engines for this machine, this once: about half a minute ..."


def finish(
    arguments: argparse.Namespace,
    out: Out,
    trace: Trace,
    answer: dict[str, Any],
    files: dict[str, str],
    show: Callable[[], None],
    error: OptPipeError | KeyboardInterrupt | None = None,
) -> int:
    """Write the requested files (they join `files`) and print the answer, even if one of them cannot be written.

    Args:
        answer: for ``--json``. `show`: prints it for people. `error`: of an earlier file that could not
            be written.
    """
    from ...outputs.trace import write_trace, write_trace_page

    try:
        files |= write_trace(arguments, trace)
        files |= write_trace_page(arguments, trace)
        if error is not None:
            raise error
    finally:
        chunks = trace.schedule.shape.chunks
        common = {"chunks": chunks, "reason": None, "files": files}
        out.result({"schedule": "optpipe", **answer, **common})
        if not out.json:
            show()
    return DONE


def needs_profile(arguments: argparse.Namespace) -> None:
    """Refuse to save a schedule for stages other than the given ones without their profile."""
    if arguments.save and not arguments.save_profile:
        raise OptPipeError(
            f"--save: the schedule is for other stages than those of {arguments.profile}; give"
            " --save-profile Q.yaml as well"
        )


def nothing(arguments: argparse.Namespace, error: OptPipeError) -> dict[str, Any]:
    """Return the answer for ``--json`` where there is no schedule."""
    from ....solvers.result import status_of

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
