"""What README.md and results/README.md say of margins."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.margins.figure import losses
from results.claims import Tables, percent, span

WORDS = {"1x 1f1b": "With 1F1B's memory", "0.5x 1f1b": "With half of its activations"}


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("margins")
    within = [row for row in rows if 0 < row["slower"] <= row["margin"]]
    held = sum(row["cost_ns"] <= row["planned_ns"] for row in within)
    found = losses(rows)
    for limit, words in WORDS.items():
        own = {key[1:]: one.median for key, one in found.items() if key[0] == limit}
        margins = sorted({margin for margin, _ in own if margin})
        said = [(limit, *pair) for m in margins for pair in ((0.0, m), (m, m), (m, 0.0))]
        apart = 100 * max(found[key].most - found[key].least for key in said)
        bare = ", ".join(percent(own[0.0, margin]) for margin in margins)
        assert all(
            own[margin, margin] == 0 for margin in margins
        )  # the base is the best median of all margins
        costs = ", ".join(percent(own[margin, 0.0]) for margin in margins)
        yield (
            f"{words}, a plan without a margin loses {bare} where copies are {span(margins, lambda m: percent(m, 0))} slower,"
            f" and none of the {len(margins) + 1} plans (margins of {', '.join(percent(margin, 0) for margin in (0, *margins))}) is faster than the one with a margin of as much; where they are not slower, that margin costs {costs};"
            f" seeds differ by up to {apart:.1f} points"
        )
    yield (
        f"Where copies are slower by no more than the margin, {held} of {len(within)} runs take no more than was"
        f" planned"
    )
