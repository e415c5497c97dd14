"""Every published schedule by name, and `build`, which turns a name into a schedule.

Each schedule is a plain function of a profile and a number of microbatches, in the module of its
family; the registry maps its name to the function, its options and its chunks per device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from ..errors import InvalidSchedule, ProfileError, hint_for
from ..profile import CostProfile
from ..schedule import Schedule
from ..schedule.fused import as_split, fuse, fused_where_whole
from ..units import parse_share, parse_size, written_size
from . import trials
from .recompute import (
    Levels,
    at_levels,
    everywhere,
    first_layers,
    fused_at_levels,
    parse_yes_no,
    with_levels,
)
from .trials import OFFLOAD, PAIR, RECOMPUTE, Trial


@dataclass(frozen=True)
class Entry:
    """What the rest of the project knows of a named schedule.

    Attributes:
        module, function: what builds it. `fixed`: the arguments that the name implies.
        options: the options that users may give after a colon, with their parsers.
        title: its name as papers write it; empty: the name in capitals.
        runs: on ``one`` chunk per device, several in a ``loop``, two in a ``vee``.
        tried: the values of its options that searches try, tier by tier; as published by default. `starts.variants` has
            those of GIS and PipeOffload.
        bound: the schedules on ``one`` chunk and in a ``loop`` of which it delays ops: it is no faster without a limit.
        at_limit: `advise` plans it for its limit, not as published.
        keeps: what it holds for certain: ``all`` activations of a microbatch on a device before the first backward there;
            ``in flight``: also those of the microbatches that 1F1B has under way, on one chunk; empty: less.
        offloads: it is nothing without a link to the host.
        plans: it chooses treatments for a memory limit. `recomputes`: also what is recomputed.
        ours: the paper's greedy as we reconstructed it, or our own, and no published rule.
        by_name: its order is our reading of a paper: `compare` lists it, no search or advice tries it.
        slow: its place among those that take time to build, the most promising first; 0: built at once.
        common: frameworks have it under a name. `megatron`: Megatron-LM runs it. `torch`: torch's name for the same order. `torch_kin`: of its
            schedule of this kind, which may order some ops otherwise.
        whole: it plans by the costs of ops, and is also valid if no stage splits its backward.
        sliced: it runs over slices of the sequence, the profile's own if it has any. `exchanges`: devices exchange
            parts of the context; else its order is another's.
    """

    module: str
    function: str
    options: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    runs: tuple[str, ...] = ("one",)
    tried: tuple[Trial, ...] = (Trial(),)
    bound: Mapping[str, str] = field(default_factory=dict)
    at_limit: bool = False
    keeps: str = ""
    offloads: bool = False
    plans: bool = False
    recomputes: bool = False
    ours: bool = False
    by_name: bool = False
    slow: int = 0
    common: bool = False
    megatron: bool = False
    torch: str = ""
    torch_kin: str = ""
    whole: bool = False
    sliced: bool = False
    exchanges: bool = False


# The options that every name accepts.
COMMON: dict[str, Callable[[str], Any]] = {"recompute": str, "layers": int, "apart": parse_yes_no}
_CHUNKS = {"chunks": int}
_SLICES = {"slices": int}  # an option of all schedules for which `build` can cut sequences
_GROUPED = {"chunks": int, "group": int}
_PAIRS = {"pairs": parse_yes_no}
_STRETCHED = {"early": int, "late": int}
_PLANNED: dict[str, Callable[[str], Any]] = {"limit": written_size, "chunks": int, "placement": str}

ALL, IN_FLIGHT = "all", "in flight"  # of `Entry.keeps`
_ONE, _LOOP, _VEE, _EITHER = ("one",), ("loop",), ("vee",), ("one", "loop")
_ONE_F_ONE_B = {"one": "1f1b", "loop": "1f1b-i"}  # of `Entry.bound`
_FEW, _MANY = trials.groups(usual=True), trials.groups(usual=False)
_IN_SLICES = (Trial(trials.SLICED, {"slices": trials.own_slices}),)
_FITTED = (
    Trial(),
    Trial(trials.FITTED, {"limit": trials.own_limit}),
    Trial(trials.LIMITS, {"limit": trials.limits}),
)
_FOR_LIMIT = (Trial(trials.CHOOSING, {"limit": trials.own_limit}, needs=RECOMPUTE, on=_EITHER),)

REGISTRY: dict[str, Entry] = {
    "gpipe": Entry("classic", "gpipe", title="GPipe", keeps=ALL, common=True, torch="GPipe"),
    "1f1b": Entry(
        "classic", "one_f_one_b", keeps=IN_FLIGHT, common=True, megatron=True, torch="1F1B"
    ),
    "1f1b-i": Entry(
        "classic",
        "interleaved_1f1b",
        {**_GROUPED, **_PAIRS},
        runs=_LOOP,
        tried=(
            Trial(on=_EITHER),
            Trial(options={"pairs": ("yes",)}, needs=PAIR, on=_EITHER),
            Trial(trials.USUAL, {"group": _FEW}),
            Trial(trials.USUAL, {"group": _FEW, "pairs": ("yes",)}, needs=PAIR),
            Trial(trials.UNUSUAL, {"group": _MANY}),
            Trial(trials.UNUSUAL, {"group": _MANY, "pairs": ("yes",)}, needs=PAIR),
        ),
        keeps=ALL,
        common=True,
        megatron=True,
        torch="Interleaved1F1B",
    ),
    "zb-h1": Entry("zero_bubble", "zb_h1", keeps=IN_FLIGHT, common=True),
    "zb-h2": Entry("zero_bubble", "zb_h2", keeps=IN_FLIGHT),
    "zb-1p": Entry(
        "zb_auto",
        "zb_1p",
        {"limit": written_size},
        title="ZB-1p",
        tried=_FITTED,
        keeps=ALL,
        slow=3,
    ),
    "zb-2p": Entry(
        "zb_auto",
        "zb_2p",
        {"limit": written_size},
        title="ZB-2p",
        at_limit=True,
        keeps=ALL,
        slow=4,
    ),
    "zb-v": Entry(
        "zb_v",
        "zb_v",
        {"limit": written_size},
        runs=_VEE,
        tried=_FITTED,
        at_limit=True,
        keeps=ALL,
        slow=10,
        torch_kin="ZBVZeroBubble",
    ),
    "v-half": Entry("v_shape", "v_half", title="V-Half", runs=_VEE, keeps=ALL, slow=5),
    "v-min": Entry("v_shape", "v_min", title="V-Min", runs=_VEE, keeps=ALL, slow=6),
    "gis": Entry(
        "gis",
        "gis",
        {**_GROUPED, **_STRETCHED, **_SLICES},
        runs=_LOOP,
        tried=_IN_SLICES,
        keeps=ALL,
    ),
    "gis-h": Entry("gis", "gis_h", {**_CHUNKS, **_SLICES}, runs=_LOOP, tried=_IN_SLICES, keeps=ALL),
    "po": Entry(
        "pipeoffload",
        "pipeoffload",
        {**_GROUPED, "offloaded": int, **_STRETCHED, **_SLICES},
        title="PipeOffload",
        runs=_LOOP,
        tried=(
            Trial(
                trials.SLICED,
                {"slices": trials.own_slices, "offloaded": trials.chunks},
                needs=OFFLOAD,
            ),
            Trial(
                trials.STARTS,
                {"group": trials.few_groups, "offloaded": trials.chunks},
                needs=OFFLOAD,
            ),
        ),
        offloads=True,
        slow=7,
    ),
    "po-h": Entry(
        "pipeoffload",
        "po_h",
        {**_GROUPED, **_SLICES},
        runs=_LOOP,
        tried=(),
        offloads=True,
        slow=8,
    ),
    "po-f": Entry(
        "pipeoffload",
        "po_f",
        {**_GROUPED, **_SLICES},
        runs=_LOOP,
        tried=(),
        offloads=True,
        slow=9,
    ),
    "dualpipe-v": Entry(
        "dualpipe",
        "dualpipe_v",
        _PAIRS,
        title="DualPipeV",
        runs=_VEE,
        keeps=ALL,
        common=True,
        torch_kin="DualPipeV",
    ),
    "seq1f1b": Entry(
        "sliced.seq1f1b", "seq1f1b", _SLICES, tried=_IN_SLICES, keeps=IN_FLIGHT, sliced=True
    ),
    "seq1f1b-i": Entry(
        "sliced.seq1f1b",
        "seq1f1b_i",
        {**_CHUNKS, **_SLICES},
        runs=_LOOP,
        tried=_IN_SLICES,
        keeps=ALL,
        sliced=True,
    ),
    "seq-zb": Entry(
        "sliced.seq1f1b", "seq_zb", _SLICES, tried=_IN_SLICES, keeps=IN_FLIGHT, sliced=True
    ),
    "mepipe": Entry(
        "sliced.seq1f1b",
        "mepipe",
        {**_CHUNKS, **_SLICES},
        runs=_EITHER,
        tried=_IN_SLICES,
        keeps=IN_FLIGHT,
        sliced=True,
    ),
    "slimpipe": Entry(
        "sliced.seq1f1b",
        "slimpipe",
        {**_CHUNKS, **_SLICES},
        runs=_EITHER,
        tried=(),
        keeps=IN_FLIGHT,
        sliced=True,
        exchanges=True,
    ),
    "sppo": Entry(
        "sliced.sppo",
        "sppo",
        {"offloaded": int, **_SLICES},
        tried=(
            Trial(
                trials.SLICED,
                {"slices": trials.own_slices, "offloaded": trials.slices},
                needs=OFFLOAD,
            ),
        ),
        offloads=True,
        sliced=True,
    ),
    "megatron-offload": Entry(
        "megatron_offload",
        "megatron_offload",
        {**_GROUPED, "fraction": parse_share, "delta": parse_size},
        title="Megatron offloading",
        runs=_EITHER,
        tried=(
            Trial(
                trials.USUAL,
                {"fraction": trials.SHARES, "delta": trials.one_activation},
                needs=OFFLOAD,
            ),
        ),
        megatron=True,
        bound=_ONE_F_ONE_B,
        offloads=True,
    ),
    "megatron-defer": Entry(
        "megatron_defer",
        "megatron_defer",
        {**_GROUPED, "deferred": int},
        title="Megatron, head's W deferred",
        runs=_EITHER,
        tried=(Trial(on=_ONE),),
        megatron=True,
    ),
    "kimi-k2": Entry(
        "kimi_k2",
        "kimi_k2",
        {**_GROUPED, **_PAIRS},
        title="Kimi K2",
        runs=_LOOP,
        tried=(
            Trial(needs=OFFLOAD, on=_EITHER),
            Trial(trials.USUAL, {"group": _FEW}, needs=OFFLOAD),
            Trial(trials.UNUSUAL, {"group": _MANY}, needs=OFFLOAD),
        ),
        offloads=True,
    ),
    "chronos": Entry(
        "chronos",
        "chronos",
        {**_CHUNKS, "recomputed": int, "level": str},
        title="ChronosPipe",
        runs=_LOOP,
        tried=(),
        keeps=ALL,
        by_name=True,
    ),
    "megatron-partial": Entry(
        "checkpointing.partial",
        "partial_checkpoints",
        {**_GROUPED, "keep": int, "level": str, "limit": written_size},
        title="Megatron partial checkpoints",
        megatron=True,
        runs=_EITHER,
        tried=_FOR_LIMIT,
        bound=_ONE_F_ONE_B,
        plans=True,
        recomputes=True,
    ),
    "adapipe": Entry(
        "checkpointing.adapipe",
        "adapipe",
        {"chunks": int, "limit": written_size},
        title="AdaPipe",
        runs=_EITHER,
        tried=_FOR_LIMIT,
        bound=_ONE_F_ONE_B,
        plans=True,
        recomputes=True,
    ),
    "mario": Entry(
        "checkpointing.mario",
        "mario",
        {"chunks": int, "level": str, "limit": written_size},
        title="Mario",
        runs=_EITHER,
        tried=_FOR_LIMIT,
        bound=_ONE_F_ONE_B,
        plans=True,
        recomputes=True,
        slow=11,
    ),
    "adaoffload": Entry(
        "adaoffload.adaoffload",
        "adaoffload",
        _PLANNED,
        title="AdaOffload",
        runs=(*_EITHER, "vee"),
        tried=(),
        offloads=True,
        plans=True,
        ours=True,
        slow=1,
        whole=True,
    ),
    "adaoffload-r": Entry(
        "adaoffload.mixed",
        "mixed",
        _PLANNED,
        title="AdaOffload, recomputing",
        runs=(*_EITHER, "vee"),
        tried=_FOR_LIMIT,
        plans=True,
        recomputes=True,
        ours=True,
        slow=2,
        whole=True,
    ),
}

# Schedules that others are compared with, built on or searched among; no name stands outside of this room.
PLAIN: Final = "1f1b"
INTERLEAVED: Final = "1f1b-i"
PAIRED: Final = "1f1b-i:pairs=yes"  # as Megatron-LM runs it
FILL_AND_DRAIN: Final = "gpipe"
GROUPED: Final = "gis"  # microbatches pass the chunks in groups; all activations are kept
GROUPED_OFFLOADED: Final = "po"  # the same, some chunks offloaded
MEGATRON_OFFLOAD: Final = "megatron-offload"
MEGATRON_DEFER: Final = "megatron-defer"
MEGATRON_PARTIAL: Final = "megatron-partial"
ADAOFFLOAD: Final = "adaoffload"  # also the engine that runs it
RECOMPUTING: Final = "adaoffload-r"
SLICED, SLICED_INTERLEAVED = "seq1f1b", "seq1f1b-i"
USUAL = (
    PLAIN,
    "zb-h1",
    "zb-h2",
    INTERLEAVED,
    "zb-v",
)  # what is tried in the place of another


def is_published(name: str) -> bool:
    """Whether a name with its options is that of a rule that others published, with options that they have."""
    base, _, options = name.partition(":")
    stretched = any(option.partition("=")[0] in _STRETCHED for option in options.split(","))
    entry = REGISTRY.get(base)
    return entry is not None and not (entry.ours or entry.by_name or stretched)


def those(
    wanted: Callable[[Entry], bool], entries: Mapping[str, Entry] = REGISTRY
) -> tuple[str, ...]:
    """Return the names whose entries are wanted, in the order of the registry."""
    return tuple(name for name, entry in entries.items() if wanted(entry))


WHOLE = those(lambda entry: not entry.sliced)  # sequences are not cut


# what others call a schedule
def names_in(family: str | None) -> tuple[str, ...]:
    """Return the schedules of whole sequences whose orders a framework has: of Megatron-LM 1F1B and its interleaved form,
    of torchtitan all that its CSV of orders holds and that are tried unasked; all of them without a family."""
    if family == "megatron":
        return those(lambda entry: entry.megatron and entry.common)
    if family == "torchtitan":
        return those(lambda entry: entry.keeps != "" and not (entry.sliced or entry.by_name))
    return tuple(REGISTRY)


ALIASES = dict.fromkeys(("interleaved", "interleaved-1f1b", "1f1b-interleaved"), INTERLEAVED)


def parse_name(text: str, entries: Mapping[str, Entry] = REGISTRY) -> tuple[str, dict[str, Any]]:
    """Parse the name and the options of ``gis:group=6,chunks=3``, for a registry of `entries`.

    Raises:
        InvalidSchedule: for an unknown name or option, or a value of the wrong type.
    """
    name, _, tail = text.partition(":")
    name = ALIASES.get(name.lower(), name)
    if name not in entries:
        raise InvalidSchedule(f"{name!r} is not a schedule; {hint_for(name, entries, 2)}")
    options: dict[str, Any] = {}
    for part in filter(None, tail.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InvalidSchedule(f"{text}: {part!r} is not an option; write KEY=VALUE")
        options[key] = value
    return name, _parsed(name, options, entries[name])


def with_option(name: str, key: str, value: object) -> str:
    """Return the name of a schedule with one more option."""
    return f"{name}{',' if ':' in name else ':'}{key}={value}"


def _parsed(name: str, options: Mapping[str, Any], entry: Entry) -> dict[str, Any]:
    parsers = {**entry.options, **COMMON}
    parsed = {}
    for key, value in options.items():
        if key not in parsers:
            known = ", ".join(parsers) or "none"
            raise InvalidSchedule(f"{name}: unknown option {key!r}; known are {known}")
        try:
            parsed[key] = parsers[key](value) if isinstance(value, str) else value
        except ValueError:
            raise InvalidSchedule(f"{name}: {key}={value} is not a whole number") from None
        if parsers[key] is int and abs(parsed[key]) >= 2**31:
            raise InvalidSchedule(f"{name}: {key}={value} is too large")
    return parsed


def build(name: str, profile: CostProfile, microbatches: int, **options: Any) -> Schedule:
    """Build the schedule `name` (``zb-h1``, ``gis:group=6``) for a profile and m microbatches.

    Options may follow the name or be given as keywords. For schedules that interleave, the number
    of chunks defaults to the profile's own if it has more than one, else to 2. Every name accepts
    ``recompute=LEVEL``: every activation is recomputed at that level, inside its backward or, with
    ``apart=yes``, by a separate op; with ``layers=K`` only the first K layers of every stage, by
    the level defined for them. Schedules over slices (``seq1f1b``, ``sppo``) use the profile's
    slices, or cut sequences into equal ones with ``slices=N``, which the names of ``gis`` and
    ``po`` also accept; all others run whole sequences.

    Raises:
        InvalidSchedule: for unknown names and options, and for values that the schedule does not
            admit.
        OutOfMemory: if the schedule plans for a limit (adaoffload) that no schedule can keep.
    """
    if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
        raise InvalidSchedule(
            f"microbatches: must be a whole number of at least 1, got {microbatches!r}"
        )
    profile.shape(microbatches)  # refuses absurdly large shapes before building them
    base, given = parse_name(name)
    entry = REGISTRY[base]
    given.update(_parsed(base, options, entry))
    level, layers = given.pop("recompute", None), given.pop("layers", None)
    apart = given.pop("apart", False)
    if level is None and (apart or layers is not None):
        option = "apart=yes" if apart else f"layers={layers}"
        raise InvalidSchedule(
            f"{name}: {option} says how to recompute; give recompute=LEVEL as well"
        )
    function = getattr(import_module(f".{entry.module}", __name__), entry.function)

    at = fused_at_levels if entry.whole else at_levels

    def planned(costs: CostProfile, levels: Levels | None = None) -> Schedule:
        costs = costs if levels is None else at(costs, levels, apart)
        schedule: Schedule = function(as_split(costs), microbatches, **entry.fixed, **given)
        try:
            return (fuse if entry.whole else fused_where_whole)(schedule, costs)
        except InvalidSchedule as error:
            raise InvalidSchedule(f"{name}: {error}") from None

    profile.require_microbatches(microbatches)
    slices = given.pop("slices", profile.slices if entry.sliced else 1)
    try:
        profile = profile.with_slices(slices)
        if level is None:
            schedule = planned(profile)
        else:
            schedule = _recomputed(planned, profile, level, layers, apart)
    except ProfileError as error:  # e.g. more chunks than the profile has layers
        raise InvalidSchedule(f"{name}: {error}") from None
    schedule.meta.setdefault("name", name)
    return schedule


def _recomputed(
    planned: Callable[[CostProfile, Levels], Schedule],
    profile: CostProfile,
    level: str,
    layers: int | None,
    apart: bool,
) -> Schedule:
    """Build `planned` with the costs at `level`, of all layers or of the first `layers` of each
    stage that has the level."""
    schedule = planned(profile, everywhere(profile, level))
    costs = profile.for_shape(schedule.shape)
    levels = everywhere(costs, level)
    if layers is not None:
        levels = first_layers(costs, level, layers)
        schedule = planned(costs, levels)
    return with_levels(schedule, levels, apart)


def default_chunks(profile: CostProfile, chunks: int | None) -> int:
    """Return `chunks` if given, else the profile's own number if it is above one, else 2."""
    if chunks is not None:
        if chunks < 1:
            raise InvalidSchedule(f"chunks: must be at least 1, got {chunks}")
        return chunks
    return profile.chunks if profile.chunks > 1 else 2
