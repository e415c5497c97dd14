"""Training that changes its schedule: agreed by all ranks, equal to the unpipelined model, resumable."""

from __future__ import annotations

import csv
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runtime_cases import with_levels

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.costs.models import Model
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.files import read_mapping
from optpipe_sim.ops import BW, B, F, O, Op, R, W
from optpipe_sim.profile import CostProfile
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.runtime.measure.insitu import Sample, Window, drift, measured_profile, sample
from optpipe_sim.runtime.measure.profiler import measure
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.model.tokens import Tokens
from optpipe_sim.runtime.train.checkpoint import NAME
from optpipe_sim.runtime.train.online import Prepared, require_same_shape
from optpipe_sim.runtime.train.planner import Online, Planner, Proposal, in_order
from optpipe_sim.runtime.train.task import Slow, TrainTask
from optpipe_sim.runtime.train.train import switch_costs, train, unpipelined
from optpipe_sim.schedule import Schedule
from optpipe_sim.schedule.shape import Shape

M = 4
LEVELS = ("norms", "full")
STEPS = 5000  # more than a loaded machine needs; a test ends its run once it has seen enough
MODEL = Model("tiny", layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=24)
PLAN = Plan(MODEL, 2, seq=16, microbatch=2)
QUICK = Online(warmup=2, min_gain=0.01, drift=1e9, solver_s=1.0, settle_s=0.2)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def with_recompute() -> CostProfile:
    return measure(PLAN, "cpu", 2, 1, levels=LEVELS)


@pytest.fixture(scope="module")
def profile(with_recompute) -> CostProfile:
    return with_recompute.map_stages(lambda _, cost: replace(cost, recompute=()))


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    patch = pytest.MonkeyPatch()
    # they run tasks of this module
    patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with Ranks(2) as ranks:
        yield ranks
    patch.undo()


def one_by_one(offload: bool = True) -> Schedule:
    """Each microbatch on its own, all of stage 0 offloaded: nothing overlaps."""
    kinds = (F, O, R, B, W) if offload else (F, B, W)
    first = [Op(kind, 0, j) for j in range(M) for kind in kinds]
    second = [Op(kind, 1, j) for j in range(M) for kind in (F, B, W)]
    return Schedule(Shape(2, 1, M, (0, 1)), [first, second])


def task(profile: CostProfile, steps: int = 10, **changes: Any) -> TrainTask:
    return TrainTask(one_by_one(), profile, PLAN, Tokens(24), steps, **changes)


@dataclass
class Script:
    """In the place of the planner: proposes given schedules at given steps."""

    profile: CostProfile
    schedules: dict[int, Schedule]
    events: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0

    def take(self) -> Proposal | None:
        found = self.schedules.pop(self.step, None)
        self.step += 1
        return None if found is None else Proposal(found, self.profile, 80, 100)

    def committed(self, proposal: Proposal) -> None:
        self.events.append({"step": self.step, "event": "notified of the switch"})

    def rejected(self, proposal: Proposal) -> None:
        self.events.append({"step": self.step, "event": "notified of the refusal"})

    def observe(self, step: int, epoch: int, measured: Sample) -> None: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Scripted(TrainTask):
    """Ranks in `stubborn` refuse what is proposed."""

    script: tuple[tuple[int, Schedule], ...] = ()
    stubborn: tuple[int, ...] = ()

    def planner(self, schedule: Schedule, step: int, epoch: int) -> Any:
        return Script(self.profile, dict(self.script))

    def prepare(self, rank: int, schedule: Schedule, profile: CostProfile) -> Prepared:
        if rank in self.stubborn and schedule != self.schedule:
            raise OptPipeError(f"rank {rank} would rather not")
        return super().prepare(rank, schedule, profile)


def scripted(profile: CostProfile, steps: int, script: Any, **changes: Any) -> Scripted:
    return Scripted(one_by_one(), profile, PLAN, Tokens(24), steps, script=tuple(script), **changes)


def until(wanted: Callable[[list[dict[str, Any]]], bool]) -> Callable[[dict[str, Any]], bool]:
    seen: list[dict[str, Any]] = []

    def news(row: dict[str, Any]) -> bool:
        seen.append(row)
        return wanted(seen)

    return news


def rows_after(seen: list[dict[str, Any]], event: str, nth: int = 1) -> int:
    """Iterations since the event came for the nth time; 0 before."""
    times = [at for at, row in enumerate(seen) if row.get("event") == event]
    return sum("loss" in row for row in seen[times[nth - 1] :]) if len(times) >= nth else 0


