"""What ``solve`` has in common with ``solve --noise`` and ``frontier``."""

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
    tell: Callable[[], None],
    error: OptPipeError | None = None,
) -> int:
    """Write the files that are asked for (they join `files`) and give the answer; only then complain
    of what could not be written, as when a disk is full.

    Args:
        answer: for ``--json``. `tell`: gives it to people. `error`: what could not be written before.
    """
    from ...outputs.trace import write_trace, write_trace_page

    try:
        files |= write_trace(arguments, trace)
        files |= write_trace_page(arguments, trace)
    except OptPipeError as failed:
        error = failed
    chunks = trace.schedule.shape.chunks
    common = {"chunks": chunks, "reason": None, "files": files}
    out.result({"schedule": "optpipe", **answer, **common})
    if not out.json:
        tell()
    if error is not None:
        raise error
    return DONE


def nothing(arguments: argparse.Namespace, error: OptPipeError) -> dict[str, Any]:
    """The answer where there is no schedule."""
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
