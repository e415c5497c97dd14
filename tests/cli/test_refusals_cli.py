"""What the command line refuses, and how a program ends that is interrupted or has no reader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cli_cases import PROFILE, STAGE

from optpipe_sim import build, load_profile
from optpipe_sim.__main__ import run

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
    assert answer.json["schema"] == 2
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


BAD = {
    "": "give a command",
    "slove p.yaml -m 8": "'slove' is not a command; did you mean solve?",
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
    "simulate p.yaml --schedule none.yaml": "none.yaml: no such file",
    "simulate p.yaml --schedule .": ".: cannot be read: Is a directory",
    "check p.yaml 1f1b": "1f1b: is a schedule, not a profile: are the two arguments swapped?",
    "explain p.yaml zb-h1:recompute=full -m 8": "are the two arguments swapped?",
    "solve p.yaml -m 8 --pairs yes": "--pairs: p.yaml says of no pair what it hides (pair_hidden)",
    "solve p.yaml -m 8 --family megatron --pairs no": "--pairs: is nothing for --family megatron",
    "estimate --model llama3-8b --machine h100 --devices 4 --capacity-factor 1.2": "capacity factor: llama3-8b has no experts",
    "simulate p.yaml --schedule doubled.json": "F1.2 is in the program more than once",
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


def test_interrupted_while_modules_are_imported(cli, monkeypatch, capsys) -> None:
    def interrupt(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as later:
        later.setattr("optpipe_sim.cli.inputs.load_profile", interrupt)
        said = cli("simulate p.yaml --schedule 1f1b -m 8 --json").json

    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "optpipe_sim.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "optpipe_sim.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    for words, out in ((["optpipe-sim"], ""), (["optpipe-sim", "--json"], json.dumps(said) + "\n")):
        monkeypatch.setattr(sys, "argv", words)
        assert run() == 130
        assert tuple(capsys.readouterr()) == (out, "optpipe-sim: interrupted\n")


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
