"""What results/README.md says of seq1f1b."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from optpipe_sim.study.claims import Tables, percent


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
        f" {percent(max(times))} at worst."
    )
