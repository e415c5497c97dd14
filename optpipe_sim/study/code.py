"""Python files in the folder of an experiment: its own task, its own figure."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from ..errors import OptPipeError
from ..files import read_text

CLONE = Path(__file__).parents[2]  # that this package runs from, if it is one


def load_code(path: Path) -> ModuleType:
    """Load a file as a module.

    Raises:
        OptPipeError: if it cannot be read or run; names the file.
    """
    return module_of(f"experiment_{path.parent.name}_{path.stem}", read_text(path), str(path))


@lru_cache(maxsize=64)
def module_of(name: str, source: str, path: str) -> ModuleType:
    """Make a module from its source, once; this also works in processes and on machines without the
    file. Files of this project's own experiments may import one another, as ``experiments.NAME``.

    Raises:
        OptPipeError: if it cannot be run.
    """
    if (CLONE / "experiments").is_dir() and str(CLONE) not in sys.path:
        sys.path.append(str(CLONE))  # an installed command has only its own folder there
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # dataclasses look their module up by name
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        raise OptPipeError(f"{path}: cannot be run: {type(error).__name__}: {error}") from None
    return module
