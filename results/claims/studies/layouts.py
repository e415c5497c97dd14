"""What docs/trained-layouts.md and results/README.md say of layouts: the contest on layouts that people train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from experiments.expressiveness.pairs import ROOM
from experiments.layouts.figure import SEARCH, Contest, Row, contests
from results.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    every = contests(tables("layouts"))
    yield from _answer(every)
    yield from _drawn(every)
    for one in every:
        yield _line(one)


def _answer(every: Sequence[Contest]) -> Iterator[str]:
    gains = [median(one.gains) for one in every]
    first = every[0].seeds[0]
    toss, seeds = first["toss_up"], len(every[0].seeds)
    single = [gain for one in every for gain in one.gains]
    sure = sum(min(one.gains) > toss for one in every)
    yield (
        f"On {len(every)} published layouts the fastest plan without a search takes **{percent(median(gains))}** longer than the median of {seeds} searches"
        f" ({span(gains, percent)}): beyond the {percent(toss)} that the difference of two replays may be off with every seed in {sure}"
    )
    yield f"the fastest plan without a search takes **{percent(median(gains))}** longer (median of {len(every)} published layouts, each with {seeds} seeds)"
    users = sum(gain > toss for gain in single)
    worse = sum(gain < 0 for gain in single)
    yield (
        f"Of {len(single)} users, a seed each, {users} gain more than a toss-up, {worse} get a plan that is slower than the one without a search; the least lucky gains"
        f" {percent(min(single))}"
    )
    beside = [
        rule["iteration_ns"] / row["iteration_ns"] - 1
        for one in every
        if (rule := one.others["rules"]) is not None
        for row in one.seeds
    ]
    yield (
        f"Such a difference may be off by {percent(toss)}: of {len(single)} users, a seed each, {users} gain more than that ({sum(gain > toss for gain in beside)} if compared with published"
        f" schedules only, without AdaOffload), and {worse} get a slower plan; the least lucky gains {percent(min(single))}"
    )
    rules = [
        one for one in every if (rule := one.others["rules"]) is not None and rule is one.rival
    ]
    published = [
        rule["iteration_ns"] / one.ours_ns - 1
        for one in every
        if (rule := one.others["rules"]) is not None
    ]
    yield (
        f"Beside published schedules alone, without AdaOffload, that is {percent(median(published))} ({span(published, percent)}; one fits in {len(published)} of {len(every)})"
    )
    yield f"The fastest plan without a search is a published schedule in {len(rules)} and AdaOffload's in {len(every) - len(rules)}"
    gaps = [one.gap for one in every]
    yield f"The median plan is {span(gaps, percent)} above the bound for the chunks that were tried (median {percent(median(gaps))})"
    spreads = [
        max(times) / min(times) - 1
        for one in every
        if (times := [row["iteration_ns"] for row in one.seeds])
    ]
    yield f"the seeds of one layout differ by up to {percent(max(spreads))}"
    yield f"with {percent(ROOM, 0)} of memory left free"
    yield f"Every plan leaves {percent(ROOM, 0)} of the memory that driver and libraries leave"
    yield f"each method has {first['seconds']:g} s and one process"
    searched = [row for one in every for row in one.seeds]
    others = [row for one in every for row in one.others.values() if row is not None]
    shares = [row["cpu_s"] / row["point_s"] for row in (*searched, *others)]
    yield (
        f"The points ran two at a time on two cores, at a load of {_loads([*searched, *others])}, and had {span((min(share, 1.0) for share in shares), lambda share: percent(share, 0))} of the time of a core"
    )
    yield f"no plan took longer than {max(row['point_s'] for row in (*searched, *others)):.0f} s to make"


def _loads(rows: Sequence[Row]) -> str:
    loads = [row["load"] for row in rows]
    return f"{min(loads)} to {max(loads)} (median {median(loads):.1f})"


def _drawn(every: Sequence[Contest]) -> Iterator[str]:
    toss = every[0].seeds[0]["toss_up"]
    medians = [median(one.drawn_gains) for one in every]
    all_of = [gain for one in every for gain in one.drawn_gains]
    ahead = sum(gain > 0 for gain in all_of)
    count = len(every[0].seeds[0]["drawn_ns"])
    yield (
        f"Where costs are off ({count} draws, for which no plan was made) the fastest plan without a search takes {span(medians, percent)} longer in the median of a layout (median"
        f" {percent(median(medians))}); the searched plan is the faster one in {percent(ahead / len(all_of), 0)} of the draws, beyond a toss-up in"
        f" {percent(sum(gain > toss for gain in all_of) / len(all_of), 0)}, and slower by more than a toss-up in {percent(sum(gain < -toss for gain in all_of) / len(all_of), 0)}"
    )
    far, fewest = min((gain, one.pair) for one in every for gain in one.drawn_gains)
    yield f"in the worst draw, of `{fewest}`, it takes {percent(1 / (1 + far) - 1)} longer"
    lost = sorted((sum(gain < -toss for gain in one.drawn_gains) for one in every), reverse=True)
    yield f"{sum(lost[:2])} of these {sum(lost)} draws are of two layouts"
    close = 0.01
    yield f"within {percent(close, 0)} of the bound in {sum(one.gap <= close for one in every)} of {len(every)} layouts, {percent(max(one.gap for one in every))} above it at worst"
    losing = min(every, key=lambda one: median(one.gains))
    slower = [gain for gain in losing.gains if gain < 0]
    yield (
        f"The layout that speaks most against searching is, at the costs given, `{losing.pair}`, where the fastest plan without a search takes {span(losing.gains, percent)}"
        f" longer; it is the faster one with {len(slower)} of {len(losing.gains)} seeds"
    )
    worst = min(every, key=lambda one: median(one.drawn_gains))
    yield f"in the median draw it is `{worst.pair}`: {percent(median(worst.gains))} at the costs given, {percent(median(worst.drawn_gains))} in the draws"


def _line(one: Contest) -> str:
    rival = one.rival
    assert rival is not None
    row = sorted(one.seeds, key=lambda row: row["iteration_ns"])[len(one.seeds) // 2]
    uses = [
        word for word, key in (("offloads", "offloaded"), ("recomputes", "recomputed")) if row[key]
    ]
    method = rival["schedule"] if rival["method"] != SEARCH else ""
    return f"| `{one.pair}` | `{method}` | {span(one.gains, percent)} | {percent(median(one.drawn_gains))} | {' and '.join(uses) or 'neither'} | {percent(one.gap)} |"
