"""The command line: ``optpipe-sim COMMAND ...``. Everything it does the library does without it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ..errors import NoSolution, OptPipeError, OutOfMemory
from .parser import parse

DONE, NO, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: done. 1: the answer is no (does not fit, not valid, nothing found). 2: bad input, with one
    line on stderr. 130: interrupted. 141: whoever read the output went away. Never a traceback,
    unless OPTPIPE_SIM_TRACEBACK is set.
    """
    for stream in (sys.stdout, sys.stderr):
        # a terminal that cannot show a sign gets a question mark, not an error
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # what is still buffered must not fail again when the interpreter closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except SystemExit as stop:  # argparse, after --help or its one line
        return stop.code if isinstance(stop.code, int) else BAD_INPUT
    except (OutOfMemory, NoSolution) as error:
        return _complain(str(error), NO)
    except OptPipeError as error:
        return _complain(str(error), BAD_INPUT)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}", BAD_INPUT)
    except Exception as error:
        if os.environ.get("OPTPIPE_SIM_TRACEBACK"):
            raise
        return _complain(
            f"internal error: {type(error).__name__}: {error}; please report it with what"
            " OPTPIPE_SIM_TRACEBACK=1 prints",
            BAD_INPUT,
        )
    return code


def _run(argv: Sequence[str] | None) -> int:
    arguments = parse(argv)
    from . import commands  # after --help and usage errors, which should be instant

    return commands.run(arguments)


def _complain(message: str, code: int) -> int:
    print("optpipe-sim:", " ".join(message.split()), file=sys.stderr)
    return code
