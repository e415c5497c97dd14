"""Experiments: a YAML file with a task, a base and a grid, read and validated key by key."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import prod
from pathlib import Path
from typing import Any

from ..errors import OptPipeError, hint_for
from ..files import read_mapping
from .tasks import Task, load_task

FILE = "experiment.yaml"  # of an experiment that is a folder
KEYS = ("name", "question", "run", "minutes", "cores", "seeds", "base", "grid", "fast")
NEEDED = ("name", "question", "run", "minutes")


MOST_POINTS = 100_000
MOST_CORES = 1024
MOST_MINUTES = 10**6


@dataclass(frozen=True)
class Experiment:
    """An experiment as its file defines it.

    Attributes:
        path: the file. name: that of the file, or of its folder. question: the question that it
            answers, in a sentence. task: the function that runs at each point. minutes: its
            approximate time on 2 cores.
        cores: how many cores one point keeps busy.
        base, grids: the parameters that are the same everywhere, and per grid the values of the
            others; the points are the combinations in each grid, one grid after the other.
    """

    path: Path
    name: str
    question: str
    task: Task
    minutes: float
    cores: int
    base: Mapping[str, Any]
    grids: tuple[Mapping[str, list[Any]], ...]

    def settings(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield, per point, its place in the file (for error messages) and its parameters as given."""
        for at, grid in enumerate(self.grids):
            where = "grid" if len(self.grids) == 1 else f"grid[{at}]"
            for values in itertools.product(*grid.values()):
                point = dict(self.base)
                for key, value in zip(grid, values, strict=True):
                    names = split_key(key)
                    joined = value if len(names) > 1 else [value]
                    point.update(zip(names, joined, strict=True))
                yield where, point


def split_key(key: str) -> list[str]:
    """Return the parameters of a key of a grid: ``a, b`` are two parameters whose values are paired."""
    return [name.strip() for name in key.split(",")]


def load_experiment(path: str | os.PathLike[str], fast: bool = False) -> Experiment:
    """Load the experiment in a folder or a file; with `fast`, with its overrides for a quick run.

    ``NAME.yaml`` also stands for the folder ``NAME``.

    Raises:
        OptPipeError: one line that names the file, the key, and what would be right.
    """
    path = experiment_file(path)
    data = read_mapping(path, "an experiment")
    try:
        return _experiment(path, data, fast)
    except OptPipeError as error:
        raise OptPipeError(f"{path}: {error}") from None


def experiment_file(path: str | os.PathLike[str]) -> Path:
    """Return the file of an experiment that is given by its folder or its file."""
    path = Path(path)
    if path.is_dir():
        return path / FILE
    if not path.exists() and (path.with_suffix("") / FILE).exists():
        return path.with_suffix("") / FILE
    return path


def experiment_name(file: Path) -> str:
    """Return what an experiment is called: as its folder, or as its file if that has no folder to itself."""
    return file.resolve().parent.name if file.name == FILE else file.stem


