"""What `advise` may choose from: the question, and every way to spread a model over the GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ... import schedules
from ...errors import InvalidSchedule, OptPipeError
from ...execution import IDEAL, Execution
from ...names import ENTRIES, parse_name
from ...option_fields import made_of, options_of
from ...schedules import FILL_AND_DRAIN, PAIRED, those
from ...schedules.trials import AS_NAMED
from ...solvers.options import TREATMENTS
from ...solvers.starts.published import LOOP, ONE_CHUNK, VEE
from ..layout import Layout
from ..machines import Machine, MachineError
from ..models import Model
from ..parallelism import check_work
from ..recompute.regions import RECOMPUTE
from ..slices import require_slice_by, slice_length
from ..work import Work

OFFLOADING = those(lambda entry: entry.offloads)  # useless without a link to the host
SEARCHED = ("optpipe",)
ANY_SHAPE = (*those(lambda entry: entry.ours), *SEARCHED)
# 1f1b does what gpipe does in less memory
SCHEDULES = tuple(
    name
    for name, entry in ENTRIES.items()
    if name != FILL_AND_DRAIN and not (entry.sliced or entry.by_name)
)
# these with options that are tried beside them
VARIANTS = [
    (trial, variant)
    for name in SCHEDULES
    for trial in ENTRIES[name].tried
    if trial.tier == AS_NAMED and trial.options
    for variant in trial.names(name, None)
]
SLICED = tuple(name for name, entry in ENTRIES.items() if entry.sliced)
# these keep every activation: a device holds all of a microbatch before its first backward there
KEEPING = those(lambda entry: entry.keeps != "")
# and these in 1F1B's order, unless there are several chunks
IN_FLIGHT = those(lambda entry: entry.keeps == schedules.IN_FLIGHT)
EXCHANGING = those(lambda entry: entry.exchanges)
EXCHANGE = "exchange"
_CUT = {n: entry for n, entry in ENTRIES.items() if "slices" in entry.options and n not in SEARCHED}
SLICED_LOOP = those(lambda entry: "loop" in entry.runs and not entry.exchanges, _CUT)
SLICED_ONE = those(lambda entry: entry.sliced and "one" in entry.runs and not entry.exchanges)
MICROBATCHES = (1, 2, 4, 8)
CHUNKS = (1, 2, 3, 4)
SLICES = (1, 4, 8, 16, 32)
_OF_WORK = options_of(Work)
# tokens per device and slice; shorter sequences are not shared or cut unless requested
LEAST_SHARE = 8192
MOST_SEQUENCES = 2**18  # in a global batch


@dataclass(frozen=True)
class Choice:
    """One way to train: a split of the GPUs, and the work of each replica.

    Attributes:
        pp, tp, cp, dp, ep, zero: pipeline stages' devices, devices that share layers, sequences and
            experts, replicas and their ZeRO stage; see `parallelism.Layout`, also for `etp`.
        microbatch: sequences of a microbatch. `microbatches`: m, per replica and iteration.
        recompute: what is recomputed in B.
        chunks, placement: of the pipeline. slices, slice_by: of each sequence, and what they have equal,
            ``length`` or ``time``; ``exchange``: devices exchange context.
    """

    pp: int
    tp: int
    cp: int
    dp: int
    ep: int
    zero: int
    microbatch: int
    microbatches: int
    recompute: str
    chunks: int = 1
    placement: str = "loop"
    slices: int = 1
    slice_by: str = "time"
    etp: int | None = None

    @property
    def exchanges(self) -> bool:
        """Whether devices exchange context: its costs then hold for the schedules alone that do."""
        return self.slices > 1 and self.slice_by == EXCHANGE

    @property
    def split(self) -> tuple[int, ...]:
        """The degrees of parallelism: (pp, tp, cp, dp, ep, etp or 0)."""
        return self.pp, self.tp, self.cp, self.dp, self.ep, self.etp or 0

    @property
    def options(self) -> dict[str, Any]:
        """The options of `estimate` for this choice."""
        keys = ["tp", "cp", "ep", "dp", "zero", "microbatch", "chunks", "placement", "recompute"]
        keys += ["slices", "slice_by"] * (self.slices > 1) + ["etp"] * (self.etp is not None)
        return {"devices": self.pp * self.tp * self.cp, **{key: getattr(self, key) for key in keys}}

    def __str__(self) -> str:
        keys = ("cp", "ep", "slices")
        more = "".join(f" {k} {getattr(self, k)}" for k in keys if getattr(self, k) > 1)
        more += "" if self.etp is None else f" etp {self.etp}"
        return f"pp {self.pp} tp {self.tp} dp {self.dp}{more}"


@dataclass(frozen=True)
class Question:
    """The question: a model, GPUs, a batch, a limit; each list has the allowed values, None: all that
    make sense. Validates itself.

    Attributes:
        work: of every choice, which has its own sizes, slices and recomputation.

    Raises:
        OptPipeError: one line, for what can never be.
    """

    model: Model
    machine: Machine
    gpus: int
    global_batch: int
    work: Work
    limit_bytes: int
    pp: tuple[int, ...] | None = None
    tp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    zero: tuple[int, ...] | None = None
    microbatch: tuple[int, ...] | None = None
    chunks: tuple[int, ...] = CHUNKS
    recompute: tuple[str, ...] = RECOMPUTE
    schedules: tuple[str, ...] | None = None
    slices: tuple[int, ...] | None = (1,)
    slice_by: str = "time"
    treatments: tuple[str, ...] = TREATMENTS  # of activations
    per_stage: bool = False  # all activations of a stage get the same one
    seed: int = 0  # of the searches
    etp: tuple[int, ...] | None = None  # None: as `parallelism.Layout` has it
    execution: Execution = IDEAL  # how the trainer issues the work

    def to_json(self) -> dict[str, Any]:
        """Plain data; the first keys of ``advise --json`` and ``evaluate --json``."""
        return {
            "model": self.model.name,
            "machine": self.machine.name,
            "gpus": self.gpus,
            "global_batch": self.global_batch,
            "seq": self.seq,
            "memory_limit_bytes": self.limit_bytes,
            "execution": self.execution.name,
        }

    @property
    def seq(self) -> int:
        """Tokens of a sequence."""
        return self.work.seq

    def layout(self, choice: Choice, layers: Sequence[int | str] | None = None) -> Layout:
        """Return the layout of a choice, with so many layers per stage, or balanced."""
        (found,) = made_of(choice.options, Layout, layers=layers)
        return found  # type: ignore[no-any-return]

    def work_of(self, choice: Choice) -> Work:
        """Return the work of a choice."""
        changes = {key: value for key, value in choice.options.items() if key in _OF_WORK}
        return replace(self.work, **changes)

    def __post_init__(self) -> None:
        for key in ("gpus", "global_batch", "seq"):
            require_count(key.replace("_", " "), getattr(self, key))
        for key in ("pp", "tp", "cp", "dp", "ep", "etp", "microbatch", "chunks", "slices"):
            for value in getattr(self, key) or ():
                require_count(key, value)
        if self.etp and not self.model.experts:
            raise OptPipeError(f"etp: {self.model.name} has no experts; leave it out")
        self._check_slices()
        self._check_treatments()
        if self.gpus > 2**16:
            raise OptPipeError(f"gpus: at most {2**16}, got {self.gpus}")
        if self.global_batch > MOST_SEQUENCES:
            raise OptPipeError(
                f"global batch: at most {MOST_SEQUENCES} sequences, got {self.global_batch}"
            )
        self.machine.peak(self.work.dtype)
        check_work(self.model, replace(self.work, imbalance=1.0))
        for value in self.zero or ():
            Layout(1, zero=value)
        for value in self.recompute:
            check_work(self.model, Work(1, self.seq, recompute=value))
        for key in ("tp", "cp", "ep"):
            for value in getattr(self, key) or ():
                if key != "ep" and self.gpus % value:
                    raise OptPipeError(f"{key}: {value} does not divide the {self.gpus} GPUs")
                check_work(self.model, replace(Work(1, self.seq), **{key: value}))
        layers = self.model.layers
        for pp in self.pp or ():
            if self.gpus % pp:
                raise OptPipeError(f"pp: {pp} does not divide the {self.gpus} GPUs")
            if not _enough_layers(pp, layers):
                raise OptPipeError(
                    f"pp: {pp} stages, but {self.model.name} has {layers} layers; at most"
                    f" {layers + 2} stages, the embedding and the head on their own"
                )
        for dp in self.dp or ():
            if self.gpus % dp:
                raise OptPipeError(f"dp: {dp} does not divide the {self.gpus} GPUs")
            self._check_batch(dp, "dp")
        for size in self.microbatch or ():
            self._check_batch(size, "microbatch")
        if self.schedules and {parse_name(name)[0] for name in self.schedules} == {*SEARCHED}:
            raise OptPipeError(
                "schedules: optpipe is searched from others; name some too, as in 1f1b,optpipe"
            )
        for name in self.schedules or ():
            base, _ = parse_name(name)
            if base in OFFLOADING and "offload" not in self.treatments:
                raise OptPipeError(f"treatments: {base} offloads; leave it out or allow offload")
            if self.machine.pcie is None and base in OFFLOADING:
                raise MachineError(
                    f"machine {self.machine.name}: no PCIe data, so no offloading and no {base}: give"
                    " pcie (generation, lanes, d2h_gb_per_s, h2d_gb_per_s) in its file"
                )

    def _check_slices(self) -> None:
        require_slice_by(self.slice_by)
        for slices in self.slices or ():
            slice_length(replace(self.work, slices=slices))

    def _check_treatments(self) -> None:
        for name in self.treatments:
            if name not in TREATMENTS:
                known = ", ".join(TREATMENTS)
                raise OptPipeError(f"treatments: expected some of {known}, got {name!r}")
        if not self.recompute:
            raise OptPipeError(
                "recompute: the treatments exclude it; leave it out or allow recompute"
            )

    def _check_batch(self, part: int, key: str) -> None:
        if self.global_batch % part:
            raise OptPipeError(
                f"global batch: {self.global_batch} sequences are not a multiple of {key} {part}"
            )

    @property
    def may_pair(self) -> bool:
        """Whether a forward and a backward may run as one op."""
        return self.work.pairs != "none"

    @property
    def may_offload(self) -> bool:
        """Whether activations may be offloaded."""
        return self.machine.pcie is not None and "offload" in self.treatments

    @property
    def names(self) -> tuple[str, ...]:
        """The schedules to try."""
        if self.schedules is not None:
            return self.schedules
        known = (*SCHEDULES, *(() if self.slices == (1,) else SLICED))
        known = (*known, *(name for trial, name in VARIANTS if trial.admits(self)))
        if self.may_offload:
            return known
        return tuple(name for name in known if name not in OFFLOADING or ENTRIES[name].plans)

    def choices(self) -> list[Choice]:
        """Yield every split with every microbatch size and recomputation, with 1 chunk.

        Raises:
            OptPipeError: where there is none.
        """
        found = list(self._choices())
        if not found:
            asked = ", ".join(
                f"{key} {'/'.join(map(str, getattr(self, key)))}"
                for key in ("pp", "tp", "cp", "dp", "ep", "etp", "microbatch")
                if getattr(self, key)
            )
            raise OptPipeError(
                f"no way to spread {self.gpus} GPUs and a global batch of {self.global_batch}"
                f" sequences of {self.model.name} with {asked or 'whole replicas'}:"
                " pp x tp x cp x dp must be the GPUs, and dp x microbatch divide the batch"
            )
        return found

    def _choices(self) -> Iterator[Choice]:
        node = self.machine.devices_per_node
        for tp in self.tp or (n for n in divisors(self.gpus) if node % n == 0):
            for cp in self.cp or self._sequence_shares(self.gpus // tp, node):
                if self.gpus % (tp * cp):
                    continue
                for pp in divisors(self.gpus // (tp * cp)):
                    dp = self.gpus // (tp * cp * pp)
                    if self.pp is not None and pp not in self.pp:
                        continue
                    if self.dp is not None and dp not in self.dp:
                        continue
                    if self.global_batch % dp or not _enough_layers(pp, self.model.layers):
                        continue
                    yield from self._of_split(pp, tp, cp, dp)

    def _sequence_shares(self, gpus: int, node: int) -> Iterator[int]:
        """Return the numbers of devices that may share a sequence: of one node, each with enough tokens."""
        for cp in divisors(gpus):
            if node % cp == 0 and (cp == 1 or self.seq >= cp * LEAST_SHARE):
                yield cp

    def _of_split(self, pp: int, tp: int, cp: int, dp: int) -> Iterator[Choice]:
        """Yield the choices of one split."""
        share = self.global_batch // dp
        zeros = self.zero or ((1, 2, 3) if dp * cp > 1 else (0,))  # ZeRO 1 costs no more than none
        eps = self.ep or (divisors(tp * cp * dp) if self.model.experts else (1,))
        shared = self.work.sequence_parallel
        plain = Work(seq=self.seq, flash=self.work.flash, sequence_parallel=shared)
        for ep, etp in product(eps, self.etp or (None,)):
            for size in self.microbatch or MICROBATCHES:
                if share % size:
                    continue
                try:
                    layout = Layout(pp * tp * cp, tp, cp, ep, dp, etp=etp)
                    for recompute in self.recompute:
                        work = replace(plain, microbatch=size, recompute=recompute)
                        check_work(self.model, work.on(layout))
                        of = (pp, tp, cp, dp, ep)
                        for zero, slices in product(zeros, self._cuts(pp, cp, size)):
                            whole = Choice(*of, zero, size, share // size, recompute)
                            for by in self._cut_by(pp, slices):
                                yield replace(whole, slices=slices, slice_by=by, etp=etp)
                except OptPipeError:  # the model cannot be divided so
                    continue

    def _cuts(self, pp: int, cp: int, size: int) -> Iterator[int]:
        """Yield the numbers of slices: unless requested, of long sequences that come one by one in a
        pipeline."""
        if self.slices is not None:
            yield from self.slices
            return
        for slices in SLICES if self.work.flash else SLICES[:1]:
            fits = self.seq % slices == 0 and self.seq >= slices * cp * LEAST_SHARE
            if slices == 1 or (fits and pp > 1 and size == 1):
                yield slices

    def _cut_by(self, pp: int, slices: int) -> Iterator[str]:
        """Yield what slices have equal: what was asked for, and what schedules make of them whose devices
        exchange context, where there are several."""
        yield self.slice_by
        exchanging = {parse_name(name)[0] for name in self.names} & set(EXCHANGING)
        if slices > 1 and pp > 1 and exchanging and self.slice_by != EXCHANGE:
            yield EXCHANGE

    def shapes(self, choice: Choice) -> Iterator[tuple[Choice, tuple[str, ...]]]:
        """Yield the choice with each number of chunks and placement, and the schedules for it."""
        if choice.pp == 1:
            yield from self._alone(choice)
            return
        bases = {name: parse_name(name)[0] for name in self.names}
        for chunks in self.chunks:
            for placement in ("loop", "vee"):
                if placement == "vee" and chunks != 2:
                    continue
                if choice.slices > 1:
                    known = () if placement == "vee" else _sliced(chunks, choice.exchanges)
                else:
                    known = VEE if placement == "vee" else ONE_CHUNK if chunks == 1 else LOOP
                free = ANY_SHAPE if choice.slices == 1 else () if choice.exchanges else SEARCHED
                names = tuple(n for n, base in bases.items() if base in (*known, *free))
                if names:
                    yield replace(choice, chunks=chunks, placement=placement), names

    def _alone(self, choice: Choice) -> Iterator[tuple[Choice, tuple[str, ...]]]:
        """Yield one device's choice: one chunk, and 1F1B, since it has no pipeline to order; or what was asked
        for out of what runs there."""
        if choice.slices > 1:
            runs = _sliced(1, choice.exchanges)
        else:
            runs = (schedules.PLAIN,) if self.schedules is None else (*ONE_CHUNK, *ANY_SHAPE)
        names = tuple(name for name in self.names if parse_name(name)[0] in runs or name == PAIRED)
        if names and 1 in self.chunks:
            yield replace(choice, chunks=1, placement="loop"), names


def _sliced(chunks: int, exchanges: bool) -> tuple[str, ...]:
    """Return the schedules over slices in a loop, of which devices exchange context or do not."""
    if exchanges:
        return EXCHANGING
    if chunks > 1:
        return SLICED_LOOP
    return SLICED_ONE


def divisors(number: int) -> list[int]:
    """Return the divisors of a whole number, in order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def as_choices(key: str, value: Any) -> tuple[Any, ...] | None:
    """Return one value, several, or None (all that make sense) as a tuple."""
    if value is None:
        return None
    if isinstance(value, int | str):
        return (value,)
    if isinstance(value, Sequence) and value:
        return tuple(dict.fromkeys(value))
    raise OptPipeError(f"{key}: expected a value or several, got {value!r}")


def _enough_layers(stages: int, layers: int) -> bool:
    return stages <= layers + 2 and (stages <= layers or stages >= 3)


def require_count(key: str, value: Any) -> None:
    """Raise unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        kind = InvalidSchedule if key == "chunks" else OptPipeError
        raise kind(f"{key}: must be a whole number of at least 1, got {value!r}")
