"""Hints of `advise`: of the plan that it tells, what evaluating them gives, and what the framework has options for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from optpipe_sim.cli import main
from optpipe_sim.costs.advise.advise import advise
from optpipe_sim.costs.advise.evaluate import evaluate
from optpipe_sim.costs.advise.hints import hints_for
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks import advised
from optpipe_sim.frameworks.advised import told_to
from optpipe_sim.schedules import names_in
from optpipe_sim.trace import Trace

DENSE = ("qwen3-1.7b", "h100")
EXPERTS = ("qwen3-30b-a3b", "h100")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["advise", *words, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_hint_is_the_evaluation_of_the_told_plan_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan of a family may be another than the best row: other layers on its stages, say."""
    monkeypatch.setattr(advised, "FREE_S", 0.3)
    words = "--model qwen3-1.7b --machine h100 --gpus 8 --global-batch 16 --seq 4096 --pp 4 --tp 2 --microbatch 1"
    answer = told(capsys, *words.split(), "--chunks", "1", "--family", "megatron")
    hint = next(one for one in answer["hints"] if one["what"] == "overlap tp-comm")
    assert hint["gain"] == pytest.approx(1 - hint["time_ns"] / answer["told_iteration_ns"])
    again = evaluate(
        *DENSE,
        8,
        4096,
        microbatches=16,
        pp=4,
        tp=2,
        schedule=answer["told"],
        layers=answer["told_layers"],
        zero=answer["rows"][0]["zero"],
        overlap=("tp-comm",),
    )
    assert hint["time_ns"] == pytest.approx(again.row.iteration_ns, abs=1)
    assert hint["peak_bytes"] == again.row.peak_bytes


def test_the_family_is_searched_around_all_that_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two configurations that differ by less than `NEAR`, the slower one may end in the faster plan."""
    monkeypatch.setattr(advised, "FREE_S", 0.3)
    monkeypatch.setattr(advised, "NEAR", 0.5)
    asked: dict[str, Any] = {"pp": 4, "tp": 2, "microbatch": 1, "zero": 1}
    asked |= {"schedules": names_in("megatron"), "recompute": ("none", "full")}
    given = {"recompute": None}
    answers = {}
    for chunks in ((1,), (2,), (1, 2)):
        found = advise(*DENSE, 8, 16, 4096, chunks=chunks, time_limit=60, **asked)
        answer, row = advised.plan_in("megatron", found, 60.0, given)
        answers[chunks] = row.iteration_ns
        shown = advised.with_row(found, row)
        assert shown.rows[0] is row
        assert answer["told_iteration_ns"] == round(row.iteration_ns)
        # nothing is searched where no time is left, and the answer is the best row
        assert advised.plan_in("megatron", found, 0.0, given)[1] is found.rows[0]
    assert answers[1, 2] == min(answers[(1,)], answers[(2,)])
    assert answers[(1,)] != answers[(2,)]


def test_what_to_recompute_is_kept_where_it_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advised, "FREE_S", 0.3)
    asked: dict[str, Any] = {"pp": 4, "tp": 2, "microbatch": 1, "chunks": 1, "zero": 1}
    asked |= {"schedules": names_in("megatron"), "recompute": ("full",)}
    found = advise(*DENSE, 8, 16, 4096, time_limit=60, **asked)
    _, row = advised.plan_in("megatron", found, 60.0, {"recompute": ("full",)})
    assert row.choice.recompute == "full"
    _, free = advised.plan_in("megatron", found, 60.0, {"recompute": None})
    assert free.iteration_ns < row.iteration_ns
    # where nothing better is found, the best row is told, and its split is searched with the levels that it may have
    monkeypatch.setattr(advised, "_near", lambda *_: iter(()))
    answer, row = advised.plan_in("megatron", found, 60.0, {"recompute": None})
    assert row is found.rows[0]
    assert answer["free_ns"] < answer["told_iteration_ns"]


def test_an_interrupted_search_answers_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"pp": 4, "tp": 2, "microbatch": 1, "chunks": 1, "zero": 1}
    found = advise(*DENSE, 8, 16, 4096, time_limit=60, schedules=names_in("megatron"), **asked)
    better = replace(found.rows[0], schedule="1f1b:better", trace=replace(found.rows[0].trace))
    better.__dict__["iteration_ns"] = found.rows[0].iteration_ns / 2

    def interrupted(*_: Any) -> Any:
        yield better
        raise KeyboardInterrupt

    monkeypatch.setattr(advised, "_near", interrupted)
    answer, row = advised.plan_in("megatron", found, 60.0, {"recompute": None})
    assert row is better
    assert answer["interrupted"]
    assert "free_ns" not in answer
    assert advised.with_row(found, row, True).interrupted

    monkeypatch.setattr(advised, "_near", lambda *_: iter(()))
    monkeypatch.setattr(advised, "_free", lambda *_: next(interrupted_at_once()))
    answer, row = advised.plan_in("megatron", found, 60.0, {"recompute": None})
    assert row is found.rows[0]
    assert answer["interrupted"]
    assert answer["command"]


def interrupted_at_once() -> Any:
    raise KeyboardInterrupt
    yield


def test_a_hint_has_options_in_the_family(capsys: pytest.CaptureFixture[str]) -> None:
    """Megatron-LM hides tensor parallelism's collectives behind GEMMs; torchtitan has no option for that."""
    words = "--model qwen3-1.7b --machine h100 --gpus 8 --global-batch 16 --seq 4096 --pp 2 --tp 2 --microbatch 1 --time-limit 3 --execution ideal"
    free = [one["key"] for one in told(capsys, *words.split())["hints"]]
    assert "overlap tp-comm" in free
    own = [one["key"] for one in told(capsys, *words.split(), "--family", "torchtitan")["hints"]]
    assert own == [key for key in free if key != "overlap tp-comm"]


def test_what_is_refused_is_no_hint() -> None:
    asked: dict[str, Any] = {"pp": 2, "tp": 2, "ep": 4, "microbatch": 1, "chunks": 1}
    found = advise(*EXPERTS, 16, 32, 4096, schedules=["1f1b"], time_limit=3, **asked)
    row = found.rows[0]
    refused = []

    def check(trace: Trace) -> None:
        try:
            told_to("megatron", trace)
        except OptPipeError as error:
            refused.append(str(error))
            raise

    every = {one.what for one in hints_for(found.question, row, 60, searched=True)}
    own = {one.what for one in hints_for(found.question, row, 60, searched=True, check=check)}
    # Megatron-LM hides the exchange behind another microbatch only with several chunks per rank
    assert any("several chunks" in why for why in refused)
    assert own
    assert any("overlapped" in what for what in every)
    assert not any("overlapped" in what for what in own)
    for one in hints_for(found.question, row, 60, searched=True):
        assert one.gain >= 0.005
        assert one.key.startswith(("experts", "overlap"))
