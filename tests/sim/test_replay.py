"""Engine, fast replay and lowering agree to the nanosecond; the limit holds under any durations."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import SEEDS, cases, limits, that_fits
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, Schedule, Trace, build, simulate
from optpipe_sim.checker.check import check_trace
from optpipe_sim.errors import Deadlock, OptPipeError, OutOfMemory
from optpipe_sim.op_costs import op_costs
from optpipe_sim.ops import COMPUTE
from optpipe_sim.schedules import REGISTRY
from optpipe_sim.sim import simpy_engine
from optpipe_sim.sim.host_links import link_keys
from optpipe_sim.sim.lower import Lowered, lower
from optpipe_sim.sim.scenarios import Noise, draw_scenarios, replay_scenarios

many = settings(max_examples=3 * settings().max_examples)


def outcome(schedule: Schedule, profile: CostProfile, engine: str, **options: object) -> object:
    """The trace, or what the error says."""
    try:
        return simulate(schedule, profile, engine=engine, **options)  # type: ignore[arg-type]
    except (Deadlock, OutOfMemory) as error:
        return f"{type(error).__name__}: {error}"


def test_who_waits_is_found_out_once_and_when_somebody_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = unit_profile(2, memory_limit_bytes=150)
    schedule = build("zb-h1", profile, 4)
    asked = []

    def run_engine(*arguments: object) -> object:
        asked.append(arguments)
        return real(*arguments)  # type: ignore[arg-type]

    real = simpy_engine.run_engine
    monkeypatch.setattr(simpy_engine, "run_engine", run_engine)
    with pytest.raises(Deadlock) as caught:
        simulate(schedule, profile)
    stuck = caught.value
    assert asked == []
    assert "F0.1 waits for memory" in str(stuck)
    assert str(pickle.loads(pickle.dumps(stuck))) == str(stuck)  # as it comes from a process
    assert len(asked) == 1


@st.composite
def limited_cases(
    draw: st.DrawFn, slices: bool = True
) -> tuple[CostProfile, Schedule, tuple[int, ...]]:
    """A profile, a schedule and limits between the least and what the schedule takes without."""
    profile, schedule = draw(cases(levels=True, slices=slices, differ=True, pairs=True))
    return (
        profile,
        schedule,
        draw(limits(profile, simulate(schedule, profile, enforce=False).peak_bytes)),
    )


@st.composite
def feasible_cases(draw: st.DrawFn) -> tuple[CostProfile, Schedule, tuple[int, ...]]:
    """The same with latency links; where the schedule deadlocks, with its own peaks as limits. Of
    whole sequences: where an O stands decides whether it takes keys and values along."""
    profile, schedule, limit = draw(limited_cases(slices=False))
    rows = {"table": schedule.table, "offsets": schedule.offsets}
    schedule = schedule.replace(**rows, paired=None)  # a timing does not say which ops are one
    profile, _ = that_fits(replace(profile, links="latency", memory_limit=limit), schedule)
    assert profile.memory_limit is not None
    # an O of no length may end at the instant of a grant and yet wait for it: then no limit will do
    assume(not isinstance(outcome(schedule, profile, "replay"), str))
    return profile, schedule, profile.memory_limit


@many
@given(limited_cases())
def test_engine_and_replay_are_identical(
    case: tuple[CostProfile, Schedule, tuple[int, ...]],
) -> None:
    profile, schedule, limit = case
    for options in ({"enforce": False}, {"memory_limit": limit}):
        assert outcome(schedule, profile, "simpy", **options) == outcome(
            schedule, profile, "replay", **options
        )


@many
@given(limited_cases(), SEEDS)
def test_lowering_keeps_times_and_limit(
    case: tuple[CostProfile, Schedule, tuple[int, ...]], seed: int
) -> None:
    profile, schedule, limit = case
    found = outcome(schedule, profile, "replay", memory_limit=limit)
    if isinstance(found, str):
        with pytest.raises((Deadlock, OutOfMemory)):
            lower(schedule, profile, limit)
        return
    assert isinstance(found, Trace)
    lowered = lower(schedule, profile, limit)
    # the same times, op by op (the program may have been rearranged) ...
    assert sorted(lowered.replay().spans) == sorted(found.spans)
    # ... and so has the lowered schedule under the ordinary rules
    again = simulate(lowered.schedule, profile, limit, engine="simpy")
    assert sorted(again.spans) == sorted(found.spans)
    # waits point backwards, so that one host thread can issue the program
    assert (lowered.wait_for_rows < lowered.wait_rows).all()
    random = Random(seed)
    for _ in range(3):
        trace = lowered.replay(_durations(lowered, random))
        assert all(peak <= most for peak, most in zip(trace.peak_bytes, limit, strict=True))


def _durations(lowered: Lowered, random: Random) -> np.ndarray:
    """Wild durations: none of the profile's proportions is left."""
    kinds = lowered.schedule.table[:, 0].tolist()
    return np.array([random.choice((0, 1, 7, 100)) + (kind in COMPUTE) for kind in kinds])


