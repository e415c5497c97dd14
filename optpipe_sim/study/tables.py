"""Results as files: ``NAME.parquet`` and ``NAME.csv`` hold the same table, ``NAME.manifest.json``
says what it was made of. All three are written whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import OptPipeError
from ..files import plain, read_mapping, write_together
from .tasks import Row

ENDINGS = (".parquet", ".csv", ".manifest.json")
HOW = "make it again with optpipe-sim sweep"


def save_table(
    folder: str | os.PathLike[str], name: str, rows: Sequence[Row], manifest: Mapping[str, Any]
) -> list[Path]:
    """Write the three files and return their paths.

    Raises:
        OptPipeError: where they cannot be written; those of before are then still there.
    """
    rows = normal(rows)
    contents = (
        _to_parquet(rows),
        to_csv(rows).encode(),
        _spaced(json.dumps(plain(dict(manifest)), indent=1)).encode(),
    )
    paths = [Path(folder) / f"{name}{ending}" for ending in ENDINGS]
    try:
        write_together(dict(zip(paths, contents, strict=True)))
    except OptPipeError as error:
        why = str(error).rpartition(": ")[2]
        raise OptPipeError(f"{paths[0]}: the results cannot be written: {why}") from None
    return paths


def _spaced(text: str) -> str:
    """Indented JSON with lists of numbers on a line of their own."""
    numbers = re.compile(r"\[\s+[-+.\deE]+(,\s+[-+.\deE]+)*\s+\]")
    return numbers.sub(lambda found: json.dumps(json.loads(found[0])), text) + "\n"


def load_table(folder: str | os.PathLike[str], name: str) -> list[Row]:
    """Return the rows of a table, every column in each; lists are as the tasks gave them.

    Raises:
        OptPipeError: where there is none, or the file is damaged.
    """
    path = Path(folder) / f"{name}.parquet"
    if not path.exists():
        raise OptPipeError(f"{path}: no such table; {HOW} experiments/{name}")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[Row] = pq.read_table(io.BytesIO(path.read_bytes())).to_pylist()
    except (pa.ArrowException, OSError) as error:
        why = (
            error.strerror if isinstance(error, OSError) and error.strerror else "not a whole table"
        )
        raise OptPipeError(f"{path}: cannot be read: {why} (truncated?); {HOW}") from None
    return [_unpacked(row) for row in rows]


def load_manifest(folder: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """Return the manifest of a table: its parameters, versions and points."""
    path = Path(folder) / f"{name}.manifest.json"
    if not path.exists():
        raise OptPipeError(f"{path}: no such file; {HOW} experiments/{name}")
    data: dict[str, Any] = plain(read_mapping(path))
    return data


def table_names(folder: str | os.PathLike[str]) -> list[str]:
    """Return the tables in a folder."""
    return sorted(path.stem for path in Path(folder).glob("*.parquet"))


def normal(rows: Sequence[Row]) -> list[Row]:
    """Rows with the same columns and a single type in each, so that both files can hold them:
    lists and mappings as JSON, whole numbers among others as floats, empty texts as None."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    made = [{key: _cell(row.get(key)) for key in columns} for row in rows]
    for key in columns:
        kinds = {type(row[key]) for row in made if row[key] is not None}
        if len(kinds) > 1:
            kind: Any = float if kinds == {int, float} else str
            for row in made:
                row[key] = None if row[key] is None else kind(row[key])
    return made


def _cell(value: Any) -> Any:
    value = plain(value)
    if isinstance(value, dict | list):
        return json.dumps(value)
    return None if value == "" else value


def _unpacked(row: Row) -> Row:
    """Lists and mappings of a row as they were."""
    made = dict(row)
    for key, value in row.items():
        if isinstance(value, str) and value[:1] in ("[", "{"):
            try:
                made[key] = json.loads(value)
            except ValueError:
                continue  # a text that happens to begin so
    return made


def to_csv(rows: Sequence[Row]) -> str:
    """Normal rows as CSV; numbers so that they read back exactly."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(rows[0] if rows else [])
    for row in rows:
        writer.writerow([_text(value) for value in row.values()])
    return stream.getvalue()


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _to_parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), stream, compression="zstd")
    return stream.getvalue()
