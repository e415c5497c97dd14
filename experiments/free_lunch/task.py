"""PipeOffload's figure 1: the ratio k, and the cost of offloading all of 1F1B where copies are slow."""

from __future__ import annotations

from functools import partial

from experiments.published import published
from optpipe_sim.ops import BW, F, O, Op, Pair, R
from optpipe_sim.profile import CostProfile
from optpipe_sim.profile_io import load_profile
from optpipe_sim.schedule import Schedule
from optpipe_sim.schedules import build
from optpipe_sim.schedules.copies import ROUND_TRIPS
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import Count, Row
from optpipe_sim.trace import Trace

VERSION = 1
_AHEAD = 4  # a reload is issued up to so many ops before its backward; the best is taken


def free_lunch_ratio(
    hidden: int, seq: int, compute_tflops: float, offload_gb_per_s: float
) -> float:
    """k = 10 / (3 (6 h + s)) B_c / B_o: equation 1 of PipeOffload (arXiv 2503.01328).

    k is the round trip of a layer's activations over its compute time. With norms, GeLU and dropout recomputed a
    GPT layer keeps 20 s b h bytes, so T_o = 40 s b h / B_o, one direction at a time; its F, B and W take T_c = 12
    s b h (6 h + s) / B_c. Everything can be offloaded for free if k <= 1.

    With the authors' rates (A100: 220 TFLOP/s, 15 GB/s) this gives their figure 1 (left) to .01 at
    s = 4096 and to .035 at 8192, and lies up to .053 above it at 32768. The reason is in the
    rates: the printed values are the formula's times a factor of the column alone (.997, .982, .965,
    .940 for s = 4096 to 32768), for every h, to the rounding of the figure. A missing term
    of the formula would depend on s / h. So the rates behind the figure changed with the sequence,
    as if copies ran at 15.0, 15.3, 15.5 and 16.0 GB/s; which of the two rates, is not published.
    """
    return 10 / (3 * (6 * hidden + seq)) * (compute_tflops * 1e12) / (offload_gb_per_s * 1e9)


def run(
    hidden: Count,
    seq: Count,
    devices: Count = 8,
    microbatches: Count = 32,
    compute_tflops: float = 220.0,
    offload_gb_per_s: float = 15.0,
    paired: bool = False,
    overhead: float = 0.0,
) -> Row:
    """Return k by the formula, the slowdown of fully offloaded 1F1B in percent, and the published
    values (None where there are none).

    One GPT layer per device, at the two rates: F, B and W by their FLOPs, 20 s h bytes (the ratio of
    times does not depend on the number of layers). One copy engine per device, for both directions.
    Activations held for less than three round trips stay, as in the authors' code. `paired`: two devices
    share a switch of twice the rate, one transfer at a time, so that a device gets `offload_gb_per_s`
    where its neighbour copies as well and twice as much alone. `overhead`: the part of the time that
    belongs to no op, by which all compute ops take longer.
    """
    profile = _profile(
        hidden, seq, devices, compute_tflops / (1 + overhead), offload_gb_per_s, paired
    )
    base = build("1f1b", profile, microbatches)
    replay = partial(simulate, profile=profile, enforce=False)
    plain = replay(base)
    moved = [replay(_offloaded(plain, ahead, paired)) for ahead in range(1, _AHEAD + 1)]
    best = min(moved, key=lambda trace: trace.makespan_ns)
    figure = published("pipeoffload")["figure_1"]
    at = figure["sequence"].index(seq) if seq in figure["sequence"] else None

    def printed(table: str) -> float | None:
        row = {int(key): row for key, row in figure[table].items()}.get(hidden)
        return None if row is None or at is None else float(row[at])

    return {
        "k": free_lunch_ratio(hidden, seq, compute_tflops, offload_gb_per_s),
        "published_k": printed("k"),
        "slowdown_percent": 100 * (best.makespan_ns / plain.makespan_ns - 1),
        "published_slowdown_percent": printed("slowdown_percent"),
        "offloaded": best.measures()["offloaded"],
        "peak_bytes": max(best.peak_bytes),
        "peak_bytes_without": max(plain.peak_bytes),
    }


def _profile(
    hidden: int, seq: int, devices: int, tflops: float, gb_per_s: float, paired: bool
) -> CostProfile:
    per_flop = seq * hidden / (tflops * 1e3)  # ns
    copies = 20 * seq * hidden / gb_per_s / (2 if paired else 1)
    groups = [[at, at + 1] for at in range(0, devices - 1, 2)] if paired else []
    data = {
        "name": f"h{hidden}-s{seq}",
        "devices": devices,
        "stages": {
            "t_f_ns": round(per_flop * (24 * hidden + 4 * seq)),
            "t_b_ns": round(per_flop * (24 * hidden + 8 * seq)),
            "t_w_ns": round(per_flop * 24 * hidden),
            "act_bytes": 20 * seq * hidden,
        },
        "offload": {
            "t_offload_ns": round(copies),
            "t_reload_ns": round(copies),
            "copy_engines": "shared",
            "host_link_groups": groups,
        },
    }
    return load_profile(data)


def _offloaded(trace: Trace, ahead: int, paired: bool) -> Schedule:
    """The schedule of a trace with every activation offloaded that lives long enough, copies slow or
    not: an O right after its F, an R so many compute ops before its BW. On a paired link a round trip
    is counted as it is while the neighbour copies as well."""
    base, durations = trace.schedule, trace.profile.durations_ns
    begin = {span.op: span.start_ns for span in trace.spans}
    programs = []
    for device, ops in enumerate(base.programs):
        place = {op: at for at, op in enumerate(ops)}
        stage = base.shape.stages_of(device)[0]
        shortest = ROUND_TRIPS * (1 + paired) * (durations[O][stage] + durations[R][stage])
        before: dict[int, list[Op]] = {}
        after: dict[int, list[Op]] = {}
        for j in range(base.shape.microbatches):
            forward, backward = Op(F, stage, j), Op(BW, stage, j)
            if begin[backward] - begin[forward] - durations[F][stage] > shortest:
                after.setdefault(place[forward], []).append(Op(O, stage, j))
                at = max(place[backward] - ahead, place[forward] + 1)
                before.setdefault(at, []).append(Op(R, stage, j))
        program: list[Op | Pair] = []
        for at, op in enumerate(ops):
            program += [*before.get(at, ()), op, *after.get(at, ())]
        programs.append(program)
    return Schedule(base.shape, programs, {}, {})