def _experiment(path: Path, data: Mapping[str, Any], fast: bool) -> Experiment:
    for key in data:
        _known(str(key), KEYS, "")
    for key in NEEDED:
        if data.get(key) in (None, ""):
            raise OptPipeError(f"{key}: missing; an experiment has {', '.join(NEEDED)}")
    name = experiment_name(path)
    if data["name"] != name:
        whose = "folder" if path.name == FILE else "file"
        raise OptPipeError(f"name: {data['name']!r} is not the {whose}'s; write {name!r}")
    try:
        task = load_task(data["run"], path.parent)
    except OptPipeError as error:
        raise OptPipeError(f"run: {error}") from None
    minutes, cores = data["minutes"], data.get("cores", 1)
    number = isinstance(minutes, int | float | Decimal) and not isinstance(minutes, bool)
    if not number or not 0 < minutes < MOST_MINUTES:
        raise OptPipeError(f"minutes: must be a number above 0, got {minutes!r}")
    if type(cores) is not int or not 1 <= cores <= MOST_CORES:
        raise OptPipeError(f"cores: must be a whole number from 1 to {MOST_CORES}, got {cores!r}")
    base = _mapping(data.get("base"), "base")
    listed = data.get("grid")
    grids = listed if isinstance(listed, list) else [listed]
    if not grids:
        raise OptPipeError("grid: is empty; leave it out for a single point")
    names = (
        ["grid"] if not isinstance(listed, list) else [f"grid[{at}]" for at in range(len(grids))]
    )
    made = [_grid(_mapping(grid, name), name) for grid, name in zip(grids, names, strict=True)]
    if fast:
        base, made = _override(base, made, _grid(_mapping(data.get("fast"), "fast"), "fast"))
        names = names[: len(made)]  # grids that became equal are one
    if "cores" in task.kinds:
        base = {"cores": cores, **base}
    if "seeds" in data:
        made = _seeded(made, 1 if fast else data["seeds"], task)
    for where, keys in (
        ("base", base),
        ("fast", data.get("fast") or {}),
        *zip(names, made, strict=True),
    ):
        for key in keys:
            for name in split_key(str(key)):
                _known(name.split(".")[0], tuple(task.kinds), f"{where}.")
    points = sum(prod(map(len, grid.values())) for grid in made)
    if points > MOST_POINTS:
        raise OptPipeError(f"grid: makes {points} points, at most {MOST_POINTS} can be run")
    return Experiment(
        path, data["name"], str(data["question"]), task, float(minutes), cores, base, tuple(made)
    )


def _seeded(grids: list[dict[str, list[Any]]], seeds: Any, task: Task) -> list[dict[str, Any]]:
    """Add seeds to the grids, varying fastest."""
    if type(seeds) is not int or not 1 <= seeds <= MOST_POINTS:
        raise OptPipeError(f"seeds: must be a whole number from 1 to {MOST_POINTS}, got {seeds!r}")
    if "seed" not in task.kinds:
        raise OptPipeError(f"seeds: {task.name} takes no seed; leave it out")
    for grid in grids:
        if "seed" in grid:
            raise OptPipeError("grid.seed: is given by seeds already; leave one of them out")
    return [{**grid, "seed": list(range(seeds))} for grid in grids]


def _known(key: str, known: tuple[str, ...], where: str) -> None:
    if key not in known:
        raise OptPipeError(f"{where}{key}: unknown key; {hint_for(key, known)}")


def _mapping(data: Any, where: str) -> dict[str, Any]:
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise OptPipeError(f"{where}: expected a mapping of parameters, got {data!r}")
    return data


def _grid(data: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    """Return the values of each key; a value that is not a list counts as a single one."""
    grid = {}
    for key, values in data.items():
        listed = values if isinstance(values, list) else [values]
        if not listed:
            raise OptPipeError(f"{where}.{key}: has no values")
        count = len(split_key(str(key)))
        for at, value in enumerate(listed if count > 1 else ()):
            if not isinstance(value, list) or len(value) != count:
                raise OptPipeError(
                    f"{where}.{key}[{at}]: expected a list of {count} values, got {value!r}"
                )
        grid[str(key)] = listed
    return grid


def _override(
    base: dict[str, Any], grids: list[dict[str, list[Any]]], fast: dict[str, list[Any]]
) -> tuple[dict[str, Any], list[dict[str, list[Any]]]]:
    """Apply the overrides of `fast` (lists mean several values, as in a grid): each replaces the
    same key in every grid that has it, or else in the base; grids that become equal are merged."""
    if not fast:
        raise OptPipeError("fast: missing; give the parameters that make a quick run")
    somewhere = {key for grid in grids for key in grid}
    base = {key: value for key, value in base.items() if key not in fast}
    made = [
        {**grid, **{key: fast[key] for key in fast if key in grid or key not in somewhere}}
        for grid in grids
    ]
    return base, [grid for at, grid in enumerate(made) if grid not in made[:at]]
