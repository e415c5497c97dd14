"""The run in a trainer's log: Megatron-LM's with its arguments, or what others log."""

from __future__ import annotations

from ...errors import OptPipeError
from ...files import read_log_text
from .logged_run import LoggedRun
from .megatron_run import Path, last_run, run_of
from .other_logs import read_other


def read_run(path: Path) -> LoggedRun:
    """Read the last run in a log that has iterations.

    Raises:
        OptPipeError: names the file and what is missing in it.
    """
    log = last_run(path)
    if not log.arguments:
        try:
            other = read_other(read_log_text(path), log)
        except OptPipeError as error:
            raise OptPipeError(f"{path}: {error}") from None
        if other is not None:
            return other
    return run_of(log, path)