def losses(result: Any) -> list[float]:
    return [row["loss"] for row in result.rows]


def kinds(result: Any) -> list[str]:
    return [event["event"] for event in result.events]


# -- the switch ------------------------------------------------------------------------------------


def test_losses_are_those_of_the_unpipelined_model_across_switches(profile, ranks) -> None:
    there = build("zb-h1", profile, M)
    job = scripted(profile, STEPS, [(4, there), (14, one_by_one())])
    result = train(job, until(lambda seen: rows_after(seen, "switched", 2) >= 8), ranks)
    assert kinds(result).count("switched") == 2
    epochs = [row["epoch"] for row in result.rows]
    assert set(epochs) == {0, 1, 2}
    assert [phase["offloaded"] for phase in result.phases] == [M, 0, M]
    assert losses(result) == unpipelined(job, len(result.rows))
    assert losses(result)[-1] < losses(result)[0] - 0.3
    for phase in result.phases:
        # what is held was measured in one iteration, and is what the replay says
        for held, wanted in zip(phase["held_bytes"], phase["predicted_bytes"], strict=True):
            assert held == pytest.approx(wanted, rel=0.05, abs=2**19)
    (one, two) = switch_costs(result)
    assert 4 < one["step"] < two["step"]
    assert two["step"] > 14
    assert one["prepare_ns"] > 0
    assert one["before_ns"] > 0
    # prepared beside iterations of the schedule before
    assert result.rows[one["step"] - 1]["epoch"] == 0


def test_schedules_that_recompute_are_switched_to(with_recompute, ranks) -> None:
    profile = with_recompute
    apart = with_levels(build("zb-h1", profile, M), LEVELS, apart=True)
    inside = with_levels(one_by_one(), LEVELS, apart=False)
    job = scripted(profile, STEPS, [(3, apart), (12, inside)])
    result = train(job, until(lambda seen: rows_after(seen, "switched", 2) >= 4), ranks)
    recomputed = len(inside.recompute)
    assert [phase["recomputed"] for phase in result.phases] == [0, recomputed, recomputed]
    assert losses(result) == unpipelined(job, len(result.rows))
    for phase in result.phases:
        for held, most in zip(phase["held_bytes"], phase["predicted_bytes"], strict=True):
            assert 0 < held <= 1.05 * most + 2**19


def test_one_refuses_and_nobody_switches(profile, ranks) -> None:
    script = [(2, build("zb-h1", profile, M)), (7, build("1f1b", profile, M))]
    job = scripted(profile, STEPS, script, stubborn=(1,))
    result = train(job, until(lambda seen: rows_after(seen, "refused", 2) >= 2), ranks)
    refusals = [event for event in result.events if event["event"] == "refused"]
    assert [event["reasons"] for event in refusals] == [
        ["rank 1: OptPipeError: rank 1 would rather not"]
    ] * 2
    assert kinds(result).count("notified of the refusal") == 2
    assert "switched" not in kinds(result)
    assert {row["epoch"] for row in result.rows} == {0}
    assert losses(result) == unpipelined(job, len(result.rows))


def test_what_cannot_run_is_refused_by_all(profile, ranks) -> None:
    m = 2 * M
    broken = one_by_one().replace(
        programs=[one_by_one().programs[0], one_by_one().programs[1][::-1]]
    )
    unknown = one_by_one().replace(recompute={"0": "light"})
    script = [(1, build("zb-h1", profile, m)), (5, broken), (9, unknown)]
    job = scripted(profile, STEPS, script)
    result = train(job, until(lambda seen: rows_after(seen, "refused", 3) >= 2), ranks)
    reasons = [event["reasons"] for event in result.events if event["event"] == "refused"]
    assert [len(said) for said in reasons] == [2, 2, 2]
    assert "recomputation level 'light': the runtime has norms" in reasons[2][0]
    assert "a switch keeps" in reasons[0][0]
    assert "InvalidSchedule" in reasons[1][1] or "Deadlock" in reasons[1][1]
    assert losses(result) == unpipelined(job, len(result.rows))


def test_a_switch_keeps_the_shape(profile) -> None:
    require_same_shape(build("zb-h1", profile, M), one_by_one())
    with pytest.raises(InvalidSchedule, match="a switch keeps"):
        require_same_shape(build("zb-h1", profile, M + 1), one_by_one())


