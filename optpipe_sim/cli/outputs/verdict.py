"""The first line of an answer: the time of an iteration and whether it fits; and what would make it fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from ...errors import OptPipeError
from ...sim.excess import held_above
from ...units import format_size, format_time, size_above
from ..inputs import is_file
from .show import Out

if TYPE_CHECKING:
    from ...profile import CostProfile
    from ...trace import Trace


RULES_S = 3.0  # seconds to look for a published schedule that fits


def verdict(name: str, trace: Trace) -> Text:
    """Return whether a schedule fits, by how much it does not, and how long an iteration takes."""
    peaks, limits = trace.peak_bytes, trace.memory_limit or trace.profile.memory_limit
    if limits is None or trace.profile.memory_unknown:
        return Text(f"{name}: {format_time(trace.iteration_ns)} per iteration", "bold")
    fullest = max(range(len(peaks)), key=lambda device: peaks[device] - limits[device])
    peak, limit = peaks[fullest], limits[fullest]
    if trace.fits:
        text = (
            f"{name} fits: {format_time(trace.iteration_ns)} per iteration, {format_size(peak)} of"
        )
        return Text(f"{text} {format_size(limit)}", "bold")
    text = f"{name} does not fit"
    if peak > limit:
        text += f": {held_above(peaks, limits)}"
    return Text(text, "bold red")


def remedies(name: str | None, trace: Trace, profile: CostProfile | None = None) -> list[str]:
    """Return what would make a schedule fit: a limit, its cheapest level of recomputation, another
    schedule; each as replayed.

    Args:
        name: by which it can be built again; None: it is from a file.
        profile: with all treatments that others may use; None: that of the trace.
    """
    from ...names import build
    from ...sim import simulate
    from ...solvers.fixed import best_fixed, best_rule, published
    from ...solvers.starts.variants import recomputed_at

    profile, m = profile or trace.profile, trace.schedule.shape.microbatches
    limits = trace.memory_limit or profile.memory_limit
    found = [f"a limit of {size_above(max(trace.peak_bytes))}"]
    levels = profile.level_names
    fitting = []
    for level in levels if name and "recompute=" not in name else ():
        try:
            other = recomputed_at(str(name), level)
            replay = simulate(build(other, profile, m), profile, limits)
            fitting.append((replay.iteration_ns, other, replay))
        except OptPipeError:  # it does not fit, or has no levels
            continue
    if fitting:
        found.append(described(*min(fitting, key=lambda one: one[:2])[1:]))
    best = best_fixed(published(profile, m), profile, limits, trace.objective)
    if best is None:  # with another value of its options, or a level of recomputation
        rule = best_rule(profile, m, limits, trace.objective, seconds=RULES_S)
        best = rule and (rule.name, rule.trace)
    if best is not None:
        found.append(described(best[0], best[1]))
    return found


def would_fit(schedule: str, trace: Trace) -> list[str]:
    """Return `remedies` for a schedule as the command line has it, a name or a file; none where it fits."""
    return [] if trace.fits else remedies(None if is_file(schedule) else schedule, trace)


def show_verdict(out: Out, name: str, trace: Trace, found: list[str]) -> None:
    """Print whether a schedule fits and how long an iteration takes, or by how much it does not, and what would."""
    out.text(verdict(name, trace))
    if not trace.fits:
        out.line("would fit", "; ".join(found))


def described(name: str, trace: Trace) -> str:
    """Return a plan with its time and its peak."""
    return f"{name}: {format_time(trace.iteration_ns)}, {format_size(max(trace.peak_bytes))}"
