"""What README.md says of its picture, from the plan that is drawn: ``make readme-picture`` writes both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from optpipe_sim import Schedule, build, load_profile, simulate
from results.claims import Tables, percent

ROOT = Path(__file__).parents[3]
GIB = 2**30
LIMIT = 24 * GIB
RULE = "po:chunks=3,group=8,offloaded=1"  # `solvers.fixed.best_rule` finds it, in seconds: none is left untried


def sentences(_: Tables) -> Iterator[str]:
    profile = load_profile(ROOT / "experiments/profiles/zb-14.6b-p16-m48-offload.yaml")
    plan = Schedule.load(ROOT / "results/readme-plan.json")
    trace = simulate(plan, profile, LIMIT)
    model = profile.name.split("-")[1].upper()
    m, stages = plan.shape.microbatches, plan.shape.stages
    rule = simulate(build(RULE, profile, m), profile, LIMIT)
    yield (
        f"*A plan that `solve` found for a {model} model on {plan.shape.devices} devices with {LIMIT // GIB} GiB each, {m} microbatches,"
        f" {plan.shape.chunks} chunks per device, simulated from published op times: {trace.makespan_ns / 1e6:.0f} ms, of which the"
        f" busiest device waits {percent(trace.bubble_rate_flush)}; PipeOffload, the fastest published schedule that fits, takes"
        f" {rule.makespan_ns / 1e6:.0f} ms."
    )
    yield (
        f"Per device a lane for its ops and one for its copies, {trace.offloaded} of {stages * m} activations; below, the memory that"
        " devices hold.*"
    )
