"""What results/README.md says of lengths: the order of microbatches that differ, and how sequences are packed."""

from __future__ import annotations

from collections.abc import Iterator
from operator import truediv
from statistics import median

from experiments.lengths.figure import BOUND, DATA, GIVEN, SEARCHED, times
from experiments.lengths.task import DEVICES, MODEL
from results.claims import Tables, percent, span

Key = tuple[str, str, str]  # data, schedule, packing


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("lengths")
    given, searched, bound = (times(rows, key) for key in (GIVEN, SEARCHED, BOUND))

    def ratios(schedule: str, packing: str, beside: dict[Key, list[float]]) -> list[float]:
        """The time in the best order over another one, of each kind of data: the medians of its draws."""
        keys = [(kind, schedule, packing) for kind in DATA]
        return [median(map(truediv, searched[key], beside[key])) for key in keys]

    def saved(schedule: str, packing: str) -> str:
        """By how much the best order is faster than the one given."""
        return span((1 - ratio for ratio in ratios(schedule, packing, given)), percent)

    seeds = len({row["seed"] for row in rows})
    yield (
        f"`{MODEL}` on {DEVICES} H100s, {rows[0]['sequences']} sequences ({'; or '.join(DATA.values())}; {seeds} draws): with a sequence per microbatch the best"
        f" order found takes {saved('1f1b', 'one each')} less than the order drawn under 1F1B,"
        f" {saved('zb-h1', 'one each')} under ZB-H1 and {saved('zb-v', 'one each')} under ZB-V; with sequences packed as they come"
        f" {saved('1f1b', 'as drawn')}, {saved('zb-h1', 'as drawn')} and {saved('zb-v', 'as drawn')}, and with those packed by best fit"
        f" {saved('1f1b', 'best fit')}, {saved('zb-h1', 'best fit')} and {saved('zb-v', 'best fit')} (medians of the two kinds)."
    )
    unpacked = []
    for kind in DATA:
        best = min(median(searched[kind, "1f1b", one]) for one in ("best fit", "by time"))
        unpacked.append(1 - median(searched[kind, "1f1b", "one each"]) / best)
    assert min(unpacked) > 0
    yield (
        f"In their best order sequences need no packing: one per microbatch, 1F1B takes {span(unpacked, percent)} less than with the best of the packings,"
        f" and ZB-V is {span((ratio - 1 for ratio in ratios('zb-v', 'one each', bound)), percent)} above its bound. In the order drawn packing is worth the most: by best fit 1F1B takes"
        f" {span((1 - median(given[kind, '1f1b', 'best fit']) / median(given[kind, '1f1b', 'one each']) for kind in DATA), percent)} less than with one each."
    )
    yield "The replays are ideal and without a memory limit, and no loader has been asked whether it can deliver that order."
