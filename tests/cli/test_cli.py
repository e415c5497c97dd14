"""The command line: what it prints, as JSON and for people; its exit status; what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from optpipe_sim import Schedule, build, load_profile, simulate
from optpipe_sim.cli.commands.replay.export import FORMATS, LEAVES_OUT
from optpipe_sim.cli.commands.replay.export_plan import FORMATS as PLANS
from optpipe_sim.frameworks.losses import CANNOT_SAY
from optpipe_sim.names import ENTRIES
from optpipe_sim.ops import parse_op
from optpipe_sim.study.compare import ANY_CHUNKS, compare, compare_all

STAGE = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50}
PROFILE = {"name": "unit", "devices": 4, "stages": STAGE}
OFFLOADING = {**PROFILE, "offload": {"t_offload_ms": 1, "t_reload_ms": 1}}
MEASURES = {
    "schedule",
    "makespan_ns",
    "cost_ns",
    "bubble_rate",
    "bubble_rate_flush",
    "idle_ns",
    "peak_bytes",
    "host_peak_bytes",
    "offloaded",
    "fits",
}


@pytest.fixture
def cli(command_line):
    """Run a command line in an empty folder that holds p.yaml (4 devices) and o.yaml (offloading)."""
    Path("p.yaml").write_text(yaml.safe_dump(PROFILE))
    Path("o.yaml").write_text(yaml.safe_dump(OFFLOADING))
    return command_line


# -- simulate -------------------------------------------------------------------------------------


def test_simulate_json_is_the_trace(cli) -> None:
    answer = cli("simulate p.yaml --schedule zb-h1 -m 8 --json")
    assert (answer.code, answer.err) == (0, "")
    assert set(answer.json) >= MEASURES
    profile = load_profile(PROFILE)
    trace = simulate(build("zb-h1", profile, 8), profile)
    assert answer.json["makespan_ns"] == trace.makespan_ns
    assert answer.json["peak_bytes"] == list(trace.peak_bytes)
    assert answer.json["schedule"] == "zb-h1"
    assert sum(answer.json["idle_ns"].values()) == 4 * trace.makespan_ns - sum(trace.busy_ns)


def test_simulate_for_people(cli) -> None:
    answer = cli("simulate p.yaml --schedule 1f1b -m 8 --memory-limit 400B")
    assert answer.code == 0
    assert "33 ms" in answer.out  # 3 (m + p - 1)
    assert "400 B on device 0 (100% of its limit)" in answer.out
    assert "✓ yes" in answer.out
    assert "next:" in answer.out
    assert "next:" not in cli("simulate p.yaml --schedule 1f1b -m 8 -q").out


def test_simulate_objective(cli) -> None:
    flush = cli("simulate p.yaml --schedule zb-h2 -m 8 --json").json
    span = cli("simulate p.yaml --schedule zb-h2 -m 8 --json --objective span").json
    assert flush["cost_ns"] == flush["makespan_ns"] == span["makespan_ns"]
    assert span["cost_ns"] < span["makespan_ns"]


def test_simulate_what_does_not_fit(cli) -> None:
    line = "simulate p.yaml --schedule gpipe -m 8 --memory-limit 400B"
    answer = cli(f"{line} --json")
    assert answer.code == 1
    assert answer.json["fits"] is False
    assert answer.json["peak_bytes"] == [800] * 4  # the measures are those without the limit
    assert "F0.4" in answer.json["reason"]
    answer = cli(line)
    assert answer.code == 1
    assert "✗ no" in answer.out


def test_a_limit_below_one_microbatch_names_the_least(cli) -> None:
    for name in ("1f1b", "adaoffload"):
        answer = cli(f"simulate o.yaml --schedule {name} -m 8 --memory-limit 99B --json")
        assert answer.code == 1
        assert answer.json["fits"] is False
        assert "least limit that works is 100B" in answer.json["reason"]
    assert cli("simulate o.yaml --schedule adaoffload -m 8 --memory-limit 100B").code == 0


def test_save_and_replay_a_file(cli) -> None:
    assert cli("simulate p.yaml --schedule zb-h1 -m 8 --save out/s.json").code == 0
    assert Schedule.load("out/s.json") == build("zb-h1", load_profile(PROFILE), 8)
    by_name = cli("simulate p.yaml --schedule zb-h1 -m 8 --json").json
    by_file = cli("simulate p.yaml --schedule out/s.json --json").json
    assert by_file["makespan_ns"] == by_name["makespan_ns"]
    assert cli("simulate p.yaml --schedule out/s.json -m 8 --json").code == 0
    assert "is for 8 microbatches" in cli("simulate p.yaml --schedule out/s.json -m 9").complaint


def test_pictures_and_traces(cli) -> None:
    answer = cli("simulate p.yaml --schedule zb-h1 -m 4 --gantt a/g.png --trace a/t.json --json")
    assert answer.code == 0
    assert list(answer.json["files"]) == ["a/g.png", "a/t.json"]
    assert Path("a/g.png").read_bytes().startswith(b"\x89PNG")
    events = json.loads(Path("a/t.json").read_text())["traceEvents"]
    assert {"F0.0", "W3.3"} <= {event.get("name") for event in events}
    text = cli("compare p.yaml -m 4 --schedules 1f1b,zb-h1 --gantt g.svg --chart c.png").out
    assert Path("g.svg").stat().st_size > 1000
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    assert "wrote g.svg" in text
    assert "wrote c.png" in text
    part = cli("simulate p.yaml --schedule zb-h1 -m 4 --gantt part.png --from 10% --to 8ms")
    assert "wrote part.png  from 10% to 8ms" in part.out
    assert Path("part.png").read_bytes() != Path("a/g.png").read_bytes()


# -- compare --------------------------------------------------------------------------------------


def test_compare_without_a_limit_says_what_each_holds(cli) -> None:
    text = cli("compare p.yaml -m 8 --schedules 1f1b,zb-h2,gpipe").out
    said = "On the fullest device 1f1b holds 400 B, gpipe 800 B: --memory-limit says which fit"
    assert f"No memory limit was given. {said}" in text
    assert text.index("No memory limit") < text.index("Fastest: zb-h2")
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
    assert {row["schedule"] for row in rows} | set(answer.json["refused"]) == {*whole, ANY_CHUNKS}
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


def test_compare_table_for_people(cli) -> None:
    answer = cli("compare o.yaml -m 8 --memory-limit 400B")
    assert answer.code == 0
    assert "\x1b" not in answer.out
    rows = cli("compare o.yaml -m 8 --memory-limit 400B --json").json["rows"]
    lines = answer.out.splitlines()
    table = [line.split() for line in lines[4 : 4 + len(rows)]]
    assert [cells[0] for cells in table] == [row["schedule"] for row in rows]
    assert [("✓" in cells, "✗" in cells) for cells in table] == [
        (row["fits"], not row["fits"]) for row in rows
    ]
    assert max(map(len, lines[2 : 4 + len(rows)])) <= 100
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
    assert answer.code == 0
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


# -- check, explain, export, versions -------------------------------------------------------------


def test_check(cli) -> None:
    cli("simulate p.yaml --schedule zb-h1 -m 8 --save s.json")
    assert cli("check s.json p.yaml --json").json == {
        "schema": 1,
        "valid": True,
        "problems": [],
    }
    assert "✓" in cli("check s.json p.yaml").out
    answer = cli("check s.json p.yaml --memory-limit 200B --json")
    assert answer.code == 1
    assert answer.json["valid"] is False
    assert answer.json["problems"]
    data = json.loads(Path("s.json").read_text())
    data["programs"][2].remove("B2.3")
    Path("bad.json").write_text(json.dumps(data))
    answer = cli("check bad.json p.yaml")
    assert answer.code == 1
    assert "B2.3" in answer.out


def test_explain(cli) -> None:
    cli("simulate p.yaml --schedule 1f1b -m 8 --save s.json")
    answer = cli("explain s.json p.yaml --json")
    assert answer.code == 0
    assert answer.json["fits"] is True
    assert len(answer.json["text"]) > 100
    answer = cli("explain s.json p.yaml --op F1.0")
    assert answer.code == 0
    assert "F0.0" in answer.out  # what it waits for
    assert cli("explain s.json p.yaml --op F9.0").code == 2
    assert "'G1' is not an op" in cli("explain s.json p.yaml --op G1").complaint
    assert cli("explain gpipe p.yaml -m 8 --memory-limit 400B").code == 1


def test_export(cli) -> None:
    cli("simulate p.yaml --schedule zb-h1 -m 4 --save s.json")
    answer = cli("export s.json --format torch-csv --json")
    assert answer.json == {
        "schema": 1,
        "schedule": "s.json",
        "format": "torch-csv",
        "path": "s.csv",
        "lost": {},
        "cost": None,
    }
    assert Path("s.csv").read_text().count("\n") == 4
    answer = cli("export zb-h1 p.yaml -m 4 --format perfetto -o deep/t.json")
    assert answer.code == 0
    assert "traceEvents" in json.loads(Path("deep/t.json").read_text())
    assert "needs the profile" in cli("export s.json --format perfetto").complaint
    assert "PROFILE" in cli("export zb-h1 -m 4 --format torch-csv").complaint


def test_export_says_what_torch_cannot_be_told(cli) -> None:
    line = "export po-h o.yaml -m 8 --format torch-csv --memory-limit 200B -o po.csv"
    complaint = cli(line).complaint
    assert "po-h: torch-csv cannot express 32 offloads" in complaint
    assert "of its 200 B (before: " in complaint
    assert "an iteration takes" in complaint
    assert "Leave them out with --without-offloads" in complaint
    assert not Path("po.csv").exists()
    answer = cli(f"{line} --without-offloads --json")
    assert answer.code == 0
    assert "O" not in Path("po.csv").read_text()
    cost = answer.json["cost"]
    assert answer.json["lost"] == {"offloads": 32}
    assert cost["fits"] is False
    assert max(cost["peak_bytes"]) > 200 >= max(cost["full_peak_bytes"])
    text = cli(f"{line} --without-offloads").out
    assert "left out: 32 offloads; without them device" in text
    assert f"{max(cost['peak_bytes'])} B, " in text
    assert "of its limit of 200 B" in text
    assert cli("export po-h o.yaml -m 8 --format perfetto").code == 0  # says all
    # what is known without a profile
    cli("simulate o.yaml --schedule po-h -m 8 --save po.json")
    complaint = cli("export po.json --format torch-csv -o x.csv").complaint
    assert "activations (before: " in complaint
    assert "give PROFILE to see bytes and times" in complaint
    answer = cli("export po.json --format torch-csv -o x.csv --without-offloads --json")
    assert answer.json["cost"] is None
    assert (
        "activations (before"
        in cli("export po.json --format torch-csv -o x.csv --without-offloads").out
    )
    assert {loss.name for losses in CANNOT_SAY.values() for loss in losses} == set(LEAVES_OUT)
    assert set(CANNOT_SAY) | set(PLANS) == set(FORMATS)


ERRORS = {
    "slove --json": ("usage", 2),
    "simulate p.yaml --schedule 1f1b -m 8 --json --nonsense": ("usage", 2),
    "simulate none.yaml --schedule 1f1b -m 8 --json": ("bad_input", 2),
    "simulate p.yaml --schedule 1f1b -m 8 --json --save p.yaml": ("bad_input", 2),
    "export s.json --format torch-csv -o /dev/full --json": ("bad_input", 2),
    "frontier p.yaml -m 9 --json --limits 1:0:1": ("usage", 2),
}


@pytest.mark.parametrize("line", ERRORS)
def test_with_json_an_error_is_an_object_too(line, cli) -> None:
    _write_bad_files()
    kind, code = ERRORS[line]
    answer = cli(line)
    assert answer.code == code
    assert set(answer.json) == {"schema", "error"}
    error = answer.json["error"]
    assert answer.json["schema"] == 1
    assert (error["kind"], error["exit_status"]) == (kind, code)
    assert answer.err == (
        f"optpipe-sim: {error['message']}\n" if kind != "usage" else f"{error['message']}\n"
    )


def test_with_json_there_is_one_object_where_an_answer_was_given(cli) -> None:
    line = "simulate o.yaml --schedule adaoffload -m 8 --memory-limit 99B --json"
    answer = cli(line)  # gives its answer, and then complains
    assert answer.code == 1
    assert answer.json["fits"] is False
    assert "error" not in answer.json
    assert answer.err.startswith("optpipe-sim: ")


def test_explain_is_data_too(cli) -> None:
    profile = load_profile(OFFLOADING)
    trace = simulate(build("zb-h1", profile, 8), profile)
    found = cli("explain zb-h1 o.yaml -m 8 --op B1.3 --json").json
    data = found["explanation"]
    assert data["makespan_ns"] == trace.makespan_ns
    assert sum(data["critical_path"]["parts_ns"].values()) == trace.makespan_ns
    for device, entry in enumerate(data["devices"]):
        assert entry["busy_ns"] + sum(entry["idle_ns"].values()) == trace.makespan_ns
        assert entry["idle_ns"] == dict(trace.idle_by_device_ns[device])
    assert data["gaps_in_all"] == len(data["gaps"])
    gaps = [gap["end_ns"] - gap["start_ns"] for gap in data["gaps"]]
    assert gaps == sorted(gaps, reverse=True)
    assert sum(gaps) == sum(trace.idle_ns.values())
    steps = data["critical_path"]["steps"]
    assert steps[0]["start_ns"] == 0 or steps[-1]["start_ns"] == 0
    assert {step["op"] for step in steps} <= {str(span.op) for span in trace.spans}
    why = found["why"]
    span = trace.span(parse_op("B1.3"))
    assert (why["op"], why["start_ns"], why["end_ns"]) == ("B1.3", span.start_ns, span.end_ns)
    assert why["reasons"][0]["until_ns"] == span.start_ns
    assert why["reasons"][0]["by"] in found["text"]
    assert cli("explain zb-h1 o.yaml -m 8 --json").json["why"] is None


def test_versions(cli) -> None:
    found = cli("versions --json").json
    assert found["optpipe-sim"] == "0.1.0"
    assert found["numpy"] in cli("versions").out


# -- bad input ------------------------------------------------------------------------------------

BAD = {
    "": "give a command",
    "slove p.yaml -m 8": "'slove' is no command; did you mean solve?",
    "simulate p.yaml": "required: --schedule",
    "simulate p.yaml --shedule 1f1b -m 8": "did you mean --schedule?",
    "simulate p.yaml --schedule 1f1b -m 8 --nonsense": "unknown option --nonsense; known are",
    "simulate p.yaml more --schedule 1f1b -m 8": "'more' is one argument too many",
    "simulate p.yaml --schedule 1f1b": "-m: give the number of microbatches",
    "simulate p.yaml --schedule 1f1b -m 0": "at least 1, got '0'",
    "simulate p.yaml --schedule 1f1b -m -3": "at least 1, got '-3'",
    "simulate p.yaml --schedule 1f1b -m 2.5": "at least 1, got '2.5'",
    "simulate p.yaml --schedule 1f2b -m 8": "'1f2b' is not a schedule; did you mean 1f1b",
    "simulate p.yaml --schedule 1F1B -m 8": "'1F1B' is not a schedule; did you mean 1f1b or 1f1b-i?",
    "simulate p.yaml --schedule xyz -m 8": "'xyz' is not a schedule; known are gpipe, 1f1b",
    "simulate p.yaml --schedule 1f1b:chunks=2 -m 8": "unknown option 'chunks'",
    "simulate p.yaml --schedule gis:group=x -m 8": "group=x",
    "simulate p.yaml --schedule gis:group -m 8": "KEY=VALUE",
    "simulate p.yaml --schedule 1f1b-i -m 7": "multiple of the devices",
    "simulate p.yaml --schedule po-h -m 8": "offload",
    "simulate p.yaml --schedule 1f1b -m 8 --memory-limit 12XB": "write 40GiB, 512MiB",
    "simulate p.yaml --schedule 1f1b -m 8 --memory-limit=-1": "write 40GiB, 512MiB",
    "simulate p.yaml --schedule 1f1b -m 8 --objective speed": "'flush', 'span'",
    "simulate none.yaml --schedule 1f1b -m 8": "none.yaml: no such file",
    "simulate . --schedule 1f1b -m 8": "cannot be read",
    "simulate negative.yaml --schedule 1f1b -m 8": "negative.yaml: stages.t_f_ms: must be above 0",
    "simulate nan.yaml --schedule 1f1b -m 8": "nan.yaml: stages.t_b_ms: expected a finite number",
    "simulate unknown.yaml --schedule 1f1b -m 8": "unknown.yaml: stages.t_forward: unknown key",
    "simulate unit.yaml --schedule 1f1b -m 8": "unit.yaml: stages.act_mb: unknown key",
    "simulate missing.yaml --schedule 1f1b -m 8": "missing.yaml: devices: missing",
    "simulate placement.yaml --schedule 1f1b -m 8": "placement.yaml: placement",
    "simulate p.yaml --schedule cut.json": "cut.json: not valid JSON",
    "simulate p.yaml --schedule none.json": "none.json: no such file",
    "simulate p.yaml --schedule doubled.json": "F1.2 stands in the program more than once",
    "simulate p.yaml --schedule lacking.json": "F1.2 is missing",
    "simulate p.yaml --schedule stuck.json": "device 3",
    "simulate o.yaml --schedule reload.json": "R1.2 reloads what no O offloads",
    "simulate p.yaml --schedule other.json": "for 2 devices, the profile unit has 4",
    "simulate p.yaml --schedule 1f1b -m 8 --gantt g.bmp": "--gantt g.bmp: the name must end in",
    "simulate p.yaml --schedule 1f1b -m 8 --gantt p.yaml/g.png": "--gantt p.yaml/g.png: cannot be",
    "simulate p.yaml --schedule 1f1b -m 8 --save p.yaml/s.json": "--save p.yaml/s.json: cannot be",
    "simulate p.yaml --schedule 1f1b -m 8 --trace .": "--trace .: is a directory",
    "compare p.yaml": "required: -m",
    "compare p.yaml -m 8 --schedules 1f1b,2f2b": "'2f2b' is not a schedule",
    "compare p.yaml -m 8 --schedules ,": "at least one schedule",
    "compare p.yaml -m 7 --schedules 1f1b-i": "multiple of the devices",
    "compare p.yaml -m 8 --time-limit 0": "above 0, got '0'",
    "check cut.json p.yaml": "cut.json: not valid JSON",
    "check nonsense.json p.yaml": "nonsense.json: 'F1,2' is not an op",
    "check format.json p.yaml": "format.json: format: expected",
    "export s.json --format csv": "'torch-csv', 'perfetto'",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_and_status_2(line, cli) -> None:
    _write_bad_files()
    answer = cli(line)
    assert answer.code == 2
    assert BAD[line] in answer.complaint


def _write_bad_files() -> None:
    stage = dict(STAGE)
    profiles = {
        "negative": {**PROFILE, "stages": {**stage, "t_f_ms": -1}},
        "nan": {**PROFILE, "stages": {**stage, "t_b_ms": float("nan")}},
        "unknown": {**PROFILE, "stages": {**stage, "t_forward": 1}},
        "unit": {**PROFILE, "stages": {**stage, "act_mb": 1}},
        "missing": {"stages": stage},
        "placement": {**PROFILE, "placement": [0, 1, 2, 2]},
    }
    for name, data in profiles.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump(data))
    good = build("1f1b", load_profile(PROFILE), 4).to_json()
    texts = {
        "s": json.dumps(good),
        "cut": json.dumps(good)[:200],
        "nonsense": json.dumps(good).replace("F1.2", "F1,2"),
        "format": json.dumps({**good, "format": "other"}),
        "other": json.dumps(build("1f1b", load_profile({**PROFILE, "devices": 2}), 4).to_json()),
    }

    def programs(change) -> str:
        data = json.loads(json.dumps(good))
        change(data["programs"])
        return json.dumps(data)

    texts["doubled"] = programs(lambda devices: devices[1].append("F1.2"))
    texts["lacking"] = programs(lambda devices: devices[1].remove("F1.2"))
    texts["stuck"] = programs(lambda devices: devices[3].reverse())
    texts["reload"] = programs(lambda devices: devices[1].insert(0, "R1.2"))
    for name, text in texts.items():
        Path(f"{name}.json").write_text(text)


def test_a_bug_is_one_line_too(cli, monkeypatch) -> None:
    monkeypatch.setattr("optpipe_sim.cli.inputs.load_profile", lambda path: 1 // 0)
    answer = cli("simulate p.yaml --schedule 1f1b -m 8")
    assert answer.code == 2
    assert "internal error: ZeroDivisionError" in answer.err
    monkeypatch.setenv("OPTPIPE_SIM_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli("simulate p.yaml --schedule 1f1b -m 8")


def test_interrupted(cli, monkeypatch) -> None:
    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("optpipe_sim.cli.inputs.load_profile", interrupt)
    answer = cli("simulate p.yaml --schedule 1f1b -m 8")
    assert (answer.code, answer.err) == (130, "optpipe-sim: interrupted\n")


# -- as a program ---------------------------------------------------------------------------------


def test_ctrl_c_while_it_works(cli) -> None:
    os.mkfifo("pipe.yaml")  # whoever reads it is at work, until somebody writes
    line = [sys.executable, "-m", "optpipe_sim", "simulate", "pipe.yaml", "--schedule", "1f1b"]
    running = subprocess.Popen([*line, "-m", "8"], stdout=-1, stderr=-1, text=True)
    with open("pipe.yaml", "w"):
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, "", "optpipe-sim: interrupted\n")


def test_a_reader_that_goes_away(cli) -> None:
    line = [sys.executable, "-m", "optpipe_sim", "compare", "p.yaml", "-m", "8"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*line, "--schedules", "1f1b"], stdout=write, stderr=-1, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_stdout_without_unicode(cli) -> None:
    line = [
        sys.executable,
        "-m",
        "optpipe_sim",
        "compare",
        "p.yaml",
        "-m",
        "8",
        "--schedules",
        "1f1b",
    ]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(line, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Fastest: 1f1b" in done.stdout


def test_explain_says_what_is_forced(cli) -> None:
    line = "explain adaoffload o.yaml -m 8 --memory-limit 300B --solution --chart forced.png"
    answer = cli(line)
    assert answer.code == 0
    assert "Offloading: " in answer.out
    assert "forced" in answer.out
    assert Path("forced.png").stat().st_size > 1000
    found = cli(f"{line} --json").json
    assert found["text"] in answer.out
    assert found["solution"]
    assert cli(line.replace("forced.png", "forced.gif")).code == 2
