"""``costs_runs.md``: errors per machine and feature, what was not compared, and what choices change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

from optpipe_sim.costs import load_machine, load_model, machine_names
from optpipe_sim.costs.doubt import OFFLOADING, POOR, Compared, features_of
from optpipe_sim.costs.layout import Layout
from optpipe_sim.costs.work import Work

from .sweep import Sweep

NEAR_TIME, NEAR_GIB = 0.01, 0.1  # published differences below these are noise
HOW = {
    "check": "",
    "fit": ", fitted to",
    "model left out": ", fitted to its other models (the source itself is not left out)",
}


def report_text(
    rows: Sequence[Compared],
    data: Mapping[str, Any],
    reached: Sequence[Mapping[str, Any]],
    sizes: Sequence[Sweep],
) -> str:
    """``costs_runs.md``."""
    lines = [
        "# Costs: estimated against whole runs that others published",
        "",
        "Regenerate with `python -m experiments.costs_runs.run`. Every run is in `costs_runs.csv`. Negative"
        " errors: the estimate is too fast. `estimate` and `advise` state their doubt from these rows; what"
        " is not here was not compared.",
        "",
        "## Per machine, kind of model, format and source",
        "",
        *_HEAD,
    ]
    lines += _lines((row, row.source.split(",")[0] + HOW[row.role]) for row in rows)
    lines += [
        "",
        "## Per machine and feature",
        "",
        *_HEAD,
    ]
    lines += _lines((row, name) for row in rows if row.role == "check" for name in row.features)
    lines += [
        "",
        "## Without a measurement",
        "",
        "What no published run on a machine could be compared for. Elsewhere in these pages, and in the answers of"
        " `estimate` and `advise`, nothing is claimed of it.",
        "",
        "| machine file | kinds of models and formats | features |",
        "|---|---|---|",
        *uncovered(rows),
    ]
    lines += [
        "",
        "## Too far off to plan by",
        "",
        f"Off by more than {POOR:.0%} in the median, of all runs or of those with a feature; `estimate`,"
        " `evaluate` and `advise` then warn. The sources below say why, where it is known; no published fact"
        " mends it.",
        "",
        "| machine file | models | format | time off by | runs | and with |",
        "|---|---|---|--:|--:|---|",
        *far_off(rows),
    ]
    lines += [
        "",
        "## What the kernels of MosaicML's runs reach",
        "",
        "Shares of the peak, and of the bandwidth, that a machine file has, and that its runs say: three numbers, fitted to all of them. Errors are"
        " of times of runs in one stage, by the file and by numbers fitted to the runs of all other models (the source itself is not left out).",
        "",
        "| machine file | runs | GEMMs | its | attention | its | moving data | its | off by | worst | fitted to other models | worst |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        *map(_kernels, reached),
        "",
        "## Which size of microbatches is fastest",
        "",
        "One layout with microbatches of several sizes, the iteration's sequences the same. Estimated once without what the source states of its trainer (launches"
        " that block, gradients that kernels of their own add up; see `--launch-blocking` and `--gradient-sums`), once with it. No rate was fitted to these runs;"
        " `launch_us` is what the source's own comparison says, on 80 GPUs, which is not among them.",
        "",
        "| layout | fastest of | as measured | estimated | that took longer by | estimated as stated | that took longer by | largest error of a time |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
        *map(_sweep, sizes),
        "",
        "## Arms of one run",
        "",
        "What a choice changes, against the first arm of the same run: published, and estimated.",
        "",
        "| run | arm | time, published | estimated | peak, published | estimated |",
        "|---|---|--:|--:|--:|--:|",
    ]
    found = list(arms(rows))
    for arm in found:
        first = next(one for one in found if one.run == arm.run)
        if arm is not first:
            time, gib = arm.against(first)
            peak = " |  |" if gib is None else "".join(f" {one:+.2f} GiB |" for one in gib)
            lines.append(
                f"| {arm.run} | {arm.choice} | {time.published:+.1%} | {time.estimated:+.1%} |{peak}"
            )
    lines += [
        "",
        "How many arms the estimate moves to the right side of the first one, and how many pairs of arms it puts in"
        f" the right order; in parentheses of those that lie further apart as published, by {NEAR_TIME:.0%} of the time"
        f" or {NEAR_GIB} GiB.",
        "",
        "| run | sign of the time | order | sign of the peak | order |",
        "|---|---|---|---|---|",
        *judged(found),
    ]
    lines += ["", "## Sources, and what an estimate cannot know of them", ""]
    for source in data["sources"].values():
        known = " ".join(source["known"].split())
        lines.append(f"- {source['title']} ({source['where']}). {known}")
    return "\n".join(lines) + "\n"


def _sweep(one: Sweep) -> str:
    found = " | ".join(
        f"{one.best(seconds)} | {one.regret(seconds):.1%}" for seconds in (one.unstated, one.stated)
    )
    errors = [one.stated[size] / one.measured[size] - 1 for size in one.measured]
    sizes = ", ".join(map(str, one.measured))
    return f"| {one.name} | {sizes} | {one.best(one.measured)} | {found} | {max(errors, key=abs):+.1%} |"


def _kernels(row: Mapping[str, Any]) -> str:
    shares = (
        f"{row[key]:.2f} | {row[f'{key}_reached']:.2f}"
        for key in ("gemm", "attention", "bandwidth")
    )
    errors = (
        f"{abs(row[f'{name}error']):.1%} | {row[f'{name}worst']:+.1%}" for name in ("", "left_out_")
    )
    return f"| {row['machine']} | {row['runs']} | {' | '.join((*shares, *errors))} |"


def far_off(rows: Sequence[Compared]) -> Iterator[str]:
    """Yield a line per machine, kind of model and format with a median beyond `POOR`, of all runs or of those
    with some feature."""
    kinds: dict[tuple[str, ...], list[Compared]] = {}
    for row in rows:
        if row.role == "check" and row.error is not None:
            kinds.setdefault((row.machine, row.kind, row.dtype), []).append(row)
    for key, group in sorted(kinds.items()):
        features = sorted(set().union(*(row.features for row in group)))
        parts = {name: [row for row in group if name in row.features] for name in features}
        far = [f"{name} ({_off(part):.0%})" for name, part in parts.items() if _off(part) > POOR]
        if _off(group) > POOR or far:
            yield f"| {' | '.join(key)} | {_off(group):.1%} | {len(group)} | {', '.join(far)} |"


def _off(rows: Sequence[Compared]) -> float:
    return median(abs(row.error) for row in rows if row.error is not None)


def _lines(of: Iterable[tuple[Compared, str]]) -> list[str]:
    """A line per machine, kind of model, format and what each row counts for."""
    groups: dict[tuple[str, ...], list[Compared]] = {}
    for row, what in of:
        groups.setdefault((row.machine, row.kind, row.dtype, what), []).append(row)
    return [f"| {' | '.join(key)} | {_errors(errors)} |" for key, errors in sorted(groups.items())]


def uncovered(rows: Sequence[Compared]) -> Iterator[str]:
    """Yield a line per shipped machine: the kinds, formats and features that no run was compared for."""
    any_case = load_model("llama3-70b"), load_machine("h100"), Layout(1), Work()
    for machine in machine_names():
        here = [row for row in rows if row.machine == machine]
        seen = frozenset[str]().union(*(row.features for row in here))
        kinds = {(row.kind, row.dtype) for row in here}
        without = [
            f"{kind} in {dtype}"
            for kind in ("dense", "experts")
            for dtype in ("bf16", "fp16", "fp8")
            if (kind, dtype) not in kinds
        ]
        missing = [name for name in (*features_of(*any_case), OFFLOADING) if name not in seen]
        yield (
            f"| {machine} | {', '.join(without) if here else 'all'} |"
            f" {', '.join(missing) if here else 'all'} |"
        )


class Pair(NamedTuple):
    """A number as published, and as estimated."""

    published: float
    estimated: float

    @property
    def agrees(self) -> bool:
        """Whether both are above 0, or both below, or both 0; the errors that they come from have 7 digits."""
        signs = {(one > 1e-5) - (one < -1e-5) for one in self}
        return len(signs) == 1


class Arm(NamedTuple):
    """An arm of a run: its time (ms), and its peak (GiB) where one was published."""

    run: str
    choice: str
    time: Pair
    gib: Pair | None

    def against(self, other: Arm) -> tuple[Pair, Pair | None]:
        """By what share it takes longer than `other`, and by how many GiB its peak is higher."""
        time = (mine / theirs - 1 for mine, theirs in zip(self.time, other.time, strict=True))
        if self.gib is None or other.gib is None:
            return Pair(*time), None
        peak = (mine - theirs for mine, theirs in zip(self.gib, other.gib, strict=True))
        return Pair(*time), Pair(*peak)


def arms(rows: Sequence[Compared]) -> Iterator[Arm]:
    """Yield each arm of an ablation, the baseline of each run first."""
    for row in rows:
        if not row.ablation:
            continue
        assert row.measured_ms is not None
        assert row.error is not None
        gib = None
        if row.measured_gib is not None and row.memory is not None:
            gib = Pair(row.measured_gib, row.measured_gib * (1 + row.memory))
        time = Pair(row.measured_ms, row.measured_ms * (1 + row.error))
        yield Arm(row.ablation, row.arm, time, gib)


def judged(found: Sequence[Arm]) -> Iterator[str]:
    """Yield a line per run: signs against its first arm, and the order of all pairs."""
    for run in dict.fromkeys(arm.run for arm in found):
        own = [arm for arm in found if arm.run == run]
        first = [arm.against(own[0]) for arm in own[1:]]
        pairs = [after.against(before) for before, after in combinations(own, 2)]
        cells = [
            _right([one[what] for one in some], near)
            for what, near in ((0, NEAR_TIME), (1, NEAR_GIB))
            for some in (first, pairs)
        ]
        yield f"| {run} | {' | '.join(cells)} |"


def _right(changes: Sequence[Pair | None], near: float) -> str:
    """``5 of 6 (3 of 3)``: those of the right sign, in parentheses where the published change is above `near`."""
    known = [one for one in changes if one is not None]
    apart = [one for one in known if abs(one.published) >= near]
    counts = [f"{sum(one.agrees for one in some)} of {len(some)}" for some in (known, apart)]
    if not known:
        return ""
    return counts[0] if len(apart) == len(known) else f"{counts[0]} ({counts[1]})"


_HEAD = (
    "| machine file | models | format | of | runs | time off by | signed | worst | peaks | off by | signed | worst |",
    "|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
)


def _errors(rows: Sequence[Compared]) -> str:
    times = [row.error for row in rows if row.error is not None]
    return f"{_spread(times)} | {_spread([row.memory for row in rows if row.memory is not None])}"


def _spread(errors: Sequence[float]) -> str:
    """Return their number, the median absolute and signed error, and the largest."""
    if not errors:
        return "0 |  |  | "
    return (
        f"{len(errors)} | **{median(map(abs, errors)):.1%}** | {median(errors):+.1%}"
        f" | {max(errors, key=abs):+.1%}"
    )
