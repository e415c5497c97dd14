"""The options of `solve`: one frozen object that validates itself, wherever the options come from.

The command line's flags, the names of schedules (``optpipe:placement=vee``), the keys of
experiments and the keywords of `solve` are the fields of `SolveOptions`. The module imports nothing
heavy, so that the command line can use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from ..errors import OptPipeError
from ..option_fields import option
from .margins.shares import Margins, as_margins

if TYPE_CHECKING:
    from ..profile import CostProfile

ENGINES = ("auto", "adaoffload", "search", "cpsat", "milp")
OBJECTIVES = ("flush", "span")
PLACEMENTS = ("own", "loop", "vee")
TREATMENTS = ("keep", "offload", "recompute")
MOST_WORKERS = 1024


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """How `solve` searches, and over which schedules; the fields say what each option means.

    Raises:
        OptPipeError: for an invalid value, or one that the engine would ignore.
    """

    engine: str = option(
        "auto",
        "auto: every engine that helps, in parallel; adaoffload: that greedy alone; search: over programs; cpsat:"
        " CP-SAT; milp: the reconstructed MILP",
        choices=ENGINES,
    )
    time_limit: float = option(
        60.0,
        "seconds in all; it ends sooner if the best schedule is proven optimal",
        metavar="SECONDS",
    )
    objective: str | None = option(
        None,
        "what counts as the time: flush (until all is done) or span (the longest device, for iterations chained"
        " without a flush); default: as the execution of the profile says, flush where that is ideal",
        choices=OBJECTIVES,
    )
    seed: int = option(0, "of random choices", metavar="N")
    workers: int | None = option(
        None,
        "worker processes (default: one per core); auto has one more for bounds, for a quarter of the time, and"
        " at least one each to search and, if small enough, for CP-SAT",
        metavar="N",
    )
    evaluations: int | None = option(
        None,
        "for --engine search: stop after this many schedules instead of by the clock, so that a seed always gives"
        " the same result",
        metavar="N",
    )
    gap: float = option(
        0.0,
        "stop as soon as the best schedule is proven to be at most this much slower than any can be, a share: 0.01 is 1%",
        metavar="SHARE",
    )
    solver: str = option(
        "highs",
        "for --engine milp: highs, gurobi, or another MILP solver that Pyomo knows",
        metavar="NAME",
    )
    force: bool = option(False, "build the MILP even if it is very large")
    cache: bool = option(
        False,
        "start from cached results of this problem or of similar ones, and cache the result; without it a run"
        " depends only on its arguments",
    )
    published: bool = option(
        True,
        "begin with AdaOffload and the published schedules, with every value of their options, so that none of"
        " them that fits is faster than the result, provided that half of the time limit (at least one second) is"
        " enough to try those that could be; `untried` of the result's info counts the others. False:"
        " `warm_start` is already the best of them",
    )
    treatments: Sequence[str] | None = option(
        None,
        "what may be done with activations until their backward: some of keep,offload,recompute; default: all that the"
        " profile has. Keeping is always possible",
        metavar="A,B",
    )
    per_stage: bool = option(False, "treat all activations of a stage alike, as frameworks require")
    pairs: bool | None = option(
        None,
        "whether a forward and a backward may run as one op; default: where the execution has that. Where that is"
        " ideal: where the profile says what pairs hide (pair_hidden)",
        metavar="yes|no",
    )
    margin: Margins | Mapping[str, Any] | str | None = option(  # noqa: RUF009
        None,
        "plan so that limit and time hold if copies, ops or memory take more than profiled, as"
        " copies=10%,ops=5%,memory=3%; says what each margin costs",
        metavar="SHARES",
    )
    chunks: int | str | None = option(
        None,
        "chunks per device: a number; any: all numbers up to one layer per stage, and two in a V; own: the"
        " profile's; default: those of a schedule to start from; own with a placement, with evaluations and with"
        " the engines milp and cpsat; else any",
    )
    placement: str = option(
        "own",
        "placement of chunks: loop (stage s on device s mod p) or vee (two chunks, there and back); default: the"
        " profile's own, loop if a number of --chunks is given",
        choices=PLACEMENTS,
    )
    slices: int | str = option(
        "own",
        "slices of each sequence that pass the pipeline one after the other: a number or any; default: the profile's."
        " 1: whole sequences; any: whole ones and the profile's own, or 2, 4 and 8 equal ones",
    )

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
            object.__setattr__(self, "treatments", tuple(self.treatments))
            for name in self.treatments:
                if name not in TREATMENTS:
                    known = ", ".join(TREATMENTS)
                    raise OptPipeError(f"treatments: expected some of {known}, got {name!r}")
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
