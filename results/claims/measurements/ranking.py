"""What README.md, results/README.md and docs/how-true.md say of differences between schedules, which plans are chosen by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import median
from typing import Any

import yaml

from experiments.published import published
from experiments.ranking.settings import settings
from experiments.ranking.ship import FOLDER, SHIPPED
from experiments.ranking.summary import (
    ABLATIONS,
    LEVEL,
    LITTLE,
    WAYS,
    Row,
    by_families,
    by_way,
    coverage,
    differences,
    group,
    half_width,
    line,
    times,
)
from results.claims import Tables, percent, span

IDEAL, KNOWN = ("ideal", ""), ("known", "")
MODEL, PAPER = ("fitted", "model"), ("fitted", "paper")
FAR = 0.05  # of a difference
FEW = 10  # pairs of families with no more are left out


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("ranking")
    ways = by_way(rows)
    little = percent(LITTLE, 0)
    yield (
        f"| predicted by | settings | fastest found, or one at most {little} slower (largest regret) | pairs in the right order | of those that differ by more"
        f" than {little} | error of a difference in points: median, worst | {percent(LEVEL, 0)} of differences are within; of those of papers left out it holds |"
    )
    yield f"`error` is what {percent(LEVEL, 0)} of the errors on settings that the fit had not seen are within"
    ranked = {row["setting"]: row for row in rows if group(row) == "schedules"}
    papers = {row["paper"] for row in ranked.values()}
    assumed = sum(row["costs"] == "assumed" for row in ranked.values())
    yield (
        f"There are {len(ranked)} settings from {len(papers)} sources (of {assumed} something has to be assumed that the source does not state)"
    )
    for way, title in WAYS.items():
        yield _table_row(title, ways[way])
    for way, title in ABLATIONS.items():
        yield _table_row(f"its paper left out, and {title}", ways[way])
    yield _table_row("PipeOffload's figure 15, ideal", ways[IDEAL], "figure 15")
    yield _table_row("the same, fitted to other papers", ways[PAPER], "figure 15")
    yield _table_row("slices of Seq1F1B, ideal", ways[IDEAL], "slices")
    yield _table_row("division of the vocabulary's layers, ideal", ways[IDEAL], "divisions")
    own, left = line(ways[MODEL]), line(ways[PAPER])
    yield (
        f"in **{own.right} of {own.settings}** published comparisons it was the fastest, or at most {little} slower than that"
    )
    yield (
        f"With the whole paper left out of the fit {left.right} of {left.settings} (ideal {line(ways[IDEAL]).right}), the difference between two"
        f" schedules then {_points(left.median_error)} points off in the median and {_points(max(left.errors))} at worst"
    )
    judged = [row for row in ways[MODEL] if group(row) == "schedules"]
    same = {row["setting"] for row in judged}
    ideal = line([row for row in ways[IDEAL] if row["setting"] in same])
    (_, most), *_ = Counter(row["paper"] for row in judged).most_common()
    figure = line(ways[PAPER], ("figure 15",))
    yield (
        f"{most} of the {ideal.settings} are one paper's, and none offloads activations. Message and launch costs are fitted to other models of the same trainer and machine; without such a fit (ideal) it is"
        f" {ideal.right} of {ideal.settings}"
    )
    yield f"With offloading, in PipeOffload's paper, {figure.right} of {figure.settings}"
    published_ones = [row for row in ranked.values() if row["costs"] == "published"]
    assert len({row["paper"] for row in published_ones}) == 1
    others = line([row for row in ways[PAPER] if row["costs"] == "assumed"])
    yield (
        f"All {len(published_ones)} settings with published op times are of one paper and one cluster of A100s. In the {others.settings} others, their papers left"
        f" out, the fastest is found, or one at most {little} slower, in {others.right}, and differences are {_points(others.median_error)} points off in the median."
    )
    yield _worst(_ranked(ways[PAPER]))
    yield from _facts(ways)
    yield f"| families of the two schedules | pairs | {percent(LEVEL, 0)} are within | worst |"
    known = times((row for row in ways[MODEL] if group(row) == "schedules"), "model")
    errors = [error for each in known.values() for error in each]
    yield (
        f"Times themselves come out {percent(-median(errors))} too fast in the median of these {len(errors)} settings ({percent(-min(errors))} at most), and of models that were left"
        f" out `common` holds {percent(coverage(known)[0], 0)}."
    )
    for families, errors in _families(ways[PAPER]):
        yield f"| {families} | {len(errors)} | {_points(half_width(errors))} | {_points(max(map(abs, errors)))} |"
    yield (
        f"A width of its own for each pair of families would promise too much: of papers left out it holds {percent(_by_family(ways[PAPER]), 0)}, and the"
        f" one width for all {percent(coverage(differences(_ranked(ways[PAPER]), 'paper'))[0], 0)}"
    )
    yield from _memory(ways[IDEAL])
    yield from _against(ways)
    for one in SHIPPED:
        yield _shipped_row(one.name)
    yield f"{len(published('schedules')['not_ranked'])} more sources cannot be ranked"
    yield from _contest(tables("costs_cells"))


def _table_row(title: str, rows: Sequence[Row], kind: str = "schedules") -> str:
    found = line(rows, (kind,))
    own = [row for row in rows if group(row) == kind]
    key = "paper" if len({row["paper"] for row in own}) > 1 else "setting"
    held, _ = coverage(differences(own, key))
    return (
        f"| {title} | {found.settings} | {found.right} ({percent(found.worst_regret)}) | {percent(found.pairs_right / found.pairs, 0)} of {found.pairs}"
        f" | {percent(found.pairs_over_2_right / found.pairs_over_2, 0)} | {_points(found.median_error)}, {_points(max(found.errors))}"
        f" | {_points(half_width(found.errors))}, {percent(held, 0)} |"
    )


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _facts(ways: dict[tuple[str, str], list[Any]]) -> Iterator[str]:
    """What decides the order of table 4."""
    optimizers = [row for row in ways[IDEAL] if group(row) == "optimizers"]
    known = [row for row in ways[KNOWN] if group(row) == "optimizers"]
    off = [abs(error) for row in known for error in row["difference_errors"]]
    missed = [abs(error) for row in optimizers for error in row["difference_errors"]]
    yield (
        f"one schedule under both optimizers differs by {span(missed, _points)} points, and by {span(off, _points)} from what its span says"
    )


def _worst(rows: Sequence[Row]) -> str:
    """Which differences are furthest off, and in how many settings."""
    found = []
    for row in rows:
        pairs = list(combinations(row["schedules"], 2))
        errors = row["difference_errors"]
        assert len(pairs) == len(errors)
        found += [(abs(e), pair, row["setting"]) for e, pair in zip(errors, pairs, strict=True)]
    found.sort(reverse=True)
    far = [one for one in found if one[0] > FAR]
    worst, (one, other), where = found[0]
    next_worst, (first, second), there = next(each for each in found if other not in each[1])
    with_it = [each for each in far if other in each[1] and each[2] == where]
    return (
        f"{len(far)} of the {len(found)} differences are more than {100 * FAR:.0f} points off, in {len({each[2] for each in far})} of {len(rows)} settings. The worst, {_points(worst)}, is of"
        f" `{one}` and `{other}` in `{where}`: this `{other}` is in {len(with_it)} of them. Without `{other}` the worst is {_points(next_worst)}, of `{first}` and `{second}` in `{there}`"
    )


def _families(rows: Sequence[Row]) -> list[tuple[str, list[float]]]:
    """Return the errors of differences by families, of those with enough of them, the least certain last."""
    found = by_families(row for row in rows if group(row) == "schedules")
    enough = [(name, errors) for name, errors in found.items() if len(errors) > FEW]
    return sorted(enough, key=lambda one: half_width(one[1]))


def _ranked(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if group(row) == "schedules"]


def _by_family(rows: Sequence[Row]) -> float:
    """Return the share of the differences of a paper that lie within the half-width of those of the same families in the
    other papers, or of all of theirs where these are few."""
    held = []
    for paper in {row["paper"] for row in _ranked(rows)}:
        others = by_families(row for row in _ranked(rows) if row["paper"] != paper)
        everything = [error for errors in others.values() for error in errors]
        for families, errors in by_families(
            row for row in _ranked(rows) if row["paper"] == paper
        ).items():
            like = others.get(families, [])
            width = half_width(like if len(like) >= FEW else everything)
            held += [abs(error) <= width for error in errors]
    return sum(held) / len(held)


def _memory(rows: Sequence[Row]) -> Iterator[str]:
    def errors(kind: str) -> list[float]:
        found = [row["memory_errors"] for row in rows if group(row) == kind]
        return [abs(error) for each in found for error in each if error is not None]

    own, figure = errors("schedules"), errors("figure 15")
    yield (
        f"Peaks over 1F1B's are {percent(median(own))} off in the median of {len(own)} and {percent(max(own))} at worst; in PipeOffload's figure"
        f" {percent(median(figure))} and {percent(max(figure), 0)} (n = {len(figure)})"
    )
    (mi300,) = (row for row in rows if row["setting"] == "mi300-7b")
    left = [abs(error) for error in mi300["memory_errors"] if error is not None]
    yield f"the {len(left)} others, which were not seen, are then {percent(min(left))} to {percent(max(left))} off"
    least = next(run for run in settings()["mi300-7b"].runs if run.name == "v-min")
    parts = least.holds.meta["static_by_stage"]
    each = 2 * sum(parts[0]) / parts[0][0]  # the first part are the weights, in bf16
    yield (
        f"at {each:.0f} bytes a weight V-Min's first device would hold {sum(parts[0] + parts[-1]) / 2**30:.1f} GiB of weights, gradients and optimizer states alone, of {least.memory:.1f} that were measured"
    )


def _against(ways: dict[tuple[str, str], list[Any]]) -> Iterator[str]:
    mi300 = next(row for row in ways[PAPER] if row["setting"] == "mi300-7b")
    errors = dict(zip(mi300["schedules"], mi300["errors"], strict=True))
    least = min(errors, key=lambda name: errors[name])
    assert least == "v-min"
    yield f"V-Min comes out {percent(-errors[least])} too fast beside the mean of the errors there, on MI300s"
    yield from _traces([row for row in ways[IDEAL] if group(row) == "traces"])
    h800 = [row for row in ways[PAPER] if row["machine"] == "H800"]
    chosen = [row for row in h800 if row["chosen"] == "zb-v"]
    wrong = [row for row in chosen if row["fastest"] != "zb-v"]
    yield (
        f"On H800s ZB-V is predicted to be the fastest in {len(chosen)} of {len(h800)} settings and was so in {len(chosen) - len(wrong)}, at a regret of up to"
        f" {percent(max(row['regret'] for row in wrong))}"
    )
    figure = [
        row for row in ways[IDEAL] if group(row) == "figure 15" and "1f1b" in row["schedules"]
    ]
    gains = []
    for row in figure:
        off = dict(zip(row["schedules"], row["errors"], strict=True))
        gains += [(1 + off["1f1b"]) / (1 + off[name]) - 1 for name in off if name != "1f1b"]
    yield (
        f"1F1B itself is slower there than any execution says: {sum(gain < 0 for gain in gains)} of {len(gains)} simulated gains over it are too small"
    )
    slices = [row for row in ways[IDEAL] if group(row) == "slices"]
    yield f"Slices of equal work are not what was measured: their gains are off by {_points(line(slices, ('slices',)).median_error)} points in the median"


def _traces(rows: Sequence[Row]) -> Iterator[str]:
    """What AMD's picture of four schedules says of V-Min."""
    bars, runs = rows
    assert (bars["setting"], runs["setting"]) == ("primus-trace", "mi300-7b-as-traced")
    (layer,) = (
        row["layer_ms"]
        for block in published("schedules")["blocks"]
        for row in block["rows"]
        if row["id"] == bars["setting"]
    )
    yield f"AMD's own picture of four schedules shows B {layer['b'] / layer['f']:.1f} and W {layer['w'] / layer['f']:.1f} times as long as F"
    off = [(1 + error) * (1 + bars["error"]) - 1 for error in bars["errors"]]
    assert bars["pairs_right"] == bars["pairs"]
    yield (
        f"the replay is {percent(min(map(abs, off)))} to {percent(max(map(abs, off)))} off the printed times, and {_points(max(map(abs, bars['difference_errors'])))} points at most in a difference"
    )
    pairs = list(combinations(runs["schedules"], 2))
    errors = dict(zip(pairs, map(abs, runs["difference_errors"]), strict=True))
    worst = max(errors, key=lambda pair: errors[pair])
    yield (
        f"V-Min beside 1F1B is then {_points(errors['1f1b', 'v-min'])} points off, and the worst of the {len(errors)} differences {_points(errors[worst])}, of `{worst[0]}` and `{worst[1]}`"
    )


