"""``costs_runs.md``: errors per machine and feature, what was not compared, and what choices change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from optpipe_sim.costs import load_machine
from optpipe_sim.costs.advise.evaluate import evaluate
from optpipe_sim.costs.doubt import FEATURES, OFFLOADING, POOR, Compared
from optpipe_sim.costs.machine_files import machine_names

VARIANTS = {"a100-80gb": ("a100-80gb", "a100-80gb-megatron")}


def report_text(rows: Sequence[Compared], data: Mapping[str, Any]) -> str:
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
    lines += _lines(
        (row, row.source.split(",")[0] + (", fitted to" if row.role == "fit" else ""))
        for row in rows
    )
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
        "## Arms of one run",
        "",
        "What a choice changes, against the first arm of the same run: published, and estimated.",
        "",
        "| run | arm | time, published | estimated | peak, published | estimated |",
        "|---|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {arm.run} | {arm.choice} | {arm.time[0]:+.1%} | {arm.time[1]:+.1%} |"
        + (" |  |" if arm.gib is None else "".join(f" {gib:+.1f} GiB |" for gib in arm.gib))
        for arm in arms(rows)
    ]
    lines += ["", "## An MFU that no run has reached", "", *beyond()]
    lines += ["", "## Sources, and what an estimate cannot know of them", ""]
    for source in data["sources"].values():
        known = " ".join(source["known"].split())
        lines.append(f"- {source['title']} ({source['where']}). {known}")
    return "\n".join(lines) + "\n"


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
        missing = [name for name in (*FEATURES, OFFLOADING) if name not in seen]
        yield (
            f"| {machine} | {', '.join(without) if here else 'all'} |"
            f" {', '.join(missing) if here else 'all'} |"
        )


def beyond() -> list[str]:
    """Explain why the data sheet's A100 is faster than the fitted one, for a case where it is flagged."""
    found = []
    for name in VARIANTS["a100-80gb"]:
        asked = evaluate("qwen2.5-32b", name, 24, 4096, microbatches=96, pp=6, tp=2)
        plausible, rates = asked.advice.plausibility(asked.row)[0], load_machine(name).rates
        found.append(
            f"- {name}: {asked.row.mfu_causal:.1%} with the causal half counted,"
            f" {'flagged' if plausible is False else 'plausible'}; GEMMs at {rates.gemm} of the peak,"
            f" {rates.overhead:.1%} of an iteration in no op."
        )
    return [
        "Qwen2.5-32B on 24 A100s (6 stages, 2 GPUs each, two replicas, 96 microbatches, 1F1B). The data sheet's"
        " file assumes its rates and no time outside of ops; `a100` names the fitted one.",
        "",
        *found,
    ]


class Arm(NamedTuple):
    """The effect of an option on one run's time and peak (GiB), published and estimated."""

    run: str
    choice: str
    time: tuple[float, float]
    gib: tuple[float, float] | None


def arms(rows: Sequence[Compared]) -> Iterator[Arm]:
    """Each arm of an ablation against the first one of its run."""
    plain: dict[str, Compared] = {}
    for row in rows:
        if not row.ablation:
            continue
        base = plain.setdefault(row.ablation, row)
        if row is base:
            continue
        ms, ms0, gib, gib0 = _time(row), _time(base), _peak(row), _peak(base)
        yield Arm(
            row.ablation,
            row.arm or " + ".join(sorted(row.features - base.features)),
            (ms[0] / ms0[0] - 1, ms[1] / ms0[1] - 1),
            None if gib is None or gib0 is None else (gib[0] - gib0[0], gib[1] - gib0[1]),
        )


def _time(row: Compared) -> tuple[float, float]:
    """The time of a run, published and estimated."""
    assert row.measured_ms is not None
    assert row.error is not None
    return row.measured_ms, row.measured_ms * (1 + row.error)


def _peak(row: Compared) -> tuple[float, float] | None:
    """The peak of a run, published and estimated; None where none was published."""
    if row.measured_gib is None or row.memory is None:
        return None
    return row.measured_gib, row.measured_gib * (1 + row.memory)


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
