"""The bubble rates of the zero-bubble paper, cell by cell, published against simulated.

    python -m optpipe_sim.study.zb_tables

reads the profiles of tables 5 and 8 of "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241), each
with its published rates in its `meta`, and writes ``zb_tables.csv`` and ``zb_tables.md``.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import OptPipeError, ProfileError
from ..files import write_text
from ..profile import CostProfile
from ..profile_io import load_profile
from ..schedules import build
from ..schedules.greedy import device_limits
from ..sim import simulate

# The automatic schedules may beat the published rate, or miss it by this much; the others must
# show the same four decimals.
TOLERANCE = 0.0002
# Of the automatic ones, the memory: so many activations per device of the pipeline.
HELD = {"ZB-1p": 1, "ZB-2p": 2, "ZB-V": 2}
COLUMNS = (
    "table",
    "profile",
    "schedule",
    "published",
    "expected",
    "simulated",
    "difference",
    "match",
    "peak_bytes",
    "limit_bytes",
)
_GIB = 2**30


@dataclass(frozen=True)
class Cell:
    """One bubble rate of the tables.

    `published` is what the paper prints; `expected` what a simulation should give: the same, but
    for 1F1B-I (see the profiles' ``meta.deviations``). Peak and limit are those of the fullest
    device, in bytes, static ones included; limit is None where the schedule has none.
    """

    table: int
    profile: str
    model: str
    devices: int
    microbatches: int
    schedule: str
    published: float
    expected: float
    simulated: float
    peak_bytes: int
    limit_bytes: int | None

    @property
    def difference(self) -> float:
        """Simulated minus expected, as printed: to 4 decimals."""
        return round(round(self.simulated, 4) - self.expected, 4)

    @property
    def matches(self) -> bool:
        """Equal to 4 decimals; for the automatic schedules no worse than the tolerance, and within
        their memory."""
        if self.limit_bytes is not None and self.peak_bytes > self.limit_bytes:
            return False
        if self.schedule in HELD:
            return self.simulated <= self.expected + TOLERANCE
        return self.difference == 0


def cells_of(profile: CostProfile) -> list[Cell]:
    """The cells of one row of the tables: a profile with ``meta.published_bubble_rate``.

    Raises:
        ProfileError: where the meta of the profile lacks what a row needs.
    """
    for key in ("microbatches", "interleaved_chunks", "model", "published_bubble_rate"):
        if key not in profile.meta:
            raise ProfileError(f"{profile.name}: meta.{key}: missing")
    return [_cell(profile, schedule) for schedule in profile.meta["published_bubble_rate"]]


def _cell(profile: CostProfile, schedule: str) -> Cell:
    meta = profile.meta
    options = {"chunks": meta["interleaved_chunks"]} if schedule == "1F1B-I" else {}
    built = build(schedule.lower(), profile, meta["microbatches"], **options)
    trace = simulate(built, profile, enforce=False, engine="replay")
    held = HELD.get(schedule, 0)
    limits = device_limits(trace.profile, None, held * profile.devices)
    over = [peak - limit for peak, limit in zip(trace.peak_bytes, limits, strict=True)]
    fullest = over.index(max(over))
    published = meta["published_bubble_rate"][schedule]
    return Cell(
        table=5 if profile.chunks == 1 else 8,
        profile=profile.name,
        model=meta["model"]["parameters"],
        devices=profile.devices,
        microbatches=meta["microbatches"],
        schedule=schedule,
        published=published,
        expected=meta.get("full_edge_bubble_rate", {}).get(schedule, published),
        simulated=trace.bubble_rate,
        peak_bytes=trace.peak_bytes[fullest],
        limit_bytes=limits[fullest] if held else None,
    )


def table_profiles(folder: str | os.PathLike[str]) -> list[CostProfile]:
    """The profiles of both tables, in the tables' order.

    Raises:
        OptPipeError: where the folder has none.
    """
    paths = [path for kind in ("zb", "zbv") for path in Path(folder).glob(f"{kind}-*-p*-m*.yaml")]
    profiles = [load_profile(path) for path in paths if not path.stem.endswith("-offload")]
    if not profiles:
        raise OptPipeError(f"{folder}: no zb-*.yaml here; run this in the project's root")
    return sorted(profiles, key=lambda one: (one.chunks, one.devices, one.meta["microbatches"]))


def to_csv(cells: Iterable[Cell]) -> str:
    """One line per cell."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell in cells:
        rates = (cell.published, cell.expected, cell.simulated, cell.difference)
        writer.writerow(
            [cell.table, cell.profile, cell.schedule]
            + [f"{rate:.4f}" for rate in rates]
            + ["yes" if cell.matches else "no", cell.peak_bytes, cell.limit_bytes]
        )
    return stream.getvalue()


def summary(cells: Sequence[Cell]) -> str:
    """How many cells equal the paper's, are better, or are compared with another rate, in words."""
    other = [cell for cell in cells if cell.expected != cell.published]
    same = [cell for cell in cells if cell.expected == cell.published and cell.matches]
    equal = sum(round(cell.simulated, 4) == cell.published for cell in same)
    found = sum(cell.matches for cell in other)
    parts = [f"{equal} of {len(cells)} cells equal the published rate to 4 decimals"]
    if len(same) > equal:
        parts.append(
            f"{len(same) - equal} of the automatic schedules' is within the tolerance or better"
        )
    if other:
        parts.append(
            f"{found} of {len(other)} (1F1B-I) do not, by design, and equal the rate that follows from"
            " the edge on every microbatch"
        )
    wrong = sum(not cell.matches for cell in cells)
    return "; ".join([*parts, f"{wrong} are off"]) + "."


def to_markdown(cells: Sequence[Cell]) -> str:
    """A page for people: one table per published table."""
    lines = [
        "# Zero Bubble Pipeline Parallelism: published and simulated bubble rates",
        "",
        "Regenerate with `python -m optpipe_sim.study.zb_tables`. The rate is (longest device span -"
        " busy) / longest device span. 1F1B, 1F1B-I, ZB-H1 and ZB-H2 match when all four decimals are"
        f" equal; ZB-1p, ZB-2p and ZB-V when the rate is at most {TOLERANCE} above the published one"
        " and the peak is within their memory (p, 2p and p activations of a device's share).",
        "",
        "For 1F1B-I the expected rate is not the published one. The published figure lets only the"
        " first microbatch of each group of p wait for the message from the last device back to the"
        " first; a real run needs it for every microbatch, which takes p hops longer.",
        "",
        f"**{summary(cells)}**",
    ]
    for table in sorted({cell.table for cell in cells}):
        lines += [
            "",
            f"## Table {table}",
            "",
            "| model | p | m | schedule | published | expected | simulated | difference | match"
            " | peak GiB | limit GiB |",
            "|---|--:|--:|---|--:|--:|--:|--:|---|--:|--:|",
        ]
        for cell in cells:
            if cell.table == table:
                limit = "" if cell.limit_bytes is None else f"{cell.limit_bytes / _GIB:.2f}"
                lines.append(
                    f"| {cell.model} | {cell.devices} | {cell.microbatches} | {cell.schedule}"
                    f" | {cell.published:.4f} | {cell.expected:.4f} | {cell.simulated:.4f}"
                    f" | {cell.difference:+.4f} | {'yes' if cell.matches else 'no'}"
                    f" | {cell.peak_bytes / _GIB:.2f} | {limit} |"
                )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both files; 0 if every cell matches, 1 if not, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m optpipe_sim.study.zb_tables", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--profiles", default="experiments/profiles", help="default: %(default)s")
    parser.add_argument("--results", default="results", help="default: %(default)s")
    given = parser.parse_args(arguments)
    try:
        profiles = table_profiles(given.profiles)
        cells = [cell for profile in profiles for cell in cells_of(profile)]
        for name, text in (("csv", to_csv(cells)), ("md", to_markdown(cells))):
            print(write_text(Path(given.results) / f"zb_tables.{name}", text))
    except OptPipeError as error:
        print(error, file=sys.stderr)
        return 2
    missed = [cell for cell in cells if not cell.matches]
    for cell in missed:
        print(
            f"{cell.profile}, {cell.schedule}: {cell.simulated:.4f}, expected {cell.expected:.4f}",
            file=sys.stderr,
        )
    print(summary(cells))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
