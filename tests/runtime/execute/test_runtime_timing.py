"""Predicted makespans against those of real threads, processes and messages, ops of 20 ms asleep.

Alone on the machine (`pytest -m timing`): other tests beside these would be measured as well.
"""

from __future__ import annotations

import pytest

from optpipe_sim import CostProfile, build, load_profile
from optpipe_sim.ops import O
from optpipe_sim.runtime.confirm.case import Case
from optpipe_sim.runtime.confirm.task import Task
from optpipe_sim.runtime.execute.record import measured_trace
from optpipe_sim.sim.difference import Difference
from optpipe_sim.sim.lower import lower

TRIES, MICROBATCHES = 12, 4
NEAR = {1: 1.05, 2: 1.10}  # by chunks
CASES = {  # chunks and options
    "1f1b": (1, {}),
    "zb-h1": (1, {}),
    "adaoffload": (1, {"limit": 250}),
    "1f1b-i": (2, {}),
    "zb-v": (2, {}),
    "po-h": (2, {}),
}
OFFLOADING = {"adaoffload", "po-h"}


def profile_of(devices: int, chunks: int) -> CostProfile:
    """Every op of every chunk takes 20 ms, copies 15 ms, a hop 1 ms."""
    return load_profile(
        {
            "name": "asleep",
            "devices": devices,
            "chunks": chunks,
            "stages": {
                **dict.fromkeys(("t_f_ms", "t_b_ms", "t_w_ms"), 20),
                "act_bytes": 100,
                "w_bytes": 50,
            },
            "t_comm_ms": 1,
            "offload": {"t_offload_ms": 15, "t_reload_ms": 15},
        }
    )


@pytest.mark.timing
@pytest.mark.parametrize("p", [2, 4])
def test_a_run_takes_as_long_as_predicted(p: int, request: pytest.FixtureRequest):
    """One iteration of twelve does: what else the machine is busy with only makes them longer."""
    missed, ranks = [], request.getfixturevalue({2: "two", 4: "four"}[p])
    for name, (chunks, options) in CASES.items():
        profile = profile_of(p, chunks)
        schedule = build(name, profile, MICROBATCHES, **options)
        assert schedule.shape.chunks == chunks
        copies = any(op.kind is O for program in schedule.programs for op in program)
        assert copies == (name in OFFLOADING)
        lowered = lower(schedule, profile, options.get("limit"))
        task = Task(Case(schedule, profile, options.get("limit")))
        found = []
        for _ in range(TRIES):
            results = ranks.run(task)
            for records in zip(*(result.records for result in results), strict=True):
                measured = measured_trace(lowered, records)
                found.append(Difference(lowered, lowered.replay(), measured))
            best = min(found, key=lambda difference: difference.ratio)
            if best.ratio <= NEAR[chunks]:
                break
        assert best.ratio > 0.999, name  # nothing ends before what it waits for
        print(f"{name} at p = {p}: {best.ratio:.4f} of the predicted makespan")
        if best.ratio > NEAR[chunks]:
            missed.append((name, round(best.ratio, 4), best.causes_ns))
    assert not missed
