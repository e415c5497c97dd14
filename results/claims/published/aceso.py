"""What results/README.md says of aceso."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from results.claims import Tables, percent


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("aceso")
    errors = {
        links: [row["error"] for row in rows if (row["links"], row["times"]) == (links, "stages")]
        for links in ("blocking", "latency")
    }
    size = {links: median(map(abs, found)) for links, found in errors.items()}
    worst = {links: max(map(abs, found)) for links, found in errors.items()}
    yield (
        f"Replayed from their own stage times, {len(errors['blocking'])} measured 1F1B runs with"
        f" recomputation come out {percent(size['blocking'])} off in the median and"
        f" {percent(worst['blocking'])} at worst where messages keep the sender busy"
        f" (`links: blocking`), {percent(size['latency'])} and {percent(worst['latency'])} where they do not."
    )
    summed, free = (
        [row["error"] for row in rows if (row["links"], row["times"]) == (links, "tables")]
        for links in ("blocking", "latency")
    )
    yield (
        f"From tables of their ops, timed one by one, and the flags of what recomputes, the {len(summed)}"
        f" iterations come out {percent(median(map(abs, summed)))} off in the median and"
        f" {percent(max(map(abs, summed)))} at worst with such messages, {percent(median(map(abs, free)))} in the"
        " median with others."
    )
