"""Execution: how a trainer issues the work of a schedule, as data with its source.

A schedule and its costs say what an ideal machine does. A trainer adds to that: a message may keep its
sender waiting, an op has launches beside its kernels, a backward in two parts takes longer than one, and
an iteration may begin before the one before has ended on all devices. Which of these hold depends on the
trainer, the machine and the family of the schedule.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from .errors import ProfileError, hint_for
from .files import read_mapping
from .units import TIME_UNITS, Reader, exact

FAMILIES = ("plain", "interleaved", "split", "split-interleaved")
LINKS = ("latency", "serial", "blocking")
SHIPPED = Path(__file__).parent / "data" / "executions"
_ITERATIONS = {"makespan": "flush", "span": "span"}  # what an iteration's time means: the objective


@dataclass(frozen=True)
class Issue:
    """How the schedules of one family are issued.

    Attributes:
        links: of messages, see `CostProfile`; None: as the profile says.
        op_ns: what every compute op takes in addition, however short it is.
        message_ns: what every message takes in addition.
        split: by what the times of B and W are multiplied where a backward runs as two ops; that of BW stays.
        pairs: whether an F and a backward may run as one op.
        iteration: what the time of one iteration is: ``makespan``, or ``span``, the longest span of a
            device, where an optimizer that validates afterwards lets iterations overlap.
    """

    links: str | None = None
    op_ns: int = 0
    message_ns: int = 0
    split: Fraction = Fraction(1)
    pairs: bool = False
    iteration: str = "makespan"

    @property
    def objective(self) -> str:
        """The objective of a trace that counts what an iteration takes."""
        return _ITERATIONS[self.iteration]


@dataclass(frozen=True)
class Execution:
    """How a trainer issues work, by family of schedules; `ideal` adds nothing.

    Attributes:
        name: what to call it. `source`: what it was read from or fitted to. `fitted_to`: the runs, by name.
        families: an `Issue` for some of `FAMILIES`; a family that is not there is issued as the next more general
            one (``split-interleaved`` as ``split``, both that and ``interleaved`` as ``plain``), or ideally.
        common, between: half-widths of 80 % intervals, relative: of the error that all schedules of a
            machine share, and of the difference between the errors of two of them; None: not known.
    """

    name: str
    families: Mapping[str, Issue] = field(default_factory=dict)
    source: str = ""
    fitted_to: tuple[str, ...] = ()
    common: float | None = None
    between: float | None = None

    def issue(self, family: str) -> Issue:
        """Return how the schedules of a family are issued."""
        for name in _GENERAL[family]:
            if name in self.families:
                return self.families[name]
        return Issue()

    @property
    def notes(self) -> dict[str, Any]:
        """What a trace says of it. Where nothing judges its differences (one of too few runs, or by hand), they are taken to be
        as far off as ideal ones: what is not known makes nothing surer."""
        judged = IDEAL if self.between is None else self
        return {
            "name": self.name,
            "common": self.common,
            "between": judged.between,
            "judged": judged.name,
        }

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.families))))


_GENERAL = {
    "plain": ("plain",),
    "interleaved": ("interleaved", "plain"),
    "split": ("split", "plain"),
    "split-interleaved": ("split-interleaved", "split", "interleaved", "plain"),
}
IDEAL = Execution(
    "ideal",
    source="the definition: ops and messages take their times, and nothing beside",
    between=0.054,  # on the published settings of results/ranking.csv
)


def family_of(chunks: int, splits: bool) -> str:
    """Return the family of a schedule: whether devices have several chunks, and whether any backward is
    split into B and W."""
    if splits:
        return "split-interleaved" if chunks > 1 else "split"
    return "interleaved" if chunks > 1 else "plain"


def load_execution(source: str | os.PathLike[str] | Mapping[str, Any] | Execution) -> Execution:
    """Return an execution: a shipped one by its name, one from a file (YAML or JSON), or one from a
    mapping of that form.

    Raises:
        ProfileError: one line with the file or ``execution``, the key, what is wrong and what is expected.
    """
    if isinstance(source, Execution):
        return source
    if isinstance(source, Mapping):
        return _read(source, "execution")
    if not isinstance(source, str | os.PathLike):
        raise ProfileError(
            f"execution: expected a name, a file or a mapping, got a {type(source).__name__}"
        )
    name = str(source)
    if name == IDEAL.name:
        return IDEAL
    if name in shipped_names():
        return _shipped(name)
    if Path(name).suffix in (".yaml", ".yml", ".json") or Path(name).exists():
        try:
            return _read({"name": Path(name).stem, **read_mapping(name, "an execution")}, "")
        except ProfileError as error:
            raise ProfileError(f"{name}: {error}") from None
    known = [IDEAL.name, *shipped_names()]
    raise ProfileError(
        f"execution: {name!r} is neither a file nor one that ships; {hint_for(name, known)}"
    )


@cache
def shipped_names() -> tuple[str, ...]:
    """Return the names of the executions that ship, in alphabetical order."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


