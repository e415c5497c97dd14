"""``optpipe-sim solve`` and ``optpipe-sim cache``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..errors import NoSolution, OptPipeError, OutOfMemory
from ..profile import CostProfile
from ..schedule import Schedule, Shape
from ..units import counted, format_size, format_time
from . import show
from .show import Out

if TYPE_CHECKING:
    from ..solve.portfolio import Race
    from ..solve.problem import Problem
    from ..solve.result import SolveResult
    from ..trace import Trace

KNOWN = ("warm start", "cache", "cache, adapted")  # who finds without searching
COMPILING = "compiling the engines for this machine, this once: about half a minute ..."
MANY_OPS = 200_000  # beyond this the published schedules are not built for comparison


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Search for the best schedule; the best so far on Ctrl-C."""
    from ..solve.auto import solve
    from ..solve.problem import make_problem
    from ..solve.shapes import solve_any
    from .commands import _profile
    from .live import Log, watching

    profile, any_shape = _profile(arguments), arguments.chunks == "any"
    if any_shape and arguments.placement:
        raise OptPipeError("--placement: --chunks any has placements of its own; leave one out")
    if not any_shape:
        profile = rechunked(profile, arguments.chunks, arguments.placement)
    start: Schedule | str | None = arguments.warm_start
    if start not in (None, "none"):
        start = Schedule.load(start)  # type: ignore[arg-type]
        if any_shape:
            raise OptPipeError("--chunks any: starts from many schedules; leave out --warm-start")
        check_start(start, arguments.warm_start, profile, arguments.microbatches)
    if arguments.noise is None and (arguments.quantile, arguments.samples) != (None, None):
        raise OptPipeError("--quantile, --samples: of what scatters; give --noise as well")
    files = _write_model(arguments, profile, start) if arguments.write_model else {}
    options: dict[str, Any] = {
        "engine": arguments.engine,
        "time_limit": arguments.time_limit,
        "objective": arguments.objective,
        "seed": arguments.seed,
        "on_wait": lambda: out.wait(COMPILING),
        "workers": arguments.workers,
        "evaluations": arguments.evaluations,
        "gap": arguments.gap,
        "solver": arguments.solver,
        # it may be meant for --write-model alone
        "force": arguments.force and (arguments.engine == "milp" or not arguments.write_model),
        "cache": not arguments.no_cache,
        "save": arguments.save,
    }
    if arguments.noise:
        from . import robust

        return robust.run(arguments, out, profile, files, options)
    with ExitStack() as stack:
        watchers: list[Callable[[Race], None]] = []
        log = Log(arguments.log) if arguments.log else None
        if log is not None:
            watchers.append(log)
        live = watching(out, "solving", arguments.time_limit)
        watchers.append(stack.enter_context(live))
        options["watch"] = _all(watchers)
        try:
            if any_shape:
                result = solve_any(
                    profile, arguments.microbatches, warm_start=arguments.warm_start, **options
                )
            else:
                result = solve(profile, arguments.microbatches, warm_start=start, **options)
        except (OutOfMemory, NoSolution) as error:
            out.result(nothing(arguments, error))
            raise
    assert result.trace is not None  # solve raises without one
    shaped = profile.for_shape(result.trace.schedule.shape)
    _describe(result, make_problem(shaped, arguments.microbatches, objective=arguments.objective))
    if log is not None:
        log.write()
        files[arguments.log] = "objective and bound over time"
    more = {"found_by": result.info["found_by"], "interrupted": result.info["interrupted"]}
    return finish(
        arguments,
        out,
        result.trace,
        {**result.measures(), **more},
        files,
        lambda: _show(out, arguments, profile, result, files),
        None if log is None else log.error,
    )


def finish(
    arguments: argparse.Namespace,
    out: Out,
    trace: Trace,
    answer: dict[str, Any],
    files: dict[str, str],
    tell: Callable[[], None],
    error: OptPipeError | None = None,
) -> int:
    """Write the files that are asked for (they join `files`) and give the answer; only then complain
    of what could not be written, as when a disk is full.

    Args:
        answer: for ``--json``. `tell`: gives it to people. `error`: what could not be written before.
    """
    from .commands import DONE, _write_trace

    try:
        files |= _write_trace(arguments, trace)
    except OptPipeError as failed:
        error = failed
    chunks = trace.schedule.shape.chunks
    common = {"chunks": chunks, "reason": None, "files": files}
    out.result({"schedule": "optpipe", **answer, **common})
    if not out.json:
        tell()
    if error is not None:
        raise error
    return DONE


def _all(watchers: Sequence[Callable[[Race], None]]) -> Callable[[Race], None]:
    def watch(race: Race) -> None:
        for each in watchers:
            each(race)

    return watch


