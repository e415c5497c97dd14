"""Files that commands write: nothing is destroyed, nothing is mixed, refusals come before work."""

from __future__ import annotations

import argparse
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

import optpipe_sim
from optpipe_sim import Schedule
from optpipe_sim.cli import main
from optpipe_sim.cli.outputs import files as outputs
from optpipe_sim.cli.parser import _parsers
from optpipe_sim.errors import OptPipeError
from optpipe_sim.files import file_identity, is_stream, write_bytes, write_together

PROFILE = {
    "name": "unit",
    "devices": 4,
    "stages": {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50},
    "offload": {"t_offload_ms": 1, "t_reload_ms": 1},
}


@pytest.fixture
def cli(command_line):
    """Run a command line in an empty folder that holds p.yaml and s.json, a schedule of it."""
    Path("p.yaml").write_text(yaml.safe_dump(PROFILE))
    assert command_line("simulate p.yaml --schedule 1f1b -m 4 --save s.json").code == 0
    return command_line


def program(line: str, **options) -> subprocess.CompletedProcess[str]:
    """Run a command line as a program of its own, with descriptors of its own."""
    words = [sys.executable, "-m", "optpipe_sim", *line.split()]
    options = {"stdout": -1, "stderr": -1, **options}
    # the package under test, wherever this file is run from
    paths = [str(Path(optpipe_sim.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(words, text=True, check=False, timeout=300, env=environment, **options)


# -- writing --------------------------------------------------------------------------------------


def test_symbolic_links_stay_and_their_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "a.json", tmp_path / "b.json"
    target.write_text("old")
    link.symlink_to("real/a.json")
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path / "real") == ["a.json"]
    dangling = tmp_path / "c.json"
    dangling.symlink_to("deep/d.json")
    write_bytes(dangling, b"made")
    assert dangling.is_symlink()
    assert (tmp_path / "deep" / "d.json").read_bytes() == b"made"
    loop = tmp_path / "loop.json"
    loop.symlink_to("loop.json")
    with pytest.raises(OptPipeError, match=r"loop\.json: cannot be written: Too many levels"):
        write_bytes(loop, b"")


def test_permissions_of_what_is_replaced_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_bytes(path, b"1")
    path.chmod(0o640)
    write_bytes(path, b"2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_devices_are_written_through(tmp_path: Path) -> None:
    before = os.stat("/dev/full")
    with pytest.raises(OptPipeError, match="/dev/full: cannot be written: No space left on device"):
        write_bytes("/dev/full", b"text")
    write_bytes("/dev/null", b"text")
    assert os.stat("/dev/full").st_rdev == before.st_rdev
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    link = tmp_path / "link"
    link.symlink_to("/dev/full")
    with pytest.raises(OptPipeError, match="No space left on device"):
        write_bytes(link, b"text")
    assert link.is_symlink()


def test_pipes_are_written_through(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    write_bytes(path, b"x" * 200_000)  # more than a pipe holds
    reader.join(30)
    assert read == [b"x" * 200_000]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_descriptors_are_written_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as stream:
        stream.write(b"before ")
        stream.flush()
        for name in (f"/dev/fd/{stream.fileno()}", f"/proc/self/fd/{stream.fileno()}"):
            assert is_stream(name)
            assert file_identity(name) == file_identity(path)
            write_bytes(name, b"and ")
        stream.write(b"after")
    assert path.read_bytes() == b"before and and after"  # neither cut off nor overwritten


def test_files_that_belong_together_are_replaced_together(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("old")
    second.mkdir()
    with pytest.raises(OptPipeError, match="b: cannot be written: Is a directory"):
        write_together({first: b"new", second: b"new"})
    assert first.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_very_long_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250 + ".json")
    assert write_bytes(path, b"1").read_bytes() == b"1"


# -- what commands refuse -------------------------------------------------------------------------

APART = {
    "simulate p.yaml --schedule 1f1b -m 8 --save p.yaml": "--save p.yaml: is the profile that is read",
    "simulate p.yaml --schedule 1f1b -m 8 --save ./x/../p.yaml": "is the profile that is read (p.yaml)",
    "simulate p.yaml --schedule 1f1b -m 8 --save link.yaml": "--save link.yaml: is the profile",
    "simulate p.yaml --schedule 1f1b -m 8 --trace hard.yaml": "--trace hard.yaml: is the profile",
    "simulate p.yaml --schedule s.json --save s.json": "--save s.json: is the schedule that is read",
    "simulate p.yaml --schedule 1f1b -m 8 --gantt a.png --save a.png": "--save a.png: is also --gantt a.png",
    "simulate p.yaml --schedule 1f1b -m 8 --save a.json --trace to-a": "is also --trace to-a",
    "compare p.yaml -m 4 --schedules 1f1b,s.json --save s.json": "is the schedule that is read",
    "compare p.yaml -m 4 --gantt a.png --chart a.png": "--chart a.png: is also --gantt a.png",
    "solve p.yaml -m 4 --warm-start s.json --save s.json": "is the warm start that is read",
    "solve p.yaml -m 4 --log l --save l": "is also --save l",
    "frontier p.yaml -m 4 --limits 1GiB,2GiB --csv p.yaml": "--csv p.yaml: is the profile",
    "explain s.json p.yaml --chart s.png": "--chart s.png: is the schedule that is read (s.json)",
    "estimate --model p.yaml --machine h100 --devices 8 --save p.yaml": "is the model that is read",
    "estimate --model llama2-7b --machine p.yaml --devices 8 --save p.yaml": "is the machine",
    "advise --model llama2-7b --machine h100 --gpus 8 --global-batch 8 --seq 512 --csv a --save a": "is also",
    "profile --model p.yaml --device fake --stages 2 --save p.yaml": "is the model that is read",
    "confirm s.json p.yaml --mode replay --trace a.json --save-trace a.json": "is also",
    "train --model p.yaml --stages 2 -m 4 --write w --figure w.png": "--write w.png: is also --figure",
    "export s.json --format torch-csv -o s.json": "--out s.json: is the schedule that is read",
    "simulate p.yaml --schedule 1f1b -m 8 --save folder": "is a directory; name a file in it",
    "simulate p.yaml --schedule 1f1b -m 8 --save=": "is no file name",
    "simulate p.yaml --schedule 1f1b -m 8 --save /dev/full": "No space left on device",
    "sweep none.yaml --out p.yaml": "--out p.yaml: is not a directory",
}


@pytest.mark.parametrize("line", APART)
def test_an_output_that_is_something_else_is_refused(line: str, cli) -> None:
    Path("folder").mkdir()
    Path("link.yaml").symlink_to("p.yaml")
    os.link("p.yaml", "hard.yaml")
    Path("to-a").symlink_to("a.json")
    os.link("s.json", "s.png")
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    answer = cli(line)
    assert answer.code == 2
    assert APART[line] in answer.err.splitlines()[-1]
    assert answer.err.count("\n") == 1
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before


def test_what_is_written_to_null_is_nobodys(cli) -> None:
    line = "simulate p.yaml --schedule 1f1b -m 8 --save /dev/null --trace /dev/null --json"
    assert cli(line).code == 0


def test_a_read_only_file_stays(cli, monkeypatch) -> None:
    access = os.access  # to root every file is writable
    monkeypatch.setattr(os, "access", lambda path, *how: str(path) != KEPT and access(path, *how))
    KEPT = os.path.realpath("kept.json")
    Path(KEPT).write_text("kept")
    line = "simulate p.yaml --schedule 1f1b -m 8 --save kept.json"
    assert "cannot be written: the file is read-only" in cli(line).complaint
    assert Path(KEPT).read_text() == "kept"


def test_a_default_name_overwrites_nothing(cli) -> None:
    Path("s.csv").write_text("mine")
    for link in ("s.trace.json",):
        Path(link).symlink_to("nowhere")
    complaint = cli("export s.json --format torch-csv").complaint
    assert (
        "s.csv: exists already; name another file with -o, or overwrite it with --force"
        in complaint
    )
    assert "exists already" in cli("export s.json p.yaml --format perfetto").complaint
    assert Path("s.csv").read_text() == "mine"
    assert cli("export s.json --format torch-csv -o t.csv").code == 0
    assert cli("export s.json --format torch-csv --force").code == 0
    assert Path("s.csv").read_text() == Path("t.csv").read_text() != "mine"
    os.replace("s.json", "s2.csv")  # by its default name it would overwrite what it reads
    assert "is the schedule" in cli("export s2.csv --format torch-csv --force").complaint


# -- standard output ------------------------------------------------------------------------------


def test_a_file_on_stdout_is_alone_there(cli) -> None:
    line = "simulate p.yaml --schedule 1f1b -m 4 --save /dev/stdout"
    done = program(line)
    assert done.returncode == 0
    assert Schedule.from_json(json.loads(done.stdout)) == Schedule.load("s.json")
    assert "time per iteration" in done.stderr
    done = program(f"{line} --json")
    assert done.returncode == 2
    assert set(json.loads(done.stdout)) == {"schema", "error"}  # the refusal, and no schedule
    assert "--save /dev/stdout: --json prints its answer there" in done.stderr
    assert done.stderr.count("\n") == 1
    for other in ("--trace /dev/fd/1", "--trace /proc/self/fd/1"):
        done = program(f"{line} {other}")
        assert (done.returncode, done.stdout) == (2, "")
        assert "is also --trace" in done.stderr


def test_stdout_that_is_a_file_is_not_cut_off(cli) -> None:
    with open("out.txt", "w") as stream:
        stream.write("before\n")
        stream.flush()
        line = "export s.json --format torch-csv -o /dev/stdout"
        assert program(line, stdout=stream).returncode == 0
        stream.seek(0, os.SEEK_END)
    text = Path("out.txt").read_text()
    assert text.startswith("before\n0F0,")
    assert text.count("\n") == 5
    with open("out.txt", "w") as stream:
        done = program("simulate p.yaml --schedule 1f1b -m 4 --save out.txt", stdout=stream)
    assert done.returncode == 2
    assert "--save out.txt: standard output is redirected there" in done.stderr


@pytest.mark.parametrize(
    ("line", "head"),
    [
        ("solve p.yaml -m 4 --time-limit 5 --engine adaoffload --log pipe", "seconds,"),
        ("frontier p.yaml -m 4 --limits 300B,400B --time-limit 5 --csv pipe", "memory_limit"),
    ],
)
def test_a_log_on_a_pipe_is_written_once(line: str, head: str, cli) -> None:
    os.mkfifo("pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()), daemon=True)
    reader.start()
    assert cli(line).code == 0
    reader.join(60)
    rows = read[0].splitlines()
    assert [row.startswith(head) for row in rows] == [True] + [False] * (len(rows) - 1)
    assert len(rows) > 1


# -- the declaration ------------------------------------------------------------------------------


def test_every_option_that_names_a_file_is_declared() -> None:
    marks = (".", "FILE", "DIR", "FOLDER", "STEM", "PROFILE", "SCHEDULE", "PATH")
    for name, parser in _parsers()[1].items():
        for action in parser._actions:
            metavar = str(action.metavar)
            if action.dest in ("op", "lr") or isinstance(action, argparse._HelpAction):
                continue
            if any(mark in metavar.removesuffix(",...") for mark in marks):
                declared = action.dest in outputs.INPUTS or metavar in outputs.FOLDERS
                assert declared or hasattr(action, "writes"), f"{name}: {action.option_strings}"
    found = {a.dest for parser in _parsers()[1].values() for a in parser._actions}
    assert set(outputs.INPUTS) <= found


@pytest.mark.parametrize(
    ("failed", "complaint", "code"),
    [
        (OptPipeError("c.png: full"), "c.png: full", 2),
        (KeyboardInterrupt(), "interrupted", 130),
    ],
)
def test_a_file_that_is_not_written_takes_no_answer_away(
    failed, complaint, code, cli, monkeypatch
) -> None:
    def fail(*_: object) -> None:
        raise failed

    monkeypatch.setattr("optpipe_sim.plot.style.save", fail)
    line = "compare p.yaml -m 4 --schedules 1f1b --save b.json --chart c.png"
    answer = cli(line)
    assert "Fastest: 1f1b" in answer.out
    assert (answer.code, answer.err) == (code, f"optpipe-sim: {complaint}\n")
    found = cli(f"{line} --json")
    assert (found.code, list(found.json["files"])) == (code, ["b.json"])


def test_standard_output_that_is_full_or_closed(cli, monkeypatch) -> None:
    with open("/dev/full", "w") as full:
        done = program("simulate p.yaml --schedule 1f1b -m 4 --json", stdout=full)
    complaint = "optpipe-sim: standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, complaint)
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["simulate", "p.yaml", "--schedule", "1f1b", "-m", "4", "--save", "s2.json"]) == 0
    assert Path("s2.json").exists()
