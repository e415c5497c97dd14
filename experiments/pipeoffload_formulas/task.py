"""PipeOffload's table 1: bubble and activations of a schedule, by formula, printed and simulated."""

from __future__ import annotations

from experiments.published import published
from optpipe_sim.errors import OptPipeError
from optpipe_sim.schedules import build, parse_name
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import CostProfile, Count, Row, ScheduleName

VERSION = 1


def run(profile: CostProfile, microbatches: Count, schedule: ScheduleName) -> Row:
    """Bubble (span less work) in units of a stage's mean F, B or W, and the peak in activations of a
    chunk and of the whole model (M), of a profile with equal stages.

    ``formula_*``: table 1 (arXiv 2503.01328), with its exact peak for 1F1B-I, d v + d - 1 chunks in
    the place of (v + 1) / v M; None where there is none but O(...), or *below 1F1B's*.
    ``printed_*``: what the authors' scheduler gives for the same shape; None for others.

    Raises:
        OptPipeError: where stages differ.
    """
    if len(set(profile.stages)) > 1:
        raise OptPipeError("profile.stages: differ; table 1 is about equal ones")
    stage, d, v = profile.stages[0], profile.devices, profile.chunks
    trace = simulate(build(schedule, profile, microbatches), profile, enforce=False)
    unit = stage.work_ns / 3
    name, options = parse_name(schedule)
    bubble, peak = _formulas(name, d, v, stage.t_f_ns, stage.t_b_ns, stage.t_w_ns)
    bubble_ns = max(trace.span_ns) - max(trace.busy_ns)
    peak_chunks = max(trace.peak_bytes) / stage.act_bytes
    key = f"po-{options['offloaded']}" if "offloaded" in options else name
    equal = stage.t_f_ns == stage.t_b_ns == stage.t_w_ns
    printed: dict[str, float] = next(
        (
            row
            for row in published("pipeoffload")["scheduler"]
            if (row["devices"], row["chunks"], row["schedule"]) == (d, v, key) and equal
        ),
        {},
    )
    return {
        "bubble": bubble_ns / unit,
        "formula_bubble": None if bubble is None else bubble / unit,
        "printed_bubble": printed.get("bubble"),
        "peak_chunks": peak_chunks,
        "formula_peak_chunks": peak,
        "printed_peak_chunks": printed.get("peak"),
        "peak_of_model": peak_chunks / (d * v),
        "offloaded": trace.measures()["offloaded"],
    }


def _formulas(
    name: str, d: int, v: int, f: int, b: int, w: int
) -> tuple[float | None, float | None]:
    """Bubble in ns and peak in chunk activations."""
    interleaved = (d - 1) * (f + b)
    return {
        "1f1b": (v * (d - 1) * (f + b + w), d * v),
        "1f1b-i": ((d - 1) * (f + b + w), d * v + d - 1),
        "gis": (interleaved, d * v),
        "gis-h": (interleaved + (v - 1) * d / 2 * (f + b - w), (v + 1) * d / 2),
        "po-h": (None, (v + 2) * d / 8),
    }.get(name, (None, None))
