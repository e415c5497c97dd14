"""`evaluate`: predict a configuration in use, beside its measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isclose
from typing import Any

from ...bounds.bounds import lower_bound
from ...errors import OptPipeError
from ...execution import Execution, execution_in_short
from ...names import ENTRIES, parse_name
from ...option_fields import made_of, options_of, takes
from ...reasons.hints import Hint
from ...schedules import INTERLEAVED, PAIRED, PLAIN
from ...solvers.starts.published import LOOP, VEE
from ...trace import Trace
from ...units import Size, as_limit, as_size, format_size, format_time, html_table
from ..calibrate import Calibration
from ..doubt import kind_of, plausibility
from ..layout import Layout
from ..machine_files import load_machine
from ..machines import Machine
from ..model_files import load_model
from ..models import Model
from ..provenance import iteration_ns, mfu
from ..work import Work
from ..wrong_units import require_peak, require_time
from .advise import Source
from .hints import SECONDS, hints_for
from .replay import profile_of, replayed_freely
from .rows import MEMORY_ERROR, Advice, Row
from .space import Choice, Question, as_choices, require_count

# of a configuration in use: what follows from others, and slices, which no trainer of it has
_CHOSEN = ("devices", "dp", "placement", "slices", "slice_by")
_OWN = ("microbatch", "recompute", "slices", "slice_by")  # of a choice
_HOW = [key for key in options_of(Work) if key not in _OWN]

MET = 0.01  # of a measurement: what rates that are fitted to it leave where they can be


@dataclass(frozen=True)
class Evaluation:
    """One configuration, predicted and measured.

    Attributes:
        advice: the question, with the configuration as its only row.
        measured_ns, measured_bytes: an iteration, and the peak of the fullest GPU; None: not given.
    """

    advice: Advice
    measured_ns: float | None = None
    measured_bytes: int | None = None

    def __repr__(self) -> str:
        ratio = "" if self.time_ratio is None else f", measured / predicted {self.time_ratio:.3f}"
        strange = ", not plausible" * (self.advice.plausibility(self.row)[0] is False)
        large = ", does not fit" * (not self.row.trace.fits)
        return f"<Evaluation of {self.row!r}{ratio}{strange}{large}>"

    def _repr_html_(self) -> str:
        """Return a small table with a picture, for notebooks."""
        rows = {
            "measured / predicted time": "-"
            if self.time_ratio is None
            else f"{self.time_ratio:.3f}",
            "measured / predicted peak": "-"
            if self.memory_ratio is None
            else f"{self.memory_ratio:.3f}",
        }
        doubts = [*self.advice.doubts(self.row), *self.findings()]
        rows |= {"how sure": self.advice.basis, "doubts": "; ".join(doubts) or "none"}
        return html_table(rows) + self.row._repr_html_()

    @property
    def row(self) -> Row:
        """The prediction."""
        return self.advice.rows[0]

    @property
    def time_ratio(self) -> float | None:
        """Measured over predicted time of an iteration."""
        return None if self.measured_ns is None else self.measured_ns / self.row.iteration_ns

    @property
    def memory_ratio(self) -> float | None:
        """Measured over predicted peak memory."""
        return None if self.measured_bytes is None else self.measured_bytes / self.row.peak_bytes

    def measured_mfu(self, causal: bool = False) -> float | None:
        """Return the MFU of the measured time; see `provenance.mfu`."""
        if self.measured_ns is None:
            return None
        return mfu(self.row.profile, self.measured_ns, self.row.choice.microbatches, causal)

    @property
    def measured_tokens_per_s(self) -> float | None:
        """Over all GPUs."""
        return None if self.measured_ns is None else self.row.tokens / (self.measured_ns * 1e-9)

    def findings(self) -> list[str]:
        """Compare the measured numbers with the prediction, and list the remaining doubts, in sentences."""
        found = []
        if self.measured_ns is not None:
            found += self._of_time(self.measured_ns)
        if self.measured_bytes is not None:
            found.append(self._of_memory(self.measured_bytes))
        if not self.row.trace.fits:
            limit = format_size(self.advice.question.limit_bytes)
            found.append(f"predicted not to fit: {format_size(self.row.peak_bytes)} of {limit}")
        before = max(self.row.trace.peak_bytes)
        if self.row.peak_bytes > before:
            found.append(
                f"the peak is the optimizer's step with its copy of gradients; before it {format_size(before)} are held"
            )
        return found

    def _of_time(self, measured_ns: float) -> list[str]:
        doubt, error = self.advice.doubt(self.row), self.row.iteration_ns / measured_ns - 1
        off = f"the predicted time is {abs(error):.1%} too {'long' if error > 0 else 'short'}"
        if abs(error) < MET and self._fitted_to("iteration", measured_ns / 1e6):
            found = [f"{off}: the rates are fitted to this run, so that says nothing of others"]
        elif doubt.error is None or doubt.worst is None:
            found = [f"{off}; no comparable run tells whether that is usual"]
        elif abs(error) <= doubt.error:
            found = [f"{off}: as near as compared runs are in the median ({doubt.error:.1%})"]
        elif abs(error) <= abs(doubt.worst):
            found = [
                f"{off}: further off than compared runs are in the median ({doubt.error:.1%}), nearer"
                f" than the worst of the {doubt.runs} ({doubt.worst:+.0%})"
            ]
        else:
            found = [
                f"{off}: further off than any of the {doubt.runs} compared runs (worst"
                f" {doubt.worst:+.0%}); compare kernels, number format, overlap and the batch"
            ]
        if measured_ns < self.row.bound_ns:
            found.append(
                f"no schedule takes less than {format_time(self.row.bound_ns)} with these chunks, at the estimated"
                " costs: the costs are too high, whatever the schedule"
            )
        question, causal = self.advice.question, self.measured_mfu(causal=True)
        assert causal is not None
        kind = kind_of(question.model)
        beyond, why = plausibility(question.machine, kind, question.work.dtype, causal)
        if beyond is False:
            found.append(f"the measured time is not plausible: {why}; is the batch right?")
        return found

    def _fitted_to(self, kind: str, value: float) -> bool:
        """Whether a calibration is fitted to this number."""
        fitted = self.advice.calibration
        found = () if fitted is None else fitted.after
        return any(one.kind == kind and isclose(one.measured, value, rel_tol=1e-3) for one in found)

    def _of_memory(self, measured_bytes: int) -> str:
        error = self.row.peak_bytes / measured_bytes - 1
        usual = "within" if abs(error) <= MEMORY_ERROR else "beyond"
        off = f"the predicted peak is {abs(error):.1%} too {'high' if error > 0 else 'low'}"
        if abs(error) < MET and self._fitted_to("memory", measured_bytes / 2**30):
            return f"{off}: memory is fitted to this run, so that says nothing of others"
        return f"{off}, {usual} its usual error ({MEMORY_ERROR:.1%} in the median of the runs it was checked on)"

    def to_json(self) -> dict[str, Any]:
        """Plain data; the keys of ``evaluate --json``."""
        return {
            **self.advice.question.to_json(),
            **self.row.to_json(self.advice),
            "fits": self.row.trace.fits,
            "peak_bytes_by_device": list(self.row.trace.peak_bytes),
            "memory_parts": self.row.trace.memory_parts,
            "flops_per_s": self.row.trace.flops_per_s,
            "makespan_ns": self.row.trace.makespan_ns,
            "bubble_rate": self.row.trace.bubble_rate,
            "bubble": self.row.trace.bubble,
            "imbalance": self.row.trace.imbalance,
            "expert_imbalance": self.row.profile.meta.get("imbalance"),
            "measured": {
                "iteration_ns": self.measured_ns,
                "tokens_per_s": self.measured_tokens_per_s,
                "mfu": self.measured_mfu(),
                "mfu_causal": self.measured_mfu(causal=True),
                "peak_bytes": self.measured_bytes,
            },
            "ratio": {"iteration": self.time_ratio, "peak": self.memory_ratio},
            "findings": self.findings(),
        }

    def hints(
        self, seconds: float = SECONDS, check: Callable[[Trace], None] = lambda _: None
    ) -> list[Hint]:
        """Return changes that make the configuration faster, each replayed; see `hints.hints_for`."""
        return hints_for(self.advice.question, self.row, seconds, check=check)

    def measurement(self) -> dict[str, Any]:
        """Return the measured numbers as a row of a calibration file.

        Raises:
            OptPipeError: if nothing was measured.
        """
        if self.measured_ns is None and self.measured_bytes is None:
            raise OptPipeError("measurement: nothing was measured; give a time or a peak")
        choice, question = self.row.choice, self.advice.question
        row = {
            "model": question.model.name,
            **choice.options,
            **{key: getattr(question.work, key) for key in _HOW},
            "imbalance": self.row.profile.meta["work"].get("imbalance", 1.0),
            "layers": self.row.profile.meta["layers_per_stage"],
            "schedule": self.row.schedule,
            "microbatches": choice.microbatches,
            "execution": execution_in_short(question.execution),
            **({"levels": True} if self.row.profile.has_levels else {}),
        }
        if self.measured_ns is not None:
            row["iteration_ms"] = self.measured_ns / 1e6
        if self.measured_bytes is not None:
            row["peak_gib"] = self.measured_bytes / 2**30
        return row


@takes(Layout, Work, without=_CHOSEN)
def evaluate(
    model: Model | Source,
    machine: Machine | Source,
    gpus: int,
    seq: int,
    *,
    microbatches: int | None = None,
    global_batch: int | None = None,
    schedule: str | None = None,
    pp: int = 1,
    zero: int | None = None,
    execution: Execution | str | None = None,
    memory_limit: Size | None = None,
    calibration: Calibration | None = None,
    measured_ns: float | None = None,
    measured_bytes: Size | None = None,
    **options: Any,
) -> Evaluation:
    """Time, MFU and memory of one configuration, as predicted, beside what was measured.

    Args:
        gpus: in all; what pp, tp and cp leave are replicas.
        seq: tokens per sequence.
        microbatches: m, per replica and iteration, of `microbatch` sequences each. `global_batch`: or
            sequences per iteration, in all; one of the two.
        schedule: a published one by name, options included; None: 1F1B, interleaved with `chunks`, and
            with `pairs` Megatron-LM's combined one. ``1f1b:recompute=LEVEL`` takes a level of
            `estimate(levels=True)`.
        pp: devices along the pipeline.
        zero: what is sharded over the replicas, as for `estimate`; 1 by default where there are replicas.
        execution: how the trainer issues the work, a name or what `load_execution` returns; None: as the runs were
            issued that the machine's rates are fitted to (`Machine.execution`).
        memory_limit: per device, not enforced; None: what driver and libraries leave.
        calibration: what `calibrate` returned; its rates are used.
        measured_ns: the time of an iteration. `measured_bytes`: the peak of the fullest GPU.
        options: the fields of `Layout` and of `Work`, as for `estimate`.

    Raises:
        OptPipeError: one line, for what can never be, measurements among it.
    """
    model = model if isinstance(model, Model) else load_model(model)
    machine = machine if isinstance(machine, Machine) else load_machine(machine)
    if calibration is not None:
        machine = machine.with_rates(calibration.rates)
    counts = {key: options.get(key, 1) for key in ("tp", "cp", "ep", "chunks", "microbatch")}
    for key, value in {"gpus": gpus, "seq": seq, "pp": pp, **counts}.items():
        require_count(key, value)
    tp, cp, ep, chunks, size = counts.values()
    dp, rest = divmod(gpus, pp * tp * cp)
    if rest or not dp:
        raise OptPipeError(f"gpus: {gpus} are not a multiple of pp {pp} x tp {tp} x cp {cp}")
    zero = int(dp * cp > 1) if zero is None else zero
    (work,) = made_of(options, Work, seq=seq)
    m = _microbatches(microbatches, global_batch, dp, size)
    name = schedule or _usual(pp, chunks, work.pairs)
    chunks, placement = _cut(name, chunks)
    limit = machine.usable_bytes if memory_limit is None else as_limit("memory limit", memory_limit)
    etp = options.get("etp")
    choice = Choice(pp, tp, cp, dp, ep, zero, size, m, work.recompute, chunks, placement, etp=etp)
    keys = ("pp", "tp", "cp", "dp", "ep", "zero", "microbatch", "chunks", "recompute", "etp")
    lists: dict[str, Any] = {key: as_choices(key, getattr(choice, key)) for key in keys}
    question = Question(
        model,
        machine,
        gpus,
        dp * size * m,
        work,
        limit,
        **lists,
        schedules=(name,),
        execution=machine.issued_as(execution),
    )
    levels = True if "recompute" in parse_name(name)[1] else None
    profile = profile_of(question, choice, levels, layers=options.get("layers"))
    trace = replayed_freely(profile, m, name)
    # as replayed: in the schedule's slices, and without the limit where it does not fit
    costs = profile.for_shape(trace.schedule.shape)
    least = lower_bound(costs if trace.fits else replace(costs, memory_limit=None), m, pairs=True)
    bound = iteration_ns(profile, least.ns)
    row = Row(choice, name, profile, trace, bound, question.global_batch * seq)
    advice = Advice(question, (row,), 1, 0, {}, 0, None, 0.0, (), calibration)
    peak = None if measured_bytes is None else as_size("measured_bytes", measured_bytes)
    if measured_ns is not None:
        require_time("measured_ns", measured_ns, row.iteration_ns, profile, m)
    if peak is not None:
        require_peak("measured_bytes", peak, row.peak_bytes, machine)
    return Evaluation(advice, measured_ns, peak)


def _usual(pp: int, chunks: int, pairs: str) -> str:
    """Return the schedule that Megatron-LM runs.

    Raises:
        OptPipeError: for pairs that it refuses.
    """
    if pairs == "none":
        return PLAIN if chunks == 1 else INTERLEAVED
    if pp > 1 and chunks == 1:
        raise OptPipeError(
            "pairs: on a pipeline Megatron-LM runs them with several chunks per device; give chunks, or a schedule"
        )
    return PAIRED


def _cut(schedule: str, chunks: int) -> tuple[int, str]:
    """Return the chunks per device and the placement that a schedule has, where `chunks` are given."""
    base, options = parse_name(schedule)
    if base == "optpipe":
        raise OptPipeError("schedule: optpipe is searched for; evaluate what is run today")
    if base in VEE or (base in LOOP and chunks == 1):
        chunks = options.get("chunks", 2)
    if chunks > 1 and not {"loop", "vee"} & {*ENTRIES[base].runs}:
        raise OptPipeError(f"chunks: {base} runs one chunk per device, not {chunks}; try 1f1b-i")
    return chunks, "vee" if base in VEE else "loop"


def _microbatches(m: int | None, global_batch: int | None, replicas: int, microbatch: int) -> int:
    """Return the microbatches of a replica, as given or from the sequences of all replicas."""
    if (m is None) == (global_batch is None):
        raise OptPipeError("microbatches, global_batch: give one of the two")
    if global_batch is None:
        assert m is not None
        require_count("microbatches", m)
        return m
    require_count("global_batch", global_batch)
    found, rest = divmod(global_batch, replicas * microbatch)
    if rest or not found:
        raise OptPipeError(
            f"global_batch: {global_batch} is not a multiple of {replicas} replicas x microbatch {microbatch}"
        )
    return found
