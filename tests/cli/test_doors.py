"""What scripts of users rely on keeps its name: commands with their options and keys, schedules, Python attributes."""

from __future__ import annotations

import pytest
from cli_cases import MEASURES, OFFLOADING

from optpipe_sim import build, load_profile, simulate, solve
from optpipe_sim.cli.parser import _parsers
from optpipe_sim.names import ENTRIES

PROBLEM = "-m --memory-limit --objective"
SEARCH = f"{PROBLEM} --time-limit --treatments --per-stage --family"
OPTIONS = {
    "simulate": f"{PROBLEM} --schedule --gantt --trace --save",
    "compare": f"{SEARCH} --schedules",
    "check": "--memory-limit",
    "solve": f"{SEARCH} --engine --solver --chunks --warm-start --seed --save --log",
    "frontier": f"{SEARCH} --limits".replace("--memory-limit", ""),
    "sweep": "--jobs --cluster --resume",
    "figures": "--from",
    "explain": "--op",
    "export": "--format --without-offloads --force",
    "report": "--against -o",
    "import": "--from --save",
    "estimate": "--model --machine --save",
    "advise": "--model --machine --treatments --per-stage --family",
    "evaluate": "--model --machine",
    "profile": "--model --device",
    "confirm": "--device --mode",
    "models": "",
    "machines": "",
    "versions": "",
}
SCHEDULES = """gpipe 1f1b 1f1b-i zb-h1 zb-h2 zb-1p zb-2p zb-v v-half v-min gis gis-h po-h po-f po adaoffload optpipe
dualpipe-v seq1f1b seq1f1b-i seq-zb mepipe slimpipe sppo"""
MEASURED = "makespan_ns cost_ns bubble_rate bubble_rate_flush peak_bytes spans"
FOUND = "schedule trace objective_ns lower_bound_ns gap status seconds incumbents"
SOLVED = (
    """status engine objective_ns lower_bound_ns gap seconds variables constraints incumbents"""
)


@pytest.mark.parametrize("command", OPTIONS)
def test_options_keep_their_names(command: str) -> None:
    known = _parsers()[1][command]._option_string_actions
    assert {*OPTIONS[command].split(), "--json", "-q"} <= set(known)


def test_schedules_keep_their_names() -> None:
    assert set(SCHEDULES.split()) <= set(ENTRIES)


def test_solve_keeps_its_keys(cli) -> None:
    line = "solve o.yaml -m 4 --memory-limit 300B --engine adaoffload --no-cache --json"
    assert {*SOLVED.split(), *MEASURES} <= set(cli(line).json)


def test_python_keeps_its_names() -> None:
    profile = load_profile(OFFLOADING)
    schedule = build("1f1b", profile, microbatches=4)
    assert next(map(str, schedule.programs[0])) == "F0.0"
    assert (schedule.link_order, schedule.shape.devices) == ({}, 4)
    traces = [simulate(schedule, profile, 400, engine=engine) for engine in ("replay", "simpy")]
    for name in MEASURED.split():
        assert getattr(traces[0], name) == getattr(traces[1], name)
    assert max(simulate(schedule, profile, 100, enforce=False).peak_bytes) == 400
    found = solve(profile, 4, memory_limit=300, engine="adaoffload")
    assert all(hasattr(found, name) for name in FOUND.split())
