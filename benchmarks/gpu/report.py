"""What a campaign found, as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Any

from optpipe_sim.runtime.confirm.verdict import Confirmation
from optpipe_sim.units import format_size, format_time

Confirmed = Mapping[str, Mapping[str, Confirmation]]


def report(found: Mapping[str, Any], confirmed: Confirmed) -> str:
    """Return tables per model: makespans, ops, memory; what failed or was left out; what the machine is."""
    lines = ["# Predicted against measured", ""]
    lines += [f"- {key}: {value}" for key, value in found["meta"].items()]
    lines += _machine(found.get("probes") or {})
    for name, of_work in confirmed.items():
        lines += ["", f"## {name}", "", *_basics(found["works"][name].get("basics"))]
        lines += _ranking(found["works"][name])
        work = found["works"][name]["work"]
        lines += [
            f"{work['devices']} stages of {work['model']['layers']} layers, {work['model']['hidden']}"
            f" wide; sequences of {work['seq']}, {work['microbatch']} per microbatch,"
            f" {work['microbatches']} microbatches, {work['dtype']}. One rank at a time on one device,"
            " links modelled.",
            "",
            *_limits(work, found["works"][name]),
            *_levels(found["works"][name].get("levels") or []),
            *_makespans(of_work),
            *_interference(of_work),
            *_ratios(of_work),
            *_memory(of_work),
        ]
        capped = found["works"][name].get("1f1b_under_the_cap")
        if capped:
            ran = (
                "ran out of memory, as it should" if capped["out_of_memory"] else "DID NOT run out"
            )
            lines += ["", f"1F1B under the same cap: {ran}."]
    lines += ["", "## Parts", "", "| part | seconds | problem |", "|---|--:|---|"]
    lines += [f"| {p['name']} | {p['seconds']} | {p['problem'] or ''} |" for p in found["parts"]]
    for name, one in (found.get("tests") or {}).items():
        lines += ["", f"Tests for GPUs, {name}: status {one['status']}", "", "```"]
        lines += [*one["end"][-8:], "```"]
    return "\n".join(lines) + "\n"


def _machine(probes: Mapping[str, Any]) -> list[str]:
    keys = [
        "device",
        "torch",
        "packages",
        "repeats",
        "workspace_bytes",
        "allocator",
        "attention",
        "gate",
        "launch_us",
        "pin_gib_s",
    ]
    return [f"- {key}: {probes[key]}" for key in keys if key in probes]


def verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how well predictions rank the schedules that fit: pairs in the right order, those that differ by more than 2 % apart,
    what running the one that is predicted fastest costs, and the errors of differences in points."""
    fit = [row for row in rows if row["fits"]]
    pairs = list(combinations(fit, 2))

    def ratio(a: Mapping[str, Any], b: Mapping[str, Any], key: str) -> float:
        return float(a[key] / b[key] - 1)

    right = [
        (ratio(a, b, "predicted_ns") > 0) == (ratio(a, b, "measured_ns") > 0) for a, b in pairs
    ]
    far = [abs(ratio(a, b, "measured_ns")) > 0.02 for a, b in pairs]
    off = [abs(ratio(a, b, "predicted_ns") - ratio(a, b, "measured_ns")) for a, b in pairs]
    chosen = min(fit, key=lambda row: row["predicted_ns"], default=None)
    fastest = min((row["measured_ns"] for row in fit), default=None)
    return {
        "pairs": len(pairs),
        "right": sum(right),
        "far": sum(far),
        "far_right": sum(ok for ok, much in zip(right, far, strict=True) if much),
        "regret": None
        if chosen is None or fastest is None
        else chosen["measured_ns"] / fastest - 1,
        "worst_difference": max(off, default=None),
        "median_difference": median(off) if off else None,
    }


def _basics(found: Mapping[str, Any] | None) -> list[str]:
    """Return what decides most between schedules."""
    if not found:
        return []
    rates = "; ".join(
        f"{mode} {both['d2h']:.1f} out, {both['h2d']:.1f} back"
        for mode, both in found["copies_gb_per_s"].items()
    )
    issue = ", ".join(
        f"{op} {found['issue_us'][op]:.0f} us ({share:.0%} of it)"
        for op, share in found["issue"].items()
    )
    lines = [
        "What decides most between schedules:",
        "",
        f"- copies, GB/s: {rates} (together: both ways; loaded: beside GEMMs)",
        f"- B and W apart take {min(found['apart']):.3f} to {max(found['apart']):.3f} times one backward, by stage",
        f"- the host issues an op in at most: {issue}",
    ]
    return [
        *lines,
        *(
            f"- beside copies, messages and after idle, over alone: {text}"
            for text in found["beside"]
        ),
        "",
    ]