# -- with the solver -------------------------------------------------------------------------------


def test_the_solver_beside_training_finds_better_and_all_go_over(profile, ranks) -> None:
    job = task(profile, STEPS, online=QUICK)
    result = train(job, until(lambda seen: rows_after(seen, "switched") >= 5), ranks)
    assert result.stopped
    names = kinds(result)
    order = [names.index(name) for name in ("profiled", "proposed", "switched")]
    assert order == sorted(order)
    assert result.phases[0]["costs"] == "given"
    assert result.phases[1]["costs"] == "measured"
    assert result.events[names.index("proposed")]["gain"] > 0.05
    assert losses(result) == unpipelined(job, len(result.rows))


def test_training_outlives_its_solver(profile, ranks) -> None:
    options = replace(QUICK, min_gain=0.99, solver_s=60.0)

    def news(row: dict[str, Any]) -> bool:
        if row.get("event") == "profiled":
            os.kill(row["solver_pid"], signal.SIGKILL)
        return end(row)

    end = until(lambda seen: rows_after(seen, "solver_failed") >= 5)
    result = train(task(profile, STEPS, online=options), news, ranks)
    failed = next(event for event in result.events if event["event"] == "solver_failed")
    assert failed["error"] == "killed by SIGKILL"
    assert result.rows[-1]["step"] >= failed["step"]


def test_a_slower_stage_is_noticed_and_solved_anew(profile, ranks) -> None:
    slow = Slow(stage=1, step=12, extra_ns=40_000_000)
    options = replace(QUICK, min_gain=0.99, drift=4.0, solver_s=0.3)
    job = task(profile, STEPS, online=options, slow=slow)
    result = train(
        job,
        until(lambda seen: sum(row.get("event") == "profiled" for row in seen) >= 2),
        ranks,
    )
    events = [event for event in result.events if event["event"] in ("profiled", "drift")]
    assert [event["event"] for event in events] == ["profiled", "drift", "profiled"]
    assert events[1]["stage"] == 1
    assert events[1]["step"] >= 12
    assert events[2]["predicted_ns"] > events[0]["predicted_ns"] + 3 * M * 35_000_000
    assert events[2]["solver_pid"] != events[0]["solver_pid"]


def test_a_failure_of_the_planner_does_not_reach_training(profile, monkeypatch) -> None:
    planner = Planner(one_by_one(), profile, None, QUICK)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("optpipe_sim.runtime.train.planner.SolverProcess", fail)
    monkeypatch.setattr("optpipe_sim.runtime.train.planner.TURN_S", 0.01)
    planner.start()
    for step in range(2):
        planner.observe(step, 0, timed(planner.schedule, profile))
    while not planner.events:
        pass
    planner.close()
    assert planner.events == [
        {"step": 1, "event": "solver_failed", "error": "OSError: no more processes"}
    ]
    assert planner.take() is None


# -- measured costs --------------------------------------------------------------------------------


def timed(schedule: Schedule, profile: CostProfile) -> Sample:
    trace = simulate(schedule, profile)
    return sample(trace.schedule, trace.start_ns, trace.end_ns)


def test_a_profile_measured_of_a_replay_is_the_one_replayed(profile) -> None:
    wanted = replace(profile, latency_ns=123_456)
    given = wanted.scale(compute=3.0)
    for schedule in (one_by_one(), build("1f1b", wanted, M)):
        found = measured_profile(given, timed(schedule, wanted), schedule)
        assert found.t_comm_ns == 123_456
        has = {kind for program in schedule.programs for kind, _, _ in program}
        for kind in has - {O, R}:
            assert (found.durations_ns[kind] == wanted.durations_ns[kind]).all()
        for kind in (F, B, W, BW):  # the others are scaled alike
            ratio = found.durations_ns[kind] / given.durations_ns[kind]
            assert (ratio < 0.5).all()
        assert simulate(schedule, found).makespan_ns == pytest.approx(
            simulate(schedule, wanted).makespan_ns, rel=0.02
        )
        assert found.allocated_bytes.tolist() == given.allocated_bytes.tolist()


