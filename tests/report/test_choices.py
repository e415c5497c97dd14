"""Pages of many schedules: each command that has one shows what it answers with ``--json``.

All of their names are hostile: those of profiles, levels of recomputation, schedules, models, machines and files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import HOSTILE, Page

from optpipe_sim import Report
from optpipe_sim.report import choices
from optpipe_sim.study.compare import compare_all

PROFILE = {
    "name": HOSTILE,
    "devices": 4,
    "stages": {
        "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50,
        "recompute": [{"name": HOSTILE, "t_ms": 0.5, "keep_bytes": 60}],
    },
    "offload": {"t_offload_ms": 1.3, "t_reload_ms": 1.1},
}  # fmt: skip
MODEL = {"name": HOSTILE, "layers": 28, "hidden": 2048, "heads": 16, "kv_heads": 8, "ffn": 6144, "vocab": 151936}  # fmt: skip
MACHINE = {"base": "h100", "name": HOSTILE, "title": HOSTILE}


@pytest.fixture
def cli(command_line: Any) -> Any:
    """Run a command line in an empty folder that holds p.yaml."""
    Path("p.yaml").write_text(yaml.safe_dump(PROFILE))
    return command_line


def written() -> Page:
    """The page that a command has written; of its names, none has become an element of it."""
    page = Page(Path("F.html").read_text())
    assert [tag for tag, _ in page.tags].count("script") == len(views(page)) + 2
    assert "img" not in [tag for tag, _ in page.tags]
    assert HOSTILE in page.text
    return page


def opened(page: Page) -> list[str]:
    """What the links of the table open."""
    links = [str(attributes["href"]) for tag, attributes in page.tags if tag == "a"]
    return [link.removeprefix("#view-") for link in links]


def views(page: Page) -> list[str]:
    return [attributes["id"] for _, attributes in page.tags if attributes.get("class") == "content"]


def test_simulate_and_solve_write_the_page_of_their_schedule(cli: Any) -> None:
    for line in (
        "simulate p.yaml --schedule zb-h1 -m 6",
        "solve p.yaml -m 6 --memory-limit 250B --engine adaoffload --no-cache",
    ):
        found = cli(f"{line} --report F.html --json").json
        page = written()
        assert page.tiles["makespan_ns"] == str(found["makespan_ns"])
        assert found["files"] == {"F.html": "the page; open it in a browser"}
        assert f"optpipe-sim {line} --report F.html" in page.text
        assert views(page) == ["view-0"]
    assert page.tiles["lower_bound_ns"] == str(found["lower_bound_ns"])


def test_compare_shows_every_schedule_and_opens_each(cli: Any) -> None:
    line = "compare p.yaml -m 8 --memory-limit 400B --schedules 1f1b,zb-h1,gpipe,gis"
    found = cli(f"{line} --report F.html --json").json
    page = written()
    rows = page.rows("choices")
    assert [(row[0][0], row[1][1], row[3][1]) for row in rows] == [
        (row["schedule"], str(row["makespan_ns"]), str(max(row["peak_bytes"])))
        for row in found["rows"]
    ]
    assert {row[4][0] for row in rows} == {"yes", "no"}
    assert opened(page) == [str(at) for at in range(1, len(rows) + 1)]
    assert views(page) == [f"view-{at}" for at in range(len(rows) + 1)]
    foldable = [
        attributes
        for tag, attributes in page.tags
        if tag == "details" and attributes.get("class") == "view"
    ]
    assert ["open" in attributes for attributes in foldable] == [True] + [False] * (len(rows) - 1)
    best = next(row for row in found["rows"] if row["fits"])
    assert f"Fastest that fits: {best['schedule']}, " in page.text


def test_pages_give_intervals_and_mark_toss_ups(cli: Any) -> None:
    issued = "--execution megatron-lm"
    line = f"compare p.yaml -m 64 --schedules zb-h1,zb-h2 {issued}"
    found = cli(f"{line} --report F.html --json").json["rows"]
    page = written()
    marked = [row[0][0] for row in page.rows("choices") if row[1][0].endswith("≈")]
    assert marked == [row["schedule"] for row in found if row["toss_up"]]
    assert marked
    assert "such differences are ±4.0% off" in page.text
    assert (
        "measured ones are 0.94 to 1.06 times these in four of five runs as megatron-lm"
        in page.text
    )
    one = cli(f"simulate p.yaml --schedule zb-h1 -m 8 {issued} --report F.html --json").json
    assert json.loads(written().tiles["iteration_interval_ns"]) == one["iteration_interval_ns"]


def test_a_page_counts_iterations_that_chain_as_the_trainer_does() -> None:
    from optpipe_sim import build, load_profile, simulate

    slow = {"t_f_ms": 9, "t_b_ms": 9, "t_w_ms": 9, "act_bytes": 100, "w_bytes": 50}
    profile = load_profile({**PROFILE, "stages": slow, "execution": "zero-bubble-a100"})
    plain, chained = (simulate(build(name, profile, 8), profile) for name in ("1f1b", "zb-h2"))
    assert chained.iteration_ns < chained.makespan_ns
    told = Page(Report.of(chained).html).tiles
    assert told["iteration_ns"] == str(chained.iteration_ns)
    both = Page(Report.of(plain, against=chained).html)
    assert f"an iteration takes {chained.iteration_ns / plain.iteration_ns - 1:+.1%}" in both.text
    (*_, last) = both.rows("difference")
    assert last[0][0] == "pipeline time"


def test_a_page_of_two_schedules_says_that_their_difference_is_a_toss_up() -> None:
    from optpipe_sim import build, load_profile, simulate

    profile = load_profile({**PROFILE, "execution": "megatron-lm"})
    one, two, far = (
        simulate(build(name, profile, 64), profile)
        for name in ("zb-h1", "zb-h2", "gpipe:recompute=" + HOSTILE)
    )
    told = "in reality a toss-up: such differences are ±4.0% off"
    assert abs(two.iteration_ns / one.iteration_ns - 1) < 0.04
    assert told in Report.of(one, against=two).html
    assert told not in Report.of(one, against=far).html


def test_a_page_that_would_be_too_large_leaves_lanes_out(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optpipe_sim import load_profile

    found = compare_all(load_profile(PROFILE), 8, ["1f1b", "zb-h1", "gpipe"])
    size = len(found.rows[0].trace.schedule)
    monkeypatch.setattr(choices, "MOST_OPS", size)
    page = Page(Report.of_comparison(found).html)
    assert opened(page) == ["1"]
    assert len(page.rows("choices")) == 3
    assert "2 have no room on this page" in page.text


def test_frontier_shows_the_curve_and_opens_its_schedules(cli: Any) -> None:
    line = "frontier p.yaml -m 6 --limits 50B,200B,400B --engine adaoffload --time-limit 1"
    line += " --chunks profile"
    found = cli(f"{line} --no-cache --schedules 1f1b,zb-h1 --report F.html --json").json
    page = written()
    rows = page.rows("choices")
    assert [row[7][0] for row in rows] == [point["status"] for point in found["points"]]
    solved = [point for point in found["points"] if point["objective_ns"]]
    assert 0 < len(solved) < len(rows)
    shown = [(row[1][1], row[2][1], row[4][1]) for row in rows if row[1][0] != "none"]
    columns = ("objective_ns", "chunks", "lower_bound_ns")
    assert shown == [tuple(str(point[key]) for key in columns) for point in solved]
    assert len(opened(page)) == len(solved)
    costs = [point["objective_ns"] for point in solved]
    assert f"{costs[0] / min(costs) - 1:.0%} longer, " in page.text
    data = page.figures[0]
    assert "1 chunk per device is faster (proven)" in data
    assert "zb-h1" in data


def test_advise_shows_the_best_of_each_split(cli: Any) -> None:
    Path("model.yaml").write_text(yaml.safe_dump(MODEL))
    Path("machine.yaml").write_text(yaml.safe_dump(MACHINE))
    line = "advise --model model.yaml --machine machine.yaml --gpus 4 --global-batch 16 --seq 4096"
    line += " --schedules 1f1b,zb-h1 --microbatch 1 --chunks 1 --time-limit 5"
    found = cli(f"{line} --report F.html --json").json
    page = written()
    rows = page.rows("choices")
    assert [(row[1][0], round(float(row[2][1])), row[5][1]) for row in rows] == [
        (row["schedule"], row["iteration_ns"], str(row["peak_bytes"])) for row in found["rows"]
    ]
    assert len(opened(page)) == len(rows)
    assert f"Fastest that fits: {rows[0][0][0]}: {rows[0][1][0]}, " in page.text
    assert found["basis"] in page.text
    assert page.text.count(HOSTILE) >= 2  # the model and the machine


def test_schedules_and_files_may_be_called_anything(cli: Any) -> None:
    schedule = json.loads(_saved(cli))
    # a sign that turns the text after it around, and half of a character: a byte that is not UTF-8
    schedule["meta"]["name"] = f"\u202e\udcff{HOSTILE}"
    name = "<script>\u202e\udcff.json"
    Path(name).write_text(json.dumps(schedule))
    for line in (f"compare p.yaml -m 4 --schedules {name},1f1b", f"report {name} p.yaml --against 1f1b"):  # fmt: skip
        assert cli(f"{line} --report F.html").code == 0
        page = written()
        assert r"<script>\u202e\udcff.json" in page.text
    assert rf"\u202e\udcff{HOSTILE} against 1f1b" in page.text


def _saved(cli: Any) -> str:
    assert cli("simulate p.yaml --schedule 1f1b -m 4 --save s.json").code == 0
    return Path("s.json").read_text()


def test_a_report_has_the_ending_of_a_page(cli: Any) -> None:
    for line, option in (
        ("report 1f1b p.yaml -m 4", "-o"),
        ("compare p.yaml -m 4", "--report"),
        ("simulate p.yaml --schedule 1f1b -m 4", "--report"),
    ):
        answer = cli(f"{line} {option} F.png")
        assert answer.code == 2
        assert answer.err == f"optpipe-sim: {option} F.png: the name must end in .html, .htm\n"
    answer = cli("report 1f1b p.yaml -m 4 --against 1f1b p.yaml p.yaml -o F.html")
    assert answer.err == "optpipe-sim: --against: takes OTHER and PROFILE, not 'p.yaml' as well\n"
    answer = cli("report 1f1b -m 4 -o F.html")
    assert "PROFILE: needed to replay '1f1b'; only a trace file goes without" in answer.err