@many
@given(feasible_cases(), SEEDS)
def test_a_schedule_from_a_feasible_timing_replays_no_later(
    case: tuple[CostProfile, Schedule, tuple[int, ...]], seed: int
) -> None:
    """SEMANTICS: order what allocates by start time, links as they were served; by induction over
    the program every op then starts no later than in that timing, within the limit."""
    profile, schedule, limit = case
    lowered = lower(schedule, profile, limit)
    random = Random(seed)
    costs = op_costs(lowered.schedule, lowered.profile).duration_ns
    slack = np.array([random.choice((0, 0, 1, 5)) for _ in costs])
    timing = lowered.replay(costs + slack)  # starts that are feasible for the shorter costs too
    place = dict(zip(timing.schedule.codes.tolist(), lowered.graph.op_at.tolist(), strict=True))
    codes = timing.schedule.codes.tolist()
    order = sorted(range(len(codes)), key=lambda row: (timing.start_ns[row], place[codes[row]]))
    programs: list[list] = [[] for _ in range(profile.devices)]
    links: dict[str, list] = {}
    for row in order:
        op, device = timing.schedule.op(row), int(timing.schedule.devices[row])
        programs[device].append(op)
        if op.kind not in COMPUTE:
            key = link_keys(profile)[2 * device + (op.kind.name == "R")]
            links.setdefault(key, []).append(op)
    made = Schedule(schedule.shape, programs, links, recompute=schedule.levels)
    trace = simulate(made, profile, limit)
    before = {span.op: span.start_ns for span in timing.spans}
    assert all(span.start_ns <= before[span.op] for span in trace.spans)
    assert all(peak <= most for peak, most in zip(trace.peak_bytes, limit, strict=True))


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("engines", ["separate", "shared"])
def test_every_schedule_replays_alike(name: str, engines: str) -> None:
    profile = unit_profile(
        4,
        t_comm_ms=0.1,
        memory_limit_bytes=1200,
        offload={
            "t_offload_ms": 1.5,
            "t_reload_ms": 1.4,
            "copy_engines": engines,
            "host_link_groups": [[0, 1], [2, 3]],
        },
    )
    schedule = build(name, profile, 8)
    for options in ({"enforce": False}, {"memory_limit": 600}, {"memory_limit": 1200}):
        found = outcome(schedule, profile, "simpy", **options)
        assert found == outcome(schedule, profile, "replay", **options)
        if isinstance(found, Trace):
            assert check_trace(found, asap=True) == []
            assert Trace.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert Schedule.from_text(schedule.shape, schedule.to_text()) == schedule


def test_without_a_limit_nothing_waits() -> None:
    profile = unit_profile(4)
    lowered = lower(build("1f1b", profile, 8), profile)
    assert lowered.waits == {}
    assert lowered.replay() == simulate(lowered.schedule, profile, engine="simpy")


def test_waits_name_the_release_they_need() -> None:
    profile = unit_profile(1, offload={"t_offload_ms": 4, "t_reload_ms": 4})
    programs = [["F0.0", "O0.0", "F0.1", "R0.0", "BW0.1", "BW0.0"]]
    lowered = lower(Schedule(profile.shape(2), programs), profile, 100)
    waits = {str(op): [str(need) for need in needs] for op, needs in lowered.waits.items()}
    assert waits == {"F0.1": ["O0.0"], "R0.0": ["BW0.1"]}
    # R0.0 was granted when BW0.1 ended, so it is issued after it
    assert lowered.schedule.to_text() == "0: F0.0 O0.0 F0.1 BW0.1 R0.0 BW0.0\n"


def noisy(
    lowered: Lowered, noise: Noise, samples: int, seed: int = 0, objective: str = "flush"
) -> np.ndarray:
    microbatches = lowered.schedule.shape.microbatches
    drawn = draw_scenarios(lowered.profile, microbatches, noise, samples, seed)
    return replay_scenarios(lowered, drawn, objective)


class TestNoise:
    def lowered(self, **changes: object) -> Lowered:
        profile = unit_profile(4, t_comm_ms=0.5, **changes)
        return lower(build("1f1b", profile, 8), profile)

    def test_no_noise_is_the_replay(self) -> None:
        lowered = self.lowered()
        quiet = noisy(lowered, Noise(op=0), 3)
        assert quiet.tolist() == [lowered.replay().makespan_ns] * 3
        spans = noisy(lowered, Noise(op=0), 3, objective="span")
        assert spans.tolist() == [max(lowered.replay().span_ns)] * 3
        serial = self.lowered(links="serial")
        assert noisy(serial, Noise(op=0), 1)[0] == serial.replay().makespan_ns

    def test_it_is_reproducible_and_biased_upwards(self) -> None:
        lowered = self.lowered()
        one, two = (noisy(lowered, Noise(op=0.2), 200, seed=7) for _ in range(2))
        assert (one == two).all()
        assert (one != noisy(lowered, Noise(op=0.2), 200, seed=8)).any()
        # a maximum over paths of noisy sums: its mean lies above the noiseless one
        assert one.mean() > lowered.replay().makespan_ns

    def test_each_source_of_noise_shows(self) -> None:
        lowered = self.lowered()
        base = lowered.replay().makespan_ns
        slow = noisy(lowered, Noise(op=0, straggler=1.0), 20)
        assert (slow > 1.25 * base).all()
        for noise in (Noise(op=0, device=0.1), Noise(op=0, comm=0.5)):
            assert len(set(noisy(lowered, noise, 20).tolist())) > 10
        copies = unit_profile(1, offload={"t_offload_ms": 4, "t_reload_ms": 4})
        programs = [["F0.0", "O0.0", "F0.1", "R0.0", "BW0.1", "BW0.0"]]
        reloading = lower(Schedule(copies.shape(2), programs), copies)
        assert len(set(noisy(reloading, Noise(op=0, copy=0.5), 20).tolist())) > 10

    def test_bad_settings(self) -> None:
        with pytest.raises(OptPipeError, match=r"noise\.op: must be from 0 to 10, got -1"):
            Noise(op=-1)
        with pytest.raises(OptPipeError, match="samples: must be at least 1"):
            noisy(self.lowered(), Noise(), 0)

    def test_more_noise_takes_longer(self) -> None:
        lowered = self.lowered()
        means = [noisy(lowered, Noise(op=op), 400).mean() for op in (0.0, 0.1, 0.3, 0.5)]
        assert all(less < more for less, more in pairwise(means))
