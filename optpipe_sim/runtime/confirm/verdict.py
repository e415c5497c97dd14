"""What a run confirmed of a prediction, what it did not, and whether the prediction holds; and what else ratios of
measured to profiled times depend on: the host, clocks, memory that torch's allocator does not have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...op_costs import op_costs
from ...ops import O, Op, R
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim.difference import Difference
from ...sim.interference import Interference, replay_with_interference
from ...trace import Trace
from ...units import counted, format_size, format_time
from ..measure.footprint import OPS
from ..settings import Tolerances

BOUND = 0.9  # of an op's duration: the host issues no faster than the device works
# Of the largest entry of a gradient: where kernels and their order are the same it is 0.
GRADIENT_TOLERANCE = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 2e-2}
ROUNDING = 4.0  # the maximum over a tensor scatters: over slices up to 2.3 were seen in fp32
LATE = "messages, copies beside compute, and waiting"
STATIC = "static memory (weights, gradients, optimizer): taken from the profile"
INSIDE = "memory inside ops: measured between ops only"
NOT_CONFIRMED = {
    "synthetic": (
        "what ops and copies cost: they slept as long as the profile says",
        "memory and gradients: there were none",
        "links between GPUs: messages came as late as the profile says",
    ),
    "gradient": (INSIDE, STATIC),
    "replay": (
        f"{LATE}: one op ran at a time; the makespan is composed of their medians",
        INSIDE,
        STATIC,
    ),
    "loop": (
        "several devices at once: one rank at a time with modelled links",
        INSIDE,
        STATIC,
    ),
}
NO_TIME = "time: the ranks share this machine's cores, and memory is measured during the run"
NO_GPU = "GPUs: this ran on the CPU"
FIRST_GPU = "this mode itself: it was written without a GPU to try it on"
NO_LATENCY = "the P2P latency: the profile has none (t_comm is 0)"
PARTED = "what pairs hide: {} ran as a forward and then a backward, and were predicted so"
SHARED = "contention on host links that devices share: each rank had them to itself"


def conditions(profile: CostProfile, machine: Mapping[str, Any]) -> list[str]:
    """Return what else ratios of measured to profiled times depend on, a sentence each.

    Args:
        machine: as `confirm.machine` returns it.
    """
    return [
        *_issue(profile),
        *_clocks(_part(profile.meta, "device"), machine),
        *_reserved(profile, machine.get("communicator_bytes", ())),
    ]


def _issue(profile: CostProfile) -> Iterator[str]:
    """Yield how long the host takes to issue each op of a GPU, of the stage where that is the largest
    share of it."""
    if _part(profile.meta, "device").get("kind") in (None, "cpu", "fake"):
        return  # on a CPU the host itself computes
    most: dict[str, tuple[float, float, float]] = {}
    for stage in profile.meta.get("stages") or ():
        for op in OPS:
            times = _part(_part(stage, "times_us"), op)
            issue, took = (times.get(key) for key in ("issue", "median"))
            if issue and took:
                most[op] = max(most.get(op, (0.0, 0.0, 0.0)), (issue / took, issue, took))
    if not most:
        return
    each = [
        f"{op} {format_time(round(1e3 * issue))} of {format_time(round(1e3 * took))}"
        for op, (_, issue, took) in most.items()
    ]
    bound = [op for op, (share, _, _) in most.items() if share >= BOUND]
    slow = f"; {', '.join(bound)} as long as the host takes" if bound else ""
    yield f"profiled, the host issues {', '.join(each)}{slow}"


def _clocks(profiled: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the clocks when the profile was measured, and at the run."""
    before, now = _clock(profiled), _clock(run)
    if before and now:
        yield f"clocks: {before} when profiled, {now} at the run"


def _clock(facts: Mapping[str, Any]) -> str | None:
    load, cores = _part(facts, "clocks_under_load"), _part(facts, "clocks_mhz")
    if load.get("clocks.sm"):
        return f"SM {load['clocks.sm']} MHz"
    if cores.get("most"):
        return f"{cores['least']:g} to {cores['most']:g} MHz"
    return None


