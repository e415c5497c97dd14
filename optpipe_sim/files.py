"""Files, read with clear errors and written whole or not at all; devices and pipes are written through."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from .errors import OptPipeError
from .units import format_size
from .yaml_text import Number, parse_yaml

MOST_BYTES = 2**29  # of a file; a larger schedule or trace takes longer to read than to recompute
MOST_STREAM_BYTES = 2**26  # of a device or a pipe, which may have no end
MOST_YAML_BYTES = 2**24
_TOO_DEEP = "it is nested too deeply"

# files that are given for one another by mistake: the kind, what it is called, a key that it has and others lack,
# what takes it
_KINDS = (
    ("a profile", "", "devices", "simulate, compare and solve take it as PROFILE"),
    ("a schedule", "", "programs", "are the two arguments swapped?"),
    ("a trace", "", "start_ns", "explain and report take it"),
    ("a trace", "", "traceEvents", "import --from torch-trace reads measured ones"),
    ("a model", "a config of Hugging Face", "model_type", "--model of estimate takes it"),
    ("a model", "a short config of a model", "hidden", "--model of estimate takes it"),
    ("a machine file", "", "peak_tflops", "--machine of estimate takes it"),
    ("a file of measurements", "", "rows", "--calibrate takes it"),
    ("a plan that was exported", "", "options", "check takes it, beside its profile"),
    ("an experiment", "", "question", "sweep takes it"),
    ("an execution", "", "families", "--execution takes it"),
)


def read_bytes(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """Return the contents of a file of at most `most` bytes (of a device or a pipe: 64 MiB).

    Raises:
        OptPipeError: one line that names the file and why it cannot be read.
    """
    try:
        with open(os.fspath(path), "rb") as stream:  # a number would be a descriptor
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                most = min(most, MOST_STREAM_BYTES)
            if status.st_size > most:
                size = format_size(status.st_size)
                raise OptPipeError(
                    f"{path}: is too large: {size}, and at most {format_size(most)} are read"
                )
            data = bytearray()
            while len(data) <= most and (part := stream.read(2**20)):
                data += part
    except FileNotFoundError:
        raise OptPipeError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptPipeError(f"{path}: cannot be read: {reason}") from None
    if len(data) > most:
        raise OptPipeError(f"{path}: does not end: at most {format_size(most)} are read")
    return bytes(data)


def read_log_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a log, as `read_bytes`: UTF-16 where it begins so, as PowerShell writes, else UTF-8, in
    which damaged characters are replaced."""
    data = read_bytes(path)
    begun = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if begun else "utf-8-sig", errors="replace")


def read_text(path: str | os.PathLike[str], most: int = MOST_BYTES) -> str:
    """Return the text of a file, as `read_bytes`; any failure is one line that names it."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OptPipeError(f"{path}: cannot be read: not UTF-8 text") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON mapping whose keys occur once."""
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} is given twice")
    return data


