"""Ctrl-C: `compare` and `advise` end at once with what they have; with nothing, the status is 130."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from optpipe_sim import load_profile
from optpipe_sim.costs.advise import shortlist as advise_search
from optpipe_sim.costs.advise.advise import advise
from optpipe_sim.study import compare
from optpipe_sim.study.compare import compare_all

PROFILE = {
    "name": "tiny",
    "devices": 4,
    "stages": {"t_f_ms": 3, "t_b_ms": 4, "t_w_ms": 2, "act_mib": 2, "w_mib": 1},
    "memory_limit_gib": 1,
}
MODEL = {"name": "small", "layers": 8, "hidden": 2048, "heads": 16, "vocab": 32000, "ffn": 5632}
NAMES = ["1f1b", "zb-h1", "gpipe", "zb-h2"]


def stop_at(number: int) -> Any:
    """What a progress hook does when Ctrl-C comes at its so many-th call."""
    calls: list[str] = []

    def hook(*given: Any) -> None:
        calls.append(str(given[0]))
        if len(calls) == number:
            raise KeyboardInterrupt

    return hook


def test_compare_keeps_its_rows_and_names_what_is_left_out() -> None:
    profile = load_profile(PROFILE)
    found = compare_all(profile, 8, NAMES, progress=stop_at(3))
    assert found.interrupted
    assert {row.schedule for row in found.rows} == {"1f1b", "zb-h1"}
    assert found.left_out == ("gpipe", "zb-h2")
    whole = compare_all(profile, 8, NAMES)
    assert not whole.interrupted
    assert whole.left_out == ()
    with pytest.raises(KeyboardInterrupt):
        compare_all(profile, 8, NAMES, progress=stop_at(1))


def test_compare_does_not_go_on_after_a_search_that_was_interrupted(monkeypatch) -> None:
    def interrupted(name: str, *given: Any) -> Any:
        schedule = compare.build("1f1b", *given[:2])
        return schedule.replace(
            meta={**schedule.meta, "interrupted": True, "lower_bound_ns": 1, "bound": "work"}
        )

    monkeypatch.setattr(compare, "_build", interrupted)
    found = compare_all(load_profile(PROFILE), 8, ["optpipe", "zb-h1"])
    assert [row.schedule for row in found.rows] == ["optpipe"]
    assert (found.interrupted, found.left_out) == (True, ("zb-h1",))


def test_compare_on_the_command_line(command_line, tmp_path, monkeypatch) -> None:
    replay, calls = compare._Run.replay, []

    def stops(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:  # the baseline is the first
            raise KeyboardInterrupt
        return replay(*given)

    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(PROFILE))
    monkeypatch.setattr(compare._Run, "replay", stops)
    line = f"compare tiny.yaml -m 8 --schedules {','.join(NAMES)}"
    answer = command_line(f"{line} --json")
    assert answer.code == 0
    assert (answer.json["interrupted"], answer.json["left_out"]) == (True, ["gpipe", "zb-h2"])
    calls.clear()
    assert "interrupted: the rows so far; not compared: gpipe, zb-h2" in command_line(line).out
    calls[:] = [1, 1]  # before the first schedule
    refused = command_line(line)
    assert (refused.code, refused.out) == (130, "")


def _advise(**changes: Any) -> Any:
    asked = {"schedules": ["1f1b", "zb-h1"], "time_limit": 60, "tolerance": 0.0}
    return advise(MODEL, "a100", 4, 16, 4096, **{**asked, **changes})


def test_advise_gives_the_best_so_far() -> None:
    steps: list[str] = []
    whole = _advise(on_progress=lambda step, *_: steps.append(step))
    assert not whole.interrupted
    first = next(at for at, step in enumerate(steps, 1) if step.startswith("replaying, best"))
    found = _advise(on_progress=stop_at(first + 1))
    assert found.interrupted
    assert found.to_json()["interrupted"] is True
    assert 0 < found.searched < whole.searched
    assert found.rows[0].iteration_ns >= whole.rows[0].iteration_ns
    # what was not looked at is counted, and nothing of it is faster than what is said
    assert found.unsearched > 0
    assert found.hope_ns <= whole.rows[0].iteration_ns
    with pytest.raises(KeyboardInterrupt):
        _advise(on_progress=stop_at(1))


def test_advise_stops_after_a_search_that_was_interrupted(monkeypatch) -> None:
    calls = []

    def stops(*_: Any, warm_start: Any, **__: Any) -> Any:
        calls.append(1)
        info = {"interrupted": True, "compiling_s": 0.0}
        return SimpleNamespace(schedule=warm_start, lower_bound_ns=0, info=info)

    monkeypatch.setattr(advise_search, "solve", stops)
    found = _advise(schedules=["1f1b", "optpipe"], pp=(2, 4), chunks=1, tp=1)
    assert found.interrupted
    assert len(calls) == 1
