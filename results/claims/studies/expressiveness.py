"""What docs/price-of-expressiveness.md and results/README.md say of expressiveness: the best plans of two frameworks beside the best without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from experiments.expressiveness.figure import LOOKS, OPTIONS, drawn_ratio, gain, pressed, price
from experiments.expressiveness.pairs import MOST, MOST_PER_DEVICE, ROOM
from results.claims import Row, Tables, percent, span

CLOSE = 0.01


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("expressiveness")
    yield from _prices(rows)
    yield from _options(rows)
    yield from _drawn(rows)
    yield from _limits(rows)
    yield _row(rows)
    yield from _machines(rows)


def _known(values: Sequence[float | None]) -> list[float]:
    return [one for one in values if one is not None]


def _all(rows: Sequence[Row], kind: str) -> list[float]:
    return _known([price(row, kind) for row in rows])


def _prices(rows: Sequence[Row]) -> Iterator[str]:
    toss = rows[0]["toss_up"]
    for kind, (label, *_) in LOOKS.items():
        found = _all(rows, kind)
        unfit = len(rows) - len(found)
        beyond = sum(one > toss for one in found)
        yield (
            f"{label}'s best plan takes **{percent(median(found))}** longer than the best found without a framework (median of {len(found)} of {len(rows)} pairs;"
            f" {span(found, percent)}), in {beyond} of them more than the {percent(toss)} that a replayed difference may be off"
        )
        if unfit:
            yield f"{label} has no plan that fits in {unfit}"
    gaps = [row["free_ns"] / row["bound_ns"] - 1 for row in rows if row["free_ns"]]
    close = sum(one <= CLOSE for one in gaps)
    yield (
        f"The best found without a framework is {span(gaps, percent)} above the bound on all schedules of the cuts that it covers (median {percent(median(gaps))}),"
        f" within {percent(CLOSE, 0)} in {close} of {len(gaps)}"
    )


def _row(rows: Sequence[Row]) -> str:
    lost = percent(median(_all(rows, "megatron")))
    return f"it takes **{lost}** longer (median of {len(rows)} published layouts)"


def _machines(rows: Sequence[Row]) -> Iterator[str]:
    """What is left of it on GPUs that are not A100s."""
    old = [row for row in rows if row["machine"].startswith("a100")]
    new = [row for row in rows if row not in old]
    tight = [sum(pressed(row) for row in some) for some in (old, new)]
    lost = percent(median(_all(new, "megatron")))
    yield (
        f"Memory is scarce on the A100s of older papers: {tight[0]} of the {sum(tight)} pairs in which Megatron-LM's plan recomputes are theirs. On H100s and newer GPUs it recomputes in {tight[1]} of"
        f" {len(new)}, and takes {lost} longer (median of these {len(new)})"
    )
    yield f"on H100s and newer GPUs {lost}"


def _options(rows: Sequence[Row]) -> Iterator[str]:
    tight = [row for row in rows if pressed(row)]
    roomy = [row for row in rows if not pressed(row)]
    for option, (base, label) in OPTIONS.items():
        beyond = sum((drawn_ratio(row, base, option) or 0.0) > row["toss_up"] for row in rows)
        yield f"| {LOOKS[base][0]}, {label} | {_both(tight, option)} | {_both(roomy, option)} | {beyond} |"
    lost = {True: median(_all(tight, "megatron")), False: median(_all(roomy, "megatron"))}
    yield (
        f"Where memory makes Megatron-LM's best plan recompute ({len(tight)} of {len(rows)} published pairs of a model and a cluster) it takes {percent(lost[True])} longer than the best found"
        f" without a framework (median), and finer levels of recomputation, one for each stage, win {_wins(tight, 'megatron+stages')}; where it does not"
        f" ({len(roomy)} pairs) it takes {percent(lost[False])} longer, and any order from a file wins {_wins(roomy, 'megatron+order')}"
    )
    yield f"The finer levels alone, the same for all stages, win {_wins(tight, 'megatron+levels')}, and any order from a file {_wins(tight, 'megatron+order')}"
    left = [
        percent(median(_left(some, option)))
        for some, option in ((tight, "megatron+stages"), (roomy, "megatron+order"))
    ]
    yield f"With these options it still takes {left[0]} longer than the best found without a framework where it recomputes, and {left[1]} where it does not (medians)"
    yield f"{percent(lost[True])} in the {len(tight)} whose memory makes it recompute, {percent(lost[False])} in the {len(roomy)} others"
    other = sum(
        (gain(row, "megatron+order") or 0) > (gain(row, "megatron+stages") or 0) for row in tight
    )
    yield f"In {other} of the {len(tight)} pairs in which Megatron-LM's plan recomputes, any order from a file wins more than a level for each stage"
    torchtitan = [percent(median(_all(some, "torchtitan"))) for some in (tight, roomy)]
    slower = sum((price(row, "torchtitan") or 0) > (price(row, "megatron") or 0) for row in rows)
    yield (
        f"The median is {torchtitan[0]} where Megatron-LM's plan recomputes and {torchtitan[1]} where it does not; in {slower} of {len(rows)} torchtitan's plan takes longer than Megatron-LM's"
    )
    first, kept = _true(tight, "megatron+stages"), tight[0]["toss_up"]
    yield f"With a level for each stage {sum(one > kept for one in first)} of these {len(first)} gain more than a toss-up at drawn costs, the least {percent(min(first))}"


def _wins(rows: Sequence[Row], option: str) -> str:
    return f"{percent(median(_gains(rows, option)))} back (**{percent(median(_true(rows, option)))}** at drawn costs)"


def _gains(rows: Sequence[Row], option: str) -> list[float]:
    return _known([gain(row, option) for row in rows])


def _left(rows: Sequence[Row], option: str) -> list[float]:
    """Return what plans with an option take longer than the free ones."""
    return [row[f"{option}_ns"] / row["free_ns"] - 1 for row in rows]


def _true(rows: Sequence[Row], option: str) -> list[float]:
    return _known([drawn_ratio(row, OPTIONS[option][0], option) for row in rows])


def _both(rows: Sequence[Row], option: str) -> str:
    """Return what an option gains at the costs given and at drawn ones, medians."""
    return f"{percent(median(_gains(rows, option)))} | {percent(median(_true(rows, option)))}"


def _drawn(rows: Sequence[Row]) -> Iterator[str]:
    drawn = _known([drawn_ratio(row, "megatron", "free") for row in rows])
    times = [
        (slow, fast)
        for row in rows
        for slow, fast in zip(
            row["megatron_drawn_ns"] or (), row["free_drawn_ns"] or (), strict=False
        )
        if slow and fast
    ]
    lost = sum(fast > slow for slow, fast in times)
    yield (
        f"At drawn costs, for which none of the plans was made, Megatron-LM's plan takes {percent(median(drawn))} longer than the free one (median over pairs of the"
        f" median of {len(rows[0]['free_drawn_ns'])} draws); in {lost} of {len(times)} draws Megatron-LM's is the faster one, and in the worst of these the free plan takes {percent(max(fast / slow for slow, fast in times) - 1)} longer"
    )
    worst = min(
        (row for row in rows if drawn_ratio(row, "megatron", "free") is not None),
        key=lambda row: drawn_ratio(row, "megatron", "free") or 0.0,
    )
    yield (
        f"The pair that speaks most against it is `{worst['pair']}`: {percent(price(worst, 'megatron') or 0.0)} at the costs given, {percent(drawn_ratio(worst, 'megatron', 'free') or 0.0)} in the"
        " median of the draws"
    )


def _limits(rows: Sequence[Row]) -> Iterator[str]:
    cut = sum(row["microbatches"] < row["published_microbatches"] for row in rows)
    yield (
        f"At most {MOST} microbatches per replica and {MOST_PER_DEVICE} per device are compared; {cut} of {len(rows)} pairs were run with more, which makes what filling and draining a pipeline costs smaller, but not what recomputation costs"
    )
    yield f"{cut} of {len(rows)} runs had more microbatches than were replayed"
    yield f"under {percent(1 - ROOM, 0)} of the devices' memory"
    seconds = [row["cpu_s"] for row in rows]
    yield f"each pair has {rows[0]['evaluations']} evaluations per search, {span(seconds, '{:.0f}'.format)} s of one core"
