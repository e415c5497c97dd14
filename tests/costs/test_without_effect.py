"""Options that change nothing in the layout at hand are named; the same ones are not where they do."""

from __future__ import annotations

from typing import Any

import pytest

from optpipe_sim.costs import estimate


def warnings_of(model: str, devices: int, **options: Any) -> list[str]:
    profile = estimate(model, "a100-80gb", devices, levels=False, **options)
    return [text for text in profile.meta.get("warnings", ()) if "no effect" in text]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exchange": "per-node"}, "exchange per-node has no effect: ep is 1"),
        ({"etp": 1}, "etp 1 has no effect: llama2-7b has no experts"),
        ({"context": "heads"}, "context heads has no effect: cp is 1"),
        ({"slice_by": "time"}, "slice-by time has no effect: sequences are whole"),
        ({"overlap": ("tp-comm",)}, "overlap tp-comm has no effect: tp is 1"),
        ({"overlap": ("grad-reduce",)}, "overlap grad-reduce has no effect: dp x cp is 1"),
    ],
)
def test_an_option_without_effect_is_named(options: dict[str, Any], said: str) -> None:
    assert warnings_of("llama2-7b", 4, **options) == [said]


def test_where_they_have_one_nothing_is_said() -> None:
    spread = {"tp": 2, "cp": 2, "dp": 2, "overlap": ("grad-reduce", "param-gather", "tp-comm")}
    assert warnings_of("llama2-7b", 16, context="heads", **spread) == []
    assert warnings_of("llama2-7b", 4, slices=4, slice_by="time") == []
    assert warnings_of("mixtral-8x7b", 4, ep=4, dp=4, etp=1, exchange="per-node") == []