def _reserved(profile: CostProfile, communicators: Sequence[int]) -> Iterator[str]:
    """Yield the memory of a GPU outside of torch's allocator: as profiled, and what the `communicators` of each rank
    took in the run."""
    if any(communicators):
        sizes = ", ".join(map(format_size, communicators))
        yield f"NCCL's communicators hold {sizes} per rank, beyond what was predicted"
    found = _part(profile.meta, "reserved_bytes")
    if found:
        each = [
            f"{what} {size if isinstance(size, str) else format_size(size)}"
            for what, size in (
                ("the CUDA context", found.get("context")),
                ("a communicator of NCCL", found.get("communicator")),
            )
            if size is not None
        ]
        yield f"outside of torch's allocator: {', '.join(each)}"


def _part(data: Any, key: str) -> Mapping[str, Any]:
    """Return a mapping in another; an empty one where there is none."""
    found = data.get(key) if isinstance(data, Mapping) else None
    return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True)
class Peak:
    """The most that a rank held between ops, beyond what is static.

    `worst_op`, `off_bytes`: after which op measured and predicted bytes were furthest apart, where
    memory was measured at every op. Of a GPU's allocator, likewise beyond what is static: the most that was
    requested, inside ops as well (`inside_bytes`), allocated for it in blocks, and reserved from
    CUDA in segments; `cap_bytes`: what it could have reserved, where it was capped.
    """

    rank: int
    predicted_bytes: int
    measured_bytes: int
    worst_op: str | None = None
    off_bytes: int = 0
    inside_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    cap_bytes: int | None = None

    def problem(self, tolerances: Tolerances) -> str | None:
        """Return why it does not hold; None where it does. Less than predicted is no problem."""
        most = self.predicted_bytes * (1 + tolerances.memory) + tolerances.memory_bytes
        if self.measured_bytes > most:
            return (
                f"rank {self.rank} held up to {format_size(self.measured_bytes)}, predicted"
                f" {format_size(self.predicted_bytes)}"
            )
        if abs(self.off_bytes) > tolerances.memory * self.predicted_bytes + tolerances.memory_bytes:
            more = "more" if self.off_bytes > 0 else "less"
            return (
                f"rank {self.rank} held {format_size(abs(self.off_bytes))} {more} than predicted"
                f" after {self.worst_op}"
            )
        return None


@dataclass(frozen=True)
class Gradients:
    """Gradients and loss beside those of the unpipelined model.

    Attributes:
        parameters, bitwise: how many there are, and how many of them are equal bit by bit.
        worst: the one furthest off; `difference`: by how much, `relative`: of its largest entry.
        missing: those that no rank has.
        noise: how far the unpipelined model's are from themselves, in the same measure, where kernels
            do not repeat bitwise; None where that was not asked.
        rounded: how many are off by no more than the unpipelined model's are by rounding (times
            `ROUNDING`), where sums are in another order, as over slices; None where that was not asked.
    """

    parameters: int
    bitwise: int
    worst: str
    difference: float
    relative: float
    loss: float
    expected_loss: float
    missing: tuple[str, ...] = ()
    noise: float | None = None
    rounded: int | None = None

    def problems(self, tolerance: float) -> list[str]:
        """Return why they do not hold."""
        found = [f"no gradient of {name}" for name in self.missing]
        if not self.relative <= tolerance:
            found.append(
                f"the gradient of {self.worst} is off by {self.relative:.2g} of its largest entry"
            )
        if not math.isclose(self.loss, self.expected_loss, rel_tol=max(tolerance, 1e-9)):
            found.append(
                f"the loss is {self.loss:.6g}, of the unpipelined model it is"
                f" {self.expected_loss:.6g}"
            )
        return found


