"""What README.md and results/README.md say of microbatch_size."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.microbatch_size.figure import joined
from results.claims import Tables, percent, span

TIGHT = "44GiB"


def sentences(tables: Tables) -> Iterator[str]:
    table = tables("microbatch_size")
    rows = [row for row in joined(table) if row["fits"]]
    seeds = len({row["schedule"] for row in table if row["schedule"].startswith("optpipe")})
    effort = "one seed" if seeds == 1 else f"median of {seeds} seeds"

    def times(batch: int, start: str, limit: str | None = None) -> dict[int, int]:
        """Makespan over the sequences per microbatch, where the schedule fits in the device's memory or below a limit."""
        return {
            row["profile.estimate.microbatch"]: row["makespan_ns"]
            for row in rows
            if row["profile.meta.batch"] == batch
            and row["memory_limit"] == limit
            and row["schedule"].split(":")[0] == start
        }

    many, few = 128, 32
    plain, ours = times(many, "1f1b"), times(many, "optpipe")
    best = min(ours.values())
    slower = {size: ns / best - 1 for size, ns in ours.items()}
    same = 0.02  # less than that is what seeds differ by
    near = [size for size in ours if slower[size] < same]
    assert min(plain, key=plain.__getitem__) == 1
    assert not {8, 16} & {*plain}
    tight = times(many, "optpipe", TIGHT)
    least = min(tight.values())
    own = span(size for size, ns in tight.items() if ns / least - 1 < same)
    model, devices = table[0]["profile"].split("-h100")[0], len(rows[0]["peak_bytes_per_device"])
    yield (
        f"`{model}` on {devices} H100s. Of {many} sequences per iteration, in all memory of the devices, 1F1B is fastest with one per microbatch and takes {percent(plain[4] / plain[1] - 1)} longer with {4};"
        f" with {8} or more it does not fit. This search ({effort}) is within {percent(same, 0)} of its best with {span(near)}, and takes {percent(slower[8])} longer with {8} and"
        f" {percent(slower[16])} with {16}; in {TIGHT.replace('GiB', ' GiB')} it is within {percent(same, 0)} of its best with {own}, and takes {percent(tight[4] / least - 1)} longer with {4}."
    )
    said = {}
    for batch in (few, many):
        found = min(times(batch, "optpipe").values())
        said[batch] = [
            percent(min(times(batch, name).values()) / found - 1)
            for name in ("adaoffload", "zb-v", "1f1b-i", "1f1b")
        ]
    greedy, folded, interleaved, one = said[few]
    yield (
        f"Each with the sequences per microbatch that suit it, AdaOffload in two chunks takes {greedy} longer than this search in any number of chunks, ZB-V {folded}, interleaved 1F1B in two {interleaved} and"
        f" 1F1B {one}, of {few} sequences; of {many} sequences {', '.join(said[many][:-1])} and {said[many][-1]}."
    )
