"""What is compiled before the clock starts."""

from __future__ import annotations

import pytest

from optpipe_sim.solvers.problem import Problem
from optpipe_sim.solvers.race import compiling


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("chunks", [False, True])
def test_every_part_runs_through(chunks: bool, linked: bool) -> None:
    """A start that did not fit would leave the search uncompiled."""
    assert compiling.shares_links(compiling._tiny(chunks, linked)) == linked
    problem = compiling._tiny(False, linked)
    start = compiling.offload_everything(problem, 1)
    assert problem.replay(start).fits
    if linked:
        assert compiling.pattern_start(problem, start, lambda: False, steps=1) is not None
    for part in compiling.PARTS:
        part(chunks, linked, False, False)
    assert compiling._kept()


def test_pairs_are_compiled_by_a_problem_that_has_them() -> None:
    problem = compiling._tiny(False, False, pairs=True)
    assert problem.may_pair
    assert problem.replay(compiling.offload_everything(problem, 1)).fits


@pytest.mark.parametrize("kept", [False, True])
def test_a_caller_that_waits_for_compiling_is_notified(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[str] = []
    ran: list[tuple[bool, ...]] = []
    monkeypatch.setattr(compiling, "_kept", lambda: kept)
    monkeypatch.setattr(compiling, "_compile", lambda *kind: ran.append(kind))
    monkeypatch.setattr(compiling, "PARTS", ())
    problem: Problem = compiling._tiny(True, False)
    took_s = compiling.compile_engines(problem, lambda: waits.append("wait"))
    assert took_s == 0  # nothing that a user should be told of
    assert waits == ([] if kept else ["wait"])
    assert ran == [(True, False, False, False)]