def rechunked(profile: CostProfile, chunks: int | None, placement: str | None) -> CostProfile:
    """The profile with the chunks and the placement asked for; ``vee`` is of two chunks."""
    if chunks is None and placement is None:
        return profile
    if chunks is None:
        chunks = 2 if placement == "vee" else profile.chunks
    return profile.rechunk(chunks, placement or "loop")


def check_start(
    start: Schedule | str | None, path: str, profile: CostProfile, microbatches: int
) -> None:
    """Refuse a warm start that is for another problem.

    Raises:
        OptPipeError: names what differs.
    """
    assert isinstance(start, Schedule)
    wanted = profile.shape(microbatches)
    for name in ("devices", "chunks", "microbatches", "placement"):
        have, want = getattr(start.shape, name), getattr(wanted, name)
        if have != want:
            have, want = (list(v) if isinstance(v, tuple) else v for v in (have, want))
            raise OptPipeError(
                f"--warm-start {path}: is for {name} {have}, the problem has {name} {want}"
            )


def _write_model(
    arguments: argparse.Namespace, profile: CostProfile, start: Schedule | str | None
) -> dict[str, str]:
    """OptPipe's MILP into a file; the file and what it is."""
    from ..solve.milp import write_model
    from ..solve.problem import make_problem

    if arguments.chunks == "any":
        raise OptPipeError("--write-model: is of one shape; leave out --chunks any")
    problem = make_problem(profile, arguments.microbatches, None, arguments.objective)
    unit_ns = write_model(
        problem,
        arguments.write_model,
        warm_start=start if isinstance(start, Schedule) else None,
        force=arguments.force,
    )
    return {arguments.write_model: f"OptPipe's MILP, times in units of {unit_ns:g} ns"}


def nothing(arguments: argparse.Namespace, error: OptPipeError) -> dict[str, Any]:
    """The answer where there is no schedule."""
    from ..solve.result import status_of

    return {
        "schedule": "optpipe",
        "status": status_of(error),
        "engine": arguments.engine,
        "objective_ns": None,
        "lower_bound_ns": None,
        "gap": None,
        "fits": False,
        "reason": str(error),
    }


def _describe(result: SolveResult, problem: Problem) -> None:
    """Write into the schedule's notes where it comes from."""
    from ..solve.known import note

    assert result.schedule is not None
    result.schedule.meta.update(
        name="optpipe",
        status=result.status,
        objective_ns=result.objective_ns,
        found_by=result.info["found_by"],
    )
    note(problem, result.schedule, result.lower_bound_ns, result.bound_name)


# -- for people -----------------------------------------------------------------------------------


def _show(
    out: Out,
    arguments: argparse.Namespace,
    profile: CostProfile,
    result: SolveResult,
    files: dict[str, str],
) -> None:
    trace = result.trace
    assert trace is not None
    out.print(Text("optpipe", "bold"), "on", show.headline(profile, arguments.microbatches))
    if result.info["interrupted"]:
        out.print(Text("interrupted: the best so far", "yellow"))
    out.print()
    span = "" if trace.objective == "flush" else " of the longest device"
    time = Text(f"{format_time(trace.cost_ns)}{span}", "bold")
    when = result.incumbents[-1][0] if result.incumbents else 0.0
    found_by = result.info["found_by"]
    by = f"from the {found_by}" if found_by in KNOWN else f"by {found_by}"
    time.append(f", {by} after {when:.1f} of {result.seconds:.1f} s", "dim")
    show.line(out, "time per iteration", time)
    show.line(out, "proven", _proof(result, any_shape=arguments.chunks == "any"))
    flush = trace.objective == "flush"
    show.line(out, "bubble", f"{trace.bubble_rate_flush if flush else trace.bubble_rate:.1%}")
    show.line(out, "peak memory", show.peak_text(trace))
    activations = trace.schedule.shape.stages * trace.schedule.shape.microbatches
    offloaded = f"{trace.offloaded} of {activations} activations"
    if trace.offloaded:
        offloaded += f"; host memory peaks at {format_size(trace.host_peak_bytes)}"
    show.line(out, "offloaded", offloaded)
    if result.variables:
        size = f"{result.variables:,} variables, {result.constraints:,} constraints"
        show.line(out, "model", size)
    shape = trace.schedule.shape
    if shape.placement != profile.placement:
        show.line(out, "shape", f"{shape.chunks} chunks per device, placed {_placement(shape)}")
    fixed = _fixed(profile, result) if not out.quiet else None
    if not out.quiet and len(trace.schedule) <= MANY_OPS:
        show.line(out, "against", _against(trace, fixed))
    show.failed(out, result.info["failures"])
    show.written(out, files)
    _hints(out, arguments, profile, result, fixed)


