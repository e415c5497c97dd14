"""What README.md and results/README.md say of train_switch."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from results.claims import Tables

SLOWED = 180  # the step from which on a rank is slowed down, in the page's command


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("train_switch")
    other = [row for row in rows if row["loss"] != row["loss_unpipelined"]]
    first, then = sorted({row["epoch"] for row in rows})

    def iteration(epoch: int, steps: range) -> float:
        """The median, ms."""
        found = [row for row in rows if row["usual"] and row["epoch"] == epoch]
        return median(row["makespan_ns"] for row in found if row["step"] in steps) / 1e6

    before = iteration(first, range(len(rows)))
    after, slowed = iteration(then, range(SLOWED)), iteration(then, range(SLOWED, len(rows)))
    yield (
        f"A run of {len(rows)} steps on two CPU ranks switches from 1F1B to a solved schedule; its loss differs from the"
        f" unpipelined model's in {len(other)} of them. An iteration takes {before:.0f} ms before the switch, {after:.0f} ms"
        f" after it, though less was predicted, and {slowed:.0f} ms once a rank is slowed down on purpose (medians). Ranks, copies and solver share two cores,"
        f" so that this says nothing of a gain."
    )
