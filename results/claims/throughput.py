"""What README.md and results/README.md say of throughput."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from experiments.throughput.figure import ONE, OURS, faster, fits, gains, room, settings
from optpipe_sim.study.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("throughput")
    cells = settings(rows)
    both = [m for m in cells.values() if fits(m, ONE) and fits(m, "PipeOffload")]
    won = sum(m[ONE].makespan.median < m["PipeOffload"].makespan.median for m in both)
    yield (
        f"With one chunk per device, as OptPipe is read here, this search beats the best PipeOffload"
        f" in {won} of {len(both)} settings"
    )
    ours = [row for row in rows if row["method"] == OURS and row["fits"]]
    found_by = Counter(
        row["schedule"] if row["schedule"] in ("search", "adaoffload", "cpsat", "milp") else "rule"
        for row in ours
    )
    yield (
        f"with any number of chunks its {len(ours)} schedules ({len(cells)} settings,"
        f" {len({row['seed'] for row in rows})} seeds) come from annealing in {found_by['search']} cases,"
        f" from AdaOffload in {found_by['adaoffload']}, from CP-SAT in {found_by['cpsat']}, from the"
        f" reconstructed MILP in {found_by['milp']}, and are published ones in {found_by['rule']}"
    )
    compared = [m for m in cells.values() if fits(m, OURS) and fits(m, "PipeOffload")]
    gain = [faster(m[OURS], m["PipeOffload"]) for m in compared]
    clear = [m for m in compared if m["PipeOffload"].makespan.least > m[OURS].makespan.most]
    behind = [m for m in compared if m["PipeOffload"].makespan.least < m[OURS].makespan.least]
    limit = max(row["time_limit"] for row in rows)
    loads = [row["load"] for row in rows]
    yield (
        f"In {len(compared)} settings where both fit its median is {span(gain, percent)} faster than the"
        f" best PipeOffload with up to one layer per stage: faster with every seed in {len(clear)} of them,"
        f" slower with every seed in {len(behind)} ({limit:g} s on {rows[0]['cores']} cores that others used, too: load"
        f" {span(loads, lambda x: f'{x:.0f}')})"
    )
    greedy = [m for m in cells.values() if fits(m, OURS) and fits(m, "AdaOffload")]
    lost = [-faster(m[OURS], m["AdaOffload"]) for m in greedy]
    slower = [1 / (1 - loss) - 1 for loss in lost if loss > 0]
    yield (
        f"AdaOffload with the best number of chunks is faster than its median in {len(slower)} of"
        f" {len(greedy)} settings, where the search takes {span(slower, percent)} longer"
    )
    most = [gain for _, gain in gains(cells, "PipeOffload", room)]
    yield (
        f"the bound for every number of chunks up to one layer per stage in a loop, or two in a V, leaves {span(most, percent)}"
        f" over the best PipeOffload"
    )
    gaps = {key: m[OURS].makespan.median / (m[OURS].bound or 1) - 1 for key, m in cells.items()}
    quarter = [gap for key, gap in gaps.items() if key.share == min(k.share for k in gaps)]
    wide = 0.3
    yield (
        f"at a quarter of 1F1B's activation memory the gap to the bound is {span(quarter, percent)},"
        f" above {percent(wide, 0)} in {sum(gap > wide for gap in quarter)} of {len(quarter)} settings"
    )
