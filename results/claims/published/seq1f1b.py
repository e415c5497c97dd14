"""What results/README.md says of seq1f1b."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from statistics import median

from optpipe_sim.study.claims import Row, Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("seq1f1b")
    memory = _errors(rows, "memory_error")
    times = _errors(rows, "time_error")
    known = [row for row in rows if row["measured_oom"] is not None and row["reserved_gib"]]
    agree = sum(row["out_of_memory"] == row["measured_oom"] for row in known)
    yield (
        f"Each of Seq1F1B's runs predicted from all others, with numbers fitted per setup and the peaks of replays over slices:"
        f" memory is {percent(median(memory))} off in the median of {len(memory)} and {percent(max(memory))} at worst, and {agree} of"
        f" {len(known)} cells run out of memory or not as predicted; times are {percent(median(times))} off in the median of"
        f" {len(times)}, {percent(max(times))} at worst."
    )
    yield _fused(rows)
    yield _fullest(rows)


def _errors(rows: list[Row], key: str) -> list[float]:
    return [abs(row[key]) for row in rows if row[key] is not None]


def _fused(rows: list[Row]) -> str:
    """Where operators are fused, and elsewhere; and which of two runs takes longer."""
    fused, others = (
        max(
            _errors(
                [row for row in rows if row["table"].startswith("fused") == one], "memory_error"
            )
        )
        for one in (True, False)
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


def _fullest(rows: list[Row]) -> str:
    """With many slices the last stage, which always holds a whole sequence and its logits, is the fullest."""
    most = max(row["slices"] for row in rows)
    many = [row for row in rows if row["slices"] == most and row["reserved_gib"]]
    assert all(row["measured_gib"] is None for row in many)
    last = [row for row in many if row["last_gib"] > row["first_gib"]]
    more = [row["last_gib"] / row["first_gib"] - 1 for row in last]
    return (
        f"With {most} slices, of which no cell is given here, the last stage is predicted to be the fullest in {len(last)} of {len(many)} cells,"
        f" {span(more, percent)} above the first: it holds a whole sequence whatever the slices, and the logits."
    )


def _ordered(pairs: list[tuple[Row, Row]]) -> int:
    return sum(
        (one["iteration_s"] - other["iteration_s"]) * (one["measured_s"] - other["measured_s"]) > 0
        for one, other in pairs
    )
