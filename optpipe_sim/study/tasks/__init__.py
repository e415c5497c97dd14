"""Tasks: what an experiment runs at each of its points.

A task is a module here, named like the task, with a plain function ``run`` and a number ``VERSION`` (to
be raised when its results change: points computed by another version are computed again). The parameters
of ``run``, by their annotations, are the keys that an experiment may give; it returns a row (a mapping
of columns to numbers, texts, truth values, None, or lists, which tables keep as JSON) or several. A
parameter of the kind `SolveOptions` stands for all the options of `solve`, each of which is a key. A
task that only one experiment has is a file ``task.py`` of the same kind in its folder. `CostProfile`
stands for a profile; the kinds below for what else has a notation.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_type_hints

from ...errors import OptPipeError, hint_for
from ...files import read_text
from ...profile import CostProfile as CostProfile
from ...solvers.options import KINDS
from ...solvers.options import SolveOptions as SolveOptions
from ..code import module_of

Row = dict[str, Any]
Rows = Row | list[Row]

# what texts in an experiment may mean beside numbers, words and truth values
Limit = Annotated[int | None, "limit"]  # bytes per device: 24GiB, or 0.5x 1f1b; null: the profile's
Size = Annotated[int, "size"]  # bytes: 24GiB
Count = Annotated[int, "count"]  # a whole number of at least 1
ScheduleName = Annotated[str, "schedule"]  # zb-h1, or gis:group=6
ScheduleNames = Annotated[list[str], "schedules"]  # a list of them
Seconds = Annotated[float, "seconds"]  # above 0


@dataclass(frozen=True)
class Task:
    """A task by name: its function, its version, and its parameters.

    Attributes:
        kinds: per parameter, the annotation that says what values it takes.
        needed: the parameters without a default.
        options: the parameter that is all the options of `solve`, and its default; or None.
        source: the text of its file, for a task that an experiment has in its folder.
    """

    name: str
    version: int
    run: Callable[..., Rows]
    kinds: Mapping[str, Any]
    needed: Sequence[str]
    source: str = ""
    options: tuple[str, SolveOptions] | None = None

    def collected(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of an experiment's keys as the function takes them: options as one object.

        Raises:
            OptPipeError: for options that make no sense.
        """
        if self.options is None:
            return dict(values)
        name, default = self.options
        own = {key: value for key, value in values.items() if key in self.parameters}
        given = {key: value for key, value in values.items() if key not in self.parameters}
        return {**own, name: replace(default, **{"chunks": None, **given})}

    @property
    def parameters(self) -> Collection[str]:
        """The names of the function's own parameters."""
        return inspect.signature(self.run).parameters

    @property
    def searches(self) -> bool:
        """Whether its results depend on a seed and on how much was done in a time limit."""
        return "seed" in self.kinds and bool({"time_limit", "times", "seconds"} & set(self.kinds))


def task_names() -> list[str]:
    """Return every task there is."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_task(name: str, folder: Path = Path(), source: str = "") -> Task:
    """Return the task of that name; a name with dots is a module of your own, like those here, and one that
    ends in ``.py`` a file in `folder`.

    Args:
        source: the text of such a file, where it is known; `name` is then the task's.

    Raises:
        OptPipeError: where there is none.
    """
    name = str(name)
    if name.endswith(".py"):
        path = folder / name
        source = read_text(path)
        name = path.resolve().parent.name if path.stem == "task" else path.stem
    module = module_of(f"task_{name}", source, f"{name}/task.py") if source else _module(name)
    if not hasattr(module, "run") or not hasattr(module, "VERSION"):
        raise OptPipeError(f"{name!r} is no task; it lacks a function run or a VERSION")
    kinds = get_type_hints(module.run, include_extras=True)
    kinds.pop("return", None)
    signature = inspect.signature(module.run).parameters
    needed = tuple(key for key, value in signature.items() if value.default is value.empty)
    options = None
    for key in [key for key, kind in kinds.items() if kind is SolveOptions]:
        options = key, signature[key].default
        kinds = {**KINDS, **kinds}  # a parameter of that name comes first
        del kinds[key]
    return Task(name, module.VERSION, module.run, kinds, needed, source, options)


def _module(name: str) -> ModuleType:
    known = task_names()
    if name in known:
        return import_module(f".{name}", __name__)
    if "." in name:
        try:
            return import_module(name)
        except (ImportError, ValueError) as error:
            raise OptPipeError(f"{name!r} cannot be imported: {error}") from None
    hint = hint_for(name, known)
    raise OptPipeError(
        f"{name!r} is no task; {hint}, a file beside the experiment (task.py), or a module of your"
        " own with dots"
    )
