"""The options of `solve`: checked once, and the same whichever way they are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from unit_profiles import unit_profile

from optpipe_sim import build, solve
from optpipe_sim.cli.options.solving import search_options
from optpipe_sim.cli.parser import parse
from optpipe_sim.errors import OptPipeError
from optpipe_sim.names import OPTPIPE, parse_name
from optpipe_sim.profile_io import save_profile
from optpipe_sim.solvers.margins.shares import Margins
from optpipe_sim.solvers.options import OBJECTIVES, SolveOptions
from optpipe_sim.study.experiment import load_experiment
from optpipe_sim.study.points import arguments, plan
from optpipe_sim.trace import OBJECTIVES as MEASURED

# Per option: what is written on the command line, in a schedule's name and in an experiment, and
# what else has to be said for it to make sense.
WRITTEN: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "engine": ("--engine cpsat", "engine=cpsat", "engine: cpsat", {"engine": "cpsat"}),
    "time_limit": ("--time-limit 7", "time=7", "time_limit: 7", {"time_limit": 7.0}),
    "objective": ("--objective span", "objective=span", "objective: span", {"objective": "span"}),
    "seed": ("--seed 3", "seed=3", "seed: 3", {"seed": 3}),
    "workers": ("--workers 2", "workers=2", "workers: 2", {"workers": 2}),
    "evaluations": (
        "--engine search --evaluations 50",
        "engine=search,evaluations=50",
        "{engine: search, evaluations: 50}",
        {"engine": "search", "evaluations": 50},
    ),
    "gap": ("--gap 2%", "gap=0.02", "gap: 0.02", {"gap": 0.02}),
    "solver": (
        "--engine milp --solver gurobi",
        "engine=milp,solver=gurobi",
        "{engine: milp, solver: gurobi}",
        {"engine": "milp", "solver": "gurobi"},
    ),
    "force": (
        "--engine milp --force",
        "engine=milp,force=yes",
        "{engine: milp, force: true}",
        {"engine": "milp", "force": True},
    ),
    "cache": ("", "cache=yes", "cache: true", {"cache": True}),
    "treatments": (
        "--treatments keep,offload",
        "treatments=keep+offload",
        "treatments: [keep, offload]",
        {"treatments": ("keep", "offload")},
    ),
    "margin": (
        "--margin copies=10%,memory=3%",
        "margin=copies=10%+memory=3%",
        "margin: copies=10%+memory=3%",
        {"margin": Margins(copies=0.1, memory=0.03)},
    ),
    "per_stage": ("--per-stage", "per_stage=yes", "per_stage: true", {"per_stage": True}),
    "pairs": ("--pairs no", "pairs=no", "pairs: false", {"pairs": False}),
    "slices": ("--slices 2", "slices=2", "slices: 2", {"slices": 2}),
    "chunks": ("--chunks 3", "chunks=3", "chunks: 3", {"chunks": 3}),
    "placement": ("--placement vee", "placement=vee", "placement: vee", {"placement": "vee"}),
    "any chunks": ("--chunks any", "chunks=any", "chunks: any", {"chunks": "any"}),
}


def of_command(written: tuple[str, str, str, dict[str, Any]], _: Path) -> SolveOptions:
    words = f"solve p.yaml -m 4 {written[0]}".split()
    return search_options(parse(words))


def of_name(written: tuple[str, str, str, dict[str, Any]], _: Path) -> SolveOptions:
    given = parse_name(f"optpipe:{written[1]}")[1]
    return SolveOptions(
        **{"time_limit" if name == "time" else name: value for name, value in given.items()}
    )


def of_experiment(written: tuple[str, str, str, dict[str, Any]], folder: Path) -> SolveOptions:
    save_profile(unit_profile(2), folder / "p.json")
    text = written[2].strip("{}") if "{" in written[2] else written[2]
    lines = text.split(", ") if "{" in written[2] else [text]
    path = folder / "doors.yaml"
    path.write_text(
        "name: doors\nquestion: which options?\nrun: solve\nminutes: 1\n"
        "base:\n  profile: p.json\n  microbatches: 4\n" + "".join(f"  {line}\n" for line in lines)
    )
    experiment = load_experiment(path)
    (point,) = plan(experiment)
    options: SolveOptions = arguments(experiment.task, point.parameters)["options"]
    return options


DOORS: dict[str, Callable[..., SolveOptions]] = {
    "command": of_command,
    "name": of_name,
    "experiment": of_experiment,
}


@pytest.mark.parametrize("option", WRITTEN)
@pytest.mark.parametrize("door", DOORS)
def test_every_option_works_in_cli_names_experiments_and_python(
    door: str, option: str, tmp_path: Path
) -> None:
    written = WRITTEN[option]
    found = DOORS[door](written, tmp_path)
    time_limit = 10.0 if door == "experiment" else 60.0  # their defaults
    # the command line keeps solved problems by default
    defaults = {"time_limit": time_limit, "cache": door == "command"}
    assert found == SolveOptions(**{**defaults, **written[3]})


def test_the_table_above_has_every_option() -> None:
    names = {field.name for field in fields(SolveOptions)}
    assert names == {*WRITTEN, "published"} - {"any chunks"}  # which is for `shapes` to ask for
    assert names <= set(OPTPIPE.options)


def test_solve_shows_the_options_it_takes() -> None:
    shown = inspect.signature(solve).parameters
    default = {field.name: field.default for field in fields(SolveOptions)}
    assert {name: shown[name].default for name in default} == default
    assert OBJECTIVES == MEASURED


@pytest.mark.parametrize(
    ("options", "chunks", "placement"),
    [({"placement": "vee"}, 2, "vee"), ({"chunks": 2}, 2, "loop"), ({"chunks": "own"}, 1, "loop")],
)
def test_a_placement_is_the_same_by_name_and_by_keyword(
    options: dict[str, Any], chunks: int, placement: str
) -> None:
    """``optpipe:placement=vee`` once failed where ``solve --placement vee`` worked."""
    profile = replace(unit_profile(2), memory_limit=(400, 400))
    common: dict[str, Any] = {"engine": "adaoffload"}
    text = ",".join(f"{name}={value}" for name, value in {**common, **options}.items())
    named = build(f"optpipe:{text}", profile, 4)
    assert (named.shape.chunks, named.shape.placement_name) == (chunks, placement)
    assert solve(profile, 4, **common, **options).schedule == named
    assert build("optpipe", profile, 4, **common, **options) == named


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "magic"}, "engine: expected one of auto, "),
        ({"objective": "speed"}, "objective: expected flush or span, got 'speed'"),
        ({"time_limit": 0}, "time limit: must be above 0 seconds"),
        ({"time_limit": float("nan")}, "time limit: must be above 0 seconds"),
        ({"gap": 1}, "gap: must be a share from 0 to below 1"),
        ({"workers": 0}, "workers: must be from 1 to 1024"),
        ({"seed": "a"}, "seed: must be a whole number of at least 0, got 'a'"),
        ({"seed": -1}, "seed: must be a whole number of at least 0"),
        ({"evaluations": 5}, "only the engine 'search' counts them"),
        ({"engine": "search", "evaluations": 0}, "evaluations: must be at least 1"),
        ({"solver": "gurobi"}, "are for the engine 'milp', not 'auto'"),
        ({"treatments": ["drop"]}, "treatments: expected some of keep, offload, recompute"),
        ({"chunks": 0}, "chunks: expected own, any or a number of at least 1, got 0"),
        ({"chunks": True}, "chunks: expected own, any or a number"),
        ({"chunks": "any", "placement": "vee"}, "chunks=any tries all placements"),
        ({"placement": "ring"}, "placement: expected one of own, loop, vee"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptPipeError) as error:
        SolveOptions(**options)
    assert message in str(error.value)