class GradientCheck:
    """Compares gradients with those of the unpipelined model, some at a time.

    Args:
        wanted: of the unpipelined model, by name.
        exact: the same in fp64: what is as near to it as `wanted` is, is off by rounding alone.
    """

    def __init__(
        self, wanted: Mapping[str, Tensor], exact: Mapping[str, Tensor] | None = None
    ) -> None:
        self.wanted, self.exact = wanted, exact
        self.rounded = 0
        self.seen: set[str] = set()
        self.bitwise = 0
        self.worst = ("", 0.0, 0.0)

    def add(self, found: Mapping[str, Tensor]) -> None:
        """Compare these; names that the unpipelined model does not have are left out."""
        for name in found.keys() & self.wanted.keys():
            self.seen.add(name)
            got, expected = found[name], self.wanted[name].to(found[name].device)
            if torch.equal(got, expected):
                self.bitwise += 1
                continue
            difference = float((got.double() - expected.double()).abs().max())
            if self._is_rounding(name, got):
                self.rounded += 1
                continue
            largest = float(expected.double().abs().max())
            relative = difference / largest if largest and math.isfinite(difference) else math.inf
            if (relative, name) > (self.worst[2], self.worst[0]):
                self.worst = name, difference, relative

    def result(self, loss: float, expected_loss: float) -> Gradients:
        """Return the comparison; what was never added is missing."""
        missing = tuple(sorted(self.wanted.keys() - self.seen))
        rounded = None if self.exact is None else self.rounded
        return Gradients(
            len(self.wanted),
            self.bitwise,
            *self.worst,
            loss,
            expected_loss,
            missing,
            rounded=rounded,
        )

    def _is_rounding(self, name: str, got: Tensor) -> bool:
        """Whether a gradient is about as near to the exact one as the unpipelined model's."""
        if self.exact is None:
            return False
        exact = self.exact[name]
        off, usual = (
            float((one.to(exact) - exact).abs().max()) for one in (got, self.wanted[name])
        )
        return off <= ROUNDING * usual


def compare_gradients(
    found: Mapping[str, Tensor],
    loss: float,
    wanted: Mapping[str, Tensor],
    expected_loss: float,
    exact: Mapping[str, Tensor] | None = None,
) -> Gradients:
    """Compare the gradients of all ranks, by name, with those of the unpipelined model."""
    check = GradientCheck(wanted, exact)
    check.add(found)
    return check.result(loss, expected_loss)


def peaks_after_ops(
    schedule: Schedule, profile: CostProfile, held: Sequence[Sequence[tuple[Op, int]]]
) -> tuple[Peak, ...]:
    """Compare the measured bytes after every op (and grant) of every rank with what its ops add up to."""
    rows, costs = [], op_costs(schedule, profile)
    for rank, measured in enumerate(held):
        expected = most = 0
        worst, off = "", 0
        reloaded: set[Op] = set()
        for op, size in measured:
            row = schedule.row(op)
            # an R takes its memory when it is granted, which is its first entry
            if op not in reloaded:
                expected += int(costs.allocated_bytes[row])
            if op.kind is R:
                reloaded.add(op)
            else:
                expected -= int(costs.released_bytes[row])
            most = max(most, expected)
            if abs(size - expected) > abs(off):
                worst, off = str(op), size - expected
        rows.append(Peak(rank, most, max(size for _, size in measured), worst or None, off))
    return tuple(rows)


