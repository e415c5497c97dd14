"""What README.md and results/README.md say of microbatch_size."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.microbatch_size.figure import joined
from optpipe_sim.study.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    table = tables("microbatch_size")
    rows = [row for row in joined(table) if row["fits"]]
    seeds = len({row["schedule"] for row in table if row["schedule"].startswith("optpipe")})
    effort = "one seed" if seeds == 1 else f"median of {seeds} seeds"

    def times(batch: int, start: str) -> dict[int, int]:
        """Makespan over the sequences per microbatch, where the schedule fits without a limit below
        the device's."""
        return {
            row["profile.estimate.microbatch"]: row["makespan_ns"]
            for row in rows
            if row["profile.meta.batch"] == batch
            and row["memory_limit"] is None
            and row["schedule"].split(":")[0] == start
        }

    many, few = 128, 32
    plain, ours = times(many, "1f1b"), times(many, "optpipe")
    best = min(ours.values())
    slower = {size: ns / best - 1 for size, ns in ours.items()}
    same = 0.02  # less than that is what seeds differ by
    near = [size for size in ours if slower[size] < same]
    assert min(plain, key=plain.__getitem__) == 1
    yield (
        f"Of {many} sequences per iteration, in all memory of the devices, 1F1B wants one per microbatch and takes"
        f" {percent(plain[4] / plain[1] - 1)} longer with {4}; this search ({effort}) is within {percent(same, 0)} of its best with {span(near)}, and takes"
        f" {percent(slower[8])} longer with {8} and {percent(slower[16])} with {16}, where 1F1B does not fit."
    )
    found, greedy = min(times(few, "optpipe").values()), min(times(few, "adaoffload").values())
    plain, interleaved, folded = (
        percent(min(times(few, name).values()) / found - 1) for name in ("1f1b", "1f1b-i", "zb-v")
    )
    yield (
        f"Of {few} sequences AdaOffload in two chunks takes {percent(greedy / found - 1)} longer than this search, ZB-V {folded}, interleaved 1F1B {interleaved} and 1F1B, which has one chunk,"
        f" {plain}, each with the sequences per microbatch that suit it."
    )