def _shipped_row(name: str) -> str:
    data = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    split = data["families"]["split"]
    kinds = [data["families"][family]["links"] for family in ("plain", "interleaved", "split")]
    return (
        f"| `{name}` | {len(data['fitted_to'])} | {', '.join(kinds)} | {split['op_us']} | {split['split']} | {split['iteration']}"
        f" | {percent(data['error']['common'])} | {percent(data['error']['between'])} |"
    )


def _contest(rows: list[dict[str, Any]]) -> Iterator[str]:
    """How far the contest's comparisons, which are ideal, are off where table 4 measured them."""
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        schedule, _, quantity = row["quantity"].partition(" ")
        if row["table"] == "Zero Bubble, table 4" and quantity == "iteration_ms":
            at = sum(schedule in one for (model, _), one in cells.items() if model == row["model"])
            cells.setdefault((row["model"], at), {})[schedule] = row
    off = [
        100
        * (
            one["1f1b"]["published"]
            / one["1f1b-i"]["published"]
            * ((1 + one["1f1b"]["ideal_error"]) / (1 + one["1f1b-i"]["ideal_error"]) - 1)
        )
        for one in cells.values()
    ]
    assert min(off) > 0
    yield f"the simulated gain of interleaved 1F1B over 1F1B is {median(off):.1f} points above the measured one (median of {len(off)})"
