"""Packing and order of microbatches of public lengths: sequences are all there, and what is committed can be computed again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from experiments.lengths.task import DATA, packed, run
from optpipe_sim.study.tables import load_table

ROWS = load_table(Path(__file__).parents[2] / "results", "lengths")


@pytest.mark.parametrize("packing", ["one each", "as drawn", "best fit"])
@pytest.mark.parametrize("data", DATA)
def test_every_sequence_is_packed_once_and_no_microbatch_is_too_long(
    data: str, packing: str
) -> None:
    draw, capacity = DATA[data]
    random = Random(7)
    lengths = [draw(random) for _ in range(200)]
    filled = packed(lengths, capacity, packing)
    assert sorted(one for each in filled for one in each) == sorted(lengths)
    assert all(0 < sum(each) <= capacity for each in filled)
    assert min(lengths) >= 1024
    if packing == "best fit":
        assert len(filled) <= len(packed(lengths, capacity, "as drawn"))


def test_packing_by_time_makes_microbatches_more_alike() -> None:
    spread = {
        packing: run("megatron-mock", packing, "1f1b", seed=3, sequences=16)
        for packing in ("best fit", "by time")
    }
    fitted, timed = spread["best fit"], spread["by time"]
    assert timed["tokens"] == fitted["tokens"]
    assert timed["longest"] - timed["shortest"] < fitted["longest"] - fitted["shortest"]


def test_the_best_order_is_no_slower_and_no_bound_is_beaten() -> None:
    for row in ROWS:
        assert row["lower_bound_ns"] <= row["searched_ns"] <= row["given_ns"]


def test_a_committed_row_comes_out_again() -> None:
    row = next(
        row
        for row in ROWS
        if (row["data"], row["packing"], row["schedule"]) == ("longalign", "best fit", "1f1b")
    )
    again = run("longalign", "best fit", "1f1b", seed=row["seed"])
    assert {key: row[key] for key in again} == again
