"""The output of ``solve``: the schedule's measures, its proof, the published schedules, the next commands."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import sub
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ...profile import CostProfile
from ...profile.iteration import iteration_ns
from ...schedule import Shape
from ...solvers.margins.shares import ALL, Margins
from ...units import counted, format_size, format_time, size_text
from ..options.fields import as_given
from .show import Out, bound_text, compiled, failed, headline, memory, offloaded, order, times
from .verdict import verdict

if TYPE_CHECKING:
    from ...solvers.fixed import Best
    from ...solvers.plain import PlainPlan
    from ...solvers.result import SolveResult
    from ...solvers.steady import Beside
    from ...trace import Trace

KNOWN = ("warm start", "cache", "cache, adapted")  # sources of schedules that need no search
COMPARING_S = 5.0  # seconds to find the best published schedule
MANY_OPS = 200_000  # beyond this the published schedules are not built for comparison


def show_solution(
    out: Out,
    arguments: argparse.Namespace,
    profile: CostProfile,
    result: SolveResult,
    files: dict[str, str],
    plain: Beside | None = None,
) -> None:
    trace = result.trace
    assert trace is not None
    out.print(verdict("the best found", trace).append(f", {apart(result)}", "not bold"))
    out.print("on", headline(profile, arguments.microbatches))
    if result.info["interrupted"]:
        out.print("interrupted: the best so far", style="yellow")
    out.print()
    when = result.incumbents[-1][0] if result.incumbents else 0.0
    found_by = result.info["found_by"]
    by = f"from the {found_by}" if found_by in KNOWN else f"by {found_by}"
    times(out, trace, Text(f", {by} after {when:.1f} of {result.seconds:.1f} s", "dim"))
    out.line("proven", proof(result))
    memory(out, trace)
    order(out, trace)
    offloaded(out, trace)
    if result.variables:
        size = f"{result.variables:,} variables, {result.constraints:,} constraints"
        out.line("model", size)
    shape = trace.schedule.shape
    if shape.placement != profile.placement:
        out.line("shape", f"{shape.chunks} chunks per device, placed {placed(shape)}")
    if "margin" in result.info:
        _show_margin(out, result.info["margin"], partial(iteration_ns, profile))
    fixed = _fixed(arguments, profile, result, plain) if not out.quiet else None
    if not out.quiet and len(trace.schedule) <= MANY_OPS:
        out.line("against", _against(trace, fixed))
    if plain is not None:
        show_beside(out, plain, trace)
    compiled(out, result.info.get("compiling_s", 0.0))
    if result.info["untried"]:
        out.line("not tried", _untried(result))
    failed(out, result.info["failures"])
    out.written(files)
    _hints(out, arguments, profile, result, fixed)


def _show_margin(out: Out, margin: dict[str, Any], whole: Callable[[float], float]) -> None:
    """Print the time per iteration of the plan within its margins, and the cost of each margin.

    Args:
        whole: the time of an iteration whose pipeline takes a time; the report of margins has the latter.
    """
    planned, bound = whole(margin["planned_ns"]), whole(margin["planned_bound_ns"])
    text = (
        f"{Margins(**margin['margins'])}: at most {format_time(planned)} per iteration within them"
    )
    out.line("margins", f"{text}, at most {planned / max(1, bound) - 1:.2%} above the best plan")
    limits = margin["memory_limit_bytes"]
    if limits is not None and margin["margins"]["memory"]:
        out.line(
            "to be run under", f"{size_text(max(limits))}: what it holds then may grow by that"
        )
    without = dict(margin["without"])
    everything = without.pop(ALL, None)
    for name, less in without.items():
        least, nominal = whole(less["planned_ns"]), whole(less["nominal_ns"])
        text = f"at most {format_time(least)}, {format_time(nominal)} as profiled"
        gain = planned / least - 1
        out.line(f"without {name}", f"{text}: this margin costs {gain:.2%}")
    if everything is not None:
        nominal = whole(everything["nominal_ns"])
        cost = whole(margin["nominal_ns"]) / nominal - 1
        off = margin["unguarded"]
        then = f"takes {format_time(whole(off['ns']))}" if off["fits"] else "does not fit"
        text = f"{format_time(nominal)} as profiled, where margins cost {cost:.2%}"
        out.line("without any", f"{text}; where they are used up, that plan {then}")


def show_beside(out: Out, found: Beside, best: Trace) -> None:
    """Print the plainest plan beside the best one, and which plan loses least where costs are off."""
    if found.plainest is not None:
        out.line("plainest", plain_text(found.plainest, best))
    if found.plans == 1:
        return
    steady = found.steady
    text = (
        f"{steady.plan.name}: where costs are off ({found.draws} draws) {steady.regret:.1%} behind the fastest of"
        f" {found.plans} plans whose difference is a toss-up"
    )
    if steady.plan.trace is not best:
        text += f", the best found {found.best.regret:.1%}"
    if best.memory_limit is not None:
        left = max(0, min(map(sub, best.memory_limit, steady.plan.trace.peak_bytes)))
        text += f"; leaves {format_size(left)}"
    out.line("to run", text)


def plain_text(plain: PlainPlan, best: Trace) -> str:
    """Return the plainest plan beside the best one: its time, and what the best gains for which memory."""
    slower = plain.trace.iteration_ns / best.iteration_ns - 1
    text = f"{plain.name}, the layers as given: {format_time(plain.trace.iteration_ns)} ({slower:+.1%})"
    if best.profile.memory_unknown:
        return text
    more = max(best.peak_bytes) - max(plain.trace.peak_bytes)
    side = "less" if more >= 0 else "more"
    return f"{text} in {format_size(max(plain.trace.peak_bytes))}, {format_size(abs(more))} {side}"


def placed(shape: Shape) -> str:
    name = shape.placement_name
    return name if isinstance(name, str) else "as listed"


def apart(result: SolveResult) -> str:
    """Return how far the result may be from the best possible."""
    if result.status == "optimal":
        return f"optimal with {result.info['covers']}"
    return f"at most {result.gap:.2%} above the best possible"


def proof(result: SolveResult) -> Text:
    """Return what is proven: the bound, what it covers, and how far the result may be from it."""
    # other chunks and placements have schedules of their own, which may be faster
    name = result.bound_name.partition(", least over ")[0]
    assert result.trace is not None
    bound = f"{bound_text(result.lower_bound_ns, result.trace)} ({name})"
    covered = result.info["covers"]
    if result.status == "optimal":
        return Text(f"✓ optimal: no schedule with {covered} takes less than {bound}", "green")
    above = f"at most {result.gap:.2%} above the best possible"
    return Text(f"{above}: with {covered} none takes less than {bound}")


def _untried(result: SolveResult) -> Text:
    rules = counted(result.info["untried"], "rule")
    return Text(
        f"{rules} for published schedules: the time was too short, so one of them may be faster;"
        " raise --time-limit",
        "yellow",
    )


def _fixed(
    arguments: argparse.Namespace, profile: CostProfile, result: SolveResult, plain: Beside | None
) -> Best | None:
    """Return the fastest published schedule that fits: of those that the search tried or, where it does not know it,
    of what is found in a tenth of its time; and of the plain plans."""
    from ...sim import simulate
    from ...solvers.fixed import Best, best_rule, with_chunks

    trace, known = result.trace, result.info.get("published")
    if trace is None or len(trace.schedule) > MANY_OPS:
        return None
    untried = result.info["untried"]
    if known is not None:
        name, schedule = known
        own = replace(profile.for_shape(schedule.shape), memory_limit=trace.memory_limit)
        replay = simulate(schedule, own, objective=trace.objective)
        best: Best | None = Best(with_chunks(name, schedule), replay, untried)
    else:
        best = best_rule(
            profile,
            trace.schedule.shape.microbatches,
            profile.memory_limit,
            trace.objective,
            per_stage=arguments.per_stage,
            pairs=getattr(arguments, "pairs", None),
            seconds=min(COMPARING_S, max(1.0, arguments.time_limit / 10)),
            workers=arguments.workers or os.cpu_count() or 1,
        )
    plainest = plain and plain.plainest
    if plainest and (best is None or plainest.trace.iteration_ns < best.trace.iteration_ns):
        return Best(plainest.name, plainest.trace, best.untried if best else untried)
    return best


def _against(trace: Trace, fixed: Best | None) -> Text:
    """Compare with the fastest published schedule that fits."""
    if fixed is None:
        return Text("no published schedule that was tried fits this limit", "green")
    name, other, _ = fixed
    chunks = other.schedule.shape.chunks
    ratio = other.iteration_ns / trace.iteration_ns
    which = "the fastest published schedule that fits"
    if fixed.untried:
        which = "the fastest of the published schedules that fit and were tried"
    what = f"{name}, {which} ({format_time(other.iteration_ns)}"
    what += ")" if chunks == trace.schedule.shape.chunks else f", with {chunks} chunks per device)"
    doubt = trace.profile.toss_up_text(ratio - 1)
    if ratio >= 1:
        return Text(f"{ratio:.3f}× as fast as {what}{doubt}", "green")
    return Text(f"slower than {what}{doubt}", "yellow")


def _hints(
    out: Out,
    arguments: argparse.Namespace,
    profile: CostProfile,
    result: SolveResult,
    fixed: Best | None,
) -> None:
    """Suggest the next commands."""
    from ...costs.advise.rows import MEMORY_ERROR, ROOM

    trace = result.trace
    assert trace is not None
    path, m = shlex.quote(arguments.profile), arguments.microbatches
    under = as_given(arguments, "memory_limit", "execution")
    ahead = fixed if fixed is not None and fixed.trace.cost_ns < trace.cost_ns else None
    all_shapes = arguments.chunks in (None, "any") and arguments.placement is None
    if ahead is not None and not (all_shapes and arguments.warm_start is None):
        shape = ahead.trace.schedule.shape
        if shape.placement != trace.schedule.shape.placement:
            out.next(f"solve {path} -m {m}{under} --chunks any", code=True)
    elif ahead is not None or (
        result.status != "optimal" and result.seconds > 0.9 * arguments.time_limit
    ):
        out.next(f"a longer --time-limit (now {arguments.time_limit:g} s)")
    if arguments.save and arguments.chunks is None and arguments.placement is None:
        saved = shlex.quote(arguments.save)
        out.next(f"explain {saved} {path}{under}", code=True)
    elif not arguments.save:
        out.next("keep it with --save best.json, draw it with --gantt gantt.png")
    left = _left(trace)
    if left < ROOM and "doubt" in profile.meta and arguments.margin is None:
        out.next(
            f"{format_size(round(left * max(trace.memory_limit or ())))} of the limit are left, and estimated peaks are"
            f" {MEMORY_ERROR:.1%} off in the median: --margin memory={ROOM:.0%}"
        )
    least = max(profile.least_limits)
    if profile.memory_limit and max(profile.memory_limit) > least:
        top = max(profile.memory_limit)
        sizes = ":".join(map(size_text, _steps(least, top)))
        out.next(f"frontier {path} -m {m} --limits {sizes}", code=True)


def _left(trace: Trace) -> float:
    """Return the share of its limit that the fullest device leaves; 1 without a limit."""
    limits = trace.memory_limit or ()
    shares = (1 - peak / limit for peak, limit in zip(trace.peak_bytes, limits, strict=False))
    return min(shares, default=1.0)


def _steps(least: int, top: int) -> tuple[int, int, int]:
    """Return start, end and step of at least six limits between two, in round numbers."""
    step = 1 << (max(1, (top - least) // 6).bit_length() - 1)
    return -(-least // step) * step, top // step * step, step
