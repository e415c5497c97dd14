"""Published schedules against the bounds on anything in their memory: in their own cut, and in any cut."""

from __future__ import annotations

from dataclasses import replace

from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.errors import OptPipeError
from optpipe_sim.names import build
from optpipe_sim.profile import CostProfile
from optpipe_sim.profile_io import load_profile
from optpipe_sim.sim import simulate
from optpipe_sim.solvers.axes import candidate_shapes, covers
from optpipe_sim.study.tasks import Count, Row

VERSION = 2
LAYERS = 8  # per stage of one chunk
ACT = 2**30
SCHEDULES = (
    "1f1b", "1f1b-i:chunks=2", "1f1b-i:chunks=4", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v", "gis",
    "po:chunks=2", "po:chunks=4",
)  # fmt: skip


def run(
    devices: Count,
    per_device: Count,
    times: list[int],
    copy: float | None = None,
) -> list[Row]:
    """Return a row per schedule that these microbatches admit.

    ``peak``: of activations, as a share of what 1F1B's take (p activations of a device). ``own_gap``: of the makespan to the best
    closed form for the schedule's own cut in that memory; ``any_gap``: to the least of those for all cuts (``covers``).

    Args:
        per_device: microbatches per device. times: of F, B and W, in ms. copy: of a stage's activation, in F's; None: no copies.
    """
    whole = _profile(devices, times, copy)
    microbatches = devices * per_device
    shapes = candidate_shapes(whole)
    rows = []
    for name in SCHEDULES:
        try:
            schedule = build(name, whole, microbatches)
        except OptPipeError:  # too few microbatches, or nothing to offload with
            continue
        trace = simulate(schedule, whole)
        limit = max(trace.peak_bytes)
        own = lower_bound(whole.for_shape(schedule.shape), microbatches, "flush", limit)
        least, shape = min(
            ((lower_bound(each, microbatches, "flush", limit), each) for each in shapes),
            key=lambda found: found[0].ns,
        )
        rows.append(
            {
                "schedule": name,
                "microbatches": microbatches,
                "chunks": schedule.shape.chunks,
                "peak": limit / (devices * ACT),
                "makespan_ns": trace.makespan_ns,
                "offloaded": trace.offloaded,
                "own_bound_ns": own.ns,
                "own_proof": own.name,
                "own_gap": trace.makespan_ns / own.ns - 1,
                "any_bound_ns": least.ns,
                "any_cut": covers([shape]),
                "any_gap": trace.makespan_ns / least.ns - 1,
                "covers": covers(shapes),
            }
        )
    return rows


def _profile(devices: int, times: list[int], copy: float | None) -> CostProfile:
    forward, backward, weights = times
    profile = load_profile(
        {
            "name": f"equal-p{devices}",
            "devices": devices,
            "stages": {
                "t_f_ms": forward, "t_b_ms": backward, "t_w_ms": weights,
                "act_bytes": ACT, "w_bytes": ACT // 2, "layers": LAYERS,
            },
            "t_comm_us": 30 * forward,
            "offload": {"t_offload_ms": forward * (copy or 1), "t_reload_ms": forward * (copy or 1)},
        }
    )  # fmt: skip
    return profile if copy is not None else replace(profile, offload=None)
