"""What README.md and results/README.md say of train_switch."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from optpipe_sim.study.claims import Tables


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("train_switch")
    other = [row for row in rows if row["loss"] != row["loss_unpipelined"]]
    before, after = (
        median(row["makespan_ns"] for row in rows if row["usual"] and row["epoch"] == epoch) / 1e6
        for epoch in sorted({row["epoch"] for row in rows})
    )
    yield (
        f"A run of {len(rows)} steps on two CPU ranks switches from 1F1B to a solved schedule; its loss differs from the"
        f" unpipelined model's in {len(other)} of them. An iteration takes {before:.0f} ms before the switch and {after:.0f} ms"
        f" after it (medians): later on one rank is slowed down on purpose, and ranks and solver share two cores, so no gain can be seen."
    )