@cache
def _shipped(name: str) -> Execution:
    path = SHIPPED / f"{name}.yaml"
    return _read(read_mapping(path), "")


def execution_in_short(execution: Execution) -> Any:
    """Return the name of an execution that ships, what `execution_to_json` gives for any other."""
    ships = execution.name in shipped_names() and execution == _shipped(execution.name)
    return execution.name if ships else execution_to_json(execution)


def execution_to_json(execution: Execution) -> Any:
    """Return what `load_execution` reads back as the same."""
    if execution == IDEAL:
        return execution.name
    families = {}
    for name, issue in execution.families.items():
        families[name] = {
            **({"links": issue.links} if issue.links else {}),
            "op_ns": issue.op_ns,
            "message_ns": issue.message_ns,
            "split": float(issue.split),
            "pairs": issue.pairs,
            "iteration": issue.iteration,
        }
    data: dict[str, Any] = {"name": execution.name, "families": families}
    if execution.source:
        data["source"] = execution.source
    if execution.fitted_to:
        data["fitted_to"] = list(execution.fitted_to)
    error = {key: getattr(execution, key) for key in ("common", "between")}
    if any(value is not None for value in error.values()):
        data["error"] = {key: value for key, value in error.items() if value is not None}
    return data


def _read(data: Mapping[str, Any], where: str) -> Execution:
    reader = Reader(data, where)
    name, source = reader.take("name", "own"), reader.take("source", "")
    for key, value in (("name", name), ("source", source)):
        if not isinstance(value, str):
            raise reader.fail(key, f"expected a text, got {value!r}")
    fitted = reader.take("fitted_to", [])
    if not isinstance(fitted, list):
        raise reader.fail("fitted_to", f"expected a list of runs, got {fitted!r}")
    given = reader.take("families", {})
    if not isinstance(given, Mapping):
        raise reader.fail("families", f"expected a mapping of {', '.join(FAMILIES)}, got {given!r}")
    families = {}
    for family, entry in given.items():
        if family not in FAMILIES:
            raise reader.fail(
                f"families.{family}", f"no family of schedules; known: {', '.join(FAMILIES)}"
            )
        families[family] = _issue(Reader(entry, f"{where}.families.{family}".lstrip(".")))
    error = Reader(reader.take("error", None) or {}, f"{where}.error".lstrip("."))
    widths = {}
    for key in ("common", "between"):
        widths[key] = _share(error, key)
    error.finish("common, between")
    reader.finish("name, source, fitted_to, families, error")
    return Execution(name, families, source, tuple(map(str, fitted)), **widths)


def _share(reader: Reader, key: str) -> float | None:
    value = reader.take(key)
    if value is None:
        return None
    try:
        share = float(exact(value))
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise reader.fail(key, f"expected a share from 0 to 1, got {value!r}")
    return share


def _issue(reader: Reader) -> Issue:
    links, iteration = reader.take("links"), reader.take("iteration", "makespan")
    if links is not None and links not in LINKS:
        raise reader.fail("links", f"expected {', '.join(LINKS)}, got {links!r}")
    if iteration not in _ITERATIONS:
        raise reader.fail("iteration", f"expected {' or '.join(_ITERATIONS)}, got {iteration!r}")
    pairs = reader.take("pairs", False)
    if not isinstance(pairs, bool):
        raise reader.fail("pairs", f"expected yes or no, got {pairs!r}")
    try:
        split = exact(reader.take("split", 1))
    except ValueError as error:
        raise reader.fail("split", str(error)) from None
    if not Fraction(1, 2) <= split <= 2:
        raise reader.fail("split", f"must be from 0.5 to 2, got {float(split):g}")
    issue = Issue(
        links,
        reader.amount("op", TIME_UNITS) or 0,
        reader.amount("message", TIME_UNITS) or 0,
        split,
        pairs,
        iteration,
    )
    reader.finish(", ".join(f"{entry.name.replace('_ns', '_us')}" for entry in fields(Issue)))
    return issue
