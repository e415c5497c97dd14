"""The options of `solve`: one frozen object that validates itself, wherever the options come from.

The command line's flags, the names of schedules (``optpipe:placement=vee``), the keys of
experiments and the keywords of `solve` are the fields of `SolveOptions`. The module imports nothing
heavy, so that the command line can use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from ..errors import OptPipeError
from .margins.shares import Margins, as_margins

if TYPE_CHECKING:
    from ..profile import CostProfile

ENGINES = ("auto", "adaoffload", "search", "cpsat", "milp")
OBJECTIVES = ("flush", "span")
PLACEMENTS = ("own", "loop", "vee")
TREATMENTS = ("keep", "offload", "recompute")
MOST_WORKERS = 1024

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """How `solve` searches, and over which schedules.

    Attributes:
        engine: ``auto`` (every engine that helps, in parallel), ``adaoffload``, ``search``,
            ``cpsat``, ``milp``.
        time_limit: total seconds.
        objective: ``flush`` (makespan) or ``span`` (longest device span); None: what an iteration takes under the
            profile's execution, ``flush`` where that is ideal.
        seed: seeds every random choice.
        workers: processes; None: one per core.
        evaluations: only for the engine ``search``: stop after this many evaluations instead of by
            the clock, which makes the search deterministic.
        gap: stop when the incumbent is proven to be within this optimality gap (0.01: 1 %).
        solver: the MILP solver that ``milp`` uses. `force`: build the model however large it is.
        cache: start from cached results of this problem or of similar ones, and cache the result
            (`race.cache`). Without the cache a run depends only on its arguments.
        published: begin with AdaOffload and the published schedules, with every value of their
            options.
        treatments: the allowed treatments of an activation, out of ``keep, offload, recompute``;
            None: all that the profile has. `per_stage`: all activations of a stage get the same
            treatment.
        pairs: whether a forward and a backward may run as one op; None: where the profile's execution has that, or, where
            that is ideal, where the profile says what pairs hide.
        margin: how far copies, ops and memory may exceed the profile while the plan still holds, as
            ``copies=10%,ops=5%,memory=3%`` or a mapping; None: no margin (see `Margins`).
        chunks: chunks per device: ``own`` (those of the profile), a number, or ``any`` (every
            number and placement that the profile admits). None becomes ``any``, and ``own`` where another option is
            about one shape: a placement, evaluations, and the exact engines.
        placement: ``loop`` or ``vee`` (two chunks unless `chunks` says otherwise); ``own``: the
            profile's, or ``loop`` if a number of chunks is given.
        slices: slices per sequence: ``own`` (those of the profile), a number (1: whole sequences;
            else equal slices of a profile without), or ``any`` (see `covers.candidate_slices`).

    Raises:
        OptPipeError: for an invalid value, or one that the engine would ignore.
    """

    engine: str = "auto"
    time_limit: float = 60.0
    objective: str | None = None
    seed: int = 0
    workers: int | None = None
    evaluations: int | None = None
    gap: float = 0.0
    solver: str = "highs"
    force: bool = False
    cache: bool = False
    published: bool = True
    treatments: Sequence[str] | None = None
    per_stage: bool = False
    pairs: bool | None = None
    margin: Margins | Mapping[str, Any] | str | None = None
    chunks: int | str | None = None
    placement: str = "own"
    slices: int | str = "own"

    def __post_init__(self) -> None:
        _require_one_of("engine", self.engine, ENGINES)
        if self.objective is not None:
            _require_one_of("objective", self.objective, OBJECTIVES)
        _require_one_of("placement", self.placement, PLACEMENTS)
        self._check_effort()
        self._check_shape()
        if self.engine != "milp" and (self.solver != "highs" or self.force):
            raise OptPipeError(f"solver, force: are for the engine 'milp', not {self.engine!r}")
        if self.treatments is not None:
            for name in self.treatments:
                if name not in TREATMENTS:
                    known = ", ".join(TREATMENTS)
                    raise OptPipeError(f"treatments: expected some of {known}, got {name!r}")
            object.__setattr__(self, "treatments", tuple(self.treatments))
        object.__setattr__(self, "margin", as_margins(self.margin))

    def _check_effort(self) -> None:
        if not self.time_limit > 0:
            raise OptPipeError(f"time limit: must be above 0 seconds, got {self.time_limit}")
        if isinstance(self.seed, bool) or not hasattr(self.seed, "__index__") or self.seed < 0:
            raise OptPipeError(f"seed: must be a whole number of at least 0, got {self.seed!r}")
        if not 0 <= self.gap < 1:
            raise OptPipeError(
                f"gap: must be a share from 0 to below 1, as in 0.01, got {self.gap}"
            )
        if self.workers is not None and not 1 <= self.workers <= MOST_WORKERS:
            raise OptPipeError(f"workers: must be from 1 to {MOST_WORKERS}, got {self.workers}")
        if self.evaluations is not None and self.evaluations < 1:
            raise OptPipeError(f"evaluations: must be at least 1, got {self.evaluations}")
        if self.evaluations is not None and self.engine != "search":
            raise OptPipeError(
                f"evaluations: only the engine 'search' counts them, not {self.engine!r}"
            )

    def _check_shape(self) -> None:
        if self.chunks is None:
            one = self.placement != "own" or self.evaluations is not None
            chosen = "own" if one or self.engine in ("milp", "cpsat") else "any"
            object.__setattr__(self, "chunks", chosen)
        if self.chunks == "any":
            if self.placement != "own":
                raise OptPipeError(
                    f"placement: chunks=any tries all placements; leave out {self.placement}"
                )
            if self.evaluations is not None:
                raise OptPipeError(
                    "evaluations: cannot be combined with chunks=any, whose shapes share the time"
                )
        elif self.chunks != "own" and (
            isinstance(self.chunks, bool) or not isinstance(self.chunks, int) or self.chunks < 1
        ):
            raise OptPipeError(
                f"chunks: expected own, any or a number of at least 1, got {self.chunks!r}"
            )
        if self.slices not in ("own", "any") and (
            isinstance(self.slices, bool) or not isinstance(self.slices, int) or self.slices < 1
        ):
            raise OptPipeError(
                f"slices: expected own, any or a number of at least 1, got {self.slices!r}"
            )
        if self.slices == "any" and (self.evaluations or self.margin) is not None:
            name = "margin" if self.margin is not None else "evaluations"
            raise OptPipeError(f"{name}: not with slices=any; give a number of slices, or own")

    def rechunked(self, profile: CostProfile) -> CostProfile:
        """Return the profile with the requested chunks, placement and slices.

        Raises:
            OptPipeError: if it cannot be divided that way.
        """
        if isinstance(self.slices, int):
            profile = profile.with_slices(self.slices)
        if isinstance(self.chunks, int):
            return profile.rechunk(self.chunks, "vee" if self.placement == "vee" else "loop")
        if self.placement == "own":
            return profile
        return profile.rechunk(2 if self.placement == "vee" else profile.chunks, self.placement)


KINDS = get_type_hints(SolveOptions)  # of each option


def listing(parameters: Iterable[Parameter]) -> Callable[[_Function], _Function]:
    """Replace ``**options`` in a function's signature by explicit keyword parameters, for help and
    completion; parameters that the function already names are unchanged."""

    def decorate(function: _Function) -> _Function:
        own = signature(function)
        named = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        more = [one for one in parameters if one.name not in own.parameters]
        function.__signature__ = own.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def solve_parameters(*left_out: str) -> list[Parameter]:
    """Return the options of `solve` as keyword parameters, for `listing`."""
    return [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in fields(SolveOptions)
        if one.name not in left_out
    ]


def parse_option(name: str, text: str) -> Any:
    """Parse the value of an option in a schedule name.

    Raises:
        OptPipeError: for a value of the wrong type. ValueError: if it is not a whole number.
    """
    if name in ("chunks", "slices"):
        return text if text in ("own", "any") else int(text)
    if name == "treatments":
        return tuple(text.split("+"))
    if name == "margin":
        return as_margins(text)
    kind = KINDS[name]
    if kind in (bool, bool | None):
        if text not in ("yes", "no"):
            raise OptPipeError(f"{name}={text}: expected yes or no")
        return text == "yes"
    if kind is float:
        try:
            return float(text)
        except ValueError:
            word = "time" if name == "time_limit" else name
            raise OptPipeError(f"{word}={text} is no number") from None
    return int(text) if kind in (int, int | None) else text


def _require_one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        choices = "one of " + ", ".join(known) if len(known) > 2 else " or ".join(known)
        raise OptPipeError(f"{name}: expected {choices}, got {value!r}")
