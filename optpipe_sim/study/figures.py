"""Figures from results alone: ``figure.py`` in the folder of an experiment, whose ``draw(rows)``
gives a figure, or several by name; without such a file, a measure over the axes of its grid."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import OptPipeError
from .code import CLONE, load_code
from .experiment import FILE, experiment_file, experiment_name
from .tables import load_manifest, load_table, table_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")


# where experiments are searched: the current folder, and the clone that this package runs from
FOLDERS = (Path("experiments"), CLONE / "experiments")


def figure_files() -> dict[str, Path]:
    """Return the files that draw the figures of experiments, by the experiments' names."""
    found = [path for folder in FOLDERS for path in sorted(folder.glob("*/figure.py"))]
    return {path.parent.name: path for path in reversed(found)}


def figure_names() -> list[str]:
    """Return the names of the experiments that have a figure."""
    return sorted(figure_files())


def draw(name: str, results: str | os.PathLike[str]) -> Mapping[str, Figure]:
    """Draw the figures of an experiment from its table; returned by the suffix of their names,
    ``""`` for a single one.

    Args:
        name: of the experiment, or the path of its folder or file.

    Raises:
        OptPipeError: if there is no such table, or it has no column or numbers to draw.
    """
    asked, path, name = name, _figure_file(name), _name(name)
    if path is None and name not in table_names(results):
        known = ", ".join(dict.fromkeys([*figure_names(), *table_names(results)]))
        raise OptPipeError(
            f"{asked}: no such figure, and no such table in {results}; known are {known}"
        )
    rows = load_table(results, name)
    if path is None:
        from .default_figure import draw_default

        return {"": draw_default(name, rows, load_manifest(results, name))}
    try:
        made = load_code(path).draw(rows)
    except KeyError as error:
        table = Path(results) / f"{name}.parquet"
        raise OptPipeError(
            f"{table}: the figure needs a column {error}; make the table again"
        ) from None
    return made if isinstance(made, Mapping) else {"": made}


def _figure_file(name: str) -> Path | None:
    file = experiment_file(name)
    here = file.with_name("figure.py")
    return here if file.name == FILE and here.exists() else figure_files().get(name)


def _name(name: str) -> str:
    """Return an experiment's name, also from the path of its folder or file."""
    file = experiment_file(name)
    return experiment_name(file) if file.name == FILE or file.is_file() else name


def save_figures(
    names: Sequence[str],
    results: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw and write figures as ``NAME.pdf`` and so on; without names, of every table there is.

    Raises:
        OptPipeError: as `draw`, or if there is nothing to draw.
    """
    from ..plot.style import save

    names = names or table_names(results)
    if not names:
        raise OptPipeError(f"{results}: no tables here; make some with optpipe-sim sweep")
    return [
        save(figure, Path(folder) / f"{_name(name)}{f'-{part}' if part else ''}.{ending}")
        for name in names
        for part, figure in draw(name, results).items()
        for ending in formats
    ]
