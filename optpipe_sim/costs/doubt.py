"""The uncertainty of an estimate: what was compared with published runs, and what was not.

``data/compared/runs.yaml`` has every published run that was compared with an estimate (written by
``python -m experiments.costs_runs.run``). The doubt of a case is the error of the runs with its
machine, kind of model and number format, and the features that none of them has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import accumulate, combinations
from math import exp, expm1, log1p
from statistics import median
from typing import Any, NamedTuple

from .data_files import data_file
from .layout import Layout
from .machine_files import load_machine, machine_names
from .machines import Machine, Rates
from .models import Model
from .recompute.regions import RECOMPUTE
from .work import Work

POOR = 0.2  # a median error beyond which a time is nothing to plan by
LEVEL = 0.8  # of the intervals


class Compared(NamedTuple):
    """A published run beside its estimate.

    Attributes:
        machine: the machine file whose rates the estimate used.
        kind: ``dense`` or ``experts``. `dtype`: of the GEMMs.
        features: as `features` names them.
        error: estimated / published iteration time - 1; None where no time was published.
        mfu, mfu_causal: of the published run (0 without a time), every score or the causal half counted.
        run: its name; `source`: its publication.
        memory: estimated / published peak memory - 1; None where none was published.
        role: ``fit`` where a rate of the machine file was fitted to it, ``model left out`` where rates were fitted to
            the same source's runs of other models, else ``check``. Doubt is taken from the last only.
        measured_ms, measured_gib: what was published, a time per iteration and a peak.
        ablation: the common name of runs that differ in one choice; the first is the baseline.
            `arm`: what this one chose, where its features do not say it.
    """

    machine: str
    kind: str
    dtype: str
    features: frozenset[str]
    error: float | None
    mfu: float
    mfu_causal: float
    run: str
    source: str
    memory: float | None = None
    role: str = "check"
    measured_ms: float | None = None
    measured_gib: float | None = None
    ablation: str = ""
    arm: str = ""

    @property
    def publication(self) -> str:
        """Who published it, without the table or the release."""
        return self.source.split(",")[0]


class Best(NamedTuple):
    """The highest MFU (causal half of the scores counted) of published runs of one class."""

    mfu_causal: float
    run: str
    source: str


@dataclass(frozen=True)
class Doubt:
    """The known error of an estimate.

    Attributes:
        error: median absolute relative error of iteration times of comparable runs; None where no
            such run was compared, or where the case has a feature that none of them has.
        bias, worst: their median signed and largest error (negative: estimated too fast); None
            without any.
        runs: how many.
        interval: what the measured time may be over the estimated one, in `LEVEL` of the cases: see
            `interval`, and, where nothing comparable was measured, `elsewhere`.
        basis: a sentence with these numbers.
        unmeasured: features of the case that no compared run of this machine and kind has.
        interval_offloading: the interval of a schedule that moves activations to the host.
    """

    error: float | None
    bias: float | None
    worst: float | None
    runs: int
    basis: str
    unmeasured: tuple[str, ...]
    interval: tuple[float, float] | None = None
    interval_offloading: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data; the ``doubt`` of an estimated profile's meta."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in vars(self).items()
        }


def kind_of(model: Model) -> str:
    """``experts`` or ``dense``."""
    return "experts" if model.experts else "dense"


OFFLOADING = "offloading"  # of a schedule, not of a case


def features_of(model: Model, machine: Machine, layout: Layout, work: Work) -> dict[str, bool]:
    """Return the features that a case may have beyond its machine, kind of model and number format, and whether it does."""
    return {
        "pipeline parallelism": layout.pipeline > 1,
        "tensor parallelism": layout.tp > 1,
        "context parallelism": layout.cp > 1,
        "expert parallelism": layout.ep > 1,
        "expert parallelism across nodes": layout.ep * layout.expert_tp > machine.devices_per_node,
        "ZeRO 2 or 3": layout.zero > 1,
        "several nodes": layout.devices * layout.dp > machine.devices_per_node,
        "recomputation of norms": work.recompute == "norms",
        "recomputation of modules": work.recompute not in RECOMPUTE,
        "full recomputation": work.recompute == "full",
        "unfused attention": not work.flash,
        "latent attention": model.latent,
        "overlapped exchange": work.ep > 1
        and (work.exchange.endswith("overlapped") or work.pairs != "none"),
        "buffers of experts": work.expert_rank_capacity > 0,
        "unevenly loaded experts": work.imbalance != 1,
        "overlapped gradients": layout.copies > 1 and "grad-reduce" in work.overlap,
        "overlapped tensor parallelism": layout.tp > 1 and "tp-comm" in work.overlap,
        "exposed tensor parallelism": layout.tp > 1 and "tp-comm" not in work.overlap,
        "CUDA graphs of modules": bool(work.cuda_graph_modules),
        "CUDA graphs": work.cuda_graphs,
        "experts without CUDA graphs": model.experts > 0
        and not work.cuda_graphs
        and not work.cuda_graph_modules,
        "gradients summed up apart": work.gradient_sums != "fused",
        "blocking launches": work.launch_blocking,
        "no sequence parallelism": layout.tp > 1 and not work.sequence_parallel,
    }


def features(model: Model, machine: Machine, layout: Layout, work: Work) -> frozenset[str]:
    """Return the features that a case has."""
    found = features_of(model, machine, layout, work)
    return frozenset(name for name, has in found.items() if has)


def doubt(
    model: Model, machine: Machine, layout: Layout, work: Work, offloads: bool = False
) -> Doubt:
    """Return the doubt of this case from compared runs; `offloads`: its schedule moves activations to the host."""
    asked = features(model, machine, layout, work)
    case = machine.name, machine.rates, kind_of(model), work.dtype
    offloading = _doubt(*case, asked | {OFFLOADING})
    found = offloading if offloads else _doubt(*case, asked)
    return replace(found, interval_offloading=offloading.interval)


@lru_cache(maxsize=4096)
def _doubt(name: str, rates: Rates, kind: str, dtype: str, asked: frozenset[str]) -> Doubt:
    what = f"{_KINDS[kind]} in {dtype}"
    far = elsewhere(name, kind, dtype)
    if rates.fitted and (name not in machine_names() or load_machine(name).rates != rates):
        sources = ", ".join(sorted(set(rates.fitted.values())))
        return _unknown(
            f"rates fitted to {sources}; no run that the fit had not seen was compared", asked, far
        )
    if name not in machine_names() or load_machine(name).rates != rates:
        return _unknown(f"no published run on {name} was compared", asked, far)
    timed, *_ = pools(name, kind, dtype, (one for one in compared() if one.error is not None))
    covered = frozenset().union(*(one.features for one in timed))
    same, family, alike = pools(name, kind, dtype, checks())
    if not same:
        near = f"; in other formats {_summary(family)}" if family else ""
        own = [one for one in timed if one.role == "model left out"]
        if own:
            near = f" of another source than the rates were fitted to; each model left out in turn (the source itself is not left out): {_summary(own)}"
        return _unknown(f"no published run of {what} on {name} was compared{near}", asked, far)
    missing = tuple(sorted(asked - covered))
    errors = [one.error for one in same if one.error is not None]
    seen = interval((same, family, alike))
    basis = f"{what} on {name}: {_summary(same)}"
    if missing:
        basis += f"; none of them has {', '.join(missing)}"
    return Doubt(
        None if missing else median(map(abs, errors)),
        median(errors),
        max(errors, key=abs),
        len(errors),
        basis,
        missing,
        # what no run had makes a time no surer than one without it
        widest([seen, interval((alike,))]) if missing else seen,
    )


def pools(
    machine: str, kind: str, dtype: str, runs: Iterable[Compared]
) -> tuple[list[Compared], list[Compared], list[Compared]]:
    """Return the runs of a machine, kind of model and number format; those of the machine and the kind;
    those of the kind."""
    formats = (dtype, _ALIKE.get(dtype, dtype))
    of_kind = [one for one in runs if one.kind == kind]
    of_machine = [one for one in of_kind if one.machine == machine]
    return [one for one in of_machine if one.dtype in formats], of_machine, of_kind


def interval(nearest: Iterable[Sequence[Compared]]) -> tuple[float, float] | None:
    """Return the interval of measured over estimated time that holds `LEVEL` of the runs of a source
    that was not compared.

    The first of `nearest` (see `pools`) that has two sources counts. The runs of each source deviate
    from the median of the other sources' runs; the interval is the median of all, and to both sides what
    `LEVEL` of these deviations do not exceed, each source counting alike: what the runs of a source have
    in common, the set-up of its machine and its way to measure, is part of what is unknown of another
    source.
    """
    for runs in nearest:
        found = _apart(runs, lambda one: one.publication)
        if found is not None:
            return found
    return None


@cache
def elsewhere(name: str, kind: str, dtype: str) -> tuple[float, float] | None:
    """Return the interval for a machine on which no run was compared: that of runs of a machine left out, and that of the file that it is
    based on, so that a machine file that is not judged is never surer than what it was made from.
    """
    *_, alike = pools(name, kind, dtype, checks())
    found = [left_out(alike)]
    base = data_file("machines", name).get("base") if name in machine_names() else None
    if base is not None:
        base = load_machine(base).name
        found += [interval(pools(base, kind, dtype, checks())), elsewhere(base, kind, dtype)]
    return widest(found)


def left_out(runs: Sequence[Compared]) -> tuple[float, float] | None:
    """Return the interval for runs of a machine that none of `runs` is of: how these lie from the runs of other machines, and of other
    sources, whichever is wider."""
    return widest(
        [_apart(runs, lambda one: one.machine), _apart(runs, lambda one: one.publication)]
    )


@cache
def between_layouts() -> float:
    """Return the half-width that holds `LEVEL` of the errors of differences between two layouts of one model, relative: of pairs of
    published runs of one source on one machine in one number format that no rate was fitted to, each source counting alike."""
    return half_width(errors_between_layouts(checks()))


def half_width(errors: Mapping[str, Sequence[float]]) -> float:
    """Return what `LEVEL` of errors do not exceed, each source counting alike."""
    return _quantile([each for each in errors.values() if each], LEVEL)


def errors_between_layouts(runs: Iterable[Compared]) -> dict[str, list[float]]:
    """Return, by source, how far the difference of each two runs of a model is off, relative to the time."""
    alike: dict[tuple[str, ...], list[Compared]] = {}
    for one in runs:
        model = one.run.partition(" on ")[0]
        alike.setdefault((one.machine, one.dtype, one.source, model), []).append(one)
    found: dict[str, list[float]] = {}
    for each in alike.values():
        for first, second in combinations(each, 2):
            error = log1p(first.error or 0.0) - log1p(second.error or 0.0)
            found.setdefault(first.publication, []).append(abs(expm1(error)))
    return found


def widest(intervals: Iterable[tuple[float, float] | None]) -> tuple[float, float] | None:
    """Return the interval that holds all that are known; None where none is."""
    known = [each for each in intervals if each is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def _apart(
    runs: Iterable[Compared], group: Callable[[Compared], str]
) -> tuple[float, float] | None:
    """Return the interval by how the runs of each group lie from the median of the other groups; None for a single one."""
    groups: dict[str, list[float]] = {}
    for one in runs:
        groups.setdefault(group(one), []).append(log1p(one.error or 0.0))
    if len(groups) < 2:
        return None
    deviations = []
    for name, own in groups.items():
        middle = _quantile([each for other, each in groups.items() if other != name], 0.5)
        deviations.append([abs(error - middle) for error in own])
    middle, width = _quantile(groups.values(), 0.5), _quantile(deviations, LEVEL)
    return exp(-middle - width), exp(width - middle)


def _quantile(groups: Iterable[Sequence[float]], level: float) -> float:
    """Return the least value that `level` of all values do not exceed, where each group counts alike."""
    weighted = sorted((value, 1 / len(group)) for group in groups for value in group)
    shares = list(accumulate(weight for _, weight in weighted))
    return weighted[bisect_left(shares, level * shares[-1] - 1e-9)][0]


def checks() -> list[Compared]:
    """Return the runs that judge an estimate of time: nothing was fitted to them."""
    return [one for one in compared() if one.role == "check" and one.error is not None]


def caution(error: float | None, bias: float | None) -> str | None:
    """Return a warning where comparable runs are off by more than `POOR` in the median; else None."""
    if error is None or bias is None or error <= POOR:
        return None
    side = "long" if bias > 0 else "short"
    return (
        f"do not plan by this time: comparable runs were estimated {error:.0%} off in the median"
        f" ({abs(bias):.0%} too {side}); measure one and give it with --calibrate"
    )


_KINDS = {"dense": "dense models", "experts": "models with experts"}
_ALIKE = {"fp16": "bf16", "bf16": "fp16"}


def _unknown(basis: str, asked: Iterable[str], far: tuple[float, float] | None) -> Doubt:
    if far is not None:
        basis += ": the interval is that of a machine and a source that were left out"
    return Doubt(None, None, None, 0, basis, tuple(sorted(asked)), far)


def _summary(runs: list[Compared]) -> str:
    """Describe number, errors and sources of compared runs."""
    errors = [one.error for one in runs if one.error is not None]
    sources = "; ".join(dict.fromkeys(one.publication for one in runs))
    count = f"{len(runs)} published runs" if len(runs) > 1 else "1 published run"
    middle, worst = median(errors), max(errors, key=abs)
    side = "too long" if middle > 0 else "too short"
    return (
        f"{count} compared ({sources}), times off by {median(map(abs, errors)):.1%} in the median"
        f" ({abs(middle):.1%} {side}), at worst by {worst:+.0%}"
    )


def best_published(machine: Machine, kind: str, dtype: str) -> Best | None:
    """Return the best published run of this kind and format on chips with the same bf16 peak."""
    peak = machine.peak_tflops.get("bf16")
    rows: list[Best] = [
        Best(one.mfu_causal, one.run, one.source)
        for one in compared()
        if (one.kind, _same(one.dtype)) == (kind, _same(dtype)) and _peak(one.machine) == peak
    ]
    rows += [
        Best(float(one["mfu_causal"]), one["run"], one["source"])
        for one in data_file("compared", "runs").get("records", [])
        if (one["kind"], one["dtype"]) == (kind, _same(dtype)) and _peak(one["machine"]) == peak
    ]
    return max(rows, default=None)


def plausibility(
    machine: Machine, kind: str, dtype: str, mfu_causal: float
) -> tuple[bool | None, str]:
    """Return whether some published run reached this MFU, and a sentence; None if there is no run."""
    best = best_published(machine, kind, dtype)
    if best is None:
        return (
            None,
            f"no published MFU of {_KINDS[kind]} in {dtype} on such devices to hold it against",
        )
    reached = f"{best.run}: {best.mfu_causal:.1%} with the causal half counted ({best.source})"
    if mfu_causal > best.mfu_causal:
        return False, (
            f"an MFU of {mfu_causal:.1%} is beyond every published run of {_KINDS[kind]} in {dtype} on"
            f" such devices; the best known, {reached}"
        )
    return True, f"the best published run of this class is {reached}"


def _same(dtype: str) -> str:
    return "bf16" if dtype == "fp16" else dtype


def _peak(name: str) -> float | None:
    return load_machine(name).peak_tflops.get("bf16")


@cache
def compared() -> tuple[Compared, ...]:
    """Return every published run that was compared with an estimate."""
    return tuple(
        Compared(**{**row, "features": frozenset(row["features"])})
        for row in data_file("compared", "runs")["rows"]
    )
