"""What README.md and results/README.md say of the contest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from experiments.contest.figure import (
    ALL,
    MILP,
    OFFLOAD,
    ONE_ALL,
    RECOMPUTE,
    Cell,
    Methods,
    Setting,
    best_rule,
    limits,
    search,
    settings,
    without,
)
from optpipe_sim.costs import load_machine
from optpipe_sim.schedules import REGISTRY
from results.claims import Tables, percent, span

Cells = Mapping[Setting, Methods]
LACKS = {
    "Without recomputation it takes": OFFLOAD,
    "without offloading": RECOMPUTE,
    "with one chunk per device": ONE_ALL,
}
NOT_OFFLOADING = ("1F1B", "1F1B-I", "ZB-H1, ZB-1p, ZB-2p", "ZB-V", "V-Half, V-Min", "GIS")
HALF = 0.5
RATES = (15, 21, 25, 50, 100)  # GB/s, of PCIe 4 to twice what PCIe 5 reaches


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("contest")
    cells = settings(rows)
    yield from _against_rules(cells)
    yield from _ingredients(cells)
    yield from _optpipe(cells)
    yield from _pipeoffload(cells)
    yield from _less_memory(limits(rows), cells)
    ours = [search(methods) for methods in cells.values()]
    gaps = [cell.ns / cell.bound - 1 for cell in ours if cell.bound]
    yield from _table(cells)
    yield f"at most **{percent(median(gaps))}** longer than the best possible (median of {len(gaps)} settings; {span(gaps, percent)})"
    yield f"Its gap to the lower bound is {span(gaps, percent)} (median {percent(median(gaps))})"


def _table(cells: Cells) -> Iterator[str]:
    """A line per setting: the fastest rule, this search with its seeds, the bound on everything."""
    for setting, methods in cells.items():
        best, ours = best_rule(methods), search(methods)
        assert best is not None
        assert ours.time is not None
        assert ours.bound is not None
        rule = f"`{best.cell.rows[0]['schedule']}` {best.cell.ns / 1e9:.4g}"
        seeds = f"{ours.time.least / 1e9:.4g} to {ours.time.most / 1e9:.4g}"
        yield (
            f"| {setting} | {rule} | {ours.ns / 1e9:.4g} ({seeds}) | {percent(best.cell.ns / ours.ns - 1)} |"
            f" {percent(ours.ns / ours.bound - 1)} |"
        )


def _against_rules(cells: Cells) -> Iterator[str]:
    """The search beside the fastest rule; which that is; what recomputation is to rules."""
    ours = {key: search(methods) for key, methods in cells.items()}
    rules = {key: best for key, methods in cells.items() if (best := best_rule(methods))}
    rows = [cell.rows[0] for cell in ours.values()]
    gain = {key: best.cell.ns / ours[key].ns - 1 for key, best in rules.items()}
    faster = [key for key, best in rules.items() if ours[key].time.most < best.cell.ns]  # type: ignore[union-attr]
    late = {
        key: over
        for key, best in rules.items()
        if (over := ours[key].time.most / best.cell.ns - 1) > 0  # type: ignore[union-attr]
    }
    mostly = [key for key in late if ours[key].ns > rules[key].cell.ns]
    kept = [key for key in ours if sum(map(_is_rule, ours[key].rows)) > len(ours[key].rows) / 2]
    yield (
        f"In {len(cells)} estimated settings of public models, each in all memory of its devices, this search (median of"
        f" {len(ours[next(iter(cells))].rows)} seeds, {span(map(_seconds, rows), '{:g}'.format)} s on"
        f" {rows[0]['cores']} cores) is"
        f" {_faster(gain.values())} than the fastest of all rules (median {percent(median(gain.values()))}): faster with every seed in"
        f" {len(faster)} of them, and slower with some seed in {len(late)}, by at most {percent(max(late.values()))} (with most seeds in {len(mostly)}), where its time is too short to try"
        f" all rules; in {len(kept)} what it gives with most seeds is a schedule of a rule that it did not improve"
    )
    tried = [methods["1F1B", "none"].rows[0] for methods in cells.values()]
    yield f"Ideal, in all memory, in {len(gain)} other settings the fastest plan without a search takes [{percent(median(gain.values()))}](results/README.md#the-contest) longer"
    yield (
        f"Trying all rules took {span([row['point_s'] for row in tried], '{:.0f}'.format)} s per setting on one core; the search tries them first,"
        f" in at most half of its time"
    )
    won = Counter(best.method for best in rules.values())
    names = ", ".join(f"{name} in {count}" for name, count in won.most_common())
    plain = {key: best_rule(methods, treated=("none",)) for key, methods in cells.items()}
    losses = [one.cell.ns / rules[key].cell.ns - 1 for key, one in plain.items() if one is not None]
    yield (
        f"The fastest rule is {names}; it recomputes in {sum(_recomputes(best.cell) for best in rules.values())}, and"
        f" without recomputation rules take {span(losses, percent)} longer"
        + (f", and none fits in {sum(one is None for one in plain.values())}" if None in plain.values() else "")
    )  # fmt: skip


def _is_rule(row: Mapping[str, Any]) -> bool:
    """Whether what a search gives is a named schedule that it did not improve."""
    return str(row["found_by"]).split(":")[0] in REGISTRY


def _seconds(row: Mapping[str, Any]) -> float:
    """What the search with everything had; in tables without the column twice what the others had."""
    return float(row["seconds"] if "seconds" in row else 2 * row["time_limit"])


def _faster(gains: Iterable[float]) -> str:
    """``1.0 to 4.5 % faster``; ``between 2.0 % slower and 4.5 % faster``."""
    found = sorted(round(gain, 3) for gain in gains)
    if found[0] >= 0:
        return f"{span(found, percent)} faster"
    if found[-1] <= 0:
        return f"{span(map(abs, found), percent)} slower"
    return f"between {percent(-found[0])} slower and {percent(found[-1])} faster"


def _recomputes(cell: Cell) -> bool:
    return sum(cell.rows[0]["recompute_ns"]) > 0


def _ingredients(cells: Cells) -> Iterator[str]:
    """What the search takes without one of its ingredients."""
    said = []
    for words, method in LACKS.items():
        pairs = [(without(methods, method), search(methods)) for methods in cells.values()]
        found = [cell.ns / ours.ns - 1 for cell, ours in pairs if cell is not None]
        apart = sum(
            cell.time.differs(ours.time)  # type: ignore[union-attr,arg-type]
            for cell, ours in pairs
            if cell is not None
        )
        nothing = len(pairs) - len(found)
        said.append(
            f"{words} {span(found, percent)}{'' if said else ' longer'} (median {percent(median(found))};"
            f" beyond the spread of seeds in {apart})"
            + (f" and nothing that fits in {nothing}" if nothing else "")
        )
    yield ", ".join(said)
    yield f"Each search without an ingredient had {_part(cells)} of the time"


def _part(cells: Cells) -> str:
    """Which part of the time of the search with everything one without an ingredient had."""
    (part,) = {
        round(_seconds(search(methods).rows[0]) / search(methods, OFFLOAD).rows[0]["time_limit"])
        for methods in cells.values()
    }
    return {1: "all", 2: "half", 3: "a third"}[part]


def _optpipe(cells: Cells) -> Iterator[str]:
    """What an order search gains over PipeOffload where both are as free; then the MILP, and rules without
    offloading."""
    ours = {key: search(methods, OFFLOAD) for key, methods in cells.items()}
    rivals = {
        key: best.cell
        for key, methods in cells.items()
        if (best := best_rule(methods, ("PipeOffload",), ("none",)))
    }
    seeds = [
        (row["makespan_ns"], rival.ns) for key, rival in rivals.items() for row in ours[key].rows
    ]
    more = [rival.ns / ours[key].ns - 1 for key, rival in rivals.items()]
    fit = sum(cell.fits for cell in ours.values())
    yield (
        f"{span(more, percent)} more throughput than the best PipeOffload (median {percent(median(more))}),"
        f" with {sum(time < rival for time, rival in seeds)} of {len(seeds)} seeds, in the {len(rivals)} of {len(cells)} settings"
        f" where that fits; this search fits in {fit}"
    )
    yield f"**{percent(median(more))}** more throughput (median of {len(more)} settings)"
    yield f"from {percent(-min(more))} less to {percent(max(more))} more, by setting; ahead with {sum(time < rival for time, rival in seeds)} of {len(seeds)} seeds"
    idle = [_idle(ours[key]) / _idle(rival) for key, rival in rivals.items()]
    whole = [
        _idle(search(methods)) / _idle(best.cell)
        for methods in cells.values()
        if (best := best_rule(methods, ("PipeOffload",)))
    ]
    yield (
        f"the time beyond what the busiest device computes is {span(idle, percent)} of PipeOffload's where both only offload (n = {len(idle)}),"
        f" and {span(whole, percent)} where both may recompute (n = {len(whole)}), there at most half of it in {sum(share <= HALF for share in whole)}"
    )
    yield from _milp(cells)
    yield from _needed(cells)


def _milp(cells: Cells) -> Iterator[str]:
    """What the MILP did within its time."""
    rows = [row for methods in cells.values() for row in search(methods, MILP).rows]
    able = [row for row in rows if row["fits"]]
    (tried,) = (row for row in able if row["status"] != "optimal")
    refused = sum("constraints" in row["found_by"] for row in rows)
    assert tried["found_by"] == "adaoffload"
    yield (
        f"Unknown: one run says nothing. Of {len(rows)} models {refused} exceed the limit on rows that is set here, {len(rows) - refused - len(able)} has nothing that fits in one chunk,"
        f" and in {len(able) - 1} AdaOffload's schedule meets the bound; in the one that is left HiGHS did not improve it within {tried['seconds']} s"
    )


def _needed(cells: Cells) -> Iterator[str]:
    """Whether a rule fits that neither offloads nor recomputes, and what that takes."""
    plain = [best_rule(methods, ("1F1B", "1F1B-I"), ("none",)) for methods in cells.values()]
    slower = [
        best.cell.ns / search(methods).ns
        for methods in cells.values()
        if (best := best_rule(methods, NOT_OFFLOADING, ("none",)))
    ]
    yield (
        f"Without offloading and recomputation 1F1B and 1F1B-I fit in {len(plain) - plain.count(None)} of {len(cells)}, any rule in"
        f" {len(slower)}, and the fastest such rule takes {span(slower, '{:.2f}'.format)} times as long as this search with all treatments"
    )


def _idle(cell: Cell) -> float:
    return cell.ns - float(cell.rows[0]["work_ns"])


def _pipeoffload(cells: Cells) -> Iterator[str]:
    """How fast copies must be to offload half of the activations for nothing, each device on its own link."""
    needed = [_half_gb_per_s(key, methods) for key, methods in cells.items()]
    at = [
        f"{sum(need <= rate for need in needed)} and {sum(need / 2 <= rate for need in needed)} at {rate}"
        for rate in RATES
    ]
    yield (
        f"If each device has a link to itself, half of the activations can be copied for nothing from {span(needed, '{:.1f}'.format)} GB/s in each direction on (median {median(needed):.1f}) with one"
        f" engine for both directions, and from half of that with two. With one and with two engines that is so in this many of {len(cells)} settings, by GB/s: {', '.join(at)}"
    )


def _half_gb_per_s(setting: Setting, methods: Methods) -> float:
    """The rate in each direction from which on half of the copies hide with one engine: a stage's bytes over
    its compute. ``copy_ratio`` is those bytes at the machine's own rates."""
    link = load_machine(setting.machine).pcie
    assert link is not None
    ratio = search(methods).rows[0]["copy_ratio"]
    return float(ratio / (1 / link.d2h_gb_per_s + 1 / link.h2d_gb_per_s))


def _less_memory(found: Mapping[int, Methods], cells: Cells) -> Iterator[str]:
    """One setting under less and less memory."""
    able: Sequence[int] = [limit for limit, methods in found.items() if best_rule(methods)]
    gain, gaps = [], []
    for limit in able:
        best = best_rule(found[limit])
        assert best is not None
        ours = search(found[limit], ALL)
        assert ours.bound is not None
        gain.append(best.cell.ns / ours.ns - 1)
        gaps.append(ours.ns / ours.bound - 1)
    least, most = min(able), max(able)
    profile = search(found[most]).rows[0]["profile"]
    name = next(
        key for key, methods in cells.items() if search(methods).rows[0]["profile"] == profile
    )
    longer = search(found[least]).ns / search(found[most]).ns - 1
    yield (
        f"Under {least / 2**30:.0f} GiB instead of {most / 2**30:.0f}, {name.model} on {name.pipeline} devices takes"
        f" {percent(longer)} longer, and this search is {_faster(gain)} than the fastest rule at"
        f" {len(able)} limits from {least / 2**30:.0f} to {most / 2**30:.0f} GiB, and {span(gaps, percent)} over the bound"
    )
