"""The command line: ``optpipe-sim COMMAND ...``. Everything it does is also available in the library."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import NoSolution, OptPipeError, OutOfMemory, one_line
from ..processes.signals import ctrl_c_arrives
from ..processes.torchrun import torchrun_rank
from .parser import COMMANDS, UsageError, parse
from .status import BAD_INPUT, BROKEN_PIPE, INTERRUPTED, NO, SCHEMA

if TYPE_CHECKING:
    from .outputs.show import Out


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: done. 1: the answer is no (does not fit, not valid, nothing found). 2: bad input, with one
    line on stderr. 130: interrupted. 141: the reader of the output closed it. Never a traceback,
    unless OPTPIPE_SIM_TRACEBACK is set. With ``--json`` the error is also printed on stdout, unless
    an answer was already printed: ``{"schema": 2, "error": {"kind", "message", "exit_status"}}``.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started this program
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # a character that the terminal cannot encode becomes a question mark, not an error
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    complaint = _Complaint(words)
    try:
        with ctrl_c_arrives():
            code = _run(words, complaint)
            sys.stdout.flush()
    except BrokenPipeError:
        return _broken_pipe()
    except KeyboardInterrupt:
        return complaint("interrupted", "interrupted", INTERRUPTED)
    except SystemExit as stop:  # argparse, after --help
        return stop.code if isinstance(stop.code, int) else BAD_INPUT
    except UsageError as error:
        return complaint("usage", str(error), BAD_INPUT, "")
    except OutOfMemory as error:
        return complaint("out_of_memory", str(error), NO)
    except NoSolution as error:
        return complaint("no_solution", str(error), NO)
    except OptPipeError as error:
        return complaint("bad_input", str(error), BAD_INPUT)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno == errno.ENOSPC and not where:
            _discard_output()
            where = "standard output: "
        return complaint("bad_input", f"{where}{error.strerror or error}", BAD_INPUT)
    except Exception as error:
        if os.environ.get("OPTPIPE_SIM_TRACEBACK"):
            raise
        return complaint(
            "internal",
            f"internal error: {type(error).__name__}: {error}; please report it with what"
            " OPTPIPE_SIM_TRACEBACK=1 prints",
            BAD_INPUT,
        )
    return code


def _run(words: list[str], complaint: _Complaint) -> int:
    arguments = parse(words)
    # imported after --help and usage errors, which should be instant
    from .outputs.files import check_files
    from .outputs.show import Out

    aside = check_files(arguments)
    complaint.out = out = Out(json=arguments.json, quiet=arguments.quiet, aside=aside)
    return COMMANDS[arguments.command].run(arguments, out)


class _Complaint:
    """Report an error: a line on stderr, and with ``--json`` an object on stdout, unless the
    command has already printed its answer there."""

    def __init__(self, words: Sequence[str]) -> None:
        self.json = "--json" in words
        self.out: Out | None = None

    def __call__(self, kind: str, message: str, code: int, prefix: str = "optpipe-sim: ") -> int:
        if torchrun_rank():
            return code  # the first rank says the same
        line = one_line(message)
        print(f"{prefix}{line}", file=sys.stderr)
        if self.json and not (self.out is not None and self.out.answered):
            error = {"kind": kind, "message": line, "exit_status": code}
            try:
                print(json.dumps({"schema": SCHEMA, "error": error}), flush=True)
            except BrokenPipeError:
                return _broken_pipe()
            except OSError:  # a full disk
                _discard_output()
        return code


def _broken_pipe() -> int:
    _discard_output()
    return BROKEN_PIPE


def _discard_output() -> None:
    # buffered output must not fail again when the interpreter closes stdout
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