@pytest.mark.parametrize("how", ["recompute=full", "recompute=full,apart=yes"])
def test_times_of_recomputation_are_measured_too(with_recompute, how: str) -> None:
    wanted = replace(with_recompute, latency_ns=0)
    given = wanted.map_stages(
        lambda _, cost: replace(
            cost,
            recompute=tuple(replace(one, t_ns=2 * one.t_ns) for one in cost.recompute),
        )
    )
    schedule = build(f"1f1b:{how}", wanted, M)
    found = measured_profile(given, timed(schedule, wanted), schedule)
    for stage, cost in enumerate(found.stages):
        true = wanted.stages[stage]
        if "apart" in how:
            assert cost.level("full").t_ns == pytest.approx(true.level("full").t_ns, abs=1)
            assert cost.fused_ns == true.fused_ns
    assert simulate(schedule, found).makespan_ns == pytest.approx(
        simulate(schedule, wanted).makespan_ns, rel=1e-3
    )
    assert drift(found, timed(schedule, wanted), schedule).share < 1e-3
    assert drift(given, timed(schedule, wanted), schedule).share > 0.05


def test_drift_is_in_shares_of_the_compute_time(unit) -> None:
    profile = unit(2)
    schedule = build("zb-h1", profile, M)
    assert drift(profile, timed(schedule, profile), schedule).share == 0
    slower = load_profile(
        {
            "name": "slower",
            "devices": 2,
            "stages": [
                {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_mib": 1},
                {"t_f_ms": 1, "t_b_ms": 1.9, "t_w_ms": 1.3, "act_mib": 1},
            ],
        }
    )
    found = drift(profile, timed(schedule, slower), schedule)
    assert (found.stage, found.what) == (1, "compute")
    assert found.share == pytest.approx(0.4)


def test_windows_take_medians_over_iterations() -> None:
    window = Window(3)
    for value in (1.0, 50.0, 2.0, 3.0):
        window.samples.append(Sample(np.array([[value, np.nan]]), float("nan"), value))
    assert window.full
    found = window.medians()
    assert found.duration_ns[0, 0] == 3.0
    assert math.isnan(found.duration_ns[0, 1])
    assert math.isnan(found.latency_ns)
    assert found.makespan_ns == 3.0


def test_orders_that_add_up_gradients_alike(profile) -> None:
    schedule = one_by_one()
    assert in_order(schedule)
    assert all(in_order(build(name, profile, M)) for name in ("gpipe", "1f1b", "zb-h1"))
    # F B of both first, then W of the second before W of the first
    two = [Op(kind, 1, j) for kind in (F, B) for j in range(M)]
    for order, good in ((range(M), True), ((1, 0, 2, 3), False)):
        program = [*two, *(Op(W, 1, j) for j in order)]
        assert in_order(schedule.replace(programs=[schedule.programs[0], program])) == good
    # a fused one counts as both
    for mixed, good in (((0, 1, 2), True), ((1, 0, 2), False)):
        program = [Op(F, 1, j) for j in range(M)] + [Op(BW, 1, j) for j in mixed]
        program += [Op(B, 1, M - 1), Op(W, 1, M - 1)]
        assert in_order(schedule.replace(programs=[schedule.programs[0], program])) == good


# -- data, checkpoints, the command ----------------------------------------------------------------


def test_text_by_a_markov_chain_has_the_entropy_it_says() -> None:
    tokens = Tokens(24, seed=5)
    inputs, targets = tokens.batch(3, 4, 64, 32)
    assert inputs.shape == targets.shape == (4, 64, 32)
    assert (inputs[..., 1:] == targets[..., :-1]).all()
    counts = torch.zeros(24, 24)
    counts.index_put_((inputs.flatten(), targets.flatten()), torch.ones(inputs.numel()), True)
    assert (counts > 0).sum() == 24 * 4
    share = counts / counts.sum(1, keepdim=True)
    found = -(counts * share.clamp_min(1e-9).log()).sum() / counts.sum()
    assert float(found) == pytest.approx(tokens.floor, rel=0.03)
    assert torch.equal(inputs, Tokens(24, seed=5).batch(3, 4, 64, 32)[0])
    assert not torch.equal(inputs, tokens.batch(4, 4, 64, 32)[0])


def test_text_of_a_file() -> None:
    text = bytes(range(100))
    inputs, targets = Tokens(256, text=text).batch(0, 2, 3, 8)
    assert (targets == inputs + 1).all()
    with pytest.raises(OptPipeError, match="256 holds every byte"):
        Tokens(50, text=text)
    with pytest.raises(OptPipeError, match="a sequence needs 202"):
        Tokens(256, text=text).batch(0, 1, 1, 200)


def test_a_run_goes_on_as_if_never_stopped(profile, ranks, tmp_path) -> None:
    kept = {"checkpoints": str(tmp_path), "every": 4}
    there = build("zb-h1", profile, M)
    job = scripted(profile, 100, [(1, there)], **kept)

    def interrupt(row: dict[str, Any]) -> None:
        if row.get("step") == 5 and "loss" in row:
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C

    first = train(job, interrupt, ranks)
    assert first.stopped
    done = len(first.rows)
    on = replace(task(profile, done + 5, **kept), schedule=there, resume=True)
    second = train(on, ranks=ranks)
    assert [row["step"] for row in second.rows] == list(range(done + 5))
    assert losses(second) == unpipelined(on, done + 5)
    assert losses(second)[:done] == losses(first)
    assert [path.name for path in tmp_path.glob("step-*")] == [f"step-{done + 5:06d}"]
    assert (tmp_path / NAME).exists()
    with pytest.raises(OptPipeError, match=r"lr was 0\.003, now it is 0\.1"):
        train(replace(on, lr=0.1), ranks=ranks)


def test_the_command_trains_and_writes(command_line, tmp_path, ranks, monkeypatch) -> None:
    # ranks that are there already
    monkeypatch.setattr("optpipe_sim.runtime.train.train.Ranks", lambda count: nullcontext(ranks))
    shape = "{layers: 2, hidden: 32, heads: 4, ffn: 64, vocab: 24}"
    (tmp_path / "tiny.yaml").write_text(shape)
    line = "train --model tiny.yaml --stages 2 -m 2 --seq 8 --microbatch 1 --no-switch"
    answer = command_line(f"{line} --steps 6 --checkpoint C --write out/run --json")
    assert answer.code == 0
    data = answer.json
    assert data["greatest_difference"] == 0
    assert len(data["losses"]) == 6
    assert data["phases"][0]["schedule"] == "adaoffload"
    rows = (tmp_path / "out/run.csv").read_text().splitlines()
    assert len(rows) == 7
    page = (tmp_path / "out/run.md").read_text()
    assert "bitwise equal at every step" in page
    assert "--model tiny.yaml" in page
    assert (tmp_path / "out/run.png").stat().st_size > 10_000
    answer = command_line(f"{line} --steps 8 --checkpoint C --resume")
    assert answer.code == 0
    assert "in 8 steps" in answer.out


def test_a_rank_that_dies_is_named_and_the_checkpoint_stays(profile, tmp_path, ranks) -> None:
    job = task(profile, STEPS, checkpoints=str(tmp_path), every=3)

    def news(row: dict[str, Any]) -> None:
        if row.get("step") == 7:
            os.kill(ranks.pids[1], signal.SIGKILL)

    with pytest.raises(OptPipeError, match="rank 1 died"):
        train(job, news, ranks)
    step = read_mapping(tmp_path / NAME)["step"]
    assert step >= 6
    resumed = train(replace(job, resume=True, steps=step + 2), ranks=ranks)
    assert losses(resumed) == unpipelined(job, step + 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--resume", "--resume: say from where with --checkpoint FOLDER"),
        ("--resume --checkpoint none", "none: no checkpoint to resume from"),
        ("--memory-limit 1KiB", "device 0"),
        ("--slow 1:2", "must be STAGE:STEP:MS"),
        ("--slow 7:2:1", "slow: there is no stage 7"),
        ("--text missing.txt", "missing.txt: no such file"),
        ("--drift 0%", "drift above 0"),
        ("--figure F.txt", "--figure F.txt: the name must end in"),
    ],
)
def test_refusals_are_one_line(command_line, tmp_path, options, said) -> None:
    (tmp_path / "tiny.yaml").write_text("{layers: 2, hidden: 16, heads: 2, ffn: 32, vocab: 24}")
    line = "train --model tiny.yaml --stages 2 -m 2 --seq 8 --microbatch 1 --steps 2"
    answer = command_line(f"{line} {options}")
    assert answer.code in (1, 2)
    assert said in answer.complaint


def test_the_committed_run_is_what_it_says() -> None:
    results = Path(__file__).parents[2] / "results"
    with (results / "train_switch.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 300
    assert all(row["loss"] == row["loss_unpipelined"] for row in rows)
    assert int(rows[-1]["epoch"]) >= 1
    assert float(rows[-1]["loss"]) < 1.3 < 4 < float(rows[0]["loss"])
    assert "bitwise equal at every step" in (results / "train_switch.md").read_text()
