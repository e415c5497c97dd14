"""Copies are measured while what runs beside them runs: on streams that take time, with a launch queue
that fills."""

from __future__ import annotations

import itertools

import pytest
import torch
from timed_gpu import MS, Streams

from optpipe_sim.runtime.measure import copies


@pytest.mark.parametrize("both", [False, True])
def test_what_runs_beside_a_copy_runs_all_the_while(
    both: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Streams()
    gpu.install(monkeypatch)
    monkeypatch.setattr(copies, "streams", lambda device: ("own", "other", "products"))
    pair = torch.zeros(8), torch.zeros(8)
    with gpu:
        load = torch.zeros(4, 4)
        found = copies._cuda_times(pair, pair if both else None, load, 10)
    assert len(found) == 10
    measured = [(start, end) for stream, _, start, end in gpu.work if stream == "own"]
    for stream in ("other", "products") if both else ("products",):
        there = [(start, end) for name, _, start, end in gpu.work if name == stream]
        for start, end in measured[1:]:
            busy = sum(max(0, min(end, b) - max(start, a)) for a, b in there)
            assert busy > 0.98 * (end - start), (stream, start, end, busy)
    # and the copies that are measured are never held up by a full queue of launches
    gaps = [b[0] - a[1] for a, b in itertools.pairwise(measured)]
    assert max(gaps) < 5 * MS
