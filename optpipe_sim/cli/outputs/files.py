"""Which options name files, and the one rule for files that a command writes.

An output is refused before work begins where it cannot be written, where it is also an input or
another output of the command (links and hard links seen through), and where it is a default name
that is taken. Standard output is never shared with the answer: text for people then goes
to standard error, and ``--json`` is refused.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...errors import OptPipeError
from ...files import file_identity, is_stream
from ...units import parse_instant

INPUTS = (
    "profile",
    "schedule",
    "schedules",
    "experiments",
    "warm_start",
    "model",
    "machine",
    "calibrate",
    "execution",
    "fit",
    "lengths",
    "encoder",
    "imbalance",
    "run_log",
    "text",
    "other_files",
    "item",
)
STEM_ENDINGS = (".csv", ".md", ".png")  # of the files that one option names
FOLDERS = ("FOLDER", "DIR")  # what stands for a folder in the help
ENDINGS = {".png": (".png", ".svg", ".pdf"), ".html": (".html", ".htm")}  # that names may have


class _File(NamedTuple):
    """A file of a command: the option (or argument) that names it, as users write it, and its path."""

    option: str
    path: str

    def __str__(self) -> str:
        return f"{self.option} {self.path}"


def check_files(arguments: argparse.Namespace) -> bool:
    """Fill in default names and refuse outputs that would destroy something or cannot be written.

    Returns:
        Whether an output goes to standard output, so that nothing else may go there.

    Raises:
        OptPipeError: one line that names the option, the file and what is wrong.
    """
    _fill_in(arguments)
    _check_window(arguments)
    pairs = getattr(arguments, "pairs", "")
    if arguments.command == "estimate" and pairs == "none" and arguments.chart:
        raise OptPipeError("--chart: draws a pair on its two streams; give --pairs as well")
    outputs = list(_outputs(arguments))
    for output in outputs:
        _check_writable(output)
    _check_apart(list(_inputs(arguments)), outputs)
    to_stdout = [output for output in outputs if _is_stdout(output)]
    if to_stdout and arguments.json:
        raise OptPipeError(f"{to_stdout[0]}: --json prints its answer there; name another file")
    return bool(to_stdout)


def rewritable(path: str | None) -> str | None:
    """Return `path` if it can be rewritten repeatedly during a run; None for a device or a pipe."""
    return None if path is None or is_stream(path) else path


def _fill_in(arguments: argparse.Namespace) -> None:
    """Fill in a name that the user left out (`export`); never that of an existing file."""
    endings = getattr(arguments, "default_endings", None)
    if endings is None or arguments.out is not None:
        return
    stem = Path(arguments.schedule.replace(":", "-")).stem
    arguments.out = f"{stem}{endings[arguments.format]}"
    if os.path.lexists(arguments.out) and not arguments.force:
        raise OptPipeError(
            f"{arguments.out}: exists already; name another file with -o, or overwrite it with --force"
        )


def _check_window(arguments: argparse.Namespace) -> None:
    """Refuse a window without a picture, and one that is always empty."""
    start, end = (getattr(arguments, f"window_{edge}", None) for edge in ("from", "to"))
    if (start or end) and not arguments.gantt:
        raise OptPipeError(
            f"--{'from' if start else 'to'}: says what part is drawn; give --gantt F.png as well"
        )
    if start and end:
        (first, is_share), (last, same) = parse_instant(start), parse_instant(end)
        if is_share == same and first >= last:
            raise OptPipeError(f"--to {end}: must be later than --from {start}")


def _inputs(arguments: argparse.Namespace) -> Iterator[_File]:
    for option in INPUTS:
        given = getattr(arguments, option, None)
        for path in given if isinstance(given, list) else [given]:
            if isinstance(path, str) and os.path.exists(path):  # else it is a name
                yield _File(f"the {option.replace('_', ' ').removesuffix('s')}", path)


def _outputs(arguments: argparse.Namespace) -> Iterator[_File]:
    """Yield the files of options that write (`add_outputs`).

    Raises:
        OptPipeError: for a name with another ending than its kind of file has, or of a folder that is none.
    """
    for action in arguments.parsers[arguments.command]._actions:
        path, metavar = getattr(arguments, action.dest, None), str(action.metavar)
        name = f"{action.option_strings[0]} {path}" if action.option_strings else ""
        if path is None:
            continue
        if metavar in FOLDERS:
            if os.path.exists(path) and not os.path.isdir(path):
                raise OptPipeError(f"{name}: is not a directory")
        elif hasattr(action, "writes"):
            endings = ENDINGS.get(Path(metavar).suffix, ())
            if endings and path and Path(path).suffix.lower() not in endings:
                raise OptPipeError(f"{name}: the name must end in {', '.join(endings)}")
            for ending in STEM_ENDINGS if metavar == "STEM" else ("",):
                yield _File(f"--{action.dest.replace('_', '-')}", path + ending)


def _check_writable(output: _File) -> None:
    path = output.path
    if is_stream(path):
        if not os.access(path, os.W_OK):
            raise OptPipeError(f"{output}: cannot be written: no permission")
        return
    target = Path(os.path.realpath(path))
    parent = next((above for above in target.parents if above.exists()), None)
    problem = None
    if not path:
        problem = "is no file name"
    elif target.is_dir() or path.endswith(os.sep):
        problem = "is a directory; name a file in it"
    elif target.exists() and not target.is_file():
        problem = "is neither a file nor something that can be written through"
    elif target.exists() and not os.access(target, os.W_OK):
        problem = "cannot be written: the file is read-only"
    elif parent is not None and not parent.is_dir():
        problem = f"cannot be written: {parent} is not a directory"
    elif parent is not None and not os.access(parent, os.W_OK):
        problem = f"cannot be written: no permission to write in {parent}"
    if problem:
        raise OptPipeError(f"{output}: {problem}")


def _check_apart(inputs: list[_File], outputs: list[_File]) -> None:
    """Refuse an output that is an input or another output, also through links."""
    # a terminal is read and written; what is written to /dev/null is discarded
    read = {file_identity(file.path): file for file in inputs if not _is_device(file.path)}
    written: dict[tuple[int, int] | str, _File] = {}
    for output in outputs:
        identity = file_identity(output.path)
        if identity in read:
            other = read[identity]
            named = "" if other.path == output.path else f" ({other.path})"
            raise OptPipeError(
                f"{output}: is {other.option} that is read{named}; name another file"
            )
        if identity in written:
            raise OptPipeError(f"{output}: is also {written[identity]}; name another file")
        if not _is_null(output.path):
            written[identity] = output


def _is_stdout(output: _File) -> bool:
    """Whether an output goes where standard output goes.

    Raises:
        OptPipeError: for a regular file that standard output is redirected into, under its own name.
    """
    try:
        status = os.fstat(1)
    except OSError:  # closed
        return False
    if file_identity(output.path) != (status.st_dev, status.st_ino) or _is_null(output.path):
        return False
    if not is_stream(output.path):
        raise OptPipeError(f"{output}: standard output is redirected there; name another file")
    return True


def _is_device(path: str) -> bool:
    return Path(path).is_char_device()


def _is_null(path: str) -> bool:
    try:
        return os.path.samefile(path, os.devnull)
    except OSError:
        return False
