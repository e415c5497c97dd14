"""Figures from results alone: a module of ``plot/studies`` per experiment, of the same name, whose
``draw(rows)`` gives a figure, or several by name."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import OptPipeError
from ..plot import studies
from .tables import load_table, table_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")


def figure_names() -> list[str]:
    """The experiments that have a figure."""
    return sorted(module.name for module in pkgutil.iter_modules(studies.__path__))


def draw(name: str, results: str | os.PathLike[str]) -> Mapping[str, Figure]:
    """The figures of an experiment, from its table: by the ending of their names, ``""`` for the
    only one.

    Raises:
        OptPipeError: where there is no such figure or no such table, or the table lacks a column.
    """
    if name not in figure_names():
        raise OptPipeError(f"{name}: no such figure; known are {', '.join(figure_names())}")
    rows = load_table(results, name)
    try:
        made = import_module(f"{studies.__name__}.{name}").draw(rows)
    except KeyError as error:
        raise OptPipeError(
            f"{Path(results) / name}.parquet: the figure needs a column {error}; make the table again"
        ) from None
    return made if isinstance(made, Mapping) else {"": made}


def save_figures(
    names: Sequence[str],
    results: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw and write figures as ``NAME.pdf`` and so on; without names, of every table that has one.

    Raises:
        OptPipeError: as `draw`; or where nothing is there to be drawn.
    """
    from ..plot.style import save

    names = names or [name for name in table_names(results) if name in figure_names()]
    if not names:
        raise OptPipeError(
            f"{results}: no tables with a figure here; make some with optpipe-sim sweep"
        )
    return [
        save(figure, Path(folder) / f"{name}{f'-{part}' if part else ''}.{ending}")
        for name in names
        for part, figure in draw(name, results).items()
        for ending in formats
    ]
