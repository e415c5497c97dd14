"""What README.md and results/README.md say of costs_runs."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from optpipe_sim.study.claims import Tables, percent


def sentences(tables: Tables) -> Iterator[str]:
    rows = list(tables("costs_runs"))

    def told(machine: str, kind: str, source: str) -> str:
        errors = [
            abs(row["error"])
            for row in rows
            if (row["machine"], row["kind"], row["role"]) == (machine, kind, "check")
            and row["source"].startswith(source)
        ]
        return f"{percent(median(errors))} ({percent(max(errors))})"

    mosaic = "MosaicML"
    yield (
        "Against whole training runs of others, median (worst):"
        f" {told('a100-80gb-megatron', 'dense', mosaic)} of MosaicML's on A100s,"
        f" {told('h100-sxm', 'dense', mosaic)} of theirs on H100s,"
        f" {told('h100-sxm', 'dense', 'Meta')} of Llama 3's,"
        f" {told('b200-sxm', 'dense', 'SimuMax')} of SimuMax's dense ones on B200s and"
        f" {told('b200-sxm', 'experts', 'SimuMax')} of those with experts,"
        f" {told('h100-sxm', 'experts', 'NVIDIA Megatron-Bridge')} of Megatron-Bridge's with experts in"
        " fp8 on H100s"
    )
