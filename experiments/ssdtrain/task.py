"""SSDTrain's experiment: which part of the activations a drive can take behind the compute."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from experiments.published import published
from optpipe_sim.costs import estimate, load_machine
from optpipe_sim.ops import BW, F, O, Op, R
from optpipe_sim.profile import CostProfile
from optpipe_sim.schedule import Schedule
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import Count, Row
from optpipe_sim.trace import Trace

VERSION = 1
BASE = "a100-80gb"
PARTS = 4  # equal ones of a layer that are kept or offloaded; SSDTrain decides tensor by tensor
PCIE = 24.0  # GB/s of an A100's 16 lanes of PCIe 4, in one direction: assumed
AHEAD = 4  # a reload is issued up to so many ops before its backward; the best is taken
FREE = 0.01  # an overhead below is called none


def run(hidden: Count, layers: Count, batch: Count, gb_per_s: float, speed: float) -> Row:
    """Peak of the activations and time of an iteration without offloading, with full recomputation, with
    everything offloaded but the last part, and with as much offloaded as takes at most 1 % longer.

    One device of two that share each layer; one microbatch. The first parts of the model are
    offloaded, as SSDTrain does where it keeps some. `gb_per_s`: what a device's own drives write,
    and read. `speed`: how fast they compute, as a share of the rates of a100-80gb, which were
    fitted to A100s of 400 W.

    Returns:
        bytes, times and their ratios; ``needed_gb_per_s``: what is offloaded where all of it is, over
        the time of the forwards behind which it is written.
    """
    kept = _profile(hidden, layers, batch, gb_per_s, speed, "none")
    last = kept.devices * kept.chunks - 1
    plain = simulate(_offloading(kept, 0, 0), kept)
    full = _profile(hidden, layers, batch, gb_per_s, speed, "full")
    recomputed = simulate(_offloading(full, 0, 0), full)
    tried = [
        (count, simulate(_offloading(kept, count, ahead), kept))
        for count in range(1, last + 1)
        for ahead in range(1, AHEAD + 1)
    ]
    whole = [trace for count, trace in tried if count == last]
    everything = min(whole, key=lambda trace: (trace.makespan_ns, _activations(trace)))
    most_ns = (1 + FREE) * plain.makespan_ns
    free = [(0, plain), *((n, trace) for n, trace in tried if trace.makespan_ns <= most_ns)]
    count, best = min(free, key=lambda one: (_activations(one[1]), one[1].makespan_ns))
    wear = best.wear
    assert wear is not None
    behind = sum(cost.t_f_ns for cost in kept.stages[1:])
    return {
        "kept_bytes": _activations(plain),
        "kept_ns": plain.makespan_ns,
        "recomputed_bytes": _activations(recomputed),
        "recompute_overhead": recomputed.makespan_ns / plain.makespan_ns - 1,
        "all_bytes": _activations(everything),
        "all_overhead": everything.makespan_ns / plain.makespan_ns - 1,
        "parts": last + 1,
        "offloaded_parts": count,
        "free_bytes": _activations(best),
        "free_overhead": best.makespan_ns / plain.makespan_ns - 1,
        "reduction": 1 - _activations(best) / _activations(plain),
        "needed_gb_per_s": sum(cost.offloadable for cost in kept.stages[:last]) / behind,
        "written_bytes": wear.written_bytes,
        "years": wear.years,
    }


@cache
def _profile(
    hidden: int, layers: int, batch: int, gb_per_s: float, speed: float, recompute: str
) -> CostProfile:
    """One device's share of the model in parts of a layer, and its own drives."""
    facts, rates = published("ssdtrain"), load_machine(BASE).rates
    setting, drives = facts["setting"], facts["drives"]
    model = {
        "name": f"gpt-h{hidden}-l{layers}",
        "style": "gpt",
        "layers": layers,
        "hidden": hidden,
        "heads": hidden // setting["head_dim"],
        "vocab": setting["vocab"],
        "positions": setting["seq"],
        "tied": True,
    }
    pcie = {"d2h_gb_per_s": PCIE, "h2d_gb_per_s": PCIE, "devices_per_switch": 1}
    machine = {
        "base": BASE,
        "devices_per_node": setting["devices"],
        "pcie": {**pcie, "copy_engines": "separate"},
        "nvme": {
            "write_gb_per_s": setting["devices"] * gb_per_s,
            "read_gb_per_s": setting["devices"] * gb_per_s,
            "number": sum(drives["arrays"]),
            "terabytes": drives["terabytes"],
            "writes_per_day": drives["writes_per_day"],
        },
        "offload_to": "nvme",
        "achieved": {
            key: speed * getattr(rates, key) for key in ("gemm", "attention", "bandwidth")
        },
    }
    costs = estimate(
        model, machine, setting["devices"], tp=setting["tp"], chunks=layers, microbatch=batch,
        seq=setting["seq"], dtype=setting["dtype"], recompute=recompute, sequence_parallel=False,
        levels=False,
    )  # fmt: skip
    free = [replace(cost, layers=None) for cost in costs.stages]  # a part is less than a layer
    return replace(costs, stages=tuple(free), memory_limit=None).rechunk(PARTS * layers)


def _offloading(costs: CostProfile, count: int, ahead: int) -> Schedule:
    """All forwards, all backwards; the first `count` parts are offloaded after their forward and reloaded
    so many ops before their backward."""
    shape = costs.shape(1)
    stages = range(shape.stages)
    program: list[Op] = []
    for stage in stages:
        program += [Op(F, stage, 0), *([Op(O, stage, 0)] if stage < count else [])]
    backwards = list(reversed(stages))
    reloads: dict[int, list[Op]] = {}
    for at, stage in enumerate(backwards):
        if stage < count:
            reloads.setdefault(max(0, at - ahead), []).append(Op(R, stage, 0))
    for at, stage in enumerate(backwards):
        program += [*reloads.get(at, []), Op(BW, stage, 0)]
    return Schedule(shape, [program], {}, {})


def _activations(trace: Trace) -> int:
    """The most that activations hold."""
    return max(trace.peak_bytes) - sum(cost.static_bytes for cost in trace.profile.stages)
