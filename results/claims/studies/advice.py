"""What results/README.md says of advice."""

from __future__ import annotations

from collections.abc import Iterator

from optpipe_sim.study.claims import Row, Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = list(tables("advice"))
    slower = [row["iteration_ns"] / row["free_ns"] - 1 for row in rows if row["free_ns"]]
    over = [row["iteration_ns"] / row["bound_ns"] - 1 for row in rows if row["bound_ns"]]
    yield (
        f"`advise --family megatron` answers {len(rows)} questions of models with up to"
        f" {max(row['gpus'] for row in rows):,} GPUs in {span((row['seconds'] for row in rows), '{:.0f}'.format)} s each (one run, 2 cores):"
        f" its plans take {span(slower, percent)} longer than the best found on the same split without the family, and"
        f" {span(over, percent)} longer than the bound."
    )
    yield from map(_line, rows)


def _line(row: Row) -> str:
    """A line of the table, a question each."""
    sizes = ", ".join(
        f"{name} {row[name]}" for name in ("pp", "tp", "cp", "ep", "dp") if row[name] > 1
    )
    layers = row["layers"]
    uneven = f"; layers {', '.join(map(str, layers))}" if len(set(layers)) > 1 else ""
    time, free, bound = (row[key] / 10**9 for key in ("iteration_ns", "free_ns", "bound_ns"))
    doubt = "" if row["plausible"] else " (not plausible)"
    return (
        f"| {row['model']} | {row['gpus']} | {row['global_batch']} | {row['seq']} | {sizes}; `{row['schedule']}`{uneven}"
        f" | {time:.2f} s | {percent(row['mfu'])}{doubt} | {row['limited_by']} {percent(row['limited_share'], 0)}"
        f" | {free:.2f} s | {bound:.2f} s |"
    )