def read_mapping(path: str | os.PathLike[str], wanted: str = "") -> dict[str, Any]:
    """Return the mapping in a YAML or JSON file, decimals as `Decimal`.

    Args:
        wanted: the kind of file that is read, as ``a profile``; another kind of `_KINDS` is refused by its name.

    Raises:
        OptPipeError: one line that names the file, the place, and what is wrong there.
    """
    is_json = str(path).endswith(".json")
    text = read_text(path, MOST_BYTES if is_json else MOST_YAML_BYTES)
    try:
        if is_json:
            data = json.loads(
                text, parse_float=Number, parse_constant=Number, object_pairs_hook=_once
            )
        else:
            data = parse_yaml(text)
    except json.JSONDecodeError as error:
        raise OptPipeError(
            f"{path}: not valid JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}"
            + (" (the file ends there: truncated?)" if error.pos >= len(text.rstrip()) else "")
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", "cannot be parsed")
        if "nesting depth" in str(problem):  # newer versions of libyaml have a limit of their own
            raise OptPipeError(f"{path}: cannot be parsed: {_TOO_DEEP}") from None
        raise OptPipeError(f"{path}: not valid YAML: {problem}{place}") from None
    except (ValueError, RecursionError) as error:
        # a key given twice in JSON, a number of 5000 digits, endless nesting
        raise OptPipeError(f"{path}: cannot be parsed: {_cause(error)}") from None
    if not isinstance(data, dict):
        what = "is empty" if data is None else f"holds {type(data).__name__}"
        raise OptPipeError(f"{path}: {what}, expected a mapping of keys")
    kinds = [one for one in _KINDS if one[2] in data]
    if wanted and kinds and all(kind != wanted for kind, *_ in kinds):
        kind, called, _, takes = kinds[0]
        raise OptPipeError(f"{path}: is {called or kind}, not {wanted}: {takes}")
    return data


def _cause(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    return "a number of too many digits" if "digits" in str(error) else str(error)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write `data` to `path`; symbolic links are followed.

    A regular file is written whole or not at all: to a temporary file beside it, which then replaces
    it and gets its permissions. Character devices, pipes and descriptors of this process
    (``/dev/stdout``) are written through. A missing folder is created.

    Raises:
        OptPipeError: one line that names the file and why it cannot be written.
        BrokenPipeError: the reader of a pipe has exited.
    """
    write_together({path: data})
    return Path(path)


def write_together(contents: Mapping[str | os.PathLike[str], bytes]) -> None:
    """`write_bytes` for files that belong together: no regular file is replaced before all are written.

    Raises:
        OptPipeError, BrokenPipeError: as `write_bytes`.
    """
    waiting: list[tuple[str, str]] = []
    path: str | os.PathLike[str] = ""
    try:
        for path, data in contents.items():
            descriptor = _open_stream(path)
            if descriptor is None:
                target = os.path.realpath(path)
                waiting.append((_write_beside(target, data), target))
            else:
                with os.fdopen(descriptor, "wb", buffering=0) as stream:
                    _write_all(stream, data)
        while waiting:
            os.replace(*waiting[0])
            del waiting[0]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OptPipeError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        for temporary, _ in waiting:
            with suppress(OSError):
                os.unlink(temporary)


def _write_beside(target: str, data: bytes) -> str:
    """Write a temporary file in the folder of `target`, with the permissions that `target` is to have."""
    folder, name = os.path.split(target)
    os.makedirs(folder, exist_ok=True)
    try:
        mode = stat.S_IMODE(os.stat(target).st_mode)
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "the file is read-only")
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name[:40]}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, mode)
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _write_all(stream: io.RawIOBase | io.FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether `write_bytes` writes to it directly: a device, a pipe or a descriptor."""
    if _descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def file_identity(path: str | os.PathLike[str]) -> tuple[int, int] | str:
    """Return what a path leads to, equal for all names of one file: device and inode, else the real path."""
    descriptor, real = _descriptor(path), os.path.realpath(path)
    try:
        status = os.stat(real) if descriptor is None else os.fstat(descriptor)
    except OSError:
        return real
    return status.st_dev, status.st_ino


def _open_stream(path: str | os.PathLike[str]) -> int | None:
    """Open what is written to directly; None for a regular file or a path that does not exist.

    Raises:
        OSError: for a folder, a block device or a socket, and as `os.open`.
    """
    descriptor = _descriptor(path)
    if descriptor is not None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # flush first: output printed earlier comes first
        return os.dup(descriptor)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return os.open(path, os.O_WRONLY | os.O_NOCTTY)
    kind = "block device" if stat.S_ISBLK(mode) else "socket"
    raise OSError(errno.EINVAL, f"it is a {kind}")


def _descriptor(path: str | os.PathLike[str]) -> int | None:
    """N where `path` leads to ``/dev/fd/N`` or ``/proc/self/fd/N`` of this process, as ``/dev/stdout``
    does; else None. Opening such a path again would truncate the file behind it."""
    name = os.fspath(path)
    for _ in range(40):  # as many links as Linux follows
        folder, last = os.path.split(os.path.join(os.getcwd(), name))
        folder = os.path.realpath(folder)
        if last.isdecimal() and folder in ("/dev/fd", f"/proc/{os.getpid()}/fd"):
            return int(last)
        name = os.path.join(folder, last)
        if not os.path.islink(name):
            return None
        name = os.path.join(folder, os.readlink(name))
    return None


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """`write_bytes` for text."""
    return write_bytes(path, text.encode())


def user_cache() -> Path:
    """Return the user's folder for caches; where there is none, a path that cannot be written."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home if os.path.isabs(home) else os.devnull)


def read_rows(path: str | os.PathLike[str]) -> list[Any]:
    """Return the lines of a text as lists of words, without what follows a ``#`` and lines that are then
    empty; or the list in a file of JSON.

    Raises:
        OptPipeError: where it cannot be read, or begins like a list of JSON and is none.
    """
    text = read_text(path)
    if text.lstrip().startswith("["):
        try:
            found: list[Any] = json.loads(text)
        except ValueError as error:
            raise OptPipeError(f"{path}: is no JSON: {error}") from None
        return found
    lines = (line.split("#")[0].replace(",", " ").split() for line in text.splitlines())
    return [line for line in lines if line]


def plain(value: Any) -> Any:
    """Return `value` with decimals as numbers and tuples as lists, as JSON and YAML need."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Decimal):
        if not value.is_finite() or abs(value.adjusted()) > 300:  # no number that files can hold
            return str(value)
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def write_mapping(path: str | os.PathLike[str], data: dict[str, Any]) -> Path:
    """Write a mapping as JSON (by the name's ending) or else YAML."""
    if str(path).endswith(".json"):
        return write_text(path, json.dumps(plain(data), indent=1) + "\n")
    return write_text(path, yaml.safe_dump(plain(data), sort_keys=False, width=100))
