"""The data files that ship with the cost model, ``costs/data/FOLDER/NAME.yaml``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from ..files import plain, read_mapping


@cache
def data_file(folder: str, name: str) -> dict[str, Any]:
    """Return what a file says; it is read once, and must not be changed."""
    path = files("optpipe_sim.costs") / "data" / folder / f"{name}.yaml"
    found: dict[str, Any] = plain(read_mapping(str(path)))
    return found
