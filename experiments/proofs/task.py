"""Small problems: random instances, solved by each engine and compared with what CP-SAT proves, and the
reconstructed MILP alone with its accelerations switched.

Instances have uneven stages, one or two chunks, loop, vee and explicit placements, separate and shared copy
engines, host-link groups, partial offloads, zero-length copies, limits from the least that works
upwards; with `levels` every stage may have levels of recomputation as well, one choice per stage
in some.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal

from experiments import engines
from optpipe_sim import CostProfile, load_profile
from optpipe_sim.checker.check import check
from optpipe_sim.errors import OptPipeError, OutOfMemory
from optpipe_sim.solvers.cpsat.cpsat import solve_cpsat
from optpipe_sim.solvers.milp.milp import solve_milp
from optpipe_sim.solvers.problem import Problem, make_problem
from optpipe_sim.solvers.result import OPTIMAL, SolveResult
from optpipe_sim.solvers.solve import solve
from optpipe_sim.study.tasks import Count, Limit, Row, Rows, Seconds

VERSION = 1


def random_levels(random: Random, act: int, longest: int) -> list[dict[str, Any]]:
    """Draw none to two levels, each of which drops more than the one before."""
    found, keep = [], act
    for name in random.choice(((), ("light",), ("full",), ("light", "full"))):
        keep = random.randint(0, keep)
        level = {"name": name, "t_ns": random.randint(1, longest), "keep_bytes": keep}
        if random.random() < 0.5:
            level["work_bytes"] = random.randint(0, act - keep)
        found.append(level)
    return found


def random_profile(random: Random, levels: bool) -> CostProfile:
    devices = random.randint(2, 3 if levels else 5)
    chunks = 1 if levels and devices > 2 else random.choice((1, 1, 2))
    stages = devices * chunks
    longest = random.choice((4, 12, 30))
    placement: Any = "vee" if chunks == 2 and random.random() < 0.5 else "loop"
    if random.random() < 0.15:
        placement = list(range(devices)) * chunks
        random.shuffle(placement)
    costs = []
    for _ in range(stages):
        act = random.choice((4, 10, 12))
        recompute = random_levels(random, act, longest) if levels else []
        costs.append(
            {
                "t_f_ns": random.randint(1, longest),
                "t_b_ns": random.randint(1, longest),
                "t_w_ns": random.randint(0, longest),
                "act_bytes": act,
                "w_bytes": random.choice((0, act // 2, act)),
                "offload_bytes": random.choice((act, act, act // 2)),
                "static_bytes": random.choice((0, 5)),
                "recompute": recompute,
            }
        )
    if random.random() < 0.4:
        costs = [costs[0]] * stages
    left, groups = random.sample(range(devices), devices), []
    while len(left) > 1 and random.random() < 0.5:
        groups.append([left.pop(), left.pop()])
    copy = random.choice((1, longest, 2 * longest))
    return load_profile(
        {
            "devices": devices,
            "chunks": chunks,
            "placement": placement,
            "stages": costs,
            "t_comm_ns": random.choice((0, 1, longest // 2)),
            "offload": {
                "t_offload_ns": [random.randint(0, copy) for _ in range(stages)],
                "t_reload_ns": [random.randint(0, copy) for _ in range(stages)],
                "copy_engines": random.choice(("separate", "shared")),
                "host_link_groups": groups,
            },
        }
    )


def instance(seed: int, levels: bool = False) -> Problem:
    random = Random(seed)
    profile = random_profile(random, levels)
    stages = len(profile.stages)
    m = random.randint(2, 4 if stages <= 4 else 3 if stages <= 6 else 2)
    if levels:
        m = min(m, 3 if stages < 4 else 2)
    room = max(cost.act_bytes for cost in profile.stages) * profile.chunks
    more = random.choice((0, 0.5, 1, 2, 4))
    limit = [least + int(more * room) for least in profile.least_limits]
    objective = random.choice(("flush", "flush", "span"))
    per_stage = levels and random.random() < 0.25
    return make_problem(profile, m, limit, objective, per_stage=per_stage)


def run(
    part: str,
    seed: int = 0,
    levels: bool = False,
    time_limit: Seconds = 5.0,
    profile: CostProfile | None = None,
    microbatches: Count = 1,
    memory_limit: Limit = None,
    start: Literal["adaoffload", "everything", "none"] = "none",
    solver: str = "highs",
    switched: Sequence[str] = (),
    cores: Count = 1,
) -> Rows:
    """Return each engine's result on a random instance or, of a profile, what the MILP does (the task ``engines``
    says how). `part` is the part of the table that the point is for."""
    if profile is None:
        return agreement(seed, levels, time_limit, cores)
    return engines.run(
        "milp",
        [time_limit],
        profile,
        microbatches,
        memory_limit,
        start=start,
        solver=solver,
        switched=switched,
    )


def agreement(seed: int, levels: bool, time_limit: float, cores: int) -> Row:
    """Return each engine's result on an instance, and in ``problems`` the contradictions: a bound of any
    engine above a schedule, `auto` above the proven optimum, a MILP that proves another, a schedule
    that the checker refuses. CP-SAT has three times the time of the others; the MILP is left out where
    activations may be recomputed, which it does not know."""
    problem = instance(seed, levels)
    profile, m, limits = problem.profile, problem.microbatches, problem.limits
    assert limits is not None
    problems: list[str] = []
    below = [limit - 1 for limit in profile.least_limits]
    try:
        solve(profile, m, below, time_limit=1, chunks="own")
        problems.append("a limit below the least was accepted")
    except OutOfMemory as error:
        if "the least limit that works" not in str(error):
            problems.append(f"the least limit is not named: {error}")
    bound = problem.lower_bound
    row: dict[str, Any] = {
        "p": profile.devices, "v": profile.chunks, "m": m,
        "ops": 3 * len(profile.stages) * m, "limit": max(limits), "objective": problem.objective,
        "engines": profile.offload.copy_engines if profile.offload else "",
        "level_count": sum(len(cost.recompute) for cost in profile.stages),
        "per_stage": problem.per_stage,
        "closed_form_ns": bound.ns, "bound": bound.name,
    }  # fmt: skip

    def solved(name: str, call: Callable[[], SolveResult]) -> SolveResult | None:
        began = time.monotonic()
        try:
            found = call()
        except OptPipeError as error:
            problems.append(f"{name}: {error}")
            return None
        row[f"{name}_s"] = round(time.monotonic() - began, 2)
        row[name] = found.objective_ns if found.schedule is not None else None
        row[f"{name}_bound"] = found.lower_bound_ns
        if found.schedule is not None:
            problems.extend(f"{name}: {text}" for text in check(found.schedule, profile, limits))
        return found

    auto = solved(
        "auto",
        lambda: solve(
            profile,
            m,
            limits,
            time_limit=time_limit,
            objective=problem.objective,
            per_stage=problem.per_stage,
            workers=cores,
            chunks="own",
        ),
    )
    start = auto.schedule if auto is not None else None
    cpsat = solved(
        "cpsat", lambda: solve_cpsat(problem, 3 * time_limit, workers=cores, warm_start=start)
    )
    milp = None
    if not problem.may_recompute:  # the MILP keeps or offloads
        milp = solved("milp", lambda: solve_milp(problem, time_limit, warm_start=start))
    row["auto_status"] = auto.status if auto else "none"
    row["cpsat_proven"] = bool(cpsat and cpsat.status == OPTIMAL)
    row["milp_proven"] = bool(milp and milp.status == OPTIMAL)
    found = [result for result in (auto, cpsat, milp) if result and result.schedule is not None]
    best = min((result.objective_ns for result in found), default=None)
    for name, proven in (
        ("bound", bound.ns),
        *((n, row.get(f"{n}_bound", 0)) for n in ("auto", "cpsat", "milp")),
    ):
        if best is not None and proven > best:
            problems.append(f"{name}: the bound {proven} is above a schedule of {best}")
    if row["cpsat_proven"] or row["milp_proven"]:
        for result in found:
            if result.status == OPTIMAL and result.objective_ns != best:
                problems += [f"{result.engine}: proves {result.objective_ns}, but {best} exists"]
        if auto is not None and auto.objective_ns != best:
            problems.append(f"auto: {auto.objective_ns} misses the optimum {best}")
    row["problems"] = "; ".join(problems)
    return row