def _ranking(entry: Mapping[str, Any]) -> list[str]:
    """Whether the schedules that are predicted to be faster are, per limit."""
    lines: list[str] = []
    for share, one in (entry.get("ranking") or {}).items():
        if not one["rows"]:
            continue
        lines += [
            f"Ranked within {format_size(one['limit'])} per device, {share} of 1F1B's activations:",
            "",
        ]
        lines += [
            "| schedule | chunks | predicted | measured | off | noise | closure |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        fit = sorted(
            (row for row in one["rows"] if row["fits"]), key=lambda row: row["measured_ns"]
        )
        for row in fit:
            measured, predicted = row["measured_ns"], row["predicted_ns"]
            shares = [
                "" if row[key] is None else f"{row[key] / measured:.1%}"
                for key in ("noise_ns", "closure_ns")
            ]
            cells = [
                row["schedule"],
                str(row["chunks"]),
                format_time(predicted),
                format_time(measured),
            ]
            lines.append(f"| {' | '.join([*cells, f'{predicted / measured - 1:+.1%}', *shares])} |")
        lines += [
            f"| {row['schedule']} | {row['chunks']} | does not fit | | | | |"
            for row in one["rows"]
            if not row["fits"]
        ]
        found = verdicts(one["rows"])
        if found["pairs"]:
            lines += [
                "",
                f"{found['right']} of {found['pairs']} pairs in the right order, of those that differ by more than 2 % {found['far_right']} of"
                f" {found['far']}; running what is predicted fastest costs {found['regret']:.1%}; differences are"
                f" {100 * found['median_difference']:.1f} points off in the median and {100 * found['worst_difference']:.1f} at worst.",
            ]
        lines.append("")
    if entry.get("execution"):
        families = entry["execution"]["families"]
        split = families["split"]
        lines += [
            f"An execution fitted to these runs: an op takes {split['op_ns'] / 1e3:.0f} us beside its kernels, B and W apart"
            f" {split['split']:g} times as long; links {', '.join(one['links'] for one in families.values())}; errors with each schedule left out:"
            f" {entry['execution'].get('error', 'not known')}.",
            "",
        ]
    return lines


def _limits(work: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    if not entry.get("limits"):
        return []
    limits, caps = (", ".join(map(format_size, entry[key])) for key in ("limits", "caps"))
    return [
        f"Plans that offload are made for {limits} per device: {work['share']:.0%} of 1F1B's activations beside"
        f" what is static. A GPU's allocator is capped at {caps}, of which this is {work['planned']:.0%}.",
        "",
    ]


def _levels(stages: Sequence[Mapping[str, tuple[float, float]]]) -> list[str]:
    """Return what recomputing takes, in shares of F, and what is kept."""
    if not any(stages):
        return []
    rows = ["| recomputed | " + " | ".join(f"stage {at}" for at in range(len(stages))) + " |"]
    rows.append("|---|" + "--:|" * len(stages))
    for name in dict.fromkeys(name for levels in stages for name in levels):
        cells = [
            "{:.0%} of F, keeps {:.0%}".format(*levels[name]) if name in levels else ""
            for levels in stages
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return [*rows, ""]


def _makespans(of_work: Mapping[str, Confirmation]) -> list[str]:
    rows = [
        "| run | predicted | corrected | measured | of each run | noise | closure | gradients bitwise |"
        " holds |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, one in of_work.items():
        predicted = one.difference.predicted.makespan_ns
        measured = one.difference.measured.makespan_ns
        low, high = min(one.makespans_ns), max(one.makespans_ns)
        gradients, corrected = one.gradients, one.difference.corrected or one.together
        cells = [
            name,
            format_time(predicted),
            "" if corrected is None else format_time(corrected.makespan_ns),
            f"{format_time(measured)} ({measured / predicted - 1:+.1%})",
            f"{format_time(low)} to {format_time(high)}",
            "" if one.noise_ns is None else f"{one.noise_ns / predicted:.1%}",
            "" if one.closure_ns is None else f"{one.closure_ns / predicted:.1%}",
            "" if gradients is None else _gradients(gradients),
            "yes" if one.holds else "no",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _gradients(found: Any) -> str:
    text = f"{found.bitwise} of {found.parameters}"
    if found.bitwise < found.parameters:
        text += f", off by {found.relative:.1g}"
    if found.noise is not None:
        text += f" (reference against itself: {found.noise:.1g})"
    return text


def _interference(of_work: Mapping[str, Confirmation]) -> list[str]:
    """Return the factors that the profile has, of which the corrected prediction is made, and what else ratios
    depend on."""
    first = next(iter(of_work.values()), None)
    if first is None:
        return []
    said = [f"{text[0].upper()}{text[1:]}." for text in first.conditions]
    if first.interference is not None:
        factors = "; ".join(first.interference.lines())
        said.insert(0, f"Profiled beside copies and after idle, over alone: {factors}.")
    return [line for text in said for line in ("", text)]


def _ratios(of_work: Mapping[str, Confirmation]) -> list[str]:
    """Return measured over profiled time, per op: the median of the stages."""
    rows: list[str] = []
    for name, one in of_work.items():
        by_kind: dict[str, list[str]] = {}
        for row in one.difference.kinds:
            expected = "" if row.expected_ratio is None else f" (exp. {row.expected_ratio:.3f})"
            by_kind.setdefault(row.kind.name, []).append(f"{row.ratio:.3f}{expected}")
        text = "; ".join(f"{kind} {' '.join(ratios)}" for kind, ratios in by_kind.items())
        causes = ", ".join(
            f"{cause} {format_time(time)}" for cause, time in one.difference.causes_ns.items()
        )
        rows += [
            "",
            f"{name}: measured over profiled, by stage: {text}.",
            f"On the path: {causes}.",
            *(f"Does not hold: {problem}." for problem in one.problems),
        ]
    return rows


def _memory(of_work: Mapping[str, Confirmation]) -> list[str]:
    rows = [
        "",
        "| run | rank | predicted peak | measured | inside ops | allocated | reserved | cap |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, one in of_work.items():
        for peak in one.peaks:
            sizes = (peak.inside_bytes, peak.allocated_bytes, peak.reserved_bytes, peak.cap_bytes)
            ratio = peak.measured_bytes / peak.predicted_bytes if peak.predicted_bytes else 1.0
            cells = [
                name,
                str(peak.rank),
                format_size(peak.predicted_bytes),
                f"{format_size(peak.measured_bytes)} ({ratio - 1:+.1%})",
                *("" if size is None else format_size(size) for size in sizes),
            ]
            rows.append(f"| {' | '.join(cells)} |")
    return rows