def _placement(shape: Shape) -> str:
    name = shape.placement_name
    return name if isinstance(name, str) else "as listed"


def _proof(result: SolveResult, any_shape: bool) -> Text:
    assert result.schedule is not None
    # other numbers of chunks have schedules of their own, which may be faster
    chunks = f"with {counted(result.schedule.shape.chunks, 'chunk')} per device "
    which = "" if any_shape else chunks
    bound = f"{format_time(result.lower_bound_ns)} ({result.bound_name})"
    if result.status == "optimal":
        return Text(f"✓ optimal: {which}no schedule takes less than {bound}", "green")
    above = f"at most {result.gap:.2%} above the best possible"
    return Text(f"{above}: {which}none takes less than {bound}")


def _fixed(profile: CostProfile, result: SolveResult) -> tuple[str, Trace] | None:
    """The fastest published schedule that fits."""
    from ..solve.fixed import best_fixed, published

    trace = result.trace
    if trace is None or len(trace.schedule) > MANY_OPS:
        return None
    m = trace.schedule.shape.microbatches
    built = published(profile, m)
    return best_fixed(built, profile, profile.memory_limit, trace.objective)


def _against(trace: Trace, fixed: tuple[str, Trace] | None) -> Text:
    """How it stands to the fastest published schedule that fits."""
    if fixed is None:
        return Text("no published schedule fits this limit", "green")
    name, other = fixed
    chunks = other.schedule.shape.chunks
    ratio = other.cost_ns / trace.cost_ns
    what = f"{name}, the fastest published schedule that fits ({format_time(other.cost_ns)}"
    what += ")" if chunks == trace.schedule.shape.chunks else f", with {chunks} chunks per device)"
    if ratio >= 1:
        return Text(f"{ratio:.3f}× as fast as {what}", "green")
    return Text(f"slower than {what}", "yellow")


def _hints(
    out: Out,
    arguments: argparse.Namespace,
    profile: CostProfile,
    result: SolveResult,
    fixed: tuple[str, Trace] | None,
) -> None:
    """What to try next."""
    trace = result.trace
    assert trace is not None
    path, m = shlex.quote(arguments.profile), arguments.microbatches
    limit = arguments.memory_limit
    bound = "" if limit is None else f" --memory-limit {show.size_text(limit)}"
    if fixed is not None and fixed[1].cost_ns < trace.cost_ns:
        shape = fixed[1].schedule.shape
        if shape.placement != trace.schedule.shape.placement:
            show.hint(out, f"optpipe-sim solve {path} -m {m}{bound} --chunks any", code=True)
    elif result.status != "optimal" and result.seconds > 0.9 * arguments.time_limit:
        show.hint(out, f"a longer --time-limit (now {arguments.time_limit:g} s)")
    if arguments.save and arguments.chunks is None and arguments.placement is None:
        saved = shlex.quote(arguments.save)
        show.hint(out, f"optpipe-sim explain {saved} {path}{bound}", code=True)
    elif not arguments.save:
        show.hint(out, "keep it with --save best.json, draw it with --gantt gantt.png")
    least = max(profile.least_limits)
    if profile.memory_limit and max(profile.memory_limit) > least:
        top = max(profile.memory_limit)
        step = max(1, (top - least) // 6)
        digit = 2**20 if least >= 2**26 else 1
        step = max(digit, step // digit * digit)
        sizes = ":".join(_rounded(size, digit) for size in (least, top, step))
        show.hint(out, f"optpipe-sim frontier {path} -m {m} --limits {sizes}", code=True)


def _rounded(size: int, digit: int) -> str:
    """A size for a command line, in MiB or in bytes, not below what it is."""
    return f"{-(-size // digit)}MiB" if digit > 1 else str(size)


# -- cache ----------------------------------------------------------------------------------------


def run_cache(arguments: argparse.Namespace, out: Out) -> int:
    """Say what is kept on disk, or forget it."""
    from ..solve.cache import open_cache

    cache = open_cache()
    forgotten = cache.clear() if arguments.clear else None
    info = cache.info()
    out.result({**info, "forgotten": forgotten})
    if forgotten is not None:
        out.print(f"forgot {forgotten} solved problems in {info['folder']}")
    else:
        size, most = format_size(info["bytes"]), format_size(info["most_bytes"])
        out.print(f"{info['problems']} solved problems, {size} of {most}, in {info['folder']}")
        show.hint(out, "optpipe-sim cache --clear", code=True)
    return 0
