"""``check``, ``explain``, ``export`` and ``versions``: what they print, and what they cannot say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_cases import OFFLOADING

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.cli.commands.replay.export import FORMATS, LEAVES_OUT, PLANS
from optpipe_sim.frameworks.losses import CANNOT_SAY
from optpipe_sim.ops import parse_op
from optpipe_sim.units import format_size, format_time


def test_check(cli) -> None:
    cli("simulate p.yaml --schedule zb-h1 -m 8 --save s.json")
    assert cli("check s.json p.yaml --json").json == {
        "schema": 2,
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
    assert (
        "B1.3 is not in this schedule; it has BW1.3"
        in cli("explain s.json p.yaml --op B1.3").complaint
    )
    assert "'G1' is not an op" in cli("explain s.json p.yaml --op G1").complaint
    assert cli("explain gpipe p.yaml -m 8 --memory-limit 400B").code == 1


def test_export(cli) -> None:
    cli("simulate p.yaml --schedule zb-h1 -m 4 --save s.json")
    answer = cli("export s.json --format torch-csv --json")
    assert answer.json == {
        "schema": 2,
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


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--vpp 2 --mbs 2 --seq-length 2048", "--chunks 2 --microbatch 2 --seq 2048"),
        ("--tensor-model-parallel-size=2", "--tp 2"),
        ("--recompute selective --dtype bfloat16", "--recompute core_attn --dtype bf16"),
    ],
)
def test_what_others_call_an_option_is_understood(cli, typed: str, read: str) -> None:
    line = "estimate --model llama2-7b --machine a100 --devices 8 --no-flash --json"
    answer = cli(f"{line} {typed}")
    assert answer.code == 0, answer.err
    assert answer.json["profile"] == cli(f"{line} {read}").json["profile"]


def test_an_interleaved_schedule_and_a_framework_by_their_other_names(cli) -> None:
    both = [
        cli(f"simulate p.yaml --schedule {name}:chunks=2 -m 8 --json").json
        for name in ("interleaved", "1f1b-i")
    ]
    assert both[0]["makespan_ns"] == both[1]["makespan_ns"]
    refused = cli("export none.json p.yaml --format megatron-lm")
    assert "none.json" in refused.err


def test_levels_come_with_an_estimate_unless_they_are_turned_off(cli) -> None:
    """Or where it was said what every run recomputes."""
    line = "estimate --model llama2-7b --machine a100 --devices 8 --json"
    stages = {
        more: cli(f"{line} {more}").json["profile"]["stages"][3]
        for more in ("", "--levels", "--no-levels", "--recompute full")
    }
    assert stages[""] == stages["--levels"]
    assert [level["name"] for level in stages[""]["recompute"]][-1] == "full"
    assert "recompute" not in stages["--no-levels"]
    assert "recompute" not in stages["--recompute full"]


def test_gpus_of_an_estimate_are_said_by_devices_and_replicas(cli) -> None:
    refused = cli("estimate --model llama2-7b --machine a100 --gpus 64")
    assert refused.code == 2
    assert "--gpus: give --devices, the GPUs of one replica, and --dp, the replicas" in refused.err


def test_an_encoder_comes_in_front(cli) -> None:
    Path("vit.yaml").write_text(
        "{style: gpt, layers: 24, hidden: 1024, heads: 16, vocab: 1, head: none, bidirectional: yes}"
    )
    assert (
        cli("estimate --model vit.yaml --machine h100 --devices 1 --seq 1024 --save t.yaml").code
        == 0
    )
    words = "estimate --model llama3-8b --machine h100 --devices 8 --seq 2048 --no-levels --save both.yaml"
    assert "24 layers of vit in front, on the first stage" in cli(f"{words} --encoder t.yaml").out
    ran = cli("solve both.yaml -m 8 --layers any --time-limit 1")
    assert "of the encoder" in ran.out
    refused = cli(f"{words} --tp 2 --encoder t.yaml")
    assert refused.code == 2
    assert "--encoder: estimated on tp 1" in refused.err
    Path("lengths").write_text("1024 1024\n2048\n")
    refused = cli(f"{words} --lengths lengths --encoder t.yaml")
    assert refused.code == 2
    assert "leave out --lengths" in refused.err


def test_the_first_line_of_an_estimate_says_that_nothing_fits(cli) -> None:
    """70 billion parameters on 8 devices: with each of them 165 GiB."""
    line = "estimate --model llama3-70b --machine h100 --seq 8192 --devices"
    answer = cli(f"{line} 8")
    assert answer.code == 1
    first = answer.out.splitlines()[0]
    assert first.startswith("does not fit under any schedule with 1 chunk per device: device ")
    assert cli(f"{line} 8 --json").json["fits"] is False
    fits = cli(f"{line} 32 --json")
    assert (fits.code, fits.json["fits"]) == (0, True)


def test_the_first_lines_of_solve_and_advise_are_their_answers(cli) -> None:
    found = cli("solve p.yaml -m 4 --engine adaoffload --chunks profile --no-cache").out
    assert found.startswith(("the best found fits: ", "the best found: "))
    assert "ms per iteration" in found.splitlines()[0]
    line = "advise --model qwen3-0.6b --machine h100 --gpus 2 --global-batch 4 --seq 2048"
    first = cli(f"{line} --pp 2 --schedules 1f1b --time-limit 1").out.splitlines()[0]
    assert "per iteration with pp 2 tp 1 dp 1, 1f1b: " in first


def test_the_first_lines_of_what_measures_reads_and_writes_are_their_answers(cli) -> None:
    """A table is an answer; a line that says what was asked is none."""
    estimated = cli("estimate --model llama3-8b --machine h100 --devices 4 --save e.yaml").out
    profile = load_profile("e.yaml")
    slowest = max(profile.stages, key=lambda cost: cost.t_f_ns + cost.fused_ns)
    first = estimated.splitlines()[0]
    assert first.startswith(f"F {format_time(slowest.t_f_ns)}, B {format_time(slowest.t_b_ns)}, W ")
    assert f"{format_size(max(profile.static_bytes))} of " in first
    Path("m.yaml").write_text("{layers: 4, hidden: 64, heads: 4, vocab: 1000, ffn: 128}")
    made = cli("profile --model m.yaml --device fake --stages 2").out.splitlines()[0]
    assert " per microbatch on stage " in made
    told = cli("export 1f1b e.yaml -m 8 --format megatron").out.splitlines()[0]
    assert told.startswith("--bf16 --micro-batch-size 1 ")
