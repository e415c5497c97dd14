"""``simulate``: what it prints, as JSON and for people, and the files it writes."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from cli_cases import MEASURES, OFFLOADING, PROFILE

from optpipe_sim import Schedule, build, load_profile, simulate


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


def test_simulate_says_what_drives_bear(cli) -> None:
    drives = {"write_gb_per_s": 1, "read_gb_per_s": 1, "rated_tb_written": 1}
    data = {**OFFLOADING, "offload": {**OFFLOADING["offload"], "nvme": drives}}
    Path("n.yaml").write_text(yaml.safe_dump(data))
    line = "simulate n.yaml --schedule po-f:chunks=2 -m 8"
    nvme = cli(f"{line} --json").json["nvme"]
    assert nvme["written_bytes"] > 0
    said = cli(line).out
    assert "written to a node's drives per iteration" in said
    assert "worn out after" in said
    assert "nvme" not in cli(f"{line} --json".replace("n.yaml", "o.yaml")).json


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


def test_forwards_alone_have_a_pass_and_a_first_result(cli) -> None:
    ran = cli("simulate p.yaml --schedule 1f1b -m 8 --forward-only --json")
    assert ran.json["forward_only"]
    assert ran.json["first_ns"] < ran.json["makespan_ns"]
    text = cli("simulate p.yaml --schedule 1f1b -m 8 --forward-only").out
    assert "forwards alone" in text
    assert "first result" in text
    assert "keys, values" not in text
    drawn = cli("simulate p.yaml --schedule 1f1b -m 8 --forward-only --gantt g.png")
    assert "wrote g.png" in drawn.out
    assert Path("g.png").read_bytes().startswith(b"\x89PNG")
    for option in ("--trace t.json", "--gantt g.png --to 5ms"):
        refused = cli(f"simulate p.yaml --schedule 1f1b -m 8 --forward-only {option}")
        assert refused.code == 2
        assert f"{option.split()[-2]}: is nothing for --forward-only" in refused.err
