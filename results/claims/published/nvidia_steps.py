"""What results/README.md and docs/how-true.md say of NVIDIA's history of DeepSeek-V3 on GB200s."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from experiments.published import published
from results.claims import Tables, percent

NEAR = 5  # points


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("nvidia_steps")
    known = [row for row in rows if row["estimated"] is not None]
    judged = [row for row in known if row["estimated_gain"] is not None]
    assert all(row["gain"] > 0 for row in judged)
    lost = [row for row in judged if row["estimated_gain"] < 0]
    near = [row for row in judged if abs(_points(row)) <= NEAR]
    far = sorted((row for row in judged if row not in near), key=_points)
    yield (
        f"Of the {len(rows) - 1} steps behind the first, to which the host's time is fitted, something is known of {len(judged)}; {len(judged) - len(lost)} of these come out as a gain, {len(near)} within {NEAR}"
        f" points of the published one ({_listed([_name(row) for row in near])})."
    )
    told = [
        f"{_name(row)} ({percent(row['estimated_gain'])} estimated, {percent(row['gain'])} published)"
        for row in far
    ]
    yield (
        f"Further off are {_listed(told)}, so that the steps do not rank as NVIDIA's: there {_largest(judged, 'gain')} gain most, here"
        f" {_largest(judged, 'estimated_gain')}."
    )
    yield (
        f"That all {len(judged)} together gain {percent(_together(judged, 'estimated_gain'))} here and {percent(_together(judged, 'gain'))} there says little, since their errors cancel."
    )
    pictures = published("experts")["history"]["pictures"]
    issued = [
        one["routed_linears"] for name, one in pictures.items() if name[:6] in ("image2", "image4")
    ]
    yield f"the launches of the routed experts' linears, in which nothing changed between them, take {issued[0]:.1f} ms in one and {issued[1]:.1f} in another"
    by_step = {row["step"]: row for row in rows}
    last, end = known[-1], rows[-1]
    left = published("experts")["history"]["left"]
    yield (
        f"Were the host never late, the last of them would give {last['kernels']:.0f} TFLOP/s, {percent(last['kernels'] / end['measured'] - 1)} above what NVIDIA reached at the end, {end['measured']:.0f},"
        f" and {percent(1 - last['kernels'] / end['measured'] / (1 + left))} below what it expected of graphs of everything."
    )
    assert by_step[6]["pairs"] > 0.1 > by_step[1]["pairs"]
    yield (
        f"Overlap gains {percent(by_step[1]['pairs'])} at the first step, but {percent(last['pairs'])} at the last of them, where NVIDIA says that it lost time."
    )
    yield "| step | what changed | TFLOP/s | gain | estimated | gain |"
    for row in rows:
        shown = [row["step"], row["change"], f"{row['measured']:.0f}", _gain(row["gain"])]
        if row["estimated"] is None:
            shown += [f"not known: {row['unknown']}", ""]
        else:
            shown += [f"{row['estimated']:.0f}", _gain(row["estimated_gain"])]
        yield f"| {' | '.join(map(str, shown))} |".replace("|  |", "| |")


def _points(row: dict[str, Any]) -> float:
    return float(100 * (row["estimated_gain"] - row["gain"]))


def _name(row: dict[str, Any]) -> str:
    """Return the first part of a change that is told in two."""
    return str(row["change"].split(";")[0])


def _gain(value: float | None) -> str:
    return "" if value is None else percent(value)


def _together(rows: list[dict[str, Any]], by: str) -> float:
    return prod(1 + row[by] for row in rows) - 1


def _listed(told: list[str]) -> str:
    return " and ".join([", ".join(told[:-1]), told[-1]])


def _largest(rows: list[dict[str, Any]], by: str) -> str:
    return _listed([_name(row) for row in sorted(rows, key=lambda row: -row[by])[:3]])
