"""The activation log of torchtitan's graph_trainer: what each layer saves, recomputes and offloads, in bytes.

The listing that torchtitan/experiments/graph_trainer/log_activation_memory_policy.py writes at debug
level (commit b5bcd76), once for each traced graph: of the whole model, or of a stage of a pipeline and
one microbatch.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import OptPipeError
from ...files import read_log_text

KEPT, RECOMPUTED, OFFLOADED = "kept", "recomputed", "offloaded"
_WAYS = {
    "SAVE": KEPT,
    "SAVE*": KEPT,
    "RECOMPUTE": RECOMPUTED,
    "RECOMPUTE!": RECOMPUTED,
    "OFFLOAD": OFFLOADED,
}
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_GROUP = re.compile(
    r"\[(?:layers? (\d+)(?:-(\d+))?|(non-layer))\](?: \(x(\d+), same pattern\))? \((\d+) activations, "
)
_ROW = re.compile(r"\s{2}\d+\s+(?:(\d+(?:\.\d+)?) (B|KiB|MiB|GiB)|(symbolic))\s+(\S+)\s+(\S+)\s")
_TOTAL = re.compile(r"Total: (\d+) activations, ")


@dataclass(frozen=True)
class LayerGroup:
    """Layers with the same activations.

    Attributes:
        first: the number of the first one; None: what is in no layer. `count`: how many.
        tensors: of one layer. `bytes_by_way`: of one layer, for kept, recomputed and offloaded.
        symbolic: tensors of unknown size.
    """

    first: int | None
    count: int
    tensors: int
    bytes_by_way: dict[str, int]
    symbolic: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "first": self.first,
            "layers": self.count,
            "tensors": self.tensors,
            **{
                f"{way}_bytes": self.bytes_by_way.get(way, 0)
                for way in (KEPT, RECOMPUTED, OFFLOADED)
            },
            "symbolic": self.symbolic,
        }


def read_activations(path: str | os.PathLike[str]) -> list[list[LayerGroup]]:
    """Return the groups of layers of each listing in a log. Sizes are as the log rounds them, to three digits.

    Raises:
        OptPipeError: names the file and the line; for a listing that is cut off, and a log without one.
    """
    listings: list[list[LayerGroup]] = []
    groups: list[LayerGroup] = []
    rows: list[tuple[str, int | None]] = []
    head: re.Match[str] | None = None
    for number, line in enumerate(read_log_text(path).splitlines(), 1):
        where = f"{path}: line {number}"
        if head is not None and (row := _ROW.match(line)):
            rows.append(_tensor(row, where))
        elif head is not None and not line.strip():
            groups.append(_group(head, rows, where))
            head, rows = None, []
        elif found := _GROUP.match(line):
            head, rows = found, []
        elif found := _TOTAL.match(line):
            if int(found[1]) != sum(one.tensors * one.count for one in groups):
                raise OptPipeError(
                    f"{where}: {found[1]} activations in all, but the layers before have others: lines are missing"
                )
            listings.append(groups)
            groups = []
    if head is not None or groups:
        raise OptPipeError(f"{path}: its last listing is cut off: no line Total: ...")
    if not listings:
        raise OptPipeError(
            f"{path}: no listing of activations; graph_trainer writes it at debug level, as the artifact"
            " activation_memory_policy"
        )
    return listings


def _tensor(row: re.Match[str], where: str) -> tuple[str, int | None]:
    way = _WAYS.get(row[5])
    if way is None:
        raise OptPipeError(f"{where}: policy {row[5]!r} is not one of {', '.join(_WAYS)}")
    return way, None if row[3] else round(float(row[1]) * _UNITS[row[2]])


def _group(head: re.Match[str], rows: list[tuple[str, int | None]], where: str) -> LayerGroup:
    if len(rows) != int(head[5]):
        raise OptPipeError(
            f"{where}: {len(rows)} of {head[5]} activations of {head[0].split(']')[0]}] could be read"
        )
    sizes: Counter[str] = Counter()
    for way, size in rows:
        sizes[way] += size or 0
    first = None if head[3] else int(head[1])
    return LayerGroup(
        first, int(head[4] or 1), len(rows), dict(sizes), sum(size is None for _, size in rows)
    )


def notes(listings: list[list[LayerGroup]]) -> Iterator[str]:
    """Yield what the listing does not say."""
    yield "times of ops: the listing has none"
    yield "what a backward needs beside saved tensors, and the allocator's rounding: not in it"
    symbolic = sum(one.symbolic * one.count for groups in listings for one in groups)
    if symbolic:
        yield f"{symbolic} tensors of symbolic shape: their bytes are not known"
