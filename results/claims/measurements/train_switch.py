"""What README.md and results/README.md say of train_switch."""

from __future__ import annotations

from collections.abc import Iterator

from optpipe_sim.study.claims import Tables


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("train_switch")
    other = [row for row in rows if row["loss"] != row["loss_unpipelined"]]
    yield (
        f"A run of {len(rows)} steps on two CPU ranks switches from 1F1B to a solved schedule; its loss differs from the"
        f" unpipelined model's in {len(other)} of them."
    )
