"""Tables with expensive cells: finished cells are kept in a CSV file and not run again."""

from __future__ import annotations

import csv
import datetime
import io
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optpipe_sim.errors import OptPipeError
from optpipe_sim.files import read_text, write_text
from optpipe_sim.study.versions import versions

Row = dict[str, str]
PROVENANCE = ("date", "load")  # of a cell: the day, and the machine's load by other processes


def finish_cells(
    path: str | os.PathLike[str],
    cells: Sequence[Mapping[str, Any]],
    compute: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    *,
    fresh: bool = False,
    progress: Callable[[int, int, Row], None] = lambda done, of, row: None,
) -> list[Row]:
    """Return the row of each cell, from the file if it is there, else computed.

    The file is rewritten, whole or not at all, after each computed cell, so a killed run
    continues where it was. Rows of other cells stay in it.

    Args:
        path: a CSV file; it need not exist.
        cells: what identifies a cell (all with the same keys): the first columns.
        compute: the other columns of a cell.
        fresh: ignore the rows in the file.
        progress: called after each computed cell with the number done, the total, and its row.

    Raises:
        OptPipeError: where the file has other columns than the cells, or two cells are the same.
    """
    if not cells:
        return []
    keys = tuple(cells[0])
    wanted = [tuple(str(cell[key]) for key in keys) for cell in cells]
    if len(set(wanted)) < len(wanted):
        raise OptPipeError("cells: two of them are the same")
    rows = {} if fresh else _read(path, keys)
    for done, (cell, key) in enumerate(zip(cells, wanted, strict=True), 1):
        if key in rows:
            continue
        busy = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
        row = {name: str(value) for name, value in {**cell, **compute(cell)}.items()}
        rows[key] = {**row, "date": datetime.date.today().isoformat(), "load": busy}
        order = [*(one for one in wanted if one in rows), *(k for k in rows if k not in wanted)]
        write_text(path, to_csv([rows[one] for one in order]))
        progress(done, len(cells), rows[key])
    return [rows[key] for key in wanted]


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """Return the rows of a CSV file; none without a file."""
    if not Path(path).exists():
        return []
    return list(csv.DictReader(io.StringIO(read_text(path))))


def _read(path: str | os.PathLike[str], keys: tuple[str, ...]) -> dict[tuple[str, ...], Row]:
    rows = read_rows(path)
    for row in rows:
        if not set(keys) <= set(row) or None in row.values():
            raise OptPipeError(
                f"{path}: expected a table with the columns {', '.join(keys)};"
                " move it away, or start afresh"
            )
    return {tuple(row[key] for key in keys): row for row in rows}


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as CSV; the columns are those of the first row, then further ones of others."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def to_markdown(head: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The lines of a table: `head` maps columns of the rows to headings; columns whose
    entries are all numbers are aligned to the right."""

    def number(text: str) -> bool:
        return text.strip("+-=%. ").replace(".", "").isdigit() or not text

    right = {key: all(number(row.get(key, "")) for row in rows) for key in head}
    return [
        f"| {' | '.join(head.values())} |",
        f"|{'|'.join('--:' if right[key] else '---' for key in head)}|",
        *(f"| {' | '.join(row.get(key, '') for key in head)} |" for row in rows),
    ]


def provenance(rows: Sequence[Row]) -> str:
    """Describe when and with which versions the rows were measured."""
    days = sorted({row["date"] for row in rows})
    loads = [float(row["load"]) for row in rows if row.get("load")]
    words = [f"Measured {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "")]
    words.append(f"on {os.cpu_count()} cores ({platform.machine()})")
    if loads:
        words.append(f"with a load of {min(loads):.1f} to {max(loads):.1f} when a cell began")
    found = versions(("numpy", "numba", "ortools", "highspy", "pyomo", "gurobipy"))
    tools = [f"{name} {number}" for name, number in found.items() if number]
    return f"{' '.join(words)}; {', '.join(tools)}."
