"""``compare``: its rows, its table for people, and the function behind it."""

from __future__ import annotations

import pytest
from cli_cases import MEASURES, OFFLOADING

from optpipe_sim import build, load_profile
from optpipe_sim.names import ENTRIES
from optpipe_sim.study.compare import compare, compare_all


def test_compare_without_a_limit_says_what_each_holds(cli) -> None:
    text = cli("compare p.yaml -m 8 --schedules 1f1b,zb-h2,gpipe").out
    said = "On the fullest device 1f1b holds 400 B, gpipe 800 B: --memory-limit says which fit"
    assert f"No memory limit was given. {said}" in text
    assert text.index("Fastest: zb-h2") < text.index("No memory limit")
    assert "; it holds 700 B, 1F1B 400 B." in text
    assert (
        "No memory limit" not in cli("compare p.yaml -m 8 --schedules 1f1b --memory-limit 1GiB").out
    )


def test_compare_json(cli) -> None:
    answer = cli("compare o.yaml -m 8 --memory-limit 400B --json")
    assert (answer.code, answer.err) == (0, "")
    rows = answer.json["rows"]
    assert all(
        set(row) >= MEASURES | {"chunks", "gap", "lower_bound_ns", "speedup"} for row in rows
    )
    whole = {name for name, entry in ENTRIES.items() if not entry.sliced}
    assert {row["schedule"] for row in rows} | set(answer.json["refused"]) == whole
    order = [(not row["fits"], row["cost_ns"]) for row in rows]
    assert order == sorted(order)
    base = next(row for row in rows if row["schedule"] == "1f1b")
    assert base["fits"]
    for row in rows:
        assert row["speedup"] == base["cost_ns"] / row["cost_ns"]
        assert row["lower_bound_ns"] <= row["cost_ns"]
        assert row["gap"] == (row["cost_ns"] - row["lower_bound_ns"]) / row["lower_bound_ns"]
        assert row["fits"] == (row["reason"] is None)
        assert not row["fits"] or max(row["peak_bytes"]) <= 400


def test_compare_runs_1f1b_without_the_limit_where_it_does_not_fit(cli) -> None:
    answer = cli("compare p.yaml -m 8 --memory-limit 300B --schedules gis-h,zb-h1 --json")
    assert [row["schedule"] for row in answer.json["rows"]] == ["gis-h", "zb-h1"]
    free = cli("simulate p.yaml --schedule 1f1b -m 8 --json").json
    assert answer.json["baseline"] == {
        "schedule": "1f1b",
        "cost_ns": free["cost_ns"],
        "fits": False,
    }
    for row in answer.json["rows"]:
        assert row["baseline_fits"] is False
        assert row["speedup"] == free["cost_ns"] / row["cost_ns"]


def test_compare_lists_what_is_not_admitted(cli) -> None:
    answer = cli("compare p.yaml -m 7 --json")
    assert answer.code == 0
    refused = answer.json["refused"]
    assert "multiple" in refused["1f1b-i"]
    assert "offload" in refused["po-h"]
    text = cli("compare p.yaml -m 7").out
    assert "not run: 1f1b-i" in text
    nothing = cli("compare p.yaml -m 7 --schedules 1f1b-i")
    assert nothing.code == 2
    assert nothing.err.startswith("optpipe-sim: 1f1b-i: microbatches must be a multiple")


def test_compare_table_for_people(cli) -> None:
    answer = cli("compare o.yaml -m 8 --memory-limit 400B")
    assert answer.code == 0
    assert "\x1b" not in answer.out
    rows = cli("compare o.yaml -m 8 --memory-limit 400B --json").json["rows"]
    lines = answer.out.splitlines()
    table = [line.split() for line in lines[6 : 6 + len(rows)]]
    assert [cells[0] for cells in table] == [row["schedule"] for row in rows]
    assert [("✓" in cells, "✗" in cells) for cells in table] == [
        (row["fits"], not row["fits"]) for row in rows
    ]
    assert max(map(len, lines[4 : 6 + len(rows)])) <= 100
    assert f"Fastest that fits: {rows[0]['schedule']}" in answer.out


def test_compare_table_keeps_long_names_in_a_pipe(cli) -> None:
    name = "gis:chunks=12,group=4"
    assert name in cli(f"compare p.yaml -m 8 --schedules {name},1f1b").out


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_compare_table_fits_the_terminal(columns, cli, monkeypatch) -> None:
    from rich.console import Console

    from optpipe_sim.cli.outputs.compare import table

    result = compare_all(load_profile(OFFLOADING), 8, memory_limit=400)
    console = Console(width=columns, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(table(result, console))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    assert all(row.schedule in text for row in result.rows)


def test_compare_takes_names_with_options_and_files(cli) -> None:
    cli("simulate p.yaml --schedule zb-h2 -m 8 --save mine.json")
    line = "compare p.yaml -m 8 --schedules gis:group=2,chunks=3,mine.json,1f1b --json"
    rows = {row["schedule"]: row for row in cli(line).json["rows"]}
    assert set(rows) == {"gis:group=2,chunks=3", "mine.json", "1f1b"}
    assert rows["gis:group=2,chunks=3"]["chunks"] == 3
    assert "is for 8 microbatches" in cli("compare p.yaml -m 9 --schedules mine.json").complaint


def test_compare_when_nothing_fits(cli) -> None:
    answer = cli("compare p.yaml -m 8 --memory-limit 99B")
    assert answer.code == 1
    assert "Nothing fits" in answer.out
    assert "least limit that works is 100B" in answer.out


def test_compare_as_a_function() -> None:
    profile = load_profile(OFFLOADING)
    rows = compare(profile, 8, ["1f1b", build("zb-h1", profile, 8)], memory_limit=400)
    assert [row.schedule for row in rows] == ["zb-h1", "1f1b"]
    assert rows[1].speedup == 1
    assert rows[0].trace.memory_limit == (400,) * 4
    seen = []
    compare_all(profile, 8, ["1f1b", "gpipe"], progress=lambda *step: seen.append(step))
    assert seen == [("1f1b", 0, 2), ("gpipe", 1, 2)]
