"""Training that changes its schedule: agreed by all ranks, equal to the unpipelined model, resumable."""

from __future__ import annotations

import csv
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runtime_cases import with_levels
from train_cases import (
    LEVELS,
    QUICK,
    STEPS,
    M,
    kinds,
    losses,
    one_by_one,
    rows_after,
    scripted,
    task,
    timed,
    until,
)

from optpipe_sim import build
from optpipe_sim.errors import InvalidSchedule, OptPipeError
from optpipe_sim.files import read_mapping
from optpipe_sim.ops import BW, B, F, Op, W
from optpipe_sim.runtime.checkpoint import NAME
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.runtime.train.planner import Planner, in_order
from optpipe_sim.runtime.train.task import Slow, require_same_shape
from optpipe_sim.runtime.train.train import switch_costs, train, unpipelined

pytestmark = pytest.mark.slow  # ranks, a solver and a training run at once


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


# -- the switch ---------------------------------------------------------------------------------------


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


def test_where_one_rank_refuses_none_switches(profile, ranks) -> None:
    script = [(2, build("zb-h1", profile, M)), (7, build("1f1b", profile, M))]
    job = scripted(profile, STEPS, script, stubborn=(1,))
    result = train(job, until(lambda seen: rows_after(seen, "refused", 2) >= 2), ranks)
    refusals = [event for event in result.events if event["event"] == "refused"]
    assert [event["reasons"] for event in refusals] == [
        ["rank 1: OptPipeError: rank 1 would rather not"]
    ] * 2
    assert kinds(result).count("rejected") == 2
    assert "switched" not in kinds(result)
    assert {row["epoch"] for row in result.rows} == {0}
    assert losses(result) == unpipelined(job, len(result.rows))


def test_a_schedule_that_cannot_run_is_refused_by_all_ranks(profile, ranks) -> None:
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


# -- with the solver ----------------------------------------------------------------------------------


def test_the_solver_beside_training_finds_a_faster_schedule_and_all_ranks_switch(
    profile, ranks
) -> None:
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


def test_a_slower_stage_is_noticed_and_the_solver_starts_again(profile, ranks) -> None:
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


def test_orders_that_add_up_gradients_in_the_same_order_are_known(profile) -> None:
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


# -- checkpoints, the command -------------------------------------------------------------------------


def test_a_resumed_run_equals_one_that_was_never_stopped(profile, ranks, tmp_path) -> None:
    kept = {"checkpoints": str(tmp_path), "every": 4}
    there = build("zb-h1", profile, M)
    job = scripted(profile, 100, [(1, there)], **kept)

    def interrupt(row: dict[str, Any]) -> None:
        if row.get("step") == 5 and "loss" in row:
            # Ctrl-C, while this thread waits
            threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGINT)).start()

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


def test_the_committed_run_switches_and_has_equal_losses() -> None:
    results = Path(__file__).parents[3] / "results"
    with (results / "train_switch.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 300
    assert all(row["loss"] == row["loss_unpipelined"] for row in rows)
    assert int(rows[-1]["epoch"]) >= 1
    assert float(rows[-1]["loss"]) < 1.3 < 4 < float(rows[0]["loss"])
    assert "bitwise equal at every step" in (results / "train_switch.md").read_text()
