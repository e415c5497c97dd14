"""What results/README.md says of seq1f1b."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from statistics import median

from experiments.seq1f1b.estimated import reserved
from experiments.seq1f1b.task import Memory, memory_of, runs
from results.claims import Row, Tables, percent, span


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
    yield _most(rows)
    yield _estimated()
    yield _undivided(memory_of(runs()))


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


def _most(rows: list[Row]) -> str:
    """Where nothing judges a prediction."""
    most = max(row["slices"] for row in rows if row["measured_s"] is not None)
    return f"All of this is where the numbers are fitted: in the same setups, and in up to {most} slices. Nothing here judges what is predicted for more"


def _estimated() -> str:
    """What `estimate` says of the memory of the logs' runs, in which nothing is fitted."""
    found = list(reserved())
    whole = [ratio for one in found if one.slices == 1 for ratio in one.ratios[:-1]]
    cut = [ratio for one in found if one.slices > 1 for ratio in one.ratios[:-1]]
    last = [one.ratios[-1] for one in found]
    return (
        f"`estimate`, in which nothing is fitted to them, has {span(whole, percent)} of the memory that stages of whole sequences reserved (softmax attention, all stages but the last), and"
        f" {span(cut, percent)} where sequences are in {span(sorted({one.slices for one in found if one.slices > 1}), str)} slices; of the last stage, which has the logits, {span(last, percent)}"
    )


def _undivided(fitted: Memory) -> str:
    """What slices do not divide, as a share of what a stage holds of a microbatch."""
    shares = {
        kernels: [
            parts[2] / (parts[1] / setup.pp)
            for setup, parts in fitted.stages.items()
            if setup.attention == "linear" and setup.kernels == kernels
        ]
        for kernels in ("plain", "fused")
    }
    return f"Slices do not divide all of it: what the fit says of stages with unfused kernels is {span(shares['plain'], '{:.1f}'.format)} times what a stage keeps of a microbatch, and {max(shares['fused'][0], 0):.1f} times where they are fused"


def _ordered(pairs: list[tuple[Row, Row]]) -> int:
    return sum(
        (one["iteration_s"] - other["iteration_s"]) * (one["measured_s"] - other["measured_s"]) > 0
        for one, other in pairs
    )
