"""The best plan that Megatron-LM can be told, held against all of its family and against the best."""

from __future__ import annotations

import pytest
from megatron_grammar import accept
from test_megatron import profile_of

from optpipe_sim.errors import OptPipeError, OutOfMemory
from optpipe_sim.frameworks.megatron.family import choices, plan_of
from optpipe_sim.frameworks.megatron.search import best, chunk_counts
from optpipe_sim.frameworks.told import unheld


def test_the_best_is_the_fastest_that_fits() -> None:
    profile = profile_of(4, memory_limit_bytes=330)
    found = best(profile, 8)
    assert list(chunk_counts(profile)) == [1, 2, 3, 4]
    assert found.trace.fits
    assert max(found.trace.peak_bytes) <= 330
    times, tried = [], 0
    for chunks in (1, 2, 3, 4):
        for choice in choices(profile, 8, chunks):
            trace = unheld(choice.build(profile, 8), profile)
            tried += 1
            if max(trace.peak_bytes) <= 330:
                times.append(trace.makespan_ns)
    assert (found.tried, found.fitting) == (tried, len(times))
    assert found.trace.makespan_ns == min(times)
    plan, _ = plan_of(found.choice, profile, 8)
    accept(plan.command(), 8)


def test_what_may_not_become_of_activations_does_not() -> None:
    profile = profile_of(4, memory_limit_bytes=700)
    kept = best(profile, 8, chunks=[1], offload=False, recompute=False, objective="span")
    assert (kept.choice.level, kept.choice.fraction) == (None, None)
    assert kept.trace.objective == "span"
    assert kept.trace.recomputed == kept.trace.offloaded == 0


def test_nothing_fits_or_nothing_runs() -> None:
    profile = profile_of(4, memory_limit_bytes=30)
    with pytest.raises(OutOfMemory, match="no schedule of Megatron-LM fits: the least"):
        best(profile, 8)
    with pytest.raises(OptPipeError, match="runs nothing on 4 ranks with 3 microbatches"):
        best(profile, 3, chunks=[2])
