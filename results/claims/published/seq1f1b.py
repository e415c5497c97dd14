"""What results/README.md says of seq1f1b."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from statistics import median

from optpipe_sim.study.claims import Row, Tables, percent


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("seq1f1b")
    memory = [
        abs(row["memory_error"])
        for row in rows
        if row["memory_role"] == "check" and row["memory_error"] is not None
    ]
    times = [abs(row["time_error"]) for row in rows if row["time_role"] == "check"]
    known = [row for row in rows if row["measured_oom"] is not None]
    agree = sum(row["out_of_memory"] == row["measured_oom"] for row in known)
    yield (
        f"From two cells of each table, replays over slices predict the memory of {len(memory)} other runs of Seq1F1B"
        f" {percent(median(memory))} off in the median and {percent(max(memory))} at worst, and which of {len(known)} cells run"
        f" out of memory in {agree}; the times of {len(times)} other runs {percent(median(times))} off in the median,"
        f" {percent(max(times))} at worst (that the overhead of a slice grows with the sequence was seen in the same runs)."
    )
    yield _fused(rows)


def _fused(rows: list[Row]) -> str:
    """Where operators are fused, and elsewhere; and which of two runs takes longer."""
    checked = [
        row for row in rows if row["memory_role"] == "check" and row["memory_error"] is not None
    ]
    fused, others = (
        max(
            abs(row["memory_error"])
            for row in checked
            if row["table"].startswith("fused") == is_fused
        )
        for is_fused in (True, False)
    )
    pairs = [
        pair
        for pair in combinations([row for row in rows if row["measured_s"] is not None], 2)
        if pair[0]["table"] == pair[1]["table"]
    ]
    alike = [
        (one, other)
        for one, other in pairs
        if all(one[key] == other[key] for key in ("sequence", "microbatches"))
    ]
    return (
        f"Memory is at most {percent(fused)} off where operators are fused, and {percent(others)} elsewhere; of two runs of a"
        f" table the one predicted to take longer does so in {_ordered(pairs)} of {len(pairs)} pairs, and in {_ordered(alike)} of"
        f" the {len(alike)} that differ in slices only."
    )


def _ordered(pairs: list[tuple[Row, Row]]) -> int:
    return sum(
        (one["iteration_s"] - other["iteration_s"]) * (one["measured_s"] - other["measured_s"]) > 0
        for one, other in pairs
    )
