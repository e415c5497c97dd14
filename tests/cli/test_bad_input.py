"""Three hundred kinds of bad input: one line that says what is wrong, at once, and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import bad_input
import pytest
import yaml
from bad_input import ALWAYS, GOOD, ROWS, STAGE, Row

import optpipe_sim
from optpipe_sim import build, load_profile, simulate
from optpipe_sim.errors import LONGEST, InvalidSchedule, OptPipeError

MOST_S = 2.0  # of CPU time, for one refusal
MOST_BYTES = 500 * 2**20  # above what a good command takes


def batch(rows: list[Row]) -> list[dict]:
    """What each of the rows gives; the first answer is a good command's."""
    task = {
        "always": ALWAYS,
        "good": [line.split() for line in GOOD],
        "rows": [{"argv": row.argv, "files": dict(row.files)} for row in rows],
    }
    script = Path(bad_input.__file__).with_name("run.py")
    paths = [str(Path(optpipe_sim.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, script],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def faults(row: Row, answer: dict, peak_before: int) -> list[str]:
    """What is wrong with a refusal."""
    err = answer["err"]
    found = {
        f"exit status {answer['code']}": answer["code"] != row.code,
        f"stdout {answer['out'][:80]!r}": bool(answer["out"]),
        "not one line": err.count("\n") != 1,
        "not from optpipe-sim": not err.startswith("optpipe-sim"),
        "an internal error": "internal error" in err or "Traceback" in err,
        "a type of Python's": "Decimal(" in err or "<class" in err,
        "too long": len(err) > LONGEST + 100,
        f"lacks {row.says!r}": row.says not in err,
        f"took {answer['s']:.1f} s": answer["s"] > MOST_S,
        f"took {answer['peak'] - peak_before} bytes": answer["peak"] - peak_before > MOST_BYTES,
    }
    return [text for text, wrong in found.items() if wrong]


def test_bad_input_is_refused_in_one_line_at_once() -> None:
    first, *answers = batch(ROWS)
    peaks = [first["peak"], *(answer["peak"] for answer in answers)]
    wrong = [
        f"{row.line[:100]} {list(row.files)}: {', '.join(found)}: {answer['err'][:300]!r}"
        for row, answer, peak in zip(ROWS, answers, peaks, strict=False)
        if (found := faults(row, answer, peak))
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_three_hundred_kinds() -> None:
    kinds = {(row.line, json.dumps(dict(row.files))) for row in ROWS}
    assert len(kinds) == len(ROWS) >= 300


# -- odd, and no mistake --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["模型-八", "[/red] [bold]x", "$x_{", "50 % \\alpha", "név", "{}"])
def test_any_name_can_be_printed_and_drawn(name: str, command_line) -> None:
    profile = {"name": name, "devices": 2, "stages": STAGE}
    Path("p.yaml").write_text(yaml.safe_dump(profile, allow_unicode=True), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = command_line("simulate p.yaml --schedule 1f1b -m 2 --gantt g.png --trace t.json")
        charted = command_line("compare p.yaml -m 2 --schedules 1f1b,gpipe --chart c.svg")
    assert (answer.code, answer.err) == (charted.code, charted.err) == (0, "")
    assert name in answer.out
    assert json.loads(Path("t.json").read_text())["otherData"]["profile"] == name


def test_merge_keys_are_yaml(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "devices: 3\nstages:\n"
        "- &first {t_f_ms: 1, t_b_ms: 2, t_w_ms: 0.5, act_mib: 100}\n"
        "- {<<: *first, t_f_ms: 3}\n"
        "- {<<: [*first, {w_mib: 7}], static_mib: 1}\n"
    )
    first, second, third = load_profile(path).stages
    assert (first.t_f_ns, second.t_f_ns, third.t_f_ns) == (1_000_000, 3_000_000, 1_000_000)
    assert (second.t_b_ns, second.act_bytes) == (first.t_b_ns, first.act_bytes)
    assert (third.w_bytes, third.static_bytes) == (7 * 2**20, 2**20)


def test_notes_may_hold_what_json_cannot(command_line) -> None:
    Path("p.yaml").write_text(
        "devices: 2\nstages: {t_f_ms: 1, t_b_ms: 1, t_w_ms: 1, act_mib: 1}\n"
        "meta: {when: 2026-01-01, most: .inf, none: .nan, huge: 1e400, tiny: 1e-400, 3: yes}\n"
    )
    assert load_profile("p.yaml").meta["when"] == "2026-01-01"
    for line in (
        "simulate p.yaml --schedule 1f1b -m 2 --json --trace t.json --save s.json",
        "check s.json p.yaml --json",
    ):
        assert command_line(line).code == 0
    trace = simulate(build("1f1b", load_profile("p.yaml"), 2), load_profile("p.yaml"))
    trace.save("trace.json")
    json.loads(Path("trace.json").read_text(), parse_constant=pytest.fail)


def test_functions_refuse_sizes_too() -> None:
    profile = load_profile({"devices": 8, "stages": STAGE})
    with pytest.raises(InvalidSchedule, match="at most 262144 can be handled"):
        build("1f1b", profile, 30_000_000)
    with pytest.raises(
        OptPipeError, match="chunks: 4096 are too many for 4096 devices: at most 16"
    ):
        load_profile({"devices": 4096, "chunks": 4096, "stages": STAGE})
