"""SAPP's example: what its stages hold, and that plans are divisions that fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.published import published
from experiments.sapp.division import MIB, Balancer
from experiments.sapp.task import run
from optpipe_sim.errors import OptPipeError
from optpipe_sim.study.tables import load_table

FACTS = published("sapp_llama2_70b")
RESULTS = Path(__file__).parents[2] / "results"


def test_sapp_counts_as_many_activations_as_the_replay_holds() -> None:
    counted, held = Balancer(FACTS, "sapp"), Balancer(FACTS, "replay")
    assert [counted.in_flight(s)[0] for s in (0, 8, 15)] == [(31, 16), (16, 15), (16, 1)]
    # together; which chunk holds them differs by up to a group
    for s in range(16):
        (most,) = counted.in_flight(s)
        assert max(map(sum, held.in_flight(s))) == sum(most)


def test_a_plan_recomputes_just_what_it_must() -> None:
    problem = Balancer(FACTS, "replay")
    plan = problem.plan(problem.even)
    assert plan is not None
    assert [sum(counts) for counts in plan] == problem.even
    peaks = problem.replay(plan).peak_bytes
    assert max(peaks) <= FACTS["limit_mb"] * MIB
    lighter = [(3, 0, 0, 0) if slot == 29 else counts for slot, counts in enumerate(plan)]
    assert plan[29] == (3, 0, 0, 0)
    lighter[0] = (plan[0][0] + 1, *plan[0][1:3], plan[0][3] - 1)
    assert problem.replay(lighter).peak_bytes[0] > FACTS["limit_mb"] * MIB
    load, division = problem.least_load()
    assert sum(division) == FACTS["layers"]
    busiest = max(
        sum(problem.time(slot, plan[slot]) for slot in problem.mine(s)) for s in range(16)
    )
    assert load <= busiest
    assert problem.m * load * 1000 < problem.replay(plan).makespan_ns


def test_the_family_is_at_least_as_good_as_where_it_begins() -> None:
    even, family = (run(plan, "replay", tries=10) for plan in ("even", "family"))
    assert family["bound"] <= family["time"] <= even["time"]
    with pytest.raises(OptPipeError, match="plan: expected one of even"):
        run("other", "replay")


def test_committed_lists_are_plans() -> None:
    rows = load_table(RESULTS, "sapp")
    assert len(rows) > 3
    for row in rows:
        offset, full, select, both = (
            np.array(row[name]) for name in ("offset", "recompute", "select", "comm")
        )
        assert offset.shape == (2, 16)
        assert offset.sum() == 0
        assert (full + both <= select).all()
        assert (select <= 3 + offset).all()
        assert row["bound"] <= row["time"]
        assert row["memory"] == "sapp" or row["peak_mb"] <= FACTS["limit_mb"]
