"""Keep, offload, recompute, or all of these, over the rate of copies: the best schedule of each and a bound on each."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.costs import estimate, load_machine
from optpipe_sim.errors import Infeasible, NoSolution, OutOfMemory
from optpipe_sim.profile import CostProfile
from optpipe_sim.solvers.solve import solve
from optpipe_sim.solvers.treatments import restrict
from optpipe_sim.study.tasks import Count, Row
from optpipe_sim.trace import Trace

VERSION = 1
ALTERNATIVES = {
    "keep": ("keep",),
    "offload": ("keep", "offload"),
    "recompute": ("keep", "recompute"),
    "all": ("keep", "offload", "recompute"),
}
CLOSE = 0.002  # a schedule so near to its bound is not searched further
ENGINES: tuple[str, ...] = ("shared", "separate")
RATES = 10, 20, 40, 80, 160, 450  # of copies, in GB/s, per device and direction


def run(
    model: str,
    devices: Count,
    seq: Count,
    cut: Literal["V", "4"],
    share: float,
    evaluations: Count,
    machine: str = "h100-sxm",
    per_device: Count = 2,
    tp: Count = 1,
    cp: Count = 1,
    dp: Count = 1,
    ep: Count = 1,
    zero: int = 0,
    seed: int = 0,
) -> list[Row]:
    """Return a row per number of copy engines and rate: makespan and bound, in ns, of each alternative.

    ``offload`` and ``recompute`` may keep, too, and ``all`` may do either of each activation, or both. Copies take the same rate in both directions. What
    fits at a rate fits at a higher one, with one engine as with two, in no more time: so schedules are passed on to these, and bounds to the rates below.
    Bounds are the best closed forms, of this cut. A time of None: no schedule fits, as far as the search saw. ``copy_over_work``: see
    `_copy_over_work`; ``interval``: what measured times may be over estimated ones, in four cases of five; ``toss_up``: the half-width of the same for a
    difference of two; ``offloaded``, ``recomputed``: activations, in the best schedule of ``all``.

    Args:
        devices: of the pipeline. cut: chunks per device, two in a V, or a number in a loop. share: of what 1F1B's activations take on the first device, the
            memory limit beside what the stages hold anyway. per_device: microbatches per device.
    """
    layout = {
        "devices": devices * tp * cp, "seq": seq, "tp": tp, "cp": cp, "dp": dp, "ep": ep, "zero": zero,
        "chunks": 2 if cut == "V" else int(cut), "placement": "vee" if cut == "V" else "loop",
    }  # fmt: skip
    at = partial(_profile, model, machine, share, layout)
    microbatches = devices * per_device
    search = partial(_best, microbatches=microbatches, evaluations=evaluations, seed=seed)
    first = at(RATES[0], ENGINES[0])
    kept = search(first, "keep", None)
    again = search(first, "recompute", kept)
    fixed = {name: _bound(first, name, microbatches) for name in ("keep", "recompute")}
    rows: list[Row] = []
    known: dict[tuple[str, float], dict[str, Trace | None]] = {}
    for engines in ENGINES:
        moved, every = kept, again
        for rate in RATES:
            profile = at(rate, engines)
            shared = known.get((ENGINES[0], rate), {})
            moved = search(profile, "offload", _least(moved, shared.get("offload")))
            every = search(profile, "all", _least(every, moved, shared.get("all")))
            best = {"keep": kept, "offload": moved, "recompute": again, "all": every}
            known[engines, rate] = best
            bounds = fixed | {
                name: _bound(profile, name, microbatches) for name in ("offload", "all")
            }
            rows.append(
                {
                    "engines": engines,
                    "rate": rate,
                    "microbatches": microbatches,
                    "copy_over_work": _copy_over_work(profile, engines),
                    "limit_bytes": max(profile.memory_limit or ()),
                    "machine_bytes": load_machine(machine).limit_bytes(),
                    "interval": list(profile.time_interval or ()),
                    "toss_up": profile.execution.between,
                    **{f"{name}_ns": found and found.makespan_ns for name, found in best.items()},
                    **{f"{name}_bound_ns": bounds[name] for name in ALTERNATIVES},
                    "offloaded": every and every.offloaded,
                    "recomputed": every and every.recomputed,
                }
            )
    _pass_on(rows)
    return rows


def _profile(
    model: str, machine: str, share: float, layout: dict[str, Any], rate: float, engines: str
) -> CostProfile:
    """Estimate the profile with copies at `rate` on a link of each device's own, under the limit of `share`."""
    own = load_machine(machine)
    assert own.pcie is not None
    link = replace(
        own.pcie,
        d2h_gb_per_s=rate,
        h2d_gb_per_s=rate,
        copy_engines=engines,
        devices_per_switch=1,
    )
    made = estimate(
        model, replace(own, pcie=link), offload=True, levels=True, execution="ideal", **layout
    )
    whole = made.rechunk(1)
    room = round(share * made.devices * whole.stages[0].act_bytes)
    return replace(made, memory_limit=tuple(static + room for static in made.static_bytes))


def _best(
    profile: CostProfile,
    name: str,
    start: Trace | None,
    microbatches: int,
    evaluations: int,
    seed: int,
) -> Trace | None:
    """Return the best schedule of an alternative, no slower than `start`; None where none fits, as far as the search saw."""
    try:
        found = solve(
            profile, microbatches, engine="search", evaluations=evaluations, seed=seed, workers=1, chunks="own",
            treatments=ALTERNATIVES[name], warm_start=None if start is None else start.schedule, gap=CLOSE,
        )  # fmt: skip
    except (OutOfMemory, Infeasible, NoSolution):
        return start
    return _least(found.trace, start)


def _least(*traces: Trace | None) -> Trace | None:
    return min(filter(None, traces), key=lambda trace: trace.makespan_ns, default=None)


def _bound(profile: CostProfile, name: str, microbatches: int) -> int:
    return lower_bound(restrict(profile, ALTERNATIVES[name]), microbatches, "flush").ns


def _pass_on(rows: list[Row]) -> None:
    """Raise the bounds of each row to those of rows that allow more: a higher rate, two engines in the place of one, more treatments."""
    for row in rows:
        for name, treatments in ALTERNATIVES.items():
            row[f"{name}_bound_ns"] = max(
                other[f"{more}_bound_ns"]
                for other in rows
                if other["rate"] >= row["rate"]
                and ENGINES.index(other["engines"]) >= ENGINES.index(row["engines"])
                for more, wider in ALTERNATIVES.items()
                if set(wider) >= set(treatments)
            )


def _copy_over_work(profile: CostProfile, engines: str) -> float:
    """Return how long an engine copies all activations, over the compute time, both of a microbatch on the device where that is the most."""
    times = 2 if engines == "shared" else 1
    shares = [
        sum(profile.stages[stage].t_offload_ns or 0 for stage in own)
        * times
        / sum(profile.stages[stage].work_ns for stage in own)
        for own in map(profile.shape(1).stages_of, range(profile.devices))
    ]
    return round(max(shares), 4)
