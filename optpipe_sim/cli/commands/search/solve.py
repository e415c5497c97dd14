"""``solve``: search for the best schedule, and prove a bound on its optimality gap."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....errors import NoSolution, OptPipeError, OutOfMemory
from ...options.fields import same
from ...options.kinds import count, noise, share
from ...options.shared import add_family, add_outputs, add_pictures, add_problem
from ...options.solving import add_search, search_options
from ..examples import OFFLOADING

if TYPE_CHECKING:
    from ....profile import CostProfile
    from ....schedule import Schedule
    from ....solvers.problem import Problem
    from ....solvers.race.race import Race
    from ....solvers.result import SolveResult
    from ...outputs.show import Out

EXAMPLE = f"optpipe-sim solve {OFFLOADING} -m 48 --memory-limit 24GiB --save best.json"
SUMMARY = "search for the best schedule, and prove how good it is"
BESIDE_S, BESIDE_SHARE = 1.5, 0.1  # of the time limit, for plans beside the best one


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `solve`."""
    add_problem(parser)
    chunks = (
        "chunks per device: a number, any, or the profile's; default: any. Any: all numbers up to one layer per"
        " stage, and two in a V, never slower than a published schedule, whatever its options. The default is that of"
        " the file with --warm-start FILE; the profile's with --placement, --evaluations, --write-model, --noise,"
        " --engine milp or cpsat"
    )
    more = ("solver", "evaluations", "force", "margin", "slices")
    force = "write that MILP even if it is very large"
    add_search(parser, *more, chunks=chunks, force=force)
    model = "write the reconstructed MILP of this problem, whatever the engine (.lp or .mps)"
    add_outputs(parser, ("write-model", "F.mps", model))
    parser.add_argument(
        "--warm-start",
        metavar="FILE|none",
        help="a schedule file to start from; none: engines start from nothing (default: the best"
        " of AdaOffload, the published schedules and the cache)",
    )
    parser.add_argument(
        "--noise",
        metavar="SHARES",
        type=noise,
        help="scatter of durations: 10%%, or each of op, copy, device, comm, straggler as in"
        " op=5%%,copy=20%%; finds the schedule with the least mean time over samples",
    )
    parser.add_argument(
        "--quantile",
        metavar="Q",
        type=share,
        help="with --noise: the least quantile instead, as 90%%",
    )
    parser.add_argument(
        "--samples", metavar="N", type=count, help="with --noise: of durations (default: 400)"
    )
    add_family(
        parser,
        "the best plan that this framework can run, compared with the best of all, ending in the options"
        " to paste",
    )
    parser.add_argument(
        "--layers",
        choices=("own", "any"),
        default="own",
        help="any: choose the layers of each stage as well, by the profile's costs per layer"
        " (`estimate` writes them); default: the stages of the profile",
    )
    profile = "write the profile of the layout, which the schedule is for"
    add_outputs(parser, ("save-profile", "Q.yaml", f"with --layers any, --family: {profile}"))
    add_pictures(parser, "the", "the schedule, its memory and why it waits")
    add_outputs(
        parser,
        ("save", "S.json", "write the best schedule, anew with every better one"),
        ("log", "F.csv", "write objective and bound over time, at each improvement"),
    )


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Search for the best schedule; print the best so far on Ctrl-C."""
    from ....solvers.problem import make_problem
    from ....solvers.solve import solve
    from ....solvers.treatments import restrict
    from ...inputs import read_profile
    from ...outputs.files import rewritable
    from ...outputs.live import Log, watching
    from ...outputs.solve import show_solution
    from . import family, layers, robust
    from .common import NOTHING_BESIDE, finish, plain_beside, refuse

    if arguments.layers == "any":
        return layers.run(arguments, out)
    if arguments.family:
        return family.run(arguments, out)
    if arguments.save_profile:
        raise OptPipeError("--save-profile: is for --layers any and --family")
    if arguments.chunks == "any" and arguments.placement:
        raise OptPipeError("--placement: --chunks any has placements of its own; leave one out")
    own = arguments.chunks is None and _about_one_shape(arguments)
    options = search_options(
        arguments,
        # it may be for --write-model only
        force=arguments.force and (arguments.engine == "milp" or not arguments.write_model),
        **({"chunks": "own"} if own else {}),
    )
    any_shape = options.chunks == "any"
    profile = options.rechunked(restrict(read_profile(arguments), options.treatments))
    start, profile = _warm_start(arguments, profile, any_shape)
    if arguments.noise is None and (arguments.quantile, arguments.samples) != (None, None):
        raise OptPipeError("--quantile, --samples: of what scatters; give --noise as well")
    files = _write_model(arguments, profile, start) if arguments.write_model else {}
    hooks: dict[str, Any] = {
        "on_wait": out.compiling,
        "save": rewritable(arguments.save),
    }
    # the profile already has the chunks and the placement
    settled = options if any_shape else replace(options, chunks="own", placement="own")
    if options.slices != "any":
        settled = replace(settled, slices="own")
    if arguments.noise:
        return robust.run(arguments, out, profile, files, settled, **hooks)
    # what stands beside the best plan is replayed within the limit
    beside_s = min(BESIDE_S, BESIDE_SHARE * settled.time_limit)
    settled = replace(settled, time_limit=settled.time_limit - beside_s)
    with ExitStack() as stack:
        watchers: list[Callable[[Race], None]] = []
        log = Log(arguments.log) if arguments.log else None
        if log is not None:
            watchers.append(log)
        live = watching(out, "solving", arguments.time_limit)
        watchers.append(stack.enter_context(live))
        hooks["watch"] = _all(watchers)
        try:
            result = solve(
                profile, arguments.microbatches, **vars(settled), warm_start=start, **hooks
            )
        except (OutOfMemory, NoSolution) as error:
            refuse(arguments, out, read_profile(arguments), error)
    assert result.trace is not None  # solve raises without one
    shaped = profile.for_shape(result.trace.schedule.shape)
    asked = same(arguments, "objective", "per_stage", "pairs")
    solved = make_problem(shaped, arguments.microbatches, **asked)
    _describe(result, solved)
    if log is not None:
        log.write()
        files[arguments.log] = "objective and bound over time"
    more = {"found_by": result.info["found_by"], "interrupted": result.info["interrupted"]}
    plain = plain_beside(profile, result.trace, chunks=None if any_shape else profile.chunks)
    more |= plain.to_json(result.trace) if plain is not None else NOTHING_BESIDE
    return finish(
        arguments,
        out,
        result.trace,
        {**result.measures(), **more},
        files,
        lambda: show_solution(out, arguments, profile, result, files, plain),
        None if log is None else log.error,
    )


def _warm_start(
    arguments: argparse.Namespace, profile: CostProfile, any_shape: bool
) -> tuple[Schedule | str | None, CostProfile]:
    """Load the schedule to start from, and adapt the profile to its shape unless one is given."""
    from ....frameworks.torch_csv import load_schedule
    from ...inputs import check_start

    if arguments.warm_start in (None, "none"):
        return arguments.warm_start, profile
    start = load_schedule(arguments.warm_start)
    if any_shape:
        raise OptPipeError("--chunks any: starts from many schedules; leave out --warm-start")
    if arguments.chunks is None and arguments.placement is None:
        profile = profile.for_shape(start.shape)
    check_start(start, arguments.warm_start, profile, arguments.microbatches)
    return start, profile


def _about_one_shape(arguments: argparse.Namespace) -> bool:
    """Whether an option other than those of `SolveOptions` is about one shape."""
    started = arguments.warm_start not in (None, "none")
    return bool(started or arguments.write_model or arguments.noise)


def _all(watchers: Sequence[Callable[[Race], None]]) -> Callable[[Race], None]:
    def watch(race: Race) -> None:
        for each in watchers:
            each(race)

    return watch


def _write_model(
    arguments: argparse.Namespace, profile: CostProfile, start: Schedule | str | None
) -> dict[str, str]:
    """Write the reconstructed MILP; return the file with its description."""
    from ....schedule import Schedule
    from ....solvers.milp.milp import write_model
    from ....solvers.problem import make_problem

    if arguments.chunks == "any":
        raise OptPipeError("--write-model: is of one shape; leave out --chunks any")
    if arguments.margin is not None:
        from ....solvers.margins.plan import padded

        profile = padded(profile, arguments.margin)
    if profile.slices > 1:
        raise OptPipeError("--write-model: the MILP orders whole sequences; give --slices 1")
    problem = make_problem(profile, arguments.microbatches, None, arguments.objective, pairs=False)
    if problem.may_recompute:
        raise OptPipeError(
            "--write-model: the MILP keeps or offloads activations; give --treatments keep,offload"
        )
    unit_ns = write_model(
        problem,
        arguments.write_model,
        warm_start=start if isinstance(start, Schedule) else None,
        force=arguments.force,
    )
    return {arguments.write_model: f"the reconstructed MILP, times in units of {unit_ns:g} ns"}


def _describe(result: SolveResult, problem: Problem) -> None:
    """Record the origin of the schedule in its metadata."""
    from ....solvers.known import note

    assert result.schedule is not None
    result.schedule.meta.update(
        name="optpipe",
        status=result.status,
        objective_ns=result.objective_ns,
        found_by=result.info["found_by"],
    )
    note(problem, result.schedule, result.lower_bound_ns, result.bound_name)
