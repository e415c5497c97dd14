"""What README.md and results/README.md say of heterogeneous."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiments.spread import Spread, over_seeds, spread
from optpipe_sim.study.experiment import load_experiment
from results.claims import Row, Tables, percent, span

Shape = tuple[int, str]
SAME = ("profile.name", "chunks", "placement", "schedule", "planned_for")
FOLDER = Path(__file__).parents[3] / "experiments" / "heterogeneous"


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("heterogeneous")
    cases: dict[str, list[Row]] = {}
    for row in over_seeds(rows, SAME, ["makespan_ns"]):
        cases.setdefault(row["profile.name"], []).append(row)

    def best(
        case: str, start: str, planned: str = "true", shape: Shape | None = None
    ) -> float | None:
        """The least median of the shapes in which every seed fits; `planned`: empty for either way."""
        found = [
            row["makespan_ns"]
            for row in cases[case]
            if row["schedule"].split(":")[0] == start
            and planned in ("", row["planned_for"])
            and row["fits"]
            and (shape is None or shape_of(row) == shape)
        ]
        return min(found, default=None)

    def loss(case: str, start: str) -> float | None:
        """What a pattern takes longer; it may be planned for equal devices, where that is faster."""
        other, ours = best(case, start, ""), best(case, "optpipe")
        return None if other is None or ours is None else other / ours - 1

    uneven = [case for case in cases if case != "balanced"]
    parts = []
    for start, name in (("1f1b", "1F1B"), ("zb-h1", "ZB-H1"), ("zb-v", "ZB-V")):
        even = loss("balanced", start)
        found = [lost for case in uneven if (lost := loss(case, start)) is not None]
        assert even is not None
        parts.append(f"{name} {percent(even)} and {span(found, percent)} (n = {len(found)})")
    seeds = _spreads(rows)
    model = load_experiment(FOLDER).base["profile"]["estimate"]["model"]
    (limit,) = {row["memory_limit"] for row in rows}
    ((devices, m),) = {
        (len(row["peak_bytes_per_device"]), row["microbatches"])
        for row in rows
        if row.get("peak_bytes_per_device")
    }
    yield (
        f"For {model} on {devices} devices, m = {m}, over this search (medians of {max(each.seeds for each in seeds)} seeds, which differ by up to"
        f" {percent(max(each.share for each in seeds))}; one chunk, or two in a V; {limit} everywhere)"
        f" symmetric patterns take longer by, on even and on uneven stages (devices of unlike speed, or a heavy head): {', '.join(parts)}."
    )
    others = {row["schedule"].split(":")[0] for row in rows} - {"optpipe"}
    nearest = [
        min(lost for start in others if (lost := loss(case, start)) is not None) for case in uneven
    ]
    yield f"On uneven stages the best of all other schedules takes {span(nearest, percent)} longer."
    equal = [row for row in cases["balanced"] if row["schedule"] == "optpipe" and row["fits"]]
    fastest = shape_of(min(equal, key=lambda row: row["makespan_ns"]))
    lost = [
        blind / told - 1
        for case in uneven
        if (blind := best(case, "optpipe", "assumed", fastest)) and (told := best(case, "optpipe"))
    ]
    yield (
        f"Its fastest plan for even stages takes {span(lost, percent)} longer there and does not fit in"
        f" {len(uneven) - len(lost)} of {len(uneven)} cases."
    )
    moved, stay = best("half A100, layers moved", "optpipe"), best("half A100", "optpipe")
    assert moved is not None
    assert stay is not None
    before, after = best("half A100", "1f1b"), best("half A100, layers moved", "1f1b")
    assert before is not None
    assert after is not None
    yield (
        f"Moving layers from A100s to H100s saves this search {percent(1 - moved / stay)}, and 1F1B"
        f" {percent(1 - after / before)}"
    )


def shape_of(row: Row) -> Shape:
    """Its chunks and their placement."""
    return row["chunks"], row["placement"]


def _spreads(rows: list[Row]) -> list[Spread]:
    """Of what this search takes where it knows the devices, per case and shape."""
    found: dict[tuple, list[int]] = {}
    for row in rows:
        if row["schedule"] == "optpipe" and row["planned_for"] == "true" and row["fits"]:
            found.setdefault(tuple(row[key] for key in SAME), []).append(row["makespan_ns"])
    return [spread(each) for each in found.values()]
