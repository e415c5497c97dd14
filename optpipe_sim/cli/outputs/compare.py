"""The output of ``compare``: a table as wide as the terminal allows, and its conclusions."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ...study.compare import Comparison, Row
from ...trace import CAUSES
from ...trace.waits import MEANINGS
from ...units import BYTE_UNITS, TIME_UNITS, format_size, format_time
from ..options.fields import as_given
from .show import (
    CAUSE_STYLES,
    PIPE_WIDTH,
    Out,
    headline,
    idle_shares,
    percent,
    plain_table,
    spread,
)
from .verdict import remedies, verdict

if TYPE_CHECKING:
    from ...profile import CostProfile
    from ...trace import Trace

# What is dropped, step by step, on narrow terminals: cells of the idle bar, then columns.
LAYOUTS: tuple[tuple[int, frozenset[str]], ...] = (
    (24, frozenset()),
    (18, frozenset()),
    (12, frozenset()),
    (8, frozenset()),
    (8, frozenset({"of limit"})),
    (0, frozenset({"of limit"})),
    (0, frozenset({"of limit", "chunks", "idle"})),
    (0, frozenset({"of limit", "chunks", "idle", "bubble"})),
    (0, frozenset({"of limit", "chunks", "idle", "bubble", "offload", "×1F1B"})),
)


def show_comparison(
    out: Out,
    arguments: argparse.Namespace,
    profile: CostProfile,
    result: Comparison,
    files: dict[str, str],
) -> None:
    """Print the table of `compare` and its conclusions."""

    _verdict(out, result)
    if result.rows and not result.rows[0].trace.fits and not result.interrupted:
        least = min(result.rows, key=lambda row: max(row.trace.peak_bytes))
        out.line(
            "would fit", "; ".join(remedies(least.plain or least.schedule, least.trace, profile))
        )
    out.print()
    out.print(Text("Schedules", "bold"), "on", headline(profile, arguments.microbatches))
    out.print()
    rows = table(result, out.console)
    out.print(rows)
    if any(str(column.header) == "idle" for column in rows.columns):
        out.print(legend(result))
    out.print()
    _notes(out, result)
    if result.interrupted:
        left = f"; not compared: {', '.join(result.left_out)}" if result.left_out else ""
        out.text(f"interrupted: the rows so far{left}", style="yellow")
    alike: dict[str, list[str]] = {}  # many schedules may be refused for the same reason
    for name, reason in result.refused.items():
        alike.setdefault(reason.removeprefix(f"{name}: "), []).append(name)
    for reason, names in alike.items():
        out.text(f"not run: {', '.join(names)}: {reason}", style="dim")
    out.written(files)
    where = shlex.quote(arguments.profile)
    under = as_given(arguments, "memory_limit", "execution")
    saved = arguments.save
    if not saved:
        saved = "best.json"
        made = f"--schedule {result.rows[0].schedule} -m {arguments.microbatches}{under}"
        out.next(f"simulate {where} {made} --save {saved}", code=True)
    out.next(f"explain {shlex.quote(saved)} {where}{under}", code=True)
    others = "" if arguments.family else ", or schedules with options: --schedules gis:group=6,zb-v"
    out.next(f"another --memory-limit{others}")


def _verdict(out: Out, result: Comparison) -> None:
    """Return the conclusions from the table."""
    best = result.rows[0]
    time = format_time(best.trace.iteration_ns)
    if best.trace.fits:
        text = Text("Fastest that fits: " if best.trace.memory_limit else "Fastest: ")
        text.append(best.schedule, "bold")
        text.append(
            f", {time} per iteration, {best.speedup:.2f}× 1F1B, at most {best.gap:.1%} above the best"
            " possible with its chunks"
        )
        if result.memory_limit is None and not result.baseline.profile.memory_unknown:
            text.append(f"; it holds {_peak(best.trace)}, 1F1B {_peak(result.baseline)}")
        text.append(".")
    else:
        text = Text("Nothing fits so far. " if result.left_out else "Nothing fits. ", "bold red")
        same = len({row.reason for row in result.rows}) == 1
        least = min(result.rows, key=lambda row: max(row.trace.peak_bytes))
        told = verdict(least.schedule, least.trace).plain
        # for all alike where no schedule works below a limit; what one schedule exceeds is told
        known = (best.reason or "").removeprefix("does not fit: ")
        more = same and "least limit" in known
        text.append(f"{told}; {known}" if more else told, "default")
    out.print(text)


def _notes(out: Out, result: Comparison) -> None:
    """Print what the marks of the table mean."""
    best = result.rows[0]
    if result.memory_limit is None:
        _memory(out, result)
    spread(out, best.trace.profile, (row.trace for row in result.shown))
    alike = [row.schedule for row in result.shown if row.is_toss_up]
    if best.trace.fits and alike:
        notes = best.trace.profile.execution_notes
        named = ", ".join(alike[:6]) + (f" and {len(alike) - 6} more" if len(alike) > 6 else "")
        out.text(
            f"≈ a toss-up with the fastest: {named}. Differences replayed as {notes.get('judged', notes['name'])} were within"
            f" ±{notes['between']:.1%} of measured ones in four cases of five (docs/how-true.md)",
            style="dim",
        )
    if best.trace.fits and any(not row.trace.fits for row in result.shown):
        note = "✗: does not fit"
        if not result.every_level and any(row.levels for row in result.rows):
            note += " at any level"
        note += "; the row is its replay without the limit"
        if not result.baseline.fits:
            note += ". Nor does 1F1B: ×1F1B is over its time without the limit"
        out.print(note, style="dim")
    if any(row.schedule.split(":")[0] == "optpipe" for row in result.rows):
        out.print(
            "optpipe: this search, as solve runs it; no result of the OptPipe paper", style="dim"
        )


def _memory(out: Out, result: Comparison) -> None:
    """Without a limit: the memory that the schedules need, before one is called the fastest."""
    if unknown := result.baseline.profile.memory_unknown:
        out.text(f"The memory of the schedules is not known: {unknown}")
        return
    ordered = sorted(result.rows, key=lambda row: max(row.trace.peak_bytes))
    least, most = ordered[0], ordered[-1]
    text = f"No memory limit was given. On the fullest device {least.schedule} holds {_peak(least.trace)}"
    if most is not least:
        text += f", {most.schedule} {_peak(most.trace)}"
    out.text(f"{text}: --memory-limit says which fit")


def _peak(trace: Trace) -> str:
    return format_size(max(trace.peak_bytes))


def table(result: Comparison, console: Console) -> Table:
    """Return the widest layout that fits the console (in a pipe: about 100 columns, or 120 where
    there are levels)."""
    most = 120 if any(row.levels for row in result.shown) else 100
    room = min(console.width, most) if console.width == PIPE_WIDTH else console.width
    unlimited = console.options.update(width=PIPE_WIDTH)
    for width, left_out in LAYOUTS:
        made = _table(result, width, left_out)
        if Measurement.get(console, unlimited, made).maximum <= room:
            break
    return made


def legend(result: Comparison) -> Text:
    """Explain the letters of the idle bars."""
    used = [cause for cause in CAUSES if any(row.trace.idle_ns[cause] for row in result.shown)]
    text = Text("idle: ", "dim")
    for at, cause in enumerate(used):
        text.append(", " if at else "", "dim").append(cause[0], CAUSE_STYLES[cause])
        text.append(f" {MEANINGS[cause]}", "dim")
    return text


def _table(result: Comparison, width: int, left_out: frozenset[str]) -> Table:
    if result.memory_limit is None:
        left_out |= {"of limit", "fits"}
    if result.baseline.profile.memory_unknown:
        left_out |= {"peak"}
    if not any(row.levels for row in result.shown):  # there is no choice of treatments
        left_out |= {"recompute", "offload"}
    most = max(sum(idle_shares(row.trace).values()) for row in result.shown)
    time = _unit(max(row.trace.iteration_ns for row in result.shown), TIME_UNITS)
    size = _unit(max(max(row.trace.peak_bytes) for row in result.shown), BYTE_UNITS)
    rows = [_cells(row, width, most, time, size) for row in result.shown]
    fit = [row.trace.fits for row in result.shown]
    if fit[0]:
        rows[0]["schedule"].stylize("green")
    styles = ["dim" if not one else "bold" if at == 0 else "" for at, one in enumerate(fit)]
    heads = [head for head in rows[0] if head not in left_out]
    left = ("schedule", "recompute", "idle")
    return plain_table(rows, heads, left, middle=("fits",), gap=1, styles=styles)


def _cells(row: Row, width: int, most: float, time: _Unit, size: _Unit) -> dict[str, Text]:
    trace, device = row.trace, row.fullest_device
    peak = trace.peak_bytes[device]
    share = peak / max(trace.memory_limit[device], 1) if trace.memory_limit else 0.0
    activations = trace.schedule.shape.activations
    fits = Text("✓", "green") if trace.fits else Text("✗", "red")
    idle = Text(f"{sum(idle_shares(trace).values()):>4.0%}")
    if width:
        idle.append(" ").append(idle_bar(idle_shares(trace), most, width))
    return {
        "schedule": Text(row.plain or row.schedule),
        "recompute": Text(_levels(row)),
        "offload": Text(percent(trace.offloaded / activations) if trace.offloaded else ""),
        "chunks": Text(str(trace.schedule.shape.chunks)),
        "time": Text(f"{trace.iteration_ns / time.factor:.3f} {time.name}"),
        "bubble": Text(f"{trace.bubble:.1%}"),
        "idle": idle,
        "peak": Text(f"{peak / size.factor:.1f} {size.name}"),
        "of limit": Text(percent(share), "" if share <= 1 else "red"),
        "fits": fits,
        "×1F1B": Text(f"{row.speedup:.2f}"),
        "gap": Text(f"{row.gap:.1%}"),
    }


def _levels(row: Row) -> str:
    """Return the level at which a schedule recomputes; the share of activations, if it chooses levels
    itself."""
    if row.plain is not None or not row.trace.recomputed:
        return ", ".join(row.levels if row.plain else ())
    shape = row.trace.schedule.shape
    share = row.trace.recomputed / shape.activations
    at = row.levels[0] if len(row.levels) == 1 else f"{len(row.levels)} levels"
    return f"{percent(share)} at {at}"


class _Unit(NamedTuple):
    name: str
    factor: int


def _unit(most: int, units: dict[str, int]) -> _Unit:
    """Return the unit for a column, in which `most` has at least one digit before the point."""
    name, factor = next(
        (pair for pair in sorted(units.items(), key=lambda pair: -pair[1]) if most >= pair[1]),
        min(units.items(), key=lambda pair: pair[1]),
    )
    return _Unit({"_mib": "MiB", "_gib": "GiB", "_bytes": "B"}.get(name, name[1:]), factor)


def idle_bar(shares: dict[str, float], most: float, width: int) -> Text:
    """Return a stacked bar of `width` cells for the share `most`: a letter per cell, coloured by cause.

    Cells follow the running sum, so that the length of a bar matches its sum.
    """
    bar, total, drawn = Text(), 0.0, 0
    for cause, share in shares.items():
        total += share
        until = round(total / most * width) if most else 0
        bar.append(cause[0] * (until - drawn), CAUSE_STYLES[cause])
        drawn = until
    return bar
