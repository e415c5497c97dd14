"""Microbatches of sequences of different lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from optpipe_sim import check, load_profile
from optpipe_sim.costs import estimate
from optpipe_sim.costs.lengths import length_factors, read_lengths
from optpipe_sim.errors import OptPipeError
from optpipe_sim.schedule import Schedule


def test_attention_grows_with_the_square() -> None:
    """3 per token and 1 per token squared: 130 for ten tokens, 40 for five."""
    found = length_factors([[10], [5], [5, 5], [20]], 10, 1, lambda tokens: 3 * tokens + tokens**2)
    assert [float(one) for one in found.time] == pytest.approx(
        [1, 40 / 130, 80 / 130, 460 / 130], abs=1e-4
    )
    assert [float(one) for one in found.size] == [1, 0.5, 1, 2]
    two = length_factors([[10, 10], [10]], 10, 2, lambda tokens: 3 * tokens + tokens**2)
    assert [float(one) for one in two.time] == [1, 0.5]


@pytest.mark.parametrize("length", [2048, 16384])
def test_factors_are_those_of_estimates_at_the_lengths(length: int) -> None:
    def work_ns(tokens: int) -> float:
        profile = estimate("llama3-8b", "h100", 4, seq=tokens, levels=False)
        return sum(cost.work_ns for cost in profile.stages)

    (factor,) = length_factors([[length]], 8192, 1, work_ns).time
    assert float(factor) == pytest.approx(work_ns(length) / work_ns(8192), rel=0.03)


def test_files_of_lengths(tmp_path: Path) -> None:
    file = tmp_path / "lengths"
    file.write_text("# tokens\n4096 2048, 2048\n\n8192  # one\n")
    assert read_lengths(file) == [(4096, 2048, 2048), (8192,)]
    file.write_text("[8192, [4096, 4096]]")
    assert read_lengths(file) == [(8192,), (4096, 4096)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no lengths"),
        ("8192\nfour", "microbatch 1: expected tokens of a sequence, from 1 to 10^9, got 'four'"),
        ("[8192, 0.5]", "microbatch 1: expected tokens"),
        ("[8192,", "is no JSON"),
        ("-1", "got '-1'"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text(text)
    with pytest.raises(OptPipeError) as error:
        read_lengths(file)
    assert problem in str(error.value)
    assert str(file) in str(error.value)


def test_an_estimate_for_lengths_is_solved_in_a_better_order(command_line) -> None:
    """A long last microbatch drains alone; the search puts it where others fill its time."""
    lengths = [2048, 2048, 4096, 2048, 2048, 2048, 2048, 16384]
    Path("lengths.txt").write_text("\n".join(map(str, lengths)))
    run = "estimate --model llama3-8b --machine h100 --devices 4 --seq 8192 --no-levels"
    answer = command_line(f"{run} --lengths lengths.txt --save p.yaml --json").json
    assert len(answer["profile"]["microbatch_time"]) == 8
    told = command_line(f"{run} --lengths lengths.txt").out
    assert "8 microbatches that differ: 0.2" in told
    given = command_line("simulate p.yaml --schedule 1f1b -m 8 --memory-limit 200GiB --json").json
    solve = "solve p.yaml -m 8 --memory-limit 200GiB --time-limit 4 --chunks 1 --save s.json --json"
    found = command_line(solve).json
    assert found["objective_ns"] < 0.93 * given["cost_ns"]
    assert found["lower_bound_ns"] <= found["objective_ns"]
    assert check(Schedule.load("s.json"), load_profile("p.yaml"), 200 * 2**30) == []
    wrong = command_line("simulate p.yaml --schedule 1f1b -m 4")
    assert wrong.code == 2
    assert "has the factors of 8 microbatches, not of 4" in wrong.err
