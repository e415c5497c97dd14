"""What a campaign found, as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...units import format_size, format_time
from .verdict import Confirmation

Confirmed = Mapping[str, Mapping[str, Confirmation]]


def report(found: Mapping[str, Any], confirmed: Confirmed) -> str:
    """Tables per model: makespans, ops, memory; what failed or was left out; what the machine is."""
    lines = ["# Predicted against measured", ""]
    lines += [f"- {key}: {value}" for key, value in found["meta"].items()]
    lines += _machine(found.get("probes") or {})
    for name, of_work in confirmed.items():
        lines += ["", f"## {name}", ""]
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
    """Measured over profiled time, per op: the median of the stages."""
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
