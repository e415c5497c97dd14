"""``solve``, ``frontier``, ``cache`` and ``optpipe`` on the command line."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from optpipe_sim import Schedule, build, check, load_profile, simulate, solve
from optpipe_sim.errors import InvalidSchedule, OptPipeError, OutOfMemory
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.solvers.race.race import Race

STAGE = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50}
PROFILE = {
    "name": "unit",
    "devices": 4,
    "stages": STAGE,
    "offload": {"t_offload_ms": 1.3, "t_reload_ms": 1.1},
}
ANSWER = {
    "status", "engine", "objective_ns", "lower_bound_ns", "gap", "seconds", "variables",
    "constraints", "incumbents", "schedule", "makespan_ns", "cost_ns", "bubble_rate",
    "bubble_rate_flush", "idle_ns", "peak_bytes", "host_peak_bytes", "offloaded", "fits",
}  # fmt: skip


@pytest.fixture
def cli(command_line: Any) -> Any:
    """Run a command line in an empty folder that holds p.yaml (4 devices, offloading)."""
    Path("p.yaml").write_text(yaml.safe_dump(PROFILE))
    return command_line


# -- solve ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["auto", "milp", "cpsat", "search", "adaoffload"])
def test_every_engine_answers_in_the_same_words(engine: str, cli: Any) -> None:
    answer = cli(
        f"solve p.yaml -m 3 --memory-limit 200B --engine {engine} --time-limit 3 --json --no-cache"
    )
    assert (answer.code, answer.err) == (0, "")
    found = answer.json
    assert set(found) >= ANSWER
    assert found["status"] in ("optimal", "feasible")
    assert found["lower_bound_ns"] <= found["objective_ns"] == found["makespan_ns"]
    assert found["fits"]
    assert max(found["peak_bytes"]) <= 200
    costs = [cost for _, cost in found["incumbents"]]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == found["objective_ns"]
    if engine == "milp":
        assert found["variables"] > 0
        assert found["constraints"] > 0


def test_files_hold_the_best_schedule_and_how_it_was_found(cli: Any) -> None:
    answer = cli(
        "solve p.yaml -m 6 --memory-limit 250B --engine adaoffload --save s.json --log l.csv"
        " --trace t.json --gantt g.svg --json"
    )
    found = answer.json
    schedule, profile = Schedule.load("s.json"), load_profile(PROFILE)
    assert check(schedule, profile, 250) == []
    assert simulate(schedule, profile, 250).cost_ns == found["objective_ns"]
    assert schedule.meta["lower_bound_ns"] == found["lower_bound_ns"]
    rows = list(csv.DictReader(Path("l.csv").read_text().splitlines()))
    assert list(rows[0]) == ["seconds", "objective_ns", "lower_bound_ns"]
    assert rows[-1]["objective_ns"] == str(found["objective_ns"])
    assert rows[-1]["lower_bound_ns"] == str(found["lower_bound_ns"])
    assert set(found["files"]) == {"s.json", "l.csv", "t.json", "g.svg"}
    assert all(Path(path).exists() for path in found["files"])
    again = cli("simulate p.yaml --schedule s.json --memory-limit 250B --json").json
    assert again["cost_ns"] == found["cost_ns"]


def test_solve_for_people(cli: Any) -> None:
    answer = cli("solve p.yaml -m 4 --memory-limit 200B --engine adaoffload --no-cache")
    assert answer.code == 0
    for word in ("time per iteration", "proven", "takes less than", "peak memory", "against"):
        assert word in answer.out
    assert " frontier p.yaml -m 4 --limits 112B:192B:16B" in answer.out
    quiet = cli("solve p.yaml -m 4 --memory-limit 200B --engine adaoffload -q").out
    assert "next:" not in quiet
    assert len(quiet) < len(answer.out)


def test_a_limit_below_the_least_is_a_no_with_its_reason(cli: Any) -> None:
    answer = cli("solve p.yaml -m 4 --memory-limit 99B --chunks profile --json")
    assert answer.code == 1
    assert answer.json["status"] == "infeasible"
    assert "the least limit that works is 100B" in answer.json["reason"]
    assert answer.err.count("\n") == 1


def test_other_chunks_and_placement(cli: Any) -> None:
    line = "solve p.yaml -m 4 --engine adaoffload --no-cache --json"
    found = cli(f"{line} --chunks 2 --placement vee --save s.json").json
    assert found["chunks"] == 2
    assert Schedule.load("s.json").shape.placement_name == "vee"
    assert cli(f"{line} --placement vee").json["chunks"] == 2
    assert cli(f"{line} --chunks 3").json["chunks"] == 3
    free = cli("solve p.yaml -m 4 --chunks any --time-limit 3 --no-cache --json").json
    assert free["objective_ns"] <= min(found["objective_ns"], cli(line).json["objective_ns"])


def test_warm_start(cli: Any) -> None:
    line = "solve p.yaml -m 6 --memory-limit 250B --engine adaoffload --no-cache --json"
    found = cli(f"{line} --save s.json").json
    again = cli(f"{line} --warm-start s.json").json
    assert again["objective_ns"] == found["objective_ns"]
    assert again["found_by"] == "warm start"
    assert cli(f"{line} --warm-start none").json["found_by"] == "adaoffload"


def test_close_enough_ends_it(cli: Any) -> None:
    line = "solve p.yaml -m 8 --memory-limit 150B --no-cache --json --time-limit"
    proven = cli(f"{line} 20 --gap 90%").json
    assert proven["gap"] <= 0.9
    assert proven["seconds"] < 10
    # AdaOffload and the published schedules are enough
    assert "annealing" not in proven["found_by"]
    limits = "--limits 150B:250B:50B --time-limit 20 --gap 90% --json"
    points = cli(f"frontier p.yaml -m 8 {limits}").json["points"]
    assert all(point["gap"] <= 0.9 for point in points)


def test_the_milp_is_written_whatever_the_engine(cli: Any) -> None:
    line = "solve p.yaml -m 3 --memory-limit 200B --engine adaoffload --no-cache"
    found = cli(f"{line} --write-model m.mps --json").json
    assert found["files"] == {"m.mps": found["files"]["m.mps"]}
    assert "units of" in found["files"]["m.mps"]
    assert Path("m.mps").read_text().rstrip().endswith("ENDATA")
    refused = cli(f"{line} --write-model m.lp --chunks any").complaint
    assert "leave out --chunks any" in refused


def test_durations_that_scatter(cli: Any) -> None:
    line = "solve p.yaml -m 6 --memory-limit 200B --noise op=10%,copy=20% --samples 50 --no-cache"
    found = cli(f"{line} --quantile 90% --time-limit 1 --save s.json --json").json
    assert found["noise"] == {"op": 0.1, "copy": 0.2}
    assert (found["measure"], found["samples"]) == ("quantile 0.9", 50)
    assert found["quantiles_ns"]["0.9"] == found["objective_ns"] <= found["nominal_objective_ns"]
    assert found["lower_bound_ns"] <= found["objective_ns"]
    profile = load_profile(PROFILE)
    assert simulate(Schedule.load("s.json"), profile, 200).cost_ns == found["cost_ns"]
    text = cli(f"{line} --time-limit 1").out
    for words in ("mean time", "best without noise", "10% .. 50% .. 90%", "50 samples"):
        assert words in text


def test_explain_knows_what_was_proven_and_for_which_objective(cli: Any) -> None:
    solved = cli(
        "solve p.yaml -m 5 --memory-limit 400B --objective span --time-limit 1 --save s.json --json"
        " --no-cache"
    ).json
    line = "explain s.json p.yaml --memory-limit 400B --solution"
    found = cli(f"{line} --json --chart c.png --op B0.0").json
    assert found["solution"]["cost_ns"] == solved["cost_ns"] < solved["makespan_ns"]
    assert found["solution"]["lower_bound_ns"] >= solved["lower_bound_ns"]
    assert list(found["files"]) == ["c.png"]
    assert "B0.0" in found["text"]
    assert "The longest device span takes" in found["text"]
    flush = cli(f"{line} --objective flush --json").json["solution"]
    assert flush["cost_ns"] == solved["makespan_ns"]


BAD = {
    "solve p.yaml -m 4 --chunks any --placement vee": "--placement: --chunks any has placements",
    "solve p.yaml -m 4 --noise wind=5%": "knows op, copy, device, comm, straggler, not 'wind'",
    "solve p.yaml -m 4 --noise 5% --chunks any": "--chunks any: not with --noise",
    "solve p.yaml -m 4 --noise 5% --log l.csv": "--log: not with --noise",
    "solve p.yaml -m 4 --quantile 90%": "give --noise as well",
    "solve p.yaml -m 4 --samples 9": "give --noise as well",
    "solve p.yaml -m 4 --solver scip": "are for the engine 'milp', not 'auto'",
    "solve p.yaml": "required: -m",
    "solve p.yaml -m 4 --gap -1": "must be a share, as in 5% or 0.05, got '-1'",
    "solve p.yaml -m 4 --write-model model.txt": "model.txt: the model is written as .lp or .mps",
    "solve p.yaml -m 500 --write-model model.mps": "take another engine, or force it",
    "solve p.yaml -m 4 --engine magic": "invalid choice: 'magic'",
    "solve p.yaml -m 4 --time-limit 0": "above 0, got '0'",
    "solve p.yaml -m 4 --workers 0": "at least 1, got '0'",
    "solve p.yaml -m 4 --seed x": "must be a whole number from 0 to 2^63, got 'x'",
    "solve p.yaml -m 4 --chunks 0": "at least 1, got '0'",
    "solve p.yaml -m 4 --chunks 3 --placement vee": "vee",
    "solve p.yaml -m 4 --warm-start absent.json": "absent.json: no such file",
    "solve p.yaml -m 5 --warm-start four.json": "is for microbatches 4, the problem has",
    "solve p.yaml -m 4 --chunks any --warm-start four.json": "leave out --warm-start",
    "solve p.yaml -m 4 --log .": "is a directory",
    "solve p.yaml -m 4 --memory-limit 40XB": "is not a size",
    "frontier p.yaml -m 4": "required: --limits",
    "frontier p.yaml -m 4 --limits 10:5:1": "must go up",
    "frontier p.yaml -m 4 --limits 10:50:0": "by a step above 0",
    "frontier p.yaml -m 4 --limits 10:50": "write FROM:TO:STEP",
    "frontier p.yaml -m 4 --limits 1:9GiB:1": "more than 1000 limits",
    "frontier p.yaml -m 4 --limits 400 --schedules 2f2b": "'2f2b' is not a schedule",
    "frontier p.yaml -m 4 --limits 400 --chart f.gif": "the name must end in",
    "simulate p.yaml -m 4 --schedule optpipe:engine=magic": "engine: expected one of",
    "simulate p.yaml -m 4 --schedule optpipe:time=soon": "time=soon is no number",
    "simulate p.yaml -m 4 --schedule optpipe:magic=1": "unknown option 'magic'",
    "cache --info --clear": "not allowed with",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_and_status_2(line: str, cli: Any) -> None:
    build("1f1b", load_profile(PROFILE), 4).save("four.json")
    answer = cli(line)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    assert BAD[line] in answer.err


def _running(line: str, *options: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "optpipe_sim", *line.split(), *options]
    return subprocess.Popen(words, stdout=-1, stderr=-1, text=True)


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 40
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


HARD = {
    **PROFILE, "devices": 8, "t_comm_ms": 0.3, "offload": {"t_offload_ms": 3.9, "t_reload_ms": 3.7}
}  # fmt: skip


def test_ctrl_c_prints_the_best_so_far(cli: Any) -> None:
    Path("hard.yaml").write_text(yaml.safe_dump(HARD))
    line = "solve hard.yaml -m 12 --memory-limit 250B --time-limit 100 --save s.json --json"
    run = _running(line)
    _wait_for(Path("s.json"))
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=40)
    assert (run.returncode, err) == (0, "")
    found = json.loads(out)
    assert found["interrupted"]
    assert found["status"] == "feasible"
    profile = load_profile(HARD)
    assert simulate(Schedule.load("s.json"), profile, 250).cost_ns == found["objective_ns"]


def test_killed_it_leaves_the_best_schedule_and_a_whole_log(cli: Any) -> None:
    Path("hard.yaml").write_text(yaml.safe_dump(HARD))
    line = "solve hard.yaml -m 12 --memory-limit 250B --time-limit 100 --save s.json --log l.csv"
    run = _running(line, "-q")
    _wait_for(Path("s.json"))
    os.kill(run.pid, signal.SIGKILL)
    run.communicate(timeout=40)
    assert check(Schedule.load("s.json"), load_profile(HARD), 250) == []
    for row in csv.DictReader(Path("l.csv").read_text().splitlines()):
        assert int(row["lower_bound_ns"]) > 0
        assert float(row["seconds"]) >= 0


# -- frontier, cache ------------------------------------------------------------------------------


def test_frontier_json_csv_and_chart(cli: Any) -> None:
    line = "frontier p.yaml -m 4 --limits 50:450:100 --engine adaoffload --chunks profile"
    answer = cli(f"{line} --csv f.csv --chart f.png --schedules 1f1b,zb-h1 --json")
    assert (answer.code, answer.err) == (0, "")
    points = answer.json["points"]
    assert [point["memory_limit_bytes"] for point in points] == [50, 150, 250, 350, 450]
    assert [point["status"] for point in points][:1] == ["infeasible"]
    times = [point["objective_ns"] for point in points[1:]]
    assert times == sorted(times, reverse=True)
    rows = list(csv.DictReader(Path("f.csv").read_text().splitlines()))
    assert [row["objective_ns"] for row in rows] == ["", *map(str, times)]
    assert [entry["schedule"] for entry in answer.json["schedules"]] == ["zb-h1", "1f1b"]
    assert Path("f.png").read_bytes().startswith(b"\x89PNG")
    text = cli(line).out
    assert "with 1 chunk per device no schedule exists below 100B" in text
    line = "frontier p.yaml -m 4 --limits 10,450 --engine adaoffload --time-limit 1"
    text = cli(line).out
    assert "infeasible" in text
    assert "1 to 8 chunks per device in a loop, or 2 in a V no schedule exists below" in text
    assert cli("frontier p.yaml -m 4 --limits 5,10 --json").code == 1


def test_the_cache_is_used_unless_told_otherwise(cli: Any) -> None:
    line = "solve p.yaml -m 4 --memory-limit 200B --engine adaoffload --json"
    assert cli(f"{line} --no-cache").json["found_by"] == "adaoffload"
    assert cli("cache --json").json["problems"] == 0
    assert cli(line).json["found_by"] == "adaoffload"
    assert cli(line).json["found_by"] == "cache"
    assert cli("cache --json").json["problems"] == 1
    assert "1 solved problems" in cli("cache").out
    assert cli("cache --clear --json").json["forgotten"] == 1
    assert cli(line).json["found_by"] == "adaoffload"


# -- optpipe, a name ------------------------------------------------------------------------------


def test_optpipe_is_solve() -> None:
    profile = load_profile(PROFILE)
    name = "optpipe:engine=adaoffload,time=10,seed=0,limit=250B"
    schedule = build(name, profile, 6)
    result = solve(profile, 6, 250, "adaoffload", 10)
    assert schedule == result.schedule
    assert schedule.meta["name"] == name
    assert schedule.meta["lower_bound_ns"] == result.lower_bound_ns
    assert build("optpipe", profile, 6, engine="adaoffload", chunks=2).shape.chunks == 2
    with pytest.raises(InvalidSchedule, match="unknown option 'magic'"):
        build("optpipe", profile, 6, magic=1)
    with pytest.raises(OutOfMemory):
        build("optpipe", profile, 6, limit=10)
    assert build("zb-h1", profile, 6).meta["name"] == "zb-h1"


def test_compare_includes_it_and_takes_its_bound(cli: Any) -> None:
    line = "compare p.yaml -m 3 --memory-limit 300B --time-limit 10 --json"
    rows = {row["schedule"]: row for row in cli(line).json["rows"]}
    assert rows["optpipe"]["fits"]
    assert rows["optpipe"]["cost_ns"] == min(row["cost_ns"] for row in rows.values() if row["fits"])
    line = line.replace(" --json", " --json --schedules 1f1b,zb-h1,optpipe:chunks=own")
    same = cli(line).json["rows"]
    assert len({row["lower_bound_ns"] for row in same if row["fits"]}) == 1
    line = line.replace("1f1b,zb-h1,optpipe:chunks=own", "optpipe:engine=adaoffload,1f1b")
    only = cli(line).json["rows"]
    assert only[0]["schedule"] == "optpipe:engine=adaoffload"


# -- what solve promises to those who watch -------------------------------------------------------


def test_watchers_see_every_improvement() -> None:
    seen: list[tuple[int, int]] = []

    def watch(race: Race) -> None:
        seen.append((race.cost_ns, race.bound_ns))

    result = solve(load_profile(PROFILE), 6, 250, "search", 2, evaluations=500, watch=watch)
    assert seen[-1] == (result.objective_ns, result.lower_bound_ns)
    assert {cost for _, cost in result.incumbents} <= {cost for cost, _ in seen}


def test_a_start_of_none_is_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from optpipe_sim.solvers.race import jobs

    starts = []

    def run_race(race: Race, tasks: Any, until: float) -> None:
        starts.append(tasks[0][1].args[1].start)

    monkeypatch.setattr(jobs, "run_race", run_race)
    for warm_start in (None, "none"):
        solve(load_profile(PROFILE), 6, 250, "search", 2, warm_start=warm_start, chunks="own")
    assert starts[0] is not None
    assert starts[1] is None
    with pytest.raises(OptPipeError, match="warm start: expected"):
        solve(load_profile(PROFILE), 6, 250, warm_start="cold", chunks="own")
    problem = make_problem(load_profile(PROFILE), 6, 250)
    assert problem.replay(starts[0]).fits


def test_bounds_are_as_coarse_as_the_times() -> None:
    race = Race(make_problem(load_profile(PROFILE), 6, 250))
    race.prove(20_050_001, "a proof")
    assert race.bound_ns == 20_100_000  # all times are multiples of 0.1 ms
    assert race.bounds[-1][1] == race.bound_ns


def test_layers_are_laid_out_anew(command_line) -> None:
    layer = {"name": "layer", "count": 6, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 10}
    ends = [{**layer, "name": name, "count": 1} for name in ("embedding", "head")]
    ends[1] |= {"t_f_ms": 3, "t_b_ms": 3, "t_w_ms": 3}
    data = {"devices": 2, "items": [ends[0], layer, ends[1]]}
    Path("i.yaml").write_text(yaml.safe_dump(data))
    line = "solve i.yaml -m 4 --layers any --chunks 1 --time-limit 5"
    answer = command_line(f"{line} --save s.json --save-profile q.yaml --json").json
    assert answer["layout"] == ["embedding + 4", "2 + head"]
    assert (answer["layers"], answer["layers_per_stage"]) == ([5, 3], [4, 2])
    assert answer["given"]["layers"] == [4, 4]
    assert answer["saved"] == 1 - answer["objective_ns"] / answer["given"]["objective_ns"] > 0
    assert answer["lower_bound_ns"] <= answer["objective_ns"]
    assert "any layout of its 8 layers" in answer["bound"]
    again = command_line("simulate q.yaml --schedule s.json --json").json
    assert again["makespan_ns"] == answer["objective_ns"]
    printed = command_line(f"{line} --time-limit 1").out
    assert "embedding + 4 | 2 + head" in printed
    assert "less time than the best found with the given layout (2 x 4 items" in printed
    for more, problem in (
        ("--save t.json", "give --save-profile Q.yaml as well"),
        ("--noise 5%", "--noise: is nothing for --layers any"),
    ):
        assert problem in command_line(f"{line} {more}").complaint
    assert "for --layers any" in command_line("solve i.yaml -m 4 --save-profile q.yaml").complaint


def test_the_comparison_is_with_the_fastest_published_schedule_that_is_known(cli) -> None:
    """Of those that the search tried; it costs no further search."""
    from optpipe_sim.solvers.fixed import best_rule
    from optpipe_sim.units import format_time

    line = "solve p.yaml -m 6 --memory-limit 300B --time-limit 2 --no-cache"
    answer = cli(line)
    assert answer.code == 0
    profile = replace(load_profile("p.yaml"), memory_limit=(300,) * 4)
    best = best_rule(profile, 6, profile.memory_limit)
    assert best is not None
    told = next(row for row in answer.out.splitlines() if row.startswith("  against"))
    assert f"({format_time(best.trace.iteration_ns)})" in told
    assert f"{best.name}, the fastest published schedule that fits" in told
