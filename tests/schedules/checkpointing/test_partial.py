"""Megatron-LM's partial checkpoints: which microbatches recompute, and how many keep their activations at once."""

from __future__ import annotations

import pytest
from unit_profiles import UNIT, unit_profile

from optpipe_sim import CostProfile, build, check, simulate
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.ops import F

LEVEL = {"name": "full", "t_ms": 1, "keep_bytes": 10}
PART = {"name": "some", "t_ms": 0.5, "keep_bytes": 60}


def profile(
    p: int, chunks: int = 1, levels: tuple[dict[str, object], ...] = (LEVEL,)
) -> CostProfile:
    return unit_profile(p, chunks, stages={**UNIT, "recompute": list(levels)})


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 9])
@pytest.mark.parametrize(("p", "v", "m"), [(4, 1, 3), (4, 1, 9), (2, 2, 4), (4, 2, 8), (4, 3, 8)])
def test_it_recomputes_what_megatron_does(p: int, v: int, m: int, keep: int) -> None:
    """i % (num_warmup_microbatches + 1) >= num_microbatches_with_partial_activation_checkpoints, i counting a rank's forwards."""
    schedule = build(f"megatron-partial:chunks={v},keep={keep}", profile(p, v), m)
    assert check(schedule, profile(p, v)) == []
    for rank, program in enumerate(schedule.flat_programs):
        warm_up = min(p - rank - 1 if v == 1 else 2 * (p - rank - 1) + (v - 1) * p, m * v)
        forwards = [op for op in program if op.kind is F]
        for at, op in enumerate(forwards):
            recomputed = at % (warm_up + 1) >= keep
            assert bool(schedule.levels.table[op.stage, op.microbatch]) is recomputed


def test_at_most_so_many_are_kept_at_a_time() -> None:
    costs = profile(4)
    for keep in range(5):
        trace = simulate(build(f"megatron-partial:keep={keep}", costs, 12), costs)
        for rank, peak in enumerate(trace.peak_bytes):
            window = 4 - rank
            kept = min(keep, window)
            # those that recompute hold 10, and 90 more while one of them runs forward or backward
            assert peak <= 100 * kept + 10 * (window - kept) + 90 * (kept < window)


def test_as_many_are_kept_as_fit_the_limit() -> None:
    costs = profile(4)
    peaks = [
        max(simulate(build(f"megatron-partial:keep={keep}", costs, 12), costs).peak_bytes)
        for keep in range(5)
    ]
    assert peaks == sorted(peaks)
    for keep in range(5):
        built = build(f"megatron-partial:limit={peaks[keep]}B", costs, 12)
        most = max(at for at in range(5) if peaks[at] <= peaks[keep])
        assert built.recompute == build(f"megatron-partial:keep={most}", costs, 12).recompute
    assert build("megatron-partial", costs, 12).recompute == {}  # no limit
    least = build("megatron-partial:limit=50B", costs, 12)  # nothing fits: as little as can be
    assert least.recompute == build("megatron-partial:keep=0", costs, 12).recompute


def test_of_the_levels_the_one_with_the_least_time_is_taken() -> None:
    costs = profile(4, levels=(PART, LEVEL))
    found = {
        level: build(f"megatron-partial:limit=310B{level}", costs, 12)
        for level in ("", ",level=some", ",level=full")
    }
    times = {level: simulate(each, costs).makespan_ns for level, each in found.items()}
    assert times[""] == min(times[",level=some"], times[",level=full"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("megatron-partial:keep=-1", "keep: must be at least 0"),
        ("megatron-partial:group=4", "one chunk has no groups"),
        ("megatron-partial:level=none", "none"),
    ],
)
def test_wrong_options_are_refused(name: str, said: str) -> None:
    with pytest.raises(InvalidSchedule, match=said):
        build(name, profile(4), 8)