@dataclass(frozen=True, eq=False)
class Confirmation:
    """A prediction beside what was measured.

    Attributes:
        mode: ``synthetic``, ``gradient``, ``replay`` or ``loop``; `device`: ``cpu`` or ``cuda``.
        difference: of the measured trace; of ``replay`` and ``loop`` it is composed: the replay of
            what each op took, and of how late it began, in the median.
        makespans_ns: of each iteration or sweep that counts; of ``replay`` and ``loop`` composed of
            that one alone.
        noise_ns: by how much two measurements of the same thing differ: the makespan composed of
            every other run, and that of the rest.
        closure_ns: by how much arrivals moved after the last sweep.
        last: of ``loop`` the last sweep as measured, each rank at the times of its own run.
        machine: what it ran on.
        beyond_cap: how it ran out of memory under the cap, where it was measured without one then.
    """

    mode: str
    device: str
    difference: Difference
    makespans_ns: tuple[int, ...]
    noise_ns: int | None = None
    closure_ns: int | None = None
    peaks: tuple[Peak, ...] = ()
    gradients: Gradients | None = None
    tolerances: Tolerances = field(default_factory=Tolerances)
    machine: Mapping[str, Any] = field(default_factory=dict)
    last: Trace | None = None
    beyond_cap: str | None = None

    @property
    def composed(self) -> bool:
        """Whether its makespan is composed of what each op took in the median."""
        return self.mode in ("replay", "loop")

    @property
    def timed(self) -> bool:
        """Whether its times confirm anything."""
        return self.mode != "gradient" or self.device != "cpu"

    @cached_property
    def together(self) -> Trace | None:
        """Of ``replay``, where each op ran alone: its makespan with ops slowed down by what would run beside
        them, as far as the profile has measured that; it is what ``loop`` should find."""
        found, measured = self.interference, self.difference.measured
        if self.mode != "replay" or found is None:
            return None
        lowered = self.difference.lowered
        return replay_with_interference(lowered, found, measured.end_ns - measured.start_ns)

    @property
    def interference(self) -> Interference | None:
        """The measured interference of ops with copies, from the profile."""
        return Interference.of(self.difference.lowered.profile)

    @cached_property
    def conditions(self) -> list[str]:
        """What else its ratios depend on, a sentence each."""
        return conditions(self.difference.lowered.profile, self.machine)

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts the prediction."""
        return not self.problems

    @cached_property
    def problems(self) -> list[str]:
        """What contradicts the prediction, a sentence each."""
        found = []
        predicted = self.difference.predicted.makespan_ns
        time = self.difference.measured.makespan_ns
        if self.timed and abs(time / predicted - 1) > self.tolerances.time:
            how = "composed of per-op medians" if self.composed else "measured"
            found.append(
                f"the makespan {how} is {format_time(time)}, {time / predicted - 1:+.1%} from the"
                f" {format_time(predicted)} predicted{self._as_corrected}"
            )
        if self.closure_ns is not None and self.closure_ns > self.tolerances.time * predicted:
            found.append(
                f"the sweeps have not come to rest: arrivals moved by"
                f" {format_time(self.closure_ns)} after the last"
            )
        found += [text for peak in self.peaks if (text := peak.problem(self.tolerances))]
        if self.beyond_cap is not None:
            found.append(f"measured without the cap, under which it failed: {self.beyond_cap}")
        if self.gradients is not None:
            found += self.gradients.problems(self.tolerances.gradient or 0.0)
        return found

    @property
    def _as_corrected(self) -> str:
        """How far the measured makespan is from the corrected prediction, as the end of a sentence."""
        corrected = self.difference.corrected
        if corrected is None:
            return ""
        off = self.difference.measured.makespan_ns / corrected.makespan_ns - 1
        return (
            f"; {off:+.1%} from the {format_time(corrected.makespan_ns)} corrected by what runs"
            " beside each op"
        )

    @property
    def not_confirmed(self) -> tuple[str, ...]:
        """What this mode says nothing about."""
        profile = self.difference.measured.profile
        cpu = self.device == "cpu"
        untimed = [] if self.timed else [NO_TIME]
        found = [*untimed, *NOT_CONFIRMED[self.mode], NO_GPU if cpu else FIRST_GPU]
        if self.mode in ("replay", "loop") and profile.t_comm_ns == 0 and profile.devices > 1:
            found.append(NO_LATENCY)
        kinds = self.difference.measured.schedule.table[:, 0]
        if self.mode == "loop" and (kinds == O).any() and len(profile.host_links) < profile.devices:
            found.append(SHARED)
        pairs = self.difference.measured.schedule.meta.get("parted")
        if pairs:
            found.append(PARTED.format(counted(pairs, "pair")))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        predicted, spans = self.difference.predicted.makespan_ns, self.makespans_ns
        gradients = None if self.gradients is None else asdict(self.gradients)
        if gradients is not None and not math.isfinite(gradients["relative"]):
            gradients["relative"] = None
        return {
            "mode": self.mode,
            "device": self.device,
            "holds": self.holds,
            "problems": self.problems,
            "not_confirmed": list(self.not_confirmed),
            "timed": self.timed,
            **self.difference.measures(),
            "makespans_ns": list(spans),
            "spread": (max(spans) - min(spans)) / predicted,
            "composed_makespan_ns": (
                self.difference.measured.makespan_ns if self.composed else None
            ),
            "together_makespan_ns": None if self.together is None else self.together.makespan_ns,
            "noise_ns": self.noise_ns,
            "last_sweep_ns": None if self.last is None else self.last.makespan_ns,
            "closure_ns": self.closure_ns,
            "memory": [asdict(peak) for peak in self.peaks],
            "gradients": gradients,
            "tolerances": asdict(self.tolerances),
            "conditions": self.conditions,
            "machine": dict(self.machine),
        }
