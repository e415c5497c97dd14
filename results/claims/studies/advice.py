"""What README.md and results/README.md say of advice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from statistics import median

from results.claims import Row, Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = list(tables("advice"))
    over = [row["iteration_ns"] / row["bound_ns"] - 1 for row in rows]
    questions = [
        sorted(same, key=lambda row: row["iteration_ns"])
        for _, same in groupby(rows, lambda row: (row["model"], row["gpus"]))
    ]
    same_plan = sum(len({row["command"] for row in runs}) == 1 for runs in questions)
    free = [[row["free_ns"] for row in runs] for runs in questions]
    slower = [
        median(row["iteration_ns"] for row in runs) / median(times) - 1
        for runs, times in zip(questions, free, strict=True)
    ]
    apart = max(max(times) / min(times) - 1 for times in free)
    yield (
        f"`advise --family megatron` answers {len(questions)} questions with up to"
        f" {max(row['gpus'] for row in rows):,} GPUs in"
        f" {span((row['seconds'] for row in rows), '{:.0f}'.format)} s each, with"
        f" {len(questions[0])} seeds: its plans take {span(slower, percent)} longer than the best"
        f" found on the same split without the family (medians; in {slower.count(0)} of them that search found nothing better than the family's plan), and {span(over, percent)} longer than the"
        f" bound. Every seed gives the same plan in {same_plan} of {len(questions)}; without the"
        f" family seeds differ by up to {percent(apart)}."
    )
    yield f"For layouts that `advise` chose {percent(median(slower))} (median of {len(slower)} questions, in {slower.count(0)} of which nothing better was found)"
    for runs in questions:
        yield _line({**runs[len(runs) // 2], "free_ns": median(row["free_ns"] for row in runs)})


def _line(row: Row) -> str:
    """A line of the table, the median run of a question each."""
    sizes = [f"{name} {row[name]}" for name in ("pp", "tp", "cp", "ep", "dp") if row[name] > 1]
    runs = [(count, len(list(same))) for count, same in groupby(row["layers"])]
    layers = ", ".join(
        f"{number} x {count}" if number > 1 else f"{count}" for count, number in runs
    )
    time, free, bound = (
        f"{row[key] / 10**9:.2f} s" for key in ("iteration_ns", "free_ns", "bound_ns")
    )
    doubt = "" if row["plausible"] else " (not plausible)"
    return (
        f"| {row['model']} | {row['gpus']} | {row['global_batch']} | {row['seq']}"
        f" | {', '.join(sizes)}; v {row['chunks']}; `{row['schedule']}` | {layers} | {time}"
        f" | {percent(row['mfu'])}{doubt} | {row['limited_by']} {percent(row['limited_share'], 0)}"
        f" | {free} | {bound} |"
    )
